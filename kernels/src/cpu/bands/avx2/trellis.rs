//! Matrix-vector products of trellis column groups, decoded in registers.
//!
//! Bytes are first arranged in lanes. With four bits per weight they are used as stored, two bytes
//! of a stream per row. With two bits, the bytes of two streams alternate. With three and five
//! bits, the bytes of two rows form a unit, and the bytes at one offset of all units form a plane,
//! with those of two streams alternating. In each case neighbouring bytes give weights of the same
//! row, which one instruction multiplies and adds in sixteen bits. To fit eight such sums, the
//! vector's codes are split into two digits of base sixteen, and weights are raised by 128, which
//! is subtracted at the end.
//!
//! Register instructions per 32 weights, without loads: three table lookups 3, their sums 2,
//! nibbles (shared by neighbours) 3 with four bits, 4 with two and 7 with three and five, products
//! and sums 4, arranging bytes 0, 1, 3 and 6, conversion of sums 1.

use std::arch::x86_64::*;
use std::hint::black_box;
use std::ops::Range;

use htc_formats::bands::{GROUP_COLS, GROUP_ROWS, QUADS_PER_GROUP, TILE_ROWS};

use super::super::{GroupScratch, VectorGroup, subarray};
use super::nibbles::{NIBBLE_TABLES, NibbleTables, weights};
use super::{RowValues, load, load_two_128};
use crate::cpu::blocks::prefetch;

/// Bytes between streams, or pairs of them, of two and four bits: 256 rows and the overread after
/// them.
const STREAM_BYTES: usize = 2 * TILE_ROWS + 32;

const PLANE_BYTES: usize = TILE_ROWS + 32;

const _: () = assert!(
    QUADS_PER_GROUP * STREAM_BYTES <= GroupScratch::BYTES
        && QUADS_PER_GROUP / 2 * 5 * PLANE_BYTES <= GroupScratch::BYTES
);

/// Implements [`ColumnGroupKernels::multiply`](super::super::ColumnGroupKernels::multiply) for a
/// trellis of `BITS` bits.
#[target_feature(enable = "avx2,fma")]
pub(super) fn multiply<const BITS: usize>(
    column_group: &[u8],
    groups: Range<usize>,
    vector: &VectorGroup<'_>,
    scratch: &mut GroupScratch,
    sums: &mut [RowValues],
) {
    let streams = Streams {
        column_group,
        start: groups.start * 8 * BITS,
        end: groups.end * 8 * BITS,
    };
    match BITS {
        2 => interleave_pairs(&streams, scratch),
        3 | 5 => write_planes::<BITS>(&streams, scratch),
        _ => copy_streams(&streams, scratch),
    }
    let digits = Digits::new(vector.codes, BITS == 4);
    let tables = &NIBBLE_TABLES[BITS - 2];
    let scale = _mm256_set1_ps(vector.scale);
    let centre = _mm256_set1_epi32(-128 * vector.sum);
    let next = column_group.as_ptr().wrapping_add(column_group.len());
    let prefetched_bytes = column_group.len() / (TILE_ROWS / GROUP_ROWS);
    if BITS == 2 || BITS == 4 {
        for (b, sums) in sums.iter_mut().enumerate() {
            prefetch_range(next, b * prefetched_bytes, prefetched_bytes);
            let [low, high] = sum_16_rows::<BITS>(scratch, tables, &digits, b, centre);
            add_totals([low, high], scale, sums);
        }
        return;
    }
    for (b, sums) in sums.chunks_mut(2).enumerate() {
        prefetch_range(next, 2 * b * prefetched_bytes, 2 * prefetched_bytes);
        let totals = sum_32_rows::<BITS>(scratch, tables, &digits, b, centre);
        for (half, sums) in sums.iter_mut().enumerate() {
            add_totals(totals[half], scale, sums);
        }
    }
}

#[inline(always)]
fn prefetch_range(next: *const u8, from: usize, count: usize) {
    for at in (from..from + count).step_by(64) {
        prefetch(next.wrapping_add(at));
    }
}

