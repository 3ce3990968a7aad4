//! Version for x86-64 with AVX2, FMA, F16C and AVX-VNNI.

use super::tiles::{int_gemm_kernel, vnni_products};
use super::wide::avx2_register_operations;

avx2_register_operations!("avx2,fma,f16c,avxvnni");

type Integers = __m256i;

int_gemm_kernel!("avx2,fma,f16c,avxvnni");

vnni_products!("avx2,fma,f16c,avxvnni");

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn dot(sums: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
    _mm256_dpbusd_avx_epi32(sums, unsigned, signed)
}
