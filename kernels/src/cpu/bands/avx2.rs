//! Column group kernels for x86-64 with AVX2 and FMA.
//!
//! Lookup tables have sixteen entries per register; longer ones use two or four lookups, and the
//! bits beyond the fourth select the result. A window of a state is moved to the upper end of a
//! 16-bit lane by a multiplication with a power of two, because AVX2 has no variable shift of
//! 16-bit lanes, and from there shifted down.

mod codebook;
mod nibbles;
mod tile;
mod trellis;

use std::arch::x86_64::*;
use std::ops::Range;

use htc_formats::bands::{CHUNK, Code, CodeKind, QUADS_PER_GROUP, TRELLIS_TABLES, Trellis};

use super::scalar::{Stream, codebook_chunks};
use super::{
    ColumnGroupKernels, GroupScratch, GroupWeights, RowValues, VectorGroup, by_bits, dot_unpacked,
    subarray,
};
use crate::cpu::blocks::supported;
use codebook::multiply as multiply_codebook;
use tile::add;
use trellis::multiply as multiply_trellis;

const WIDTH: usize = 32;

/// Used only in kernel tables for processors with these instructions.
pub(in crate::cpu) const KERNELS: ColumnGroupKernels = ColumnGroupKernels {
    unpack: supported!(|code, column_group, groups, out| unpack),
    add: supported!(|integers, factors, vectors, sums| add),
    multiply: supported!(|code, column_group, groups, vector, scratch, sums| multiply),
};

#[target_feature(enable = "avx2,fma")]
fn unpack(code: Code, column_group: &[u8], groups: Range<usize>, out: &mut [GroupWeights]) {
    by_bits!(code:
        unpack_trellis(code, column_group, groups, out),
        unpack_codebook(code, column_group, groups, out)
    );
}

#[target_feature(enable = "avx2,fma")]
fn multiply(
    code: Code,
    column_group: &[u8],
    groups: Range<usize>,
    vector: &VectorGroup<'_>,
    scratch: &mut GroupScratch,
    sums: &mut [RowValues],
) {
    if code.kind() == CodeKind::Trellis && code.table_index() != nibbles::TABLES_VERSION {
        let ColumnGroupKernels { unpack, add, .. } = KERNELS;
        return dot_unpacked(unpack, add, code, column_group, groups, vector, sums);
    }
    by_bits!(code:
        multiply_trellis(column_group, groups, vector, scratch, sums),
        multiply_codebook(column_group, groups, vector, sums)
    );
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn load(bytes: &[u8; WIDTH]) -> __m256i {
    // SAFETY: in bounds.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn store(to: &mut [i8; WIDTH], v: __m256i) {
    // SAFETY: in bounds.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), v) }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn load_two_128(low: &[u8; 16], high: &[u8; 16]) -> __m256i {
    // SAFETY: in bounds.
    unsafe { _mm256_loadu2_m128i(high.as_ptr().cast(), low.as_ptr().cast()) }
}

/// Table of 64 bytes: sixteen per register, duplicated in both halves.
type Table = [__m256i; 4];

#[inline]
#[target_feature(enable = "avx2,fma")]
fn lookup_table(entries: &[i8]) -> Table {
    let mut table = [_mm256_setzero_si256(); 4];
    for (register, entries) in table.iter_mut().zip(entries.chunks(16)) {
        let mut bytes = [0; 16];
        for (byte, entry) in bytes.iter_mut().zip(entries) {
            *byte = entry.cast_unsigned();
        }
        *register = load_two_128(&bytes, &bytes);
    }
    table
}

/// Looks up 64 entries by six-bit indices; the bits above are zero.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn look_up_64(table: &Table, index: __m256i) -> __m256i {
    // A blend looks at the highest bit of a byte alone.
    let fifth = _mm256_slli_epi16::<3>(index);
    let sixth = _mm256_slli_epi16::<2>(index);
    let low = _mm256_blendv_epi8(
        _mm256_shuffle_epi8(table[0], index),
        _mm256_shuffle_epi8(table[1], index),
        fifth,
    );
    let high = _mm256_blendv_epi8(
        _mm256_shuffle_epi8(table[2], index),
        _mm256_shuffle_epi8(table[3], index),
        fifth,
    );
    _mm256_blendv_epi8(low, high, sixth)
}

/// Shuffle and multipliers that extract eight windows, as [`window_pattern`].
#[derive(Clone, Copy)]
struct WindowPattern {
    bytes: [u8; 16],
    factors: [u16; 16],
}

/// Returns the shuffle and the multipliers that extract eight windows of `width` bits from the
/// bytes of eight weights: the two bytes that hold each window, and the power of two that moves it
/// to the upper end of sixteen bits.
const fn window_pattern(bits: usize, from: usize, width: usize) -> WindowPattern {
    let (mut bytes, mut factors) = ([0; 16], [0; 16]);
    const_for!(i in 0..8 => {
        let bit = i * bits + from;
        bytes[2 * i] = (bit / 8) as u8;
        bytes[2 * i + 1] = (bit / 8 + 1) as u8;
        factors[i] = 1 << (16 - width - bit % 8);
        factors[i + 8] = factors[i];
    });
    WindowPattern { bytes, factors }
}

