//! Portable products.

use half::f16;
use htc_formats::DType;

use crate::cpu::activations::{BLOCK, SUPER_BLOCK_LEN, SuperBlock};
use crate::cpu::int_gemm::formats::*;
use crate::cpu::int_gemm::panel::UnpackedRow;
use crate::cpu::subarray;
use crate::matrix::Matrix;

/// See [`Dot`](super::Dot).
pub(in crate::cpu) fn dot(w: Matrix<'_>, x: &[SuperBlock], y: &mut [f32]) {
    by_format!(w.dtype(), multiply_rows(w, x, y), y.fill(f32::NAN))
}

fn multiply_rows<F: Format>(w: Matrix<'_>, x: &[SuperBlock], y: &mut [f32]) {
    let mut unpacked = UnpackedRow::ZERO;
    for (i, y) in y.iter_mut().enumerate() {
        *y = 0.0;
        for (bytes, x) in w.row(i).chunks(SUPER_BLOCK_LEN / F::LEN * F::BYTES).zip(x) {
            F::unpack(bytes, &mut unpacked);
            for b in 0..bytes.len() / F::BYTES * F::LEN / BLOCK {
                let block = &bytes[b * BLOCK / F::LEN * F::BYTES..];
                for h in 0..F::Layout::SCALES {
                    *y += run_product::<F>(block, &unpacked, x, b, h);
                }
            }
        }
    }
}

/// Returns the product of half `h` of block `b` of a super-block, or of the whole block if it has
/// one scale; `block` are the bytes from its scale on.
fn run_product<F: Format>(
    block: &[u8],
    unpacked: &UnpackedRow,
    x: &SuperBlock,
    b: usize,
    h: usize,
) -> f32 {
    let half = |at: usize| f16::from_le_bytes(*subarray(block, at)).to_f32();
    let (mut scale, mut minimum) = (half(F::SCALE), 0.0);
    if F::Layout::MINIMA {
        minimum = half(F::MINIMUM);
    }
    if F::LEN != BLOCK {
        scale *= f32::from(unpacked.scales[8 * h + b]);
        minimum *= -f32::from(unpacked.minima[8 * h + b]);
    }
    let run = BLOCK / F::Layout::SCALES;
    let codes = &unpacked.codes[b * BLOCK + h * run..][..run];
    let products = codes.iter().zip(&x.codes[b][h * run..]).map(|(&code, &x)| {
        let code = match F::CODEBOOK {
            Some(codebook) => codebook[usize::from(code & 15)],
            None => code.wrapping_sub(F::CENTRE).cast_signed(),
        };
        i32::from(code) * i32::from(x)
    });
    let sum = match F::Layout::SCALES {
        1 => x.sums[b],
        _ => x.half_sums[b / 4][h * 4 + b % 4],
    };
    (scale * products.sum::<i32>() as f32 + minimum * sum as f32) * x.scales[b]
}
