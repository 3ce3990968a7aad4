//! Logits of a model, and how far they are from others.

use std::sync::Arc;

use htc_loader::kv::KvType;
use htc_loader::{Cpu, Model, Pool, Session};

/// Logits at some positions, the prompt read in one batch and one token at a time, with a KV cache
/// of float32.
///
/// # Panics
/// Where the model cannot be executed.
pub fn at_positions(
    model: &Arc<Model>,
    tokens: &[u32],
    positions: &[usize],
    threads: usize,
) -> [Vec<f32>; 2] {
    with_kv_type(model, tokens, positions, threads, KvType::F32)
}

/// [`at_positions`] with another type of the KV cache.
///
/// # Panics
/// Where the model cannot be executed.
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

/// The largest difference, in standard deviations of what is expected.
///
/// # Panics
/// Where lengths differ or a number is not finite.
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
    // NaN would be overlooked by `max`.
    assert!(found.iter().all(|v| v.is_finite()));
    differences.fold(0.0, f64::max) / variance.sqrt()
}
