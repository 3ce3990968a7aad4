//! The table of inner kernels and the choice between its versions.

use std::sync::OnceLock;

use htc_formats::DType;

use super::activations::Strip;
use super::bands::BandKernels;
use super::dot::Dot;
use super::heads::Heads;
use super::int_gemm::Tiles;
use super::lanes::Loops;
use super::plain;
use crate::matrix::Matrix;

/// What one instruction set offers: each kernel runs on one thread, over shapes its caller has
/// checked.
pub(crate) struct Kernels {
    /// As [`instruction_set`](super::instruction_set).
    pub name: &'static str,
    /// `y = W x`; `x [cols]`, `y [rows]`. A row's result depends on nothing but that row and `x`.
    pub matvec: fn(Matrix<'_>, &[f32], &mut [f32]),
    /// `y = W x` in integers.
    pub dot: Dot,
    /// The same for several vectors.
    pub tiles: Option<Tiles>,
    /// `y = W xᵀ` for few vectors: `x [n, cols]`, `y [rows, n]`.
    pub few: fn(Matrix<'_>, usize, &[f32], &mut [f32]),
    /// One row as integers: `x`, strips for all of it.
    pub quantise: fn(&[f32], &mut [Strip]),
    /// Whole blocks to numbers, bit for bit as the scalar decoder.
    pub decode: fn(DType, &[u8], &mut [f32]),
    /// Products with matrices in bands.
    pub bands: BandKernels,
    /// Norms, activations and the parts of a softmax.
    pub loops: Loops,
    /// Products with keys and values.
    pub heads: Heads,
}

/// The best table this processor can run.
pub(crate) fn detected() -> &'static Kernels {
    static CHOICE: OnceLock<&'static Kernels> = OnceLock::new();
    CHOICE.get_or_init(|| available()[0])
}

/// Every table this processor can run, the best first.
pub(crate) fn available() -> Vec<&'static Kernels> {
    #[cfg(target_arch = "x86_64")]
    let wide = [super::avx512::with_vbmi()]
        .into_iter()
        .chain(super::avx512::kernels())
        .chain(super::avx2::kernels());
    #[cfg(target_arch = "aarch64")]
    let wide = super::neon::kernels();
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let wide: [Option<&'static Kernels>; 0] = [];
    wide.into_iter()
        .flatten()
        .chain([&plain::KERNELS])
        .collect()
}
