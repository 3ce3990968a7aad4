//! Guarantees of engines, on any backend: every sequence is read as if it were alone.

use std::sync::Arc;

use htc_formats::DType;
use htc_formats::source::ModelFile;
use htc_loader::exec::{Chunk, LogitRows, SequenceId};
use htc_loader::kv::{KvKind, KvOptions, KvType};
use htc_loader::{Backend, Engine, ExecError, Model, Session};
use htc_tests::model::Random;
use htc_tests::{Scratch, TinyModel};

use super::Named;
use super::sessions::{OVERFLOWING_TOKEN, overflowing};
use htc_tests::material::architecture as fixture;

const CONTEXT: usize = 96;

/// A model in integer blocks with heads of several Hadamard blocks, one in floats with rows of odd
/// lengths, and one with windows and capped scores.
fn files() -> Vec<ModelFile> {
    let scratch = Scratch::new();
    let integers = TinyModel {
        head_size: 32,
        ffn: 96,
        dtype: DType::Q8_0,
        ..TinyModel::default()
    };
    let floats = TinyModel {
        width: 36,
        ffn: 52,
        ..TinyModel::default()
    };
    let open =
        |name: &str, tiny: TinyModel| ModelFile::open(scratch.file(name, tiny.bytes())).unwrap();
    let gemma = ModelFile::open(fixture("gemma2").join("model.gguf")).unwrap();
    vec![
        open("integers.gguf", integers),
        open("floats.gguf", floats),
        gemma,
    ]
}

fn engine<B: Backend>(model: &Arc<Model<B>>, backend: B, options: &KvOptions) -> Engine<B> {
    Engine::new(Arc::clone(model), backend, CONTEXT, options).unwrap()
}

/// Returns a model on each backend, with two backends.
fn each<B: Backend>(
    backends: fn() -> Vec<Named<B>>,
    file: &ModelFile,
) -> Vec<(String, Arc<Model<B>>, [B; 2])> {
    let pairs = backends().into_iter().zip(backends());
    let load = |((name, mut first), (_, second)): (Named<B>, Named<B>)| {
        let model = Arc::new(Model::load(file.clone(), &mut first).unwrap());
        (name, model, [first, second])
    };
    pairs.map(load).collect()
}

fn f16() -> KvOptions {
    KvOptions::new(KvType::F16)
}

/// Returns texts of 1 to `longest` tokens.
fn texts(count: usize, longest: usize, vocabulary: usize) -> Vec<Vec<u32>> {
    let mut random = Random::new(5);
    let mut text = |index: usize| {
        let length = 1 + index * 7 % longest;
        (0..length)
            .map(|_| random.below(vocabulary) as u32)
            .collect()
    };
    (0..count).map(&mut text).collect()
}

fn chunk(sequence: SequenceId, tokens: &[u32], logits: LogitRows) -> Chunk<'_> {
    Chunk {
        sequence,
        tokens,
        logits,
    }
}

/// Returns the logits after every token, read one by one in a sequence of its own.
fn alone<B: Backend>(engine: &mut Engine<B>, text: &[u32]) -> Vec<Vec<f32>> {
    let id = engine.add_sequence().unwrap();
    let step = |token: &u32| {
        let tokens = [*token];
        let logits = engine.run(&[chunk(id, &tokens, LogitRows::Last)]).unwrap();
        logits.concat()
    };
    let logits = text.iter().map(step).collect();
    engine.remove_sequence(id).unwrap();
    logits
}

