//! Portable version: the scalar block decoders of `htc-formats` and the loops of [`lanes`].

use htc_formats::DType;

use super::activations;
use super::bands;
use super::dot;
use super::kernels::Kernels;
use super::lanes::{self, Loops};
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
    loops: Loops {
        rms_norm: lanes::rms_norm::<FMA>,
        rms_norm_in_place: lanes::rms_norm_in_place::<FMA>,
        rope_adjacent: lanes::rope_adjacent::<FMA>,
        rope_halves: lanes::rope_halves::<FMA>,
        silu_mul: lanes::silu_mul::<FMA>,
        gelu_mul: lanes::gelu_mul::<FMA>,
        softcap: lanes::softcap::<FMA>,
        add_assign: lanes::add_assign::<FMA>,
        add_to_doubles: lanes::add_to_doubles::<FMA>,
        max: lanes::max::<FMA>,
        exp_sum: lanes::exp_sum::<FMA>,
        scale: lanes::scale::<FMA>,
        column_softmax: lanes::column_softmax::<FMA>,
        mask_columns: lanes::mask_columns::<FMA>,
        rotate: lanes::rotate::<FMA>,
    },
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
