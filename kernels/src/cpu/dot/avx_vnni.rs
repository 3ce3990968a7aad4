//! Version for x86-64 with AVX2, FMA, F16C and AVX-VNNI.

use super::wide::{format_product, integer_products};

integer_products!("avx2,fma,f16c,avxvnni");

const SIGNED_CENTRE: i32 = 128;

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn dot_unsigned(codes: __m256i, x: __m256i) -> __m256i {
    _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), codes, x)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn dot_signed(codes: __m256i, x: __m256i) -> __m256i {
    dot_unsigned(_mm256_xor_si256(codes, _mm256_set1_epi8(-128)), x)
}
