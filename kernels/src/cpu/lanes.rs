//! Auto-vectorised loops over `f32`.
//!
//! Every function is inlined into a version per instruction set; `FMA` is false for sets without a
//! fused multiply-add, which would be a call into the C library.

use htc_formats::bands::{GROUP_COLS, ROTATION_UNIT};

/// Loops compiled for one instruction set; shapes have been checked.
pub(crate) struct Loops {
    /// `x`, `weight`, `eps` and `out` of one row.
    pub rms_norm: fn(&[f32], &[f32], f32, &mut [f32]),
    /// One row, `weight` and `eps`.
    pub rms_norm_in_place: fn(&mut [f32], &[f32], f32),
    /// One head and its cosines and sines, adjacent pairs.
    pub rope_adjacent: fn(&mut [f32], &[f32], &[f32]),
    /// One head and its cosines and sines, pairs half of the rotated numbers apart.
    pub rope_halves: fn(&mut [f32], &[f32], &[f32]),
    /// `gate`, `up`.
    pub silu_mul: fn(&mut [f32], &[f32]),
    /// `gate`, `up`.
    pub gelu_mul: fn(&mut [f32], &[f32]),
    /// `x = cap * tanh(x / cap)`.
    pub softcap: fn(&mut [f32], f32),
    /// `x += y`.
    pub add_assign: fn(&mut [f32], &[f32]),
    /// `x += y`.
    pub add_to_doubles: fn(&mut [f64], &[f32]),
    /// Maximum; `-inf` if empty.
    pub max: fn(&[f32]) -> f32,
    /// `x = exp(x - max)`; returns the sum.
    pub exp_sum: fn(&mut [f32], f32) -> f32,
    /// `x *= factor`.
    pub scale: fn(&mut [f32], f32),
    /// Online softmax step down the columns of `[rows, columns]`: the numbers, and per column the
    /// running maximum, the running sum, and the factor for earlier weights.
    #[allow(clippy::type_complexity)] // four slices
    pub column_softmax: fn(&mut [f32], &mut [f32], &mut [f32], &mut [f32]),
    /// Sets rows outside `first .. end` of each column of `[rows, columns]` to `-inf`.
    pub mask_columns: fn(&mut [f32], &[i32], &[i32]),
    /// [`rotate`](htc_formats::bands::rotate), bit-identical.
    pub rotate: fn(&mut [f32]),
}

/// Table of the loops for the features of an instruction set, or `baseline` and whether to use
/// fused multiply-add.
macro_rules! loop_table {
    ($($kind:tt)*) => {
        Loops {
            rms_norm: with_features!($($kind)*, rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32])),
            rms_norm_in_place: with_features!($($kind)*, rms_norm_in_place(x: &mut [f32], weight: &[f32], eps: f32)),
            rope_adjacent: with_features!($($kind)*, rope_adjacent(head: &mut [f32], cos: &[f32], sin: &[f32])),
            rope_halves: with_features!($($kind)*, rope_halves(head: &mut [f32], cos: &[f32], sin: &[f32])),
            silu_mul: with_features!($($kind)*, silu_mul(gate: &mut [f32], up: &[f32])),
            gelu_mul: with_features!($($kind)*, gelu_mul(gate: &mut [f32], up: &[f32])),
            softcap: with_features!($($kind)*, softcap(x: &mut [f32], cap: f32)),
            add_assign: with_features!($($kind)*, add_assign(x: &mut [f32], y: &[f32])),
            add_to_doubles: with_features!($($kind)*, add_to_doubles(x: &mut [f64], y: &[f32])),
            max: with_features!($($kind)*, max(x: &[f32]) -> f32),
            exp_sum: with_features!($($kind)*, exp_sum(x: &mut [f32], max: f32) -> f32),
            scale: with_features!($($kind)*, scale(x: &mut [f32], factor: f32)),
            column_softmax: with_features!(
                $($kind)*,
                column_softmax(x: &mut [f32], max: &mut [f32], sum: &mut [f32], shrink: &mut [f32])
            ),
            mask_columns: with_features!($($kind)*, mask_columns(x: &mut [f32], first: &[i32], end: &[i32])),
            rotate: with_features!($($kind)*, rotate(x: &mut [f32])),
        }
    };
}
pub(super) use loop_table;

/// Returns a loop for an instruction set with fused multiply-add, or for all processors.
macro_rules! with_features {
    (baseline $fma:ident, $loop:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?) => {
        lanes::$loop::<$fma>
    };
    ($features:literal, $loop:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?) => {
        |$($argument),*| {
            #[target_feature(enable = $features)]
            fn with_features($($argument: $kind),*) $(-> $result)? {
                lanes::$loop::<true>($($argument),*)
            }
            // SAFETY: see `KERNELS`.
            unsafe { with_features($($argument),*) }
        }
    };
}
pub(super) use with_features;