struct Streams<'a> {
    column_group: &'a [u8],
    start: usize,
    end: usize,
}

impl<'a> Streams<'a> {
    fn stream(&self, quad: usize) -> &'a [u8] {
        let length = self.column_group.len() / QUADS_PER_GROUP;
        &self.column_group[quad * length..][..length]
    }

    fn row_groups(&self, quad: usize) -> &'a [u8] {
        &self.stream(quad)[self.start..self.end]
    }

    /// Returns byte `i` after the row groups, wrapping around to the start of the stream.
    fn byte_after(&self, quad: usize, i: usize) -> u8 {
        let stream = self.stream(quad);
        stream[(self.end + i) % stream.len()]
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn copy_streams(streams: &Streams<'_>, scratch: &mut GroupScratch) {
    for (quad, scratch) in scratch
        .0
        .chunks_exact_mut(STREAM_BYTES)
        .take(QUADS_PER_GROUP)
        .enumerate()
    {
        let stream = streams.row_groups(quad);
        let parts = stream.as_chunks::<32>().0.iter();
        for (part, out) in parts.zip(scratch.as_chunks_mut::<32>().0) {
            *out = *part;
        }
        scratch[stream.len()] = streams.byte_after(quad, 0);
    }
}

/// Interleaves the bytes of two streams, followed by two bytes of each.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn interleave_pairs(streams: &Streams<'_>, scratch: &mut GroupScratch) {
    for (pair, scratch) in scratch
        .0
        .chunks_exact_mut(STREAM_BYTES)
        .take(QUADS_PER_GROUP / 2)
        .enumerate()
    {
        let (a, b) = (
            streams.row_groups(2 * pair),
            streams.row_groups(2 * pair + 1),
        );
        let rows = a.as_chunks::<16>().0.iter().zip(b.as_chunks::<16>().0);
        for ((a, b), out) in rows.zip(scratch.as_chunks_mut::<32>().0) {
            // SAFETY: in bounds.
            unsafe {
                let a = _mm_loadu_si128(a.as_ptr().cast());
                let b = _mm_loadu_si128(b.as_ptr().cast());
                let out = out.as_mut_ptr().cast::<__m128i>();
                _mm_storeu_si128(out, _mm_unpacklo_epi8(a, b));
                _mm_storeu_si128(out.add(1), _mm_unpackhi_epi8(a, b));
            }
        }
        append_next_bytes(streams, pair, scratch, 2 * a.len(), [0, 1]);
    }
}

/// Appends the next bytes of both streams of a pair at the given offsets.
fn append_next_bytes<const N: usize>(
    streams: &Streams<'_>,
    pair: usize,
    scratch: &mut [u8],
    at: usize,
    places: [usize; N],
) {
    let out = scratch[at..].as_chunks_mut::<2>().0.iter_mut();
    for (place, out) in places.into_iter().zip(out) {
        *out = [2 * pair, 2 * pair + 1].map(|quad| streams.byte_after(quad, place));
    }
}

