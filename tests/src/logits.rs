//! Logits of a model, and their distance from others.

use std::path::Path;
use std::sync::Arc;

use htc_formats::source::ModelFile;
use htc_loader::backend::Reference;
use htc_loader::kv::KvType;
use htc_loader::{Backend, Cpu, Model, Pool, Session};

/// Returns logits at some positions with the prompt in one batch, and one token at a time.
pub fn at_positions(
    model: &Arc<Model>,
    tokens: &[u32],
    positions: &[usize],
    threads: usize,
) -> [Vec<f32>; 2] {
    with_kv_type(model, tokens, positions, threads, KvType::F32)
}

/// [`at_positions`] with another type of the KV cache.
pub fn with_kv_type(
    model: &Arc<Model>,
    tokens: &[u32],
    positions: &[usize],
    threads: usize,
    kv_type: KvType,
) -> [Vec<f32>; 2] {
    let pool = Arc::new(Pool::new(threads).unwrap());
    let session = || {
        let (model, cpu) = (Arc::clone(model), Cpu::new(&pool));
        Session::with_kv_type(model, cpu, tokens.len(), kv_type).unwrap()
    };
    let mut prefill = session();
    prefill.forward(tokens).unwrap();
    let mut batched = Vec::new();
    for &position in positions {
        batched.extend_from_slice(prefill.logits(position, position + 1).unwrap());
    }
    let mut decode = session();
    let mut single = Vec::new();
    for (position, &token) in tokens.iter().enumerate() {
        decode.forward(&[token]).unwrap();
        if positions.contains(&position) {
            single.extend_from_slice(decode.last_logits().unwrap());
        }
    }
    [batched, single]
}

/// Returns the last logits after a prompt.
pub fn last_logits<B: Backend>(path: &Path, tokens: &[u32], mut backend: B) -> Vec<f32> {
    let file = ModelFile::open(path).unwrap();
    let model = Model::load(file, &mut backend).unwrap();
    let session = Session::with_kv_type(model, backend, tokens.len(), KvType::F32);
    session.unwrap().step(tokens).unwrap().to_vec()
}

/// Asserts that an artifact and its export have the same logits.
pub fn assert_export_matches(artifact: &Path, exported: &Path, tokens: &[u32]) {
    let [found, expected] = [artifact, exported].map(|path| last_logits(path, tokens, Reference));
    let difference = largest_difference(&found, &expected);
    assert!(difference < 1e-4, "{difference:.2e}");
    let found = last_logits(artifact, tokens, Cpu::with_threads(2).unwrap());
    let difference = largest_difference(&found, &expected);
    assert!(difference < 0.15, "{difference:.2e}");
}

/// Returns the largest difference, in standard deviations of the expected values.
pub fn largest_difference(found: &[f32], expected: &[f32]) -> f64 {
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
    assert!(found.iter().all(|v| v.is_finite()));
    differences.fold(0.0, f64::max) / variance.sqrt()
}
