//! Kernels for x86-64 with AVX-512 (F, BW, DQ, VL).
//!
//! q4_0 uses table lookups: `vpermps` selects one of sixteen entries by the low four bits of each
//! lane and ignores the rest, so a nibble needs no mask, and the entries are already scaled.

use std::arch::x86_64::*;
use std::arch::x86_64::{
    _mm512_add_ps as add, _mm512_fmadd_ps as fma, _mm512_mul_ps as mul,
    _mm512_set1_ps as broadcast, _mm512_setzero_ps as zero,
};

use super::activations;
use super::bands;
use super::blocks::{Integer, compiled_for, kernel_table, prefetch_far as prefetch, subarray};
use super::dot;
use super::int_gemm;

/// Returns the tables with and without VNNI, each if the processor supports its instructions.
pub(super) fn kernels() -> [Option<&'static Kernels>; 2] {
    static WITH: Kernels = Kernels {
        name: "x86-64-v4-vnni",
        dot: dot::avx512,
        int_gemm: Some(int_gemm::avx512),
        ..KERNELS
    };
    static WITHOUT: Kernels = KERNELS;
    let detected = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    let vnni = detected && is_x86_feature_detected!("avx512vnni");
    [vnni.then_some(&WITH), detected.then_some(&WITHOUT)]
}

/// Returns the kernel table with VBMI byte permutations and GFNI bit-matrix products if the
/// processor supports them. All processors with VBMI have GFNI, except Cannon Lake.
pub(super) fn with_vbmi() -> Option<&'static Kernels> {
    static WITH: Kernels = Kernels {
        name: "x86-64-v4-vbmi",
        dot: dot::avx512_gfni,
        int_gemm: Some(int_gemm::avx512),
        column_groups: bands::avx512::KERNELS,
        ..KERNELS
    };
    let [vnni, _] = kernels();
    let more = is_x86_feature_detected!("avx512vbmi") && is_x86_feature_detected!("gfni");
    (vnni.is_some() && more).then_some(&WITH)
}

kernel_table! {
    "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c", __m512, {
        name: "x86-64-v4",
        dot: dot::avx2,
        int_gemm: Some(int_gemm::avx2),
        quantise: activations::avx2::QUANTISE,
        column_groups: bands::avx2::KERNELS,
    },
    Q8_0 q8_0 34 32 unpack_q8_0,
    Q4_0 q4_0 18 32 unpack_q4_0,
}

const LANES: usize = 16;
const ACCUMULATORS: usize = 4;
const TILE_ROWS: usize = 8;
const TILE_VECTORS: usize = 3;
const REGISTERS: usize = 4;
const COLUMN_ROWS: usize = 6;
const VALUE_PARTS: usize = 4;

compiled_for! {
    "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c";

    /// Returns the horizontal sum of each register.
    pub(super) fn horizontal_sums(a: [__m512; 4]) -> [f32; 4] {
        let mut halves = [_mm256_setzero_ps(); 4];
        for i in 0..4 {
            let high = _mm512_extractf32x8_ps::<1>(a[i]);
            halves[i] = _mm256_add_ps(_mm512_castps512_ps256(a[i]), high);
        }
        let [a, b, c, d] = halves;
        let sums = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
        let sums = _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums));
        let mut numbers = [0.0; 4];
        // SAFETY: in bounds.
        unsafe { _mm_storeu_ps(numbers.as_mut_ptr(), sums) };
        numbers
    }

    fn load_first(x: &[f32]) -> __m512 {
        let mask = ((1u32 << x.len().min(LANES)) - 1) as u16;
        // SAFETY: only lanes below the length are read.
        unsafe { _mm512_maskz_loadu_ps(mask, x.as_ptr()) }
    }

    fn load(x: &[f32; LANES]) -> __m512 {
        // SAFETY: in bounds.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }

    fn store(x: &mut [f32; LANES], value: __m512) {
        // SAFETY: in bounds.
        unsafe { _mm512_storeu_ps(x.as_mut_ptr(), value) }
    }

    fn load_halves(halves: &[u16; LANES]) -> __m512 {
        // SAFETY: in bounds.
        _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(halves.as_ptr().cast()) })
    }

    fn store_halves(halves: &mut [u16; LANES], numbers: __m512) {
        let rounded = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(numbers);
        // SAFETY: in bounds.
        unsafe { _mm256_storeu_si256(halves.as_mut_ptr().cast(), rounded) };
    }

    pub(super) fn load_128(bytes: &[u8; 16]) -> __m128i {
        // Not `loadu`, which the compiler may split. SAFETY: the read stays within the array.
        unsafe { _mm_lddqu_si128(bytes.as_ptr().cast()) }
    }

    /// Loads 32 bytes of integers.
    pub(super) fn load_256<T: Integer, const N: usize>(integers: &[T; N]) -> __m256i {
        const { assert!(size_of::<[T; N]>() == 32) };
        // SAFETY: in bounds.
        unsafe { _mm256_loadu_si256(integers.as_ptr().cast()) }
    }

    /// Loads 64 bytes of integers.
    pub(super) fn load_512<T: Integer, const N: usize>(integers: &[T; N]) -> __m512i {
        const { assert!(size_of::<[T; N]>() == 64) };
        // SAFETY: in bounds.
        unsafe { _mm512_loadu_si512(integers.as_ptr().cast()) }
    }

    fn broadcast_f16(bytes: &[u8; 8]) -> __m512 {
        let halves = _mm_cvtsi64_si128(i64::from_le_bytes(*bytes));
        _mm512_broadcastss_ps(_mm_cvtph_ps(halves))
    }

    fn i8_to_f32(bytes: __m128i) -> __m512 {
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))
    }

    fn iota() -> __m512 {
        _mm512_setr_ps(
            0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
        )
    }

    fn unpack_f32<F: FnMut(usize, __m512)>(b: &[u8; 128], mut each: F) {
        for i in 0..2 {
            each(i, _mm512_castsi512_ps(load_512(subarray::<64>(b, i * 64))));
        }
    }

    fn unpack_f16<F: FnMut(usize, __m512)>(b: &[u8; 64], mut each: F) {
        for i in 0..2 {
            each(i, _mm512_cvtph_ps(load_256(subarray::<32>(b, i * 32))));
        }
    }

    fn unpack_bf16<F: FnMut(usize, __m512)>(b: &[u8; 64], mut each: F) {
        for i in 0..2 {
            let wide = _mm512_cvtepu16_epi32(load_256(subarray::<32>(b, i * 32)));
            each(i, _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)));
        }
    }

    fn unpack_q8_0<F: FnMut(usize, __m512)>(b: &[u8; 34], mut each: F) {
        let d = broadcast_f16(subarray(b, 0));
        for i in 0..2 {
            each(i, _mm512_mul_ps(i8_to_f32(load_128(subarray(b, 2 + i * 16))), d));
        }
    }

    fn unpack_q4_0<F: FnMut(usize, __m512)>(b: &[u8; 18], mut each: F) {
        let centred = _mm512_sub_ps(iota(), _mm512_set1_ps(8.0));
        let entries = _mm512_mul_ps(centred, broadcast_f16(subarray(b, 0)));
        let nibbles = _mm512_cvtepu8_epi32(load_128(subarray(b, 2)));
        each(0, _mm512_permutexvar_ps(nibbles, entries));
        each(1, _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(nibbles), entries));
    }
}
