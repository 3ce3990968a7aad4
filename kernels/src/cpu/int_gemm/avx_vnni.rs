//! Version for x86-64 with AVX2, FMA, F16C and AVX-VNNI.

use super::tiles::{tiles, vnni};
use super::wide::registers_of_256;

registers_of_256!("avx2,fma,f16c,avxvnni");

type Integers = __m256i;

tiles!("avx2,fma,f16c,avxvnni");

vnni!("avx2,fma,f16c,avxvnni");

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn dot(sums: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
    _mm256_dpbusd_avx_epi32(sums, unsigned, signed)
}
