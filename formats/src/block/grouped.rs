//! Formats whose codes are indices into codebooks of groups: iq1, iq2 and iq3.
//!
//! An index stands for the magnitudes of eight or four numbers; signs are stored separately. iq1
//! has groups of -1, 0 and 1 instead, shifted by an eighth up or down.

use super::float::{f16_to_f32, scale};
use super::grids;
use crate::wire;

const LEN: usize = 256;

#[inline(always)]
fn write_signed(step: f32, magnitudes: [i8; 8], signs: u8, out: &mut [f32; 8]) {
    for (i, (value, magnitude)) in out.iter_mut().zip(magnitudes).enumerate() {
        let negative = signs & (1 << i) != 0;
        *value = step * f32::from(if negative { -magnitude } else { magnitude });
    }
}

#[inline(always)]
fn concat_groups(first: [i8; 4], second: [i8; 4]) -> [i8; 8] {
    let mut both = [0; 8];
    both[..4].copy_from_slice(&first);
    both[4..].copy_from_slice(&second);
    both
}

/// Returns the 4-bit scale of 16 or 32 numbers of the iq2 formats and of iq3_xxs, times `d` and
/// `unit`.
#[inline(always)]
fn half_step(d: f32, code: u8, unit: f32) -> f32 {
    d * (0.5 + f32::from(code)) * unit
}

/// Returns half `which % 2` of byte `which / 2` of the bytes from `at` on.
#[inline(always)]
fn nibble<const N: usize>(block: &[u8; N], at: usize, which: usize) -> u8 {
    (block[at + which / 2] >> (4 * (which % 2))) & 15
}

/// Returns the signs of eight numbers from bits `7 i` to `7 i + 6` of `packed`.
#[inline(always)]
fn even_signs(packed: u32, i: usize) -> u8 {
    grids::SIGNS[((packed >> (7 * i)) & 127) as usize]
}

/// Layout: scale f16; for every 32 numbers four bytes of indices and a little-endian 32 of four
/// times seven sign bits with the scale in the high four.
#[inline(always)]
pub(super) fn decode_iq2_xxs(block: &[u8; 66], out: &mut [f32; LEN]) {
    let d = scale(block, 0);
    let (groups, _) = out.as_chunks_mut::<8>();
    for (sub, groups) in groups.chunks_exact_mut(4).enumerate() {
        let indices: [u8; 4] = wire::subarray(block, 2 + 8 * sub);
        let packed = u32::from_le_bytes(wire::subarray(block, 6 + 8 * sub));
        let step = half_step(d, (packed >> 28) as u8, 0.25);
        for (i, (out, index)) in groups.iter_mut().zip(indices).enumerate() {
            let magnitudes = grids::IQ2_XXS[usize::from(index)];
            write_signed(step, magnitudes, even_signs(packed, i), out);
        }
    }
}

/// Layout: scale f16; for every 8 numbers a little-endian 16 of nine bits of index and seven of
/// signs; 8 bytes with the scales of 16 numbers in each half.
#[inline(always)]
pub(super) fn decode_iq2_xs(block: &[u8; 74], out: &mut [f32; LEN]) {
    let d = scale(block, 0);
    let (groups, _) = out.as_chunks_mut::<8>();
    for (sub, groups) in groups.chunks_exact_mut(2).enumerate() {
        let step = half_step(d, nibble(block, 66, sub), 0.25);
        for (i, out) in groups.iter_mut().enumerate() {
            let packed = u16::from_le_bytes(wire::subarray(block, 2 + 4 * sub + 2 * i));
            let magnitudes = grids::IQ2_XS[usize::from(packed & 511)];
            write_signed(step, magnitudes, even_signs((packed >> 9).into(), 0), out);
        }
    }
}

/// Layout: scale f16; 32 bytes of low index bits; 32 bytes of signs; 8 bytes of high index bits,
/// two for each of four groups; 8 bytes with the scales of 16 numbers in each half.
#[inline(always)]
pub(super) fn decode_iq2_s(block: &[u8; 82], out: &mut [f32; LEN]) {
    let d = scale(block, 0);
    let (groups, _) = out.as_chunks_mut::<8>();
    for (sub, groups) in groups.chunks_exact_mut(2).enumerate() {
        let step = half_step(d, nibble(block, 74, sub), 0.25);
        let high = block[66 + sub / 2] >> (4 * (sub % 2));
        for (i, out) in groups.iter_mut().enumerate() {
            let group = 2 * sub + i;
            let high = usize::from((high >> (2 * i)) & 3) << 8;
            let magnitudes = grids::IQ2_S[usize::from(block[2 + group]) | high];
            write_signed(step, magnitudes, block[34 + group], out);
        }
    }
}

