//! Version for x86-64 with AVX-512 (F, BW, DQ, VL) and VNNI, in 512-bit registers.
//!
//! A product of 64 codes with those of the vector, four neighbours per sum, leaves sixteen sums.
//! The sums of a run are adjacent and are multiplied by a register that repeats each run's factor:
//! nothing is added across lanes before the end of a row. Codes are used in place where possible:
//! those in the upper half of a byte count sixteen times, which the scale of the vector
//! compensates.
//!
//! Rows are processed in memory order, so that the hardware prefetcher follows. The vector is
//! permuted to match a format's codes once for all rows of a task.
//!
//! Cost on Zen 4, which executes one and a half 64-byte instructions a cycle (masks: half of one):
//! for 64 weights of q4_k a mask and a product; for 128 of them a conversion, a permutation of
//! factors, an addition and the combination of the halves of their runs; and 8 for the scales of
//! 256.

mod k_quants;
mod legacy;
mod rotated;

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use htc_formats::DType;

use super::{Dot, IQ4_CODEBOOK, dispatch};
use crate::cpu::activations::{BLOCKS, SuperBlock};
use crate::cpu::avx512::{horizontal_sums, load_128, load_256, load_512};
use crate::cpu::blocks::{compiled_for, prefetch_far, subarray, supported};
use crate::matrix::Matrix;
use k_quants::{iq4_xs, q4_k, q5_k, q6_k};
use legacy::{iq4_nl, q4_0, q4_1, q5_0, q5_1, q8_0};
use rotated::{q2_k, q3_k, q3_k_gfni};

/// Used only in kernel tables for processors with these instructions.
pub(in crate::cpu) const DOT: Dot = supported!(|w, x, y| dot);

/// Same as [`DOT`] for processors with GFNI.
pub(in crate::cpu) const DOT_GFNI: Dot = |w, x, y| match w.dtype() {
    // SAFETY: see above.
    DType::Q3K => unsafe { q3_k_gfni::dot(w, x, y) },
    _ => DOT(w, x, y),
};

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn dot(w: Matrix<'_>, x: &[SuperBlock], y: &mut [f32]) {
    dispatch!(w, x, y)
}

const MAX_PREPARED: usize = 64;

/// Prefetch distance in bytes. It helps weights of less than eight bits; with sequential rows and
/// large pages the hardware prefetcher is sufficient for q8_0.
const PREFETCH_DISTANCE: usize = 16384;

/// Bytes of 256 weights from which on the hardware prefetcher is better.
const MAX_PREFETCHED_BYTES: usize = 272;

const ROWS: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum RegisterOrder {
    /// Register `i` has blocks `2 i` and `2 i + 1`.
    Pairs,
    /// Registers `2 i` and `2 i + 1` have blocks `4 i` and `4 i + 2`, `4 i + 1` and `4 i + 3`.
    Alternating,
    /// Registers `2 i` and `2 i + 1` have the first and the second halves of blocks `4 i` to
    /// `4 i + 3`.
    Halves,
    /// Registers 0 and 1 have the first and the second halves of blocks 0, 2, 4 and 6, the others
    /// those of the odd blocks.
    Nibbles,
}

struct PreparedSuperBlock {
    codes: [__m512i; 4],
    offsets: [__m512i; 4],
    /// Scale of each run: runs of 16 numbers in sixteen lanes, runs of 32 in the first eight,
    /// followed by the sums.
    scales: __m512,
    sums: __m512,
}

#[derive(Clone, Copy)]
struct RowSums {
    products: [__m512; 2],
    minima: __m512,
}

const fn repeat_lanes(runs: [i32; 4]) -> [i32; 16] {
    let mut lanes = [0; 16];
    const_for!(i in 0..16 => {
        lanes[i] = runs[i / 4];
    });
    lanes
}

