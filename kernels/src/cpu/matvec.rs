//! Products of a stored matrix and one vector.

use super::kernels::{self, Kernels};
use crate::error::{ShapeError, expect};
use crate::matrix::Matrix;
use crate::pool::Pool;

/// One product `y = W x` of a group that is computed in one fork-join.
#[derive(Debug)]
pub struct Product<'a> {
    /// `W`, `[rows, cols]`.
    pub w: Matrix<'a>,
    /// `[cols]`.
    pub x: &'a [f32],
    /// `[rows]`.
    pub y: &'a mut [f32],
}

/// `y = W x`.
///
/// # Errors
/// When `x` is not `[cols]` or `y` not `[rows]`.
pub fn matvec(pool: &Pool, w: Matrix<'_>, x: &[f32], y: &mut [f32]) -> Result<(), ShapeError> {
    matvec_many(pool, &mut [Product { w, x, y }])
}

/// Independent products, all of them in one fork-join: Q, K and V together, gate and up together.
///
/// # Errors
/// As [`matvec`]; nothing is written then.
pub fn matvec_many(pool: &Pool, products: &mut [Product<'_>]) -> Result<(), ShapeError> {
    matvec_many_with(kernels::detected(), pool, products)
}

/// Bytes of weights in one task: enough to hide the taking of it and to read memory in long
/// streams, little enough that threads end together. The bounds do not depend on the number of threads.
const TASK_BYTES: std::ops::RangeInclusive<usize> = 8 << 10..=1 << 20;

/// Tasks that one product should give where its size allows it.
const TASKS_PER_PRODUCT: usize = 16;

/// Rows of one task, a multiple of the rows a kernel handles together.
pub(super) fn rows_per_task(w: &Matrix<'_>) -> usize {
    const ROWS: usize = 8;
    let bytes = (w.rows() * w.row_bytes() / TASKS_PER_PRODUCT)
        .clamp(*TASK_BYTES.start(), *TASK_BYTES.end());
    let rows = bytes / w.row_bytes().max(1);
    rows.max(1).next_multiple_of(ROWS)
}

pub(super) fn matvec_many_with(
    kernels: &Kernels,
    pool: &Pool,
    products: &mut [Product<'_>],
) -> Result<(), ShapeError> {
    for p in products.iter() {
        expect("x (numbers)", p.w.cols(), p.x.len())?;
        expect("y (numbers)", p.w.rows(), p.y.len())?;
    }
    if pool.threads() == 1 {
        for p in products {
            (kernels.matvec)(p.w, p.x, p.y);
        }
        return Ok(());
    }
    let count = |p: &Product<'_>| p.w.rows().div_ceil(rows_per_task(&p.w));
    let mut tasks = Vec::with_capacity(products.iter().map(count).sum());
    for p in products {
        let rows = rows_per_task(&p.w);
        for (index, y) in p.y.chunks_mut(rows).enumerate() {
            let w = p.w.row_range(index * rows, y.len())?;
            tasks.push(Product { w, x: p.x, y });
        }
    }
    pool.chunks_mut(&mut tasks, 1, |_, task| {
        for p in task {
            (kernels.matvec)(p.w, p.x, p.y);
        }
    });
    Ok(())
}

/// One stored row as numbers: the embedding of `token`, `out [cols]`.
///
/// # Errors
/// When there is no such row or `out` has another length.
pub fn embed(w: Matrix<'_>, token: usize, out: &mut [f32]) -> Result<(), ShapeError> {
    expect("out (numbers)", w.cols(), out.len())?;
    let row = w.row_range(token, 1)?;
    (kernels::detected().decode)(w.dtype(), row.row(0), out);
    Ok(())
}