/// Writes the planes of three or five bits, eight units at a time.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn write_planes<const BITS: usize>(streams: &Streams<'_>, scratch: &mut GroupScratch) {
    let pair_scratches = scratch
        .0
        .chunks_exact_mut(BITS * PLANE_BYTES)
        .take(QUADS_PER_GROUP / 2);
    for (pair, scratch) in pair_scratches.enumerate() {
        let (a, b) = (
            streams.row_groups(2 * pair),
            streams.row_groups(2 * pair + 1),
        );
        let units = a.chunks_exact(8 * BITS).zip(b.chunks_exact(8 * BITS));
        for (i, (a, b)) in units.enumerate() {
            let (a, b) = (eight_units::<BITS>(a), eight_units::<BITS>(b));
            // Planes 0 and 1, 2 and 3, and 4, four units per half.
            let both = [
                _mm256_unpacklo_epi8(a[0], b[0]),
                _mm256_unpackhi_epi8(a[0], b[0]),
                _mm256_unpacklo_epi8(a[1], b[1]),
            ];
            for (p, planes) in both.into_iter().enumerate().take(BITS.div_ceil(2)) {
                let planes = _mm256_permute4x64_epi64::<0b11_01_10_00>(planes);
                let at = 2 * p * PLANE_BYTES + 16 * i;
                store(&mut scratch[at..], _mm256_castsi256_si128(planes));
                if 2 * p + 1 < BITS {
                    let plane = _mm256_extracti128_si256::<1>(planes);
                    store(&mut scratch[at + PLANE_BYTES..], plane);
                }
            }
        }
        let written = 2 * a.len() / BITS;
        append_next_bytes(streams, pair, scratch, written, [0]);
        append_next_bytes(streams, pair, &mut scratch[PLANE_BYTES..], written, [1]);
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn store(to: &mut [u8], v: __m128i) {
    let to = &mut to[..16];
    // SAFETY: in bounds.
    unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), v) }
}

/// Returns eight units of a stream, the first four in the lower half: four bytes of plane 0, of
/// plane 1 and so on, with the fifth plane in the second register.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn eight_units<const BITS: usize>(bytes: &[u8]) -> [__m256i; 2] {
    let shuffles = const { unit_shuffles(BITS) };
    if BITS == 3 {
        let units = load_two_128(subarray(bytes, 0), subarray(bytes, 8));
        let planes = _mm256_shuffle_epi8(units, load(&shuffles[0]));
        return [planes, _mm256_setzero_si256()];
    }
    let first = load_two_128(subarray(bytes, 0), subarray(bytes, 20));
    let second = load_two_128(subarray(bytes, 10), subarray(bytes, 24));
    let first = _mm256_shuffle_epi8(first, load(&shuffles[0]));
    let second = _mm256_shuffle_epi8(second, load(&shuffles[1]));
    [
        _mm256_unpacklo_epi16(first, second),
        _mm256_unpackhi_epi16(first, second),
    ]
}

/// Returns byte shuffles. Three bits: four units from byte 0 and from byte 4 of sixteen. Five bits:
/// two units from byte 0, and in the second register's upper half from byte 6.
const fn unit_shuffles(bits: usize) -> [[u8; 32]; 2] {
    let units = if bits == 3 { 4 } else { 2 };
    let mut shuffles = [[0x80; 32]; 2];
    const_for!(i in 0..units * bits => {
        let (plane, unit) = (i / units, i % units);
        let from = (unit * bits + plane) as u8;
        shuffles[0][i] = from;
        shuffles[0][16 + i] = if bits == 3 { from + 4 } else { from };
        shuffles[1][i] = from;
        shuffles[1][16 + i] = from + 6;
    });
    shuffles
}

/// Codes of the vector in two digits, for pairs of columns as alternating bytes: `16 · second +
/// first`.
struct Digits([[[i16; 16]; 2]; GROUP_COLS / 2]);

impl Digits {
    /// If `within`, pairs columns 0 and 2, 1 and 3 of a quad; else the same columns of two quads.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn new(codes: &[i8; GROUP_COLS], within: bool) -> Digits {
        // SAFETY: in bounds.
        let codes = unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) };
        let (ones, eights) = (_mm256_set1_epi8(1), _mm256_set1_epi8(8));
        let fifteens = _mm256_set1_epi8(15);
        // The code divided by sixteen, rounded down, plus one if the remainder is at least eight.
        let shifted = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), fifteens);
        let sixteenth = _mm256_sub_epi8(_mm256_xor_si256(shifted, eights), eights);
        let carry = _mm256_and_si256(_mm256_srli_epi16::<3>(codes), ones);
        let second = _mm256_add_epi8(sixteenth, carry);
        let rest = _mm256_xor_si256(_mm256_and_si256(codes, fifteens), eights);
        let first = _mm256_sub_epi8(rest, eights);
        let order = if within {
            _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15)
        } else {
            _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15)
        };
        let order = _mm256_broadcastsi128_si256(order);
        let mut pairs = [[0_i16; GROUP_COLS / 2]; 2];
        for (pairs, digits) in pairs.iter_mut().zip([first, second]) {
            let digits = _mm256_shuffle_epi8(digits, order);
            // SAFETY: in bounds.
            unsafe { _mm256_storeu_si256(pairs.as_mut_ptr().cast(), digits) };
        }
        let mut digits = Digits([[[0; 16]; 2]; GROUP_COLS / 2]);
        for (i, both) in digits.0.iter_mut().enumerate() {
            for (digits, pairs) in both.iter_mut().zip(&pairs) {
                // SAFETY: in bounds.
                unsafe {
                    let pair = _mm256_set1_epi16(pairs[i]);
                    _mm256_storeu_si256(digits.as_mut_ptr().cast(), pair);
                }
            }
        }
        digits
    }
}

