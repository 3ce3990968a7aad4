//! Formats of 256 numbers with two levels of scales: q2_k to q6_k, and q8_k.

use super::float::scale;
use crate::wire;

const LEN: usize = 256;

/// Numbers that share a scale and a minimum in q4_k and q5_k.
const SUB_BLOCK_32: usize = 32;

/// Numbers that share a scale in q2_k, q3_k and q6_k.
const SUB_BLOCK_16: usize = 16;

/// Returns the position of the low two bits of the `sub`-th 16 numbers of q2_k and q3_k: the first
/// of 16 bytes, counted from the first byte of codes, and the shift. Each half of the block has 32
/// bytes, whose bits 0, 2, 4 and 6 are four runs of 32 numbers.
#[inline(always)]
fn two_bit_position(sub: usize) -> (usize, usize) {
    (
        SUB_BLOCK_32 * (sub / 8) + SUB_BLOCK_16 * (sub % 2),
        2 * (sub / 2 % 4),
    )
}

/// Layout: 16 bytes with the scale of 16 numbers in the low half and their minimum in the high
/// half, 64 bytes of codes, scale of the scales f16, scale of the minima f16.
#[inline(always)]
pub(super) fn decode_q2_k(block: &[u8; 84], out: &mut [f32; LEN]) {
    let (d, dmin) = (scale(block, 80), scale(block, 82));
    for (sub, out) in out.as_chunks_mut::<SUB_BLOCK_16>().0.iter_mut().enumerate() {
        let (step, offset) = (
            d * f32::from(block[sub] & 15),
            dmin * f32::from(block[sub] >> 4),
        );
        let (at, shift) = two_bit_position(sub);
        let codes: [u8; SUB_BLOCK_16] = wire::subarray(block, 16 + at);
        for (value, code) in out.iter_mut().zip(codes) {
            *value = step * f32::from((code >> shift) & 3) - offset;
        }
    }
}

/// Layout: 32 bytes of third bits (bit `s` of byte `i` belongs to number `i` of the `s`-th 32), 64
/// bytes of low two bits, 12 bytes of scales, scale f16. Scale `4 a + b` has its low four bits in
/// the halves of bytes 0 to 7 (the low halves first) and its high two bits at bit `2 a` of byte
/// `8 + b`, and is 32 above its value. Codes are 4 above their values.
#[inline(always)]
pub(super) fn decode_q3_k(block: &[u8; 110], out: &mut [f32; LEN]) {
    let d = scale(block, 108);
    let packed: [u8; 12] = wire::subarray(block, 96);
    for (sub, out) in out.as_chunks_mut::<SUB_BLOCK_16>().0.iter_mut().enumerate() {
        let low = (packed[sub % 8] >> (4 * (sub / 8))) & 15;
        let high = (packed[8 + sub % 4] >> (2 * (sub / 4))) & 3;
        let step = d * f32::from((low | (high << 4)) as i8 - 32);
        let (at, shift) = two_bit_position(sub);
        let low: [u8; SUB_BLOCK_16] = wire::subarray(block, 32 + at);
        let high: [u8; SUB_BLOCK_16] = wire::subarray(block, SUB_BLOCK_16 * (sub % 2));
        for ((value, low), high) in out.iter_mut().zip(low).zip(high) {
            let code = ((low >> shift) & 3) | (((high >> (sub / 2)) & 1) << 2);
            *value = step * f32::from(code as i8 - 4);
        }
    }
}

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
    let (scales, minima) = scales_and_minima(wire::subarray(block, 4));
    for pair in 0..4 {
        let codes: [u8; SUB_BLOCK_32] = wire::subarray(block, 16 + SUB_BLOCK_32 * pair);
        for half in 0..2 {
            let sub = 2 * pair + half;
            let (step, offset) = (d * f32::from(scales[sub]), dmin * f32::from(minima[sub]));
            let out = &mut out[SUB_BLOCK_32 * sub..SUB_BLOCK_32 * (sub + 1)];
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
    let (scales, minima) = scales_and_minima(wire::subarray(block, 4));
    let fifth: [u8; SUB_BLOCK_32] = wire::subarray(block, 16);
    for pair in 0..4 {
        let codes: [u8; SUB_BLOCK_32] = wire::subarray(block, 48 + SUB_BLOCK_32 * pair);
        for half in 0..2 {
            let sub = 2 * pair + half;
            let (step, offset) = (d * f32::from(scales[sub]), dmin * f32::from(minima[sub]));
            let out = &mut out[SUB_BLOCK_32 * sub..SUB_BLOCK_32 * (sub + 1)];
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
    let d = scale(block, 208);
    let scales: [u8; LEN / SUB_BLOCK_16] = wire::subarray(block, 192);
    for (sub, out) in out.as_chunks_mut::<SUB_BLOCK_16>().0.iter_mut().enumerate() {
        let (half, quarter, part) = (sub / 8, sub / 2 % 4, sub % 2);
        let low: [u8; SUB_BLOCK_16] = wire::subarray(
            block,
            64 * half + SUB_BLOCK_32 * (quarter % 2) + SUB_BLOCK_16 * part,
        );
        let high: [u8; SUB_BLOCK_16] =
            wire::subarray(block, 128 + SUB_BLOCK_32 * half + SUB_BLOCK_16 * part);
        let step = d * f32::from(scales[sub] as i8);
        for ((value, low), high) in out.iter_mut().zip(low).zip(high) {
            let low = (low >> (4 * (quarter / 2))) & 15;
            let high = (high >> (2 * quarter)) & 3;
            *value = step * f32::from((low | (high << 4)) as i8 - 32);
        }
    }
}

/// Layout: scale f32, 256 signed codes, 16 sums of 16 codes each (for dot products, ignored here).
#[inline(always)]
pub(super) fn decode_q8_k(block: &[u8; 292], out: &mut [f32; LEN]) {
    let d = f32::from_le_bytes(wire::subarray(block, 0));
    for (value, &code) in out.iter_mut().zip(&block[4..]) {
        *value = d * f32::from(code as i8);
    }
}
