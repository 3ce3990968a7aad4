//! Versions for aarch64: NEON, and NEON with the dot products of Armv8.2.
//!
//! A register holds sixteen codes or four sums. Codes are centred before multiplication, because
//! products are of signed bytes; the four sums of a block are converted, scaled and added to the
//! sums of the row, which are reduced at its end.
//!
//! The dot products are in assembly: their intrinsics are not stable.

mod unpack;

use std::arch::aarch64::*;
use std::arch::asm;

use super::Dot;
use crate::cpu::activations::{BLOCKS, SuperBlock};
use crate::cpu::blocks::{compiled_for, prefetch, row_groups, subarray, supported};
use crate::cpu::neon::f16_to_f32;
use crate::matrix::Matrix;

type F32x8 = [float32x4_t; 2];

struct PreparedSuperBlock<'a> {
    super_block: &'a SuperBlock,
    scales: F32x8,
    sums: F32x8,
}

struct Unpacked {
    codes: [[int8x16_t; 2]; BLOCKS],
    factors: F32x8,
}

/// Super-block with an integer scale per run of sixteen codes.
struct RunUnpacked {
    row: Unpacked,
    scales: [i32; 2 * BLOCKS],
}

/// Defines the products of one instruction set in a module. `$dot16` adds the products of sixteen
/// codes to four sums, in any assignment.
macro_rules! integer_products {
    ($features:literal, $module:ident, $dot16:ident) => {
        mod $module {
            use htc_formats::DType;

            use super::super::dispatch;
            use super::unpack::*;
            use super::*;

            #[target_feature(enable = $features)]
            pub(super) fn dot(w: Matrix<'_>, x: &[SuperBlock], y: &mut [f32]) {
                dispatch!(w, x, y)
            }

            format_product!(
                $features,
                q8_0,
                34,
                8,
                add,
                unpack_blocks::<34, false>,
                |block| {
                    let [first, second] =
                        [load_128(subarray(block, 2)), load_128(subarray(block, 18))];
                    [vreinterpretq_s8_u8(first), vreinterpretq_s8_u8(second)]
                }
            );
            format_product!(
                $features,
                q4_0,
                18,
                8,
                add,
                unpack_blocks::<18, false>,
                |block| { four_bits(subarray(block, 2), 8) }
            );
            format_product!(
                $features,
                q4_1,
                20,
                8,
                add,
                unpack_blocks::<20, true>,
                |block| { four_bits(subarray(block, 4), 0) }
            );
            format_product!(
                $features,
                q5_0,
                22,
                8,
                add,
                unpack_blocks::<22, false>,
                |block| { five_bits(subarray(block, 6), subarray(block, 2), 16) }
            );
            format_product!(
                $features,
                q5_1,
                24,
                8,
                add,
                unpack_blocks::<24, true>,
                |block| { five_bits(subarray(block, 8), subarray(block, 4), 0) }
            );
            format_product!(
                $features,
                iq4_nl,
                18,
                8,
                add,
                unpack_blocks::<18, false>,
                |block| { iq4(subarray(block, 2)) }
            );
            format_product!($features, iq4_xs, 136, 1, add, unpack_iq4_xs);
            format_product!($features, q4_k, 144, 1, add, unpack_q4_k);
            format_product!($features, q5_k, 176, 1, add, unpack_q5_k);
            format_product!($features, q2_k, 84, 1, add_runs, unpack_q2_k);
            format_product!($features, q3_k, 110, 1, add_runs, unpack_q3_k);
            format_product!($features, q6_k, 210, 1, add_runs, unpack_q6_k);

            #[inline]
            #[target_feature(enable = $features)]
            fn add(row: Unpacked, x: &SuperBlock, sums: &mut F32x8) {
                let factors = to_array(row.factors);
                for b in 0..BLOCKS {
                    let [first, second] = load_codes(&x.codes[b]);
                    let products = $dot16(vdupq_n_s32(0), row.codes[b][0], first);
                    let products = $dot16(products, row.codes[b][1], second);
                    let products = vcvtq_f32_s32(products);
                    sums[b % 2] = vfmaq_n_f32(sums[b % 2], products, factors[b]);
                }
            }

            #[inline]
            #[target_feature(enable = $features)]
            fn add_runs(unpacked: RunUnpacked, x: &SuperBlock, sums: &mut F32x8) {
                let RunUnpacked { row, scales } = unpacked;
                let factors = to_array(row.factors);
                for b in 0..BLOCKS {
                    let [first, second] = load_codes(&x.codes[b]);
                    let first = $dot16(vdupq_n_s32(0), row.codes[b][0], first);
                    let second = $dot16(vdupq_n_s32(0), row.codes[b][1], second);
                    let products = vmulq_n_s32(first, scales[2 * b]);
                    let products = vcvtq_f32_s32(vmlaq_n_s32(products, second, scales[2 * b + 1]));
                    sums[b % 2] = vfmaq_n_f32(sums[b % 2], products, factors[b]);
                }
            }
        }
    };
}

