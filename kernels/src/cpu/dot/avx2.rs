//! Version for x86-64 with AVX2, FMA and F16C.

use super::wide::{format_product, integer_products};

integer_products!("avx2,fma,f16c");

const SIGNED_CENTRE: i32 = 0;

/// Sums four products of codes up to 128 with those of the vector. `vpmaddubsw` adds two of them in
/// sixteen bits, which hold 2 · 128 · 127.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_unsigned(codes: __m256i, x: __m256i) -> __m256i {
    _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_signed(codes: __m256i, x: __m256i) -> __m256i {
    dot_unsigned(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes))
}
