//! Norms and activations, forward and backward.

use std::ops::Range;

use htc_formats::model::Activation;
use htc_kernels::Pool;
use htc_math::{sum_of, vectorised};

use super::number::{Number, TASK_ROWS, both};

/// Computes `out = x r weight` for every row, and `r = 1 / √(mean(x²) + ε)` in `inverse [n]`.
pub(super) fn rms_norm<T: Number>(
    pool: &Pool,
    x: &[T],
    weight: &[T],
    epsilon: f64,
    out: &mut [T],
    inverse: &mut [T],
) {
    let width = weight.len();
    both(pool, [out, inverse], [width, 1], |first, out, inverse| {
        let x = x[first * width..].chunks_exact(width.max(1));
        let rows = x.zip(out.chunks_exact_mut(width.max(1)));
        for ((x, out), inverse) in rows.zip(inverse) {
            *inverse = norm_row(x, weight, epsilon, out);
        }
    });
}

vectorised! {
    /// Computes one row of [`rms_norm`]; returns its `r`.
    pub(super) fn norm_row<T: Number>(x: &[T], weight: &[T], epsilon: f64, out: &mut [T]) -> T {
        let mean = sum_of(x, x, |a, b| a * b) / x.len().max(1) as f64;
        let r = T::nearest(1.0 / (mean + epsilon).sqrt());
        for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weight) {
            *out = x * r * weight;
        }
        r
    }
}

/// Adds the input gradient of [`rms_norm`] to `dx`.
pub(super) fn rms_norm_back<T: Number>(
    pool: &Pool,
    x: &[T],
    weight: &[T],
    inverse: &[T],
    dy: &[T],
    dx: &mut [T],
) {
    let width = weight.len().max(1);
    pool.chunks_mut(dx, TASK_ROWS * width, |task, dx| {
        let first = task * TASK_ROWS;
        let rows = dx.chunks_exact_mut(width).enumerate();
        for (row, dx) in rows.map(|(index, dx)| (first + index, dx)) {
            let at = row * width..(row + 1) * width;
            let (x, dy) = (&x[at.clone()], &dy[at]);
            norm_row_back(x, weight, inverse[row], dy, dx);
        }
    });
}

vectorised! {
    /// One row of [`rms_norm_back`]: `dx += r (w ∘ dy) − x r³ (w ∘ dy) · x / n`.
    pub(super) fn norm_row_back<T: Number>(x: &[T], weight: &[T], r: T, dy: &[T], dx: &mut [T]) {
        let products = x.iter().zip(weight).zip(dy);
        let dot: f64 = products
            .map(|((&x, &w), &dy)| x.into() * (w * dy).into())
            .sum();
        let along: f64 = Into::<f64>::into(r).powi(3) * dot / x.len().max(1) as f64;
        let along = T::nearest(along);
        for (((dx, &x), &w), &dy) in dx.iter_mut().zip(x).zip(weight).zip(dy) {
            *dx += r * w * dy - along * x;
        }
    }
}

/// Adds the weight gradient of [`rms_norm`], `Σ dy ∘ x r` over the rows, to `sums [n]`. A position
/// has `per_position` rows; tasks are split by positions.
pub(super) fn norm_weight_back<T: Number>(
    pool: &Pool,
    x: &[T],
    inverse: &[T],
    dy: &[T],
    per_position: usize,
    sums: &mut [f64],
) {
    let width = sums.len().max(1);
    let positions = inverse.len() / per_position.max(1);
    add_in_order(pool, positions, sums, |positions, part| {
        let rows = positions.start * per_position..positions.end * per_position;
        for (row, &inverse) in rows.clone().zip(&inverse[rows]) {
            let at = row * width..(row + 1) * width;
            norm_weight_row_back(&x[at.clone()], inverse, &dy[at], part);
        }
    });
}

vectorised! {
    /// One row of [`norm_weight_back`].
    pub(super) fn norm_weight_row_back<T: Number>(x: &[T], r: T, dy: &[T], sums: &mut [f64]) {
        for ((sum, &x), &dy) in sums.iter_mut().zip(x).zip(dy) {
            *sum += (x * r * dy).into();
        }
    }
}

/// Adds `Σ dy ∘ (y - bias)` over the rows of `y [n, width]` to `sums [width]`.
pub(super) fn rows_back<T: Number>(
    pool: &Pool,
    y: &[T],
    bias: Option<&[T]>,
    dy: &[T],
    sums: &mut [f64],
) {
    let width = sums.len().max(1);
    add_in_order(pool, y.len() / width, sums, |rows, part| {
        for row in rows {
            let at = row * width..(row + 1) * width;
            let (y, dy) = (&y[at.clone()], &dy[at]);
            add_products(part, y, dy);
            for ((sum, &bias), &dy) in part.iter_mut().zip(bias.into_iter().flatten()).zip(dy) {
                *sum -= (bias * dy).into();
            }
        }
    });
}

