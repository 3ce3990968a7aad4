//! Attention, a score at a time.

use half::f16;

use crate::cpu::{Attention, KvView};
use crate::error::ShapeError;

/// Causal attention of `n` queries `q [n, heads, head_size]` at positions `position ..` over the
/// keys and values of the positions that each sees; `out` has the shape of `q`. Query head `h`
/// reads kv head `h / (heads / kv_heads)`.
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
    let heads = kv.check_queries(q.len(), n, position, out.len())?;
    let size = kv.head_size();
    let number = |half: u16| f16::from_bits(half).to_f64();
    for t in 0..n {
        let p = position + t;
        let first = attention.window.map_or(0, |w| (p + 1).saturating_sub(w));
        for h in 0..heads {
            let at = (t * heads + h) * size;
            let q = &q[at..at + size];
            let (keys, values) = kv.head(h / (heads / kv.kv_heads()));
            let score = |p: usize| {
                let key = &keys[p * size..][..size];
                let products = q.iter().zip(key).map(|(&q, &k)| f64::from(q) * number(k));
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
                    .map(|(i, weight)| weight * number(values[(first + i) * size + d]))
                    .sum();
                out[at + d] = (value / sum) as f32;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Attention = Attention {
        scale: 1.0,
        softcap: None,
        window: None,
    };

    fn halves(numbers: &[f32]) -> Vec<u16> {
        let bits = |&number: &f32| f16::from_f32(number).to_bits();
        numbers.iter().map(bits).collect()
    }

    #[test]
    fn attention_to_equal_keys_is_the_mean_of_the_values() {
        // Two kv heads of size 1, capacity 3; four query heads share them in pairs.
        let keys = halves(&[1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
        let values = halves(&[1.0, 2.0, 6.0, 10.0, 20.0, 60.0]);
        let kv = KvView::new(&keys, &values, 2, 1, 3).unwrap();
        let mut out = [0.0; 8];
        attention(&[1.0; 8], 2, 1, &kv, &PLAIN, &mut out).unwrap();
        assert_eq!(out, [1.5, 1.5, 15.0, 15.0, 3.0, 3.0, 30.0, 30.0]);
        let window = Attention {
            window: Some(2),
            ..PLAIN
        };
        attention(&[1.0; 8], 2, 1, &kv, &window, &mut out).unwrap();
        assert_eq!(out, [1.5, 1.5, 15.0, 15.0, 4.0, 4.0, 40.0, 40.0]);
    }

    #[test]
    fn a_cap_bounds_how_much_one_key_outweighs_another() {
        // Capped at 1, scores of 0 and of 60,000 become 0 and 1.
        let (keys, values) = (halves(&[0.0, 60_000.0]), halves(&[1.0, 0.0]));
        let kv = KvView::new(&keys, &values, 1, 1, 2).unwrap();
        let capped = Attention {
            softcap: Some(1.0),
            ..PLAIN
        };
        let mut out = [0.0];
        attention(&[1.0], 1, 1, &kv, &capped, &mut out).unwrap();
        assert!((out[0] - 1.0 / (1.0 + 1f32.exp())).abs() < 1e-7);
    }
}
