//! The kernels of [`wide`](super::wide) on a scalar emulation of the AVX-512 instructions, to test
//! the algorithm on any processor.

use std::ops::Range;

use htc_formats::bands::{
    CHUNK, Code, CodeKind, GROUP_COLS, GROUP_ROWS, QUADS_PER_GROUP, SCALE_BYTES,
};

use super::super::wide::{
    Bytes, CODEBOOK_TABLES, FOUR_SCALES, MAX_PARTS, Plane, SCALES, STREAM_BYTES, StreamPattern,
    THREE_BITS, TRELLISES, TrellisTables, WIDTH, WINDOWS, Windows, byte_permute_kernels,
    interleaved, separated, spread,
};
use super::super::{
    ColumnGroupKernels, GROUPS, GroupScratch, GroupWeights, RowValues, VectorGroup, by_bits,
    subarray,
};

type Register = [u8; WIDTH];

const MAX_VECTORS: usize = 3;

pub(in crate::cpu) const KERNELS: ColumnGroupKernels = ColumnGroupKernels {
    unpack,
    add,
    multiply,
};

byte_permute_kernels!();

fn load_constant(bytes: &Bytes) -> Register {
    bytes.0
}

fn load(bytes: &[u8]) -> Register {
    let mut register = [0; WIDTH];
    let count = bytes.len().min(WIDTH);
    register[..count].copy_from_slice(&bytes[..count]);
    register
}

fn load_whole(bytes: &[u8; WIDTH]) -> Register {
    *bytes
}

fn load_integers(integers: &[i8; CHUNK]) -> Register {
    integers.map(i8::cast_unsigned)
}

fn load_with_next(bytes: &[u8], next: u16) -> Register {
    let mut register = load(bytes);
    if let Some(word) = register.get_mut(bytes.len()..bytes.len() + 2) {
        word.copy_from_slice(&next.to_le_bytes());
    }
    register
}

fn store(to: &mut [i8; WIDTH], bytes: Register) {
    *to = bytes.map(u8::cast_signed);
}

fn permute(bytes: Register, index: Register) -> Register {
    index.map(|i| bytes[usize::from(i % 64)])
}

fn permute_two(bytes: [Register; 2], index: Register) -> Register {
    index.map(|i| bytes[usize::from(i / 64 % 2)][usize::from(i % 64)])
}

fn extract_bits(from: Register, words: Register) -> Register {
    std::array::from_fn(|i| {
        let word = u64::from_le_bytes(words.as_chunks::<8>().0[i / 8]);
        word.rotate_right(u32::from(from[i] % 64)) as u8
    })
}

fn shift_right_i16<const BY: u32>(a: Register) -> Register {
    let mut register = [0; WIDTH];
    let words = a.as_chunks::<2>().0.iter();
    for (bytes, word) in register.as_chunks_mut::<2>().0.iter_mut().zip(words) {
        *bytes = (u16::from_le_bytes(*word) >> BY).to_le_bytes();
    }
    register
}

fn select(mask: Register, a: Register, b: Register) -> Register {
    std::array::from_fn(|i| a[i] & mask[i] | b[i] & !mask[i])
}

fn add_bytes(a: Register, b: Register) -> Register {
    std::array::from_fn(|i| a[i].wrapping_add(b[i]))
}

fn add_i32(a: Register, b: Register) -> Register {
    let (a, b) = (integers(a), integers(b));
    bytes(std::array::from_fn(|i| a[i].wrapping_add(b[i])))
}

fn max_i8(a: Register, least: i8) -> Register {
    a.map(|byte| byte.cast_signed().max(least).cast_unsigned())
}

fn flip_sign_bits(a: Register) -> Register {
    a.map(|byte| byte ^ 0x80)
}

fn dot(sums: Register, unsigned: Register, signed: Register) -> Register {
    let mut totals = integers(sums);
    for (i, (a, b)) in unsigned.into_iter().zip(signed).enumerate() {
        let product = i32::from(a) * i32::from(b.cast_signed());
        totals[i / 4] = totals[i / 4].wrapping_add(product);
    }
    bytes(totals)
}

fn broadcast_i32(word: i32) -> Register {
    std::array::from_fn(|i| word.to_le_bytes()[i % 4])
}

fn integers(register: Register) -> [i32; GROUP_ROWS] {
    std::array::from_fn(|i| i32::from_le_bytes(register.as_chunks::<4>().0[i]))
}

fn bytes(words: [i32; GROUP_ROWS]) -> Register {
    let mut register = [0; WIDTH];
    for (bytes, word) in register.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    register
}

fn accumulate(sums: &mut RowValues, totals: Register, scale: f32, factors: &RowValues) {
    let sums = sums.iter_mut().zip(integers(totals));
    for ((sum, total), factor) in sums.zip(factors) {
        *sum = (total as f32).mul_add(scale * factor, *sum);
    }
}

fn accumulate_with_factor(sums: &mut RowValues, totals: Register, factor: f32) {
    accumulate(sums, totals, factor, &[1.0; GROUP_ROWS]);
}

fn accumulate_with_bytes(
    sums: &mut RowValues,
    totals: Register,
    scale: f32,
    scales: &[u8; GROUP_ROWS],
) {
    accumulate(sums, totals, scale, &scales.map(f32::from));
}