/// Layout: scale f16; 64 bytes of indices; for every 32 numbers a little-endian 32 as in iq2_xxs.
#[inline(always)]
pub(super) fn decode_iq3_xxs(block: &[u8; 98], out: &mut [f32; LEN]) {
    let d = scale(block, 0);
    for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let packed = u32::from_le_bytes(wire::subarray(block, 66 + 4 * (group / 4)));
        let step = half_step(d, (packed >> 28) as u8, 0.5);
        let four = |i: usize| grids::IQ3_XXS[usize::from(block[2 + 2 * group + i])];
        let magnitudes = concat_groups(four(0), four(1));
        write_signed(step, magnitudes, even_signs(packed, group % 4), out);
    }
}

/// Layout: scale f16; 64 bytes of low index bits; 8 bytes with the ninth bit of each; 32 bytes of
/// signs; 4 bytes with the scales of 32 numbers in each half.
#[inline(always)]
pub(super) fn decode_iq3_s(block: &[u8; 110], out: &mut [f32; LEN]) {
    let d = scale(block, 0);
    for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let step = d * f32::from(1 + 2 * nibble(block, 106, group / 4));
        let ninth = block[66 + group / 4] >> (2 * (group % 4));
        let four = |i: usize| {
            let high = usize::from((ninth >> i) & 1) << 8;
            grids::IQ3_S[usize::from(block[2 + 2 * group + i]) | high]
        };
        write_signed(
            step,
            concat_groups(four(0), four(1)),
            block[74 + group],
            out,
        );
    }
}

/// Writes `step` times the group, shifted by an eighth down or up.
#[inline(always)]
fn write_shifted(step: f32, group: [i8; 8], down: bool, out: &mut [f32; 8]) {
    let delta = if down { -0.125 } else { 0.125 };
    for (value, ternary) in out.iter_mut().zip(group) {
        *value = step * (f32::from(ternary) + delta);
    }
}

/// Layout: scale f16; 32 bytes of low index bits; for every 32 numbers a little-endian 16 of four
/// times three high index bits, three bits of scale and, highest, the direction.
#[inline(always)]
pub(super) fn decode_iq1_s(block: &[u8; 50], out: &mut [f32; LEN]) {
    let d = scale(block, 0);
    for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let packed = u16::from_le_bytes(wire::subarray(block, 34 + 2 * (group / 4)));
        let high = usize::from((packed >> (3 * (group % 4))) & 7);
        let index = usize::from(block[2 + group]) | (high << 8);
        let step = d * f32::from(2 * ((packed >> 12) & 7) + 1);
        write_shifted(step, grids::IQ1_S[index], packed >> 15 != 0, out);
    }
}

/// Layout: 32 bytes of low index bits; 16 bytes with, for a group in each half, three high index
/// bits and the direction; four little-endian 16 of four times three bits of scale, for 16 numbers
/// each, and a quarter of the f16 scale in the high four bits.
#[inline(always)]
pub(super) fn decode_iq1_m(block: &[u8; 56], out: &mut [f32; LEN]) {
    let mut scales = [0; 4];
    for (i, scales) in scales.iter_mut().enumerate() {
        *scales = u16::from_le_bytes(wire::subarray(block, 48 + 2 * i));
    }
    let quarter = |i: usize| scales[i] >> 12 << (4 * i);
    let d = f16_to_f32((quarter(0) | quarter(1) | quarter(2) | quarter(3)).to_le_bytes());
    for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let high = nibble(block, 32, group);
        let index = usize::from(block[group]) | (usize::from(high & 7) << 8);
        let code = (scales[group / 8] >> (3 * (group / 2 % 4))) & 7;
        write_shifted(
            d * f32::from(2 * code + 1),
            grids::IQ1_S[index],
            high & 8 != 0,
            out,
        );
    }
}
