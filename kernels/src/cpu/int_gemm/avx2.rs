//! Version for x86-64 with AVX2, FMA and F16C.
//!
//! `vpmaddubsw` multiplies unsigned with signed bytes and adds two products in sixteen bits. Small
//! codes allow several such sums before widening. Signed byte codes allow none, and transfer their
//! sign to the vector's codes first.

use super::tiles::int_gemm_kernel;
use super::wide::avx2_register_operations;

avx2_register_operations!("avx2,fma,f16c");

int_gemm_kernel!("avx2,fma,f16c");

const BIASED: bool = false;

/// Returns the number of sums of two products that fit sixteen bits.
const fn max_sums_in_i16(largest: u8) -> usize {
    i16::MAX as usize / (2 * 127 * largest as usize)
}

/// Adds the products of half `h` of block `b`, or of the whole block if it has one scale.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
#[expect(
    clippy::needless_range_loop,
    reason = "as the other versions, in macros"
)]
fn add_products<S: QuantLayout, const T: usize>(
    block: &PackedBlock,
    first: usize,
    x: &[SuperBlock; T],
    b: usize,
    h: usize,
    products: &mut [[__m256i; ROW_REGISTERS]; T],
) {
    let steps = 8 / S::SCALES;
    // A power of two, like the steps.
    let run = const { 1 << max_sums_in_i16(S::LARGEST).ilog2() }.min(steps);
    for start in (h * steps..(h + 1) * steps).step_by(run) {
        let mut pairs = [[zero(); ROW_REGISTERS]; T];
        for k in start..start + run {
            let mut columns = [zero(); ROW_REGISTERS];
            for v in 0..ROW_REGISTERS {
                columns[v] = load_codes(&block.codes[k], first + v * LANES);
            }
            for t in 0..T {
                let four = broadcast_integer(four_codes(x[t].codes[b].as_chunks().0[k]));
                for v in 0..ROW_REGISTERS {
                    let sums = if S::LARGEST == 127 {
                        let signed = _mm256_sign_epi8(four, columns[v]);
                        _mm256_maddubs_epi16(_mm256_abs_epi8(columns[v]), signed)
                    } else {
                        _mm256_maddubs_epi16(columns[v], four)
                    };
                    pairs[t][v] = _mm256_add_epi16(pairs[t][v], sums);
                }
            }
        }
        for t in 0..T {
            for v in 0..ROW_REGISTERS {
                let sums = _mm256_madd_epi16(pairs[t][v], _mm256_set1_epi16(1));
                products[t][v] = _mm256_add_epi32(products[t][v], sums);
            }
        }
    }
}
