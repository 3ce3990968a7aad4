//! Formats with one scale per 32 numbers, in 256-bit registers.

/// Defines the products of all these formats. The scale of a block is an f16 at byte 0, its minimum
/// one at byte 2.
macro_rules! legacy_products {
    ($features:literal) => {
        format_product!($features, q8_0, 34 x 8, SIGNED_CENTRE, add_blocks::<34, false, true>, |b| {
            load_256(subarray::<32>(b, 2))
        });
        format_product!($features, q4_0, 18 x 8, 8, add_blocks::<18, false, false>, |b| {
            nibbles(subarray(b, 2))
        });
        format_product!($features, q4_1, 20 x 8, 0, add_blocks::<20, true, false>, |b| {
            nibbles(subarray(b, 4))
        });
        format_product!($features, q5_0, 22 x 8, 16, add_blocks::<22, false, false>, |b| {
            five_bits(subarray(b, 6), subarray(b, 2))
        });
        format_product!($features, q5_1, 24 x 8, 0, add_blocks::<24, true, false>, |b| {
            five_bits(subarray(b, 8), subarray(b, 4))
        });
        format_product!($features, iq4_nl, 18 x 8, SIGNED_CENTRE, add_blocks::<18, false, true>, |b| {
            look_up_iq4(nibbles(subarray(b, 2)))
        });

        compiled_for! {
            $features;

            /// Adds the product of eight blocks, of which `codes` unpacks one.
            fn add_blocks<const BYTES: usize, const MINIMUM: bool, const SIGNED: bool>(
                blocks: &[u8],
                codes: impl Fn(&[u8; BYTES]) -> __m256i,
                x: &PreparedSuperBlock<'_>,
                mut sum: __m256,
            ) -> __m256 {
                let blocks = &blocks.as_chunks::<BYTES>().0.as_chunks::<BLOCKS>().0[0];
                let scales = load_f16_scales(blocks, 0);
                let minima = load_f16_scales(blocks, 2);
                for s in 0..2 {
                    let mut unpacked = [_mm256_setzero_si256(); 4];
                    for k in 0..4 {
                        unpacked[k] = codes(&blocks[s * 4 + k]);
                    }
                    if MINIMUM {
                        sum = _mm256_fmadd_ps(minima[s], x.sums[s], sum);
                    }
                    let products = if SIGNED {
                        sum_signed(unpacked, &x.codes[s])
                    } else {
                        sum_small(unpacked, &x.codes[s])
                    };
                    let factors = _mm256_mul_ps(scales[s], x.scales[s]);
                    sum = add_scaled(sum, products, x.offsets[s], factors);
                }
                sum
            }
        }
    };
}
pub(super) use legacy_products;
