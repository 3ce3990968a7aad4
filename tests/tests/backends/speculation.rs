//! Speculative decoding on any backend: the text is that of the model.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use htc_formats::DType;
use htc_formats::source::ModelFile;
use htc_loader::ExecError;
use htc_loader::adapt::{AdaptOptions, Adaptation};
use htc_loader::dial::ActiveSetting;
use htc_loader::generate::{GenerateLimits, Generator, Stop};
use htc_loader::kv::KvType;
use htc_loader::linear::RankFraction;
use htc_loader::sampling::{Distribution, Sampler, SamplingOptions};
use htc_loader::speculate::{DraftLength, Speculator};
use htc_loader::tokenizer::Tokenizer;
use htc_loader::{Backend, Model, Pool, Session};
use htc_tests::{Scratch, TinyModel, htc};

use super::Named;

const CONTEXT: usize = 256;

fn tiny(dtype: DType) -> ModelFile {
    let scratch = Scratch::new();
    let tiny = TinyModel {
        ffn: 192,
        dtype,
        ..TinyModel::default()
    };
    ModelFile::open(scratch.file("model.gguf", tiny.bytes())).unwrap()
}

pub fn session<B: Backend>(file: &ModelFile, mut backend: B) -> Session<B> {
    let model = Arc::new(Model::load(file.clone(), &mut backend).unwrap());
    Session::with_kv_type(model, backend, CONTEXT, KvType::F16).unwrap()
}

fn sampler(temperature: f32, seed: u64) -> Sampler {
    let mut options = SamplingOptions::default();
    (options.temperature, options.top_k, options.seed) = (temperature, 3, seed);
    Sampler::new(options).unwrap()
}

#[derive(Clone, Copy, Debug)]
enum Draft {
    Own,
    Other(DType),
}

fn pair<B: Backend>(
    (own, other): (B, B),
    draft: Draft,
    length: DraftLength,
    sampler: &Sampler,
) -> (Session<B>, Speculator<B>) {
    let own = session(&tiny(DType::F32), own);
    let speculator = match draft {
        Draft::Own => Speculator::with_same_model(ActiveSetting::FULL, length, sampler),
        Draft::Other(dtype) => {
            let other = session(&tiny(dtype), other);
            Speculator::with_draft_model(other, own.model(), length, sampler)
        }
    };
    (own, speculator.unwrap())
}

pub fn limits(tokens: usize) -> GenerateLimits {
    let mut limits = GenerateLimits::tokens(tokens);
    limits.ignore_end = true;
    limits
}

pub fn generate_tokens<B: Backend>(generator: Generator<'_, B>) -> (Vec<u32>, Stop) {
    let mut generator = generator;
    let tokens = generator
        .by_ref()
        .map(|written| written.unwrap().token)
        .collect();
    (tokens, generator.finish().1.stop)
}

