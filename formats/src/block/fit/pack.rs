//! Writer of the block layouts that the decoders document.

use super::BlockFit;
use crate::dtype::DType;

const LEN: usize = 256;

pub(super) fn pack(fit: &BlockFit, codes: &[u8], out: &mut [u8]) {
    let d = fit.super_scales.d.to_le_bytes();
    match fit.format.dtype {
        DType::Q8_0 => {
            out[..2].copy_from_slice(&d);
            for (byte, code) in out[2..].iter_mut().zip(codes) {
                *byte = code.wrapping_sub(127);
            }
        }
        DType::Q4_0 | DType::IQ4NL => {
            out[..2].copy_from_slice(&d);
            pack_nibbles(codes, &mut out[2..]);
        }
        DType::Q4_1 => {
            out[..2].copy_from_slice(&d);
            out[2..4].copy_from_slice(&minimum(fit));
            pack_nibbles(codes, &mut out[4..]);
        }
        DType::Q5_0 => {
            out[..2].copy_from_slice(&d);
            pack_five_bits(codes, &mut out[2..]);
        }
        DType::Q5_1 => {
            out[..2].copy_from_slice(&d);
            out[2..4].copy_from_slice(&minimum(fit));
            pack_five_bits(codes, &mut out[4..]);
        }
        DType::Q4K => {
            out[..16].copy_from_slice(&six_bit_head(fit));
            pack_nibbles_by_64(codes, &mut out[16..]);
        }
        DType::Q5K => {
            out[..16].copy_from_slice(&six_bit_head(fit));
            pack_high_bits(codes, 4, &mut out[16..48]);
            pack_nibbles_by_64(codes, &mut out[48..]);
        }
        DType::Q6K => q6_k(fit, codes, out),
        DType::Q3K => q3_k(fit, codes, out),
        DType::Q2K => {
            let heads = out.iter_mut().zip(fit.scales.iter().zip(&fit.minima));
            for (head, (&scale, &minimum)) in heads {
                *head = scale as u8 | (minimum << 4);
            }
            pack_two_bits(codes, &mut out[16..80]);
            out[80..82].copy_from_slice(&d);
            out[82..].copy_from_slice(&fit.super_scales.d_min.to_le_bytes());
        }
        // Only iq4_xs is left.
        _ => iq4_xs(fit, codes, out),
    }
}

/// Returns the stored minimum of q4_1 and q5_1: the negated offset.
fn minimum(fit: &BlockFit) -> [u8; 2] {
    (-fit.super_scales.d_min).to_le_bytes()
}

/// Packs code `i` of `2 n` into the low half of byte `i` and code `i + n` into the high half.
fn pack_nibbles(codes: &[u8], out: &mut [u8]) {
    let (low, high) = codes.split_at(out.len());
    for ((pair, low), high) in out.iter_mut().zip(low).zip(high) {
        *pair = (low & 15) | (high << 4);
    }
}

fn pack_nibbles_by_64(codes: &[u8], out: &mut [u8]) {
    for (codes, out) in codes.chunks_exact(64).zip(out.chunks_exact_mut(32)) {
        pack_nibbles(codes, out);
    }
}

/// Packs the fifth bits of 32 codes, then their low four bits.
fn pack_five_bits(codes: &[u8], out: &mut [u8]) {
    for (byte, codes) in out.iter_mut().zip(codes.chunks_exact(8)) {
        *byte = codes
            .iter()
            .rev()
            .fold(0, |bits, code| (bits << 1) | (code >> 4));
    }
    pack_nibbles(codes, &mut out[4..]);
}

/// Stores bit `place` of code `i` of the `s`-th 32 as bit `s` of byte `i`.
fn pack_high_bits(codes: &[u8], place: u32, out: &mut [u8]) {
    out.fill(0);
    for (bit, codes) in codes.chunks_exact(32).enumerate() {
        for (byte, code) in out.iter_mut().zip(codes) {
            *byte |= (code >> place & 1) << bit;
        }
    }
}

