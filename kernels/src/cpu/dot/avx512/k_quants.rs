//! Formats of 256 numbers with two-level scales.

use super::*;

const ALTERNATING: [[i32; 16]; 4] = [
    repeat_lanes([0, 0, 2, 2]),
    repeat_lanes([1, 1, 3, 3]),
    repeat_lanes([4, 4, 6, 6]),
    repeat_lanes([5, 5, 7, 7]),
];

const NIBBLES: [[i32; 16]; 2] = [repeat_lanes([0, 2, 4, 6]), repeat_lanes([1, 3, 5, 7])];

const SIXTEENTHS: [f32; 16] = [
    1.0, 0.0625, 1.0, 0.0625, 1.0, 0.0625, 1.0, 0.0625, //
    -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0,
];

const MINIMA: [f32; 16] = [
    1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, //
    -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0,
];

format_product!(
    q4_k, 144 x 1, runs 32, Nibbles, centres [0; 4], NIBBLES, SIXTEENTHS, scales_and_minima, q4_k_codes
);
format_product!(
    q5_k, 176 x 1, runs 32, Alternating, centres [0; 4], ALTERNATING, MINIMA, scales_and_minima, q5_k_codes
);
format_product!(
    q6_k, 210 x 1, runs 16, Pairs, centres [32; 4], RUN_LANES, UNIT_SCALES, q6_k_factors, q6_k_codes
);
format_product!(
    iq4_xs, 136 x 1, runs 32, Halves, centres [128; 4], [RUN_LANES[0], RUN_LANES[1]], UNIT_SCALES,
    iq4_xs_factors, iq4_xs_codes
);