pub fn drafts_change_no_token<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let prompt = [1, 40, 77, 130];
    let each = || backends().into_iter().zip(backends());
    let lengths = [1, 3, 16].map(DraftLength::Fixed);
    for ((name, backend), (_, other)) in each() {
        let mut plain = session(&tiny(DType::F32), backend);
        let tokenizer = plain.model().tokenizer().unwrap();
        let mut greedy = Sampler::greedy();
        let generator =
            Generator::new(&mut plain, &tokenizer, &mut greedy, &prompt, limits(60)).unwrap();
        let expected = generate_tokens(generator);
        assert_eq!(expected.1, Stop::Limit);
        let after = plain.step(&expected.0[59..]).unwrap().to_vec();
        drop(other);
        for length in lengths.into_iter().chain([DraftLength::Auto]) {
            for draft in [
                Draft::Own,
                Draft::Other(DType::Q4_0),
                Draft::Other(DType::Q8_0),
            ] {
                let label = format!("{name} {draft:?} {length:?}");
                let of = |name: &str| {
                    let all = backends();
                    all.into_iter().find(|(other, _)| other == name).unwrap().1
                };
                let (mut own, mut speculator) =
                    pair((of(&name), of(&name)), draft, length, &greedy);
                if let Draft::Other(DType::Q4_0) = draft {
                    let mut options = AdaptOptions::gradient();
                    options.rejections_per_update = 1;
                    let learning = Adaptation::gradient(&tiny(DType::Q4_0), options);
                    speculator = speculator.with_adaptation(learning.unwrap());
                }
                let generator = Generator::with_draft(
                    &mut own,
                    &mut speculator,
                    &tokenizer,
                    &mut greedy,
                    &prompt,
                    limits(60),
                );
                assert_eq!(generate_tokens(generator.unwrap()), expected, "{label}");
                assert_eq!(own.position(), prompt.len() + 59, "{label}");
                assert_eq!(own.step(&expected.0[59..]).unwrap(), after, "{label}");
                let done = speculator.stats();
                match draft {
                    Draft::Own => assert_eq!(done.accepted, done.drafted, "{label}"),
                    Draft::Other(_) => assert!(done.accepted <= done.drafted, "{label}"),
                }
                assert_eq!(
                    done.rounds + done.without_draft + done.accepted,
                    59,
                    "{label}"
                );
                if let DraftLength::Fixed(_) = length {
                    assert!(done.drafted > 0, "{label}");
                }
            }
        }
    }
}

pub fn in_shared_bases(rank: &str) -> [ModelFile; 2] {
    let scratch = Scratch::new();
    let (model, shared) = (scratch.path("model.gguf"), scratch.path("grc.htz"));
    let weights = TinyModel {
        ffn: 192,
        ..TinyModel::default()
    };
    fs::write(&model, weights.bytes()).unwrap();
    let compile = htc!["compile", &model, "-o", &shared, "--method", "shared-basis"];
    let f16 = ["--factor-type", "f16"];
    compile.args(["--rank", rank]).args(f16).run().assert_ok();
    [&model, &shared].map(|path| ModelFile::open(path).unwrap())
}

struct Text {
    prompt: Vec<u32>,
    tokens: [u32; 2],
    logits: [Vec<u32>; 2],
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// All but the last token of each is read.
fn by_single_steps<B: Backend>(plain: &mut Session<B>, begin: [&[u32]; 3]) -> [Text; 3] {
    let mut greedy = Sampler::greedy();
    let mut unread = None;
    begin.map(|tokens| {
        let prompt: Vec<u32> = unread.into_iter().chain(tokens.iter().copied()).collect();
        let behind = plain.step(&prompt).unwrap();
        let (first, token) = (bits(behind), greedy.sample(behind).unwrap());
        let last = greedy.sample(plain.step(&[token]).unwrap()).unwrap();
        let second = bits(plain.step(&[last]).unwrap());
        plain.truncate(plain.position() - 1).unwrap();
        unread = Some(last);
        Text {
            prompt,
            tokens: [token, last],
            logits: [first, second],
        }
    })
}

pub fn unused_drafts_change_no_bit<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let [model, shared] = in_shared_bases("8");
    let pool = Arc::new(Pool::new(1).unwrap());
    let greedy = Sampler::greedy();
    let names: Vec<String> = backends().into_iter().map(|(name, _)| name).collect();
    for (index, name) in names.iter().enumerate() {
        let of = || session(&shared, backends().swap_remove(index).1);
        let mut plain = of();
        let expected = by_single_steps(&mut plain, [&[1, 40, 77, 130], &[9, 260], &[298, 5, 55]]);
        let half = ActiveSetting {
            rank: RankFraction::new(0.5).unwrap(),
            ..ActiveSetting::FULL
        };
        let own = || Speculator::with_same_model(half, DraftLength::Fixed(4), &greedy).unwrap();
        let other = || {
            Speculator::with_draft_model(of(), plain.model(), DraftLength::Auto, &greedy).unwrap()
        };
        let correction = || Adaptation::gradient(&shared, AdaptOptions::gradient()).unwrap();
        let bases = AdaptOptions::oja();
        let bases = Adaptation::oja(&shared, ActiveSetting::FULL, &model, bases, &pool).unwrap();
        for (label, speculator) in [
            ("nothing", None),
            ("a part of it", Some(own())),
            ("one that learns", Some(own().with_adaptation(correction()))),
            ("another", Some(other().with_adaptation(correction()))),
            ("bases", Some(other().with_adaptation(bases))),
        ] {
            assert_identical(of(), speculator, &expected, &format!("{name}, {label}"));
        }
    }
}