/// Defines the product of one format; `$blocks` blocks of `$bytes` bytes form a super-block.
/// `$unpack` gets the function `$codes` too, if any.
macro_rules! format_product {
    ($features:literal, $module:ident, $bytes:literal, $blocks:literal, $add:ident, $unpack:expr $(, $codes:expr)?) => {
        mod $module {
            use super::*;

            const SUPER_BLOCK_BYTES: usize = $bytes * $blocks;

            row_groups!($features, dot, SuperBlock);

            #[inline]
            #[target_feature(enable = $features)]
            fn rows<const R: usize>(
                rows: [&[u8]; R],
                x: &[SuperBlock],
                prefetch_distance: usize,
            ) -> [f32; R] {
                let mut sums = [[vdupq_n_f32(0.0); 2]; R];
                for (s, x) in x.iter().enumerate() {
                    let x = prepare(x);
                    for r in 0..R {
                        let bytes = &rows[r][s * SUPER_BLOCK_BYTES..];
                        for line in (0..SUPER_BLOCK_BYTES).step_by(64) {
                            prefetch(bytes.as_ptr().wrapping_add(prefetch_distance + line));
                        }
                        match bytes.first_chunk() {
                            Some(blocks) => super_block(blocks, &x, &mut sums[r]),
                            None => last_super_block(bytes, &x, &mut sums[r]),
                        }
                    }
                }
                let mut results = [0.0; R];
                for r in 0..R {
                    results[r] = vaddvq_f32(vaddq_f32(sums[r][0], sums[r][1]));
                }
                results
            }

            #[inline]
            #[target_feature(enable = $features)]
            fn super_block(
                blocks: &[u8; SUPER_BLOCK_BYTES],
                x: &PreparedSuperBlock<'_>,
                sums: &mut F32x8,
            ) {
                $add($unpack(blocks, $($codes,)? x, sums), x.super_block, sums);
            }

            #[target_feature(enable = $features)]
            fn last_super_block(blocks: &[u8], x: &PreparedSuperBlock<'_>, sums: &mut F32x8) {
                let mut filled = [0; SUPER_BLOCK_BYTES];
                filled[..blocks.len()].copy_from_slice(blocks);
                super_block(&filled, x, sums);
            }
        }
    };
}

integer_products!("neon", base, dot16);
integer_products!("neon,dotprod", dotprod, sdot);

/// Integer product for every processor with NEON.
pub(in crate::cpu) const DOT: Dot = supported!(|w, x, y| base::dot);

/// Used only in kernel tables for processors with integer dot products.
pub(in crate::cpu) const DOTPROD: Dot = supported!(|w, x, y| dotprod::dot);

#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(in crate::cpu) fn sdot(sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut sums = sums;
    // SAFETY: one instruction of the extension on registers.
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {a:v}.16b, {b:v}.16b",
            sums = inout(vreg) sums,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

