//! Kernels for x86-64 with AVX2, FMA and F16C.

use std::arch::x86_64::*;

use htc_formats::DType;

use super::activations;
use super::bands::{self, ColumnGroupKernels};
use super::blocks::{
    Aligned, SEGMENT, block_decoder, decoder, float_kernels, force_to_memory, kernel_table, padded,
    prefetch, row_groups, six_bit_scales, small_batch_kernels, subarray,
};
use super::dot;
use super::heads::{
    AttentionKernels, ColumnOperands, attention_kernels, attention_table, decode_kernels,
};
use super::int_gemm;
use super::kernels::Kernels;
use super::lanes::{self, Loops, loop_table, with_features};
use super::matvec::decoded_matvec;
use super::plain;
use crate::matrix::Matrix;

kernel_table!(
    "avx2,fma,f16c",
    "x86-64-v3",
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c"),
    dot::avx2,
    int_gemm::avx2,
    "avxvnni",
    "x86-64-v3-vnni",
    dot::avx_vnni,
    int_gemm::avx_vnni
);

macro_rules! avx2 {
    ($($item:item)*) => {
        $(
            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            $item
        )*
    };
}

macro_rules! formats {
    ($kernels:ident: $(($module:ident, $bytes:literal, $len:literal, $unpack:ident),)*) => {
        $($kernels!("avx2,fma,f16c", $module, $bytes, $len, $unpack);)*
    };
}

formats! {
    float_kernels:
    (f32, 128, 32, unpack_f32),
    (f16, 64, 32, unpack_f16),
    (bf16, 64, 32, unpack_bf16),
}

formats! {
    decoder:
    (q8_0, 34, 32, unpack_q8_0),
    (q4_0, 18, 32, unpack_q4_0),
    (q4_k, 144, 256, unpack_q4_k),
    (q5_k, 176, 256, unpack_q5_k),
    (q6_k, 210, 256, unpack_q6_k),
}

small_batch_kernels!("avx2,fma,f16c", __m256);

attention_kernels!([target_feature(enable = "avx2,fma,f16c")], __m256);

const LANES: usize = 8;
const ACCUMULATORS: usize = 2;
const TILE_ROWS: usize = 4;
const TILE_VECTORS: usize = 3;
const REGISTERS: usize = 2;
const COLUMN_ROWS: usize = 6;
const VALUE_PARTS: usize = 2;

