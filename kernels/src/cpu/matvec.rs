//! Matrix-vector products.

use htc_formats::DType;

use super::Cpu;
use super::activations::{self, SuperBlock};
use super::kernels::Kernels;
use super::project::{Input, Projection};
use super::scratch::Scratch;
use super::{dot, lanes, plain};
use crate::error::{ShapeError, check_size};
use crate::matrix::Matrix;

impl Cpu {
    /// Computes `y = W x`. For quantised weights, `x` is quantised to 8 bits in blocks of 32.
    ///
    /// # Errors
    /// When `x` is not `[cols]` or `y` not `[rows]`.
    pub fn matvec(
        &self,
        w: Matrix<'_>,
        x: &[f32],
        y: &mut [f32],
        scratch: &mut Scratch,
    ) -> Result<(), ShapeError> {
        let input = Input::Vector;
        self.project(1, x, &[], &mut [Projection { w, input, y }], scratch)
    }
}

/// Vector in the forms that products read.
#[derive(Clone, Copy)]
pub(super) struct PreparedVector<'a> {
    pub numbers: &'a [f32],
    /// Empty if no product reads them.
    pub super_blocks: &'a [SuperBlock],
}

/// Computes `y = W x` on one thread; the shapes have been checked.
pub(super) fn matvec_single_threaded(
    kernels: &Kernels,
    w: Matrix<'_>,
    x: PreparedVector<'_>,
    y: &mut [f32],
) {
    if dot::is_integer(w.dtype()) {
        (kernels.dot)(w, x.super_blocks, y);
    } else {
        (kernels.matvec)(w, x.numbers, y);
    }
}

/// Super-blocks that a product with a matrix of this type reads.
pub(super) fn super_blocks(dtype: DType, cols: usize) -> usize {
    if dot::is_integer(dtype) {
        activations::super_blocks(cols)
    } else {
        0
    }
}

const TASK_BYTES: std::ops::RangeInclusive<usize> = 8 << 10..=1 << 20;

/// Minimum number of tasks per thread. Each starts a new stream for the hardware prefetcher, so few
/// are better than many.
const TASKS_PER_THREAD: usize = 2;

/// Rows of one task, a multiple of the rows a kernel processes together.
pub(super) fn rows_per_task(w: &Matrix<'_>, threads: usize) -> usize {
    const KERNEL_ROWS: usize = 8;
    let bytes = (w.rows() * w.row_bytes() / (TASKS_PER_THREAD * threads.max(1)))
        .clamp(*TASK_BYTES.start(), *TASK_BYTES.end());
    let rows = bytes / w.row_bytes().max(1);
    rows.max(1).next_multiple_of(KERNEL_ROWS)
}

const SEGMENT_NUMBERS: usize = 256;

/// Computes `y = W x` for any type, decoding a segment of a row at a time.
#[inline(always)]
pub(super) fn decoded_matvec<const FMA: bool>(w: Matrix<'_>, x: &[f32], y: &mut [f32]) {
    let dtype = w.dtype();
    let segment_bytes = SEGMENT_NUMBERS / dtype.block_len() * dtype.block_bytes();
    for (i, y) in y.iter_mut().enumerate() {
        let mut sum = 0.0;
        let mut buffer = [0.0; SEGMENT_NUMBERS];
        for (bytes, x) in w
            .row(i)
            .chunks(segment_bytes)
            .zip(x.chunks(SEGMENT_NUMBERS))
        {
            let numbers = &mut buffer[..x.len()];
            plain::decode(dtype, bytes, numbers);
            sum += lanes::dot::<FMA>(numbers, x);
        }
        *y = sum;
    }
}

impl Cpu {
    /// Decodes one stored row: the embedding of `token`, `out [cols]`.
    ///
    /// # Errors
    /// When there is no such row or `out` has another length.
    pub fn embed(&self, w: Matrix<'_>, token: usize, out: &mut [f32]) -> Result<(), ShapeError> {
        check_size("out (numbers)", w.cols(), out.len())?;
        let row = w.row_range(token, 1)?;
        (self.kernels.decode)(w.dtype(), row.row(0), out);
        Ok(())
    }
}
