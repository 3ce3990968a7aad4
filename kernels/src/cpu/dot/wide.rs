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

/// Defines operations, the prepared vector and the dispatch by format.
macro_rules! integer_products {
    ($features:literal) => {
        use std::arch::x86_64::*;

        use htc_formats::DType;

        use crate::cpu::activations::{BLOCK, BLOCKS, SuperBlock};
        use crate::cpu::blocks::{prefetch, row_groups, six_bit_scales, subarray};
        use crate::cpu::dot::k_quants::{k_products, superblock_product};
        use crate::cpu::dot::legacy::{legacy_product, legacy_products};
        use crate::cpu::dot::{Dot, IQ4_CODEBOOK, dispatch};
        use crate::matrix::Matrix;

        legacy_products!($features);
        k_products!($features);

        /// Used only in kernel tables for processors with these instructions.
        pub(in crate::cpu) const DOT: Dot = |w, x, y| {
            // SAFETY: see above.
            unsafe { dot(w, x, y) }
        };

        #[target_feature(enable = $features)]
        fn dot(w: Matrix<'_>, x: &[SuperBlock], y: &mut [f32]) {
            dispatch!(w, x, y)
        }

        struct PreparedSuperBlock<'a> {
            codes: &'a [[[i8; BLOCK]; 4]; 2],
            scales: [__m256; 2],
            sums: [__m256; 2],
            offsets: [__m256i; 2],
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn prepare<const CENTRE: i32>(x: &SuperBlock) -> PreparedSuperBlock<'_> {
            let mut scales = [_mm256_setzero_ps(); 2];
            let mut sums = scales;
            let mut offsets = [_mm256_setzero_si256(); 2];
            for s in 0..2 {
                // SAFETY: in bounds.
                let four = unsafe { _mm_loadu_ps(x.scales.as_chunks::<4>().0[s].as_ptr()) };
                scales[s] = _mm256_set_m128(four, four);
                // SAFETY: in bounds.
                let halves = unsafe { _mm256_loadu_si256(x.half_sums[s].as_ptr().cast()) };
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

        /// Sums the products of half blocks of four blocks, with codes up to 31: sums of eight
        /// products fit sixteen bits.
        #[inline]
        #[target_feature(enable = $features)]
        fn sum_small(codes: [__m256i; 4], x: &[[i8; BLOCK]; 4]) -> __m256i {
            let [a, b] = sums_of_eight(codes, x);
            _mm256_madd_epi16(_mm256_packs_epi32(a, b), _mm256_set1_epi16(1))
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn sum_medium(codes: [__m256i; 4], x: &[[i8; BLOCK]; 4]) -> __m256i {
            let [a, b] = sums_of_eight(codes, x);
            _mm256_hadd_epi32(a, b)
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn sums_of_eight(codes: [__m256i; 4], x: &[[i8; BLOCK]; 4]) -> [__m256i; 2] {
            let one = _mm256_set1_epi16(1);
            let mut eights = [_mm256_setzero_si256(); 2];
            for i in 0..2 {
                let first = dot_unsigned(codes[2 * i], load_codes(&x[2 * i]));
                let second = dot_unsigned(codes[2 * i + 1], load_codes(&x[2 * i + 1]));
                eights[i] = _mm256_madd_epi16(_mm256_packs_epi32(first, second), one);
            }
            eights
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn sum_signed(codes: [__m256i; 4], x: &[[i8; BLOCK]; 4]) -> __m256i {
            let mut fours = [_mm256_setzero_si256(); 4];
            for k in 0..4 {
                fours[k] = dot_signed(codes[k], load_codes(&x[k]));
            }
            let [a, b, c, d] = fours;
            _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d))
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn add_scaled(sum: __m256, products: __m256i, offset: __m256i, factors: __m256) -> __m256 {
            let products = _mm256_cvtepi32_ps(_mm256_add_epi32(products, offset));
            _mm256_fmadd_ps(products, factors, sum)
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn duplicate_halves(numbers: __m256) -> [__m256; 2] {
            [
                _mm256_permute2f128_ps::<0x00>(numbers, numbers),
                _mm256_permute2f128_ps::<0x11>(numbers, numbers),
            ]
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn load_codes(codes: &[i8; 32]) -> __m256i {
            // SAFETY: in bounds.
            unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn load_128(bytes: &[u8; 16]) -> __m128i {
            // SAFETY: in bounds.
            unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn load_256(bytes: &[u8; 32]) -> __m256i {
            // SAFETY: in bounds.
            unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn broadcast_f16(bytes: &[u8; 2]) -> __m256 {
            _mm256_cvtph_ps(_mm_set1_epi16(i16::from_le_bytes(*bytes)))
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn i8_to_f32(bytes: __m128i) -> __m256 {
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn u8_to_f32(bytes: __m128i) -> __m256 {
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes))
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn horizontal_sums([a, b, c, d]: [__m256; 4]) -> [f32; 4] {
            let sums = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
            let sums = _mm_add_ps(
                _mm256_castps256_ps128(sums),
                _mm256_extractf128_ps::<1>(sums),
            );
            let mut numbers = [0.0; 4];
            // SAFETY: in bounds.
            unsafe { _mm_storeu_ps(numbers.as_mut_ptr(), sums) };
            numbers
        }
    };
}
pub(super) use integer_products;