avx2! {
    fn zero() -> __m256 {
        _mm256_setzero_ps()
    }

    fn add(a: __m256, b: __m256) -> __m256 {
        _mm256_add_ps(a, b)
    }

    fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        _mm256_fmadd_ps(a, b, c)
    }

    fn mul(a: __m256, b: __m256) -> __m256 {
        _mm256_mul_ps(a, b)
    }

    fn broadcast(x: f32) -> __m256 {
        _mm256_set1_ps(x)
    }

    fn horizontal_sums([a, b, c, d]: [__m256; 4]) -> [f32; 4] {
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

    fn load_256(bytes: &[u8; 32]) -> __m256i {
        // SAFETY: in bounds.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    fn broadcast_f16(bytes: &[u8; 2]) -> __m256 {
        _mm256_cvtph_ps(_mm_set1_epi16(i16::from_le_bytes(*bytes)))
    }

    fn scale_and_subtract(q: __m256, d: __m256, m: __m256) -> __m256 {
        _mm256_sub_ps(_mm256_mul_ps(q, d), m)
    }

    fn i8_to_f32(bytes: __m128i) -> __m256 {
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))
    }

    fn u8_to_f32(bytes: __m128i) -> __m256 {
        _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes))
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

    fn scales_and_minima(supers: &[u8; 4], packed: &[u8; 12]) -> [[f32; 8]; 2] {
        let six_bits = six_bit_scales(packed).to_le_bytes();
        let mut numbers = [[0.0; 8]; 2];
        for (i, numbers) in numbers.iter_mut().enumerate() {
            let bytes = load_64(subarray(&six_bits, i * 8));
            store(numbers, _mm256_mul_ps(broadcast_f16(subarray(supers, i * 2)), u8_to_f32(bytes)));
        }
        [force_to_memory(numbers[0]), force_to_memory(numbers[1])]
    }

    fn unpack_f32<F: FnMut(usize, __m256)>(b: &[u8; 128], mut each: F) {
        for i in 0..4 {
            each(i, _mm256_castsi256_ps(load_256(subarray(b, i * 32))));
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

    fn unpack_q4_k<F: FnMut(usize, __m256)>(b: &[u8; 144], mut each: F) {
        let [scales, mins] = scales_and_minima(subarray(b, 0), subarray(b, 4));
        let mask = _mm256_set1_epi8(15);
        for pair in 0..4 {
            let bytes = load_256(subarray(b, 16 + pair * 32));
            let high = _mm256_srli_epi16::<4>(bytes);
            for (j, q) in [bytes, high].into_iter().enumerate() {
                let j = pair * 2 + j;
                let (d, m) = (_mm256_set1_ps(scales[j]), _mm256_set1_ps(mins[j]));
                for (i, q) in split_eights(_mm256_and_si256(q, mask)).into_iter().enumerate() {
                    each(j * 4 + i, scale_and_subtract(u8_to_f32(q), d, m));
                }
            }
        }
    }

    fn unpack_q5_k<F: FnMut(usize, __m256)>(b: &[u8; 176], mut each: F) {
        let [scales, mins] = scales_and_minima(subarray(b, 0), subarray(b, 4));
        let high_bits = load_256(subarray(b, 16));
        for j in 0..8 {
            let bytes = load_256(subarray(b, 48 + j / 2 * 32));
            let bytes = _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(j as i32 % 2 * 4));
            let low = _mm256_and_si256(bytes, _mm256_set1_epi8(15));
            let bit = _mm256_set1_epi8((1u8 << j).cast_signed());
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(high_bits, bit), bit);
            let q = _mm256_or_si256(low, _mm256_and_si256(set, _mm256_set1_epi8(16)));
            let (d, m) = (_mm256_set1_ps(scales[j]), _mm256_set1_ps(mins[j]));
            for (i, q) in split_eights(q).into_iter().enumerate() {
                each(j * 4 + i, scale_and_subtract(u8_to_f32(q), d, m));
            }
        }
    }

    fn unpack_q6_k<F: FnMut(usize, __m256)>(b: &[u8; 210], mut each: F) {
        let d = broadcast_f16(subarray(b, 208));
        let mut scales = [[0.0; 8]; 2];
        for (i, scales) in scales.iter_mut().enumerate() {
            store(scales, _mm256_mul_ps(d, i8_to_f32(load_64(subarray(b, 192 + i * 8)))));
        }
        let scales = [force_to_memory(scales[0]), force_to_memory(scales[1])];
        let scales = scales.as_flattened();
        for half in 0..2 {
            let low = [load_256(subarray(b, half * 64)), load_256(subarray(b, half * 64 + 32))];
            let high = load_256(subarray(b, 128 + half * 32));
            for quarter in 0..4 {
                let low = _mm256_srl_epi16(low[quarter % 2], _mm_cvtsi32_si128(quarter as i32 / 2 * 4));
                let low = _mm256_and_si256(low, _mm256_set1_epi8(15));
                let high = _mm256_srl_epi16(high, _mm_cvtsi32_si128(quarter as i32 * 2));
                let high = _mm256_slli_epi16::<4>(_mm256_and_si256(high, _mm256_set1_epi8(3)));
                let q = _mm256_sub_epi8(_mm256_or_si256(low, high), _mm256_set1_epi8(32));
                for (i, q) in split_eights(q).into_iter().enumerate() {
                    let index = half * 16 + quarter * 4 + i;
                    let d = _mm256_set1_ps(scales[index / 2]);
                    each(index, _mm256_mul_ps(d, i8_to_f32(q)));
                }
            }
        }
    }
}
