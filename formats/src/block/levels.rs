//! Formats whose codes are indices into a codebook of sixteen levels: iq4_nl, iq4_xs and mxfp4.

use super::float::scale;
use crate::wire;

/// Numbers in a block of iq4_nl and mxfp4, and numbers that share a scale in iq4_xs.
const LEN: usize = 32;

/// Levels of iq4_nl and iq4_xs, dense around zero.
pub(super) const IQ4: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
    89.0, 113.0,
];

/// Doubled E2M1 values: sign, two bits of exponent, one bit of mantissa. Code 8 is 0 and not -0, as
/// in ggml's table of integers.
const E2M1_DOUBLED: [f32; 16] = [
    0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0,
];

/// Writes `step` times the levels of 32 codes: byte `i` holds code `i` in its low half and code `i
/// + 16` in its high half.
#[inline(always)]
fn decode_32(codes: [u8; LEN / 2], step: f32, levels: &[f32; 16], out: &mut [f32; LEN]) {
    let values = levels.map(|level| step * level);
    let (low, high) = out.split_at_mut(LEN / 2);
    for ((low, high), pair) in low.iter_mut().zip(high).zip(codes) {
        *low = values[usize::from(pair & 15)];
        *high = values[usize::from(pair >> 4)];
    }
}

/// Layout: scale f16, 16 bytes of codes.
#[inline(always)]
pub(super) fn decode_iq4_nl(block: &[u8; 18], out: &mut [f32; LEN]) {
    decode_32(wire::subarray(block, 2), scale(block, 0), &IQ4, out);
}

/// Layout: scale f16, 2 bytes of high scale bits, 4 bytes of low scale bits, 128 bytes of codes,
/// 16 for every 32 numbers. Scale `i` has its low four bits in half `i % 2` of byte `i / 2` and
/// its high two bits at bit `2 i` of the little-endian 16; it is 32 above its value.
#[inline(always)]
pub(super) fn decode_iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = scale(block, 0);
    let high = u16::from_le_bytes(wire::subarray(block, 2));
    for (sub, out) in out.as_chunks_mut::<LEN>().0.iter_mut().enumerate() {
        let low = (block[4 + sub / 2] >> (4 * (sub % 2))) & 15;
        let high = (high >> (2 * sub)) as u8 & 3;
        let step = d * f32::from((low | (high << 4)) as i8 - 32);
        decode_32(wire::subarray(block, 8 + 16 * sub), step, &IQ4, out);
    }
}

/// Layout: exponent of the scale (E8M0: 127 above its value), 16 bytes of codes.
#[inline(always)]
pub(super) fn decode_mxfp4(block: &[u8; 17], out: &mut [f32; LEN]) {
    // Half the scale, because the levels are doubled: 2^(e - 128), subnormal for the least two.
    let bits = match u32::from(block[0]) {
        exponent @ 0..2 => 1 << (21 + exponent),
        exponent => (exponent - 1) << 23,
    };
    decode_32(
        wire::subarray(block, 1),
        f32::from_bits(bits),
        &E2M1_DOUBLED,
        out,
    );
}
