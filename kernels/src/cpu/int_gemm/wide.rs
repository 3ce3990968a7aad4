//! Operations on 256-bit registers.

/// Defines the operations of [`int_gemm_kernel`](super::tiles::int_gemm_kernel) for eight rows per
/// register.
macro_rules! avx2_register_operations {
    ($features:literal) => {
        use std::arch::x86_64::{
            _mm256_add_ps as add, _mm256_cvtepi32_ps as to_floats, _mm256_fmadd_ps as fma,
            _mm256_mul_ps as mul, _mm256_set1_epi32 as broadcast_integer,
            _mm256_set1_ps as broadcast, _mm256_setzero_si256 as zero,
        };

        use crate::cpu::blocks::compiled_for;

        const LANES: usize = 8;
        const ROW_REGISTERS: usize = 2;
        const TILE_VECTORS: usize = 3;
        const MIDDLE_TILE_VECTORS: usize = 2;

        compiled_for! {
            $features;

            fn negate(x: __m256) -> __m256 {
                _mm256_xor_ps(x, _mm256_set1_ps(-0.0))
            }

            fn load(x: &[f32; PANEL_ROWS], at: usize) -> __m256 {
                let x: &[f32] = &x[at..at + LANES];
                // SAFETY: in bounds.
                unsafe { _mm256_loadu_ps(x.as_ptr()) }
            }

            fn store(out: &mut [f32; PANEL_ROWS], at: usize, x: __m256) {
                let out: &mut [f32] = &mut out[at..at + LANES];
                // SAFETY: in bounds.
                unsafe { _mm256_storeu_ps(out.as_mut_ptr(), x) }
            }

            fn load_codes(codes: &[[u8; 4]; PANEL_ROWS], at: usize) -> __m256i {
                let codes: &[[u8; 4]] = &codes[at..at + LANES];
                // SAFETY: in bounds.
                unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) }
            }

            fn store_codes(out: &mut [[u8; 4]; PANEL_ROWS], at: usize, x: __m256i) {
                let out: &mut [[u8; 4]] = &mut out[at..at + LANES];
                // SAFETY: in bounds.
                unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), x) }
            }

            fn add_bytes(x: __m256i, bias: u8) -> __m256i {
                _mm256_add_epi8(x, _mm256_set1_epi8(bias.cast_signed()))
            }

            fn look_up(table: &[i8; 16], x: __m256i) -> __m256i {
                // SAFETY: in bounds.
                let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
                _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), x)
            }

            fn f16_to_f32(halves: &[[u8; 2]; LANES]) -> __m256 {
                // SAFETY: in bounds.
                _mm256_cvtph_ps(unsafe { _mm_loadu_si128(halves.as_ptr().cast()) })
            }

            fn transpose_words(rows: [__m256i; LANES]) -> [__m256i; 8] {
                // Every 128 bits are a row of a 4 by 4 matrix of words.
                let mut halves = [[zero(); 4]; 2];
                for half in 0..2 {
                    let [a, b, c, d] = [
                        rows[4 * half],
                        rows[4 * half + 1],
                        rows[4 * half + 2],
                        rows[4 * half + 3],
                    ];
                    let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
                    halves[half][0] = _mm256_unpacklo_epi64(ab, cd);
                    halves[half][1] = _mm256_unpackhi_epi64(ab, cd);
                    let (ab, cd) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
                    halves[half][2] = _mm256_unpacklo_epi64(ab, cd);
                    halves[half][3] = _mm256_unpackhi_epi64(ab, cd);
                }
                let mut out = [zero(); 8];
                for k in 0..4 {
                    let (a, b) = (halves[0][k], halves[1][k]);
                    out[k] = _mm256_permute2x128_si256::<0x20>(a, b);
                    out[4 + k] = _mm256_permute2x128_si256::<0x31>(a, b);
                }
                out
            }
        }
    };
}
pub(super) use avx2_register_operations;