#[derive(Clone, Copy)]
struct Windows {
    bytes: __m256i,
    factors: __m256i,
}

impl Windows {
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn new(pattern: WindowPattern) -> Windows {
        Windows {
            bytes: load_two_128(&pattern.bytes, &pattern.bytes),
            // SAFETY: in bounds.
            factors: unsafe { _mm256_loadu_si256(pattern.factors.as_ptr().cast()) },
        }
    }

    /// Extracts the windows of 32 weights, `DOWN` bits above bit 0 of their 16-bit lanes: those of
    /// weights 0 to 7 and 16 to 23, then 8 to 15 and 24 to 31, which packing puts in order.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn extract<const DOWN: i32>(&self, weights: [__m256i; 2]) -> __m256i {
        let [first, second] = weights.map(|bytes| {
            let pairs = _mm256_shuffle_epi8(bytes, self.bytes);
            _mm256_srli_epi16::<DOWN>(_mm256_mullo_epi16(pairs, self.factors))
        });
        _mm256_packus_epi16(first, second)
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn load_eights<const BITS: usize>(bytes: &[u8]) -> [__m256i; 2] {
    [
        load_two_128(subarray(bytes, 0), subarray(bytes, 2 * BITS)),
        load_two_128(subarray(bytes, BITS), subarray(bytes, 3 * BITS)),
    ]
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn unpack_trellis<const BITS: usize>(
    code: Code,
    column_group: &[u8],
    groups: Range<usize>,
    out: &mut [GroupWeights],
) {
    let Trellis {
        low, high, nibbles, ..
    } = &TRELLIS_TABLES[code.table_index()][BITS - 2];
    if let Some(tables) = nibbles {
        let [lowest, middle, highest] = [
            lookup_table(&tables[0])[0],
            lookup_table(&tables[1])[0],
            lookup_table(&tables[2])[0],
        ];
        let (byte_windows, nibble_windows) =
            const { (window_pattern(BITS, 0, 8), window_pattern(BITS, 8, 4)) };
        let (byte_windows, nibble_windows) =
            (Windows::new(byte_windows), Windows::new(nibble_windows));
        let mask = _mm256_set1_epi8(15);
        for_each_32_weights(code, column_group, groups, out, |bytes| {
            let weights = load_eights::<BITS>(bytes);
            let (two, one) = (
                byte_windows.extract::<8>(weights),
                nibble_windows.extract::<12>(weights),
            );
            let first = _mm256_and_si256(two, mask);
            let second = _mm256_and_si256(_mm256_srli_epi16::<4>(two), mask);
            let both = _mm256_add_epi8(
                _mm256_shuffle_epi8(lowest, first),
                _mm256_shuffle_epi8(middle, second),
            );
            _mm256_add_epi8(both, _mm256_shuffle_epi8(highest, one))
        });
        return;
    }
    let (low, high) = (lookup_table(low), lookup_table(high));
    let (low_windows, high_windows) =
        const { (window_pattern(BITS, 0, 6), window_pattern(BITS, 6, 6)) };
    let (low_windows, high_windows) = (Windows::new(low_windows), Windows::new(high_windows));
    for_each_32_weights(code, column_group, groups, out, |bytes| {
        let weights = load_eights::<BITS>(bytes);
        let (a, b) = (
            low_windows.extract::<10>(weights),
            high_windows.extract::<10>(weights),
        );
        _mm256_add_epi8(look_up_64(&low, a), look_up_64(&high, b))
    });
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn for_each_32_weights(
    code: Code,
    column_group: &[u8],
    groups: Range<usize>,
    out: &mut [GroupWeights],
    integers: impl Fn(&[u8]) -> __m256i,
) {
    let bits = usize::from(code.bits());
    for quad in 0..QUADS_PER_GROUP {
        let stream = Stream::copy(code, column_group, quad, &groups);
        for (g, group) in out.iter_mut().enumerate() {
            let parts = group[quad].as_chunks_mut::<WIDTH>().0;
            for (h, part_of) in parts.iter_mut().enumerate() {
                let bytes = stream.bytes((g * CHUNK + h * WIDTH) * bits / 8);
                store(part_of, integers(bytes));
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn unpack_codebook<const BITS: usize>(
    code: Code,
    column_group: &[u8],
    groups: Range<usize>,
    out: &mut [GroupWeights],
) {
    let table = lookup_table(const { &codebook::table_entries(BITS) });
    for (g, group) in out.iter_mut().enumerate() {
        let chunks = codebook_chunks(code, column_group, groups.start + g);
        for (chunk, out) in chunks.chunks_exact(CHUNK * BITS / 8).zip(group) {
            for (half, out) in out.as_chunks_mut::<WIDTH>().0.iter_mut().enumerate() {
                store(out, codebook::weights::<BITS>(&table, chunk, half));
            }
        }
    }
}
