//! Verification passes: bit-identical to single steps, or refused.

use super::sessions::{Fixture, options};
use super::*;
use crate::dial::ActiveSetting;
use crate::generate::{GenerateLimits, Generator};
use crate::sampling::Sampler;
use crate::speculate::{DraftLength, Speculator};
use crate::{ExecError, Pool};

/// An attention chunk of a step's positions ends within the drafted tokens.
const PROMPT: usize = 252;
const DRAFTED: usize = 9;
const ACCEPTED: usize = 5;

#[test]
fn every_row_has_the_bits_of_a_single_step() {
    let bench = Fixture::new();
    let (prompt, rest) = bench.tokens.split_at(PROMPT);
    let vocabulary = bench.model.hyper().vocabulary;
    for (kind, keep) in [
        ("f32", None),
        ("f16", None),
        ("f16", Some(100)),
        ("q8_0", None),
        ("q8_0-rotated", Some(100)),
        ("q4_0", Some(100)),
        ("q4_0-rotated", None),
    ] {
        let mut options = options(kind);
        options.max_prompt_positions = keep;
        for threads in [1, 3] {
            let pool = Arc::new(Pool::new(threads).unwrap());
            for (one, other) in Cpu::each(&pool).into_iter().zip(Cpu::each(&pool)) {
                let label = format!(
                    "{kind}, keep {keep:?}, {threads}, {}",
                    one.instruction_set()
                );
                let [mut together, mut alone] = [one, other].map(|cpu| {
                    let model = Arc::clone(&bench.model);
                    let session = Session::with_kv(model, cpu, 512, &options, None);
                    let mut session = session.unwrap();
                    session.read_prompt(prompt).unwrap();
                    session
                });
                let logits = together.verify(&rest[..DRAFTED], &mut ()).unwrap();
                for (row, token) in logits.chunks_exact(vocabulary).zip(rest) {
                    let step = alone.step(&[*token]).unwrap();
                    assert!(row == step, "{label}");
                }
                let kept = prompt.len() + ACCEPTED;
                together.truncate(kept).unwrap();
                alone.truncate(kept).unwrap();
                let next = &rest[DRAFTED..][..1];
                let found = together.step(next).unwrap().to_vec();
                assert!(found == alone.step(next).unwrap(), "{label}");
                assert_eq!(together.kv().evicted_rows() > 0, keep.is_some(), "{label}");
            }
        }
    }
}

#[test]
fn kinds_that_compress_between_steps_refuse_verification() {
    let bench = Fixture::new();
    let tokenizer = bench.model.tokenizer().unwrap();
    for kind in ["static:0.5", "static-hybrid:0.5", "oja:0.5"] {
        let mut session = bench.session(&options(kind), 1);
        let refused = session.verify(&bench.tokens[..3], &mut ()).map(drop);
        let error = refused.unwrap_err();
        let is_it = |error: &ExecError| matches!(error, ExecError::VerifyUnsupported { kind: found } if found == kind);
        assert!(is_it(&error), "{error}");
        assert!(error.to_string().contains("q8_0"), "{error}");
        let mut greedy = Sampler::greedy();
        let length = DraftLength::Fixed(2);
        let mut draft = Speculator::with_same_model(ActiveSetting::FULL, length, &greedy).unwrap();
        let prompt = &bench.tokens[..20];
        let generator = Generator::with_draft(
            &mut session,
            &mut draft,
            &tokenizer,
            &mut greedy,
            prompt,
            GenerateLimits::tokens(4),
        );
        match generator.map(drop) {
            Err(error) => assert!(is_it(&error), "{error}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(session.position(), 0);
    }
}

#[test]
fn a_draft_of_any_kind_changes_no_token() {
    let bench = Fixture::new();
    let tokenizer = bench.model.tokenizer().unwrap();
    let prompt = &bench.tokens[..150];
    let mut limits = GenerateLimits::tokens(40);
    limits.ignore_end = true;
    let mut greedy = Sampler::greedy();
    let mut plain = bench.session(&options("q8_0"), 2);
    let generator = Generator::new(&mut plain, &tokenizer, &mut greedy, prompt, limits).unwrap();
    let expected: Vec<u32> = generator.map(|written| written.unwrap().token).collect();
    for (kind, keep) in [("oja:0.5", Some(110)), ("q4_0-rotated", Some(64))] {
        let mut options_of_draft = options(kind);
        options_of_draft.max_prompt_positions = keep;
        let draft = bench.session(&options_of_draft, 2);
        let length = DraftLength::Fixed(4);
        let mut draft = Speculator::with_draft_model(draft, &bench.model, length, &greedy).unwrap();
        let mut session = bench.session(&options("q8_0"), 2);
        let generator = Generator::with_draft(
            &mut session,
            &mut draft,
            &tokenizer,
            &mut greedy,
            prompt,
            limits,
        );
        let found: Vec<u32> = generator.unwrap().map(|w| w.unwrap().token).collect();
        assert_eq!(found, expected, "{kind}");
        assert!(draft.stats().accepted > 0, "{kind}");
        let of_draft = draft.draft_session().unwrap();
        assert!(of_draft.kv().evicted_rows() > 0, "{kind}");
    }
}
