//! Version for x86-64 with AVX2, FMA, F16C and AVX-VNNI.

use std::arch::x86_64::_mm256_dpbusd_avx_epi32 as dot;

use super::tiles::{int_gemm_kernel, vnni_products};
use super::wide::avx2_register_operations;

avx2_register_operations!("avx2,fma,f16c,avxvnni");

type Integers = __m256i;

int_gemm_kernel!("avx2,fma,f16c,avxvnni");

vnni_products!("avx2,fma,f16c,avxvnni");
