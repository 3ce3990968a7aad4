//! Guarantees of sessions, on any backend.

use std::sync::Arc;

use htc_formats::model::Role;
use htc_formats::source::ModelFile;
use htc_loader::exec::BATCH;
use htc_loader::generate::{GenerateLimits, GeneratedToken, Generator, Stop, generate};
use htc_loader::kv::KvType;
use htc_loader::sampling::{Sampler, SamplerInput, SamplingOptions};
use htc_loader::tokenizer::AddSpecialTokens;
use htc_loader::{Backend, ExecError, Model, Session};
use htc_tests::logits::largest_difference;
use htc_tests::{Scratch, TinyModel, material};

use super::Named;
use htc_tests::material::architecture as fixture;

fn tiny() -> ModelFile {
    let scratch = Scratch::new();
    let tiny = TinyModel {
        layers: 3,
        context: 2048,
        ..TinyModel::default()
    };
    ModelFile::open(scratch.file("model.gguf", tiny.bytes())).unwrap()
}

fn two<B: Backend>(
    backends: fn() -> Vec<Named<B>>,
    file: &ModelFile,
    context: usize,
    kv_type: KvType,
) -> Vec<(String, [Session<B>; 2])> {
    let pairs = backends().into_iter().zip(backends());
    let sessions = |((name, mut first), (_, second)): (Named<B>, Named<B>)| {
        let model = Arc::new(Model::load(file.clone(), &mut first).unwrap());
        let sessions = [first, second].map(|backend| {
            let session = Session::with_kv_type(Arc::clone(&model), backend, context, kv_type);
            session.unwrap()
        });
        (name, sessions)
    };
    pairs.map(sessions).collect()
}

fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| 3 + i * 37 % 290).collect()
}

pub fn step_equals_forward_and_logits<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let tokens = tokens(BATCH + 40);
    for (name, [mut steps, mut forward]) in two(backends, &tiny(), 2048, KvType::F16) {
        let found = steps.step(&tokens).unwrap().to_vec();
        forward.forward(&tokens[..BATCH]).unwrap();
        forward.forward(&tokens[BATCH..]).unwrap();
        assert_eq!(found, forward.last_logits().unwrap(), "{name}");
        assert_eq!(found, forward.logits(39, 40).unwrap(), "{name}");
        assert_eq!(steps.position(), tokens.len());
        let found = steps.step(&[5]).unwrap().to_vec();
        forward.forward(&[5]).unwrap();
        assert_eq!(found, forward.last_logits().unwrap(), "{name}");
    }
}

pub fn truncated_tokens_leave_no_trace<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let tokens = tokens(400);
    let other = [250, 251, 252];
    for kv_type in [KvType::F16, KvType::F32] {
        for (name, [mut cut, mut fresh]) in two(backends, &tiny(), 2048, kv_type) {
            for kept in [300, 299, 1, 0] {
                for whole in [300, kept] {
                    cut.reset();
                    fresh.reset();
                    for part in [&tokens[..whole], &tokens[whole..], &other] {
                        cut.step(part)
                            .map(drop)
                            .or_else(ignore_empty_batch)
                            .unwrap();
                    }
                    cut.truncate(kept).unwrap();
                    assert_eq!(cut.position(), kept);
                    let gone = cut.last_logits().map(drop);
                    assert!(matches!(gone, Err(ExecError::Rows { .. })), "{name}");
                    fresh
                        .step(&tokens[..kept])
                        .map(drop)
                        .or_else(ignore_empty_batch)
                        .unwrap();
                    for part in [&tokens[3..50], &other, &other[..1]] {
                        let (found, expected) =
                            (cut.step(part).unwrap(), fresh.step(part).unwrap());
                        let difference = largest_difference(found, expected);
                        let bound = if whole == kept { 0.0 } else { 1e-3 };
                        assert!(
                            difference <= bound,
                            "{name}, {kept} of {whole}: {difference:.2e}"
                        );
                    }
                }
            }
            let (position, held) = (cut.position(), cut.last_logits().unwrap().to_vec());
            let error = cut.truncate(position + 1).unwrap_err();
            assert!(matches!(error, ExecError::Truncate { .. }), "{error}");
            assert_eq!(cut.position(), position);
            assert_eq!(cut.last_logits().unwrap(), held, "{name}");
        }
    }
}

fn ignore_empty_batch(error: ExecError) -> Result<(), ExecError> {
    match error {
        ExecError::Rows { .. } => Ok(()),
        error => Err(error),
    }
}

