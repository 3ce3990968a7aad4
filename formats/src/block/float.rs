//! f32, f16 and bf16.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::wire;

/// Numbers per call of `half`, which selects the processor's conversion on each call.
const CONVERSION_CHUNK: usize = 64;

/// Converts an f16 exactly. Branch-free, so that loops vectorise.
#[inline(always)]
pub(super) fn f16_to_f32(bytes: [u8; 2]) -> f32 {
    let bits = u32::from(u16::from_le_bytes(bytes));
    let sign = (bits & 0x8000) << 16;
    let magnitude = (bits & 0x7fff) << 13;
    // Moves the exponent from bias 15 to bias 127.
    let normal = magnitude + ((127 - 15) << 23);
    // A subnormal is a multiple of 2^-24: added to 2^-14, which is then subtracted.
    let least_normal: f32 = f32::from_bits((127 - 14) << 23);
    let subnormal = f32::from_bits(magnitude + ((127 - 14) << 23)) - least_normal;
    let finite = if magnitude < 1 << 23 {
        subnormal.to_bits()
    } else {
        normal
    };
    let unsigned = if magnitude >= 31 << 23 {
        magnitude | 0x7f80_0000
    } else {
        finite
    };
    f32::from_bits(sign | unsigned)
}

pub(super) fn decode_f32(bytes: &[u8], out: &mut [f32]) {
    let (bytes, _) = bytes.as_chunks::<4>();
    for (value, bytes) in out.iter_mut().zip(bytes) {
        *value = f32::from_le_bytes(*bytes);
    }
}

pub(super) fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    let mut halves = [f16::ZERO; CONVERSION_CHUNK];
    for (bytes, out) in bytes
        .chunks(2 * CONVERSION_CHUNK)
        .zip(out.chunks_mut(CONVERSION_CHUNK))
    {
        let halves = &mut halves[..out.len()];
        let (pairs, _) = bytes.as_chunks::<2>();
        for (half, pair) in halves.iter_mut().zip(pairs) {
            *half = f16::from_le_bytes(*pair);
        }
        halves.convert_to_f32_slice(out);
    }
}

pub(super) fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
    let (pairs, _) = bytes.as_chunks::<2>();
    for (value, pair) in out.iter_mut().zip(pairs) {
        *value = f32::from_bits(u32::from(u16::from_le_bytes(*pair)) << 16);
    }
}

pub(super) fn encode_f32(values: &[f32], out: &mut [u8]) {
    let (out, _) = out.as_chunks_mut::<4>();
    for (bytes, value) in out.iter_mut().zip(values) {
        *bytes = value.to_le_bytes();
    }
}

pub(super) fn encode_f16(values: &[f32], out: &mut [u8]) {
    let mut halves = [f16::ZERO; CONVERSION_CHUNK];
    for (values, out) in values
        .chunks(CONVERSION_CHUNK)
        .zip(out.chunks_mut(2 * CONVERSION_CHUNK))
    {
        let halves = &mut halves[..values.len()];
        halves.convert_from_f32_slice(values);
        let (pairs, _) = out.as_chunks_mut::<2>();
        for (pair, half) in pairs.iter_mut().zip(halves.iter()) {
            *pair = half.to_le_bytes();
        }
    }
}

pub(super) fn encode_bf16(values: &[f32], out: &mut [u8]) {
    let (pairs, _) = out.as_chunks_mut::<2>();
    for (pair, value) in pairs.iter_mut().zip(values) {
        *pair = bf16::from_f32(*value).to_le_bytes();
    }
}

#[inline(always)]
pub(super) fn scale<const N: usize>(block: &[u8; N], at: usize) -> f32 {
    f16_to_f32(wire::subarray(block, at))
}

/// Magnitude from which numbers round to an infinite f16.
pub(super) const F16_LIMIT: f32 = 65520.0;

/// Rounds a scale to the nearest f16; subnormals away from zero, because too small a scale clips.
pub(super) fn f16_scale(scale: f32) -> f16 {
    let nearest = f16::from_f32(scale);
    let magnitude = nearest.to_f32().abs();
    if magnitude < f16::MIN_POSITIVE.to_f32() && magnitude < scale.abs() {
        return f16::from_bits(nearest.to_bits() + 1);
    }
    nearest
}

#[cfg(test)]
mod tests;