/// Sums of up to eight products of both digits in sixteen bits.
type DigitSums = [__m256i; 2];

#[inline]
#[target_feature(enable = "avx2,fma")]
fn multiply_digits(sums: &mut DigitSums, weights: __m256i, digits: &[[i16; 16]; 2]) {
    for (sum, digits) in sums.iter_mut().zip(digits) {
        // SAFETY: in bounds.
        let digits = unsafe { _mm256_loadu_si256(digits.as_ptr().cast()) };
        *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(weights, digits));
    }
}

/// Adds the sums of both digits, as they lie in the halves of registers.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn add_digit_sums(totals: &mut [__m256i; 2], [first, second]: DigitSums) {
    let factors = _mm256_set1_epi32(16 << 16 | 1);
    let low = _mm256_madd_epi16(_mm256_unpacklo_epi16(first, second), factors);
    let high = _mm256_madd_epi16(_mm256_unpackhi_epi16(first, second), factors);
    totals[0] = _mm256_add_epi32(totals[0], low);
    totals[1] = _mm256_add_epi32(totals[1], high);
}

macro_rules! accumulate_states {
    ($tables:ident, $planes:ident, $digits:expr, $($lowest:literal $middle:literal $highest:literal: $sums:expr, $i:expr;)*) => {
        $(
            let state_weights = weights::<$lowest, $middle, $highest>($tables, &$planes);
            multiply_digits(&mut $sums, state_weights, &$digits[$i]);
        )*
    };
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn zero_sums() -> DigitSums {
    [_mm256_setzero_si256(); 2]
}

/// Loads 32 bytes of the scratch space at offset `at`.
///
/// # Safety
/// The bytes must lie within `scratch`.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn load_scratch(scratch: &GroupScratch, at: usize) -> __m256i {
    debug_assert!(at + 32 <= GroupScratch::BYTES);
    // SAFETY: guaranteed by the caller.
    unsafe { _mm256_loadu_si256(scratch.0.as_ptr().add(at).cast()) }
}

/// Sums sixteen rows over a column group of two or four bits, starting from a centre value.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn sum_16_rows<const BITS: usize>(
    scratch: &GroupScratch,
    tables: &NibbleTables,
    digits: &Digits,
    block: usize,
    centre: __m256i,
) -> [__m256i; 2] {
    assert!(block < TILE_ROWS / GROUP_ROWS);
    let width = GROUP_COLS / 2 / (QUADS_PER_GROUP * BITS / 4);
    let mut totals = [centre; 2];
    // Eight products go into each sum. The count is hidden from the compiler, which would otherwise
    // merge the loops and run out of registers.
    for half in 0..2 {
        let mut sums = zero_sums();
        let streams = if BITS == 4 { black_box(4) } else { 2 };
        for i in half * streams..(half + 1) * streams {
            let digits = &digits.0[i * width..][..width];
            let at = i * STREAM_BYTES + block * 32;
            // SAFETY: reads a block of a stream and up to 32 bytes after it.
            let load_plane = |offset: usize| unsafe { load_scratch(scratch, at + offset) };
            if BITS == 4 {
                let planes = [load_plane(0), load_plane(1)];
                accumulate_states!(tables, planes, digits, 0 4 8: sums, 0; 4 8 12: sums, 1;);
            } else {
                let planes = [load_plane(0), load_plane(2), load_plane(4)];
                accumulate_states!(tables, planes, digits,
                    0 4 8: sums, 0; 2 6 10: sums, 1; 4 8 12: sums, 2; 6 10 14: sums, 3;);
            }
        }
        add_digit_sums(&mut totals, sums);
    }
    reorder_halves(totals)
}

