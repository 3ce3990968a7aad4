//! Column group kernels for aarch64: NEON, and NEON with the dot products of Armv8.2.
//!
//! A register holds four rows of four columns, a quarter of a chunk. Windows of six bits are moved
//! to the lower end of 16-bit lanes by variable shifts and looked up in a table of 64 entries in
//! one instruction, as are codebooks of up to six bits and the magnitudes of seven. Instructions
//! per 16 weights of a trellis: two table lookups 14, their sum 1, products and sums 1 (4 without
//! dot products); for a codebook of four bits, 2 plus products and sums.

use std::arch::aarch64::*;
use std::ops::Range;

use htc_formats::bands::{
    CHUNK, CODEBOOKS, Code, CodeKind, GROUP_COLS, GROUP_ROWS, QUADS_PER_GROUP, SCALE_BYTES,
    TILE_ROWS, TRELLIS_TABLES, unpack_codebook_scales,
};

use super::scalar::{Stream, codebook_chunks};
use super::{ColumnGroupKernels, GroupScratch, GroupWeights, RowValues, VectorGroup, subarray};
use crate::cpu::blocks::{compiled_for, supported};
use crate::cpu::dot::{load_128 as load, sdot};

const WIDTH: usize = 16;

/// Positions of the windows of sixteen weights: the two bytes of each, and the negated offset of
/// its first bit, for the first and second eight.
struct Windows {
    bytes: [[u8; WIDTH]; 2],
    shifts: [[i16; 8]; 2],
}

static WINDOWS: [[Windows; 2]; 4] = [
    [windows(2, 0), windows(2, 6)],
    [windows(3, 0), windows(3, 6)],
    [windows(4, 0), windows(4, 6)],
    [windows(5, 0), windows(5, 6)],
];

const fn windows(bits: usize, from: usize) -> Windows {
    let mut windows = Windows {
        bytes: [[0; WIDTH]; 2],
        shifts: [[0; 8]; 2],
    };
    const_for!(i in 0..WIDTH => {
        let bit = i * bits + from;
        windows.bytes[i / 8][2 * (i % 8)] = (bit / 8) as u8;
        windows.bytes[i / 8][2 * (i % 8) + 1] = (bit / 8 + 1) as u8;
        windows.shifts[i / 8][i % 8] = -((bit % 8) as i16);
    });
    windows
}

static CODEBOOK_TABLES: [[i8; 64]; 6] = [
    codebook_table(2),
    codebook_table(3),
    codebook_table(4),
    codebook_table(5),
    codebook_table(6),
    codebook_table(7),
];

const fn codebook_table(bits: usize) -> [i8; 64] {
    let table = CODEBOOKS[bits - 2];
    let mut entries = [0; 64];
    const_for!(code in 0..64 => {
        let magnitude = table[code % table.len()];
        let negative = code / table.len() % 2 == 1;
        entries[code] = if negative { -magnitude } else { magnitude };
    });
    entries
}

