//! Numbers of either width, and products of matrices of them.

use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Sub};

use faer::{Accum, MatMut, MatRef, Par};
use htc_kernels::Pool;

/// Rows of a task: fixed, so that no result depends on the number of threads.
pub(super) const TASK_ROWS: usize = 64;

/// How many products are added in one go on every processor. More would make the order of sums depend
/// on the size of its caches.
const DEPTH: usize = 512;

/// What a pass computes in: float32, and float64 where it is compared with finite differences.
pub(super) trait Number:
    Copy
    + Default
    + Send
    + Sync
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + AddAssign
    + MulAssign
    + From<f32>
    + Into<f64>
{
    /// The number of this type that is nearest.
    fn nearest(x: f64) -> Self;

    /// `eˣ`.
    fn exp(self) -> Self;

    /// The hyperbolic tangent.
    fn tanh(self) -> Self;

    /// `dst = factor · a b`, or `dst += factor · a b`, on this thread.
    fn multiply(
        dst: MatMut<'_, Self>,
        accumulate: Accum,
        a: MatRef<'_, Self>,
        b: MatRef<'_, Self>,
        factor: Self,
    );
}

macro_rules! number {
    ($type:ident, $exp:path) => {
        impl Number for $type {
            fn nearest(x: f64) -> Self {
                x as $type
            }

            fn exp(self) -> Self {
                $exp(self)
            }

            fn tanh(self) -> Self {
                $type::tanh(self)
            }

            fn multiply(
                dst: MatMut<'_, Self>,
                accumulate: Accum,
                a: MatRef<'_, Self>,
                b: MatRef<'_, Self>,
                factor: Self,
            ) {
                faer::linalg::matmul::matmul(dst, accumulate, a, b, factor, Par::Seq);
            }
        }
    };
}

number!(f32, exp_f32);
number!(f64, f64::exp);

/// `eˣ` within a few units of the last place for any `x` whose exponential is a normal number, by the polynomial of
/// Cephes (Moshier); what is smaller or larger becomes the smallest or the largest of them. Written so that a
/// loop over it becomes vectors, which the system's function does not.
fn exp_f32(x: f32) -> f32 {
    /// Adding it leaves an integer in the last bits.
    const ROUND: f32 = 12_582_912.0;
    /// `ln 2` in two parts, of which multiples of the first are exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let x = x.clamp(-87.3, 88.3);
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let exponent = rounded - ROUND;
    let r = x - exponent * LN_2[0] - exponent * LN_2[1];
    let mut p = 1.987_569_2e-4;
    for coefficient in [
        1.398_199_9e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        0.5,
    ] {
        p = p * r + coefficient;
    }
    let scale = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
    (p * r * r + r + 1.0) * scale
}

/// Chains of a sum, which do not wait for each other.
const CHAINS: usize = 8;

/// `Σ f(xᵢ, yᵢ)` in float64, for slices of one length.
pub(super) fn sum_of<T: Number>(x: &[T], y: &[T], f: impl Fn(f64, f64) -> f64) -> f64 {
    let ((x, x_rest), (y, y_rest)) = (x.as_chunks::<CHAINS>(), y.as_chunks::<CHAINS>());
    let mut chains = [0.0; CHAINS];
    for (x, y) in x.iter().zip(y) {
        for ((chain, &x), &y) in chains.iter_mut().zip(x).zip(y) {
            *chain += f(x.into(), y.into());
        }
    }
    let rest = x_rest
        .iter()
        .zip(y_rest)
        .map(|(&x, &y)| f(x.into(), y.into()));
    chains.iter().sum::<f64>() + rest.sum::<f64>()
}

/// The largest number of some that are not none.
pub(super) fn largest<T: Number>(x: &[T]) -> T {
    let larger = |max: T, x: T| if x > max { x } else { max };
    let (chunks, rest) = x.as_chunks::<CHAINS>();
    let mut chains = [x.first().copied().unwrap_or_default(); CHAINS];
    for chunk in chunks {
        for (max, &x) in chains.iter_mut().zip(chunk) {
            *max = larger(*max, x);
        }
    }
    rest.iter().copied().chain(chains).fold(chains[0], larger)
}

/// A dense matrix, row by row.
#[derive(Clone, Debug)]
pub(super) struct Matrix<T> {
    /// Outputs of the linear map.
    pub rows: usize,
    /// Its inputs.
    pub cols: usize,
    /// `[rows, cols]`.
    pub values: Vec<T>,
}

