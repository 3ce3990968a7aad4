//! Conversion of quantised rows to one-byte codes with separate scales.

use super::panel::UnpackedRow;
use crate::cpu::dot::IQ4_CODEBOOK;
use crate::cpu::{six_bit_scales, subarray};

/// Calls a function that is generic over the [`Format`] of a type, or evaluates `$other` for a type
/// that is no integer type.
macro_rules! by_format {
    ($dtype:expr, $function:ident $arguments:tt, $other:expr) => {
        match $dtype {
            DType::Q8_0 => $function::<Q8_0> $arguments,
            DType::Q4_0 => $function::<Q4_0> $arguments,
            DType::Q4_1 => $function::<Q4_1> $arguments,
            DType::Q5_0 => $function::<Q5_0> $arguments,
            DType::Q5_1 => $function::<Q5_1> $arguments,
            DType::Q2K => $function::<Q2K> $arguments,
            DType::Q3K => $function::<Q3K> $arguments,
            DType::Q4K => $function::<Q4K> $arguments,
            DType::Q5K => $function::<Q5K> $arguments,
            DType::Q6K => $function::<Q6K> $arguments,
            DType::IQ4NL => $function::<Iq4Nl> $arguments,
            DType::IQ4XS => $function::<Iq4Xs> $arguments,
            _ => $other,
        }
    };
}
pub(in crate::cpu) use by_format;

/// Properties of a format that a product depends on.
pub(in crate::cpu) trait QuantLayout {
    /// Scales per 32 numbers, 1 or 2.
    const SCALES: usize;
    /// True if every scale has a minimum.
    const MINIMA: bool;
    /// The largest code, 127 if codes are signed.
    #[cfg(target_arch = "x86_64")]
    const LARGEST: u8;
}

macro_rules! quant_layouts {
    ($($name:ident $scales:literal $minima:literal $largest:literal;)*) => {
        $(
            pub(in crate::cpu) struct $name;

            impl QuantLayout for $name {
                const SCALES: usize = $scales;
                const MINIMA: bool = $minima;
                #[cfg(target_arch = "x86_64")]
                const LARGEST: u8 = $largest;
            }
        )*
    };
}

quant_layouts! {
    SignedBytes 1 false 127;
    FourBits 1 false 15;
    FiveBits 1 false 31;
    FourBitsWithMinimum 1 true 15;
    FiveBitsWithMinimum 1 true 31;
    ThreeBitsInHalves 2 false 7;
    SixBitsInHalves 2 false 63;
    TwoBitsWithMinimumInHalves 2 true 3;
}

/// Quantised weight format. A number is `scale · (code - CENTRE) + minimum`.
///
/// A block of 32 numbers has its scale and minimum in f16. A block of 256 has small integers for
/// every 16 or 32 numbers; its f16 times these are the scale and the negative of the minimum.
pub(in crate::cpu) trait Format {
    type Layout: QuantLayout;
    /// Numbers of a block, 32 or 256.
    const LEN: usize;
    /// Bytes of a block.
    const BYTES: usize;
    /// Byte offset of the f16 scale.
    const SCALE: usize;
    /// Byte offset of the f16 minimum, if any.
    const MINIMUM: usize = 0;
    /// Code of zero.
    const CENTRE: u8 = 0;
    /// Codebook, if codes are indices.
    const CODEBOOK: Option<[i8; 16]> = None;

    /// Unpacks up to a super-block of whole blocks.
    fn unpack(blocks: &[u8], row: &mut UnpackedRow);
}

/// Defines formats of 32 numbers: name, shape, bytes, other constants, and unpacking of a block.
macro_rules! formats_of_32 {
    ($($name:ident $shape:ident $bytes:literal { $($constant:item)* } $unpack:expr;)*) => {
        $(
            pub(in crate::cpu) struct $name;

            impl Format for $name {
                type Layout = $shape;
                const LEN: usize = 32;
                const BYTES: usize = $bytes;
                const SCALE: usize = 0;
                $($constant)*

                #[inline(always)]
                fn unpack(blocks: &[u8], row: &mut UnpackedRow) {
                    let codes = row.codes.as_chunks_mut::<32>().0;
                    for (block, codes) in blocks.as_chunks::<$bytes>().0.iter().zip(codes) {
                        *codes = $unpack(block);
                    }
                }
            }
        )*
    };
}