compiled_for! {
    "neon";

    fn load_shifts(shifts: &[i16; 8]) -> int16x8_t {
        // SAFETY: in bounds.
        unsafe { vld1q_s16(shifts.as_ptr()) }
    }

    fn load_table(entries: &[i8; 64]) -> int8x16x4_t {
        // SAFETY: in bounds.
        unsafe { vld1q_s8_x4(entries.as_ptr()) }
    }

    fn extract_windows(bytes: uint8x16_t, windows: &Windows) -> uint8x16_t {
        let [first, second] = &windows.bytes;
        let first = vreinterpretq_u16_u8(vqtbl1q_u8(bytes, load(first)));
        let second = vreinterpretq_u16_u8(vqtbl1q_u8(bytes, load(second)));
        let first = vreinterpretq_u8_u16(vshlq_u16(first, load_shifts(&windows.shifts[0])));
        let second = vreinterpretq_u8_u16(vshlq_u16(second, load_shifts(&windows.shifts[1])));
        vandq_u8(vuzp1q_u8(first, second), vdupq_n_u8(63))
    }

    fn trellis_weights(bits: usize, tables: [int8x16x4_t; 2], bytes: &[u8; WIDTH]) -> int8x16_t {
        let bytes = load(bytes);
        let [low, high] = &WINDOWS[bits - 2];
        let low = vqtbl4q_s8(tables[0], extract_windows(bytes, low));
        vaddq_s8(low, vqtbl4q_s8(tables[1], extract_windows(bytes, high)))
    }

    fn codebook_weights(bits: usize, table: int8x16x4_t, chunk: &[u8], r: usize) -> int8x16_t {
        if bits == 8 {
            let codes = vreinterpretq_s8_u8(load(subarray(chunk, WIDTH * r)));
            return vmaxq_s8(codes, vdupq_n_s8(-127));
        }
        let (mut codes, mut at, mut place) = (vdupq_n_u8(0), 0, 0);
        if bits & 4 != 0 {
            let four = load(subarray(chunk, WIDTH * (r % 2)));
            let four = vshlq_u8(four, vdupq_n_s8(if r < 2 { 0 } else { -4 }));
            codes = vandq_u8(four, vdupq_n_u8(15));
            (at, place) = (2 * WIDTH, 4);
        }
        if bits & 2 != 0 {
            let two = vshlq_u8(load(subarray(chunk, at)), vdupq_n_s8(-2 * r as i8));
            let two = vandq_u8(two, vdupq_n_u8(3));
            codes = vorrq_u8(codes, vshlq_u8(two, vdupq_n_s8(place)));
            (at, place) = (at + WIDTH, place + 2);
        }
        if bits & 1 != 0 {
            let one = u64::from_le_bytes(*subarray(chunk, at));
            let one = vreinterpretq_u8_u64(vdupq_n_u64(one));
            let shift = -2 * r as i8;
            let shift = vcombine_s8(vdup_n_s8(shift), vdup_n_s8(shift - 1));
            let one = vandq_u8(vshlq_u8(one, shift), vdupq_n_u8(1));
            codes = vorrq_u8(codes, vshlq_u8(one, vdupq_n_s8(place)));
        }
        if bits < 7 {
            return vqtbl4q_s8(table, codes);
        }
        let magnitudes = vqtbl4q_s8(table, vandq_u8(codes, vdupq_n_u8(63)));
        let negative = vcgeq_u8(codes, vdupq_n_u8(64));
        vbslq_s8(negative, vnegq_s8(magnitudes), magnitudes)
    }

    fn accumulate(sums: &mut RowValues, totals: [int32x4_t; 4], factors: &RowValues) {
        let rows = sums.as_chunks_mut::<4>().0.iter_mut().zip(factors.as_chunks::<4>().0);
        for ((sums, factors), total) in rows.zip(totals) {
            // SAFETY: in bounds.
            unsafe {
                let sum = vld1q_f32(sums.as_ptr());
                let factor = vld1q_f32(factors.as_ptr());
                vst1q_f32(sums.as_mut_ptr(), vfmaq_f32(sum, vcvtq_f32_s32(total), factor));
            }
        }
    }

    fn unpack(code: Code, column_group: &[u8], groups: Range<usize>, out: &mut [GroupWeights]) {
        let bits = usize::from(code.bits());
        if code.kind() == CodeKind::Trellis {
            let tables = &TRELLIS_TABLES[code.table_index()][bits - 2];
            let tables = [load_table(&tables.low), load_table(&tables.high)];
            for quad in 0..QUADS_PER_GROUP {
                let stream = Stream::copy(code, column_group, quad, &groups);
                for (g, group) in out.iter_mut().enumerate() {
                    for (r, out) in group[quad].as_chunks_mut::<WIDTH>().0.iter_mut().enumerate() {
                        let bytes = stream.bytes((g * 4 + r) * 2 * bits);
                        let weights = trellis_weights(bits, tables, subarray(bytes, 0));
                        // SAFETY: in bounds.
                        unsafe { vst1q_s8(out.as_mut_ptr(), weights) };
                    }
                }
            }
            return;
        }
        let table = load_table(CODEBOOK_TABLES.get(bits - 2).unwrap_or(&[0; 64]));
        for (group, out) in groups.zip(out) {
            let chunks = codebook_chunks(code, column_group, group).chunks_exact(CHUNK * bits / 8);
            for (chunk, out) in chunks.zip(out) {
                for (r, out) in out.as_chunks_mut::<WIDTH>().0.iter_mut().enumerate() {
                    let weights = codebook_weights(bits, table, chunk, r);
                    // SAFETY: in bounds.
                    unsafe { vst1q_s8(out.as_mut_ptr(), weights) };
                }
            }
        }
    }

    /// Adds four products per lane, pairs in sixteen bits, which hold 2 · 127 · 127.
    fn dot_widening(sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        let low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
        vpadalq_s16(sums, vpaddq_s16(low, vmull_high_s8(a, b)))
    }
}