vectorised! {
    fn add_products<T: Number>(sums: &mut [f64], x: &[T], y: &[T]) {
        for ((sum, &x), &y) in sums.iter_mut().zip(x).zip(y) {
            *sum += (x * y).into();
        }
    }
}

/// Accumulates `f` over row tasks in task order, so that sums do not depend on the number of
/// threads.
pub(super) fn add_in_order(
    pool: &Pool,
    rows: usize,
    sums: &mut [f64],
    f: impl Fn(Range<usize>, &mut [f64]) + Sync,
) {
    let mut parts = vec![0.0; rows.div_ceil(TASK_ROWS) * sums.len()];
    let width = sums.len().max(1);
    pool.chunks_mut(&mut parts, width, |task, part| {
        let first = task * TASK_ROWS;
        f(first..rows.min(first + TASK_ROWS), part);
    });
    for part in parts.chunks_exact(width) {
        sums.iter_mut()
            .zip(part)
            .for_each(|(sum, part)| *sum += part);
    }
}

/// Computes `out = f(gate) up`.
pub(super) fn activate<T: Number>(
    pool: &Pool,
    activation: Activation,
    gate: &[T],
    up: &[T],
    out: &mut [T],
) {
    pool.chunks_mut(out, NUMBERS, |task, out| {
        let at = task * NUMBERS..task * NUMBERS + out.len();
        activate_part(activation, out, &gate[at.clone()], &up[at]);
    });
}

/// Computes `d_gate` and `d_up` of [`activate`].
pub(super) fn activate_back<T: Number>(
    pool: &Pool,
    activation: Activation,
    [gate, up, d_out]: [&[T]; 3],
    [d_gate, d_up]: [&mut [T]; 2],
) {
    let width = NUMBERS / TASK_ROWS;
    both(pool, [d_gate, d_up], [width; 2], |first, d_gate, d_up| {
        let at = first * width..first * width + d_up.len();
        let from = [&gate[at.clone()], &up[at.clone()], &d_out[at]];
        activate_part_back(activation, from, d_gate, d_up);
    });
}

vectorised! {
    fn activate_part<T: Number>(activation: Activation, out: &mut [T], gate: &[T], up: &[T]) {
        // No choice in the loops, so that they vectorise.
        match activation {
            Activation::Silu => products_with(silu, out, gate, up),
            Activation::GeluTanh => products_with(gelu_tanh, out, gate, up),
        }
    }
}

vectorised! {
    fn activate_part_back<T: Number>(
        activation: Activation,
        from: [&[T]; 3],
        d_gate: &mut [T],
        d_up: &mut [T],
    ) {
        match activation {
            Activation::Silu => products_with_back(silu, from, d_gate, d_up),
            Activation::GeluTanh => products_with_back(gelu_tanh, from, d_gate, d_up),
        }
    }
}

/// Computes `out = f(gate) up`; `f` returns value and slope.
#[inline(always)]
fn products_with<T: Number>(f: impl Fn(T) -> [T; 2], out: &mut [T], gate: &[T], up: &[T]) {
    for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
        *out = f(gate)[0] * up;
    }
}

/// Computes `d_gate` and `d_up` of [`products_with`].
#[inline(always)]
fn products_with_back<T: Number>(
    f: impl Fn(T) -> [T; 2],
    [gate, up, d_out]: [&[T]; 3],
    d_gate: &mut [T],
    d_up: &mut [T],
) {
    let from = gate.iter().zip(up).zip(d_out);
    for ((d_gate, d_up), ((&gate, &up), &d)) in d_gate.iter_mut().zip(d_up).zip(from) {
        let [value, slope] = f(gate);
        *d_gate = d * up * slope;
        *d_up = d * value;
    }
}

/// Numbers of a task, a multiple of [`TASK_ROWS`].
const NUMBERS: usize = 1 << 14;

/// Returns `x σ(x)` and its slope.
#[inline(always)]
fn silu<T: Number>(x: T) -> [T; 2] {
    let one = T::from(1.0);
    // If the exponential is infinite, the sigmoid and both results are 0.
    let sigmoid = one / (one + (T::default() - x).exp());
    [x * sigmoid, sigmoid * (one + x * (one - sigmoid))]
}

/// Returns the tanh approximation of GELU, and its slope.
#[inline(always)]
fn gelu_tanh<T: Number>(x: T) -> [T; 2] {
    let [one, half] = [1.0, 0.5].map(T::from);
    let root = T::nearest((2.0 / std::f64::consts::PI).sqrt());
    let cubic = T::nearest(0.044715);
    let tanh = (root * (x + cubic * x * x * x)).tanh();
    let inner = root * (one + T::from(3.0) * cubic * x * x);
    [
        half * x * (one + tanh),
        half * (one + tanh) + half * x * (one - tanh * tanh) * inner,
    ]
}