formats_of_32! {
    Q8_0 SignedBytes 34 {} |block: &[u8; 34]| -> [u8; 32] { *subarray(block, 2) };
    Q4_0 FourBits 18 { const CENTRE: u8 = 8; } |block: &[u8; 18]| to_bytes(nibbles(subarray(block, 2)));
    Q4_1 FourBitsWithMinimum 20 { const MINIMUM: usize = 2; }
        |block: &[u8; 20]| to_bytes(nibbles(subarray(block, 4)));
    Q5_0 FiveBits 22 { const CENTRE: u8 = 16; }
        |block: &[u8; 22]| with_fifth_bits(nibbles(subarray(block, 6)), subarray(block, 2));
    Q5_1 FiveBitsWithMinimum 24 { const MINIMUM: usize = 2; }
        |block: &[u8; 24]| with_fifth_bits(nibbles(subarray(block, 8)), subarray(block, 4));
    Iq4Nl SignedBytes 18 { const CODEBOOK: Option<[i8; 16]> = Some(IQ4_CODEBOOK); }
        |block: &[u8; 18]| to_bytes(nibbles(subarray(block, 2)));
}

type Words = [u64; 4];

/// Repeats `byte` in every byte.
const fn splat(byte: u8) -> u64 {
    byte as u64 * 0x0101_0101_0101_0101
}

#[inline(always)]
fn to_words(bytes: &[u8; 32]) -> Words {
    let words = bytes.as_chunks::<8>().0;
    [words[0], words[1], words[2], words[3]].map(u64::from_le_bytes)
}

#[inline(always)]
fn to_bytes(words: Words) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    bytes
}

/// Applies `f` to pairs of words and returns bytes. Shifts carry bits into neighbours, which must
/// be masked.
#[inline(always)]
fn map_words(a: Words, b: Words, f: impl Fn(u64, u64) -> u64) -> [u8; 32] {
    to_bytes([f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])])
}

#[inline(always)]
fn nibbles(bytes: &[u8; 16]) -> Words {
    let words = bytes.as_chunks::<8>().0;
    let [a, b] = [words[0], words[1]].map(u64::from_le_bytes);
    [a, b, a >> 4, b >> 4].map(|word| word & splat(15))
}

#[inline(always)]
fn with_fifth_bits(codes: Words, bits: &[u8; 4]) -> [u8; 32] {
    let copies = bits.map(|byte| splat(1) * u64::from(byte));
    map_words(codes, copies, |codes, copies| {
        // All but one bit of a byte masked away, and a carry to the highest from any that is set.
        let spread = (copies & 0x8040_2010_0804_0201) + splat(0x7F);
        codes | spread >> 3 & splat(16)
    })
}

/// Defines formats of 256 numbers.
macro_rules! formats_of_256 {
    ($($name:ident $shape:ident $bytes:literal { $($constant:item)* } $unpack:expr;)*) => {
        $(
            pub(in crate::cpu) struct $name;

            impl Format for $name {
                type Layout = $shape;
                const LEN: usize = 256;
                const BYTES: usize = $bytes;
                $($constant)*

                #[inline(always)]
                fn unpack(blocks: &[u8], row: &mut UnpackedRow) {
                    if let Some(block) = blocks.first_chunk::<$bytes>() {
                        $unpack(block, row);
                    }
                }
            }
        )*
    };
}

