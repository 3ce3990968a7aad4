//! Portable version: the scalar block decoders of `htc-formats` and the loops of [`lanes`].

use htc_formats::DType;

use super::activations;
use super::bands;
use super::dot;
use super::kernels::Kernels;
use super::lanes::{self, Loops, loop_table, with_features};
use super::matvec::decoded_matvec;
use super::plain_heads;
use crate::matrix::Matrix;

const FMA: bool = cfg!(target_arch = "aarch64");

/// Portable kernels.
pub(super) static KERNELS: Kernels = Kernels {
    name: if cfg!(target_arch = "aarch64") {
        "aarch64"
    } else {
        "baseline"
    },
    matvec: decoded_matvec::<FMA>,
    dot: dot::scalar,
    int_gemm: None,
    matmul_small_batch,
    quantise: activations::quantise,
    decode,
    column_groups: bands::scalar::KERNELS,
    loops: loop_table!(baseline FMA),
    attention: plain_heads::KERNELS,
};

fn matmul_small_batch(w: Matrix<'_>, n: usize, x: &[f32], y: &mut [f32]) {
    let mut row = vec![0.0; w.cols()];
    for (i, y) in y.chunks_exact_mut(n.max(1)).enumerate() {
        decode(w.dtype(), w.row(i), &mut row);
        for (t, y) in y.iter_mut().enumerate() {
            *y = lanes::dot::<FMA>(&row, &x[t * w.cols()..][..w.cols()]);
        }
    }
}

/// Decodes whole blocks; NaN for a type without decoder.
pub(super) fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    // A view of a matrix holds whole blocks, so only the type can be unsupported.
    if htc_formats::block::decode(dtype, bytes, out).is_err() {
        out.fill(f32::NAN);
    }
}
