//! Products of bands of levels and one vector, decoded in registers.
//!
//! Eight rows of four columns are a register; four codes of the vector are multiplied with all of them and
//! added in eight sums. Instructions on registers for 32 weights: cutting out codes 2 (four bits) to 8
//! (seven), looking up 1 to 4, signs 0 or 2, products and sums 4, scales 1: from 7 with four bits to 18.

use std::arch::x86_64::*;
use std::ops::Range;

use htc_formats::bands::{BAND, CHUNK, GROUP_ROWS, LEVEL_TABLES, QUADS, SCALE_BYTES};

use super::super::{Vector, part};
use super::{Group16, load, of_32, of_64, planes, table};
use crate::cpu::blocks::prefetch;

/// As [`BandKernels::dot`](super::super::BandKernels::dot), for levels of `BITS`.
#[target_feature(enable = "avx2,fma")]
pub(super) fn dot<const BITS: usize>(
    band: &[u8],
    groups: Range<usize>,
    vector: &Vector<'_>,
    sums: &mut [Group16],
) {
    let table = table(const { &entries(BITS) });
    let codes = Codes::new(vector.codes);
    let scale = _mm256_set1_ps(vector.scale);
    let all = band.len() / (SCALE_BYTES + QUADS * CHUNK * BITS / 8);
    let (scales, chunks) = band.split_at(all * SCALE_BYTES);
    let scales = scales.as_chunks::<SCALE_BYTES>().0;
    for (group, sums) in groups.zip(sums) {
        let group_bytes = QUADS * CHUNK * BITS / 8;
        let chunks = &chunks[group * group_bytes..][..group_bytes];
        let mut totals = [_mm256_setzero_si256(); 2];
        for quad in 0..QUADS {
            let chunk = &chunks[quad * CHUNK * BITS / 8..][..CHUNK * BITS / 8];
            prefetch(chunk.as_ptr().wrapping_add(AHEAD));
            let found = if BITS == 8 {
                let least = _mm256_set1_epi8(-127);
                [0, 32].map(|at| _mm256_max_epi8(load(part(chunk, at)), least))
            } else {
                planes::<BITS>(chunk)
            };
            for (total, found) in totals.iter_mut().zip(found) {
                let pairs = match BITS {
                    2..=4 => codes.of_signed(quad, _mm256_shuffle_epi8(table[0], found)),
                    5 => codes.of::<BITS>(quad, _mm256_shuffle_epi8(table[0], found), found),
                    6 => codes.of::<BITS>(quad, of_32(&table, found), found),
                    7 => codes.of::<BITS>(quad, of_64(&table, found), found),
                    _ => codes.of_signed(quad, found),
                };
                let ones = _mm256_set1_epi16(1);
                *total = _mm256_add_epi32(*total, _mm256_madd_epi16(pairs, ones));
            }
        }
        let factors = factors(&scales[group]);
        for ((total, factor), sums) in totals
            .into_iter()
            .zip(factors)
            .zip(sums.as_chunks_mut::<8>().0)
        {
            // SAFETY: the array has the numbers that are read and written.
            unsafe {
                let sum = _mm256_loadu_ps(sums.as_ptr());
                let factor = _mm256_mul_ps(scale, factor);
                let sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total), factor, sum);
                _mm256_storeu_ps(sums.as_mut_ptr(), sum);
            }
        }
    }
}

/// The table of levels: both signs of up to four bits, beyond that magnitudes; none of eight.
const fn entries(bits: usize) -> [i8; 64] {
    let mut entries = [0; 64];
    if bits == 8 {
        return entries;
    }
    let magnitudes = LEVEL_TABLES[bits - 2];
    let mut i = 0;
    while i < magnitudes.len() {
        entries[i] = magnitudes[i];
        if bits <= 4 {
            entries[magnitudes.len() + i] = -magnitudes[i];
        }
        i += 1;
    }
    entries
}

/// Bytes between what is read and what is asked for.
const AHEAD: usize = 1024;

/// The vector's codes, four of a quad in each lane.
struct Codes {
    magnitudes: [[i32; 8]; QUADS],
    signed: [[i32; 8]; QUADS],
}

impl Codes {
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn new(codes: &[i8; BAND]) -> Codes {
        let mut words = Codes {
            magnitudes: [[0; 8]; QUADS],
            signed: [[0; 8]; QUADS],
        };
        for (quad, codes) in codes.as_chunks::<4>().0.iter().enumerate() {
            let four = _mm256_set1_epi32(i32::from_le_bytes(codes.map(i8::cast_unsigned)));
            let (signed, magnitudes) = (&mut words.signed[quad], &mut words.magnitudes[quad]);
            // SAFETY: the arrays have the bytes that are written.
            unsafe {
                _mm256_storeu_si256(signed.as_mut_ptr().cast(), four);
                _mm256_storeu_si256(magnitudes.as_mut_ptr().cast(), _mm256_abs_epi8(four));
            }
        }
        words
    }

    /// The products of signed weights, two to a sum of sixteen bits, which 2 · 127 · 127 fits.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn of_signed(&self, quad: usize, weights: __m256i) -> __m256i {
        let weights = _mm256_sign_epi8(weights, words(&self.signed[quad]));
        _mm256_maddubs_epi16(words(&self.magnitudes[quad]), weights)
    }

    /// The products of magnitudes whose sign is the highest of a code's bits.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn of<const BITS: usize>(&self, quad: usize, magnitudes: __m256i, codes: __m256i) -> __m256i {
        let sign = match BITS {
            5 => _mm256_slli_epi16::<3>(codes),
            6 => _mm256_slli_epi16::<2>(codes),
            _ => _mm256_slli_epi16::<1>(codes),
        };
        // Not zero, whose sign would be none.
        let sign = _mm256_or_si256(sign, _mm256_set1_epi8(1));
        let x = _mm256_sign_epi8(words(&self.signed[quad]), sign);
        _mm256_maddubs_epi16(magnitudes, x)
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn words(words: &[i32; 8]) -> __m256i {
    // SAFETY: the array has the bytes that are read.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

/// As [`level_scales`](htc_formats::bands::level_scales), as numbers.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn factors(packed: &[u8; SCALE_BYTES]) -> [__m256; GROUP_ROWS / 8] {
    let mut bytes = [0; 16];
    bytes[..SCALE_BYTES].copy_from_slice(packed);
    // SAFETY: the array has the bytes that are read.
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
