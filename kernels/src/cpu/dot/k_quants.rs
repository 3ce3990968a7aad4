//! Formats of 256 numbers with two-level scales, in 256-bit registers.

/// Defines the products of all these formats.
macro_rules! k_products {
    ($features:literal) => {
        format_product!($features, q2_k, 84 x 1, 0, add_q2_k);
        format_product!($features, q3_k, 110 x 1, 4, add_q3_k);
        format_product!($features, q4_k, 144 x 1, 0, add_q4_k);
        format_product!($features, q5_k, 176 x 1, 0, add_q5_k);
        format_product!($features, q6_k, 210 x 1, 32, add_q6_k);
        format_product!($features, iq4_xs, 136 x 1, SIGNED_CENTRE, add_iq4_xs);

        compiled_for! {
            $features;

            /// Two bits per number; a four-bit scale and minimum per 16 numbers.
            fn add_q2_k(b: &[u8; 84], x: &PreparedSuperBlock<'_>, mut sum: __m256) -> __m256 {
                let packed = load_128(subarray(b, 0));
                let mask = _mm_set1_epi8(15);
                let scales = half_block_scales(_mm_and_si128(packed, mask));
                let minima = half_block_scales(_mm_and_si128(_mm_srli_epi16::<4>(packed), mask));
                let (d, d_min) = (
                    broadcast_f16(subarray(b, 80)),
                    broadcast_f16(subarray(b, 82)),
                );
                for s in 0..2 {
                    let minima = _mm256_mul_ps(d_min, minima[s]);
                    sum = _mm256_fnmadd_ps(minima, x.sums[s], sum);
                    let bytes = load_256(subarray::<32>(b, 16 + s * 32));
                    let products = sum_small(pairs_of_bits(bytes), &x.codes[s]);
                    let factors = _mm256_mul_ps(_mm256_mul_ps(d, scales[s]), x.scales[s]);
                    sum = add_scaled(sum, products, x.offsets[s], factors);
                }
                sum
            }

            /// Two low bits and a high one per number; a six-bit scale per 16 numbers.
            fn add_q3_k(b: &[u8; 110], x: &PreparedSuperBlock<'_>, mut sum: __m256) -> __m256 {
                let word = |at: usize| u32::from_le_bytes(*subarray(b, 96 + at));
                let (low, next, high) = (word(0), word(4), word(8));
                let nibbles = u128::from(low & 0x0f0f_0f0f)
                    | u128::from(next & 0x0f0f_0f0f) << 32
                    | u128::from((low >> 4) & 0x0f0f_0f0f) << 64
                    | u128::from((next >> 4) & 0x0f0f_0f0f) << 96;
                let upper = u128::from((high << 4) & 0x3030_3030)
                    | u128::from((high << 2) & 0x3030_3030) << 32
                    | u128::from(high & 0x3030_3030) << 64
                    | u128::from((high >> 2) & 0x3030_3030) << 96;
                let scales =
                    half_block_scales(_mm_sub_epi8(to_m128i(nibbles | upper), _mm_set1_epi8(32)));
                let d = broadcast_f16(subarray(b, 108));
                let high_bits = load_256(subarray::<32>(b, 0));
                for s in 0..2 {
                    let mut codes = pairs_of_bits(load_256(subarray::<32>(b, 32 + s * 32)));
                    for k in 0..4 {
                        // Moves bit 4s + k to bit 2.
                        let high = move_bit(high_bits, s * 4 + k, 2);
                        let high = _mm256_and_si256(high, _mm256_set1_epi8(4));
                        codes[k] = _mm256_or_si256(codes[k], high);
                    }
                    let products = sum_small(codes, &x.codes[s]);
                    let factors = _mm256_mul_ps(_mm256_mul_ps(d, scales[s]), x.scales[s]);
                    sum = add_scaled(sum, products, x.offsets[s], factors);
                }
                sum
            }

            /// Four bits per number; a six-bit scale and minimum per 32 numbers.
            fn add_q4_k(b: &[u8; 144], x: &PreparedSuperBlock<'_>, mut sum: __m256) -> __m256 {
                let (scales, minima) = scales_and_minima(subarray(b, 0), subarray(b, 4));
                for s in 0..2 {
                    sum = _mm256_fnmadd_ps(minima[s], x.sums[s], sum);
                    let codes = pairs_of_nibbles(subarray(b, 16 + s * 64));
                    let products = sum_small(codes, &x.codes[s]);
                    let factors = _mm256_mul_ps(scales[s], x.scales[s]);
                    sum = add_scaled(sum, products, x.offsets[s], factors);
                }
                sum
            }

            fn add_q5_k(b: &[u8; 176], x: &PreparedSuperBlock<'_>, mut sum: __m256) -> __m256 {
                let (scales, minima) = scales_and_minima(subarray(b, 0), subarray(b, 4));
                let fifth = load_256(subarray::<32>(b, 16));
                for s in 0..2 {
                    sum = _mm256_fnmadd_ps(minima[s], x.sums[s], sum);
                    let mut codes = pairs_of_nibbles(subarray(b, 48 + s * 64));
                    for k in 0..4 {
                        // Moves bit 4s + k to bit 4.
                        let high = move_bit(fifth, s * 4 + k, 4);
                        let high = _mm256_and_si256(high, _mm256_set1_epi8(16));
                        codes[k] = _mm256_or_si256(codes[k], high);
                    }
                    let products = sum_small(codes, &x.codes[s]);
                    let factors = _mm256_mul_ps(scales[s], x.scales[s]);
                    sum = add_scaled(sum, products, x.offsets[s], factors);
                }
                sum
            }

            /// Four low bits and two high ones per number; an eight-bit scale per 16 numbers.
            fn add_q6_k(b: &[u8; 210], x: &PreparedSuperBlock<'_>, mut sum: __m256) -> __m256 {
                let scales = half_block_scales(load_128(subarray(b, 192)));
                let d = broadcast_f16(subarray(b, 208));
                for s in 0..2 {
                    let [a, b_low, c, d_low] = pairs_of_nibbles(subarray(b, s * 64));
                    // The nibbles of 32 bytes are two blocks apart.
                    let mut codes = [a, c, b_low, d_low];
                    let high = load_256(subarray::<32>(b, 128 + s * 32));
                    for k in 0..4 {
                        // Moves bits 2k and above to bit 4.
                        let high = move_bit(high, 2 * k, 4);
                        let high = _mm256_and_si256(high, _mm256_set1_epi8(0x30));
                        codes[k] = _mm256_or_si256(codes[k], high);
                    }
                    let products = sum_medium(codes, &x.codes[s]);
                    let factors = _mm256_mul_ps(_mm256_mul_ps(d, scales[s]), x.scales[s]);
                    sum = add_scaled(sum, products, x.offsets[s], factors);
                }
                sum
            }

            /// A four-bit index per number; a six-bit scale per 32 numbers.
            fn add_iq4_xs(b: &[u8; 136], x: &PreparedSuperBlock<'_>, mut sum: __m256) -> __m256 {
                let low = _mm256_set1_epi32(i32::from_le_bytes(*subarray(b, 4)));
                let low = _mm256_srlv_epi32(low, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
                let low = _mm256_and_si256(low, _mm256_set1_epi32(15));
                let high = _mm256_set1_epi32(i32::from(u16::from_le_bytes(*subarray(b, 2))) << 4);
                let high = _mm256_srlv_epi32(high, _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
                let high = _mm256_and_si256(high, _mm256_set1_epi32(0x30));
                let scales = _mm256_cvtepi32_ps(_mm256_or_si256(low, high));
                let scales = _mm256_sub_ps(scales, _mm256_set1_ps(32.0));
                let scales = duplicate_halves(_mm256_mul_ps(broadcast_f16(subarray(b, 0)), scales));
                for s in 0..2 {
                    let mut codes = [_mm256_setzero_si256(); 4];
                    for k in 0..4 {
                        codes[k] = look_up_iq4(nibbles(subarray(b, 8 + (s * 4 + k) * 16)));
                    }
                    let products = sum_signed(codes, &x.codes[s]);
                    let factors = _mm256_mul_ps(scales[s], x.scales[s]);
                    sum = add_scaled(sum, products, x.offsets[s], factors);
                }
                sum
            }
        }
    };
}
pub(super) use k_products;