pub fn texts_together_equal_texts_alone<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    for file in files() {
        let texts = texts(32, 5, file.hyper.vocabulary);
        for (name, model, [first, second]) in each(backends, &file) {
            let mut session = Session::new(Arc::clone(&model), first, CONTEXT).unwrap();
            let mut engine = engine(&model, second, &f16());
            let ids: Vec<_> = texts
                .iter()
                .map(|_| engine.add_sequence().unwrap())
                .collect();
            let prompts = texts.iter().zip(&ids);
            let prompts: Vec<_> = prompts
                .map(|(text, id)| chunk(*id, text, LogitRows::All))
                .collect();
            let together = engine.run(&prompts).unwrap().concat();
            // Single steps of a session, then one of the next token of all.
            let mut expected = Vec::new();
            let mut next = Vec::new();
            for text in &texts {
                session.reset();
                for token in text {
                    expected.extend_from_slice(session.step(&[*token]).unwrap());
                }
                next.extend_from_slice(session.step(&[7]).unwrap());
            }
            assert_eq!(together, expected, "{name}");
            let steps: Vec<_> = ids
                .iter()
                .map(|id| chunk(*id, &[7], LogitRows::Last))
                .collect();
            assert_eq!(engine.run(&steps).unwrap().concat(), next, "{name}");
            let read = texts.iter().map(|text| text.len() + 1);
            let found = ids.iter().map(|id| engine.position(*id).unwrap());
            assert_eq!(
                found.collect::<Vec<_>>(),
                read.collect::<Vec<_>>(),
                "{name}"
            );
        }
    }
}

/// A text of which some tokens are read.
struct Reading {
    id: SequenceId,
    text: usize,
    read: usize,
}

pub fn coming_and_going_sequences_change_no_bit<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let (file, rotated) = (&files()[0], KvOptions::new(KvKind::Q8_0 { rotated: true }));
    let texts = texts(6, 12, file.hyper.vocabulary);
    for options in [f16(), rotated] {
        for (name, model, [first, second]) in each(backends, file) {
            let mut single = engine(&model, first, &options);
            let expected: Vec<_> = texts.iter().map(|text| alone(&mut single, text)).collect();
            let mut engine = engine(&model, second, &options);
            let mut random = Random::new(3);
            let (mut readings, mut waiting): (Vec<Reading>, _) = (Vec::new(), 0..texts.len());
            let mut compared = 0;
            while !readings.is_empty() || !waiting.is_empty() {
                for text in waiting.by_ref().take(1 + random.below(4)) {
                    let id = engine.add_sequence().unwrap();
                    readings.push(Reading { id, text, read: 0 });
                }
                // Chunks of prompts and single tokens, of some of the sequences in any order.
                let mut plan = Vec::new();
                for (index, reading) in readings.iter().enumerate() {
                    let &Reading { text, read, .. } = reading;
                    let rows = [LogitRows::None, LogitRows::Last, LogitRows::All];
                    let (most, rows) = ([1, 1, 6][random.below(3)], rows[random.below(3)]);
                    let count = most.min(texts[text].len() - read);
                    if random.below(4) > 0 {
                        plan.insert(random.below(plan.len() + 1), (index, count, rows));
                    }
                }
                let chunks = plan.iter().map(|&(index, count, rows)| {
                    let Reading { id, text, read } = readings[index];
                    chunk(id, &texts[text][read..read + count], rows)
                });
                let found = engine.run(&chunks.collect::<Vec<_>>()).unwrap();
                for (&(index, count, rows), found) in plan.iter().zip(found) {
                    let Reading { text, read, .. } = readings[index];
                    let all = &expected[text][read..read + count];
                    let wanted = match rows {
                        LogitRows::None => &[],
                        LogitRows::Last => &all[count - 1..],
                        LogitRows::All => all,
                    };
                    assert_eq!(found, wanted.concat(), "{name}, text {text} from {read}");
                    compared += wanted.len();
                    readings[index].read += count;
                }
                readings.retain(|reading| {
                    let left = reading.read < texts[reading.text].len();
                    if !left {
                        engine.remove_sequence(reading.id).unwrap();
                    }
                    left
                });
            }
            assert!(compared > 8, "{compared}");
            assert_eq!(engine.sequences().count(), 0);
        }
    }
}

