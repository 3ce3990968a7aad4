//! Rows of quantised weights as codes of one byte with scales and minima apart.

use super::super::blocks::{part, six_bit_scales};

/// Numbers of a [`Row`].
pub(super) const STRIP: usize = 256;

/// A strip of one row: a number is `scale · (code - CENTRE) - minimum`.
///
/// The scale of half `h` of the 32 numbers of block `b` is number `8 h + b`; a format with one
/// scale per block has no second half. The minima lie as the scales do.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Row {
    pub codes: [u8; STRIP],
    pub scales: [f32; 16],
    pub minima: [f32; 16],
}

impl Row {
    pub const ZERO: Row = Row {
        codes: [0; STRIP],
        scales: [0.0; 16],
        minima: [0.0; 16],
    };
}

/// A format of quantised weights.
pub(super) trait Format {
    /// Numbers that share their scales' bytes, 32 or 256.
    const LEN: usize;
    /// Their bytes.
    const BYTES: usize;
    /// Scales per 32 numbers, 1 or 2.
    const SCALES: usize = 1;
    /// Whether minima are taken off.
    const MINIMA: bool = false;
    /// The code of zero. With 0 and without minima, codes are signed.
    const CENTRE: u8 = 0;

    /// Unpacks up to a strip of whole blocks.
    fn unpack(blocks: &[u8], row: &mut Row);
}

/// Widens an f16: exact, in operations that vectorise.
#[inline(always)]
fn half(bytes: [u8; 2]) -> f32 {
    let bits = u32::from(u16::from_le_bytes(bytes));
    let magnitude = bits & 0x7FFF;
    let shifted = magnitude << 13;
    let subnormal = (magnitude as f32 * f32::from_bits((127 - 24) << 23)).to_bits();
    let finite = if magnitude < 0x400 { subnormal } else { shifted + ((127 - 15) << 23) };
    let widened = if magnitude < 0x7C00 { finite } else { shifted | 0xFF << 23 };
    f32::from_bits(widened | (bits & 0x8000) << 16)
}

pub(super) struct Q8_0;

impl Format for Q8_0 {
    const LEN: usize = 32;
    const BYTES: usize = 34;

    #[inline(always)]
    fn unpack(blocks: &[u8], row: &mut Row) {
        let codes = row.codes.as_chunks_mut::<32>().0;
        let mut halves = [[0; 2]; 8];
        for ((block, codes), half) in blocks.as_chunks::<34>().0.iter().zip(codes).zip(&mut halves) {
            *half = *part(block, 0);
            *codes = *part(block, 2);
        }
        for (scale, bytes) in row.scales.iter_mut().zip(halves) {
            *scale = half(bytes);
        }
    }
}

pub(super) struct Q4_0;

impl Format for Q4_0 {
    const LEN: usize = 32;
    const BYTES: usize = 18;
    const CENTRE: u8 = 8;

    #[inline(always)]
    fn unpack(blocks: &[u8], row: &mut Row) {
        let codes = row.codes.as_chunks_mut::<32>().0;
        let mut halves = [[0; 2]; 8];
        for ((block, codes), half) in blocks.as_chunks::<18>().0.iter().zip(codes).zip(&mut halves) {
            *half = *part(block, 0);
            nibbles(part(block, 2), codes);
        }
        for (scale, bytes) in row.scales.iter_mut().zip(halves) {
            *scale = half(bytes);
        }
    }
}

/// The low halves of all bytes and then the high halves.
#[inline(always)]
fn nibbles(bytes: &[u8; 16], codes: &mut [u8; 32]) {
    for (i, byte) in bytes.iter().enumerate() {
        codes[i] = byte & 15;
        codes[16 + i] = byte >> 4;
    }
}

/// The scales and minima of q4_k and q5_k.
#[inline(always)]
fn eight_scales_and_minima(block: &[u8], row: &mut Row) {
    let (d, dmin) = (half(*part(block, 0)), half(*part(block, 2)));
    let six_bits = six_bit_scales(part(block, 4)).to_le_bytes();
    for b in 0..8 {
        row.scales[b] = d * f32::from(six_bits[b]);
        row.minima[b] = dmin * f32::from(six_bits[8 + b]);
    }
}

pub(super) struct Q4K;

impl Format for Q4K {
    const LEN: usize = 256;
    const BYTES: usize = 144;
    const MINIMA: bool = true;

    #[inline(always)]
    fn unpack(blocks: &[u8], row: &mut Row) {
        let Some(block) = blocks.first_chunk::<144>() else {
            return;
        };
        eight_scales_and_minima(block, row);
        let pairs = block[16..].as_chunks::<32>().0;
        for (codes, pairs) in row.codes.as_chunks_mut::<64>().0.iter_mut().zip(pairs) {
            for (i, pair) in pairs.iter().enumerate() {
                codes[i] = pair & 15;
                codes[32 + i] = pair >> 4;
            }
        }
    }
}

pub(super) struct Q5K;

impl Format for Q5K {
    const LEN: usize = 256;
    const BYTES: usize = 176;
    const MINIMA: bool = true;

    #[inline(always)]
    fn unpack(blocks: &[u8], row: &mut Row) {
        let Some(block) = blocks.first_chunk::<176>() else {
            return;
        };
        eight_scales_and_minima(block, row);
        let fifth: &[u8; 32] = part(block, 16);
        let pairs = block[48..].as_chunks::<32>().0;
        let codes = row.codes.as_chunks_mut::<64>().0.iter_mut();
        for (j, (codes, pairs)) in codes.zip(pairs).enumerate() {
            for (i, (pair, fifth)) in pairs.iter().zip(fifth).enumerate() {
                codes[i] = pair & 15 | (fifth >> (2 * j) & 1) << 4;
                codes[32 + i] = pair >> 4 | (fifth >> (2 * j + 1) & 1) << 4;
            }
        }
    }
}

pub(super) struct Q6K;

impl Format for Q6K {
    const LEN: usize = 256;
    const BYTES: usize = 210;
    const SCALES: usize = 2;
    const CENTRE: u8 = 32;

    #[inline(always)]
    fn unpack(blocks: &[u8], row: &mut Row) {
        let Some(block) = blocks.first_chunk::<210>() else {
            return;
        };
        let d = half(*part(block, 208));
        let scales: &[u8; 16] = part(block, 192);
        for b in 0..8 {
            for h in 0..2 {
                row.scales[8 * h + b] = d * f32::from(scales[2 * b + h].cast_signed());
            }
        }
        for (part_of_two, codes) in row.codes.as_chunks_mut::<128>().0.iter_mut().enumerate() {
            let low: &[u8; 64] = part(block, 64 * part_of_two);
            let high: &[u8; 32] = part(block, 128 + 32 * part_of_two);
            for i in 0..32 {
                codes[i] = low[i] & 15 | (high[i] & 3) << 4;
                codes[32 + i] = low[32 + i] & 15 | (high[i] >> 2 & 3) << 4;
                codes[64 + i] = low[i] >> 4 | (high[i] >> 4 & 3) << 4;
                codes[96 + i] = low[32 + i] >> 4 | (high[i] >> 6) << 4;
            }
        }
    }
}
