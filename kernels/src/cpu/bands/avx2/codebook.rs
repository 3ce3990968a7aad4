//! Matrix-vector products of codebook column groups, decoded in registers.
//!
//! A register holds eight rows of four columns; it is multiplied with four codes of the vector and
//! added to eight sums. Register instructions per 32 weights, without loads: extracting codes 2 (3
//! with a sign bit, 4 with six bits, 5 with seven), lookup 1 (six bits 3, seven 7), products and
//! sums 4, scales 1. In total 6 with eight bits, and from 8 with four bits to 17 with seven.

use std::arch::x86_64::*;
use std::ops::Range;

use htc_formats::bands::{CHUNK, CODEBOOKS, GROUP_COLS, GROUP_ROWS, QUADS_PER_GROUP, SCALE_BYTES};

use super::super::{VectorGroup, subarray};
use super::{RowValues, Table, load, load_two_128, lookup_table};
use crate::cpu::blocks::prefetch;

/// Implements [`ColumnGroupKernels::multiply`](super::super::ColumnGroupKernels::multiply) for a
/// codebook of `BITS` bits.
#[target_feature(enable = "avx2,fma")]
pub(super) fn multiply<const BITS: usize>(
    column_group: &[u8],
    groups: Range<usize>,
    vector: &VectorGroup<'_>,
    sums: &mut [RowValues],
) {
    let table = lookup_table(const { &table_entries(BITS) });
    let codes = BroadcastCodes::new(vector.codes);
    let scale = _mm256_set1_ps(vector.scale);
    let all = column_group.len() / (SCALE_BYTES + QUADS_PER_GROUP * CHUNK * BITS / 8);
    let (scales, chunks) = column_group.split_at(all * SCALE_BYTES);
    let scales = scales.as_chunks::<SCALE_BYTES>().0;
    for (group, sums) in groups.zip(sums) {
        let group_bytes = QUADS_PER_GROUP * CHUNK * BITS / 8;
        let chunks = &chunks[group * group_bytes..][..group_bytes];
        let mut totals = [_mm256_setzero_si256(); 2];
        for quad in 0..QUADS_PER_GROUP {
            let chunk = &chunks[quad * CHUNK * BITS / 8..][..CHUNK * BITS / 8];
            prefetch(chunk.as_ptr().wrapping_add(PREFETCH_DISTANCE));
            for (half, total) in totals.iter_mut().enumerate() {
                let pairs = if matches!(BITS, 2 | 4 | 8) {
                    codes.multiply_signed(quad, weights::<BITS>(&table, chunk, half))
                } else {
                    let sign = bit_plane::<BITS>(chunk, half, BITS - 1);
                    let magnitudes = look_up_magnitudes::<BITS>(&table, chunk, half);
                    codes.multiply_magnitudes(quad, magnitudes, sign)
                };
                let ones = _mm256_set1_epi16(1);
                *total = _mm256_add_epi32(*total, _mm256_madd_epi16(pairs, ones));
            }
        }
        let factors = unpack_scales(&scales[group]);
        for ((total, factor), sums) in totals
            .into_iter()
            .zip(factors)
            .zip(sums.as_chunks_mut::<8>().0)
        {
            // SAFETY: in bounds.
            unsafe {
                let sum = _mm256_loadu_ps(sums.as_ptr());
                let factor = _mm256_mul_ps(scale, factor);
                let sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total), factor, sum);
                _mm256_storeu_ps(sums.as_mut_ptr(), sum);
            }
        }
    }
}

/// Returns the weights of half a chunk.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn weights<const BITS: usize>(table: &Table, chunk: &[u8], half: usize) -> __m256i {
    match BITS {
        2 | 4 => _mm256_shuffle_epi8(table[0], low_bits::<BITS>(chunk, half)),
        8 => {
            let weights = load(subarray(chunk, 32 * half));
            _mm256_max_epi8(weights, _mm256_set1_epi8(-127))
        }
        _ => {
            let sign = bit_plane::<BITS>(chunk, half, BITS - 1);
            let sign = _mm256_or_si256(sign, _mm256_set1_epi8(1));
            _mm256_sign_epi8(look_up_magnitudes::<BITS>(table, chunk, half), sign)
        }
    }
}

/// Returns the lookup table: both signs for two and four bits, else magnitudes; empty for eight.
pub(super) const fn table_entries(bits: usize) -> [i8; 64] {
    let mut entries = [0; 64];
    if bits == 8 {
        return entries;
    }
    let magnitudes = CODEBOOKS[bits - 2];
    const_for!(i in 0..magnitudes.len() => {
        entries[i] = magnitudes[i];
        if bits == 2 || bits == 4 {
            entries[magnitudes.len() + i] = -magnitudes[i];
        }
    });
    entries
}

const PREFETCH_DISTANCE: usize = 1024;

/// Codes of the vector, the four of a quad repeated in each lane.
struct BroadcastCodes {
    magnitudes: [[i32; 8]; QUADS_PER_GROUP],
    signed: [[i32; 8]; QUADS_PER_GROUP],
}