const LANES: usize = 16;

#[inline(always)]
fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

#[inline(always)]
fn horizontal_sum(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0]
}

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
    let mut total = horizontal_sum(even);
    for (&a, &b) in a_rest.iter().zip(b_rest) {
        total = fma::<FMA>(a, b, total);
    }
    total
}

/// Exponential with a relative error below 3e-7 for normal results; 0 below that, saturated above.
/// NaN is preserved.
///
/// exp(x) = 2ⁿ exp(r) with n = round(x / ln 2), |r| ≤ ln 2 / 2, and the Taylor polynomial of degree
/// 7, whose remainder there is below 6e-9.
#[inline(always)]
fn exp<const FMA: bool>(x: f32) -> f32 {
    const HIGHEST: f32 = 88.37;
    const LOWEST: f32 = -87.33;
    /// 1.5 · 2²³: a number of this size has no fraction, and its low bits are the integer.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts; the first is so short that its product with n is exact.
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

/// Hyperbolic tangent with an error below 3e-7, relative below 1e-6. NaN is preserved.
///
/// (1 - t) / (1 + t) with t = exp(-2|x|); near 0, where that cancels, the Taylor polynomial of
/// degree 9, whose remainder below 1/4 is 3e-9 of it.
#[inline(always)]
fn tanh<const FMA: bool>(x: f32) -> f32 {
    const TAYLOR: [f32; 4] = [62.0 / 2835.0, -17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0];
    let t = exp::<FMA>(-2.0 * x.abs());
    let far = ((1.0 - t) / (1.0 + t)).copysign(x);
    let square = x * x;
    let mut p = TAYLOR[0];
    for c in &TAYLOR[1..] {
        p = fma::<FMA>(p, square, *c);
    }
    let near = fma::<FMA>(p * square, x, x);
    if x.abs() < 0.25 { near } else { far }
}

#[inline(always)]
fn inverse_rms<const FMA: bool>(x: &[f32], eps: f32) -> f32 {
    let mean = dot::<FMA>(x, x) / x.len() as f32;
    1.0 / (mean + eps).sqrt()
}

#[inline(always)]
pub(super) fn rms_norm<const FMA: bool>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let scale = inverse_rms::<FMA>(x, eps);
    for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * weight;
    }
}

#[inline(always)]
pub(super) fn rms_norm_in_place<const FMA: bool>(x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = inverse_rms::<FMA>(x, eps);
    for (x, &weight) in x.iter_mut().zip(weight) {
        *x = *x * scale * weight;
    }
}

/// Rotates the pairs `(i, i + cos.len())`.
#[inline(always)]
pub(super) fn rope_halves<const FMA: bool>(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, rest) = head.split_at_mut(cos.len());
    let pairs = first.iter_mut().zip(rest);
    for ((a, b), (&c, &s)) in pairs.zip(cos.iter().zip(sin)) {
        (*a, *b) = (fma::<FMA>(*a, c, -(*b * s)), fma::<FMA>(*a, s, *b * c));
    }
}

/// Rotates the pairs `(2i, 2i + 1)`.
#[inline(always)]
pub(super) fn rope_adjacent<const FMA: bool>(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let pairs = head.as_chunks_mut::<2>().0;
    for (pair, (&c, &s)) in pairs.iter_mut().zip(cos.iter().zip(sin)) {
        let [a, b] = *pair;
        *pair = [fma::<FMA>(a, c, -(b * s)), fma::<FMA>(a, s, b * c)];
    }
}

#[inline(always)]
pub(super) fn silu_mul<const FMA: bool>(gate: &mut [f32], up: &[f32]) {
    for (gate, &up) in gate.iter_mut().zip(up) {
        *gate = *gate / (1.0 + exp::<FMA>(-*gate)) * up;
    }
}

/// `gate = gelu(gate) * up` with the tanh approximation.
///
/// (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)), which does not cancel near -1.
#[inline(always)]
pub(super) fn gelu_mul<const FMA: bool>(gate: &mut [f32], up: &[f32]) {
    const FACTOR: f32 = 1.595_769_2;
    const CUBIC: f32 = 0.044_715;
    for (gate, &up) in gate.iter_mut().zip(up) {
        let x = *gate;
        let twice_u = FACTOR * fma::<FMA>(CUBIC * x * x, x, x);
        *gate = x / (1.0 + exp::<FMA>(-twice_u)) * up;
    }
}

#[inline(always)]
pub(super) fn softcap<const FMA: bool>(x: &mut [f32], cap: f32) {
    let inverse = 1.0 / cap;
    x.iter_mut()
        .for_each(|x| *x = cap * tanh::<FMA>(*x * inverse));
}

#[inline(always)]
pub(super) fn add_assign<const FMA: bool>(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, &y)| *x += y);
}