/// Defines the module of kernels of one instruction set. `$dot` adds four products per lane.
macro_rules! kernels {
    ($features:literal, $module:ident, $dot:ident) => {
        pub(in crate::cpu) mod $module {
            use super::*;

            /// Used only in kernel tables for processors with these instructions.
            pub(in crate::cpu) const KERNELS: ColumnGroupKernels = ColumnGroupKernels {
                unpack: supported!(|code, column_group, groups, out| unpack),
                add: supported!(|integers, factors, vectors, sums| add),
                multiply: supported!(|code, column_group, groups, vector, scratch, sums| multiply),
            };

            #[target_feature(enable = $features)]
            fn add(
                integers: &[GroupWeights],
                factors: &[RowValues],
                vectors: &[VectorGroup<'_>],
                sums: &mut [RowValues],
            ) {
                for (part, sums) in vectors.iter().zip(sums.chunks_exact_mut(integers.len())) {
                    let x = broadcast_codes(part.codes);
                    for ((group, factors), sums) in integers.iter().zip(factors).zip(sums) {
                        let mut totals = [vdupq_n_s32(0); 4];
                        for (chunk, x) in group.iter().zip(x) {
                            let quarters = chunk.as_chunks::<WIDTH>().0;
                            for (total, weights) in totals.iter_mut().zip(quarters) {
                                // SAFETY: in bounds.
                                let weights = unsafe { vld1q_s8(weights.as_ptr()) };
                                *total = $dot(*total, weights, x);
                            }
                        }
                        accumulate(sums, totals, &factors.map(|factor| part.scale * factor));
                    }
                }
            }

            #[target_feature(enable = $features)]
            fn multiply(
                code: Code,
                column_group: &[u8],
                groups: Range<usize>,
                vector: &VectorGroup<'_>,
                _: &mut GroupScratch,
                sums: &mut [RowValues],
            ) {
                let bits = usize::from(code.bits());
                let x = broadcast_codes(vector.codes);
                if code.kind() == CodeKind::Trellis {
                    let tables = &TRELLIS_TABLES[code.table_index()][bits - 2];
                    let tables = [load_table(&tables.low), load_table(&tables.high)];
                    let mut totals = [[vdupq_n_s32(0); 4]; TILE_ROWS / GROUP_ROWS];
                    for (quad, x) in x.into_iter().enumerate() {
                        let stream = Stream::copy(code, column_group, quad, &groups);
                        for (g, totals) in totals[..groups.len()].iter_mut().enumerate() {
                            for (r, total) in totals.iter_mut().enumerate() {
                                let bytes = stream.bytes((g * 4 + r) * 2 * bits);
                                let weights = trellis_weights(bits, tables, subarray(bytes, 0));
                                *total = $dot(*total, weights, x);
                            }
                        }
                    }
                    for (sums, totals) in sums.iter_mut().zip(totals) {
                        accumulate(sums, totals, &[vector.scale; GROUP_ROWS]);
                    }
                    return;
                }
                let table = load_table(CODEBOOK_TABLES.get(bits - 2).unwrap_or(&[0; 64]));
                let scales = column_group.as_chunks::<SCALE_BYTES>().0;
                for (group, sums) in groups.zip(sums) {
                    let mut totals = [vdupq_n_s32(0); 4];
                    let chunks =
                        codebook_chunks(code, column_group, group).chunks_exact(CHUNK * bits / 8);
                    for (chunk, x) in chunks.zip(x) {
                        for (r, total) in totals.iter_mut().enumerate() {
                            *total = $dot(*total, codebook_weights(bits, table, chunk, r), x);
                        }
                    }
                    let factors = unpack_codebook_scales(&scales[group]);
                    accumulate(
                        sums,
                        totals,
                        &factors.map(|factor| vector.scale * f32::from(factor)),
                    );
                }
            }

            #[inline]
            #[target_feature(enable = $features)]
            fn broadcast_codes(codes: &[i8; GROUP_COLS]) -> [int8x16_t; QUADS_PER_GROUP] {
                let mut quads = [vdupq_n_s8(0); QUADS_PER_GROUP];
                for (quad, codes) in quads.iter_mut().zip(codes.as_chunks::<4>().0) {
                    let word = i32::from_le_bytes(codes.map(i8::cast_unsigned));
                    *quad = vreinterpretq_s8_s32(vdupq_n_s32(word));
                }
                quads
            }
        }
    };
}

kernels!("neon", plain, dot_widening);
kernels!("neon,dotprod", dotprod, sdot);
