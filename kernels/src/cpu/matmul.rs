//! Products of a stored matrix and many vectors.

use super::Cpu;
use super::gemm::{MatrixView, for_each_block};
use super::matvec::rows_per_task;
use super::scratch::Scratch;
use super::{dot, int_gemm};
use crate::error::{ShapeError, check_numbers};
use crate::matrix::Matrix;

const PANEL_ROWS: usize = 96;

/// Columns decoded at a time, a multiple of every block length: a panel fits the L2 cache with the
/// packed dense operands. Larger panels were no faster.
///
/// The product adds up to 512 columns in one go on every processor; with more, sums would depend on
/// the size of its caches.
const PANEL_COLS: usize = 512;

/// Up to this many vectors, rows are decoded into the L1 cache and multiplied in tiles of vectors,
/// without packing. On a Sapphire Rapids core, in per cent of the peak rate with rows of 2048 q8_0
/// numbers:
///
/// | vectors | 4 | 16 | 32 | 64 | 128 | 256 | 512 |
/// |---|---|---|---|---|---|---|---|
/// | tiles | 26 | 58 | 60 | 64 | 66 | 56 | 39 |
/// | dense | 6 | 19 | 30 | 44 | 59 | 69 | 71 |
const MAX_SMALL_BATCH: usize = 96;

impl Cpu {
    /// Computes `y = x Wᵀ` for `x [n, cols]`, `y [n, rows]`.
    ///
    /// # Errors
    /// When `x` or `y` has another length.
    pub fn matmul(
        &self,
        w: Matrix<'_>,
        n: usize,
        x: &[f32],
        y: &mut [f32],
        scratch: &mut Scratch,
    ) -> Result<(), ShapeError> {
        check_numbers("x (numbers)", &[n, w.cols()], x.len())?;
        check_numbers("y (numbers)", &[n, w.rows()], y.len())?;
        let (kernels, pool) = (self.kernels, &*self.pool);
        if n == 0 {
            return Ok(());
        }
        if n == 1 {
            return self.matvec(w, x, y, scratch);
        }
        if let Some(gemm) = kernels.int_gemm
            && dot::is_integer(w.dtype())
        {
            int_gemm::multiply(self, gemm, w, n, x, y, scratch);
            return Ok(());
        }
        if n <= MAX_SMALL_BATCH {
            return matmul_small_batch(self, w, n, x, y, scratch);
        }
        let cols = w.cols();
        let dtype = w.dtype();
        let scratch = scratch.take(PANEL_ROWS * PANEL_COLS * pool.threads());
        for_each_block(
            pool,
            y,
            [n, w.rows()],
            [n, PANEL_ROWS],
            scratch,
            |[_, first], mut panel, scratch| {
                if cols == 0 {
                    (0..n).for_each(|t| panel.row_mut(t).fill(0.0));
                }
                let rows = PANEL_ROWS.min(w.rows() - first);
                for start in (0..cols).step_by(PANEL_COLS) {
                    let count = PANEL_COLS.min(cols - start);
                    let at = |cols: usize| cols / dtype.block_len() * dtype.block_bytes();
                    for (i, out) in scratch.chunks_exact_mut(count).take(rows).enumerate() {
                        let bytes = &w.row(first + i)[at(start)..at(start + count)];
                        (kernels.decode)(dtype, bytes, out);
                    }
                    let x = MatrixView::new(&x[start..], n, count, cols);
                    let w = MatrixView::new(scratch, rows, count, count);
                    panel.multiply(x, w.transposed(), 1.0, start > 0);
                }
            },
        );
        Ok(())
    }
}

fn matmul_small_batch(
    cpu: &Cpu,
    w: Matrix<'_>,
    n: usize,
    x: &[f32],
    y: &mut [f32],
    scratch: &mut Scratch,
) -> Result<(), ShapeError> {
    let (kernels, pool) = (cpu.kernels, &*cpu.pool);
    let width = rows_per_task(&w, pool.threads());
    let scratch = scratch.take(width * n * pool.threads());
    for_each_block(
        pool,
        y,
        [n, w.rows()],
        [n, width],
        scratch,
        |[_, first], mut panel, scratch| {
            let rows = width.min(w.rows() - first);
            // The block lies inside `y`, and so do its rows in `w`.
            let Ok(w) = w.row_range(first, rows) else {
                return;
            };
            let products = &mut scratch[..rows * n];
            (kernels.matmul_small_batch)(w, n, x, products);
            for t in 0..n {
                for (y, products) in panel.row_mut(t).iter_mut().zip(products.chunks_exact(n)) {
                    *y = products[t];
                }
            }
        },
    );
    Ok(())
}