#[inline(always)]
pub(super) fn add_to_doubles<const FMA: bool>(x: &mut [f64], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, &y)| *x += f64::from(y));
}

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
    let mut total = horizontal_sum(lanes);
    for x in rest {
        *x = exp::<FMA>(*x - max);
        total += *x;
    }
    total
}

#[inline(always)]
pub(super) fn scale<const FMA: bool>(x: &mut [f32], factor: f32) {
    x.iter_mut().for_each(|x| *x *= factor);
}

/// Computes `x[r, c] = exp(x[r, c] - max[c])` after updating `max`; rescales `sum` to the new
/// maximum and returns the factor in `shrink`.
///
/// A column with only `-inf` has weights, a sum and a factor of 0.
#[inline(always)]
pub(super) fn column_softmax<const FMA: bool>(
    x: &mut [f32],
    max: &mut [f32],
    sum: &mut [f32],
    shrink: &mut [f32],
) {
    if max.len().is_multiple_of(LANES) {
        column_softmax_lanes::<FMA, LANES>(x, max, sum, shrink);
    } else if max.len().is_multiple_of(LANES / 2) {
        column_softmax_lanes::<FMA, { LANES / 2 }>(x, max, sum, shrink);
    } else {
        column_softmax_lanes::<FMA, 1>(x, max, sum, shrink);
    }
}

#[inline(always)]
fn column_softmax_lanes<const FMA: bool, const N: usize>(
    x: &mut [f32],
    max: &mut [f32],
    sum: &mut [f32],
    shrink: &mut [f32],
) {
    let across = max.len() / N;
    let x = x.as_chunks_mut::<N>().0;
    let (max, sum) = (max.as_chunks_mut::<N>().0, sum.as_chunks_mut::<N>().0);
    let shrink = shrink.as_chunks_mut::<N>().0;
    for (at, ((max, sum), shrink)) in max.iter_mut().zip(sum).zip(shrink).enumerate() {
        let mut largest = *max;
        for x in x.iter().skip(at).step_by(across) {
            for i in 0..N {
                largest[i] = if x[i] > largest[i] { x[i] } else { largest[i] };
            }
        }
        let mut base = largest;
        let mut total = *sum;
        for i in 0..N {
            // Avoids the difference of two infinities.
            base[i] = if base[i] == f32::NEG_INFINITY {
                0.0
            } else {
                base[i]
            };
            shrink[i] = exp::<FMA>(max[i] - base[i]);
            total[i] *= shrink[i];
        }
        for x in x.iter_mut().skip(at).step_by(across) {
            for i in 0..N {
                x[i] = exp::<FMA>(x[i] - base[i]);
                total[i] += x[i];
            }
        }
        *max = largest;
        *sum = total;
    }
}

/// Rotates whole column groups in 12 to 19 ns each on Zen 4. Variants with sixteen numbers at a
/// time, or slices instead of indices, take 24 to 58 with AVX-512.
#[expect(clippy::needless_range_loop, reason = "slices are slower")]
#[inline(always)]
pub(super) fn rotate<const FMA: bool>(x: &mut [f32]) {
    for group in x.as_chunks_mut::<GROUP_COLS>().0 {
        let parts = group.as_chunks_mut::<ROTATION_LANES>().0;
        let mut stride = parts.len() / 2;
        while stride > 0 {
            for i in (0..parts.len()).filter(|i| i & stride == 0) {
                for k in 0..ROTATION_LANES {
                    let (a, b) = (parts[i][k], parts[i + stride][k]);
                    (parts[i][k], parts[i + stride][k]) = (a + b, a - b);
                }
            }
            stride /= 2;
        }
        for part in parts {
            let mut y = *part;
            y = butterflies::<4>(y);
            y = butterflies::<2>(y);
            y = butterflies::<1>(y);
            for i in 0..ROTATION_LANES {
                part[i] = y[i] * ROTATION_UNIT;
            }
        }
    }
}

const ROTATION_LANES: usize = 8;

#[inline(always)]
fn butterflies<const STRIDE: usize>(x: [f32; ROTATION_LANES]) -> [f32; ROTATION_LANES] {
    let mut y = x;
    for i in 0..ROTATION_LANES {
        let other = x[i ^ STRIDE];
        y[i] = if i & STRIDE == 0 {
            x[i] + other
        } else {
            other - x[i]
        };
    }
    y
}

#[inline(always)]
pub(super) fn mask_columns<const FMA: bool>(x: &mut [f32], first: &[i32], end: &[i32]) {
    for (row, x) in x.chunks_exact_mut(first.len()).enumerate() {
        let row = row as i32;
        for ((x, &first), &end) in x.iter_mut().zip(first).zip(end) {
            *x = if (first <= row) & (row < end) {
                *x
            } else {
                f32::NEG_INFINITY
            };
        }
    }
}
