//! Integer products of quantised weights and many vectors.
//!
//! The vectors are quantised to 8 bits in blocks of 32 (see [`activations`](super::activations)).
//! Thirty-two rows of weights are packed in the order of multiplication, a range of columns at a
//! time that stays in the L1 cache, and multiplied with all vectors in register tiles: a lane is a
//! row, and one instruction multiplies and adds four consecutive columns. The sum over 32 numbers
//! is exact; it is scaled and accumulated in `f32`, block after block, so a result depends on its
//! row and its vector alone.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx_vnni;
pub(super) mod formats;
pub(super) mod panel;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod wide;

use super::Cpu;
use super::activations::{self, SuperBlock};
use super::gemm::{MatrixMut, for_each_block};
use super::kernels::Kernels;
use super::scratch::Scratch;
use crate::matrix::Matrix;
use crate::pool::Pool;

use panel::PANEL_ROWS;
pub(super) use panel::Panel;
#[cfg(target_arch = "x86_64")]
pub(super) use {
    avx_vnni::INT_GEMM as avx_vnni, avx2::INT_GEMM as avx2, avx512::INT_GEMM as avx512,
};

/// Computes `y [n, rows] = x Wᵀ` on one thread, for an [integer type](super::dot::is_integer).
/// Arguments: super-blocks of all vectors, and the number of vectors between one super-block of a
/// vector and the next.
pub(super) type IntGemm = fn(Matrix<'_>, &[SuperBlock], usize, &mut MatrixMut<'_>, &mut Panel);

const TASKS_PER_THREAD: usize = 8;

const MAX_PANELS_PER_TASK: usize = 8;

const VECTORS_PER_PART: usize = 48;

/// Computes `y [n, rows] = x Wᵀ` as [`IntGemm`] on all threads; the shapes have been checked.
pub(super) fn multiply(
    cpu: &Cpu,
    gemm: IntGemm,
    w: Matrix<'_>,
    n: usize,
    x: &[f32],
    y: &mut [f32],
    scratch: &mut Scratch,
) {
    let (kernels, pool) = (cpu.kernels, &*cpu.pool);
    let cols = w.cols();
    let super_blocks = activations::super_blocks(cols);
    let (vectors, panels) = scratch.int_gemm_buffers(super_blocks * n, pool.threads());
    quantise_columns(kernels, pool, cols, x, vectors, panels);
    let vectors = &*vectors;
    // A trade-off: each task reads all vectors again, threads should finish together, and weights
    // are unpacked again for every part of the vectors.
    let task = PANEL_ROWS
        * (w.rows() / (PANEL_ROWS * TASKS_PER_THREAD * pool.threads()))
            .clamp(1, MAX_PANELS_PER_TASK);
    let parts = pool.threads().div_ceil(w.rows().div_ceil(task).max(1));
    let height = n.div_ceil(parts).next_multiple_of(VECTORS_PER_PART).min(n);
    for_each_block(
        pool,
        y,
        [n, w.rows()],
        [height, task],
        panels,
        |[first, row], mut y, panel| {
            // The block lies inside `y`, and so do its rows in `w`.
            let Ok(w) = w.row_range(row, task.min(w.rows() - row)) else {
                return;
            };
            gemm(
                w,
                &vectors[first.min(vectors.len())..],
                n,
                &mut y,
                &mut panel[0],
            );
        },
    );
}

/// Quantises `x [n, cols]` to super-blocks `out [super_blocks, n]`.
fn quantise_columns(
    kernels: &Kernels,
    pool: &Pool,
    cols: usize,
    x: &[f32],
    out: &mut [SuperBlock],
    panels: &mut [Panel],
) {
    const VECTORS_PER_TASK: usize = 8;
    let super_blocks = activations::super_blocks(cols);
    let Some(n) = out.len().checked_div(super_blocks) else {
        return;
    };
    for_each_block(
        pool,
        out,
        [super_blocks, n],
        [super_blocks, VECTORS_PER_TASK],
        panels,
        |[_, first], mut out, _| {
            for (t, x) in x[first * cols..]
                .chunks_exact(cols)
                .take(VECTORS_PER_TASK)
                .enumerate()
            {
                for (s, x) in x.chunks(activations::SUPER_BLOCK_LEN).enumerate() {
                    (kernels.quantise)(x, &mut out.row_mut(s)[t..][..1]);
                }
            }
        },
    );
}
