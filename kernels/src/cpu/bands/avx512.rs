//! Column group kernels for x86-64 with AVX-512 (F, BW, DQ, VL, VBMI, VNNI).

use std::arch::x86_64::*;
use std::arch::x86_64::{
    _mm512_add_epi8 as add_bytes, _mm512_add_epi32 as add_i32, _mm512_dpbusd_epi32 as dot,
    _mm512_set1_epi32 as broadcast_i32,
};
use std::ops::Range;

use htc_formats::bands::{
    CHUNK, Code, CodeKind, GROUP_COLS, GROUP_ROWS, QUADS_PER_GROUP, SCALE_BYTES,
};

use super::wide::{
    Bytes, CODEBOOK_TABLES, FOUR_SCALES, MAX_PARTS, Plane, SCALES, STREAM_BYTES, StreamPattern,
    THREE_BITS, TRELLISES, TrellisTables, WIDTH, WINDOWS, Windows, byte_permute_kernels,
    interleaved, separated, spread,
};
use super::{
    ColumnGroupKernels, GROUPS, GroupScratch, GroupWeights, RowValues, VectorGroup, by_bits,
    subarray,
};
use crate::cpu::blocks::{compiled_for, supported};

type Register = __m512i;

const MAX_VECTORS: usize = 64;

/// Used only in kernel tables for processors with these instructions.
pub(in crate::cpu) const KERNELS: ColumnGroupKernels = ColumnGroupKernels {
    unpack: supported!(|code, column_group, groups, out| unpack),
    add: supported!(|integers, factors, vectors, sums| add),
    multiply: supported!(|code, column_group, groups, vector, scratch, sums| multiply),
};

byte_permute_kernels!(
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx2,fma,f16c"
    )]
);

compiled_for! {
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx2,fma,f16c";

    fn load_constant(bytes: &Bytes) -> __m512i {
        // SAFETY: in bounds.
        unsafe { _mm512_loadu_si512(bytes.0.as_ptr().cast()) }
    }

    fn load(bytes: &[u8]) -> __m512i {
        let mask = u64::MAX >> (WIDTH - bytes.len().clamp(1, WIDTH));
        // SAFETY: the mask covers exactly the bytes of the slice, which is never empty.
        unsafe { _mm512_maskz_loadu_epi8(mask, bytes.as_ptr().cast()) }
    }

    fn load_whole(bytes: &[u8; WIDTH]) -> __m512i {
        // SAFETY: in bounds.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    fn load_integers(integers: &[i8; CHUNK]) -> __m512i {
        // SAFETY: in bounds.
        unsafe { _mm512_loadu_si512(integers.as_ptr().cast()) }
    }

    fn load_with_next(bytes: &[u8], next: u16) -> __m512i {
        let place = 1_u64.checked_shl(bytes.len() as u32 / 2).unwrap_or(0) as u32;
        _mm512_mask_set1_epi16(load(bytes), place, next.cast_signed())
    }

    fn store(to: &mut [i8; WIDTH], bytes: __m512i) {
        // SAFETY: in bounds.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), bytes) }
    }

    fn permute(bytes: __m512i, index: __m512i) -> __m512i {
        _mm512_permutexvar_epi8(index, bytes)
    }

    fn permute_two(bytes: [__m512i; 2], index: __m512i) -> __m512i {
        _mm512_permutex2var_epi8(bytes[0], index, bytes[1])
    }

    fn extract_bits(from: __m512i, words: __m512i) -> __m512i {
        _mm512_multishift_epi64_epi8(from, words)
    }

    fn shift_right_i16<const BY: u32>(a: __m512i) -> __m512i {
        _mm512_srli_epi16::<BY>(a)
    }

    fn select(mask: __m512i, a: __m512i, b: __m512i) -> __m512i {
        // Bit by bit: a where the mask is set, else b.
        _mm512_ternarylogic_epi64::<0b1100_1010>(mask, a, b)
    }

    fn max_i8(a: __m512i, least: i8) -> __m512i {
        _mm512_max_epi8(a, _mm512_set1_epi8(least))
    }

    fn flip_sign_bits(a: __m512i) -> __m512i {
        _mm512_xor_si512(a, _mm512_set1_epi8(-128))
    }

    fn accumulate(sums: &mut RowValues, totals: __m512i, scale: f32, factors: &RowValues) {
        // SAFETY: in bounds.
        let factors = unsafe { _mm512_loadu_ps(factors.as_ptr()) };
        add_products(sums, totals, _mm512_mul_ps(_mm512_set1_ps(scale), factors));
    }

    fn accumulate_with_factor(sums: &mut RowValues, totals: __m512i, factor: f32) {
        add_products(sums, totals, _mm512_set1_ps(factor));
    }

    fn accumulate_with_bytes(sums: &mut RowValues, totals: __m512i, scale: f32, scales: &[u8; GROUP_ROWS]) {
        // SAFETY: in bounds.
        let scales = unsafe { _mm_loadu_si128(scales.as_ptr().cast()) };
        let scales = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(scales));
        add_products(sums, totals, _mm512_mul_ps(_mm512_set1_ps(scale), scales));
    }

    fn add_products(sums: &mut RowValues, totals: __m512i, factors: __m512) {
        // SAFETY: in bounds.
        unsafe {
            let sum = _mm512_loadu_ps(sums.as_ptr());
            let sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(totals), factors, sum);
            _mm512_storeu_ps(sums.as_mut_ptr(), sum);
        }
    }
}
