//! The version for any processor: scalar block decoders and the loops of [`lanes`](super::lanes).

use half::{bf16, f16};
use htc_formats::DType;

use super::kernels::Kernels;
use super::lanes;
use crate::matrix::Matrix;

/// The version for any processor.
pub(super) static KERNELS: Kernels = Kernels {
    name: if cfg!(target_arch = "aarch64") {
        "aarch64"
    } else {
        "baseline"
    },
    matvec,
    decode,
    rms_norm: lanes::rms_norm::<false>,
    rope: lanes::rope::<false>,
    silu_mul: lanes::silu_mul::<false>,
    add_assign: lanes::add_assign::<false>,
    max: lanes::max::<false>,
    exp_sum: lanes::exp_sum::<false>,
    scale: lanes::scale::<false>,
    scores: lanes::scores::<false>,
    weighted_sum: lanes::weighted_sum::<false>,
};

/// Numbers decoded at a time: a multiple of every block length.
const SEGMENT: usize = 256;

/// `y = W x`, a segment of a row at a time.
fn matvec(w: Matrix<'_>, x: &[f32], y: &mut [f32]) {
    let dtype = w.dtype();
    let segment_bytes = SEGMENT / dtype.block_len() * dtype.block_bytes();
    for (i, y) in y.iter_mut().enumerate() {
        let mut sum = 0.0;
        let mut buffer = [0.0; SEGMENT];
        for (bytes, x) in w.row(i).chunks(segment_bytes).zip(x.chunks(SEGMENT)) {
            let numbers = &mut buffer[..x.len()];
            decode(dtype, bytes, numbers);
            sum += lanes::dot::<false>(numbers, x);
        }
        *y = sum;
    }
}

/// Whole blocks to numbers.
pub(crate) fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        DType::F32 => each::<4, 1>(bytes, out, |b, o| o[0] = f32::from_le_bytes(*b)),
        DType::F16 => each::<2, 1>(bytes, out, |b, o| o[0] = f16::from_le_bytes(*b).to_f32()),
        DType::BF16 => each::<2, 1>(bytes, out, |b, o| o[0] = bf16::from_le_bytes(*b).to_f32()),
        DType::Q8_0 => each(bytes, out, q8_0),
        DType::Q4_0 => each(bytes, out, q4_0),
        DType::Q4K => each(bytes, out, q4_k),
        DType::Q5K => each(bytes, out, q5_k),
        DType::Q6K => each(bytes, out, q6_k),
    }
}

fn each<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    block: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    let blocks = bytes.as_chunks::<BYTES>().0;
    let out = out.as_chunks_mut::<LEN>().0;
    blocks.iter().zip(out).for_each(|(b, o)| block(b, o));
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

fn q8_0(b: &[u8; 34], out: &mut [f32; 32]) {
    let d = half_at(b, 0);
    for i in 0..32 {
        out[i] = f32::from(b[2 + i] as i8) * d;
    }
}

fn q4_0(b: &[u8; 18], out: &mut [f32; 32]) {
    let d = half_at(b, 0);
    for i in 0..16 {
        out[i] = (f32::from(b[2 + i] & 15) - 8.0) * d;
        out[i + 16] = (f32::from(b[2 + i] >> 4) - 8.0) * d;
    }
}

/// Scale and minimum of group `j` of 32 numbers in a q4_k or q5_k block.
fn scale_and_min(b: &[u8], j: usize) -> (f32, f32) {
    let s = &b[4..16];
    let (scale, min) = if j < 4 {
        (s[j] & 63, s[j + 4] & 63)
    } else {
        (
            (s[j + 4] & 15) | (s[j - 4] >> 6 << 4),
            (s[j + 4] >> 4) | (s[j] >> 6 << 4),
        )
    };
    (
        half_at(b, 0) * f32::from(scale),
        half_at(b, 2) * f32::from(min),
    )
}

fn q4_k(b: &[u8; 144], out: &mut [f32; 256]) {
    for j in 0..8 {
        let (d, m) = scale_and_min(b, j);
        for i in 0..32 {
            let q = b[16 + j / 2 * 32 + i] >> (j % 2 * 4) & 15;
            out[j * 32 + i] = d * f32::from(q) - m;
        }
    }
}

fn q5_k(b: &[u8; 176], out: &mut [f32; 256]) {
    for j in 0..8 {
        let (d, m) = scale_and_min(b, j);
        for i in 0..32 {
            let low = b[48 + j / 2 * 32 + i] >> (j % 2 * 4) & 15;
            let high = b[16 + i] >> j & 1;
            out[j * 32 + i] = d * f32::from(low | high << 4) - m;
        }
    }
}

fn q6_k(b: &[u8; 210], out: &mut [f32; 256]) {
    let d = half_at(b, 208);
    for i in 0..256 {
        let (half, quarter, l) = (i / 128, i % 128 / 32, i % 32);
        let low = b[half * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
        let high = b[128 + half * 32 + l] >> (quarter * 2) & 3;
        let scale = f32::from(b[192 + i / 16] as i8);
        out[i] = d * scale * (f32::from(low | high << 4) - 32.0);
    }
}
