//! AVX2 quantiser, one super-block at a time.

use std::arch::x86_64::*;

use super::{BELOW_HALF, BLOCK, BLOCKS, MIN_MAGNITUDE, SUPER_BLOCK_LEN, SuperBlock};
use crate::cpu::blocks::supported;

/// Used only in kernel tables for processors with AVX2.
pub(in crate::cpu) const QUANTISE: fn(&[f32], &mut [SuperBlock]) = supported!(|x, out| quantise);

/// Quantises one row; bit-identical to [`quantise`](super::quantise).
#[target_feature(enable = "avx2")]
fn quantise(x: &[f32], out: &mut [SuperBlock]) {
    let (super_blocks, rest) = x.as_chunks::<SUPER_BLOCK_LEN>();
    for (x, super_block) in super_blocks.iter().zip(&mut *out) {
        quantise_super_block(x, super_block);
    }
    if let Some(super_block) = out.get_mut(super_blocks.len())
        && !rest.is_empty()
    {
        let mut last = [0.0; SUPER_BLOCK_LEN];
        last[..rest.len()].copy_from_slice(rest);
        quantise_super_block(&last, super_block);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn quantise_super_block(x: &[f32; SUPER_BLOCK_LEN], super_block: &mut SuperBlock) {
    let blocks = x.as_chunks::<BLOCK>().0;
    let mut largest = [_mm256_setzero_si256(); BLOCKS];
    for b in 0..BLOCKS {
        largest[b] = max_magnitudes(&blocks[b]);
    }
    let largest = _mm256_castsi256_ps(horizontal_max(largest));
    let finite = _mm256_cmp_ps::<_CMP_LT_OQ>(largest, _mm256_set1_ps(f32::INFINITY));
    if _mm256_movemask_ps(finite) != 0xff {
        return super::quantise(x, std::slice::from_mut(super_block));
    }
    let most = _mm256_set1_ps(127.0);
    let counts = _mm256_cmp_ps::<_CMP_GE_OQ>(largest, _mm256_set1_ps(MIN_MAGNITUDE));
    let scales = _mm256_and_ps(_mm256_div_ps(largest, most), counts);
    let inverses = _mm256_and_ps(_mm256_div_ps(most, largest), counts);
    // SAFETY: in bounds.
    unsafe { _mm256_storeu_ps(super_block.scales.as_mut_ptr(), scales) };
    for s in 0..2 {
        let mut sums = [_mm256_setzero_si256(); 4];
        for (k, sum) in sums.iter_mut().enumerate() {
            let b = s * 4 + k;
            let inverse = _mm256_permutevar8x32_ps(inverses, _mm256_set1_epi32(b as i32));
            let codes = round_to_codes(&blocks[b], inverse);
            // SAFETY: in bounds.
            unsafe { _mm256_storeu_si256(super_block.codes[b].as_mut_ptr().cast(), codes) };
            let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
            *sum = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        }
        let [a, b, c, d] = sums;
        let halves = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
        let upper = _mm256_extracti128_si256::<1>(halves);
        let sums = _mm_add_epi32(_mm256_castsi256_si128(halves), upper);
        // SAFETY: in bounds.
        unsafe {
            _mm256_storeu_si256(super_block.half_sums[s].as_mut_ptr().cast(), halves);
            _mm_storeu_si128(
                super_block.sums.as_chunks_mut::<4>().0[s]
                    .as_mut_ptr()
                    .cast(),
                sums,
            );
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn max_magnitudes(x: &[f32; BLOCK]) -> __m256i {
    let mask = _mm256_set1_epi32(i32::MAX);
    let mut largest = _mm256_setzero_si256();
    for x in load(x) {
        let bits = _mm256_and_si256(_mm256_castps_si256(x), mask);
        largest = _mm256_max_epi32(largest, bits);
    }
    largest
}

#[inline]
#[target_feature(enable = "avx2")]
fn horizontal_max(x: [__m256i; BLOCKS]) -> __m256i {
    let mut fours = [_mm256_setzero_si256(); 2];
    for i in 0..2 {
        let [a, b, c, d] = [x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]];
        let ab = _mm256_max_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let cd = _mm256_max_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
        let low = _mm256_unpacklo_epi64(ab, cd);
        fours[i] = _mm256_max_epi32(low, _mm256_unpackhi_epi64(ab, cd));
    }
    let low = _mm256_permute2x128_si256::<0x20>(fours[0], fours[1]);
    let high = _mm256_permute2x128_si256::<0x31>(fours[0], fours[1]);
    _mm256_max_epi32(low, high)
}

#[inline]
#[target_feature(enable = "avx2")]
fn round_to_codes(x: &[f32; BLOCK], inverse: __m256) -> __m256i {
    let sign = _mm256_set1_ps(-0.0);
    let mut whole = [_mm256_setzero_si256(); 4];
    for (whole, x) in whole.iter_mut().zip(load(x)) {
        let scaled = _mm256_mul_ps(x, inverse);
        let half = _mm256_or_ps(_mm256_and_ps(scaled, sign), _mm256_set1_ps(BELOW_HALF));
        *whole = _mm256_cvttps_epi32(_mm256_add_ps(scaled, half));
    }
    let [a, b, c, d] = whole;
    let codes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    // Packing takes the lower halves of all registers before the upper ones.
    _mm256_permutevar8x32_epi32(codes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(x: &[f32; BLOCK]) -> [__m256; 4] {
    let x = x.as_chunks::<8>().0;
    let mut registers = [_mm256_setzero_ps(); 4];
    for i in 0..4 {
        // SAFETY: in bounds.
        registers[i] = unsafe { _mm256_loadu_ps(x[i].as_ptr()) };
    }
    registers
}