/// Defines the product of one format in a module: `$prepare(super_block)` permutes the vector to
/// match the codes, and `$add(super_block, part, sums)` adds the product of a super-block of a row.
macro_rules! matvec_kernel {
    ($features:literal, $module:ident, $bytes:literal x $blocks:literal, $prepare:expr, $add:expr) => {
        pub(super) mod $module {
            use super::*;

            #[target_feature(enable = $features)]
            pub(in super::super) fn dot(w: Matrix<'_>, x: &[SuperBlock], y: &mut [f32]) {
                let mut prepared = [const { MaybeUninit::uninit() }; MAX_PREPARED];
                y.fill(0.0);
                for (s, x) in x.chunks(MAX_PREPARED).enumerate() {
                    for (x, part) in x.iter().zip(&mut prepared) {
                        part.write($prepare(x));
                    }
                    // SAFETY: the first `x.len()` elements have just been written.
                    let x = unsafe {
                        std::slice::from_raw_parts(
                            prepared.as_ptr().cast::<PreparedSuperBlock>(),
                            x.len(),
                        )
                    };
                    for (rows, y) in y.chunks_mut(ROWS).enumerate() {
                        let mut sums = [_mm512_setzero_ps(); ROWS];
                        for r in 0..y.len() {
                            sums[r] = row(w.row(rows * ROWS + r), s * MAX_PREPARED, x);
                        }
                        let sums = horizontal_sums(sums);
                        for r in 0..y.len() {
                            y[r] += sums[r];
                        }
                    }
                }
            }

            #[inline]
            #[target_feature(enable = $features)]
            fn row(row: &[u8], first: usize, x: &[PreparedSuperBlock]) -> __m512 {
                let (blocks, _) = row.as_chunks::<$bytes>();
                let blocks = &blocks[first * $blocks..];
                let (super_blocks, rest) = blocks.as_chunks::<$blocks>();
                let mut sums = RowSums {
                    products: [_mm512_setzero_ps(); 2],
                    minima: _mm512_setzero_ps(),
                };
                for (super_block, x) in super_blocks.iter().zip(x) {
                    let next = super_block
                        .as_ptr()
                        .cast::<u8>()
                        .wrapping_add(PREFETCH_DISTANCE);
                    if $bytes * $blocks < MAX_PREFETCHED_BYTES {
                        for line in (0..$bytes * $blocks).step_by(64) {
                            prefetch_far(next.wrapping_add(line));
                        }
                    }
                    $add(super_block, x, &mut sums);
                }
                if let Some(x) = x.get(super_blocks.len()) {
                    // Padded with blocks of scale zero.
                    let mut padded = [[0; $bytes]; $blocks];
                    padded[..rest.len()].copy_from_slice(rest);
                    $add(&padded, x, &mut sums);
                }
                let products = _mm512_add_ps(sums.products[0], sums.products[1]);
                _mm512_add_ps(products, sums.minima)
            }
        }
    };
}
use matvec_kernel;

/// Defines the product of a format whose codes are arranged as `$order` and are `$centres` above
/// their values.
///
/// `$factors(super_block, part, minima)` returns the factor of each run and adds the contribution
/// of minima; `$codes(super_block)` returns the codes of four registers. Each row of `$lanes`
/// selects the factors of an equal share of the registers. `$scales` multiply the scales of the
/// vector.
macro_rules! format_product {
    ($module:ident, $bytes:literal x $blocks:literal, runs $run:literal, $order:ident, centres $centres:expr,
     $lanes:expr, $scales:expr, $factors:ident, $codes:expr) => {
        matvec_kernel!(
            "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c",
            $module,
            $bytes x $blocks,
            |x| prepare::<$run>(x, RegisterOrder::$order, $centres, &$scales),
            |super_block, x: &PreparedSuperBlock, sums: &mut RowSums| {
                let factors = $factors(super_block, x, &mut sums.minima);
                add_by_lanes($codes(super_block), factors, &$lanes, $centres[0] > 0, x, sums)
            }
        );
    };
}
use format_product;

const RUN_LANES: [[i32; 16]; 4] = [
    repeat_lanes([0, 1, 2, 3]),
    repeat_lanes([4, 5, 6, 7]),
    repeat_lanes([8, 9, 10, 11]),
    repeat_lanes([12, 13, 14, 15]),
];

const UNIT_SCALES: [f32; 16] = [1.0; 16];