impl BroadcastCodes {
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn new(codes: &[i8; GROUP_COLS]) -> BroadcastCodes {
        let mut words = BroadcastCodes {
            magnitudes: [[0; 8]; QUADS_PER_GROUP],
            signed: [[0; 8]; QUADS_PER_GROUP],
        };
        for (quad, codes) in codes.as_chunks::<4>().0.iter().enumerate() {
            let four = _mm256_set1_epi32(i32::from_le_bytes(codes.map(i8::cast_unsigned)));
            let (signed, magnitudes) = (&mut words.signed[quad], &mut words.magnitudes[quad]);
            // SAFETY: in bounds.
            unsafe {
                _mm256_storeu_si256(signed.as_mut_ptr().cast(), four);
                _mm256_storeu_si256(magnitudes.as_mut_ptr().cast(), _mm256_abs_epi8(four));
            }
        }
        words
    }

    /// Multiplies signed weights; sums pairs in sixteen bits, which hold 2 · 127 · 127.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn multiply_signed(&self, quad: usize, weights: __m256i) -> __m256i {
        let weights = _mm256_sign_epi8(weights, load_words(&self.signed[quad]));
        _mm256_maddubs_epi16(load_words(&self.magnitudes[quad]), weights)
    }

    /// Multiplies magnitudes, negated where the highest bit of the `sign` bytes is set.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn multiply_magnitudes(&self, quad: usize, magnitudes: __m256i, sign: __m256i) -> __m256i {
        // Not zero, which would make the product zero.
        let sign = _mm256_or_si256(sign, _mm256_set1_epi8(1));
        let x = _mm256_sign_epi8(load_words(&self.signed[quad]), sign);
        _mm256_maddubs_epi16(magnitudes, x)
    }
}

/// Returns the lowest four bits (or two) of the codes of half a chunk.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn low_bits<const BITS: usize>(chunk: &[u8], half: usize) -> __m256i {
    if BITS & 4 != 0 {
        let four = load(subarray(chunk, 0));
        let four = if half == 0 {
            four
        } else {
            _mm256_srli_epi16::<4>(four)
        };
        return _mm256_and_si256(four, _mm256_set1_epi8(15));
    }
    let two = load_two_128(subarray(chunk, 0), subarray(chunk, 0));
    let shift = 4 * half as i64;
    let shifts = _mm256_setr_epi64x(shift, shift, shift + 2, shift + 2);
    _mm256_and_si256(_mm256_srlv_epi64(two, shifts), _mm256_set1_epi8(3))
}

/// Returns bit `bit` of the codes of half a chunk, from the bit planes of two and of one bit, as
/// the highest bit of each byte. The lower bits are undefined.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn bit_plane<const BITS: usize>(chunk: &[u8], half: usize, bit: usize) -> __m256i {
    let fours = if BITS & 4 != 0 { 4 } else { 0 };
    let half = 4 * half as i64;
    if BITS & 2 != 0 && bit < fours + 2 {
        let two = load_two_128(subarray(chunk, 8 * fours), subarray(chunk, 8 * fours));
        let shift = 7 - half - (bit - fours) as i64;
        let shifts = _mm256_setr_epi64x(shift, shift, shift - 2, shift - 2);
        return _mm256_sllv_epi64(two, shifts);
    }
    let one = i64::from_le_bytes(*subarray(chunk, 8 * (BITS - 1)));
    let shift = 7 - half;
    let shifts = _mm256_setr_epi64x(shift, shift - 1, shift - 2, shift - 3);
    _mm256_sllv_epi64(_mm256_set1_epi64x(one), shifts)
}

/// Returns the magnitudes of half a chunk of three, five, six or seven bits.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn look_up_magnitudes<const BITS: usize>(table: &Table, chunk: &[u8], half: usize) -> __m256i {
    let index = low_bits::<BITS>(chunk, half);
    let low = _mm256_shuffle_epi8(table[0], index);
    if BITS < 6 {
        return low;
    }
    let fifth = bit_plane::<BITS>(chunk, half, 4);
    let low = _mm256_blendv_epi8(low, _mm256_shuffle_epi8(table[1], index), fifth);
    if BITS == 6 {
        return low;
    }
    let high = _mm256_blendv_epi8(
        _mm256_shuffle_epi8(table[2], index),
        _mm256_shuffle_epi8(table[3], index),
        fifth,
    );
    _mm256_blendv_epi8(low, high, bit_plane::<BITS>(chunk, half, 5))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn load_words(words: &[i32; 8]) -> __m256i {
    // SAFETY: in bounds.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

/// Returns [`unpack_codebook_scales`](htc_formats::bands::unpack_codebook_scales) as floats.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn unpack_scales(packed: &[u8; SCALE_BYTES]) -> [__m256; GROUP_ROWS / 8] {
    let mut bytes = [0; 16];
    bytes[..SCALE_BYTES].copy_from_slice(packed);
    // SAFETY: in bounds.
    let packed = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
    let low = _mm_unpacklo_epi64(packed, _mm_srli_epi16::<4>(packed));
    let low = _mm_and_si128(low, _mm_set1_epi8(15));
    let high = _mm_srlv_epi32(
        _mm_shuffle_epi32::<0b10_10_10_10>(packed),
        _mm_setr_epi32(0, 2, 4, 6),
    );
    let high = _mm_slli_epi16::<4>(_mm_and_si128(high, _mm_set1_epi8(3)));
    let scales = _mm_or_si128(low, high);
    [
        _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(scales)),
        _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(scales, scales))),
    ]
}
