//! Formats with one scale per 32 numbers.

use super::*;

const PAIRS: [[i32; 16]; 4] = [
    repeat_lanes([0, 0, 1, 1]),
    repeat_lanes([2, 2, 3, 3]),
    repeat_lanes([4, 4, 5, 5]),
    repeat_lanes([6, 6, 7, 7]),
];

const HALVES: [[i32; 16]; 2] = [RUN_LANES[0], RUN_LANES[1]];

format_product!(
    q8_0, 34 x 8, runs 32, Pairs, centres [128; 4], PAIRS, UNIT_SCALES, scales, q8_0_codes
);
format_product!(
    q4_0, 18 x 8, runs 32, Halves, centres [8; 4], HALVES, UNIT_SCALES, scales,
    |b| nibbles(b, &const { words(18, 2) })
);
format_product!(
    q4_1, 20 x 8, runs 32, Halves, centres [0; 4], HALVES, UNIT_SCALES, scales_and_minima,
    |b| nibbles(b, &const { words(20, 4) })
);
format_product!(
    q5_0, 22 x 8, runs 32, Halves, centres [16; 4], HALVES, UNIT_SCALES, scales,
    |b| with_fifth_bits(b, &const { words(22, 6) }, &const { words(22, 2) })
);
format_product!(
    q5_1, 24 x 8, runs 32, Halves, centres [0; 4], HALVES, UNIT_SCALES, scales_and_minima,
    |b| with_fifth_bits(b, &const { words(24, 8) }, &const { words(24, 4) })
);
format_product!(
    iq4_nl, 18 x 8, runs 32, Halves, centres [128; 4], HALVES, UNIT_SCALES, scales, iq4_nl_codes
);

/// Returns the 16-bit word indices of sixteen bytes from byte `at` of each of four blocks of
/// `bytes`, in two registers: the first 64 bytes of the blocks, and their last 64.
const fn words(bytes: usize, at: usize) -> [i16; 32] {
    let mut words = [0; 32];
    const_for!(i in 0..32 => {
        let word = (i / 8 * bytes + at) / 2 + i % 8;
        words[i] = (if word < 32 {
            word
        } else {
            word + 64 - 2 * bytes
        }) as i16;
    });
    words
}

compiled_for! {
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c";

    fn q8_0_codes(b: &[[u8; 34]; BLOCKS]) -> [__m512i; 4] {
        let mut codes = [_mm512_setzero_si512(); 4];
        for i in 0..4 {
            let pair = concat_256(load_256(subarray::<32>(&b[2 * i], 2)), load_256(subarray::<32>(&b[2 * i + 1], 2)));
            codes[i] = _mm512_xor_si512(pair, _mm512_set1_epi8(-128));
        }
        codes
    }

    fn iq4_nl_codes(b: &[[u8; 18]; BLOCKS]) -> [__m512i; 4] {
        let [a, b, c, d] = nibbles(b, &const { words(18, 2) });
        [look_up_iq4(a), look_up_iq4(b), look_up_iq4(c), look_up_iq4(d)]
    }

    fn nibbles<const N: usize>(b: &[[u8; N]; BLOCKS], words: &[i16; 32]) -> [__m512i; 4] {
        let (first, second) = (gather_words(b, 0, words), gather_words(b, 1, words));
        [low_nibbles(first), high_nibbles(first), low_nibbles(second), high_nibbles(second)]
    }

    /// Returns [`nibbles`] with fifth bits from 32 bits of each block, which `words` moves to the
    /// first bytes of four blocks' lanes.
    fn with_fifth_bits<const N: usize>(
        b: &[[u8; N]; BLOCKS],
        low: &[i16; 32],
        words: &[i16; 32],
    ) -> [__m512i; 4] {
        let mut codes = nibbles(b, low);
        let bit_of_byte = _mm512_set1_epi64(0x8040_2010_0804_0201_u64.cast_signed());
        for i in 0..2 {
            let bits = gather_words(b, i, words);
            for half in 0..2 {
                // Byte `i` gets the bits `i / 8 * 8 ..` and keeps one.
                let first = 0x0202 * half;
                let spread = _mm_setr_epi16(first, first, first, first, first + 0x0101, first + 0x0101, first + 0x0101, first + 0x0101);
                let spread = _mm512_shuffle_epi8(bits, _mm512_broadcast_i32x4(spread));
                let set = _mm512_test_epi8_mask(spread, bit_of_byte);
                let codes = &mut codes[2 * i + half as usize];
                *codes = _mm512_mask_add_epi8(*codes, set, *codes, _mm512_set1_epi8(16));
            }
        }
        codes
    }

    fn gather_words<const N: usize>(b: &[[u8; N]; BLOCKS], i: usize, words: &[i16; 32]) -> __m512i {
        let bytes = b.as_flattened();
        let (first, last) = (subarray(bytes, 4 * N * i), subarray(bytes, 4 * N * (i + 1) - 64));
        _mm512_permutex2var_epi16(load_512::<u8, 64>(first), load_512(words), load_512::<u8, 64>(last))
    }

    fn load_f16_scales<const N: usize>(b: &[[u8; N]; BLOCKS], at: usize) -> __m512 {
        let mut halves = 0;
        for (k, block) in b.iter().enumerate() {
            halves |= u128::from(u16::from_le_bytes(*subarray(block, at))) << (16 * k);
        }
        let halves = _mm_set_epi64x((halves >> 64) as i64, halves as i64);
        _mm512_zextps256_ps512(_mm256_cvtph_ps(halves))
    }

    fn scales<const N: usize>(b: &[[u8; N]; BLOCKS], x: &PreparedSuperBlock, _: &mut __m512) -> __m512 {
        _mm512_mul_ps(load_f16_scales(b, 0), x.scales)
    }

    fn scales_and_minima<const N: usize>(
        b: &[[u8; N]; BLOCKS],
        x: &PreparedSuperBlock,
        minima: &mut __m512,
    ) -> __m512 {
        *minima = _mm512_fmadd_ps(load_f16_scales(b, 2), x.sums, *minima);
        scales(b, x, minima)
    }
}
