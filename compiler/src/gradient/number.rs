//! Float32 and float64 arithmetic and matrix products.

use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Sub};

use faer::{Accum, MatMut, MatRef, Par};
use htc_kernels::Pool;
use htc_math::{exp_f32, largest, sum_of};

/// Rows of a task: fixed, so that results do not depend on the number of threads.
pub(super) const TASK_ROWS: usize = 64;

/// Products per accumulation step on every CPU. With more, the order of sums would depend on cache
/// sizes.
const DEPTH: usize = 512;

/// Element type of a pass: float32, or float64 for finite differences.
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
    /// Rounds to this type.
    fn nearest(x: f64) -> Self;

    fn exp(self) -> Self;

    fn tanh(self) -> Self;

    /// Computes `dst = factor · a b`, or `dst += factor · a b`, on this thread.
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
            #[inline(always)]
            fn nearest(x: f64) -> Self {
                x as $type
            }

            #[inline(always)]
            fn exp(self) -> Self {
                $exp(self)
            }

            #[inline(always)]
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

/// Replaces each number `x` by `exp(x - max)`; returns the maximum and the sum.
#[inline(always)]
pub(super) fn shifted_exponentials<T: Number>(numbers: &mut [T]) -> (T, f64) {
    let max = largest(numbers);
    numbers.iter_mut().for_each(|x| *x = (*x - max).exp());
    (max, sum_of(numbers, numbers, |x, _| x))
}

#[derive(Clone, Debug)]
pub(super) struct Matrix<T> {
    pub rows: usize,
    pub cols: usize,
    pub values: Vec<T>,
}

impl<T: Number> Matrix<T> {
    pub fn view(&self) -> MatRef<'_, T> {
        MatRef::from_row_major_slice(&self.values, self.rows, self.cols)
    }
}

/// Computes `dst = factor · a b`, or `dst += factor · a b`, in a fixed order of sums.
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

/// Computes `y = x Wᵀ` for `x [n, cols]`, `y [n, rows]`.
pub(super) fn linear<T: Number>(pool: &Pool, w: &Matrix<T>, x: &[T], y: &mut [T]) {
    pool.chunks_mut(y, TASK_ROWS * w.rows, |task, y| {
        let n = y.len() / w.rows.max(1);
        let x = &x[task * TASK_ROWS * w.cols..][..n * w.cols];
        let x = MatRef::from_row_major_slice(x, n, w.cols);
        let y = MatMut::from_row_major_slice_mut(y, n, w.rows);
        product(y, Accum::Replace, x, w.view().transpose(), T::from(1.0));
    });
}

/// Backward pass of [`linear`]: `dx = dy W`, or `dx += dy W`.
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

/// Returns the first `numbers` of a reused buffer, with unspecified contents.
pub(super) fn resized<T: Number>(buffer: &mut Vec<T>, numbers: usize) -> &mut [T] {
    buffer.resize(numbers, T::default());
    buffer
}

/// Calls `f` with the first row of every chunk and the rows of two matrices `[n, width]`.
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