pub fn copies_and_cuts_leave_no_trace<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let file = &files()[0];
    let [text, other, more] = [
        [5, 8, 9, 30, 31, 7],
        [40, 41, 42, 43, 44, 45],
        [60, 3, 61, 4, 62, 5],
    ];
    let all = |first: &[u32], rest: &[u32]| [first, rest].concat();
    for options in [f16(), KvOptions::new(KvKind::Q4_0 { rotated: true })] {
        for (name, model, [first, second]) in each(backends, file) {
            let mut single = engine(&model, first, &options);
            let mut engine = engine(&model, second, &options);
            let original = engine.add_sequence().unwrap();
            let read = |engine: &mut Engine<B>, parts: &[(SequenceId, &[u32])]| {
                let chunks = parts
                    .iter()
                    .map(|(id, text)| chunk(*id, text, LogitRows::All));
                let chunks: Vec<_> = chunks.collect();
                engine.run(&chunks).unwrap().concat()
            };
            read(&mut engine, &[(original, &text)]);
            let copy = engine.fork(original).unwrap();
            engine.truncate(original, 4).unwrap();
            assert_eq!(engine.position(original).unwrap(), 4);
            assert_eq!(engine.position(copy).unwrap(), 6);
            let found = read(&mut engine, &[(copy, &other), (original, &more)]);
            let expected = [
                &alone(&mut single, &all(&text, &other))[6..],
                &alone(&mut single, &all(&text[..4], &more))[4..],
            ];
            assert_eq!(found, expected.concat().concat(), "{name}");
            // The copy outlives the original.
            engine.remove_sequence(original).unwrap();
            engine.truncate(copy, 0).unwrap();
            let found = read(&mut engine, &[(copy, &more)]);
            assert_eq!(found, alone(&mut single, &more).concat(), "{name}");
            let error = engine.truncate(copy, 7).unwrap_err();
            assert!(
                matches!(error, ExecError::Truncate { found: 6, .. }),
                "{error}"
            );
        }
    }
}

pub fn evictions_depend_on_their_own_text<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let file = &files()[0];
    let texts = texts(4, 20, file.hyper.vocabulary);
    let mut options = f16();
    (options.importance_window, options.max_prompt_positions) = (2, Some(6));
    let mut evicted = 0;
    for (name, model, [first, second]) in each(backends, file) {
        let read = |engine: &mut Engine<B>, ids: &[SequenceId], texts: &[Vec<u32>]| {
            let prompts = ids.iter().zip(texts);
            let prompts: Vec<_> = prompts
                .map(|(id, text)| chunk(*id, text, LogitRows::None))
                .collect();
            assert!(engine.run(&prompts).unwrap().concat().is_empty());
            ids.iter().for_each(|id| engine.end_prompt(*id).unwrap());
            let steps = ids.iter().map(|id| chunk(*id, &[4], LogitRows::Last));
            engine.run(&steps.collect::<Vec<_>>()).unwrap().concat()
        };
        let mut single = engine(&model, first, &options);
        let expected = texts.iter().map(|text| {
            let id = single.add_sequence().unwrap();
            read(&mut single, &[id], std::slice::from_ref(text))
        });
        let expected: Vec<_> = expected.collect();
        let mut engine = engine(&model, second, &options);
        let ids: Vec<_> = texts
            .iter()
            .map(|_| engine.add_sequence().unwrap())
            .collect();
        assert_eq!(read(&mut engine, &ids, &texts), expected.concat(), "{name}");
        let usage = |id: &SequenceId| engine.kv_usage(*id).unwrap().evicted;
        evicted += ids.iter().map(usage).sum::<usize>();
    }
    assert!(evicted > 0);
}

