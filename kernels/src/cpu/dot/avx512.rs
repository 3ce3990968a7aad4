//! The version for x86-64 with AVX-512 (F, BW, DQ, VL) and its VNNI.
//!
//! The registers are of 256 bits, as those of the other versions.

use super::wide::integer_products;

integer_products!("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c");

/// How far signed codes are moved to become unsigned.
const SIGNED_CENTRE: i32 = 128;

/// The products of unsigned codes and those of the vector, four to a sum.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn dot_unsigned(codes: __m256i, x: __m256i) -> __m256i {
    _mm256_dpbusd_epi32(_mm256_setzero_si256(), codes, x)
}

/// The products of signed codes, moved to be unsigned, and those of the vector, four to a sum.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn dot_signed(codes: __m256i, x: __m256i) -> __m256i {
    dot_unsigned(_mm256_xor_si256(codes, _mm256_set1_epi8(-128)), x)
}
