//! Formats of two and three bits with runs of 16 numbers.
//!
//! Each 64 bytes hold four registers of codes of different runs. Masks take from each 32-bit word
//! the codes of a different block than from the next, and the partial sums are rotated between
//! registers, so that each word finally has the whole sum of a run: one conversion and one product
//! with factors for 256 weights.

use super::k_quants::broadcast_32_bytes;
use super::*;

/// Super-block of the vector, permuted for these formats: word `j` of a lane of register `r` is of
/// block `j ^ r` (first half in the first lane, second half in the second), and of block `4 + (j ^
/// r)` in the third and fourth.
struct PreparedSuperBlock {
    codes: [__m512i; 4],
    /// Initial sums; they compensate the offset of the codes.
    offsets: __m512i,
    /// Scale of each run, divided by the weight of word `j` of each lane.
    scales: __m512,
    /// Sum of the codes of each run, in row order.
    sums: __m256i,
    /// Scale of each block.
    block_scales: __m256,
}

matvec_kernel!(
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c",
    q2_k, 84 x 1, |x| prepare(x, [1, 4, 16, 64], 0), add_q2_k
);
matvec_kernel!(
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c",
    q3_k, 110 x 1, |x| prepare(x, [1, 16, 1, 16], 4),
    |super_block: &[[u8; 110]; 1], x: &PreparedSuperBlock, sums: &mut RowSums| add_q3_k(&super_block[0], q3_k_codes(&super_block[0]), x, sums)
);
matvec_kernel!(
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,gfni,avx2,fma,f16c",
    q3_k_gfni, 110 x 1, |x| prepare(x, [1, 16, 1, 16], 4),
    |super_block: &[[u8; 110]; 1], x: &PreparedSuperBlock, sums: &mut RowSums| {
        add_q3_k(&super_block[0], q3_k_codes_gfni(&super_block[0]), x, sums)
    }
);

/// Returns the bit matrix of `vgf2p8affineqb`: for each bit of the result, lowest first, the index
/// of its source bit, or 8 for zero.
const fn bit_matrix(sources: [u32; 8]) -> i64 {
    let mut rows = [0; 8];
    const_for!(i in 0..8 => {
        rows[7 - i] = if sources[i] < 8 { 1 << sources[i] } else { 0 };
    });
    i64::from_le_bytes(rows)
}

/// The first two and the second two pairs of bits, one in each half of a byte.
const PAIRS_OF_BITS: [i64; 2] = [
    bit_matrix([0, 1, 8, 8, 2, 3, 8, 8]),
    bit_matrix([4, 5, 8, 8, 6, 7, 8, 8]),
];

/// The bits above them, of the first four blocks and of the last.
const HIGH_BITS: [[i64; 2]; 2] = [
    [
        bit_matrix([8, 8, 0, 8, 8, 8, 1, 8]),
        bit_matrix([8, 8, 2, 8, 8, 8, 3, 8]),
    ],
    [
        bit_matrix([8, 8, 4, 8, 8, 8, 5, 8]),
        bit_matrix([8, 8, 6, 8, 8, 8, 7, 8]),
    ],
];

/// Same as [`q3_k_codes`] in half the instructions.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,gfni,avx2,fma,f16c")]
fn q3_k_codes_gfni(b: &[u8; 110]) -> [__m512i; 4] {
    let (bits, high) = (
        load_512(subarray::<64>(b, 32)),
        broadcast_32_bytes(subarray(b, 0)),
    );
    let mut both = [_mm512_setzero_si512(); 2];
    for (r, both) in both.iter_mut().enumerate() {
        let low = constant_quads(PAIRS_OF_BITS, PAIRS_OF_BITS, r);
        let low = _mm512_gf2p8affine_epi64_epi8::<0>(bits, low);
        let single = constant_quads(HIGH_BITS[0], HIGH_BITS[1], r);
        let single = _mm512_gf2p8affine_epi64_epi8::<0>(high, single);
        *both = _mm512_or_si512(low, single);
    }
    split_words(both)
}