compiled_for! {
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c";

    fn load_floats(numbers: &[f32; 16]) -> __m512 {
        // SAFETY: in bounds.
        unsafe { _mm512_loadu_ps(numbers.as_ptr()) }
    }

    fn add_by_lanes<const N: usize>(
        codes: [__m512i; 4],
        factors: __m512,
        lanes: &[[i32; 16]; N],
        centred: bool,
        x: &PreparedSuperBlock,
        sums: &mut RowSums,
    ) {
        for (shared, lanes) in lanes.iter().enumerate() {
            let mut totals = _mm512_setzero_si512();
            if centred {
                totals = x.offsets[shared];
            }
            let registers = shared * (4 / N)..(shared + 1) * (4 / N);
            for (codes, x) in codes[registers.clone()].iter().zip(&x.codes[registers]) {
                totals = _mm512_dpbusd_epi32(totals, *codes, *x);
            }
            let factors = _mm512_permutexvar_ps(load_512(lanes), factors);
            let products = &mut sums.products[shared % 2];
            *products = _mm512_fmadd_ps(_mm512_cvtepi32_ps(totals), factors, *products);
        }
    }

    fn concat_256(first: __m256i, second: __m256i) -> __m512i {
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second)
    }

    fn two_f16_to_f32(bytes: &[u8; 4]) -> __m128 {
        _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from_le_bytes(*bytes)))
    }

    fn f16_to_f32(bytes: &[u8; 2]) -> __m128 {
        let half = i32::from(u16::from_le_bytes(*bytes));
        _mm_cvtph_ps(_mm_cvtsi32_si128(half))
    }

    fn broadcast_f16(bytes: &[u8; 2]) -> __m512 {
        _mm512_broadcastss_ps(f16_to_f32(bytes))
    }

    /// Prepares a super-block for runs of `RUN` numbers and codes of four registers that are
    /// `centres` above their values; `times` multiplies the scales, and in the upper lanes of runs
    /// of 32 the sums.
    fn prepare<const RUN: usize>(
        x: &SuperBlock,
        order: RegisterOrder,
        centres: [u8; 4],
        times: &[f32; 16],
    ) -> PreparedSuperBlock {
        let mut codes = [_mm512_setzero_si512(); 4];
        for (i, codes) in codes.iter_mut().enumerate() {
            let (a, b) = match order {
                RegisterOrder::Pairs | RegisterOrder::Halves => (2 * i, 2 * i + 1),
                RegisterOrder::Nibbles => ([0, 4, 1, 5][i], [2, 6, 3, 7][i]),
                RegisterOrder::Alternating => (i / 2 * 4 + i % 2, i / 2 * 4 + i % 2 + 2),
            };
            *codes = concat_256(load_256(&x.codes[a]), load_256(&x.codes[b]));
        }
        if matches!(order, RegisterOrder::Halves | RegisterOrder::Nibbles) {
            let [a, b, c, d] = codes;
            codes = [
                _mm512_shuffle_i64x2::<0b10_00_10_00>(a, b),
                _mm512_shuffle_i64x2::<0b11_01_11_01>(a, b),
                _mm512_shuffle_i64x2::<0b10_00_10_00>(c, d),
                _mm512_shuffle_i64x2::<0b11_01_11_01>(c, d),
            ];
        }
        let mut offsets = [_mm512_setzero_si512(); 4];
        for i in 0..4 {
            let sums = _mm512_dpbusd_epi32(offsets[i], _mm512_set1_epi8(centres[i].cast_signed()), codes[i]);
            offsets[i] = _mm512_sub_epi32(_mm512_setzero_si512(), sums);
        }
        if order == RegisterOrder::Halves {
            let [a, b, c, d] = offsets;
            offsets[0] = _mm512_add_epi32(a, b);
            offsets[1] = _mm512_add_epi32(c, d);
        }
        // SAFETY: in bounds.
        let (scales, sums, halves) = unsafe {
            (
                _mm512_zextps256_ps512(_mm256_loadu_ps(x.scales.as_ptr())),
                _mm512_zextsi256_si512(_mm256_loadu_si256(x.sums.as_ptr().cast())),
                _mm512_loadu_si512(x.half_sums.as_ptr().cast()),
            )
        };
        let (scales, sums) = if RUN == 16 {
            let block_of_run = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
            let sum_of_run = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
            let scales = _mm512_permutexvar_ps(block_of_run, scales);
            (scales, _mm512_permutexvar_epi32(sum_of_run, halves))
        } else {
            (scales, sums)
        };
        let sums = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), scales);
        let both = if RUN == 16 { scales } else { _mm512_shuffle_f32x4::<0b01_00_01_00>(scales, sums) };
        PreparedSuperBlock {
            codes,
            offsets,
            scales: _mm512_mul_ps(both, load_floats(times)),
            sums,
        }
    }

    fn look_up_iq4(indices: __m512i) -> __m512i {
        // SAFETY: in bounds.
        let table = unsafe { _mm_loadu_si128(IQ4_CODEBOOK.as_ptr().cast()) };
        let table = _mm_xor_si128(table, _mm_set1_epi8(-128));
        _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), indices)
    }

    fn low_nibbles(bytes: __m512i) -> __m512i {
        _mm512_and_si512(bytes, _mm512_set1_epi8(15))
    }

    fn high_nibbles(bytes: __m512i) -> __m512i {
        low_nibbles(_mm512_srli_epi16::<4>(bytes))
    }
}
