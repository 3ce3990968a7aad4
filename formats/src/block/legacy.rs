//! The formats of one scale per 32 numbers, and of one scale and one minimum.

use half::f16;

use super::BlockError;
use super::float::scale;
use crate::dtype::DType;
use crate::wire;

/// Numbers in a block.
const LEN: usize = 32;

/// From this magnitude on the scale of a q8_0 block rounds to an infinite f16: 65520 · 127.
pub(super) const Q8_0_LIMIT: f32 = 65520.0 * 127.0;

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

/// The 32 five-bit codes of q5_0 and q5_1: bit `i` of the 4 bytes from `at` on is the fifth bit
/// of code `i`; the low four bits follow as in q4_0.
#[inline(always)]
fn five_bit_codes<const N: usize>(block: &[u8; N], at: usize) -> [u8; LEN] {
    let mut codes = [0; LEN];
    for (i, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        // Every bit of a byte goes to a byte of its own: a copy of the byte for each, all but the
        // one bit masked away, and a carry to the highest bit from any that is set.
        let copies = u64::from(block[at + i]) * 0x0101_0101_0101_0101;
        let spread = (copies & 0x8040_2010_0804_0201) + 0x7f7f_7f7f_7f7f_7f7f;
        let fifth = (spread >> 3) & 0x1010_1010_1010_1010;
        let pairs = u64::from_le_bytes(wire::sub(block, at + 4 + 8 * (i % 2)));
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

/// Layout: scale f16, sum of the numbers f16 (for dot products, not needed here), 32 signed codes.
#[inline(always)]
pub(super) fn decode_q8_1(block: &[u8; 36], out: &mut [f32; LEN]) {
    let d = scale(block, 0);
    for (value, &code) in out.iter_mut().zip(&block[4..]) {
        *value = f32::from(code as i8) * d;
    }
}

pub(super) fn encode_q8_0(values: &[f32], out: &mut [u8]) -> Result<(), BlockError> {
    let (values, _) = values.as_chunks::<LEN>();
    let (blocks, _) = out.as_chunks_mut::<34>();
    for (number, (values, block)) in values.iter().zip(blocks).enumerate() {
        // Magnitudes are in the order of their bits, infinity and NaN above all others.
        let magnitude = |value: &f32| value.abs().to_bits();
        let largest = values.iter().map(magnitude).fold(0, u32::max);
        if largest >= Q8_0_LIMIT.to_bits() {
            let refused = |value| magnitude(value) >= Q8_0_LIMIT.to_bits();
            let at = values.iter().position(refused).unwrap_or_default();
            return Err(BlockError::NoCode {
                dtype: DType::Q8_0,
                index: number * LEN + at,
                value: values[at],
            });
        }
        encode_q8_0_block(values, f32::from_bits(largest), block);
    }
    Ok(())
}

/// `largest` is the largest magnitude among `values`.
fn encode_q8_0_block(values: &[f32; LEN], largest: f32, block: &mut [u8; 34]) {
    let d = largest / 127.0;
    // A scale whose reciprocal is infinite is 0 as an f16: the codes do not matter then.
    let inverse = match 1.0 / d {
        inverse if inverse.is_finite() => inverse,
        _ => 0.0,
    };
    let (head, codes) = block.split_at_mut(2);
    head.copy_from_slice(&f16::from_f32(d).to_le_bytes());
    for (code, value) in codes.iter_mut().zip(values) {
        // Rounds half away from zero as `f32::round` does, in operations that vectorise. The
        // magnitude is 127 and a rounding error at most.
        let scaled = value * inverse;
        let whole = scaled.abs() as i32;
        let up = i32::from(scaled.abs() - whole as f32 >= 0.5);
        let magnitude = (whole + up) as i8;
        *code = if scaled < 0.0 { -magnitude } else { magnitude } as u8;
    }
}
