//! Shared code of the 256-bit versions: iteration over rows, preparation of the vector, and
//! reduction of products.
//!
//! Four blocks of 32 are taken together. Each gives eight sums of four products; adding neighbours
//! leaves one register with the sums of half blocks, in the order of
//! [`SuperBlock::half_sums`](crate::cpu::activations::SuperBlock::half_sums). Nothing passes
//! through memory, to avoid store-forwarding stalls.
//!
//! An instruction set provides `dot_unsigned`, `dot_signed` and the centre of its signed codes; the
//! macros here and in [`legacy`](super::legacy) and [`k_quants`](super::k_quants) generate the
//! products. The functions avoid the standard library's combinators, which are compiled without the
//! instruction set and would not be inlined around a closure that needs it.

use std::arch::x86_64::*;

use super::IQ4_CODEBOOK;
use crate::cpu::activations::{BLOCK, BLOCKS, SuperBlock};
pub(super) use crate::cpu::avx2::{broadcast_f16, horizontal_sums, i8_to_f32, load_256};
use crate::cpu::blocks::{compiled_for, six_bit_scales, subarray};

/// Defines sums of products, the products of all formats and the dispatch by format.
macro_rules! integer_products {
    ($features:literal) => {
        use std::arch::x86_64::*;

        use htc_formats::DType;

        use crate::cpu::activations::{BLOCK, BLOCKS, SuperBlock};
        use crate::cpu::blocks::{compiled_for, prefetch, row_groups, subarray, supported};
        use crate::cpu::dot::k_quants::k_products;
        use crate::cpu::dot::legacy::legacy_products;
        use crate::cpu::dot::wide::*;
        use crate::cpu::dot::{Dot, dispatch};
        use crate::matrix::Matrix;

        legacy_products!($features);
        k_products!($features);

        /// Used only in kernel tables for processors with these instructions.
        pub(in crate::cpu) const DOT: Dot = supported!(|w, x, y| dot);

        #[target_feature(enable = $features)]
        fn dot(w: Matrix<'_>, x: &[SuperBlock], y: &mut [f32]) {
            dispatch!(w, x, y)
        }

        compiled_for! {
            $features;

            /// Sums the products of half blocks of four blocks, with codes up to 31: sums of eight
            /// products fit sixteen bits.
            fn sum_small(codes: [__m256i; 4], x: &[[i8; BLOCK]; 4]) -> __m256i {
                let [a, b] = sums_of_eight(codes, x);
                _mm256_madd_epi16(_mm256_packs_epi32(a, b), _mm256_set1_epi16(1))
            }

            fn sum_medium(codes: [__m256i; 4], x: &[[i8; BLOCK]; 4]) -> __m256i {
                let [a, b] = sums_of_eight(codes, x);
                _mm256_hadd_epi32(a, b)
            }

            fn sums_of_eight(codes: [__m256i; 4], x: &[[i8; BLOCK]; 4]) -> [__m256i; 2] {
                let one = _mm256_set1_epi16(1);
                let mut eights = [_mm256_setzero_si256(); 2];
                for i in 0..2 {
                    let first = dot_unsigned(codes[2 * i], load_256(&x[2 * i]));
                    let second = dot_unsigned(codes[2 * i + 1], load_256(&x[2 * i + 1]));
                    eights[i] = _mm256_madd_epi16(_mm256_packs_epi32(first, second), one);
                }
                eights
            }

            fn sum_signed(codes: [__m256i; 4], x: &[[i8; BLOCK]; 4]) -> __m256i {
                let mut fours = [_mm256_setzero_si256(); 4];
                for k in 0..4 {
                    fours[k] = dot_signed(codes[k], load_256(&x[k]));
                }
                let [a, b, c, d] = fours;
                _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d))
            }
        }
    };
}
pub(super) use integer_products;

