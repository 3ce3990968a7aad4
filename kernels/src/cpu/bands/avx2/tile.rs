//! Products of unpacked column groups and several vectors.
//!
//! Weights and codes are widened to sixteen bits, two columns of eight rows per register, so that
//! one instruction multiplies and adds them into the sums of rows, without the sign handling that
//! byte products need. The sums of sixteen rows and six vectors stay in registers: 4 register
//! instructions per 32 products, half of them multiplications.

use std::arch::x86_64::*;

use htc_formats::bands::{CHUNK, GROUP_COLS, QUADS_PER_GROUP};

use super::super::{GroupWeights, VectorGroup};
use super::{RowValues, load};

const TILE_VECTORS: usize = 6;

/// Row groups that are widened together, to stay in the L1 cache with their vectors.
const GROUPS_PER_PASS: usize = 4;

/// Weights of a row group in sixteen bits: columns by pairs, rows in halves.
type WidenedGroup = [[[i16; 16]; 2]; GROUP_COLS / 2];

/// Implements [`ColumnGroupKernels::add`](super::super::ColumnGroupKernels::add).
#[target_feature(enable = "avx2,fma")]
pub(super) fn add(
    integers: &[GroupWeights],
    factors: &[RowValues],
    vectors: &[VectorGroup<'_>],
    sums: &mut [RowValues],
) {
    let stride = integers.len();
    let mut wide = [[[[0; 16]; 2]; GROUP_COLS / 2]; GROUPS_PER_PASS];
    for first in (0..stride).step_by(GROUPS_PER_PASS) {
        let groups = &integers[first..stride.min(first + GROUPS_PER_PASS)];
        let factors = &factors[first..first + groups.len()];
        let wide = &mut wide[..groups.len()];
        for (wide, group) in wide.iter_mut().zip(groups) {
            widen_group(group, wide);
        }
        let (tiles, rest) = vectors.as_chunks::<TILE_VECTORS>();
        let (tile_sums, rest_sums) = sums.split_at_mut(tiles.len() * TILE_VECTORS * stride);
        for (vectors, sums) in tiles
            .iter()
            .zip(tile_sums.chunks_exact_mut(TILE_VECTORS * stride))
        {
            micro_kernel(wide, factors, vectors, &mut sums[first..], stride);
        }
        for (vector, sums) in rest
            .as_chunks::<1>()
            .0
            .iter()
            .zip(rest_sums.chunks_exact_mut(stride))
        {
            micro_kernel(wide, factors, vector, &mut sums[first..], stride);
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn widen_group(group: &GroupWeights, wide: &mut WidenedGroup) {
    // Columns 0 and 1 of four rows, and then 2 and 3.
    let order = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,
    ));
    for (chunk, wide) in group.iter().zip(wide.as_chunks_mut::<2>().0) {
        let chunk: &[u8; CHUNK] = &chunk.map(i8::cast_unsigned);
        for (half, bytes) in chunk.as_chunks::<32>().0.iter().enumerate() {
            let pairs = _mm256_shuffle_epi8(load(bytes), order);
            let pairs = _mm256_permute4x64_epi64::<0b11_01_10_00>(pairs);
            let both = [
                _mm256_castsi256_si128(pairs),
                _mm256_extracti128_si256::<1>(pairs),
            ];
            for (wide, pair) in wide.iter_mut().zip(both) {
                let numbers = _mm256_cvtepi8_epi16(pair);
                // SAFETY: in bounds.
                unsafe { _mm256_storeu_si256(wide[half].as_mut_ptr().cast(), numbers) };
            }
        }
    }
}

/// Adds the products with `T` vectors, whose sums are `stride` row groups apart.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn micro_kernel<const T: usize>(
    groups: &[WidenedGroup],
    factors: &[RowValues],
    vectors: &[VectorGroup<'_>; T],
    sums: &mut [RowValues],
    stride: usize,
) {
    let mut codes = [[0_i16; GROUP_COLS]; T];
    for t in 0..T {
        for (half, codes) in codes[t].as_chunks_mut::<16>().0.iter_mut().enumerate() {
            // SAFETY: in bounds.
            unsafe {
                let bytes = _mm_loadu_si128(vectors[t].codes.as_ptr().add(16 * half).cast());
                _mm256_storeu_si256(codes.as_mut_ptr().cast(), _mm256_cvtepi8_epi16(bytes));
            }
        }
    }
    for (g, (group, factors)) in groups.iter().zip(factors).enumerate() {
        let mut totals = [[_mm256_setzero_si256(); 2]; T];
        for pair in 0..2 * QUADS_PER_GROUP {
            let rows = group[pair].each_ref();
            let mut weights = [_mm256_setzero_si256(); 2];
            for half in 0..2 {
                // SAFETY: in bounds.
                weights[half] = unsafe { _mm256_loadu_si256(rows[half].as_ptr().cast()) };
            }
            for t in 0..T {
                let [low, high] =
                    [codes[t][2 * pair], codes[t][2 * pair + 1]].map(i16::cast_unsigned);
                let both =
                    _mm256_set1_epi32((u32::from(low) | u32::from(high) << 16).cast_signed());
                for half in 0..2 {
                    let products = _mm256_madd_epi16(weights[half], both);
                    totals[t][half] = _mm256_add_epi32(totals[t][half], products);
                }
            }
        }
        for t in 0..T {
            let scale = _mm256_set1_ps(vectors[t].scale);
            let sums = sums[t * stride + g].as_chunks_mut::<8>().0;
            for (half, (sums, factors)) in
                sums.iter_mut().zip(factors.as_chunks::<8>().0).enumerate()
            {
                // SAFETY: in bounds.
                unsafe {
                    let factor = _mm256_mul_ps(scale, _mm256_loadu_ps(factors.as_ptr()));
                    let sum = _mm256_loadu_ps(sums.as_ptr());
                    let total = _mm256_cvtepi32_ps(totals[t][half]);
                    _mm256_storeu_ps(sums.as_mut_ptr(), _mm256_fmadd_ps(total, factor, sum));
                }
            }
        }
    }
}
