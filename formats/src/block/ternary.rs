//! Formats of the numbers -1, 0 and 1 with one scale: tq1_0 and tq2_0.

use super::float::scale;
use crate::wire;

const LEN: usize = 256;

/// Decodes digit `place` of `N` bytes of five base-3 digits each, the highest first. A byte is 256
/// times the fraction `0.digits`, rounded up. A wrapping product with `3^place` removes the earlier
/// digits; the next product carries the digit over the point.
#[inline(always)]
fn decode_digit<const N: usize>(bytes: [u8; N], place: usize, d: f32, out: &mut [f32]) {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    for (value, byte) in out.iter_mut().zip(bytes) {
        let digit = (u16::from(byte.wrapping_mul(POWERS[place])) * 3) >> 8;
        *value = d * f32::from(digit as i8 - 1);
    }
}

/// Layout: 32 bytes of numbers 0 to 159, 16 bytes of 160 to 239 and 4 bytes of 240 to 255 (four
/// digits each), scale f16. The first digits of all bytes of a part are its first numbers.
#[inline(always)]
pub(super) fn decode_tq1_0(block: &[u8; 54], out: &mut [f32; LEN]) {
    let d = scale(block, 52);
    let (first, rest) = out.split_at_mut(160);
    for (place, out) in first.chunks_exact_mut(32).enumerate() {
        decode_digit::<32>(wire::subarray(block, 0), place, d, out);
    }
    let (second, third) = rest.split_at_mut(80);
    for (place, out) in second.chunks_exact_mut(16).enumerate() {
        decode_digit::<16>(wire::subarray(block, 32), place, d, out);
    }
    for (place, out) in third.chunks_exact_mut(4).enumerate() {
        decode_digit::<4>(wire::subarray(block, 48), place, d, out);
    }
}

/// Layout: 64 bytes of codes, scale f16. Each half of the block has 32 bytes, whose bits 0, 2, 4
/// and 6 are four runs of 32 numbers; codes are 1 above their values.
#[inline(always)]
pub(super) fn decode_tq2_0(block: &[u8; 66], out: &mut [f32; LEN]) {
    let d = scale(block, 64);
    for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let codes: [u8; 32] = wire::subarray(block, 32 * (run / 4));
        for (value, code) in out.iter_mut().zip(codes) {
            *value = d * f32::from(((code >> (2 * (run % 4))) & 3) as i8 - 1);
        }
    }
}