fn assert_identical<B: Backend>(
    mut session: Session<B>,
    mut speculator: Option<Speculator<B>>,
    expected: &[Text],
    label: &str,
) {
    let tokenizer = session.model().tokenizer().unwrap();
    let (mut greedy, mut position) = (Sampler::greedy(), 0);
    for text in expected {
        let (prompt, greedy, limits) = (&text.prompt, &mut greedy, limits(2));
        let generator = match &mut speculator {
            None => Generator::new(&mut session, &tokenizer, greedy, prompt, limits),
            Some(draft) => {
                Generator::with_draft(&mut session, draft, &tokenizer, greedy, prompt, limits)
            }
        };
        assert_eq!(
            generate_tokens(generator.unwrap()).0,
            text.tokens,
            "{label}"
        );
        let mut logits = |position: usize, read: &[u32]| {
            session.truncate(position).unwrap();
            bits(session.step(read).unwrap())
        };
        let end = position + prompt.len() + 1;
        assert!(logits(end, &text.tokens[1..]) == text.logits[1], "{label}");
        assert!(logits(position, prompt) == text.logits[0], "{label}");
        logits(end - 1, &text.tokens[..1]);
        position = end;
    }
    let Some(speculator) = speculator else {
        return;
    };
    let done = speculator.stats();
    assert_eq!(
        (done.drafted, done.without_draft),
        (0, expected.len() as u64)
    );
    let learnt = speculator.adaptation().map(|of| of.stats().updates);
    assert_eq!(learnt.unwrap_or(0), 0, "{label}");
}

pub fn drafts_stay_in_sync_with_their_session<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let mut greedy = Sampler::greedy();
    for ((name, one), (_, two)) in backends().into_iter().zip(backends()) {
        let draft = Draft::Other(DType::Q8_0);
        let length = DraftLength::Fixed(4);
        let (mut own, mut speculator) = pair((one, two), draft, length, &greedy);
        let tokenizer = own.model().tokenizer().unwrap();
        let mut run = |prompt: &[u32], limits, take| {
            let generator = Generator::with_draft(
                &mut own,
                &mut speculator,
                &tokenizer,
                &mut greedy,
                prompt,
                limits,
            );
            let mut generator = generator.unwrap();
            let tokens = generator.by_ref().take(take);
            let tokens: Vec<u32> = tokens.map(|w| w.unwrap().token).collect();
            let stop = generator.finish().1.stop;
            (tokens, stop, own.position())
        };
        let (first, stop, position) = run(&[1, 50, 60], limits(40), 6);
        assert_eq!((stop, position), (Stop::Receiver, 3 + 5), "{name}");
        let next = [first[5], 90, 91];
        let (second, _, position) = run(&next, limits(5), 99);
        assert_eq!((second.len(), position), (5, 8 + 3 + 4), "{name}");
        let (rest, stop, position) = run(&[second[4]], limits(1000), 1000);
        assert_eq!((stop, position), (Stop::Context, CONTEXT), "{name}");
        assert_eq!(rest.len(), CONTEXT - 15, "{name}");

        let mut plain = session(&tiny(DType::F32), backends().swap_remove(0).1);
        let mut plain_text = |prompt: &[u32], count| {
            let new = Generator::new(&mut plain, &tokenizer, &mut greedy, prompt, limits(count));
            generate_tokens(new.unwrap()).0
        };
        assert_eq!(plain_text(&[1, 50, 60], 6)[..], first);
    }
}

