//! Loops over `f32` written so that the compiler makes vectors of them.
//!
//! Every function is inlined into a version per instruction set; `FMA` says whether that set
//! has a fused multiply-add, which without one would be a call into the C library.

use crate::matrix::Matrix;

/// Numbers handled side by side: one 512-bit register, or two or four smaller ones.
const LANES: usize = 16;

/// `a * b + c`.
#[inline(always)]
fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// The sum of the lanes in a fixed tree.
#[inline(always)]
fn sum(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0]
}

/// The scalar product.
#[inline(always)]
pub(super) fn dot<const FMA: bool>(a: &[f32], b: &[f32]) -> f32 {
    let (a_lanes, a_rest) = a.as_chunks::<LANES>();
    let (b_lanes, b_rest) = b.as_chunks::<LANES>();
    let mut even = [0.0; LANES];
    let mut odd = [0.0; LANES];
    let (a_pairs, a_last) = a_lanes.as_chunks::<2>();
    let (b_pairs, b_last) = b_lanes.as_chunks::<2>();
    for (a, b) in a_pairs.iter().zip(b_pairs) {
        for i in 0..LANES {
            even[i] = fma::<FMA>(a[0][i], b[0][i], even[i]);
        }
        for i in 0..LANES {
            odd[i] = fma::<FMA>(a[1][i], b[1][i], odd[i]);
        }
    }
    for (a, b) in a_last.iter().zip(b_last) {
        for i in 0..LANES {
            even[i] = fma::<FMA>(a[i], b[i], even[i]);
        }
    }
    for i in 0..LANES {
        even[i] += odd[i];
    }
    let mut total = sum(even);
    for (&a, &b) in a_rest.iter().zip(b_rest) {
        total = fma::<FMA>(a, b, total);
    }
    total
}

/// The natural exponential with a relative error below 3e-7 where the result is a normal number;
/// 0 below that, the largest such power above. A NaN stays one.
///
/// exp(x) = 2ⁿ exp(r) with n = round(x / ln 2), |r| ≤ ln 2 / 2, and the Taylor polynomial of
/// degree 7, whose remainder there is below 6e-9.
#[inline(always)]
fn exp<const FMA: bool>(x: f32) -> f32 {
    const HIGHEST: f32 = 88.37;
    const LOWEST: f32 = -87.33;
    /// 1.5 · 2²³: a number of this size has no fraction, and its low bits are the integer.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts; the first has so few bits that its product with n is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const TAYLOR: [f32; 6] = [
        1.0 / 5040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
    ];
    let y = if x > HIGHEST { HIGHEST } else { x };
    let y = if y < LOWEST { LOWEST } else { y };
    let shifted = fma::<FMA>(y, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = fma::<FMA>(n, -LN2_LOW, fma::<FMA>(n, -LN2_HIGH, y));
    let mut p = TAYLOR[0];
    for c in &TAYLOR[1..] {
        p = fma::<FMA>(p, r, *c);
    }
    let p = fma::<FMA>(p * r, r, r) + 1.0;
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    let result = p * power;
    if x < LOWEST { 0.0 } else { result }
}

/// `out = x / sqrt(mean(x²) + eps) * weight`.
#[inline(always)]
pub(super) fn rms_norm<const FMA: bool>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let mean = dot::<FMA>(x, x) / x.len() as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * weight;
    }
}

/// Turns the pairs `(2i, 2i + 1)`.
#[inline(always)]
pub(super) fn rope<const FMA: bool>(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let pairs = head.as_chunks_mut::<2>().0;
    for (pair, (&c, &s)) in pairs.iter_mut().zip(cos.iter().zip(sin)) {
        let [a, b] = *pair;
        *pair = [fma::<FMA>(a, c, -(b * s)), fma::<FMA>(a, s, b * c)];
    }
}

/// `gate = gate / (1 + exp(-gate)) * up`.
#[inline(always)]
pub(super) fn silu_mul<const FMA: bool>(gate: &mut [f32], up: &[f32]) {
    for (gate, &up) in gate.iter_mut().zip(up) {
        *gate = *gate / (1.0 + exp::<FMA>(-*gate)) * up;
    }
}

/// `x += y`.
#[inline(always)]
pub(super) fn add_assign<const FMA: bool>(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, &y)| *x += y);
}

/// The largest number; `-inf` of none.
#[inline(always)]
pub(super) fn max<const FMA: bool>(x: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = larger(lanes[i], chunk[i]);
        }
    }
    lanes
        .iter()
        .chain(rest)
        .fold(f32::NEG_INFINITY, |a, &b| larger(a, b))
}

/// `x = exp(x - max)`; the sum of the results.
#[inline(always)]
pub(super) fn exp_sum<const FMA: bool>(x: &mut [f32], max: f32) -> f32 {
    let (chunks, rest) = x.as_chunks_mut::<LANES>();
    let mut lanes = [0.0; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            chunk[i] = exp::<FMA>(chunk[i] - max);
            lanes[i] += chunk[i];
        }
    }
    let mut total = sum(lanes);
    for x in rest {
        *x = exp::<FMA>(*x - max);
        total += *x;
    }
    total
}

/// `x *= factor`.
#[inline(always)]
pub(super) fn scale<const FMA: bool>(x: &mut [f32], factor: f32) {
    x.iter_mut().for_each(|x| *x *= factor);
}

/// `scores[p] = scale * q · keys[p]`.
#[inline(always)]
pub(super) fn scores<const FMA: bool>(q: &[f32], keys: &[f32], scale: f32, scores: &mut [f32]) {
    for (score, key) in scores.iter_mut().zip(keys.chunks_exact(q.len())) {
        *score = scale * dot::<FMA>(q, key);
    }
}

/// `out += Σ weights[p] values[p]`.
#[inline(always)]
pub(super) fn weighted_sum<const FMA: bool>(weights: &[f32], values: &[f32], out: &mut [f32]) {
    for (&weight, value) in weights.iter().zip(values.chunks_exact(out.len())) {
        for (out, &value) in out.iter_mut().zip(value) {
            *out = fma::<FMA>(weight, value, *out);
        }
    }
}

/// `y = W x`, a row of `W` decoded at a time.
#[inline(always)]
pub(super) fn decoded_matvec<const FMA: bool>(w: Matrix<'_>, x: &[f32], y: &mut [f32]) {
    let mut row = vec![0.0; w.cols()];
    for (i, y) in y.iter_mut().enumerate() {
        drop(htc_formats::block::decode(w.dtype(), w.row(i), &mut row));
        *y = dot::<FMA>(&row, x);
    }
}
