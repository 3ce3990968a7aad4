//! Execution through the loader: the logits of other programs, and every stored form at every
//! rank.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "all of this crate is test code"
)]

use std::path::Path;

use htc_loader::linear::RankFraction;
use htc_loader::{Model, Pool, Session};
use htc_tests::material::shared;
use htc_tests::npy::Array;
use htc_tests::{Scratch, TinyModel, htc};

/// Logits at some positions, the prompt read in one batch and one token at a time.
fn logits(model: &Model, tokens: &[u32], positions: &[usize], threads: usize) -> [Vec<f32>; 2] {
    let pool = Pool::new(threads).unwrap();
    let mut prefill = Session::new(model, &pool, model.hyper().context);
    prefill.forward(tokens).unwrap();
    let mut batched = Vec::new();
    for &position in positions {
        batched.extend_from_slice(prefill.logits(position, position + 1).unwrap());
    }
    let mut decode = Session::new(model, &pool, model.hyper().context);
    let mut single = Vec::new();
    for (position, &token) in tokens.iter().enumerate() {
        decode.forward(&[token]).unwrap();
        if positions.contains(&position) {
            single.extend_from_slice(decode.last_logits().unwrap());
        }
    }
    [batched, single]
}

/// The largest difference, in standard deviations of what is expected.
fn largest_difference(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let n = expected.len() as f64;
    let mean = expected.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let variance = expected
        .iter()
        .map(|&v| (f64::from(v) - mean).powi(2))
        .sum::<f64>()
        / n;
    let pairs = found.iter().zip(expected);
    let differences = pairs.map(|(&a, &b)| (f64::from(a) - f64::from(b)).abs());
    // NaN would be overlooked by `max`.
    assert!(found.iter().all(|v| v.is_finite()));
    differences.fold(0.0, f64::max) / variance.sqrt()
}

/// Where the reference has its logits.
const POSITIONS: [usize; 5] = [0, 1, 31, 100, 159];

fn equals_transformers(name: &str) {
    let Some(folder) = shared(&format!("reference/arch/{name}")) else {
        return;
    };
    let tokens = Array::read(&folder.join("tokens.npy")).tokens();
    let expected = Array::read(&folder.join("logits.npy"));
    let model = Model::open(&folder.join("model.gguf")).unwrap();
    assert_eq!(tokens.len(), 160);
    let vocabulary = model.hyper().vocabulary;
    assert_eq!(
        expected.shape.iter().product::<usize>(),
        POSITIONS.len() * vocabulary
    );
    for threads in [1, 2] {
        for found in logits(&model, &tokens, &POSITIONS, threads) {
            let difference = largest_difference(&found, &expected.f32());
            assert!(
                difference < 1e-3,
                "{name}, {threads} threads: {difference:.2e}"
            );
        }
    }
}

#[test]
fn llama_equals_transformers() {
    equals_transformers("llama");
}

#[test]
fn llama_3_with_scaled_positions_equals_transformers() {
    equals_transformers("llama3-rope");
}

#[test]
fn llama_with_linearly_scaled_positions_equals_transformers() {
    equals_transformers("llama-linear-rope");
}

#[test]
fn mistral_equals_transformers() {
    equals_transformers("mistral");
}

fn compiled(scratch: &Scratch, model: &Path, name: &str, options: &[&str]) -> Model {
    let output = scratch.path(name);
    let run = htc!["compile", model, "-o", &output, "--factor-type", "f32"].args(options);
    run.run().ok();
    Model::open(&output).unwrap()
}

const TOKENS: [u32; 12] = [1, 261, 297, 70, 280, 280, 5, 298, 264, 275, 3, 290];

/// Grouped-query attention in all its shares, heads wider than the residual stream, an output
/// matrix of its own.
#[test]
fn logits_equal_float64() {
    let scratch = Scratch::new();
    let tiny = TinyModel::default;
    for tiny in [
        tiny(),
        TinyModel {
            output: true,
            ..tiny()
        },
        TinyModel {
            kv_heads: 1,
            ..tiny()
        },
        TinyModel {
            kv_heads: 4,
            layers: 3,
            ..tiny()
        },
        TinyModel {
            head_size: 24,
            ..tiny()
        },
        TinyModel {
            heads: 6,
            kv_heads: 3,
            head_size: 6,
            ffn: 33,
            ..tiny()
        },
    ] {
        let path = scratch.file("model.gguf", tiny.bytes());
        let model = Model::open(&path).unwrap();
        let tokens: Vec<u32> = (0..3).flat_map(|_| TOKENS).collect();
        let expected: Vec<f32> = htc_tests::reference::logits(&tiny, &tokens)
            .into_iter()
            .flatten()
            .map(|logit| logit as f32)
            .collect();
        let positions: Vec<usize> = (0..tokens.len()).collect();
        for found in logits(&model, &tokens, &positions, 2) {
            let difference = largest_difference(&found, &expected);
            assert!(difference < 1e-4, "{tiny:?}: {difference:.2e}");
        }
    }
}

#[test]
fn full_rank_gives_the_logits_of_the_source() {
    let scratch = Scratch::new();
    let tiny = TinyModel {
        output: true,
        head_size: 24,
        ..TinyModel::default()
    };
    let path = scratch.file("model.gguf", tiny.bytes());
    let positions: Vec<usize> = (0..TOKENS.len()).collect();
    let [expected, _] = logits(&Model::open(&path).unwrap(), &TOKENS, &positions, 2);
    for options in [
        &["--method", "gp", "--rank", "full"][..],
        &[
            "--method",
            "grc",
            "--rank",
            "full",
            "--slots",
            "q,k,v,gate,up",
        ],
    ] {
        let model = compiled(&scratch, &path, options[1], options);
        for found in logits(&model, &TOKENS, &positions, 2) {
            let difference = largest_difference(&found, &expected);
            assert!(difference < 1e-4, "{options:?}: {difference:.2e}");
        }
    }
}

/// Half of the ranks of one artifact are the ranks of another: the same logits, and not those of
/// all ranks.
#[test]
fn a_share_of_the_rank_is_a_smaller_artifact() {
    let scratch = Scratch::new();
    let path = scratch.file("model.gguf", TinyModel::default().bytes());
    for method in ["gp", "grc"] {
        let model = |rank: &str| {
            let options = ["--method", method, "--rank", rank];
            compiled(&scratch, &path, &format!("{method}-{rank}.htz"), &options)
        };
        let (large, small) = (model("16"), model("8"));
        let pool = Pool::new(2).unwrap();
        let last = |model: &Model, fraction: f32| {
            let mut session = Session::new(model, &pool, model.hyper().context);
            session.set_rank_fraction(RankFraction::new(fraction).unwrap());
            session.forward(&TOKENS).unwrap();
            session.last_logits().unwrap().to_vec()
        };
        let expected = last(&small, 1.0);
        let half = largest_difference(&last(&large, 0.5), &expected);
        assert!(half < 1e-3, "{method}: {half:.2e}");
        let whole = largest_difference(&last(&large, 1.0), &expected);
        assert!(whole > 0.05, "{method}: {whole:.2e}");
    }
}
