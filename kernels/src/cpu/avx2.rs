//! Kernels for x86-64 with AVX2, FMA and F16C.

use std::arch::x86_64::*;
use std::arch::x86_64::{
    _mm256_add_ps as add, _mm256_fmadd_ps as fma, _mm256_mul_ps as mul,
    _mm256_set1_ps as broadcast, _mm256_setzero_ps as zero,
};

use super::activations;
use super::bands;
use super::blocks::{Integer, compiled_for, kernel_table, prefetch, subarray};
use super::dot;
use super::int_gemm;

/// Returns the tables with and without VNNI, each if the processor supports its instructions.
pub(super) fn kernels() -> [Option<&'static Kernels>; 2] {
    static WITH: Kernels = Kernels {
        name: "x86-64-v3-vnni",
        dot: dot::avx_vnni,
        int_gemm: Some(int_gemm::avx_vnni),
        ..KERNELS
    };
    static WITHOUT: Kernels = KERNELS;
    let detected = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    let vnni = detected && is_x86_feature_detected!("avxvnni");
    [vnni.then_some(&WITH), detected.then_some(&WITHOUT)]
}

kernel_table! {
    "avx2,fma,f16c", __m256, {
        name: "x86-64-v3",
        dot: dot::avx2,
        int_gemm: Some(int_gemm::avx2),
        quantise: activations::avx2::QUANTISE,
        column_groups: bands::avx2::KERNELS,
    },
    Q8_0 q8_0 34 32 unpack_q8_0,
    Q4_0 q4_0 18 32 unpack_q4_0,
}

const LANES: usize = 8;
const ACCUMULATORS: usize = 2;
const TILE_ROWS: usize = 4;
const TILE_VECTORS: usize = 3;
const REGISTERS: usize = 2;
const COLUMN_ROWS: usize = 6;
const VALUE_PARTS: usize = 2;

compiled_for! {
    "avx2,fma,f16c";

    pub(super) fn horizontal_sums([a, b, c, d]: [__m256; 4]) -> [f32; 4] {
        let sums = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
        let sums = _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums));
        let mut numbers = [0.0; 4];
        // SAFETY: in bounds.
        unsafe { _mm_storeu_ps(numbers.as_mut_ptr(), sums) };
        numbers
    }

    fn load_first(x: &[f32]) -> __m256 {
        let count = _mm256_set1_epi32(x.len().min(LANES) as i32);
        let mask = _mm256_cmpgt_epi32(count, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        // SAFETY: only lanes below the length are read.
        unsafe { _mm256_maskload_ps(x.as_ptr(), mask) }
    }

    fn load(x: &[f32; LANES]) -> __m256 {
        // SAFETY: in bounds.
        unsafe { _mm256_loadu_ps(x.as_ptr()) }
    }

    fn store(x: &mut [f32; LANES], value: __m256) {
        // SAFETY: in bounds.
        unsafe { _mm256_storeu_ps(x.as_mut_ptr(), value) }
    }

    fn load_halves(halves: &[u16; LANES]) -> __m256 {
        // SAFETY: in bounds.
        _mm256_cvtph_ps(unsafe { _mm_loadu_si128(halves.as_ptr().cast()) })
    }

    fn store_halves(halves: &mut [u16; LANES], numbers: __m256) {
        let rounded = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(numbers);
        // SAFETY: in bounds.
        unsafe { _mm_storeu_si128(halves.as_mut_ptr().cast(), rounded) };
    }

    fn load_64(bytes: &[u8; 8]) -> __m128i {
        _mm_cvtsi64_si128(i64::from_le_bytes(*bytes))
    }

    fn load_128(bytes: &[u8; 16]) -> __m128i {
        // SAFETY: in bounds.
        unsafe { _mm_lddqu_si128(bytes.as_ptr().cast()) }
    }

    /// Loads 32 bytes of integers.
    pub(super) fn load_256<T: Integer, const N: usize>(integers: &[T; N]) -> __m256i {
        const { assert!(size_of::<[T; N]>() == 32) };
        // SAFETY: in bounds.
        unsafe { _mm256_loadu_si256(integers.as_ptr().cast()) }
    }

    pub(super) fn broadcast_f16(bytes: &[u8; 2]) -> __m256 {
        _mm256_cvtph_ps(_mm_set1_epi16(i16::from_le_bytes(*bytes)))
    }

    pub(super) fn i8_to_f32(bytes: __m128i) -> __m256 {
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))
    }

    fn split_eights(bytes: __m256i) -> [__m128i; 4] {
        let low = _mm256_castsi256_si128(bytes);
        let high = _mm256_extracti128_si256::<1>(bytes);
        [
            low,
            _mm_unpackhi_epi64(low, low),
            high,
            _mm_unpackhi_epi64(high, high),
        ]
    }

    fn unpack_f32<F: FnMut(usize, __m256)>(b: &[u8; 128], mut each: F) {
        for i in 0..4 {
            each(i, _mm256_castsi256_ps(load_256(subarray::<32>(b, i * 32))));
        }
    }

    fn unpack_f16<F: FnMut(usize, __m256)>(b: &[u8; 64], mut each: F) {
        for i in 0..4 {
            each(i, _mm256_cvtph_ps(load_128(subarray(b, i * 16))));
        }
    }

    fn unpack_bf16<F: FnMut(usize, __m256)>(b: &[u8; 64], mut each: F) {
        for i in 0..4 {
            let wide = _mm256_cvtepu16_epi32(load_128(subarray(b, i * 16)));
            each(i, _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide)));
        }
    }

    fn unpack_q8_0<F: FnMut(usize, __m256)>(b: &[u8; 34], mut each: F) {
        let d = broadcast_f16(subarray(b, 0));
        for i in 0..4 {
            each(i, _mm256_mul_ps(i8_to_f32(load_64(subarray(b, 2 + i * 8))), d));
        }
    }

    fn unpack_q4_0<F: FnMut(usize, __m256)>(b: &[u8; 18], mut each: F) {
        let d = broadcast_f16(subarray(b, 0));
        let bytes = load_128(subarray(b, 2));
        let mask = _mm_set1_epi8(15);
        let low = _mm_and_si128(bytes, mask);
        let high = _mm_and_si128(_mm_srli_epi16::<4>(bytes), mask);
        let q = _mm256_sub_epi8(_mm256_set_m128i(high, low), _mm256_set1_epi8(8));
        for (i, q) in split_eights(q).into_iter().enumerate() {
            each(i, _mm256_mul_ps(i8_to_f32(q), d));
        }
    }
}
