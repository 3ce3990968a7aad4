//! Column group kernels for x86-64 with AVX2 and FMA.
//!
//! Lookup tables have sixteen entries per register; longer ones use two or four lookups, and the
//! bits beyond the fourth select the result. A window of a state is moved to the upper end of a
//! 16-bit lane by a multiplication with a power of two, because AVX2 has no variable shift of
//! 16-bit lanes, and from there shifted down.

mod levels;
mod nibbles;
mod tile;
mod trellis;

use std::arch::x86_64::*;
use std::ops::Range;

use htc_formats::bands::{
    CHUNK, CODEBOOKS, Code, CodeKind, QUADS_PER_GROUP, TRELLIS_TABLES, Trellis,
};

use super::scalar::{Stream, level_chunks};
use super::{Group, Group16, Part, Room, Vector, dot_unpacked, part};

pub(in super::super) use tile::add;

const WIDTH: usize = 32;

/// Implements [`BandKernels::unpack`](super::BandKernels::unpack).
#[target_feature(enable = "avx2,fma")]
pub(in super::super) fn unpack(code: Code, band: &[u8], groups: Range<usize>, out: &mut [Group]) {
    match (code.kind(), code.bits()) {
        (CodeKind::Trellis, 2) => trellis::<2>(code, band, groups, out),
        (CodeKind::Trellis, 3) => trellis::<3>(code, band, groups, out),
        (CodeKind::Trellis, 4) => trellis::<4>(code, band, groups, out),
        (CodeKind::Trellis, _) => trellis::<5>(code, band, groups, out),
        (CodeKind::Codebook, 2) => levels::<2>(code, band, groups, out),
        (CodeKind::Codebook, 3) => levels::<3>(code, band, groups, out),
        (CodeKind::Codebook, 4) => levels::<4>(code, band, groups, out),
        (CodeKind::Codebook, 5) => levels::<5>(code, band, groups, out),
        (CodeKind::Codebook, 6) => levels::<6>(code, band, groups, out),
        (CodeKind::Codebook, 7) => levels::<7>(code, band, groups, out),
        (CodeKind::Codebook, _) => levels::<8>(code, band, groups, out),
    }
}

/// Implements [`BandKernels::dot`](super::BandKernels::dot).
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
        // No matrix has such tables today.
        (CodeKind::Trellis, _) if code.table_index() != nibbles::TABLES => {
            let unpack =
                |code, band: &[u8], groups, out: &mut [Group]| unpack(code, band, groups, out);
            let add = |integers: &[Group],
                       factors: &[Group16],
                       parts: &[Part<'_>],
                       sums: &mut [Group16]| {
                add(integers, factors, parts, sums);
            };
            dot_unpacked((unpack, add), code, band, groups, vector, sums);
        }
        (CodeKind::Trellis, 2) => trellis::dot::<2>(band, groups, vector, room, sums),
        (CodeKind::Trellis, 3) => trellis::dot::<3>(band, groups, vector, room, sums),
        (CodeKind::Trellis, 4) => trellis::dot::<4>(band, groups, vector, room, sums),
        (CodeKind::Trellis, _) => trellis::dot::<5>(band, groups, vector, room, sums),
        (CodeKind::Codebook, 2) => levels::dot::<2>(band, groups, vector, sums),
        (CodeKind::Codebook, 3) => levels::dot::<3>(band, groups, vector, sums),
        (CodeKind::Codebook, 4) => levels::dot::<4>(band, groups, vector, sums),
        (CodeKind::Codebook, 5) => levels::dot::<5>(band, groups, vector, sums),
        (CodeKind::Codebook, 6) => levels::dot::<6>(band, groups, vector, sums),
        (CodeKind::Codebook, 7) => levels::dot::<7>(band, groups, vector, sums),
        (CodeKind::Codebook, _) => levels::dot::<8>(band, groups, vector, sums),
    }
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
fn halves(low: &[u8; 16], high: &[u8; 16]) -> __m256i {
    // SAFETY: in bounds.
    unsafe { _mm256_loadu2_m128i(high.as_ptr().cast(), low.as_ptr().cast()) }
}

/// Table of 64 bytes: sixteen per register, duplicated in both halves.
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