pub fn drafts_preserve_the_sampling_distribution<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    const RUNS: u32 = 4000;
    let prompt = [1, 40, 77];
    let take = || backends().swap_remove(0).1;
    let mut plain = session(&tiny(DType::F32), take());
    let tokenizer = plain.model().tokenizer().unwrap();
    let mut expected: BTreeMap<Vec<u32>, f64> = BTreeMap::from([(Vec::new(), 1.0)]);
    let mut judge = sampler(1.0, 0);
    for _ in 0..3 {
        let mut longer = BTreeMap::new();
        for (text, probability) in &expected {
            plain.reset();
            let logits = plain.step(&[&prompt, &text[..]].concat()).unwrap();
            let mut next = Distribution::default();
            judge.distribution(logits, &mut next).unwrap();
            for &(token, p) in next.tokens() {
                longer.insert([&text[..], &[token]].concat(), probability * p);
            }
        }
        expected = longer;
    }
    assert_eq!(expected.len(), 27);
    let mut counts: BTreeMap<Vec<u32>, u32> = BTreeMap::new();
    let mut sampled = sampler(1.0, 5);
    let other = session(&tiny(DType::Q4_0), take());
    let draft = Speculator::with_draft_model(other, plain.model(), DraftLength::Fixed(2), &sampled);
    let mut speculator = draft.unwrap();
    for run in 0..RUNS {
        plain.reset();
        speculator.reset();
        let generator = Generator::with_draft(
            &mut plain,
            &mut speculator,
            &tokenizer,
            &mut sampled,
            &prompt,
            limits(3),
        );
        let (tokens, _) = generate_tokens(generator.unwrap());
        assert!(expected.contains_key(&tokens), "{run}: {tokens:?}");
        *counts.entry(tokens).or_default() += 1;
    }
    let done = speculator.stats();
    assert!(
        done.accepted > 0 && done.accepted < done.drafted,
        "{done:?}"
    );
    let statistic: f64 = expected
        .iter()
        .map(|(text, p)| {
            let (expected, found) = (p * f64::from(RUNS), counts.get(text).copied().unwrap_or(0));
            (f64::from(found) - expected).powi(2) / expected
        })
        .sum();
    // The quantile of 26 degrees of freedom exceeded by one in a million.
    assert!(statistic < 76.0, "{statistic}");
}

pub fn incompatible_drafts_are_refused<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let take = || backends().swap_remove(0).1;
    let own = session(&tiny(DType::F32), take());
    let greedy = Sampler::greedy();
    for length in [0, 17] {
        let refused = Speculator::<B>::with_same_model(
            ActiveSetting::FULL,
            DraftLength::Fixed(length),
            &greedy,
        );
        assert!(matches!(refused, Err(ExecError::DraftLength(found)) if found == length));
    }
    let mut other = tiny(DType::F32);
    if let Ok(vocabulary) = &mut other.vocabulary {
        vocabulary.tokens[100] = "something else".to_owned();
    }
    let draft = session(&other, take());
    let refused = Speculator::with_draft_model(draft, own.model(), DraftLength::Auto, &greedy);
    let error = refused.err().unwrap();
    assert!(matches!(error, ExecError::DraftTokenizer { .. }), "{error}");
    assert!(error.to_string().contains("token 100"), "{error}");
    let mut read = session(&tiny(DType::F32), take());
    read.step(&[1]).unwrap();
    let refused = Speculator::with_draft_model(read, own.model(), DraftLength::Auto, &greedy);
    assert!(matches!(refused, Err(ExecError::DraftPosition { .. })));
    let mut own = own;
    own.step(&[1]).unwrap();
    let tokenizer: Tokenizer = own.model().tokenizer().unwrap();
    let mut draft =
        Speculator::with_same_model(ActiveSetting::FULL, DraftLength::Auto, &greedy).unwrap();
    let mut greedy = greedy;
    let refused = Generator::with_draft(
        &mut own,
        &mut draft,
        &tokenizer,
        &mut greedy,
        &[1],
        limits(1),
    );
    assert!(matches!(
        refused.err(),
        Some(ExecError::DraftPosition { .. })
    ));
}