pub fn refused_chunks_leave_sequences_unchanged<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let file = &files()[0];
    let vocabulary = file.hyper.vocabulary as u32;
    let last = LogitRows::Last;
    for (name, model, [first, second]) in each(backends, file) {
        let mut single = engine(&model, first, &f16());
        let mut engine = engine(&model, second, &f16());
        let [id, other, removed] = [0; 3].map(|_| engine.add_sequence().unwrap());
        engine.remove_sequence(removed).unwrap();
        engine.run(&[chunk(id, &[3, 4], last)]).unwrap();
        let many = vec![5; CONTEXT];
        let batch = vec![5; engine.batch() + 1];
        let good = chunk(other, &[6, 7], last);
        let refused = |engine: &mut Engine<B>, wrong: Chunk<'_>| {
            let error = engine.run(&[good, wrong]).map(drop).unwrap_err();
            let positions = [id, other].map(|id| engine.position(id).unwrap());
            assert_eq!(positions, [2, 0], "{name}");
            error
        };
        let error = refused(&mut engine, chunk(removed, &[5], last));
        assert!(matches!(error, ExecError::Sequence { sequence } if sequence == removed));
        let error = refused(&mut engine, good);
        assert!(matches!(error, ExecError::RepeatedSequence { sequence } if sequence == other));
        let error = refused(&mut engine, chunk(id, &[], last));
        assert!(matches!(error, ExecError::EmptyChunk { sequence } if sequence == id));
        let error = refused(&mut engine, chunk(id, &[5, vocabulary], last));
        assert!(matches!(error, ExecError::Token { token, .. } if token == vocabulary));
        // Too many in one chunk, and too many together.
        for tokens in [&batch[..], &batch[..batch.len() - 2]] {
            let error = refused(&mut engine, chunk(id, tokens, last));
            assert!(
                matches!(
                    error,
                    ExecError::Batch {
                        found: 513,
                        limit: 512
                    }
                ),
                "{error}"
            );
        }
        let error = refused(&mut engine, chunk(id, &many, last));
        let limit = CONTEXT;
        assert!(
            matches!(error, ExecError::SequenceFull { sequence, found, limit: at }
                if sequence == id && found == limit + 2 && at == limit),
            "{error}"
        );
        for error in [
            engine.fork(removed).map(drop),
            engine.remove_sequence(removed),
            engine.truncate(removed, 0),
            engine.position(removed).map(drop),
            engine.end_prompt(removed),
        ] {
            assert!(
                matches!(error, Err(ExecError::Sequence { .. })),
                "{error:?}"
            );
        }
        assert!(engine.run(&[]).unwrap().is_empty());
        let found = engine.run(&[good, chunk(id, &[8], last)]).unwrap().concat();
        let [good, next] = [&[6, 7][..], &[3, 4, 8]].map(|text| alone(&mut single, text));
        assert_eq!(found, [&good[1][..], &next[2]].concat(), "{name}");
    }
}

pub fn key_out_of_range_undoes_the_pass<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let last = LogitRows::Last;
    for (name, model, [first, second]) in each(backends, &overflowing()) {
        let mut single = engine(&model, first, &f16());
        let mut engine = engine(&model, second, &f16());
        let [id, other] = [0; 2].map(|_| engine.add_sequence().unwrap());
        engine.run(&[chunk(other, &[3, 5, 4], last)]).unwrap();
        let wrong = [6, OVERFLOWING_TOKEN];
        for rows in [LogitRows::None, last] {
            let chunks = [chunk(id, &wrong, rows), chunk(other, &[6], rows)];
            let error = engine.run(&chunks).map(drop).unwrap_err();
            let ExecError::KvRange {
                layer,
                side,
                position,
                ..
            } = error
            else {
                panic!("{name}: {error}");
            };
            assert_eq!((layer, side, position), (0, "key", 1), "{name}");
            assert_eq!(
                [id, other].map(|id| engine.position(id).unwrap()),
                [0, 3],
                "{name}"
            );
        }
        let chunks = [chunk(id, &wrong[..1], last), chunk(other, &[6], last)];
        let found = engine.run(&chunks).unwrap().concat();
        let [own, others] = [&wrong[..1], &[3, 5, 4, 6]].map(|text| alone(&mut single, text));
        assert_eq!(found, [&own[0][..], &others[3]].concat(), "{name}");
    }
}