/// Sums 32 rows over a column group of three or five bits, starting from a centre value.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn sum_32_rows<const BITS: usize>(
    scratch: &GroupScratch,
    tables: &NibbleTables,
    digits: &Digits,
    block: usize,
    centre: __m256i,
) -> [[__m256i; 2]; 2] {
    assert!(block < TILE_ROWS / GROUP_ROWS / 2);
    // Eight products go into each sum, separately for even and odd rows.
    let (mut even, mut odd) = ([zero_sums(); 2], [zero_sums(); 2]);
    for (pair, digits) in digits.0.as_chunks::<4>().0.iter().enumerate() {
        let at = pair * BITS * PLANE_BYTES + block * 32;
        // SAFETY: reads a block of a plane and two bytes after it.
        let load_plane = |plane: usize| unsafe {
            // Indices past the last plane refer to the next unit.
            load_scratch(scratch, at + plane % BITS * PLANE_BYTES + plane / BITS * 2)
        };
        if BITS == 3 {
            let planes = [
                load_plane(0),
                load_plane(1),
                load_plane(2),
                load_plane(3),
                load_plane(4),
            ];
            accumulate_states!(tables, planes, digits,
                0 4 8: even[0], 0; 3 7 11: even[0], 1; 6 10 14: even[1], 2; 9 13 17: even[1], 3;
                12 16 20: odd[0], 0; 15 19 23: odd[0], 1; 18 22 26: odd[1], 2; 21 25 29: odd[1], 3;);
        } else {
            let planes = [
                load_plane(0),
                load_plane(1),
                load_plane(2),
                load_plane(3),
                load_plane(4),
                load_plane(5),
            ];
            accumulate_states!(tables, planes, digits,
                0 4 8: even[0], 0; 5 9 13: even[0], 1; 10 14 18: even[1], 2; 15 19 23: even[1], 3;
                20 24 28: odd[0], 0; 25 29 33: odd[0], 1; 30 34 38: odd[1], 2; 35 39 43: odd[1], 3;);
        }
    }
    let mut totals = [[centre; 2]; 2];
    for k in 0..2 {
        let (mut low, mut high) = (even[k], odd[k]);
        for i in 0..2 {
            low[i] = _mm256_unpacklo_epi16(even[k][i], odd[k][i]);
            high[i] = _mm256_unpackhi_epi16(even[k][i], odd[k][i]);
        }
        add_digit_sums(&mut totals[0], low);
        add_digit_sums(&mut totals[1], high);
    }
    // The lower halves are rows 0 to 7 and 8 to 15, the upper ones the next sixteen.
    let [a, b] = reorder_halves(totals[0]);
    let [c, d] = reorder_halves(totals[1]);
    [[a, c], [b, d]]
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn reorder_halves([a, b]: [__m256i; 2]) -> [__m256i; 2] {
    [
        _mm256_permute2x128_si256::<0x20>(a, b),
        _mm256_permute2x128_si256::<0x31>(a, b),
    ]
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn add_totals(totals: [__m256i; 2], scale: __m256, sums: &mut RowValues) {
    for (total, sums) in totals.into_iter().zip(sums.as_chunks_mut::<8>().0) {
        // SAFETY: in bounds.
        unsafe {
            let sum = _mm256_loadu_ps(sums.as_ptr());
            let sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total), scale, sum);
            _mm256_storeu_ps(sums.as_mut_ptr(), sum);
        }
    }
}