/// Defines the product of one format in a module.
///
/// `$add` adds the product of a super-block, `$blocks` blocks whose codes are `$centre` above their
/// values; it gets the function `$codes` too, if any.
macro_rules! format_product {
    ($features:literal, $module:ident, $bytes:literal x $blocks:literal, $centre:expr, $add:expr $(, $codes:expr)?) => {
        mod $module {
            use super::*;

            const SUPER_BLOCK_BYTES: usize = $bytes * $blocks;

            row_groups!($features, dot, SuperBlock);

            #[inline]
            #[target_feature(enable = $features)]
            fn rows<const R: usize>(
                rows: [&[u8]; R],
                x: &[SuperBlock],
                prefetch_distance: usize,
            ) -> [f32; R] {
                let mut sums = [_mm256_setzero_ps(); 4];
                for (s, x) in x.iter().enumerate() {
                    let x = prepare::<{ $centre }>(x);
                    for r in 0..R {
                        let bytes = &rows[r][s * SUPER_BLOCK_BYTES..];
                        for line in (0..SUPER_BLOCK_BYTES).step_by(64) {
                            prefetch(bytes.as_ptr().wrapping_add(prefetch_distance + line));
                        }
                        sums[r] = match bytes.first_chunk() {
                            Some(blocks) => add(blocks, &x, sums[r]),
                            None => last_super_block(bytes, &x, sums[r]),
                        };
                    }
                }
                let mut results = [0.0; R];
                results.copy_from_slice(&horizontal_sums(sums)[..R]);
                results
            }

            // Not inlined.
            #[target_feature(enable = $features)]
            fn last_super_block(bytes: &[u8], x: &PreparedSuperBlock<'_>, sum: __m256) -> __m256 {
                let mut filled = [0; SUPER_BLOCK_BYTES];
                filled[..bytes.len()].copy_from_slice(bytes);
                add(&filled, x, sum)
            }

            #[inline]
            #[target_feature(enable = $features)]
            fn add(
                blocks: &[u8; SUPER_BLOCK_BYTES],
                x: &PreparedSuperBlock<'_>,
                sum: __m256,
            ) -> __m256 {
                $add(blocks, $($codes,)? x, sum)
            }
        }
    };
}
pub(super) use format_product;

pub(super) struct PreparedSuperBlock<'a> {
    pub codes: &'a [[[i8; BLOCK]; 4]; 2],
    pub scales: [__m256; 2],
    pub sums: [__m256; 2],
    pub offsets: [__m256i; 2],
}

