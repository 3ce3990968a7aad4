//! Reference attention, one score at a time.

use half::f16;
use htc_formats::DType;

use super::ActivationType;
use crate::cpu::{Attention, KvNumbers, KvView, check_hadamard};
use crate::error::ShapeError;

/// Returns the nearest float16, ties to even; infinite on overflow.
pub fn nearest_f16(x: f64) -> f64 {
    f16::from_f64(x).to_f64()
}

/// Shapes of attention.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads, a divisor of the query heads.
    pub kv_heads: usize,
    /// Head size.
    pub size: usize,
}

/// Computes causal attention of `n` queries `q [n, heads, head_size]` at positions `position ..`
/// over their visible positions; `out` has the shape of `q`. Query head `h` reads KV head `h /
/// (heads / kv_heads)`.
///
/// # Errors
/// When a shape does not fit, the window is 0 or `kv` holds fewer than `position + n` positions.
pub fn attention(
    q: &[f32],
    n: usize,
    position: usize,
    kv: &KvView<'_>,
    attention: &Attention,
    out: &mut [f32],
) -> Result<(), ShapeError> {
    attention.check()?;
    let heads = AttentionShape {
        heads: kv.check_queries(q.len(), n, position, out.len())?,
        kv_heads: kv.kv_heads(),
        size: kv.head_size(),
    };
    let positions = position + n;
    let all: Vec<_> = (0..heads.kv_heads)
        .map(|head| [0, 1].map(|side| expand_head(kv, head, side, positions)))
        .collect();
    let stored = |[head, p, d]: [usize; 3]| {
        let at = p * heads.size + d;
        all[head].each_ref().map(|numbers| numbers[at])
    };
    attention_with(q, position, heads, attention, stored, out);
    Ok(())
}

/// Returns keys (side 0) or values (side 1) of the first `positions` positions of a head, with
/// low-rank ones expanded.
fn expand_head(kv: &KvView<'_>, head: usize, side: usize, positions: usize) -> Vec<f64> {
    let [compressed, front] = kv.compressed();
    let mut all = to_f64(kv.rows(head, 0..front)[side]);
    if let Some(low) = kv.low_rank() {
        let (rank, size) = (low.shape.ranks[side], low.shape.head_size);
        let basis = low.basis(side, head);
        for coordinates in to_f64(low.rows(head, 0..compressed)[side]).chunks_exact(rank) {
            all.extend((0..size).map(|d| {
                let terms = coordinates.iter().zip(basis[d..].iter().step_by(size));
                terms.map(|(y, &u)| y * f64::from(u)).sum::<f64>()
            }));
        }
    }
    all.extend(to_f64(kv.rows(head, front..positions - compressed)[side]));
    all
}

fn to_f64(numbers: KvNumbers<'_>) -> Vec<f64> {
    let coded = |dtype, bytes| {
        let mut decoded = vec![0.0; numbers.len()];
        // Whole blocks, as the view has been checked.
        let _ = htc_formats::block::decode(dtype, bytes, &mut decoded);
        decoded.into_iter().map(f64::from).collect()
    };
    match numbers {
        KvNumbers::F16(halves) => {
            let numbers = halves.iter().map(|&bits| f16::from_bits(bits).to_f64());
            numbers.collect()
        }
        KvNumbers::F32(numbers) => numbers.iter().copied().map(f64::from).collect(),
        KvNumbers::Q8_0(bytes) => coded(DType::Q8_0, bytes),
        KvNumbers::Q4_0(bytes) => coded(DType::Q4_0, bytes),
    }
}

/// Applies the normalised Walsh–Hadamard transform, as
/// [`Cpu::hadamard`](crate::cpu::Cpu::hadamard), by its matrix: entry `(i, j)` is `±1 / √block`,
/// negative if `i` and `j` share an odd number of bits.
///
/// # Errors
/// When `x` is not whole heads or `size` is odd or 0.
pub fn hadamard<T: ActivationType>(x: &mut [T], size: usize) -> Result<(), ShapeError> {
    let block = check_hadamard(x.len(), size)?;
    for x in x.chunks_exact_mut(block) {
        let before: Vec<f64> = x.iter().map(|&x| x.into()).collect();
        for (i, x) in x.iter_mut().enumerate() {
            let terms = before
                .iter()
                .enumerate()
                .map(|(j, x)| match (i & j).count_ones() % 2 {
                    0 => *x,
                    _ => -x,
                });
            *x = T::from_f64(terms.sum::<f64>() / (block as f64).sqrt());
        }
    }
    Ok(())
}

/// Computes [`attention`] over keys and values returned by `stored` for a KV head, a position and a
/// dimension.
///
/// # Panics
/// When `out` is shorter than `q`.
pub fn attention_with<T: ActivationType>(
    q: &[T],
    position: usize,
    AttentionShape {
        heads,
        kv_heads,
        size,
    }: AttentionShape,
    attention: &Attention,
    stored: impl Fn([usize; 3]) -> [f64; 2],
    out: &mut [T],
) {
    let queries = q.chunks_exact((heads * size).max(1)).enumerate();
    for (t, h) in queries.flat_map(|(t, _)| (0..heads).map(move |h| (t, h))) {
        let p = position + t;
        let first = attention.window.map_or(0, |w| (p + 1).saturating_sub(w));
        let at = (t * heads + h) * size;
        let q = &q[at..at + size];
        let kv_head = h / (heads / kv_heads);
        let score = |p: usize| {
            let products = q.iter().enumerate();
            let products = products.map(|(d, &q)| q.into() * stored([kv_head, p, d])[0]);
            let score = products.sum::<f64>() * f64::from(attention.scale);
            match attention.softcap.map(f64::from) {
                Some(cap) => cap * (score / cap).tanh(),
                None => score,
            }
        };
        let scores: Vec<f64> = (first..=p).map(score).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let sum: f64 = weights.iter().sum();
        for d in 0..size {
            let terms = weights.iter().enumerate();
            let value: f64 = terms
                .map(|(i, weight)| weight * stored([kv_head, first + i, d])[1])
                .sum();
            out[at + d] = T::from_f64(value / sum);
        }
    }
}

#[cfg(test)]
mod tests;
