//! Formats with one scale per 32 numbers, in 256-bit registers.

/// Defines the product of one format in a module.
///
/// `$codes` unpacks a block's codes, which are `$centre` above their values; `$sum` is `sum_small`
/// or `sum_signed`. The scale is an f16 at byte 0; if `$minimum`, the minimum is at byte 2.
macro_rules! legacy_product {
    ($features:literal, $module:ident, $bytes:literal, $centre:expr, $minimum:literal, $codes:ident, $sum:ident) => {
        mod $module {
            use super::*;

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
                        let blocks = &rows[r].as_chunks::<$bytes>().0[s * BLOCKS..];
                        sums[r] = match blocks.first_chunk::<BLOCKS>() {
                            Some(blocks) => super_block(blocks, &x, sums[r], prefetch_distance),
                            None => last_super_block(blocks, &x, sums[r]),
                        };
                    }
                }
                let mut results = [0.0; R];
                results.copy_from_slice(&horizontal_sums(sums)[..R]);
                results
            }

            #[inline]
            #[target_feature(enable = $features)]
            fn super_block(
                blocks: &[[u8; $bytes]; BLOCKS],
                x: &PreparedSuperBlock<'_>,
                mut sum: __m256,
                prefetch_distance: usize,
            ) -> __m256 {
                let scales = duplicate_halves(load_f16_scales(blocks, 0));
                let minima = duplicate_halves(load_f16_scales(blocks, 2));
                for s in 0..2 {
                    let mut codes = [_mm256_setzero_si256(); 4];
                    for k in 0..4 {
                        let block = &blocks[s * 4 + k];
                        prefetch(block.as_ptr().wrapping_add(prefetch_distance));
                        codes[k] = $codes(block);
                    }
                    if $minimum {
                        sum = _mm256_fmadd_ps(minima[s], x.sums[s], sum);
                    }
                    let products = $sum(codes, &x.codes[s]);
                    let factors = _mm256_mul_ps(scales[s], x.scales[s]);
                    sum = add_scaled(sum, products, x.offsets[s], factors);
                }
                sum
            }

            #[target_feature(enable = $features)]
            fn last_super_block(
                blocks: &[[u8; $bytes]],
                x: &PreparedSuperBlock<'_>,
                sum: __m256,
            ) -> __m256 {
                // Padded with blocks of scale zero.
                let mut filled = [[0; $bytes]; BLOCKS];
                filled[..blocks.len()].copy_from_slice(blocks);
                super_block(&filled, x, sum, 0)
            }

            #[inline]
            #[target_feature(enable = $features)]
            fn load_f16_scales(blocks: &[[u8; $bytes]; BLOCKS], at: usize) -> __m256 {
                let mut halves = 0;
                for (b, block) in blocks.iter().enumerate() {
                    halves |= u128::from(u16::from_le_bytes(*subarray(block, at))) << (16 * b);
                }
                _mm256_cvtph_ps(_mm_set_epi64x((halves >> 64) as i64, halves as i64))
            }
        }
    };
}
pub(super) use legacy_product;

/// Defines the products of all these formats.
macro_rules! legacy_products {
    ($features:literal) => {
        legacy_product!(
            $features,
            q8_0,
            34,
            SIGNED_CENTRE,
            false,
            q8_0_codes,
            sum_signed
        );
        legacy_product!($features, q4_0, 18, 8, false, q4_0_codes, sum_small);
        legacy_product!($features, q4_1, 20, 0, true, q4_1_codes, sum_small);
        legacy_product!($features, q5_0, 22, 16, false, q5_0_codes, sum_small);
        legacy_product!($features, q5_1, 24, 0, true, q5_1_codes, sum_small);
        legacy_product!(
            $features,
            iq4_nl,
            18,
            SIGNED_CENTRE,
            false,
            iq4_nl_codes,
            sum_signed
        );

        #[inline]
        #[target_feature(enable = $features)]
        fn q8_0_codes(block: &[u8; 34]) -> __m256i {
            load_256(subarray(block, 2))
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn q4_0_codes(block: &[u8; 18]) -> __m256i {
            nibbles(subarray(block, 2))
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn q4_1_codes(block: &[u8; 20]) -> __m256i {
            nibbles(subarray(block, 4))
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn q5_0_codes(block: &[u8; 22]) -> __m256i {
            _mm256_or_si256(nibbles(subarray(block, 6)), fifth_bits(subarray(block, 2)))
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn q5_1_codes(block: &[u8; 24]) -> __m256i {
            _mm256_or_si256(nibbles(subarray(block, 8)), fifth_bits(subarray(block, 4)))
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn iq4_nl_codes(block: &[u8; 18]) -> __m256i {
            look_up_iq4(nibbles(subarray(block, 2)))
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn nibbles(bytes: &[u8; 16]) -> __m256i {
            let twice = _mm256_broadcastsi128_si256(load_128(bytes));
            let shifts = _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4);
            _mm256_and_si256(_mm256_srlv_epi32(twice, shifts), _mm256_set1_epi8(15))
        }

        #[inline]
        #[target_feature(enable = $features)]
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

        #[inline]
        #[target_feature(enable = $features)]
        fn look_up_iq4(indices: __m256i) -> __m256i {
            // SAFETY: in bounds.
            let table = unsafe { _mm_loadu_si128(IQ4_CODEBOOK.as_ptr().cast()) };
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), indices)
        }
    };
}
pub(super) use legacy_products;
