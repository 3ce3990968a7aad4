//! Reference rotary embedding, GELU and soft cap.

use htc_formats::model::RopePairs;

use super::ActivationType;
use crate::error::{ShapeError, check_rope, check_size};

/// Rotates the pairs of numbers of every head of `x [heads, head_size]` by angles given as cosines
/// and sines: `(2i, 2i + 1)` or `(i, i + cos.len())`. The other numbers are unchanged.
///
/// # Errors
/// When `x` is not a whole number of heads, `sin` is not as long as `cos`, or the pairs do not fit
/// in a head.
pub fn rope<T: ActivationType>(
    pairs: RopePairs,
    x: &mut [T],
    head_size: usize,
    cos: &[T],
    sin: &[T],
) -> Result<(), ShapeError> {
    check_rope(x.len(), head_size, cos.len(), sin.len())?;
    for head in x.chunks_exact_mut(head_size.max(1)) {
        for i in 0..cos.len() {
            let (first, second) = match pairs {
                RopePairs::Adjacent => (2 * i, 2 * i + 1),
                RopePairs::Halves => (i, i + cos.len()),
            };
            let [a, b, c, s]: [f64; 4] = [head[first], head[second], cos[i], sin[i]].map(T::into);
            head[first] = T::from_f64(a * c - b * s);
            head[second] = T::from_f64(a * s + b * c);
        }
    }
    Ok(())
}

/// Computes `gate = gate (1 + tanh(sqrt(2 / π) (gate + 0.044715 gate³))) / 2 * up`.
///
/// # Errors
/// When the lengths differ.
pub fn gelu_mul<T: ActivationType>(gate: &mut [T], up: &[T]) -> Result<(), ShapeError> {
    check_size("up (numbers)", gate.len(), up.len())?;
    for (gate, &up) in gate.iter_mut().zip(up) {
        let x: f64 = (*gate).into();
        let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
        *gate = T::from_f64(x * (1.0 + u.tanh()) / 2.0 * up.into());
    }
    Ok(())
}

/// Computes `x = cap * tanh(x / cap)`.
pub fn softcap<T: ActivationType>(x: &mut [T], cap: f32) {
    let cap = f64::from(cap);
    for x in x {
        *x = T::from_f64(cap * ((*x).into() / cap).tanh());
    }
}

#[cfg(test)]
mod tests;
