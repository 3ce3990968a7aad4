//! Products of quantised weights and a quantised vector, as sums of integers.
//!
//! A weight is `d c + m` with an integer code `c`, a scale `d` and, in some formats, a minimum `m`,
//! shared by a run of 16 or 32 numbers; a number of the vector is `d_x c_x`, see
//! [`activations`](super::activations). The product of a run is `d d_x Σ c c_x + m d_x Σ c_x`: the
//! first sum is exact in integers, and the second is stored with the vector. For formats with
//! centred codes, the sum of the unsigned codes is computed and the centre times `Σ c_x`
//! subtracted, also in integers.
//!
//! Only each run's contribution is rounded, to `f32`, and the sum of the contributions of a row. A
//! row's product depends on that row and the vector alone.
//!
//! Versions for x86-64 use full registers: eight sums of four products in 256 bits, and sixteen in
//! 512 bits with AVX-512 and VNNI.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx_vnni;
#[cfg(target_arch = "x86_64")]
mod k_quants;
#[cfg(target_arch = "x86_64")]
mod legacy;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod wide;

use htc_formats::DType;

use super::activations::SuperBlock;
use super::int_gemm::formats::*;
use crate::matrix::Matrix;

/// Computes `y = W x` on one thread; `x` is `[cols]` in super-blocks, `y [rows]`. The type of `W`
/// satisfies [`is_integer`] and the shapes have been checked.
pub(super) type Dot = fn(Matrix<'_>, &[SuperBlock], &mut [f32]);

#[cfg(target_arch = "aarch64")]
pub(super) use neon::{DOT as neon, DOTPROD as neon_dotprod, load_128, sdot};
pub(super) use scalar::dot as scalar;
#[cfg(target_arch = "x86_64")]
pub(super) use {
    avx_vnni::DOT as avx_vnni, avx2::DOT as avx2, avx512::DOT as avx512,
    avx512::DOT_GFNI as avx512_gfni,
};

/// Dispatches to the module of the matrix's format.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! dispatch {
    ($w:ident, $x:ident, $y:ident) => {
        match $w.dtype() {
            DType::Q8_0 => q8_0::dot($w, $x, $y),
            DType::Q4_0 => q4_0::dot($w, $x, $y),
            DType::Q4_1 => q4_1::dot($w, $x, $y),
            DType::Q5_0 => q5_0::dot($w, $x, $y),
            DType::Q5_1 => q5_1::dot($w, $x, $y),
            DType::IQ4NL => iq4_nl::dot($w, $x, $y),
            DType::IQ4XS => iq4_xs::dot($w, $x, $y),
            DType::Q2K => q2_k::dot($w, $x, $y),
            DType::Q3K => q3_k::dot($w, $x, $y),
            DType::Q4K => q4_k::dot($w, $x, $y),
            DType::Q5K => q5_k::dot($w, $x, $y),
            DType::Q6K => q6_k::dot($w, $x, $y),
            // No other type is an integer type.
            _ => $y.fill(f32::NAN),
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use dispatch;

/// Returns true if products with weights of this type quantise the vector.
pub(super) fn is_integer(dtype: DType) -> bool {
    fn has_format<F: Format>() -> bool {
        true
    }
    by_format!(dtype, has_format(), false)
}

/// Codebook of iq4_nl and iq4_xs.
pub(super) const IQ4_CODEBOOK: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];