compiled_for! {
    "avx2,fma,f16c";

    pub(super) fn prepare<const CENTRE: i32>(x: &SuperBlock) -> PreparedSuperBlock<'_> {
        let mut scales = [_mm256_setzero_ps(); 2];
        let mut sums = scales;
        let mut offsets = [_mm256_setzero_si256(); 2];
        for s in 0..2 {
            // SAFETY: in bounds.
            let four = unsafe { _mm_loadu_ps(x.scales.as_chunks::<4>().0[s].as_ptr()) };
            scales[s] = _mm256_set_m128(four, four);
            let halves = load_256(&x.half_sums[s]);
            sums[s] = _mm256_mul_ps(_mm256_cvtepi32_ps(halves), scales[s]);
            offsets[s] = _mm256_mullo_epi32(halves, _mm256_set1_epi32(-CENTRE));
        }
        let (codes, _) = x.codes.as_chunks::<4>();
        PreparedSuperBlock {
            codes: &codes.as_chunks::<2>().0[0],
            scales,
            sums,
            offsets,
        }
    }

    pub(super) fn add_scaled(sum: __m256, products: __m256i, offset: __m256i, factors: __m256) -> __m256 {
        let products = _mm256_cvtepi32_ps(_mm256_add_epi32(products, offset));
        _mm256_fmadd_ps(products, factors, sum)
    }

    pub(super) fn duplicate_halves(numbers: __m256) -> [__m256; 2] {
        [
            _mm256_permute2f128_ps::<0x00>(numbers, numbers),
            _mm256_permute2f128_ps::<0x11>(numbers, numbers),
        ]
    }

    pub(super) fn load_128(bytes: &[u8; 16]) -> __m128i {
        // SAFETY: in bounds.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    pub(super) fn u8_to_f32(bytes: __m128i) -> __m256 {
        _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes))
    }

    /// Returns the scales and minima of a q4_k or q5_k block.
    pub(super) fn scales_and_minima(supers: &[u8; 4], packed: &[u8; 12]) -> ([__m256; 2], [__m256; 2]) {
        let six_bits = to_m128i(six_bit_scales(packed));
        let scales = u8_to_f32(six_bits);
        let minima = u8_to_f32(_mm_unpackhi_epi64(six_bits, six_bits));
        let scales = _mm256_mul_ps(broadcast_f16(subarray(supers, 0)), scales);
        let minima = _mm256_mul_ps(broadcast_f16(subarray(supers, 2)), minima);
        (duplicate_halves(scales), duplicate_halves(minima))
    }

    /// Widens sixteen numbers, one per run of 16, in the order of [`SuperBlock::half_sums`].
    pub(super) fn half_block_scales(bytes: __m128i) -> [__m256; 2] {
        let order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
        let bytes = _mm_shuffle_epi8(bytes, order);
        [
            i8_to_f32(bytes),
            i8_to_f32(_mm_unpackhi_epi64(bytes, bytes)),
        ]
    }

    pub(super) fn to_m128i(bytes: u128) -> __m128i {
        _mm_set_epi64x((bytes >> 64) as i64, bytes as i64)
    }

    /// Returns the low halves of 32 bytes, their high halves, and those of the next 32 bytes.
    pub(super) fn pairs_of_nibbles(bytes: &[u8; 64]) -> [__m256i; 4] {
        let mask = _mm256_set1_epi8(15);
        let first = load_256(subarray::<32>(bytes, 0));
        let second = load_256(subarray::<32>(bytes, 32));
        [
            _mm256_and_si256(first, mask),
            _mm256_and_si256(_mm256_srli_epi16::<4>(first), mask),
            _mm256_and_si256(second, mask),
            _mm256_and_si256(_mm256_srli_epi16::<4>(second), mask),
        ]
    }

    /// Returns the lowest two bits of each byte, the next two, and so on.
    pub(super) fn pairs_of_bits(bytes: __m256i) -> [__m256i; 4] {
        let mask = _mm256_set1_epi8(3);
        [
            _mm256_and_si256(bytes, mask),
            _mm256_and_si256(_mm256_srli_epi16::<2>(bytes), mask),
            _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), mask),
            _mm256_and_si256(_mm256_srli_epi16::<6>(bytes), mask),
        ]
    }

    /// Shifts bit `from` of every byte to bit `to`; other bits may come from the next byte.
    pub(super) fn move_bit(bytes: __m256i, from: usize, to: usize) -> __m256i {
        if from < to {
            _mm256_sll_epi16(bytes, _mm_cvtsi64_si128((to - from) as i64))
        } else {
            _mm256_srl_epi16(bytes, _mm_cvtsi64_si128((from - to) as i64))
        }
    }

    pub(super) fn nibbles(bytes: &[u8; 16]) -> __m256i {
        let twice = _mm256_broadcastsi128_si256(load_128(bytes));
        let shifts = _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4);
        _mm256_and_si256(_mm256_srlv_epi32(twice, shifts), _mm256_set1_epi8(15))
    }

    /// Returns codes of five bits, of which the nibbles and the fifth bits are apart.
    pub(super) fn five_bits(low: &[u8; 16], high: &[u8; 4]) -> __m256i {
        _mm256_or_si256(nibbles(low), fifth_bits(high))
    }

    fn fifth_bits(bits: &[u8; 4]) -> __m256i {
        let bits = _mm256_set1_epi32(i32::from_le_bytes(*bits));
        // Byte `i` gets the bits `i / 8 * 8 ..` and keeps one.
        let spread = _mm256_setr_epi64x(
            0,
            0x0101_0101_0101_0101,
            0x0202_0202_0202_0202,
            0x0303_0303_0303_0303,
        );
        let bit_of_byte = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
        let selected = _mm256_and_si256(_mm256_shuffle_epi8(bits, spread), bit_of_byte);
        _mm256_and_si256(
            _mm256_cmpeq_epi8(selected, bit_of_byte),
            _mm256_set1_epi8(16),
        )
    }

    pub(super) fn look_up_iq4(indices: __m256i) -> __m256i {
        // SAFETY: in bounds.
        let table = unsafe { _mm_loadu_si128(IQ4_CODEBOOK.as_ptr().cast()) };
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), indices)
    }

    /// Loads the f16 at byte `at` of eight blocks.
    pub(super) fn load_f16_scales<const BYTES: usize>(blocks: &[[u8; BYTES]; BLOCKS], at: usize) -> [__m256; 2] {
        let mut halves = 0;
        for (b, block) in blocks.iter().enumerate() {
            halves |= u128::from(u16::from_le_bytes(*subarray(block, at))) << (16 * b);
        }
        duplicate_halves(_mm256_cvtph_ps(to_m128i(halves)))
    }
}