compiled_for! {
    "neon";

    /// Sums of two products fit sixteen bits: no code of a vector is -128.
    fn dot16(sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        let products = vmull_s8(vget_low_s8(a), vget_low_s8(b));
        let pairs = vmlal_s8(products, vget_high_s8(a), vget_high_s8(b));
        vpadalq_s16(sums, pairs)
    }

    fn prepare(super_block: &SuperBlock) -> PreparedSuperBlock<'_> {
        let mut scales = [vdupq_n_f32(0.0); 2];
        let mut sums = scales;
        for s in 0..2 {
            scales[s] = load(&super_block.scales.as_chunks::<4>().0[s]);
            let codes = vcvtq_f32_s32(load_integers(&super_block.sums.as_chunks::<4>().0[s]));
            sums[s] = vmulq_f32(codes, scales[s]);
        }
        PreparedSuperBlock { super_block, scales, sums }
    }

    fn load(numbers: &[f32; 4]) -> float32x4_t {
        // SAFETY: in bounds.
        unsafe { vld1q_f32(numbers.as_ptr()) }
    }

    fn load_integers(numbers: &[i32; 4]) -> int32x4_t {
        // SAFETY: in bounds.
        unsafe { vld1q_s32(numbers.as_ptr()) }
    }

    pub(in crate::cpu) fn load_128(bytes: &[u8; 16]) -> uint8x16_t {
        // SAFETY: in bounds.
        unsafe { vld1q_u8(bytes.as_ptr()) }
    }

    fn load_64(bytes: &[u8; 8]) -> uint8x8_t {
        // SAFETY: in bounds.
        unsafe { vld1_u8(bytes.as_ptr()) }
    }

    fn load_codes(codes: &[i8; 32]) -> [int8x16_t; 2] {
        let [first, second] = [codes.as_ptr(), codes.as_ptr().wrapping_add(16)];
        // SAFETY: in bounds.
        unsafe { [vld1q_s8(first), vld1q_s8(second)] }
    }

    fn to_array(eight: F32x8) -> [f32; BLOCKS] {
        let mut numbers = [0.0; BLOCKS];
        for (s, numbers) in numbers.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            // SAFETY: in bounds.
            unsafe { vst1q_f32(numbers.as_mut_ptr(), eight[s]) };
        }
        numbers
    }

    fn to_i32_array(bytes: int8x16_t) -> [i32; 16] {
        let low = vmovl_s8(vget_low_s8(bytes));
        let high = vmovl_high_s8(bytes);
        let mut integers = [0; 16];
        for (i, part) in integers.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let half = if i < 2 { low } else { high };
            let wide = if i % 2 == 0 { vmovl_s16(vget_low_s16(half)) } else { vmovl_high_s16(half) };
            // SAFETY: in bounds.
            unsafe { vst1q_s32(part.as_mut_ptr(), wide) };
        }
        integers
    }

    fn widen_u8(bytes: uint8x8_t) -> [int32x4_t; 2] {
        let wide = vreinterpretq_s16_u16(vmovl_u8(bytes));
        [vmovl_s16(vget_low_s16(wide)), vmovl_high_s16(wide)]
    }

    fn i32_to_f32([a, b]: [int32x4_t; 2]) -> F32x8 {
        [vcvtq_f32_s32(a), vcvtq_f32_s32(b)]
    }

    fn mul([a, b]: F32x8, [c, d]: F32x8) -> F32x8 {
        [vmulq_f32(a, c), vmulq_f32(b, d)]
    }

    fn broadcast_f16(bytes: &[u8; 2]) -> F32x8 {
        let number = f16_to_f32(vdup_n_u16(u16::from_le_bytes(*bytes)));
        [number, number]
    }

    fn load_f16_scales<const BYTES: usize>(blocks: &[[u8; BYTES]], at: usize) -> F32x8 {
        let mut halves = [0; BLOCKS];
        for (half, block) in halves.iter_mut().zip(blocks) {
            *half = u16::from_le_bytes(*subarray(block, at));
        }
        // SAFETY: in bounds.
        let halves = unsafe { vld1q_u16(halves.as_ptr()) };
        [f16_to_f32(vget_low_u16(halves)), f16_to_f32(vget_high_u16(halves))]
    }
}
