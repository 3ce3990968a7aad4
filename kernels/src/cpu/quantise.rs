//! [`activations::quantise`](super::activations::quantise) with AVX-512, bit for bit the same: the
//! maxima of eight blocks are found together, which leaves four operations a register for the
//! codes and few for the rest.

use std::arch::x86_64::*;

use super::activations::{BLOCKS, SMALLEST, STRIP, Strip};

/// Where the processor has the instructions.
pub(super) fn avx512() -> Option<fn(&[f32], &mut [Strip])> {
    let detected = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni");
    detected.then_some(|x, out| {
        // SAFETY: the processor has been asked.
        unsafe { strips(x, out) }
    })
}

macro_rules! avx512 {
    ($($item:item)*) => {
        $(
            #[inline]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
            $item
        )*
    };
}

avx512! {
    fn strips(x: &[f32], out: &mut [Strip]) {
        let (whole, rest) = x.as_chunks::<STRIP>();
        for (x, strip) in whole.iter().zip(&mut *out) {
            quantise(x, strip);
        }
        if !rest.is_empty() {
            // What lies behind the end is zero, and so are its codes, scales and sums.
            let mut last = [0.0; STRIP];
            last[..rest.len()].copy_from_slice(rest);
            if let Some(strip) = out.get_mut(whole.len()) {
                quantise(&last, strip);
            }
        }
    }

    fn load(x: &[f32; 16]) -> __m512 {
        // SAFETY: the array has the bytes that are read.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }

    fn quantise(x: &[f32; STRIP], strip: &mut Strip) {
        for line in 0..16 {
            // The strip that comes next.
            _mm_prefetch::<_MM_HINT_T0>(x.as_ptr().wrapping_add(STRIP + 16 * line).cast());
        }
        let x = x.as_chunks::<16>().0;
        let mut halves = [_mm256_setzero_si256(); BLOCKS];
        for b in 0..BLOCKS {
            // Magnitudes are in the order of their bits, infinity and NaN above all others.
            let a = _mm512_castps_si512(_mm512_abs_ps(load(&x[2 * b])));
            let c = _mm512_castps_si512(_mm512_abs_ps(load(&x[2 * b + 1])));
            let m = _mm512_max_epi32(a, c);
            let high = _mm512_extracti64x4_epi64::<1>(m);
            halves[b] = _mm256_max_epi32(_mm512_castsi512_si256(m), high);
        }
        let mut quarters = [_mm256_setzero_si256(); 2];
        for i in 0..2 {
            let [a, b, c, d] = [halves[4 * i], halves[4 * i + 1], halves[4 * i + 2], halves[4 * i + 3]];
            let ab = _mm256_max_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let cd = _mm256_max_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
            quarters[i] =
                _mm256_max_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
        }
        let largest = _mm256_castsi256_ps(_mm256_max_epi32(
            _mm256_permute2x128_si256::<0x20>(quarters[0], quarters[1]),
            _mm256_permute2x128_si256::<0x31>(quarters[0], quarters[1]),
        ));
        let finite = _mm256_cmp_ps_mask::<_CMP_LT_OQ>(largest, _mm256_set1_ps(f32::INFINITY));
        let usual = finite & _mm256_cmp_ps_mask::<_CMP_GE_OQ>(largest, _mm256_set1_ps(SMALLEST));
        let limit = _mm256_set1_ps(127.0);
        let scales = _mm256_maskz_div_ps(usual, largest, limit);
        let scales = _mm256_mask_mov_ps(_mm256_set1_ps(f32::NAN), finite, scales);
        // SAFETY: the array has the bytes that are written.
        unsafe { _mm256_storeu_ps(strip.scales.as_mut_ptr(), scales) };
        let mut inverses = [0.0; BLOCKS];
        // SAFETY: the array has the bytes that are written.
        unsafe { _mm256_storeu_ps(inverses.as_mut_ptr(), _mm256_maskz_div_ps(usual, limit, largest)) };

        let mut sums = [_mm256_setzero_si256(); BLOCKS];
        for b in 0..BLOCKS {
            let inverse = _mm512_set1_ps(inverses[b]);
            let low = codes(_mm512_mul_ps(load(&x[2 * b]), inverse));
            let high = codes(_mm512_mul_ps(load(&x[2 * b + 1]), inverse));
            let codes = _mm256_set_m128i(high, low);
            // SAFETY: the array has the bytes that are written.
            unsafe { _mm256_storeu_si256(strip.codes[b].as_mut_ptr().cast(), codes) };
            sums[b] = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), codes);
        }
        let mut totals = [_mm_setzero_si128(); 2];
        for i in 0..2 {
            let ab = _mm256_hadd_epi32(sums[4 * i], sums[4 * i + 1]);
            let cd = _mm256_hadd_epi32(sums[4 * i + 2], sums[4 * i + 3]);
            let sums = _mm256_hadd_epi32(ab, cd);
            // SAFETY: the array has the bytes that are written.
            unsafe { _mm256_storeu_si256(strip.half_sums[i].as_mut_ptr().cast(), sums) };
            totals[i] = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
        }
        let totals = _mm256_set_m128i(totals[1], totals[0]);
        // SAFETY: the array has the bytes that are written.
        unsafe { _mm256_storeu_si256(strip.sums.as_mut_ptr().cast(), totals) };
    }

    /// Rounds half away from zero; the code of a NaN is zero.
    fn codes(scaled: __m512) -> __m128i {
        /// As in `activations`.
        const HALF: f32 = 0.499_999_97;
        let sign = _mm512_set1_ps(-0.0);
        let half = _mm512_ternarylogic_epi32::<0xF8>(
            _mm512_set1_epi32(HALF.to_bits().cast_signed()),
            _mm512_castps_si512(scaled),
            _mm512_castps_si512(sign),
        );
        let whole = _mm512_cvttps_epi32(_mm512_add_ps(scaled, _mm512_castsi512_ps(half)));
        _mm512_cvtepi32_epi8(whole)
    }
}
