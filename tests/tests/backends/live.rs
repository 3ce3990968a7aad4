//! Changes while a session runs, on any backend.

use std::sync::Arc;

use htc_formats::source::ModelFile;
use htc_loader::dial::ActiveFraction;
use htc_loader::generate::{ContextFullPolicy, GenerateLimits, Generator};
use htc_loader::kv::{Kv as _, KvType};
use htc_loader::live::SharedFraction;
use htc_loader::sampling::{Sampler, SamplingOptions};
use htc_loader::speculate::{DraftLength, Speculator};
use htc_loader::tokenizer::Tokenizer;
use htc_loader::{Backend, ExecError, Model, Session};
use htc_tests::{Scratch, TinyModel, htc};

use super::Named;

fn artifact(context: usize) -> [ModelFile; 2] {
    let scratch = Scratch::new();
    let tiny = TinyModel {
        ffn: 192,
        context,
        ..TinyModel::default()
    };
    let source = scratch.file("model.gguf", tiny.bytes());
    let output = scratch.path("out.htz");
    let run = htc!["compile", &source, "-o", &output, "--rank", "32"];
    run.run().assert_ok();
    [source, output].map(|path| ModelFile::open(path).unwrap())
}

fn session<B: Backend>(file: &ModelFile, mut backend: B, context: usize) -> Session<B> {
    let model = Arc::new(Model::load(file.clone(), &mut backend).unwrap());
    Session::with_kv_type(model, backend, context, KvType::F16).unwrap()
}

pub fn sessions_follow_the_fraction_between_tokens<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let [_, file] = artifact(256);
    for ((name, first), (_, second)) in backends().into_iter().zip(backends()) {
        let mut following = session(&file, first, 64);
        let mut by_hand = session(&file, second, 64);
        let least = following.model().dial().smallest_fraction();
        assert!(least < 0.7, "{least}");
        let [follow, most] = [SharedFraction::new(), SharedFraction::new()];
        following
            .follow_with(Arc::clone(&follow), ActiveFraction::FULL)
            .unwrap();
        for session in [&mut following, &mut by_hand] {
            session.forward(&[1, 5, 9, 3, 7]).unwrap();
        }
        let mut range = [1.0_f64; 2];
        for (token, allowed) in [
            (4, 1.0),
            (8, 0.8),
            (15, 0.8),
            (16, 0.01),
            (23, 0.9),
            (42, 1.0),
        ] {
            follow.set_fraction(allowed);
            following.follow().unwrap();
            let fraction = ActiveFraction::new(allowed.max(least)).unwrap();
            let setting = by_hand.set_fraction(fraction).unwrap();
            assert_eq!(following.setting(), setting, "{name} at {allowed}");
            let found = following.step(&[token]).unwrap().to_vec();
            assert_eq!(
                found,
                by_hand.step(&[token]).unwrap(),
                "{name} at {allowed}"
            );
            let in_use = by_hand.model().dial().fraction(setting);
            range = [range[0].min(in_use), range[1].max(in_use)];
        }
        assert_eq!(following.fractions(), range);
        assert_eq!(by_hand.fractions(), [1.0; 2]);
        assert_eq!(following.kv().bytes(), by_hand.kv().bytes());

        let half = ActiveFraction::new(0.8).unwrap();
        following.follow_with(Arc::clone(&most), half).unwrap();
        let of_part = by_hand.set_fraction(half).unwrap();
        assert_eq!(following.setting(), of_part);
        most.set_fraction(0.9);
        following.follow().unwrap();
        let expected = by_hand.set_fraction(ActiveFraction::new(0.8 * 0.9).unwrap());
        assert_eq!(following.setting(), expected.unwrap());
        let little = ActiveFraction::new(least / 2.0).unwrap();
        let refused = following.follow_with(follow.clone(), little);
        assert!(matches!(refused, Err(ExecError::FractionBelow { .. })));
    }
}

pub fn full_context_slides<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    const CONTEXT: usize = 48;
    const TOKENS: usize = 100;
    let [source, _] = artifact(CONTEXT);
    let mut limits = GenerateLimits::tokens(TOKENS);
    (limits.ignore_end, limits.context_full) = (true, ContextFullPolicy::Slide);
    let prompt: Vec<u32> = (0..20).map(|i| 3 + i * 37 % 290).collect();
    let tokenizer = Tokenizer::new(source.vocabulary.clone().unwrap()).unwrap();
    let mut options = SamplingOptions::default();
    options.temperature = 0.0;
    let sampler = || Sampler::new(options).unwrap();
    for ((name, first), (_, second)) in backends().into_iter().zip(backends()) {
        let mut by_hand = session(&source, second, CONTEXT);
        let mut sequence = prompt.clone();
        let mut logits = by_hand.step(&sequence).unwrap().to_vec();
        let (mut expected, mut slides) = (Vec::new(), 0);
        while expected.len() < TOKENS {
            let token = sampler().sample(&logits).unwrap();
            expected.push(token);
            sequence.push(token);
            if expected.len() == TOKENS {
                break;
            }
            if by_hand.position() == CONTEXT {
                slides += 1;
                let read = sequence.len() - 1;
                sequence.drain(4..read - CONTEXT / 2);
                by_hand.reset();
                by_hand.forward(&sequence[..sequence.len() - 1]).unwrap();
            }
            logits = by_hand.step(&[token]).unwrap().to_vec();
        }
        assert!(slides > 2);

        let mut session = session(&source, first, CONTEXT);
        for drafts in [false, true] {
            session.reset();
            let mut sampler = sampler();
            let length = DraftLength::Fixed(3);
            let draft = Speculator::with_same_model(session.setting(), length, &sampler);
            let mut draft = draft.unwrap();
            let generator = if drafts {
                Generator::with_draft(
                    &mut session,
                    &mut draft,
                    &tokenizer,
                    &mut sampler,
                    &prompt,
                    limits,
                )
            } else {
                Generator::new(&mut session, &tokenizer, &mut sampler, &prompt, limits)
            };
            let mut generator = generator.unwrap();
            let found: Vec<u32> = generator.by_ref().map(|w| w.unwrap().token).collect();
            assert_eq!(found, expected, "{name}, drafts {drafts}");
            let (_, summary) = generator.finish();
            assert_eq!(summary.slides, slides, "{name}, drafts {drafts}");
        }
    }
}