/// Looks up 64 entries by six-bit indices; the bits above are zero.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn of_64(table: &Table, index: __m256i) -> __m256i {
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

/// Looks up 32 entries by five-bit indices; bit 5 is ignored, the highest is zero.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn of_32(table: &Table, index: __m256i) -> __m256i {
    _mm256_blendv_epi8(
        _mm256_shuffle_epi8(table[0], index),
        _mm256_shuffle_epi8(table[1], index),
        _mm256_slli_epi16::<3>(index),
    )
}

/// Returns the shuffle and the multipliers that extract eight windows of `width` bits from the
/// bytes of eight weights: the two bytes that hold each window, and the power of two that moves it
/// to the upper end of sixteen bits.
const fn windows(bits: usize, from: usize, width: usize) -> ([u8; 16], [u16; 16]) {
    let (mut bytes, mut factors) = ([0; 16], [0; 16]);
    let mut i = 0;
    while i < 8 {
        let bit = i * bits + from;
        bytes[2 * i] = (bit / 8) as u8;
        bytes[2 * i + 1] = (bit / 8 + 1) as u8;
        factors[i] = 1 << (16 - width - bit % 8);
        factors[i + 8] = factors[i];
        i += 1;
    }
    (bytes, factors)
}

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
            // SAFETY: in bounds.
            factors: unsafe { _mm256_loadu_si256(factors.as_ptr().cast()) },
        }
    }

    /// Extracts the windows of 32 weights, `DOWN` bits above bit 0 of their 16-bit lanes: those of
    /// weights 0 to 7 and 16 to 23, then 8 to 15 and 24 to 31, which packing puts in order.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn of<const DOWN: i32>(&self, weights: [__m256i; 2]) -> __m256i {
        let [first, second] = weights.map(|bytes| {
            let pairs = _mm256_shuffle_epi8(bytes, self.bytes);
            _mm256_srli_epi16::<DOWN>(_mm256_mullo_epi16(pairs, self.factors))
        });
        _mm256_packus_epi16(first, second)
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn eights<const BITS: usize>(bytes: &[u8]) -> [__m256i; 2] {
    [
        halves(part(bytes, 0), part(bytes, 2 * BITS)),
        halves(part(bytes, BITS), part(bytes, 3 * BITS)),
    ]
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn trellis<const BITS: usize>(code: Code, band: &[u8], groups: Range<usize>, out: &mut [Group]) {
    let Trellis {
        low, high, nibbles, ..
    } = &TRELLIS_TABLES[code.table_index()][BITS - 2];
    if let Some(tables) = nibbles {
        let [lowest, middle, highest] = [
            table(&tables[0])[0],
            table(&tables[1])[0],
            table(&tables[2])[0],
        ];
        let (of_two, of_one) = const { (windows(BITS, 0, 8), windows(BITS, 8, 4)) };
        let (of_two, of_one) = (Windows::new(of_two), Windows::new(of_one));
        let mask = _mm256_set1_epi8(15);
        each_32(code, band, groups, out, |bytes| {
            let weights = eights::<BITS>(bytes);
            let (two, one) = (of_two.of::<8>(weights), of_one.of::<12>(weights));
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
    let (low, high) = (table(low), table(high));
    let (of_low, of_high) = const { (windows(BITS, 0, 6), windows(BITS, 6, 6)) };
    let (of_low, of_high) = (Windows::new(of_low), Windows::new(of_high));
    each_32(code, band, groups, out, |bytes| {
        let weights = eights::<BITS>(bytes);
        let (a, b) = (of_low.of::<10>(weights), of_high.of::<10>(weights));
        _mm256_add_epi8(of_64(&low, a), of_64(&high, b))
    });
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn each_32(
    code: Code,
    band: &[u8],
    groups: Range<usize>,
    out: &mut [Group],
    integers: impl Fn(&[u8]) -> __m256i,
) {
    let bits = usize::from(code.bits());
    for quad in 0..QUADS_PER_GROUP {
        let stream = Stream::of(code, band, quad, &groups);
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
fn levels<const BITS: usize>(code: Code, band: &[u8], groups: Range<usize>, out: &mut [Group]) {
    // Up to four bits the table holds both signs, beyond that magnitudes.
    let magnitudes = CODEBOOKS.get(BITS - 2).copied().unwrap_or(&[]);
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
