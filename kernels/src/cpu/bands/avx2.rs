//! The version for x86-64 with AVX2 and FMA.
//!
//! Tables have sixteen entries in a register; of longer ones four or two registers are looked up and the
//! bits beyond four choose. A window of six bits is brought to the upper end of a 16-bit lane by a
//! product with a power of two, because there is no shift of such lanes by numbers of their own, and from
//! there to the lower.

mod levels;
mod tile;
mod trellis;
mod windows;

use std::arch::x86_64::*;
use std::ops::Range;

use htc_formats::bands::{CHUNK, Code, Kind, LEVEL_TABLES, QUADS, TRELLIS_TABLES, Trellis};

use super::scalar::{Stream, level_chunks};
use super::{Group, Group16, Room, Vector, part};

pub(in super::super) use tile::add;

/// Bytes of a register.
const WIDTH: usize = 32;

/// As [`BandKernels::unpack`](super::BandKernels::unpack).
#[target_feature(enable = "avx2,fma")]
pub(in super::super) fn unpack(code: Code, band: &[u8], groups: Range<usize>, out: &mut [Group]) {
    match (code.kind(), code.bits()) {
        (Kind::Trellis, 2) => trellis::<2>(code, band, groups, out),
        (Kind::Trellis, 3) => trellis::<3>(code, band, groups, out),
        (Kind::Trellis, 4) => trellis::<4>(code, band, groups, out),
        (Kind::Trellis, _) => trellis::<5>(code, band, groups, out),
        (Kind::Levels, 2) => levels::<2>(code, band, groups, out),
        (Kind::Levels, 3) => levels::<3>(code, band, groups, out),
        (Kind::Levels, 4) => levels::<4>(code, band, groups, out),
        (Kind::Levels, 5) => levels::<5>(code, band, groups, out),
        (Kind::Levels, 6) => levels::<6>(code, band, groups, out),
        (Kind::Levels, 7) => levels::<7>(code, band, groups, out),
        (Kind::Levels, _) => levels::<8>(code, band, groups, out),
    }
}

/// As [`BandKernels::dot`](super::BandKernels::dot).
#[target_feature(enable = "avx2,fma")]
pub(in super::super) fn dot(
    code: Code,
    band: &[u8],
    groups: Range<usize>,
    vector: &Vector<'_>,
    room: &mut Room,
    sums: &mut [Group16],
) {
    match (code.kind(), code.bits()) {
        (Kind::Trellis, 2) => trellis::dot::<2>(band, groups, vector, room, sums),
        (Kind::Trellis, 3) => trellis::dot::<3>(band, groups, vector, room, sums),
        (Kind::Trellis, 4) => trellis::dot::<4>(band, groups, vector, room, sums),
        (Kind::Trellis, _) => trellis::dot::<5>(band, groups, vector, room, sums),
        (Kind::Levels, 2) => levels::dot::<2>(band, groups, vector, sums),
        (Kind::Levels, 3) => levels::dot::<3>(band, groups, vector, sums),
        (Kind::Levels, 4) => levels::dot::<4>(band, groups, vector, sums),
        (Kind::Levels, 5) => levels::dot::<5>(band, groups, vector, sums),
        (Kind::Levels, 6) => levels::dot::<6>(band, groups, vector, sums),
        (Kind::Levels, 7) => levels::dot::<7>(band, groups, vector, sums),
        (Kind::Levels, _) => levels::dot::<8>(band, groups, vector, sums),
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn load(bytes: &[u8; WIDTH]) -> __m256i {
    // SAFETY: the array has the bytes that are read.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn store(to: &mut [i8; WIDTH], v: __m256i) {
    // SAFETY: the array has the bytes that are written.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), v) }
}

/// Sixteen bytes for each half.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn halves(low: &[u8; 16], high: &[u8; 16]) -> __m256i {
    // SAFETY: the arrays have the bytes that are read.
    unsafe { _mm256_loadu2_m128i(high.as_ptr().cast(), low.as_ptr().cast()) }
}

/// A table of 64 bytes: sixteen to a register, twice.
type Table = [__m256i; 4];

#[inline]
#[target_feature(enable = "avx2,fma")]
fn table(entries: &[i8]) -> Table {
    let mut table = [_mm256_setzero_si256(); 4];
    for (register, entries) in table.iter_mut().zip(entries.chunks(16)) {
        let mut bytes = [0; 16];
        for (byte, entry) in bytes.iter_mut().zip(entries) {
            *byte = entry.cast_unsigned();
        }
        *register = halves(&bytes, &bytes);
    }
    table
}

/// The entries that six bits choose; the bits above are zero.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn of_64(table: &Table, index: __m256i) -> __m256i {
    // A choice looks at the highest bit of a byte alone.
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

/// The entries that five bits choose; the bit above is of no meaning, the highest is zero.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn of_32(table: &Table, index: __m256i) -> __m256i {
    _mm256_blendv_epi8(
        _mm256_shuffle_epi8(table[0], index),
        _mm256_shuffle_epi8(table[1], index),
        _mm256_slli_epi16::<3>(index),
    )
}

