//! Portable products.

use half::f16;
use htc_formats::DType;

use super::IQ4_CODEBOOK;
use crate::cpu::activations::{BLOCK, SUPER_BLOCK_LEN, SuperBlock};
use crate::matrix::Matrix;

struct UnpackedBlock {
    codes: [i8; 256],
    scales: [f32; 16],
    minima: [f32; 16],
}

/// See [`Dot`](super::Dot).
pub(in crate::cpu) fn dot(w: Matrix<'_>, x: &[SuperBlock], y: &mut [f32]) {
    match w.dtype() {
        DType::Q8_0 => accumulate_rows::<34, 32, 32>(w, x, y, q8_0),
        DType::Q4_0 => accumulate_rows::<18, 32, 32>(w, x, y, q4_0),
        DType::Q4_1 => accumulate_rows::<20, 32, 32>(w, x, y, q4_1),
        DType::Q5_0 => accumulate_rows::<22, 32, 32>(w, x, y, q5_0),
        DType::Q5_1 => accumulate_rows::<24, 32, 32>(w, x, y, q5_1),
        DType::IQ4NL => accumulate_rows::<18, 32, 32>(w, x, y, iq4_nl),
        DType::IQ4XS => accumulate_rows::<136, 256, 32>(w, x, y, iq4_xs),
        DType::Q2K => accumulate_rows::<84, 256, 16>(w, x, y, q2_k),
        DType::Q3K => accumulate_rows::<110, 256, 16>(w, x, y, q3_k),
        DType::Q4K => accumulate_rows::<144, 256, 32>(w, x, y, q4_k),
        DType::Q5K => accumulate_rows::<176, 256, 32>(w, x, y, q5_k),
        DType::Q6K => accumulate_rows::<210, 256, 16>(w, x, y, q6_k),
        // No other type is an integer type.
        _ => y.fill(f32::NAN),
    }
}

fn accumulate_rows<const BYTES: usize, const LEN: usize, const RUN: usize>(
    w: Matrix<'_>,
    x: &[SuperBlock],
    y: &mut [f32],
    unpack: impl Fn(&[u8; BYTES], &mut UnpackedBlock),
) {
    let mut block = UnpackedBlock {
        codes: [0; 256],
        scales: [0.0; 16],
        minima: [0.0; 16],
    };
    for (i, y) in y.iter_mut().enumerate() {
        *y = 0.0;
        for (b, bytes) in w.row(i).as_chunks::<BYTES>().0.iter().enumerate() {
            unpack(bytes, &mut block);
            let runs = block.codes[..LEN].as_chunks::<RUN>().0;
            for (r, codes) in runs.iter().enumerate() {
                let at = b * LEN + r * RUN;
                let (super_block, k) = (&x[at / SUPER_BLOCK_LEN], at % SUPER_BLOCK_LEN / BLOCK);
                let x_codes = &super_block.codes[k][at % BLOCK..][..RUN];
                let product = |(&c, &x): (&i8, &i8)| i32::from(c) * i32::from(x);
                let products: i32 = codes.iter().zip(x_codes).map(product).sum();
                let sum = match RUN {
                    BLOCK => super_block.sums[k],
                    _ => super_block.half_sums[k / 4][r % 2 * 4 + k % 4],
                };
                let scaled = block.scales[r] * products as f32 + block.minima[r] * sum as f32;
                *y += scaled * super_block.scales[k];
            }
        }
    }
}

fn read_f16(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn nibbles(bytes: &[u8], centre: i8, codes: &mut [i8]) {
    let (low, high) = codes.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
        *low = (byte & 15) as i8 - centre;
        *high = (byte >> 4) as i8 - centre;
    }
}

fn fifth_bits(bytes: &[u8], codes: &mut [i8]) {
    for (i, code) in codes.iter_mut().enumerate() {
        *code += (bytes[i / 8] >> (i % 8) & 1) as i8 * 16;
    }
}

fn q8_0(block: &[u8; 34], out: &mut UnpackedBlock) {
    out.scales[0] = read_f16(block, 0);
    for (code, byte) in out.codes.iter_mut().zip(&block[2..]) {
        *code = byte.cast_signed();
    }
}

fn q4_0(block: &[u8; 18], out: &mut UnpackedBlock) {
    out.scales[0] = read_f16(block, 0);
    nibbles(&block[2..], 8, &mut out.codes[..32]);
}

fn q4_1(block: &[u8; 20], out: &mut UnpackedBlock) {
    (out.scales[0], out.minima[0]) = (read_f16(block, 0), read_f16(block, 2));
    nibbles(&block[4..], 0, &mut out.codes[..32]);
}

fn q5_0(block: &[u8; 22], out: &mut UnpackedBlock) {
    out.scales[0] = read_f16(block, 0);
    nibbles(&block[6..], 16, &mut out.codes[..32]);
    fifth_bits(&block[2..6], &mut out.codes[..32]);
}