/// The first `begin` positions are one batch.
fn stream<B: Backend>(
    session: &mut Session<B>,
    tokens: &[u32],
    begin: usize,
    layer: usize,
) -> Vec<f32> {
    let width = session.model().hyper().width;
    let mut x = vec![0.0; tokens.len() * width];
    session.embed(tokens, &mut x).unwrap();
    for layer in 0..layer {
        session.reset();
        let (first, rest) = x.split_at_mut(begin * width);
        session.block(layer, first, &mut ()).unwrap();
        session.block(layer, rest, &mut ()).unwrap();
    }
    session.reset();
    x
}

pub fn forward_from_a_layer_equals_the_whole_pass<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let tokens = tokens(20);
    let mut seen = 0;
    let gemma = ModelFile::open(fixture("gemma2").join("model.gguf")).unwrap();
    for file in [tiny(), gemma] {
        let vocabulary = file.hyper.vocabulary as u32;
        let tokens: Vec<u32> = tokens.iter().map(|token| token % vocabulary).collect();
        let width = file.hyper.width;
        for (name, [mut part, mut whole]) in two(backends, &file, 64, KvType::F32) {
            whole.forward(&tokens[..18]).unwrap();
            let expected = whole.logits(0, 18).unwrap().to_vec();
            let next = whole.step(&tokens[18..]).unwrap().to_vec();
            for layer in 0..file.hyper.layers {
                let x = stream(&mut part, &tokens, 18, layer);
                part.forward_from(layer, &x[..18 * width]).unwrap();
                let found = part.logits(0, 18).unwrap().to_vec();
                part.forward_from(layer, &x[18 * width..]).unwrap();
                let then = part.last_logits().unwrap();
                for (found, expected) in [(&found[..], &expected[..]), (then, &next)] {
                    let difference = largest_difference(found, expected);
                    let bound = if name == "reference" { 1e-5 } else { 0.0 };
                    assert!(difference <= bound, "{name}, {layer}: {difference:.2e}");
                    seen += 1;
                }
                part.reset();
            }
        }
    }
    assert!(seen > 8);
}

pub fn head_input_gives_the_logits<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let (file, tokens) = (tiny(), tokens(20));
    let [width, layers] = [file.hyper.width, file.hyper.layers];
    let tied = file.tensor(Role::TokenEmbedding).unwrap();
    let (rows, _) = file.bytes(tied).as_chunks::<4>();
    let rows: Vec<f64> = rows.iter().map(|x| f32::from_le_bytes(*x).into()).collect();
    for (name, [mut part, mut whole]) in two(backends, &file, 64, KvType::F32) {
        whole.forward(&tokens).unwrap();
        let expected = whole.logits(0, tokens.len()).unwrap();
        let mut x = stream(&mut part, &tokens, 18, layers);
        part.head_input(&mut x).unwrap();
        let logits = x.chunks_exact(width).flat_map(|x| {
            rows.chunks_exact(width).map(move |row| {
                let products = row.iter().zip(x).map(|(w, &x)| w * f64::from(x));
                products.sum::<f64>() as f32
            })
        });
        let difference = largest_difference(&logits.collect::<Vec<f32>>(), expected);
        assert!(difference < 1e-4, "{name}: {difference:.2e}");
        assert_eq!(part.position(), 0);
        assert!(matches!(part.last_logits(), Err(ExecError::Rows { .. })));
        part.head_input(&mut []).unwrap();
        let error = part.head_input(&mut x[1..]).unwrap_err();
        assert!(matches!(error, ExecError::Shape(_)), "{name}: {error}");
        let mut many = vec![0.1; width * (part.batch() + 1)];
        let error = part.head_input(&mut many).unwrap_err();
        assert!(matches!(error, ExecError::Batch { .. }), "{name}: {error}");
    }
}

pub fn layers_track_their_own_positions<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let file = tiny();
    let row = vec![0.1; file.hyper.width];
    for (name, [mut session, _]) in two(backends, &file, 64, KvType::F16) {
        session.step(&[1, 2]).unwrap();
        session.forward_from(1, &row).unwrap();
        assert_eq!(session.position(), 3);
        let refused = |error: ExecError| match error {
            ExecError::Blocks {
                requested: asked,
                read: held,
            } => (asked, held),
            other => panic!("{name}: {other}"),
        };
        let error = session.step(&[1]).map(<[f32]>::to_vec).unwrap_err();
        assert_eq!(refused(error), (0..3, 1..3));
        let error = session.block(0, &mut row.clone(), &mut ()).unwrap_err();
        assert_eq!(refused(error), (0..1, 1..3));
        session.block(2, &mut row.clone(), &mut ()).unwrap();
        let error = session.forward_from(1, &row).unwrap_err();
        assert_eq!(refused(error), (1..3, 2..3));
        assert_eq!(session.position(), 4);
        session.reset();
        session.step(&[1, 2]).unwrap();
        for layer in [3, usize::MAX] {
            let error = session.forward_from(layer, &row).unwrap_err();
            assert!(
                matches!(error, ExecError::Layer { layers: 3, .. }),
                "{error}"
            );
        }
        let error = session.forward_from(0, &row[1..]).unwrap_err();
        assert!(matches!(error, ExecError::Shape(_)), "{error}");
        assert_eq!(session.position(), 2);
    }
}