/// How eight windows of six bits are cut out of the bytes of eight weights: the two bytes that hold each,
/// and the power of two that brings it to the upper end of sixteen bits.
const fn windows(bits: usize, from: usize) -> ([u8; 16], [u16; 16]) {
    let (mut bytes, mut factors) = ([0; 16], [0; 16]);
    let mut i = 0;
    while i < 8 {
        let bit = i * bits + from;
        bytes[2 * i] = (bit / 8) as u8;
        bytes[2 * i + 1] = (bit / 8 + 1) as u8;
        factors[i] = 1 << (10 - bit % 8);
        factors[i + 8] = factors[i];
        i += 1;
    }
    (bytes, factors)
}

/// [`windows`] in registers.
#[derive(Clone, Copy)]
struct Windows {
    bytes: __m256i,
    factors: __m256i,
}

impl Windows {
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn new((bytes, factors): ([u8; 16], [u16; 16])) -> Windows {
        Windows {
            bytes: halves(&bytes, &bytes),
            // SAFETY: the array has the bytes that are read.
            factors: unsafe { _mm256_loadu_si256(factors.as_ptr().cast()) },
        }
    }

    /// The windows of sixteen weights, eight to a half.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn of(&self, stream: __m256i) -> __m256i {
        let pairs = _mm256_shuffle_epi8(stream, self.bytes);
        _mm256_srli_epi16::<10>(_mm256_mullo_epi16(pairs, self.factors))
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn trellis<const BITS: usize>(code: Code, band: &[u8], groups: Range<usize>, out: &mut [Group]) {
    let Trellis { low, high, .. } = &TRELLIS_TABLES[BITS - 2];
    let (low, high) = (table(low), table(high));
    let (of_low, of_high) = const { (windows(BITS, 0), windows(BITS, 6)) };
    let (of_low, of_high) = (Windows::new(of_low), Windows::new(of_high));
    for quad in 0..QUADS {
        let stream = Stream::of(code, band, quad, &groups);
        for (g, group) in out.iter_mut().enumerate() {
            let parts = group[quad].as_chunks_mut::<WIDTH>().0;
            for (h, part_of) in parts.iter_mut().enumerate() {
                let bytes = stream.bytes((g * CHUNK + h * WIDTH) * BITS / 8);
                // Weights 0 to 7 and 16 to 23, then those behind each: packing puts them in order.
                let first = halves(part(bytes, 0), part(bytes, 2 * BITS));
                let second = halves(part(bytes, BITS), part(bytes, 3 * BITS));
                let index =
                    |windows: Windows| _mm256_packus_epi16(windows.of(first), windows.of(second));
                let (a, b) = (index(of_low), index(of_high));
                store(part_of, _mm256_add_epi8(of_64(&low, a), of_64(&high, b)));
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn levels<const BITS: usize>(code: Code, band: &[u8], groups: Range<usize>, out: &mut [Group]) {
    // Up to four bits the table holds both signs, beyond that magnitudes.
    let magnitudes = LEVEL_TABLES.get(BITS - 2).copied().unwrap_or(&[]);
    let mut signed = [0_i8; 16];
    if BITS <= 4 {
        for (i, &magnitude) in magnitudes.iter().enumerate() {
            (signed[i], signed[i + magnitudes.len()]) = (magnitude, -magnitude);
        }
    }
    let table = table(if BITS <= 4 { &signed } else { magnitudes });
    for (g, group) in out.iter_mut().enumerate() {
        let chunks = level_chunks(code, band, groups.start + g);
        for (chunk, out) in chunks.chunks_exact(CHUNK * BITS / 8).zip(group) {
            let parts = out.as_chunks_mut::<WIDTH>().0;
            for (h, (out, codes)) in parts.iter_mut().zip(planes::<BITS>(chunk)).enumerate() {
                if BITS == 8 {
                    let codes = load(part(chunk, h * WIDTH));
                    store(out, _mm256_max_epi8(codes, _mm256_set1_epi8(-127)));
                    continue;
                }
                let found = match BITS {
                    2..=5 => _mm256_shuffle_epi8(table[0], codes),
                    6 => of_32(&table, codes),
                    _ => of_64(&table, codes),
                };
                if BITS <= 4 {
                    store(out, found);
                    continue;
                }
                let sign = _mm256_set1_epi8(1 << ((BITS - 1) % 7));
                let negative = _mm256_cmpeq_epi8(_mm256_and_si256(codes, sign), sign);
                let flipped = _mm256_xor_si256(found, negative);
                store(out, _mm256_sub_epi8(flipped, negative));
            }
        }
    }
}

/// The codes of a chunk of up to seven bits.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn planes<const BITS: usize>(chunk: &[u8]) -> [__m256i; 2] {
    let mut codes = [_mm256_setzero_si256(); 2];
    if BITS == 8 {
        return codes;
    }
    let mut at = 0;
    if BITS & 4 != 0 {
        let mask = _mm256_set1_epi8(15);
        let four = load(part(chunk, 0));
        codes[0] = _mm256_and_si256(four, mask);
        codes[1] = _mm256_and_si256(_mm256_srli_epi16::<4>(four), mask);
        at = 32;
    }
    if BITS & 2 != 0 {
        let two = part(chunk, at);
        let two = halves(two, two);
        let mask = _mm256_set1_epi8(3);
        for (h, codes) in codes.iter_mut().enumerate() {
            let shift = 4 * h as i64;
            let shifts = _mm256_set_epi64x(shift + 2, shift + 2, shift, shift);
            let plane = _mm256_and_si256(_mm256_srlv_epi64(two, shifts), mask);
            let plane = if BITS & 4 != 0 {
                _mm256_slli_epi16::<4>(plane)
            } else {
                plane
            };
            *codes = _mm256_or_si256(*codes, plane);
        }
        at += 16;
    }
    if BITS & 1 != 0 {
        let one = _mm256_set1_epi64x(i64::from_le_bytes(*part(chunk, at)));
        let mask = _mm256_set1_epi8(1);
        for (h, codes) in codes.iter_mut().enumerate() {
            let shift = 4 * h as i64;
            let shifts = _mm256_set_epi64x(shift + 3, shift + 2, shift + 1, shift);
            let plane = _mm256_and_si256(_mm256_srlv_epi64(one, shifts), mask);
            let plane = match BITS {
                3 => _mm256_slli_epi16::<2>(plane),
                5 => _mm256_slli_epi16::<4>(plane),
                _ => _mm256_slli_epi16::<6>(plane),
            };
            *codes = _mm256_or_si256(*codes, plane);
        }
    }
    codes
}