fn q5_1(block: &[u8; 24], out: &mut UnpackedBlock) {
    (out.scales[0], out.minima[0]) = (read_f16(block, 0), read_f16(block, 2));
    nibbles(&block[8..], 0, &mut out.codes[..32]);
    fifth_bits(&block[4..8], &mut out.codes[..32]);
}

fn look_up_iq4(codes: &mut [i8]) {
    for code in codes {
        *code = IQ4_CODEBOOK[*code as usize & 15];
    }
}

fn iq4_nl(block: &[u8; 18], out: &mut UnpackedBlock) {
    out.scales[0] = read_f16(block, 0);
    nibbles(&block[2..], 0, &mut out.codes[..32]);
    look_up_iq4(&mut out.codes[..32]);
}

fn iq4_xs(block: &[u8; 136], out: &mut UnpackedBlock) {
    let d = read_f16(block, 0);
    let high = u16::from_le_bytes([block[2], block[3]]);
    for (j, codes) in out.codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let low = block[4 + j / 2] >> (j % 2 * 4) & 15;
        let six_bits = low | ((high >> (2 * j) & 3) << 4) as u8;
        out.scales[j] = d * (f32::from(six_bits) - 32.0);
        nibbles(&block[8 + j * 16..][..16], 0, codes);
    }
    look_up_iq4(&mut out.codes);
}

fn bit_field(bytes: &[u8], shift: usize, bits: u32, codes: &mut [i8]) {
    for (code, byte) in codes.iter_mut().zip(bytes) {
        *code = (byte >> shift & ((1 << bits) - 1)) as i8;
    }
}

fn q2_k(block: &[u8; 84], out: &mut UnpackedBlock) {
    let (d, d_min) = (read_f16(block, 80), read_f16(block, 82));
    for (r, packed) in block[..16].iter().enumerate() {
        out.scales[r] = d * f32::from(packed & 15);
        out.minima[r] = -(d_min * f32::from(packed >> 4));
    }
    for (j, codes) in out.codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        bit_field(&block[16 + j / 4 * 32..][..32], j % 4 * 2, 2, codes);
    }
}

fn q3_k(block: &[u8; 110], out: &mut UnpackedBlock) {
    let d = read_f16(block, 108);
    for r in 0..16 {
        let low = block[96 + r % 8] >> (r / 8 * 4) & 15;
        let high = block[104 + r % 4] >> (r / 4 * 2) & 3;
        out.scales[r] = d * (f32::from(low | high << 4) - 32.0);
    }
    for (j, codes) in out.codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        bit_field(&block[32 + j / 4 * 32..][..32], j % 4 * 2, 2, codes);
        for (code, high) in codes.iter_mut().zip(&block[..32]) {
            *code += (high >> j & 1) as i8 * 4 - 4;
        }
    }
}

fn six_bit_scales(block: &[u8], out: &mut UnpackedBlock) {
    let (d, d_min) = (read_f16(block, 0), read_f16(block, 2));
    let packed = &block[4..16];
    for j in 0..8 {
        let (scale, minimum) = if j < 4 {
            (packed[j] & 63, packed[j + 4] & 63)
        } else {
            (
                packed[j + 4] & 15 | packed[j - 4] >> 6 << 4,
                packed[j + 4] >> 4 | packed[j] >> 6 << 4,
            )
        };
        out.scales[j] = d * f32::from(scale);
        out.minima[j] = -(d_min * f32::from(minimum));
    }
}

fn q4_k(block: &[u8; 144], out: &mut UnpackedBlock) {
    six_bit_scales(block, out);
    for (j, codes) in out.codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        bit_field(&block[16 + j / 2 * 32..][..32], j % 2 * 4, 4, codes);
    }
}

fn q5_k(block: &[u8; 176], out: &mut UnpackedBlock) {
    six_bit_scales(block, out);
    for (j, codes) in out.codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        bit_field(&block[48 + j / 2 * 32..][..32], j % 2 * 4, 4, codes);
        for (code, fifth) in codes.iter_mut().zip(&block[16..48]) {
            *code += (fifth >> j & 1) as i8 * 16;
        }
    }
}

fn q6_k(block: &[u8; 210], out: &mut UnpackedBlock) {
    let d = read_f16(block, 208);
    for r in 0..16 {
        out.scales[r] = d * f32::from(block[192 + r].cast_signed());
    }
    for (j, codes) in out.codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (half, quarter) = (j / 4, j % 4);
        let low = &block[64 * half + 32 * (quarter % 2)..][..32];
        bit_field(low, quarter / 2 * 4, 4, codes);
        for (code, high) in codes.iter_mut().zip(&block[128 + 32 * half..]) {
            *code += (high >> (2 * quarter) & 3) as i8 * 16 - 32;
        }
    }
}
