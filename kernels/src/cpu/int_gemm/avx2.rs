//! Version for x86-64 with AVX2, FMA and F16C.
//!
//! `vpmaddubsw` multiplies unsigned with signed bytes and adds two products in sixteen bits. Small
//! codes allow several such sums before widening. Signed byte codes allow none, and transfer their
//! sign to the vector's codes first.

use super::tiles::tiles;
use super::wide::registers_of_256;

registers_of_256!("avx2,fma,f16c");

tiles!("avx2,fma,f16c");

const BIASED: bool = false;

const fn room(largest: u8) -> usize {
    i16::MAX as usize / (2 * 127 * largest as usize)
}

/// Adds the products of half `h` of block `b`, or of the whole block if it has one scale.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
#[expect(
    clippy::needless_range_loop,
    reason = "as the other versions, in macros"
)]
fn add_products<S: Shape, const T: usize>(
    block: &Block,
    first: usize,
    x: &[Strip; T],
    b: usize,
    h: usize,
    products: &mut [[__m256i; VECTORS]; T],
) {
    let steps = 8 / S::SCALES;
    // A power of two, like the steps.
    let run = const { 1 << room(S::LARGEST).ilog2() }.min(steps);
    for start in (h * steps..(h + 1) * steps).step_by(run) {
        let mut pairs = [[zero(); VECTORS]; T];
        for k in start..start + run {
            let mut columns = [zero(); VECTORS];
            for v in 0..VECTORS {
                columns[v] = load_codes(&block.codes[k], first + v * LANES);
            }
            for t in 0..T {
                let four = broadcast_integer(four(x[t].codes[b].as_chunks().0[k]));
                for v in 0..VECTORS {
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
            for v in 0..VECTORS {
                let sums = _mm256_madd_epi16(pairs[t][v], _mm256_set1_epi16(1));
                products[t][v] = _mm256_add_epi32(products[t][v], sums);
            }
        }
    }
}
