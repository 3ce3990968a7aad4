//! Batch-invariant products: each vector gets the same bits as in a batch of one.
//!
//! Products of one vector and of many add in another order and round differently. In speculative
//! decoding that difference could decide whether a drafted token is accepted. A task here is a
//! block of rows that stays in the cache while the single-vector kernels multiply one vector after
//! another: memory is read once, and weights are decoded once per vector. Matrices in [column
//! groups](super::bands) are batch-invariant already.

use super::Cpu;
use super::activations::quantise_rows;
use super::gemm::for_each_block;
use super::matvec::{PreparedVector, matvec_single_threaded, rows_per_task, super_blocks};
use super::project::{Factor, Input, Projection, check_shapes, zero_unused_components};
use super::scratch::Scratch;
use crate::error::{ShapeError, check_size, checked_product};
use crate::matrix::Matrix;

impl Cpu {
    /// Computes [`Cpu::matmul`], with every row of `y` bit-identical to [`Cpu::matvec`].
    ///
    /// # Errors
    /// When `x` is not `[n, cols]` or `y` not `[n, rows]`.
    pub fn matmul_batch_invariant(
        &self,
        w: Matrix<'_>,
        n: usize,
        x: &[f32],
        y: &mut [f32],
        scratch: &mut Scratch,
    ) -> Result<(), ShapeError> {
        let (rows, cols) = (w.rows(), w.cols());
        check_size(
            "x (numbers)",
            checked_product("x (numbers)", &[n, cols])?,
            x.len(),
        )?;
        check_size(
            "y (numbers)",
            checked_product("y (numbers)", &[n, rows])?,
            y.len(),
        )?;
        if n == 0 || rows == 0 {
            return Ok(());
        }
        let (kernels, pool) = (self.kernels, &*self.pool);
        let count = super_blocks(w.dtype(), cols);
        let (vectors, _) = scratch.int_gemm_buffers(count * n, 0);
        if count > 0 {
            quantise_rows(kernels, pool, cols, x, vectors);
        }
        let vectors = &*vectors;
        let task = rows_per_task(&w, pool.threads());
        let mut no_scratch = vec![0_u8; pool.threads()];
        for_each_block(
            pool,
            y,
            [n, rows],
            [n, task],
            &mut no_scratch,
            |[_, first], mut y, _| {
                // The block lies inside `y`, and so do its rows in `w`.
                let Ok(w) = w.row_range(first, task.min(rows - first)) else {
                    return;
                };
                for t in 0..n {
                    let x = PreparedVector {
                        numbers: &x[t * cols..][..cols],
                        super_blocks: &vectors[t * count..][..count],
                    };
                    matvec_single_threaded(kernels, w, x, y.row_mut(t));
                }
            },
        );
        Ok(())
    }

    /// Computes [`Cpu::project`], with every row bit-identical to a batch of one.
    ///
    /// # Errors
    /// When a shape does not fit or an input names no factor; nothing is written then.
    pub fn project_batch_invariant(
        &self,
        n: usize,
        x: &[f32],
        factors: &[Factor<'_>],
        projections: &mut [Projection<'_>],
        scratch: &mut Scratch,
    ) -> Result<(), ShapeError> {
        check_shapes(n, x, factors, projections)?;
        let all = projections.iter_mut();
        for projection in all.filter(|projection| projection.input == Input::Vector) {
            self.matmul_batch_invariant(projection.w, n, x, projection.y, scratch)?;
        }
        let mut inner = std::mem::take(&mut scratch.inner);
        let mut outcome = Ok(());
        for (index, factor) in factors.iter().enumerate() {
            let rank = factor.w.rows();
            if inner.len() < n * rank {
                inner.resize(n * rank, 0.0);
            }
            let inner = &mut inner[..n * rank];
            outcome =
                outcome.and_then(|()| self.matmul_batch_invariant(factor.w, n, x, inner, scratch));
            zero_unused_components(inner, rank, factor.rank);
            let all = projections.iter_mut();
            for projection in all.filter(|projection| projection.input == Input::Inner(index)) {
                outcome = outcome.and_then(|()| {
                    self.matmul_batch_invariant(projection.w, n, inner, projection.y, scratch)
                });
            }
        }
        scratch.inner = inner;
        outcome
    }
}