fn sampler() -> Sampler {
    let mut options = SamplingOptions::default();
    options.temperature = 0.8;
    options.seed = 7;
    Sampler::new(options).unwrap()
}

pub fn generator_and_generate_give_the_same_text<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let file = ModelFile::open(material::demo("reference-7m-f16.gguf")).unwrap();
    let tokenizer = Model::bind(file.clone()).unwrap().tokenizer().unwrap();
    let prompt = tokenizer.encode("Alice was", AddSpecialTokens::Prompt);
    let mut limits = GenerateLimits::tokens(9);
    limits.ignore_end = true;
    for (name, [mut first, mut second]) in two(backends, &file, 64, KvType::F16) {
        let mut text = String::new();
        let receive = |part: &str| {
            text += part;
            true
        };
        let summary = generate(
            &mut first,
            &tokenizer,
            &mut sampler(),
            &prompt,
            limits,
            receive,
        );
        let summary = summary.unwrap();
        assert_eq!((summary.tokens, summary.stop), (9, Stop::Limit), "{name}");

        let mut chosen = sampler();
        let new = Generator::new(&mut second, &tokenizer, &mut chosen, &prompt, limits);
        let mut generator = new.unwrap();
        let one = generator.step().unwrap().unwrap();
        let rest: Vec<GeneratedToken> = generator.by_ref().map(Result::unwrap).collect();
        assert_eq!(rest.len(), 8);
        assert_eq!(generator.stop_reason(), Some(Stop::Limit));
        assert_eq!(generator.step().unwrap(), None);
        let written = [one].into_iter().chain(rest).map(|written| written.text);
        let written: String = written.collect();
        let (end, summary) = generator.finish();
        assert_eq!(written + &end, text, "{name}");
        assert_eq!((summary.tokens, summary.stop), (9, Stop::Limit));
        assert_eq!(summary.prompt_tokens, prompt.len());

        second.reset();
        let mut chosen = sampler();
        let new = Generator::new(&mut second, &tokenizer, &mut chosen, &prompt, limits);
        let mut generator = new.unwrap();
        let three: Vec<u32> = (0..3)
            .map(|_| generator.step().unwrap().unwrap().token)
            .collect();
        assert_eq!(generator.finish().1.stop, Stop::Receiver);
        assert_eq!(second.position(), prompt.len() + 2);
        let logits = second.step(&three[2..]).unwrap();
        first.truncate(prompt.len()).unwrap();
        for token in &three[..2] {
            first.step(&[*token]).unwrap();
        }
        assert_eq!(first.step(&three[2..]).unwrap(), logits, "{name}");
    }
}

pub fn refused_tokens_leave_the_session_unchanged<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let file = ModelFile::open(fixture("phi3").join("model.gguf")).unwrap();
    let vocabulary = file.hyper.vocabulary as u32;
    let tokens: Vec<u32> = tokens(40).iter().map(|token| token % vocabulary).collect();
    for (name, [mut session, mut fresh]) in two(backends, &file, 20, KvType::F16) {
        assert_eq!(session.limit(), 32);
        session.step(&tokens[..10]).unwrap();
        let fails = |session: &mut Session<B>, tokens: &[u32]| {
            let error = session.step(tokens).map(<[f32]>::to_vec).unwrap_err();
            assert_eq!(session.position(), 10, "{name}");
            error
        };
        let error = fails(&mut session, &[1, vocabulary]);
        assert!(matches!(error, ExecError::Token { token, .. } if token == vocabulary));
        let error = fails(&mut session, &tokens[..23]);
        assert!(matches!(
            error,
            ExecError::Context {
                found: 33,
                limit: 32
            }
        ));
        let error = fails(&mut session, &[]);
        assert!(matches!(error, ExecError::Rows { .. }));
        fresh.step(&tokens[..10]).unwrap();
        let found = session.step(&tokens[10..32]).unwrap();
        assert_eq!(found, fresh.step(&tokens[10..32]).unwrap(), "{name}");
        session.truncate(31).unwrap();
        session.step(&[1]).unwrap();
    }
}

