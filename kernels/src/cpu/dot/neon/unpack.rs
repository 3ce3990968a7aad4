//! Unpacking of blocks to centred codes and factors.
//!
//! Every function takes a super-block of a row and adds the contribution of minima to the sums. If
//! sixteen codes have a separate factor, it returns those too, as integers.

use std::arch::aarch64::*;

use super::{
    F32x8, PreparedSuperBlock, RunUnpacked, Unpacked, broadcast_f16, i32_to_f32, load_64, load_128,
    load_f16_scales, load_integers, mul, to_i32_array, widen_u8,
};
use crate::cpu::activations::BLOCKS;
use crate::cpu::blocks::{compiled_for, six_bit_scales, subarray};
use crate::cpu::dot::IQ4_CODEBOOK;

const LANE_INDICES: [i32; 4] = [0, 1, 2, 3];

compiled_for! {
    "neon";

    fn nibbles(bytes: &[u8; 16]) -> [uint8x16_t; 2] {
        let bytes = load_128(bytes);
        [vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8::<4>(bytes)]
    }

    fn centred(codes: uint8x16_t, centre: i8) -> int8x16_t {
        vsubq_s8(vreinterpretq_s8_u8(codes), vdupq_n_s8(centre))
    }

    fn fifth_bits(bits: &[u8; 4]) -> [uint8x16_t; 2] {
        const BIT_OF_BYTE: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
        let [a, b, c, d] = *bits;
        let first = vcombine_u8(vdup_n_u8(a), vdup_n_u8(b));
        let second = vcombine_u8(vdup_n_u8(c), vdup_n_u8(d));
        let (bit_of_byte, fifth) = (load_128(&BIT_OF_BYTE), vdupq_n_u8(16));
        [vandq_u8(vtstq_u8(first, bit_of_byte), fifth), vandq_u8(vtstq_u8(second, bit_of_byte), fifth)]
    }

    fn look_up_iq4(indices: uint8x16_t) -> int8x16_t {
        // SAFETY: in bounds.
        vqtbl1q_s8(unsafe { vld1q_s8(IQ4_CODEBOOK.as_ptr()) }, indices)
    }

    /// Unpacks the codes of eight blocks whose first numbers are their scales, then their minima if
    /// any.
    pub(super) fn unpack_blocks<const BYTES: usize, const MINIMUM: bool>(
        super_block: &[u8],
        unpack: impl Fn(&[u8; BYTES]) -> [int8x16_t; 2],
        x: &PreparedSuperBlock<'_>,
        sums: &mut F32x8,
    ) -> Unpacked {
        let blocks = super_block.as_chunks::<BYTES>().0;
        if MINIMUM {
            add_minima(load_f16_scales(blocks, 2), x, sums);
        }
        let mut codes = [[vdupq_n_s8(0); 2]; BLOCKS];
        for b in 0..BLOCKS {
            codes[b] = unpack(&blocks[b]);
        }
        Unpacked { codes, factors: mul(load_f16_scales(blocks, 0), x.scales) }
    }

    pub(super) fn four_bits(bytes: &[u8; 16], centre: i8) -> [int8x16_t; 2] {
        let [low, high] = nibbles(bytes);
        [centred(low, centre), centred(high, centre)]
    }

    pub(super) fn five_bits(bytes: &[u8; 16], bits: &[u8; 4], centre: i8) -> [int8x16_t; 2] {
        let ([low, high], [fifth, next]) = (nibbles(bytes), fifth_bits(bits));
        [centred(vorrq_u8(low, fifth), centre), centred(vorrq_u8(high, next), centre)]
    }

    pub(super) fn iq4(bytes: &[u8; 16]) -> [int8x16_t; 2] {
        let [low, high] = nibbles(bytes);
        [look_up_iq4(low), look_up_iq4(high)]
    }

    pub(super) fn unpack_iq4_xs(b: &[u8; 136], x: &PreparedSuperBlock<'_>, _: &mut F32x8) -> Unpacked {
        let mut codes = [[vdupq_n_s8(0); 2]; BLOCKS];
        for (codes, bytes) in codes.iter_mut().zip(b[8..].as_chunks().0) {
            *codes = iq4(bytes);
        }
        let low = vdupq_n_u32(u32::from_le_bytes(*subarray(b, 4)));
        let high = vdupq_n_u32(u32::from(u16::from_le_bytes(*subarray(b, 2))));
        let mut scales = [vdupq_n_s32(0); 2];
        for (s, scales) in scales.iter_mut().enumerate() {
            // Moves the bits of block `4 s + k` to the lowest position.
            let nibble = vmulq_n_s32(load_integers(&LANE_INDICES), -4);
            let low = vshlq_u32(low, vsubq_s32(nibble, vdupq_n_s32(16 * s as i32)));
            let pair = vmulq_n_s32(load_integers(&LANE_INDICES), -2);
            let high = vshlq_u32(high, vsubq_s32(pair, vdupq_n_s32(8 * s as i32)));
            let high = vshlq_n_u32::<4>(vandq_u32(high, vdupq_n_u32(3)));
            let six_bits = vorrq_u32(vandq_u32(low, vdupq_n_u32(15)), high);
            *scales = vsubq_s32(vreinterpretq_s32_u32(six_bits), vdupq_n_s32(32));
        }
        let scales = mul(broadcast_f16(subarray(b, 0)), i32_to_f32(scales));
        Unpacked { codes, factors: mul(scales, x.scales) }
    }

    fn add_minima(minima: F32x8, x: &PreparedSuperBlock<'_>, sums: &mut F32x8) {
        for s in 0..2 {
            sums[s] = vfmaq_f32(sums[s], minima[s], x.sums[s]);
        }
    }

    fn scales_of_32(
        supers: &[u8; 4],
        packed: &[u8; 12],
        x: &PreparedSuperBlock<'_>,
        sums: &mut F32x8,
    ) -> F32x8 {
        let six_bits = load_128(&six_bit_scales(packed).to_le_bytes());
        let scales = i32_to_f32(widen_u8(vget_low_u8(six_bits)));
        let minima = i32_to_f32(widen_u8(vget_high_u8(six_bits)));
        let minima = mul(broadcast_f16(subarray(supers, 2)), minima);
        for s in 0..2 {
            sums[s] = vfmsq_f32(sums[s], minima[s], x.sums[s]);
        }
        mul(mul(broadcast_f16(subarray(supers, 0)), scales), x.scales)
    }

    pub(super) fn unpack_q4_k(b: &[u8; 144], x: &PreparedSuperBlock<'_>, sums: &mut F32x8) -> Unpacked {
        let mut codes = [[vdupq_n_s8(0); 2]; BLOCKS];
        for pair in 0..4 {
            let [low, high] = nibbles(subarray(b, 16 + pair * 32));
            let [next_low, next_high] = nibbles(subarray(b, 16 + pair * 32 + 16));
            codes[pair * 2] = [centred(low, 0), centred(next_low, 0)];
            codes[pair * 2 + 1] = [centred(high, 0), centred(next_high, 0)];
        }
        let factors = scales_of_32(subarray(b, 0), subarray(b, 4), x, sums);
        Unpacked { codes, factors }
    }

    pub(super) fn unpack_q5_k(b: &[u8; 176], x: &PreparedSuperBlock<'_>, sums: &mut F32x8) -> Unpacked {
        let mut codes = [[vdupq_n_s8(0); 2]; BLOCKS];
        let fifth = [load_128(subarray(b, 16)), load_128(subarray(b, 32))];
        for (h, fifth) in fifth.into_iter().enumerate() {
            for pair in 0..4 {
                let nibbles = nibbles(subarray(b, 48 + pair * 32 + h * 16));
                for (i, nibbles) in nibbles.into_iter().enumerate() {
                    let set = vtstq_u8(fifth, vdupq_n_u8(1 << (pair * 2 + i)));
                    let high = vandq_u8(set, vdupq_n_u8(16));
                    codes[pair * 2 + i][h] = centred(vorrq_u8(nibbles, high), 0);
                }
            }
        }
        let factors = scales_of_32(subarray(b, 0), subarray(b, 4), x, sums);
        Unpacked { codes, factors }
    }

    fn pairs_of_bits(bytes: uint8x16_t) -> [uint8x16_t; 4] {
        let mask = vdupq_n_u8(3);
        [
            vandq_u8(bytes, mask),
            vandq_u8(vshrq_n_u8::<2>(bytes), mask),
            vandq_u8(vshrq_n_u8::<4>(bytes), mask),
            vshrq_n_u8::<6>(bytes),
        ]
    }

    pub(super) fn unpack_q2_k(
        b: &[u8; 84],
        x: &PreparedSuperBlock<'_>,
        sums: &mut F32x8,
    ) -> RunUnpacked {
        let mut codes = [[vdupq_n_s8(0); 2]; BLOCKS];
        for i in 0..4 {
            let pairs = pairs_of_bits(load_128(subarray(b, 16 + i * 16)));
            for (k, pairs) in pairs.into_iter().enumerate() {
                codes[i / 2 * 4 + k][i % 2] = centred(pairs, 0);
            }
        }
        let [scales, minima] = nibbles(subarray(b, 0));
        let first = widen_u8(vget_low_u8(vuzp1q_u8(minima, minima)));
        let second = widen_u8(vget_low_u8(vuzp2q_u8(minima, minima)));
        let d_min = mul(broadcast_f16(subarray(b, 82)), x.scales);
        for s in 0..2 {
            let halves = x.super_block.half_sums[s].as_chunks::<4>().0;
            let products = vmulq_s32(first[s], load_integers(&halves[0]));
            let products = vmlaq_s32(products, second[s], load_integers(&halves[1]));
            sums[s] = vfmsq_f32(sums[s], vcvtq_f32_s32(products), d_min[s]);
        }
        let factors = mul(broadcast_f16(subarray(b, 80)), x.scales);
        RunUnpacked { row: Unpacked { codes, factors }, scales: to_i32_array(centred(scales, 0)) }
    }

    pub(super) fn unpack_q3_k(
        b: &[u8; 110],
        x: &PreparedSuperBlock<'_>,
        _: &mut F32x8,
    ) -> RunUnpacked {
        let mut codes = [[vdupq_n_s8(0); 2]; BLOCKS];
        for i in 0..4 {
            let third = load_128(subarray(b, i % 2 * 16));
            let pairs = pairs_of_bits(load_128(subarray(b, 32 + i * 16)));
            for (k, pairs) in pairs.into_iter().enumerate() {
                let block = i / 2 * 4 + k;
                let set = vtstq_u8(third, vdupq_n_u8(1 << block));
                let high = vandq_u8(set, vdupq_n_u8(4));
                codes[block][i % 2] = centred(vorrq_u8(pairs, high), 4);
            }
        }
        const SHIFTS: [u8; 16] = [0, 0, 0, 0, 254, 254, 254, 254, 252, 252, 252, 252, 250, 250, 250, 250];
        let low = load_64(subarray(b, 96));
        let low = vcombine_u8(vand_u8(low, vdup_n_u8(15)), vshr_n_u8::<4>(low));
        let high = vreinterpretq_u8_u32(vdupq_n_u32(u32::from_le_bytes(*subarray(b, 104))));
        // Bits 2 i and above of the four bytes belong to the scales from 4 i.
        let high = vshlq_u8(high, vreinterpretq_s8_u8(load_128(&SHIFTS)));
        let high = vshlq_n_u8::<4>(vandq_u8(high, vdupq_n_u8(3)));
        let scales = to_i32_array(centred(vorrq_u8(low, high), 32));
        let factors = mul(broadcast_f16(subarray(b, 108)), x.scales);
        RunUnpacked { row: Unpacked { codes, factors }, scales }
    }

    pub(super) fn unpack_q6_k(
        b: &[u8; 210],
        x: &PreparedSuperBlock<'_>,
        _: &mut F32x8,
    ) -> RunUnpacked {
        let mut codes = [[vdupq_n_s8(0); 2]; BLOCKS];
        for i in 0..4 {
            let (s, h) = (i / 2, i % 2);
            let [low, upper] = nibbles(subarray(b, s * 64 + h * 16));
            let [next, last] = nibbles(subarray(b, s * 64 + 32 + h * 16));
            let high = pairs_of_bits(load_128(subarray(b, 128 + s * 32 + h * 16)));
            for (k, low) in [low, next, upper, last].into_iter().enumerate() {
                let code = vorrq_u8(low, vshlq_n_u8::<4>(high[k]));
                codes[s * 4 + k][h] = centred(code, 32);
            }
        }
        let scales = to_i32_array(vreinterpretq_s8_u8(load_128(subarray(b, 192))));
        let factors = mul(broadcast_f16(subarray(b, 208)), x.scales);
        RunUnpacked { row: Unpacked { codes, factors }, scales }
    }
}