impl<T: Number> Matrix<T> {
    /// It as products take it.
    pub fn view(&self) -> MatRef<'_, T> {
        MatRef::from_row_major_slice(&self.values, self.rows, self.cols)
    }
}

/// `dst = factor · a b`, or `dst += factor · a b`, in a fixed order of sums.
pub(super) fn product<T: Number>(
    mut dst: MatMut<'_, T>,
    mut accumulate: Accum,
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    factor: T,
) {
    let depth = a.ncols();
    for start in (0..depth).step_by(DEPTH) {
        let count = DEPTH.min(depth - start);
        let (a, b) = (a.subcols(start, count), b.subrows(start, count));
        T::multiply(dst.as_mut(), accumulate, a, b, factor);
        accumulate = Accum::Add;
    }
}

/// `y = x Wᵀ` for `x [n, cols]`, `y [n, rows]`.
pub(super) fn linear<T: Number>(pool: &Pool, w: &Matrix<T>, x: &[T], y: &mut [T]) {
    pool.chunks_mut(y, TASK_ROWS * w.rows, |task, y| {
        let n = y.len() / w.rows.max(1);
        let x = &x[task * TASK_ROWS * w.cols..][..n * w.cols];
        let x = MatRef::from_row_major_slice(x, n, w.cols);
        let y = MatMut::from_row_major_slice_mut(y, n, w.rows);
        product(y, Accum::Replace, x, w.view().transpose(), T::from(1.0));
    });
}

/// What [`linear`] passes back: `dx = dy W`, or `dx += dy W`.
pub(super) fn linear_back<T: Number>(
    pool: &Pool,
    w: &Matrix<T>,
    dy: &[T],
    dx: &mut [T],
    accumulate: Accum,
) {
    pool.chunks_mut(dx, TASK_ROWS * w.cols, |task, dx| {
        let n = dx.len() / w.cols.max(1);
        let dy = &dy[task * TASK_ROWS * w.rows..][..n * w.rows];
        let dy = MatRef::from_row_major_slice(dy, n, w.rows);
        let dx = MatMut::from_row_major_slice_mut(dx, n, w.cols);
        product(dx, accumulate, dy, w.view(), T::from(1.0));
    });
}

/// The first `numbers` of a buffer whose memory is kept; what was in it stays in it.
pub(super) fn room<T: Number>(buffer: &mut Vec<T>, numbers: usize) -> &mut [T] {
    buffer.resize(numbers, T::default());
    buffer
}

/// Calls `f` with the first row of every chunk of rows and the rows of two matrices, `[n, width]` each.
pub(super) fn both<T: Number>(
    pool: &Pool,
    [a, b]: [&mut [T]; 2],
    [width_a, width_b]: [usize; 2],
    f: impl Fn(usize, &mut [T], &mut [T]) + Sync,
) {
    let a = a.chunks_mut((TASK_ROWS * width_a).max(1));
    let b = b.chunks_mut((TASK_ROWS * width_b).max(1));
    let mut tasks: Vec<_> = a.zip(b).collect();
    pool.chunks_mut(&mut tasks, 1, |task, parts| {
        for (a, b) in parts {
            f(task * TASK_ROWS, a, b);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_those_of_the_system() {
        let numbers = (-8730..=8830).map(|x| x as f32 / 100.0 + 1e-3);
        for x in numbers.filter(|x| (-87.3..=88.3).contains(x)) {
            let (found, expected) = (f64::from(exp_f32(x)), f64::from(x).exp());
            let error = (found / expected - 1.0).abs();
            assert!(error < 3e-7, "{x}: {found} for {expected}");
        }
        assert_eq!(exp_f32(0.0), 1.0);
        assert!(exp_f32(-1e30) < 2e-38 && exp_f32(f32::NEG_INFINITY) < 2e-38);
        assert!(exp_f32(1e30) > 1e38 && exp_f32(1e30).is_finite());
    }

    #[test]
    fn sums_and_maxima_are_those_of_all_numbers() {
        for count in [1, 7, 8, 21] {
            let x: Vec<f32> = (0..count).map(|i| ((i * 5) % 7) as f32 - 9.0).collect();
            let expected: f32 = x.iter().map(|x| x * x).sum();
            assert_eq!(sum_of(&x, &x, |a, b| a * b), f64::from(expected));
            let expected = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(largest(&x), expected);
        }
    }
}
