//! Formats of 32 numbers with one scale, or one scale and one minimum.

use super::float::scale;
use crate::wire;

const LEN: usize = 32;

/// Layout: scale f16, 32 signed codes.
#[inline(always)]
pub(super) fn decode_q8_0(block: &[u8; 34], out: &mut [f32; LEN]) {
    let d = scale(block, 0);
    for (value, &code) in out.iter_mut().zip(&block[2..]) {
        *value = f32::from(code as i8) * d;
    }
}

/// Layout: scale f16, 16 bytes; byte `i` holds code `i` in its low half and code `i + 16` in
/// its high half, each 8 above its value.
#[inline(always)]
pub(super) fn decode_q4_0(block: &[u8; 18], out: &mut [f32; LEN]) {
    let d = scale(block, 0);
    let (low, high) = out.split_at_mut(LEN / 2);
    for ((low, high), &pair) in low.iter_mut().zip(high).zip(&block[2..]) {
        *low = d * f32::from((pair & 15) as i8 - 8);
        *high = d * f32::from((pair >> 4) as i8 - 8);
    }
}

/// Layout: scale f16, minimum f16, 16 bytes of codes as in q4_0; a code is its value.
#[inline(always)]
pub(super) fn decode_q4_1(block: &[u8; 20], out: &mut [f32; LEN]) {
    let (d, minimum) = (scale(block, 0), scale(block, 2));
    let (low, high) = out.split_at_mut(LEN / 2);
    for ((low, high), &pair) in low.iter_mut().zip(high).zip(&block[4..]) {
        *low = d * f32::from(pair & 15) + minimum;
        *high = d * f32::from(pair >> 4) + minimum;
    }
}

/// Returns the 32 five-bit codes of q5_0 and q5_1: bit `i` of the 4 bytes from `at` on is the fifth
/// bit of code `i`; the low four bits follow as in q4_0.
#[inline(always)]
fn five_bit_codes<const N: usize>(block: &[u8; N], at: usize) -> [u8; LEN] {
    let mut codes = [0; LEN];
    for (i, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        // Spreads the bits of a byte over eight bytes: copy the byte, mask all but one bit, and
        // carry to the highest bit if it is set.
        let copies = u64::from(block[at + i]) * 0x0101_0101_0101_0101;
        let spread = (copies & 0x8040_2010_0804_0201) + 0x7f7f_7f7f_7f7f_7f7f;
        let fifth = (spread >> 3) & 0x1010_1010_1010_1010;
        let pairs = u64::from_le_bytes(wire::subarray(block, at + 4 + 8 * (i % 2)));
        let low = (pairs >> (4 * (i / 2))) & 0x0f0f_0f0f_0f0f_0f0f;
        *codes = (low | fifth).to_le_bytes();
    }
    codes
}

/// Layout: scale f16, 4 bytes of fifth bits, 16 bytes of codes; a code is 16 above its value.
#[inline(always)]
pub(super) fn decode_q5_0(block: &[u8; 22], out: &mut [f32; LEN]) {
    let d = scale(block, 0);
    for (value, code) in out.iter_mut().zip(five_bit_codes(block, 2)) {
        *value = d * f32::from(code as i8 - 16);
    }
}

/// Layout: scale f16, minimum f16, 4 bytes of fifth bits, 16 bytes of codes; a code is its value.
#[inline(always)]
pub(super) fn decode_q5_1(block: &[u8; 24], out: &mut [f32; LEN]) {
    let (d, minimum) = (scale(block, 0), scale(block, 2));
    for (value, code) in out.iter_mut().zip(five_bit_codes(block, 4)) {
        *value = d * f32::from(code) + minimum;
    }
}

/// Layout: scale f16, sum of the numbers f16 (for dot products, ignored here), 32 signed codes.
#[inline(always)]
pub(super) fn decode_q8_1(block: &[u8; 36], out: &mut [f32; LEN]) {
    let d = scale(block, 0);
    for (value, &code) in out.iter_mut().zip(&block[4..]) {
        *value = f32::from(code as i8) * d;
    }
}
