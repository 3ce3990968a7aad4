//! Weights of a trellis from bytes that lie alike in all lanes; see [`windows`](super::super::windows).

use std::arch::asm;
use std::arch::x86_64::*;

use super::super::windows::{Entries, Tables};

/// Each byte twice, without what does not fit it. In assembly, because the compiler makes shifts of several
/// doublings, which fewer of a processor's units do, and comparisons of choices by shifted bits.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn double(byte: __m256i) -> __m256i {
    let twice;
    // SAFETY: the instruction is one of those that the function asks for, and touches nothing but its
    // registers.
    unsafe {
        asm!(
            "vpaddb {twice}, {byte}, {byte}",
            twice = lateout(ymm_reg) twice,
            byte = in(ymm_reg) byte,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    twice
}

/// Bit `BIT` of each byte at its highest, which choices look at; what the lower ones become is of no
/// meaning.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn bit<const BIT: usize>(byte: __m256i) -> __m256i {
    let (mut bit, mut at) = (byte, 7);
    if BIT < 4 {
        (bit, at) = (_mm256_slli_epi16::<4>(byte), 3);
    }
    while at > BIT {
        (bit, at) = (double(bit), at - 1);
    }
    bit
}

/// Four bits from `FROM` on.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn four<const FROM: i32>(byte: __m256i) -> __m256i {
    _mm256_and_si256(_mm256_srli_epi16::<FROM>(byte), _mm256_set1_epi8(15))
}

/// The entries that the windows choose which begin at bit `PHASE` of a byte and go on in the next.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn entries<const PHASE: usize>(tables: &Entries, byte: __m256i, next: __m256i) -> __m256i {
    let (nibble, first, second) = match PHASE {
        0 => (four::<0>(byte), bit::<4>(byte), bit::<5>(byte)),
        1 => (four::<1>(byte), bit::<5>(byte), bit::<6>(byte)),
        2 => (four::<4>(byte), bit::<2>(byte), bit::<3>(byte)),
        3 => (four::<4>(byte), bit::<3>(byte), bit::<0>(next)),
        4 => (four::<4>(byte), bit::<0>(next), bit::<1>(next)),
        5 => {
            let upper = _mm256_and_si256(four::<4>(byte), _mm256_set1_epi8(14));
            let lowest = _mm256_and_si256(next, _mm256_set1_epi8(1));
            (
                _mm256_or_si256(upper, lowest),
                bit::<1>(next),
                bit::<2>(next),
            )
        }
        6 => (four::<0>(next), bit::<6>(byte), bit::<7>(byte)),
        _ => (four::<0>(next), bit::<7>(byte), bit::<4>(next)),
    };
    let of = |table: &[i8; 16]| {
        // SAFETY: the array has the bytes that are read.
        let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), nibble)
    };
    let low = _mm256_blendv_epi8(of(&tables[0]), of(&tables[1]), first);
    let high = _mm256_blendv_epi8(of(&tables[2]), of(&tables[3]), first);
    _mm256_blendv_epi8(low, high, second)
}

/// The weights, above by 128, whose states begin at bit `LOW` and so have their high half at `HIGH`, six
/// bits further on: `planes` are the bytes of each lane's part of a stream.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn weights<const LOW: usize, const HIGH: usize>(
    tables: &Tables,
    planes: &[__m256i],
) -> __m256i {
    let low = entries_at::<LOW>(&tables.low, planes);
    _mm256_add_epi8(low, entries_at::<HIGH>(&tables.high, planes))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn entries_at<const BIT: usize>(tables: &[Entries; 8], planes: &[__m256i]) -> __m256i {
    let byte = planes[BIT / 8];
    // Where a window ends in its first byte the next one is not looked at, and need not be there.
    let next = if BIT % 8 > 2 {
        planes[BIT / 8 + 1]
    } else {
        byte
    };
    match BIT % 8 {
        0 => entries::<0>(&tables[0], byte, next),
        1 => entries::<1>(&tables[1], byte, next),
        2 => entries::<2>(&tables[2], byte, next),
        3 => entries::<3>(&tables[3], byte, next),
        4 => entries::<4>(&tables[4], byte, next),
        5 => entries::<5>(&tables[5], byte, next),
        6 => entries::<6>(&tables[6], byte, next),
        _ => entries::<7>(&tables[7], byte, next),
    }
}
