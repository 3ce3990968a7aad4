//! Trellis weights as sums of lookups by the nibbles of their states.
//!
//! When every lane of a register holds the byte at the same offset of its part of a stream, a
//! nibble of a state lies in the same bits of all lanes and selects one of sixteen table entries in
//! one instruction. Neighbouring states share nibbles that are four bits apart. A nibble that
//! crosses into the next byte is not reassembled: both parts stay in their bits, and the table is
//! permuted to match.

use std::arch::x86_64::*;

use htc_formats::bands::{TRELLIS_TABLES, Trellis};

/// Tables by the lowest, the middle and the highest nibble. The entries of the first are raised by
/// 128 (modulo 256), so that sums are unsigned.
type Tables = [[i8; 16]; 3];

/// Tables of a trellis, indexed by the number of bits of the nibble that lie in the next byte.
pub(super) type NibbleTables = [Tables; 4];

/// Index of the [`TRELLIS_TABLES`] that are sums by nibbles.
pub(super) const TABLES_VERSION: usize = 1;

const _: () = assert!(TABLES_VERSION + 1 == TRELLIS_TABLES.len());

/// Tables for 2 to 5 bits.
pub(super) static NIBBLE_TABLES: [NibbleTables; 4] = {
    let tables = &TRELLIS_TABLES[TABLES_VERSION];
    [
        nibble_tables(&tables[0]),
        nibble_tables(&tables[1]),
        nibble_tables(&tables[2]),
        nibble_tables(&tables[3]),
    ]
};

const fn nibble_tables(trellis: &Trellis) -> NibbleTables {
    let mut tables_of_code = [[[0; 16]; 3]; 4];
    assert!(trellis.nibbles.is_some(), "tables of this version are sums");
    let Some(nibbles) = trellis.nibbles else {
        return tables_of_code;
    };
    const_for!(i in 0..4 * 3 * 16 => {
        let (next_bits, table, index) = (i / 48, i / 16 % 3, i % 16);
        // The bits of the next byte are the lowest of the index and the highest of the nibble.
        let nibble = index >> next_bits | index << (4 - next_bits) & 15;
        let above: i8 = if table == 0 { -128 } else { 0 };
        tables_of_code[next_bits][table][index] = nibbles[table][nibble].wrapping_add(above);
    });
    tables_of_code
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn nibble<const FROM: i32>(byte: __m256i) -> __m256i {
    _mm256_and_si256(_mm256_srli_epi16::<FROM>(byte), _mm256_set1_epi8(15))
}

/// Combines the `UPPER` bits of the upper half of a byte with the `LOWER` bits of the next byte.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn nibble_across_bytes<const UPPER: i8, const LOWER: i8>(byte: __m256i, next: __m256i) -> __m256i {
    let upper = _mm256_and_si256(_mm256_srli_epi16::<4>(byte), _mm256_set1_epi8(UPPER));
    _mm256_or_si256(upper, _mm256_and_si256(next, _mm256_set1_epi8(LOWER)))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn look_up_nibble<const TABLE: usize, const BIT: usize>(
    tables_of_code: &NibbleTables,
    planes: &[__m256i],
) -> __m256i {
    let byte = planes[BIT / 8];
    let nibble = match BIT % 8 {
        0 => nibble::<0>(byte),
        1 => nibble::<1>(byte),
        2 => nibble::<2>(byte),
        3 => nibble::<3>(byte),
        4 => nibble::<4>(byte),
        5 => nibble_across_bytes::<14, 1>(byte, planes[BIT / 8 + 1]),
        6 => nibble_across_bytes::<12, 3>(byte, planes[BIT / 8 + 1]),
        _ => nibble_across_bytes::<8, 7>(byte, planes[BIT / 8 + 1]),
    };
    let table = &tables_of_code[(BIT % 8).saturating_sub(4)][TABLE];
    // SAFETY: in bounds.
    let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), nibble)
}

/// Returns the weights, raised by 128, of the states whose nibbles begin at these bits; `planes`
/// are the bytes of each lane's part of a stream.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn weights<const LOWEST: usize, const MIDDLE: usize, const HIGHEST: usize>(
    tables_of_code: &NibbleTables,
    planes: &[__m256i],
) -> __m256i {
    let lowest = look_up_nibble::<0, LOWEST>(tables_of_code, planes);
    let both = _mm256_add_epi8(lowest, look_up_nibble::<1, MIDDLE>(tables_of_code, planes));
    _mm256_add_epi8(both, look_up_nibble::<2, HIGHEST>(tables_of_code, planes))
}
