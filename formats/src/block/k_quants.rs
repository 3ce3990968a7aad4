//! The formats of 256 numbers with two levels of scales: q4_k, q5_k and q6_k.

use super::float::scale;
use crate::wire;

/// Numbers in a block.
const LEN: usize = 256;

/// Numbers that share a scale and a minimum in q4_k and q5_k.
const SUB: usize = 32;

/// Unpacks the eight 6-bit scales and eight 6-bit minima of q4_k and q5_k.
///
/// Bytes 0 to 3 hold scales 0 to 3 and bytes 4 to 7 minima 0 to 3 in their low six bits. The low
/// four bits of scale `4 + i` and minimum `4 + i` are the halves of byte `8 + i`; their high two
/// bits are the high two bits of bytes `i` and `4 + i`.
#[inline(always)]
fn scales_and_minima(packed: [u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut minima) = ([0; 8], [0; 8]);
    for i in 0..4 {
        scales[i] = packed[i] & 63;
        minima[i] = packed[4 + i] & 63;
        scales[4 + i] = (packed[8 + i] & 15) | ((packed[i] >> 6) << 4);
        minima[4 + i] = (packed[8 + i] >> 4) | ((packed[4 + i] >> 6) << 4);
    }
    (scales, minima)
}

/// Layout: scale of the scales f16, scale of the minima f16, 12 bytes of scales and minima,
/// 128 bytes of codes: each 32 bytes hold 32 codes in their low halves and the next 32 in their
/// high halves.
#[inline(always)]
pub(super) fn decode_q4_k(block: &[u8; 144], out: &mut [f32; LEN]) {
    let (d, dmin) = (scale(block, 0), scale(block, 2));
    let (scales, minima) = scales_and_minima(wire::sub(block, 4));
    for pair in 0..4 {
        let codes: [u8; SUB] = wire::sub(block, 16 + SUB * pair);
        for half in 0..2 {
            let sub = 2 * pair + half;
            let (step, offset) = (d * f32::from(scales[sub]), dmin * f32::from(minima[sub]));
            let out = &mut out[SUB * sub..SUB * (sub + 1)];
            for (value, code) in out.iter_mut().zip(codes) {
                *value = step * f32::from((code >> (4 * half)) & 15) - offset;
            }
        }
    }
}

/// Layout: as q4_k, with 32 bytes between scales and codes; bit `s` of byte `i` is the fifth bit
/// of code `i` of the `s`-th 32 numbers.
#[inline(always)]
pub(super) fn decode_q5_k(block: &[u8; 176], out: &mut [f32; LEN]) {
    let (d, dmin) = (scale(block, 0), scale(block, 2));
    let (scales, minima) = scales_and_minima(wire::sub(block, 4));
    let fifth: [u8; SUB] = wire::sub(block, 16);
    for pair in 0..4 {
        let codes: [u8; SUB] = wire::sub(block, 48 + SUB * pair);
        for half in 0..2 {
            let sub = 2 * pair + half;
            let (step, offset) = (d * f32::from(scales[sub]), dmin * f32::from(minima[sub]));
            let out = &mut out[SUB * sub..SUB * (sub + 1)];
            for ((value, code), fifth) in out.iter_mut().zip(codes).zip(fifth) {
                let code = ((code >> (4 * half)) & 15) | (((fifth >> sub) & 1) << 4);
                *value = step * f32::from(code) - offset;
            }
        }
    }
}

/// Layout: 128 bytes of low halves, 64 bytes of high two bits, 16 signed scales of 16 numbers
/// each, scale f16. In each half of the block 32 numbers at a time take their low bits from
/// bytes 0 to 31 (low halves), 32 to 63 (low), 0 to 31 (high halves), 32 to 63 (high), and their
/// high bits from bits 0, 2, 4 and 6 of the same 32 bytes. Codes are 32 above their values.
#[inline(always)]
pub(super) fn decode_q6_k(block: &[u8; 210], out: &mut [f32; LEN]) {
    const STEP: usize = 16;
    let d = scale(block, 208);
    let scales: [u8; LEN / STEP] = wire::sub(block, 192);
    for (sub, out) in out.as_chunks_mut::<STEP>().0.iter_mut().enumerate() {
        // Two groups of 16 make one of the 32 of the layout.
        let (half, quarter, part) = (sub / 8, sub / 2 % 4, sub % 2);
        let low: [u8; STEP] = wire::sub(block, 64 * half + SUB * (quarter % 2) + STEP * part);
        let high: [u8; STEP] = wire::sub(block, 128 + SUB * half + STEP * part);
        let step = d * f32::from(scales[sub] as i8);
        for ((value, low), high) in out.iter_mut().zip(low).zip(high) {
            let low = (low >> (4 * (quarter / 2))) & 15;
            let high = (high >> (2 * quarter)) & 3;
            *value = step * f32::from((low | (high << 4)) as i8 - 32);
        }
    }
}