compiled_for! {
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c";

    /// Prepares a super-block for codes that count `times[j]` in word `j` of a lane, with `centre`
    /// the offset of the codes.
    fn prepare(x: &SuperBlock, times: [i32; 4], centre: i32) -> PreparedSuperBlock {
        let mut blocks = [_mm512_setzero_si512(); 4];
        for (b, block) in blocks.iter_mut().enumerate() {
            *block = concat_256(load_256(&x.codes[b]), load_256(&x.codes[b + 4]));
        }
        let mut codes = blocks;
        for (r, codes) in codes.iter_mut().enumerate() {
            for (j, mask) in [0x1111, 0x2222, 0x4444, 0x8888].into_iter().enumerate() {
                *codes = _mm512_mask_blend_epi32(mask, *codes, blocks[j ^ r]);
            }
        }
        // SAFETY: in bounds.
        let (block_scales, halves) = unsafe {
            (
                _mm256_loadu_ps(x.scales.as_ptr()),
                _mm512_loadu_si512(x.half_sums.as_ptr().cast()),
            )
        };
        let [a, b, c, d] = times;
        let times = _mm512_broadcast_i32x4(_mm_setr_epi32(a, b, c, d));
        let block_of_word = _mm512_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7);
        let scales = _mm512_permutexvar_ps(block_of_word, _mm512_castps256_ps512(block_scales));
        let offsets = _mm512_mullo_epi32(_mm512_mullo_epi32(halves, times), _mm512_set1_epi32(-centre));
        let sum_of_run = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
        PreparedSuperBlock {
            codes,
            // Rotated to the position of the last register, which comes first.
            offsets: _mm512_shuffle_epi32::<0b00_01_10_11>(offsets),
            scales: _mm512_div_ps(scales, _mm512_cvtepi32_ps(times)),
            sums: _mm512_cvtepi32_epi16(_mm512_permutexvar_epi32(sum_of_run, halves)),
            block_scales,
        }
    }

    fn rotate_and_sum(offsets: __m512i, codes: [__m512i; 4], x: &PreparedSuperBlock) -> __m512i {
        let b = _mm512_dpbusd_epi32(offsets, codes[3], x.codes[3]);
        let b = _mm512_dpbusd_epi32(_mm512_shuffle_epi32::<0b10_11_00_01>(b), codes[2], x.codes[2]);
        let a = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes[1], x.codes[1]);
        let a = _mm512_dpbusd_epi32(_mm512_shuffle_epi32::<0b10_11_00_01>(a), codes[0], x.codes[0]);
        _mm512_add_epi32(a, _mm512_shuffle_epi32::<0b01_00_11_10>(b))
    }

    /// Adds the products of runs, given their scales in row order. The integers are exact: the
    /// product of a scale and a sum has 23 bits.
    fn add_run_products(offsets: __m512i, codes: [__m512i; 4], scales: __m128i, factor: __m128, x: &PreparedSuperBlock, sums: &mut RowSums) {
        let in_turn = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
        let scales = _mm512_cvtepi8_epi32(_mm_shuffle_epi8(scales, in_turn));
        let products = _mm512_cvtepi32_ps(_mm512_mullo_epi32(rotate_and_sum(offsets, codes, x), scales));
        let products = _mm512_mul_ps(products, x.scales);
        sums.products[0] = _mm512_fmadd_ps(products, _mm512_broadcastss_ps(factor), sums.products[0]);
    }

    /// Two bits in place: those of block `j` count `4 ^ j` times.
    fn q2_k_codes(b: &[u8; 84]) -> [__m512i; 4] {
        let bits = load_512(subarray::<64>(b, 16));
        let mut codes = [_mm512_setzero_si512(); 4];
        for (r, codes) in codes.iter_mut().enumerate() {
            let word = |j: usize| 0x0303_0303_u32.rotate_left(2 * (j ^ r) as u32).cast_signed();
            let masks = _mm_setr_epi32(word(0), word(1), word(2), word(3));
            *codes = _mm512_and_si512(bits, _mm512_broadcast_i32x4(masks));
        }
        codes
    }

    /// A four-bit scale and minimum per 16 numbers.
    fn add_q2_k([b]: &[[u8; 84]; 1], x: &PreparedSuperBlock, sums: &mut RowSums) {
        let packed = load_128(subarray(b, 0));
        let nibbles = _mm_set1_epi8(15);
        let supers = two_f16_to_f32(subarray(b, 80));
        let minima = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16::<4>(packed), nibbles));
        let minima = _mm256_cvtepi32_ps(_mm256_madd_epi16(minima, x.sums));
        let minima = _mm256_mul_ps(minima, x.block_scales);
        let d_min = _mm256_broadcastss_ps(_mm_movehdup_ps(supers));
        let before = _mm512_castps512_ps256(sums.minima);
        sums.minima = _mm512_zextps256_ps512(_mm256_fnmadd_ps(minima, d_min, before));
        add_run_products(_mm512_setzero_si512(), q2_k_codes(b), _mm_and_si128(packed, nibbles), supers, x, sums);
    }

    /// Combines two low bits and a high one: each half of a byte gets a three-bit code, those of
    /// blocks 0 and 1 in the first halves of the lanes of one register and those of blocks 2 and 3
    /// in the second; swapped in the other register.
    fn q3_k_codes(b: &[u8; 110]) -> [__m512i; 4] {
        let (bits, high) = (load_512(subarray::<64>(b, 32)), broadcast_32_bytes(subarray(b, 0)));
        // Lookup tables that place two pairs of bits, or two single bits, in a byte.
        let pairs = _mm_setr_epi8(0, 1, 2, 3, 16, 17, 18, 19, 32, 33, 34, 35, 48, 49, 50, 51);
        let singles = _mm_setr_epi8(0, 4, 64, 68, 0, 4, 64, 68, 0, 4, 64, 68, 0, 4, 64, 68);
        let mut both = [_mm512_setzero_si512(); 2];
        for (r, both) in both.iter_mut().enumerate() {
            let two = low_nibbles(_mm512_srlv_epi64(bits, constant_quads([0, 4], [0, 4], r)));
            let single = low_nibbles(_mm512_srlv_epi64(high, constant_quads([0, 2], [4, 6], r)));
            *both = _mm512_or_si512(
                _mm512_shuffle_epi8(_mm512_broadcast_i32x4(pairs), two),
                _mm512_shuffle_epi8(_mm512_broadcast_i32x4(singles), single),
            );
        }
        split_words(both)
    }

    /// Splits registers into words from the lower or the upper halves of bytes.
    fn split_words([first, second]: [__m512i; 2]) -> [__m512i; 4] {
        let even = _mm512_set1_epi64(0x7070_7070_0707_0707);
        let odd = _mm512_set1_epi64(0x0707_0707_7070_7070);
        [
            _mm512_and_si512(first, even),
            _mm512_and_si512(first, odd),
            _mm512_and_si512(second, even),
            _mm512_and_si512(second, odd),
        ]
    }

    /// Arranges 64-bit constants for the first and the second halves of the lanes, for the lower
    /// and the upper two lanes; `first` selects the first of two.
    fn constant_quads(lower: [i64; 2], upper: [i64; 2], first: usize) -> __m512i {
        let ([a, b], [c, d]) = ([lower[first], lower[1 - first]], [upper[first], upper[1 - first]]);
        _mm512_setr_epi64(a, b, a, b, c, d, c, d)
    }

    /// A six-bit scale per 16 numbers.
    fn add_q3_k(b: &[u8; 110], codes: [__m512i; 4], x: &PreparedSuperBlock, sums: &mut RowSums) {
        // Four bytes of four bits, four of four bits, and their four low halves once more; two bits
        // of each scale in the last four.
        let bytes = load_128(subarray(b, 94));
        let low = _mm_shuffle_epi8(bytes, _mm_setr_epi8(2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5, 6, 7, 8, 9));
        let low = _mm_srlv_epi32(low, _mm_setr_epi32(0, 0, 4, 4));
        let high = _mm_shuffle_epi8(
            bytes,
            _mm_setr_epi8(10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13),
        );
        let high = _mm_rorv_epi32(high, _mm_setr_epi32(28, 30, 0, 2));
        let low = _mm_and_si128(low, _mm_set1_epi8(15));
        // low | (high & 0x30)
        let scales = _mm_ternarylogic_epi32::<0xf8>(low, high, _mm_set1_epi8(0x30));
        let scales = _mm_sub_epi8(scales, _mm_set1_epi8(32));
        add_run_products(x.offsets, codes, scales, f16_to_f32(subarray(b, 108)), x, sums);
    }
}