/// Packs the low two bits of codes: in each half of the block four runs of 32 are bits 0, 2, 4 and
/// 6 of 32 bytes.
fn pack_two_bits(codes: &[u8], out: &mut [u8]) {
    for (codes, out) in codes.chunks_exact(LEN / 2).zip(out.chunks_exact_mut(32)) {
        for (i, byte) in out.iter_mut().enumerate() {
            let bits = |run: usize| (codes[32 * run + i] & 3) << (2 * run);
            *byte = bits(0) | bits(1) | bits(2) | bits(3);
        }
    }
}

/// Returns the first 16 bytes of q4_k and q5_k, see `scales_and_minima`.
fn six_bit_head(fit: &BlockFit) -> [u8; 16] {
    let (scales, minima) = (fit.scales.map(|scale| scale as u8), fit.minima);
    let mut head = [0; 16];
    head[..2].copy_from_slice(&fit.super_scales.d.to_le_bytes());
    head[2..4].copy_from_slice(&fit.super_scales.d_min.to_le_bytes());
    for i in 0..4 {
        head[4 + i] = scales[i] | ((scales[4 + i] >> 4) << 6);
        head[8 + i] = minima[i] | ((minima[4 + i] >> 4) << 6);
        head[12 + i] = (scales[4 + i] & 15) | ((minima[4 + i] & 15) << 4);
    }
    head
}

fn q3_k(fit: &BlockFit, codes: &[u8], out: &mut [u8]) {
    pack_high_bits(codes, 2, &mut out[..32]);
    pack_two_bits(codes, &mut out[32..96]);
    let scales = fit.scales.map(|scale| (scale + 32) as u8);
    for i in 0..8 {
        out[96 + i] = (scales[i] & 15) | (scales[8 + i] << 4);
    }
    for i in 0..4 {
        let bits = |part: usize| (scales[4 * part + i] >> 4) << (2 * part);
        out[104 + i] = bits(0) | bits(1) | bits(2) | bits(3);
    }
    out[108..].copy_from_slice(&fit.super_scales.d.to_le_bytes());
}

fn q6_k(fit: &BlockFit, codes: &[u8], out: &mut [u8]) {
    let (low, rest) = out.split_at_mut(LEN / 2);
    let (high, rest) = rest.split_at_mut(LEN / 4);
    let halves = low.chunks_exact_mut(64).zip(high.chunks_exact_mut(32));
    for (codes, (low, high)) in codes.chunks_exact(LEN / 2).zip(halves) {
        for (i, low) in low.iter_mut().enumerate() {
            *low = (codes[i] & 15) | (codes[64 + i] << 4);
        }
        for (i, high) in high.iter_mut().enumerate() {
            let bits = |run: usize| (codes[32 * run + i] >> 4) << (2 * run);
            *high = bits(0) | bits(1) | bits(2) | bits(3);
        }
    }
    for (byte, scale) in rest.iter_mut().zip(fit.scales) {
        *byte = scale as u8;
    }
    rest[16..].copy_from_slice(&fit.super_scales.d.to_le_bytes());
}

fn iq4_xs(fit: &BlockFit, codes: &[u8], out: &mut [u8]) {
    let scales = fit.scales.map(|scale| (scale + 32) as u8);
    out[..2].copy_from_slice(&fit.super_scales.d.to_le_bytes());
    let high = (0..8).fold(0, |bits, run| {
        bits | u16::from(scales[run] >> 4) << (2 * run)
    });
    out[2..4].copy_from_slice(&high.to_le_bytes());
    for i in 0..4 {
        out[4 + i] = (scales[2 * i] & 15) | (scales[2 * i + 1] << 4);
    }
    for (codes, out) in codes.chunks_exact(32).zip(out[8..].chunks_exact_mut(16)) {
        pack_nibbles(codes, out);
    }
}