formats_of_256! {
    Q4K FourBitsWithMinimum 144 {
        const SCALE: usize = 0;
        const MINIMUM: usize = 2;
    } |block: &[u8; 144], row: &mut UnpackedRow| {
        scales_and_minima(subarray(block, 4), row);
        let codes = row.codes.as_chunks_mut::<32>().0;
        for i in 0..4 {
            let pairs = to_words(subarray(block, 16 + 32 * i));
            codes[2 * i] = map_words(pairs, pairs, |pairs, _| pairs & splat(15));
            codes[2 * i + 1] = map_words(pairs, pairs, |pairs, _| pairs >> 4 & splat(15));
        }
    };
    Q5K FiveBitsWithMinimum 176 {
        const SCALE: usize = 0;
        const MINIMUM: usize = 2;
    } |block: &[u8; 176], row: &mut UnpackedRow| {
        scales_and_minima(subarray(block, 4), row);
        let fifth = to_words(subarray(block, 16));
        let codes = row.codes.as_chunks_mut::<32>().0;
        for i in 0..4 {
            let pairs = to_words(subarray(block, 48 + 32 * i));
            for h in 0..2 {
                codes[2 * i + h] = map_words(pairs, fifth, |pairs, fifth| {
                    pairs >> (4 * h) & splat(15) | fifth >> (2 * i + h) << 4 & splat(16)
                });
            }
        }
    };
    Q6K SixBitsInHalves 210 {
        const SCALE: usize = 208;
        const CENTRE: u8 = 32;
    } |block: &[u8; 210], row: &mut UnpackedRow| {
        let scales: &[u8; 16] = subarray(block, 192);
        row.scales = split_halves(scales.map(u8::cast_signed));
        let codes = row.codes.as_chunks_mut::<32>().0;
        for i in 0..2 {
            let low = [to_words(subarray(block, 64 * i)), to_words(subarray(block, 64 * i + 32))];
            let high = to_words(subarray(block, 128 + 32 * i));
            for q in 0..4 {
                codes[4 * i + q] = map_words(low[q % 2], high, |low, high| {
                    low >> (q / 2 * 4) & splat(15) | high >> (2 * q) << 4 & splat(48)
                });
            }
        }
    };
    Q2K TwoBitsWithMinimumInHalves 84 {
        const SCALE: usize = 80;
        const MINIMUM: usize = 82;
    } |block: &[u8; 84], row: &mut UnpackedRow| {
        let scales: &[u8; 16] = subarray(block, 0);
        row.scales = split_halves(scales.map(|pair| (pair & 15).cast_signed()));
        row.minima = split_halves(scales.map(|pair| (pair >> 4).cast_signed()));
        let codes = row.codes.as_chunks_mut::<32>().0;
        for i in 0..2 {
            let quads = to_words(subarray(block, 16 + 32 * i));
            for q in 0..4 {
                codes[4 * i + q] = map_words(quads, quads, |quads, _| quads >> (2 * q) & splat(3));
            }
        }
    };
    Q3K ThreeBitsInHalves 110 {
        const SCALE: usize = 108;
        const CENTRE: u8 = 4;
    } |block: &[u8; 110], row: &mut UnpackedRow| {
        // The low four bits of all scales, and two more for every fourth of them.
        let (low, high): (&[u8; 8], &[u8; 4]) = (subarray(block, 96), subarray(block, 104));
        let mut scales = [0; 16];
        for (i, scale) in scales.iter_mut().enumerate() {
            let low = low[i % 8] >> (4 * (i / 8)) & 15;
            let high = high[i % 4] >> (2 * (i / 4)) & 3;
            *scale = (low | high << 4).cast_signed() - 32;
        }
        row.scales = split_halves(scales);
        let third = to_words(subarray(block, 0));
        let codes = row.codes.as_chunks_mut::<32>().0;
        for i in 0..2 {
            let quads = to_words(subarray(block, 32 + 32 * i));
            for q in 0..4 {
                codes[4 * i + q] = map_words(quads, third, |quads, third| {
                    quads >> (2 * q) & splat(3) | third >> (4 * i + q) << 2 & splat(4)
                });
            }
        }
    };
    Iq4Xs SignedBytes 136 {
        const SCALE: usize = 0;
        const CODEBOOK: Option<[i8; 16]> = Some(IQ4_CODEBOOK);
    } |block: &[u8; 136], row: &mut UnpackedRow| {
        let high = u16::from_le_bytes(*subarray(block, 2));
        let low: &[u8; 4] = subarray(block, 4);
        for b in 0..8 {
            let low = low[b / 2] >> (4 * (b % 2)) & 15;
            let high = (high >> (2 * b)) as u8 & 3;
            row.scales[b] = (low | high << 4).cast_signed() - 32;
        }
        for (i, codes) in row.codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            *codes = to_bytes(nibbles(subarray(block, 8 + 16 * i)));
        }
    };
}

#[inline(always)]
fn scales_and_minima(packed: &[u8; 12], row: &mut UnpackedRow) {
    let both = six_bit_scales(packed).to_le_bytes().map(u8::cast_signed);
    row.scales[..8].copy_from_slice(&both[..8]);
    row.minima[..8].copy_from_slice(&both[8..]);
}

#[inline(always)]
fn split_halves(factors: [i8; 16]) -> [i8; 16] {
    let mut out = [0; 16];
    for b in 0..8 {
        out[b] = factors[2 * b];
        out[8 + b] = factors[2 * b + 1];
    }
    out
}
