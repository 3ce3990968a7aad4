//! Portable column group kernels.

use std::ops::Range;
use std::sync::OnceLock;

use htc_formats::bands::{
    CHUNK, Code, CodeKind, GROUP_COLS, GROUP_ROWS, QUAD, QUADS_PER_GROUP, SCALE_BYTES, STATES,
    TILE_ROWS, TRELLIS_TABLES, codebook_value,
};

use super::{ColumnGroupKernels, GroupScratch, GroupWeights, RowValues, VectorGroup};

/// Kernels for any processor.
pub(in super::super) const KERNELS: ColumnGroupKernels = ColumnGroupKernels {
    unpack,
    add,
    multiply,
};

fn unpack(code: Code, column_group: &[u8], groups: Range<usize>, out: &mut [GroupWeights]) {
    match code.kind() {
        CodeKind::Codebook => unpack_codebook(code, column_group, groups, out),
        CodeKind::Trellis => {
            let bits = usize::from(code.bits());
            let values = &trellis_values()[code.table_index()][bits - 2];
            for quad in 0..QUADS_PER_GROUP {
                let stream = Stream::copy(code, column_group, quad, &groups);
                for (g, group) in out.iter_mut().enumerate() {
                    let chunk = stream.bytes(g * CHUNK * bits / 8);
                    let eights = group[quad].as_chunks_mut::<8>().0;
                    for (i, eight) in eights.iter_mut().enumerate() {
                        let word = u64::from_le_bytes(*super::subarray(chunk, i * bits));
                        for (lane, value) in eight.iter_mut().enumerate() {
                            *value = values[(word >> (lane * bits)) as usize % STATES];
                        }
                    }
                }
            }
        }
    }
}

type Values = [[[i8; STATES]; 4]; TRELLIS_TABLES.len()];

fn trellis_values() -> &'static Values {
    static VALUES: OnceLock<Box<Values>> = OnceLock::new();
    VALUES.get_or_init(|| {
        let mut values = Box::new([[[0; STATES]; 4]; TRELLIS_TABLES.len()]);
        let all_values = values.as_flattened_mut().iter_mut();
        for (values, table) in all_values.zip(TRELLIS_TABLES.as_flattened()) {
            for (state, value) in values.iter_mut().enumerate() {
                *value = table.value(state);
            }
        }
        values
    })
}

/// Part of a stream that some row groups read, followed by the wrapped-around start of the stream
/// and zeros, so that whole registers may be read from any weight.
pub(super) struct Stream {
    bytes: [u8; Stream::MAX_BYTES + Stream::PADDING],
}

impl Stream {
    const MAX_BYTES: usize = TILE_ROWS * QUAD * 5 / 8;

    const PADDING: usize = 64;

    /// Copies the stream of a quad from the first of the row groups.
    #[inline(always)]
    pub fn copy(code: Code, column_group: &[u8], quad: usize, groups: &Range<usize>) -> Stream {
        let chunk = CHUNK * usize::from(code.bits()) / 8;
        let length = column_group.len() / QUADS_PER_GROUP;
        let stream = &column_group[quad * length..][..length];
        let mut bytes = [0; Stream::MAX_BYTES + Stream::PADDING];
        // A state reaches two bytes into the next group.
        let (start, end) = (groups.start * chunk, (groups.end * chunk + 2).min(length));
        bytes[..end - start].copy_from_slice(&stream[start..end]);
        bytes[length - start..][..2].copy_from_slice(&stream[..2]);
        Stream { bytes }
    }

    /// Returns the bytes from `at` on, at least a register.
    #[inline(always)]
    pub fn bytes(&self, at: usize) -> &[u8] {
        &self.bytes[at..]
    }
}

fn unpack_codebook(
    code: Code,
    column_group: &[u8],
    groups: Range<usize>,
    out: &mut [GroupWeights],
) {
    let bits = usize::from(code.bits());
    let mut values = [0; 256];
    for (value, code) in values.iter_mut().zip(0..=255) {
        *value = codebook_value(bits as u8, code);
    }
    for (group, out) in out.iter_mut().enumerate() {
        let chunks = codebook_chunks(code, column_group, groups.start + group);
        for (quad, out) in out.iter_mut().enumerate() {
            let chunk = &chunks[quad * CHUNK * bits / 8..][..CHUNK * bits / 8];
            let mut codes = [0_u8; CHUNK];
            let (mut shift, mut at) = (0, 0);
            for width in [8, 4, 2, 1] {
                if bits & width == 0 {
                    continue;
                }
                let bytes = CHUNK * width / 8;
                let mask = ((1_u16 << width) - 1) as u8;
                for (f, codes) in codes.chunks_exact_mut(bytes).enumerate() {
                    for (code, byte) in codes.iter_mut().zip(&chunk[at..]) {
                        *code |= ((byte >> (f * width)) & mask) << shift;
                    }
                }
                (shift, at) = (shift + width, at + bytes);
            }
            for (out, code) in out.iter_mut().zip(codes) {
                *out = values[usize::from(code)];
            }
        }
    }
}

/// Returns the chunks of a row group in a codebook column group.
#[inline(always)]
pub(super) fn codebook_chunks(code: Code, column_group: &[u8], group: usize) -> &[u8] {
    let groups = column_group.len() / code.group_bytes();
    let bytes = QUADS_PER_GROUP * CHUNK * usize::from(code.bits()) / 8;
    &column_group[groups * SCALE_BYTES + group * bytes..][..bytes]
}

fn multiply(
    code: Code,
    column_group: &[u8],
    groups: Range<usize>,
    vector: &VectorGroup<'_>,
    _: &mut GroupScratch,
    sums: &mut [RowValues],
) {
    super::dot_unpacked(unpack, add, code, column_group, groups, vector, sums);
}

fn add(
    integers: &[GroupWeights],
    factors: &[RowValues],
    vectors: &[VectorGroup<'_>],
    sums: &mut [RowValues],
) {
    for (part, sums) in vectors.iter().zip(sums.chunks_exact_mut(integers.len())) {
        add_vector(integers, factors, part, sums);
    }
}

fn add_vector(
    integers: &[GroupWeights],
    factors: &[RowValues],
    part: &VectorGroup<'_>,
    sums: &mut [RowValues],
) {
    let mut vector = [[0_i32; QUAD]; GROUP_COLS / QUAD];
    for (wide, &code) in vector.as_flattened_mut().iter_mut().zip(part.codes) {
        *wide = code.into();
    }
    let rows = integers.iter().zip(factors).zip(sums);
    for ((group, factors), sums) in rows {
        let mut totals = [0_i32; GROUP_ROWS];
        for (chunk, vector) in group.iter().zip(&vector) {
            let chunk = chunk.as_chunks::<QUAD>().0;
            for (total, weights) in totals.iter_mut().zip(chunk) {
                for (&weight, x) in weights.iter().zip(vector) {
                    *total += i32::from(weight) * x;
                }
            }
        }
        for ((sum, total), factor) in sums.iter_mut().zip(totals).zip(factors) {
            *sum += total as f32 * (part.scale * factor);
        }
    }
}
