//! Version for x86-64 with AVX-512 (F, BW, DQ, VL) and VNNI.

use std::arch::x86_64::{
    _mm512_add_ps as add, _mm512_cvtepi32_ps as to_floats, _mm512_dpbusd_epi32 as dot,
    _mm512_fmadd_ps as fma, _mm512_mul_ps as mul, _mm512_set1_epi32 as broadcast_integer,
    _mm512_set1_ps as broadcast, _mm512_setzero_si512 as zero,
};

use super::tiles::{int_gemm_kernel, vnni_products};
use crate::cpu::blocks::compiled_for;

const LANES: usize = 16;
const ROW_REGISTERS: usize = 2;
const TILE_VECTORS: usize = 6;
const MIDDLE_TILE_VECTORS: usize = 4;

type Integers = __m512i;

int_gemm_kernel!("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c");

vnni_products!("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c");

compiled_for! {
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c";

    fn negate(x: __m512) -> __m512 {
        _mm512_xor_ps(x, _mm512_set1_ps(-0.0))
    }

    fn load(x: &[f32; PANEL_ROWS], at: usize) -> __m512 {
        let x: &[f32] = &x[at..at + LANES];
        // SAFETY: in bounds.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }

    fn store(out: &mut [f32; PANEL_ROWS], at: usize, x: __m512) {
        let out: &mut [f32] = &mut out[at..at + LANES];
        // SAFETY: in bounds.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), x) }
    }

    fn load_codes(codes: &[[u8; 4]; PANEL_ROWS], at: usize) -> __m512i {
        let codes: &[[u8; 4]] = &codes[at..at + LANES];
        // SAFETY: in bounds.
        unsafe { _mm512_loadu_si512(codes.as_ptr().cast()) }
    }

    fn store_codes(out: &mut [[u8; 4]; PANEL_ROWS], at: usize, x: __m512i) {
        let out: &mut [[u8; 4]] = &mut out[at..at + LANES];
        // SAFETY: in bounds.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), x) }
    }

    fn add_bytes(x: __m512i, bias: u8) -> __m512i {
        _mm512_add_epi8(x, _mm512_set1_epi8(bias.cast_signed()))
    }

    fn look_up(table: &[i8; 16], x: __m512i) -> __m512i {
        // SAFETY: in bounds.
        let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
        _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), x)
    }

    fn f16_to_f32(halves: &[[u8; 2]; LANES]) -> __m512 {
        // SAFETY: in bounds.
        _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(halves.as_ptr().cast()) })
    }

    fn transpose_words(rows: [__m256i; LANES]) -> [__m512i; 8] {
        let mut halves = [[_mm512_setzero_si512(); 4]; 2];
        for half in 0..2 {
            let mut pairs = [_mm512_setzero_si512(); 4];
            for i in 0..4 {
                let low = _mm512_castsi256_si512(rows[8 * half + i]);
                pairs[i] = _mm512_inserti64x4::<1>(low, rows[8 * half + 4 + i]);
            }
            // Every 128 bits are a row of a 4 by 4 matrix of words.
            let a = _mm512_unpacklo_epi32(pairs[0], pairs[1]);
            let b = _mm512_unpackhi_epi32(pairs[0], pairs[1]);
            let c = _mm512_unpacklo_epi32(pairs[2], pairs[3]);
            let d = _mm512_unpackhi_epi32(pairs[2], pairs[3]);
            halves[half] = [
                _mm512_unpacklo_epi64(a, c),
                _mm512_unpackhi_epi64(a, c),
                _mm512_unpacklo_epi64(b, d),
                _mm512_unpackhi_epi64(b, d),
            ];
        }
        let mut out = [_mm512_setzero_si512(); 8];
        for k in 0..4 {
            let (a, b) = (halves[0][k], halves[1][k]);
            out[k] = _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b);
            out[4 + k] = _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b);
        }
        out
    }

}
