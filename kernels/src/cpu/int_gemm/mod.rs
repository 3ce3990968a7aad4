//! Products of quantised weights and many vectors in integers.
//!
//! The vectors are quantised to eight bits in blocks of 32 (see
//! [`activations`](super::activations)). Thirty-two rows of weights are brought into the order in
//! which the processor multiplies them, a range of columns at a time that stays in the
//! first-level cache, and multiplied with all vectors, a few of them at a time whose sums fit the
//! registers: a lane of a register is a row, four consecutive columns of it are multiplied and
//! added in one instruction. The sum over 32 numbers is exact; it is multiplied by the weights'
//! scale and by the vector's and added up in `f32`, block after block, so that a result depends
//! on its row and its vector alone.

#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod formats;
#[cfg(target_arch = "x86_64")]
mod panel;
#[cfg(target_arch = "x86_64")]
mod tiles;

#[cfg(test)]
mod tests;

use std::sync::OnceLock;

use htc_formats::DType;

use super::activations::{self, Strip};
use super::gemm::{Target, for_each_block};
use super::kernels::Kernels;
use super::scratch::Scratch;
use crate::matrix::Matrix;
use crate::pool::Pool;

use panel::ROWS;
pub(super) use panel::Panel;

/// The product of one instruction set.
pub(crate) struct Tiles {
    pub name: &'static str,
    /// `y [n, rows] = x Wᵀ` for up to [`ROWS`] rows; the strips of all vectors, and how many
    /// vectors lie between one strip of a vector and its next.
    pub multiply: fn(Matrix<'_>, &[Strip], usize, &mut Target<'_>, &mut Panel),
}

/// Whether products with weights of this type are computed in integers.
pub(super) fn takes(dtype: DType) -> bool {
    matches!(
        dtype,
        DType::Q8_0
            | DType::Q4_0
            | DType::Q4_1
            | DType::Q5_0
            | DType::Q5_1
            | DType::Q2K
            | DType::Q3K
            | DType::Q4K
            | DType::Q5K
            | DType::Q6K
            | DType::IQ4NL
            | DType::IQ4XS
    )
}

/// The best this processor can run.
pub(crate) fn detected() -> Option<&'static Tiles> {
    static CHOICE: OnceLock<Option<&'static Tiles>> = OnceLock::new();
    *CHOICE.get_or_init(|| available().first().copied())
}

/// All that this processor can run, the best first.
pub(crate) fn available() -> Vec<&'static Tiles> {
    #[cfg(target_arch = "x86_64")]
    let wide = [avx512::detected()];
    #[cfg(not(target_arch = "x86_64"))]
    let wide: [Option<&'static Tiles>; 0] = [];
    wide.into_iter().flatten().collect()
}

/// `y [n, rows] = x Wᵀ` for a type that is [taken](takes); the shapes have been checked.
pub(super) fn multiply(
    kernels: &Kernels,
    tiles: &Tiles,
    pool: &Pool,
    w: Matrix<'_>,
    n: usize,
    x: &[f32],
    y: &mut [f32],
    scratch: &mut Scratch,
) {
    let cols = w.cols();
    let strips = activations::strips(cols);
    let (vectors, panels) = scratch.integers(strips * n, pool.threads());
    quantise(kernels, pool, cols, x, vectors, panels);
    let vectors = &*vectors;
    let task = ROWS * (w.rows() / (ROWS * 4 * pool.threads())).clamp(1, 8);
    for_each_block(
        pool,
        y,
        [n, w.rows()],
        [n, task],
        panels,
        |[first, row], mut y, panel| {
            // The block lies inside `y`, and so do its rows in `w`.
            let Ok(w) = w.row_range(row, task.min(w.rows() - row)) else {
                return;
            };
            (tiles.multiply)(w, &vectors[first.min(vectors.len())..], n, &mut y, &mut panel[0]);
        },
    );
}

/// The strips of `x [n, cols]` as `out [strips, n]`.
fn quantise(
    kernels: &Kernels,
    pool: &Pool,
    cols: usize,
    x: &[f32],
    out: &mut [Strip],
    panels: &mut [Panel],
) {
    /// Vectors of one task.
    const TASK: usize = 8;
    let strips = activations::strips(cols);
    let Some(n) = out.len().checked_div(strips) else {
        return;
    };
    let Some(q) = super::quantise::avx512() else {return};
    for_each_block(pool, out, [strips, n], [strips, TASK], panels, |[_, first], mut out, _| {
        for (t, x) in x[first * cols..].chunks_exact(cols).take(TASK).enumerate() {
            for (s, x) in x.chunks(activations::STRIP).enumerate() {
                q(x, &mut out.row_mut(s)[t..][..1]);
            }
        }
    });
}