compiled_for! {
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c";

    fn q4_k_codes([b]: &[[u8; 144]; 1]) -> [__m512i; 4] {
        let mask = _mm512_set1_epi8(-16);
        let (first, second) = (load_512(subarray::<64>(b, 16)), load_512(subarray::<64>(b, 80)));
        let halves = [
            _mm512_shuffle_i64x2::<0b10_00_10_00>(first, second),
            _mm512_shuffle_i64x2::<0b11_01_11_01>(first, second),
        ];
        [
            low_nibbles(halves[0]),
            low_nibbles(halves[1]),
            _mm512_and_si512(halves[0], mask),
            _mm512_and_si512(halves[1], mask),
        ]
    }

    fn q5_k_codes([b]: &[[u8; 176]; 1]) -> [__m512i; 4] {
        let (first, second) = (load_512(subarray::<64>(b, 48)), load_512(subarray::<64>(b, 112)));
        let mut codes = [low_nibbles(first), high_nibbles(first), low_nibbles(second), high_nibbles(second)];
        let fifth = broadcast_32_bytes(subarray(b, 16));
        for (i, codes) in codes.iter_mut().enumerate() {
            let block = i / 2 * 4 + i % 2;
            *codes = with_bits::<16>(*codes, fifth, [block, block + 2], 4);
        }
        codes
    }

    fn q6_k_codes([b]: &[[u8; 210]; 1]) -> [__m512i; 4] {
        let (first, second) = (load_512(subarray::<64>(b, 0)), load_512(subarray::<64>(b, 64)));
        let mut codes = [low_nibbles(first), high_nibbles(first), low_nibbles(second), high_nibbles(second)];
        let upper = [broadcast_32_bytes(subarray(b, 128)), broadcast_32_bytes(subarray(b, 160))];
        for i in 0..4 {
            let bit = i % 2 * 4;
            codes[i] = with_bits::<0x30>(codes[i], upper[i / 2], [bit, bit + 2], 4);
        }
        codes
    }

    fn q6_k_factors([b]: &[[u8; 210]; 1], x: &PreparedSuperBlock, _: &mut __m512) -> __m512 {
        let scales = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_128(subarray(b, 192))));
        _mm512_mul_ps(_mm512_mul_ps(broadcast_f16(subarray(b, 208)), scales), x.scales)
    }

    fn iq4_xs_codes([b]: &[[u8; 136]; 1]) -> [__m512i; 4] {
        let (first, second) = (load_512(subarray::<64>(b, 8)), load_512(subarray::<64>(b, 72)));
        [look_up_iq4(low_nibbles(first)), look_up_iq4(high_nibbles(first)), look_up_iq4(low_nibbles(second)), look_up_iq4(high_nibbles(second))]
    }

    fn iq4_xs_factors([b]: &[[u8; 136]; 1], x: &PreparedSuperBlock, _: &mut __m512) -> __m512 {
        let low = _mm256_set1_epi32(i32::from_le_bytes(*subarray(b, 4)));
        let low = _mm256_srlv_epi32(low, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
        let low = _mm256_and_si256(low, _mm256_set1_epi32(15));
        let high = _mm256_set1_epi32(i32::from(u16::from_le_bytes(*subarray(b, 2))) << 4);
        let high = _mm256_srlv_epi32(high, _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
        // low | (high & 0x30)
        let scales = _mm256_ternarylogic_epi32::<0xf8>(low, high, _mm256_set1_epi32(0x30));
        let scales = _mm256_cvtepi32_ps(_mm256_sub_epi32(scales, _mm256_set1_epi32(32)));
        let d = _mm256_broadcastss_ps(two_f16_to_f32(subarray(b, 0)));
        let scales = _mm512_castps256_ps512(_mm256_mul_ps(d, scales));
        _mm512_mul_ps(scales, x.scales)
    }

    /// Returns the factors of a q4_k or q5_k block in the first eight lanes: a six-bit scale and
    /// minimum per 32 numbers.
    fn scales_and_minima<const N: usize>([b]: &[[u8; N]; 1], x: &PreparedSuperBlock, minima: &mut __m512) -> __m512 {
        let bytes = load_128(subarray(b, 0));
        // Scales of the first four blocks and the last four, then minima; the upper two bits of the
        // last four are next to the scales of the first.
        let low = _mm_shuffle_epi8(
            bytes,
            _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15),
        );
        let low = _mm_srlv_epi32(low, _mm_setr_epi32(0, 0, 0, 4));
        let high = _mm_shuffle_epi8(
            bytes,
            _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11),
        );
        let mask = _mm_setr_epi32(0x3f3f_3f3f, 0x0f0f_0f0f, 0x3f3f_3f3f, 0x0f0f_0f0f);
        let low = _mm_and_si128(low, mask);
        // low | (high & 0x30)
        let six_bits =
            _mm_ternarylogic_epi32::<0xf8>(low, _mm_srli_epi16::<2>(high), _mm_set1_epi8(0x30));
        let numbers = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(six_bits));
        let pick = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
        let supers = _mm512_castps128_ps512(_mm_cvtph_ps(bytes));
        let numbers = _mm512_mul_ps(numbers, _mm512_permutexvar_ps(pick, supers));
        let numbers = _mm512_mul_ps(numbers, x.scales);
        *minima = _mm512_mask_add_ps(*minima, 0xff00, *minima, numbers);
        numbers
    }

    /// Repeats 32 bytes.
    pub(super) fn broadcast_32_bytes(bytes: &[u8; 32]) -> __m512i {
        _mm512_broadcast_i64x4(load_256(bytes))
    }

    /// Inserts bits from `bits` into `codes` at bit `to`, from a first bit per half; `MASK` selects
    /// them and removes bits of other bytes.
    fn with_bits<const MASK: i8>(
        codes: __m512i,
        bits: __m512i,
        [near, far]: [usize; 2],
        to: usize,
    ) -> __m512i {
        let near = ((64 + near - to) % 64) as i64;
        let far = ((64 + far - to) % 64) as i64;
        let turns = _mm512_setr_epi64(near, near, near, near, far, far, far, far);
        let bits = _mm512_rorv_epi64(bits, turns);
        // codes | (bits & mask)
        _mm512_ternarylogic_epi32::<0xf8>(codes, bits, _mm512_set1_epi8(MASK))
    }
}
