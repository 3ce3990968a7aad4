//! Kernels for x86-64 with AVX-512 (F, BW, DQ, VL).
//!
//! Four-bit formats use table lookups: `vpermps` selects one of sixteen entries by the low four
//! bits of each lane and ignores the rest, so a nibble needs no mask, and the entries are already
//! scaled. Five bits take two registers of entries.

use std::arch::x86_64::*;

use htc_formats::DType;

use super::activations;
use super::bands::{self, ColumnGroupKernels};
use super::blocks::{
    Aligned, SEGMENT, block_decoder, decoder, float_kernels, force_to_memory, kernel_table, padded,
    prefetch_far as prefetch, row_groups, six_bit_scales, small_batch_kernels, subarray,
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
    "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c",
    "x86-64-v4",
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c"),
    dot::avx2,
    int_gemm::avx2,
    "avx512vnni",
    "x86-64-v4-vnni",
    dot::avx512,
    int_gemm::avx512
);

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

macro_rules! avx512 {
    ($($item:item)*) => {
        $(
            #[inline]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            $item
        )*
    };
}

macro_rules! formats {
    ($kernels:ident: $(($module:ident, $bytes:literal, $len:literal, $unpack:ident),)*) => {
        $($kernels!("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c", $module, $bytes, $len, $unpack);)*
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

small_batch_kernels!("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c", __m512);

attention_kernels!(
    [target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"
    )],
    __m512
);

const LANES: usize = 16;
const ACCUMULATORS: usize = 4;
const TILE_ROWS: usize = 8;
const TILE_VECTORS: usize = 3;
const REGISTERS: usize = 4;
const COLUMN_ROWS: usize = 6;
const VALUE_PARTS: usize = 4;

avx512! {
    fn zero() -> __m512 {
        _mm512_setzero_ps()
    }

    fn add(a: __m512, b: __m512) -> __m512 {
        _mm512_add_ps(a, b)
    }

    fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, c)
    }

    fn mul(a: __m512, b: __m512) -> __m512 {
        _mm512_mul_ps(a, b)
    }

    fn broadcast(x: f32) -> __m512 {
        _mm512_set1_ps(x)
    }

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

    pub(super) fn load_256(bytes: &[u8; 32]) -> __m256i {
        // SAFETY: in bounds.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    pub(super) fn load_512(bytes: &[u8; 64]) -> __m512i {
        // SAFETY: in bounds.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    fn broadcast_f16(bytes: &[u8; 8]) -> __m512 {
        let halves = _mm_cvtsi64_si128(i64::from_le_bytes(*bytes));
        _mm512_broadcastss_ps(_mm_cvtph_ps(halves))
    }

    fn scale_and_subtract(q: __m512, d: f32, m: f32) -> __m512 {
        _mm512_sub_ps(_mm512_mul_ps(q, _mm512_set1_ps(d)), _mm512_set1_ps(m))
    }

    fn i8_to_f32(bytes: __m128i) -> __m512 {
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))
    }

    fn iota() -> __m512 {
        _mm512_setr_ps(
            0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
        )
    }

    fn scales_and_minima(supers: &[u8; 4], packed: &[u8; 12]) -> [f32; LANES] {
        let six_bits = six_bit_scales(packed).cast_signed();
        let bytes = _mm_set_epi64x((six_bits >> 64) as i64, six_bits as i64);
        let supers = _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from_le_bytes(*supers)));
        let pick = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
        let supers = _mm512_permutexvar_ps(pick, _mm512_castps128_ps512(supers));
        let mut numbers = [0.0; LANES];
        store(&mut numbers, _mm512_mul_ps(supers, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))));
        force_to_memory(numbers)
    }

    fn unpack_f32<F: FnMut(usize, __m512)>(b: &[u8; 128], mut each: F) {
        for i in 0..2 {
            each(i, _mm512_castsi512_ps(load_512(subarray(b, i * 64))));
        }
    }

    fn unpack_f16<F: FnMut(usize, __m512)>(b: &[u8; 64], mut each: F) {
        for i in 0..2 {
            each(i, _mm512_cvtph_ps(load_256(subarray(b, i * 32))));
        }
    }

    fn unpack_bf16<F: FnMut(usize, __m512)>(b: &[u8; 64], mut each: F) {
        for i in 0..2 {
            let wide = _mm512_cvtepu16_epi32(load_256(subarray(b, i * 32)));
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

    fn unpack_q4_k<F: FnMut(usize, __m512)>(b: &[u8; 144], mut each: F) {
        let scales = scales_and_minima(subarray(b, 0), subarray(b, 4));
        for pair in 0..4 {
            let j = pair * 2;
            let low = scale_and_subtract(iota(), scales[j], scales[j + 8]);
            let high = scale_and_subtract(iota(), scales[j + 1], scales[j + 9]);
            let nibbles = [
                _mm512_cvtepu8_epi32(load_128(subarray(b, 16 + pair * 32))),
                _mm512_cvtepu8_epi32(load_128(subarray(b, 16 + pair * 32 + 16))),
            ];
            for (i, nibbles) in nibbles.into_iter().enumerate() {
                each(pair * 4 + i, _mm512_permutexvar_ps(nibbles, low));
                let nibbles = _mm512_srli_epi32::<4>(nibbles);
                each(pair * 4 + 2 + i, _mm512_permutexvar_ps(nibbles, high));
            }
        }
    }

    fn unpack_q5_k<F: FnMut(usize, __m512)>(b: &[u8; 176], mut each: F) {
        let scales = scales_and_minima(subarray(b, 0), subarray(b, 4));
        let upper = _mm512_add_ps(iota(), _mm512_set1_ps(16.0));
        let high_bits = [
            _mm512_cvtepu8_epi32(load_128(subarray(b, 16))),
            _mm512_cvtepu8_epi32(load_128(subarray(b, 32))),
        ];
        for j in 0..8 {
            let entries = [
                scale_and_subtract(iota(), scales[j], scales[j + 8]),
                scale_and_subtract(upper, scales[j], scales[j + 8]),
            ];
            for (i, high_bits) in high_bits.into_iter().enumerate() {
                let nibbles = _mm512_cvtepu8_epi32(load_128(subarray(b, 48 + j / 2 * 32 + i * 16)));
                let nibbles = _mm512_srlv_epi32(nibbles, _mm512_set1_epi32(j as i32 % 2 * 4));
                // Moves bit j of the high bits to bit 4.
                let high = _mm512_rolv_epi32(high_bits, _mm512_set1_epi32((36 - j as i32) % 32));
                let mask = _mm512_set1_epi32(15);
                let index = _mm512_ternarylogic_epi32::<0xE4>(nibbles, high, mask);
                each(j * 2 + i, _mm512_permutex2var_ps(entries[0], index, entries[1]));
            }
        }
    }

    fn unpack_q6_k<F: FnMut(usize, __m512)>(b: &[u8; 210], mut each: F) {
        let d = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16::from_le_bytes(*subarray(b, 208))))));
        let mut scales = [0.0; LANES];
        store(&mut scales, _mm512_mul_ps(_mm512_set1_ps(d), i8_to_f32(load_128(subarray(b, 192)))));
        let scales = force_to_memory(scales);
        for half in 0..2 {
            let low = load_512(subarray(b, half * 64));
            let high = load_256(subarray(b, 128 + half * 32));
            // Quarters 0 and 1 in the two halves of a register, 2 and 3 two bits further up.
            let high = _mm512_inserti64x4::<1>(
                _mm512_castsi256_si512(high),
                _mm256_srli_epi16::<2>(high),
            );
            let mask = _mm512_set1_epi8(0x0F);
            let field = _mm512_set1_epi8(0x30);
            let quarters = [
                (low, _mm512_slli_epi16::<4>(high)),
                (_mm512_srli_epi16::<4>(low), high),
            ];
            for (pair, (low, high)) in quarters.into_iter().enumerate() {
                let q = _mm512_or_si512(_mm512_and_si512(low, mask), _mm512_and_si512(high, field));
                let q = _mm512_sub_epi8(q, _mm512_set1_epi8(32));
                let parts = [
                    _mm512_castsi512_si128(q),
                    _mm512_extracti32x4_epi32::<1>(q),
                    _mm512_extracti32x4_epi32::<2>(q),
                    _mm512_extracti32x4_epi32::<3>(q),
                ];
                for (i, q) in parts.into_iter().enumerate() {
                    let index = half * 8 + pair * 4 + i;
                    each(index, _mm512_mul_ps(_mm512_set1_ps(scales[index]), i8_to_f32(q)));
                }
            }
        }
    }
}