/// A device may report late that a key exceeds its type; the batch is then rolled back.
/// Token whose keys exceed float16 in the first layer of [`overflowing`].
pub const OVERFLOWING_TOKEN: u32 = 9;

/// Returns a model in which a single token lies along the first channel, for which keys of the
/// first layer exceed float16.
pub fn overflowing() -> ModelFile {
    let tiny = TinyModel::default();
    let mut tensors = tiny.tensors();
    for tensor in &mut tensors {
        let along = |row: usize| match (tensor.name.as_str(), row as u32) {
            ("token_embd.weight", OVERFLOWING_TOKEN) => Some(1.0),
            ("token_embd.weight", _) => Some(0.0),
            ("blk.0.attn_k.weight", _) => Some(1e6),
            _ => None,
        };
        for row in 0..tensor.rows {
            if let Some(number) = along(row) {
                tensor.values[row * tensor.cols] = number;
            }
        }
    }
    let scratch = Scratch::new();
    let file = scratch.file("model.gguf", tiny.bytes_with_tensors(&tensors));
    ModelFile::open(file).unwrap()
}

pub fn key_out_of_range_rolls_back<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let file = overflowing();
    for (name, [mut session, mut fresh]) in two(backends, &file, 64, KvType::F16) {
        session.step(&[3, 5, 4]).unwrap();
        let error = session
            .step(&[6, OVERFLOWING_TOKEN, 8])
            .map(<[f32]>::to_vec);
        let error = error.unwrap_err();
        let ExecError::KvRange {
            layer,
            side,
            position,
            ..
        } = error
        else {
            panic!("{name}: {error}");
        };
        assert_eq!((layer, side, position), (0, "key", 4), "{name}");
        assert_eq!(session.position(), 3, "{name}");
        fresh.step(&[3, 5, 4]).unwrap();
        let expected = fresh.step(&[6, 8]).unwrap().to_vec();
        assert_eq!(session.step(&[6, 8]).unwrap(), expected, "{name}");
        let failed = session
            .forward(&[OVERFLOWING_TOKEN])
            .and_then(|()| session.forward(&[8]))
            .unwrap_err();
        assert!(
            matches!(failed, ExecError::KvRange { position: 5, .. }),
            "{failed}"
        );
        assert_eq!(session.position(), 5, "{name}");
        let _ = session.forward(&[OVERFLOWING_TOKEN]);
        session.reset();
        session.step(&[3, 5, 4]).unwrap();
        assert_eq!(session.step(&[6, 8]).unwrap(), expected, "{name}");
        let prompt = session.read_prompt(&[6, OVERFLOWING_TOKEN]).unwrap_err();
        assert!(
            matches!(prompt, ExecError::KvRange { position: 6, .. }),
            "{prompt}"
        );
        assert_eq!(session.position(), 5, "{name}");
    }
}

pub fn requested_logits_suffice_for_sampling<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    for (name, [mut all, mut some]) in two(backends, &tiny(), 64, KvType::F16) {
        for (temperature, top_k, top_p) in [
            (0.0, 0, 1.0),
            (0.8, 40, 0.9),
            (1.0, 3, 1.0),
            (1.0, 65, 1.0),
            (1.0, 65, 0.8),
            (1.0, 0, 0.9),
            (0.7, 0, 1.0),
        ] {
            let mut options = SamplingOptions::default();
            (options.temperature, options.top_k, options.top_p) = (temperature, top_k, top_p);
            let mut samplers = [0; 2].map(|_| Sampler::new(options).unwrap());
            all.reset();
            some.reset();
            let mut token = 7;
            for _ in 0..6 {
                let logits = all.step(&[token]).unwrap();
                let mut ranked: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
                ranked.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
                let next = samplers[0].sample(logits).unwrap();
                let wanted = samplers[1].logits_for_sample();
                let found = some.step_for(&[token], wanted).unwrap();
                match found {
                    SamplerInput::Drawn(_) => assert!(top_k == 0 || top_k > 64, "{name}"),
                    SamplerInput::All(found) => assert_eq!(found, logits, "{name}"),
                    SamplerInput::TopK(found) => {
                        let expected = if temperature == 0.0 { 1 } else { top_k };
                        assert_eq!(found.len(), expected, "{name}");
                        assert_eq!(found, &ranked[..found.len()], "{name}");
                    }
                }
                assert_eq!(samplers[1].sample_from(found).unwrap(), next, "{name}");
                token = next;
            }
        }
    }
}
