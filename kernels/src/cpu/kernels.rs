//! Kernel tables and their selection.

use std::sync::OnceLock;

use htc_formats::DType;

use super::activations::SuperBlock;
use super::bands::ColumnGroupKernels;
use super::dot::Dot;
use super::heads::AttentionKernels;
use super::int_gemm::IntGemm;
use super::lanes::Loops;
use super::plain;
use crate::matrix::Matrix;

/// Kernels of one instruction set; each runs on one thread, over shapes its caller has checked.
pub(crate) struct Kernels {
    /// Name, see [`instruction_set`](super::instruction_set).
    pub name: &'static str,
    /// Computes `y = W x`; `x [cols]`, `y [rows]`. A row's result depends on that row and `x`
    /// alone.
    pub matvec: fn(Matrix<'_>, &[f32], &mut [f32]),
    /// Computes `y = W x` in integers.
    pub dot: Dot,
    /// Computes several vectors in integers.
    pub int_gemm: Option<IntGemm>,
    /// Computes `y = W xᵀ` for few vectors: `x [n, cols]`, `y [rows, n]`.
    pub matmul_small_batch: fn(Matrix<'_>, usize, &[f32], &mut [f32]),
    /// Quantises one row to super-blocks.
    pub quantise: fn(&[f32], &mut [SuperBlock]),
    /// Decodes whole blocks, bit-identical to the scalar decoder.
    pub decode: fn(DType, &[u8], &mut [f32]),
    /// Products with matrices in column groups.
    pub column_groups: ColumnGroupKernels,
    /// Norms, activations and softmax steps.
    pub loops: Loops,
    /// Products with keys and values.
    pub attention: AttentionKernels,
}

/// Returns the best table for this processor.
pub(crate) fn detected() -> &'static Kernels {
    static CHOICE: OnceLock<&'static Kernels> = OnceLock::new();
    CHOICE.get_or_init(|| available()[0])
}

/// Returns every table for this processor, the best first.
pub(crate) fn available() -> Vec<&'static Kernels> {
    #[cfg(target_arch = "x86_64")]
    let vectorised = [super::avx512::with_vbmi()]
        .into_iter()
        .chain(super::avx512::kernels())
        .chain(super::avx2::kernels());
    #[cfg(target_arch = "aarch64")]
    let vectorised = super::neon::kernels();
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let vectorised: [Option<&'static Kernels>; 0] = [];
    vectorised
        .into_iter()
        .flatten()
        .chain([&plain::KERNELS])
        .collect()
}
