//! Reader of column-group matrices.

use std::ops::Range;

use half::f16;

use super::rotation::rotate;
use super::tables::{Trellis, codebook_value};
use super::{
    CHUNK, CODEBOOK_UNIT, Code, CodeKind, Codes, GROUP_COLS, GROUP_ROWS, QUAD, QUADS_PER_GROUP,
    SCALE_BYTES, STATE_BITS, STATES, TILE_ROWS,
};
use crate::CodecError;

/// View of the bytes of a column-group matrix.
#[derive(Clone, Copy, Debug)]
pub struct ColumnGroups<'a> {
    codes: &'a Codes,
    rows: usize,
    bytes: &'a [u8],
}

impl<'a> ColumnGroups<'a> {
    /// Creates a view of `bytes` as a matrix of `rows` rows.
    ///
    /// # Errors
    /// [`CodecError::ColumnGroupLength`].
    pub fn new(codes: &'a Codes, rows: usize, bytes: &'a [u8]) -> Result<Self, CodecError> {
        let expected = codes.bytes(rows);
        let found = bytes.len() as u64;
        if expected != found {
            return Err(CodecError::ColumnGroupLength {
                rows,
                cols: codes.cols(),
                expected,
                found,
            });
        }
        Ok(ColumnGroups { codes, rows, bytes })
    }

    /// Codes of the column groups.
    pub fn codes(&self) -> &'a Codes {
        self.codes
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns, without padding.
    pub fn cols(&self) -> usize {
        self.codes.cols()
    }

    /// Bytes of the matrix.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Checks that all scales of rows and columns, including padding, are finite. Those of
    /// codebooks always are.
    ///
    /// # Errors
    /// [`CodecError::Scale`] for the first that is not.
    pub fn check_scales(&self) -> Result<(), CodecError> {
        let finite = |of, index, value: f32| {
            if value.is_finite() {
                Ok(())
            } else {
                Err(CodecError::Scale {
                    axis: of,
                    index,
                    value,
                })
            }
        };
        for kind in CodeKind::ALL {
            for row in 0..self.rows {
                finite("row", row, self.row_scale(kind, row))?;
            }
        }
        for band in 0..self.codes.len() {
            for (c, scale) in self.column_scales(band).into_iter().flatten().enumerate() {
                finite("column", band * GROUP_COLS + c, scale)?;
            }
        }
        Ok(())
    }

    /// Returns the scale of a row in column groups of a kind; zero if the kind is absent.
    pub fn row_scale(&self, kind: CodeKind, row: usize) -> f32 {
        let scales = self.codes.row_scales_offset(self.rows, kind);
        scales.map_or(0.0, |at| self.f16_at(at + 2 * row))
    }

    /// Returns the column scales of a trellis column group, those of padding last.
    pub fn column_scales(&self, band: usize) -> Option<[f32; GROUP_COLS]> {
        let at = self.codes.column_scales_offset(self.rows, band)?;
        Some(std::array::from_fn(|c| self.f16_at(at + 2 * c)))
    }

    /// Returns the stored row scales of a kind as little-endian f16.
    pub fn row_scale_bytes(&self, kind: CodeKind) -> &'a [u8] {
        let at = self.codes.row_scales_offset(self.rows, kind);
        self.f16_bytes(at, self.rows)
    }

    /// Returns the stored column scales of a trellis column group, including padding, as
    /// little-endian f16.
    pub fn column_scale_bytes(&self, band: usize) -> &'a [u8] {
        self.f16_bytes(self.codes.column_scales_offset(self.rows, band), GROUP_COLS)
    }

    fn f16_bytes(&self, at: Option<usize>, count: usize) -> &'a [u8] {
        at.and_then(|at| self.bytes.get(at..at + 2 * count))
            .unwrap_or(&[])
    }

    fn f16_at(&self, at: usize) -> f32 {
        match self.bytes.get(at..at + 2) {
            Some(&[low, high]) => f16::from_le_bytes([low, high]).to_f32(),
            _ => 0.0,
        }
    }

    /// Returns the bytes of a column group in a tile of 256 rows; empty if out of range.
    pub fn tile_bytes(&self, strip: usize, band: usize) -> &'a [u8] {
        let place = self.codes.tile_range(self.rows, strip, band);
        self.bytes.get(place).unwrap_or(&[])
    }

    /// Decodes a row to f32. A trellis weight is the product of the scales of row and column
    /// (exact), times the integer from the tables. A codebook weight is the product of the row's
    /// scale, the scale of row and group, the integer from the table and 2^-13 (exact). A rotated
    /// matrix is [rotated](super::rotate) back.
    ///
    /// # Errors
    /// [`CodecError::Row`].
    pub fn decode_row(&self, row: usize, out: &mut [f32]) -> Result<(), CodecError> {
        if row >= self.rows || out.len() != self.cols() {
            return Err(CodecError::Row {
                row,
                rows: self.rows,
                buffer_len: out.len(),
                cols: self.cols(),
            });
        }
        let of_row = |kind| self.row_scale(kind, row);
        let (levels, trellis) = (of_row(CodeKind::Codebook), of_row(CodeKind::Trellis));
        let (strip, r) = (row / TILE_ROWS, row % TILE_ROWS);
        for (band, (out, &code)) in out.chunks_mut(GROUP_COLS).zip(&**self.codes).enumerate() {
            let bytes = self.tile_bytes(strip, band);
            let value = |c: usize| f32::from(integer_at(code, bytes, r, c));
            match self.column_scales(band) {
                Some(columns) => {
                    for (c, (out, column)) in out.iter_mut().zip(columns).enumerate() {
                        *out = trellis * column * value(c);
                    }
                }
                None => {
                    let of_band =
                        f32::from(row_group_scales(bytes, r / GROUP_ROWS)[r % GROUP_ROWS]);
                    let scale = levels * (of_band * CODEBOOK_UNIT);
                    for (c, out) in out.iter_mut().enumerate() {
                        *out = scale * value(c);
                    }
                }
            }
        }
        if self.codes.is_rotated() {
            rotate(out);
        }
        Ok(())
    }

    /// Decodes the integers of some row groups of a column group in a tile, in the arrangement of
    /// [`unpack`](ColumnGroups::unpack).
    pub fn unpack_tile(&self, strip: usize, band: usize, groups: Range<usize>, out: &mut [i8]) {
        if let Some(&code) = self.codes.get(band) {
            ColumnGroups::unpack(code, self.tile_bytes(strip, band), groups, out);
        }
    }

    /// Decodes the integers of some row groups from the bytes of a column group in a tile: `out
    /// [groups, 8 quads, 16 rows, 4 columns]`. This is the reference for all kernels.
    ///
    /// # Panics
    /// If the groups exceed the bytes, or `out` has the wrong length.
    pub fn unpack(code: Code, band: &[u8], groups: Range<usize>, out: &mut [i8]) {
        assert_eq!(out.len(), groups.len() * QUADS_PER_GROUP * CHUNK);
        let rows = groups.start * GROUP_ROWS..groups.end * GROUP_ROWS;
        for (r, g) in rows.zip(0..) {
            let (group, row) = (g / GROUP_ROWS, g % GROUP_ROWS);
            for c in 0..GROUP_COLS {
                let at = (group * QUADS_PER_GROUP + c / QUAD) * CHUNK + row * QUAD + c % QUAD;
                out[at] = integer_at(code, band, r, c);
            }
        }
    }
}

fn integer_at(code: Code, band: &[u8], r: usize, c: usize) -> i8 {
    let groups = band.len() / code.group_bytes();
    let bits = usize::from(code.bits());
    let quad = c / QUAD;
    match Trellis::for_code(code) {
        Some(tables) => {
            let length = groups * CHUNK * bits / 8;
            let stream = &band[quad * length..][..length];
            let state = state_at(stream, (r * QUAD + c % QUAD) * bits);
            tables.value(state)
        }
        None => {
            let chunk = (r / GROUP_ROWS) * QUADS_PER_GROUP + quad;
            let at = groups * SCALE_BYTES + chunk * CHUNK * bits / 8;
            let code = code_at(
                &band[at..][..CHUNK * bits / 8],
                bits,
                (r % GROUP_ROWS) * QUAD + c % QUAD,
            );
            codebook_value(bits as u8, code)
        }
    }
}

/// Returns the state whose first bit is `bit` of the circular stream.
fn state_at(stream: &[u8], bit: usize) -> usize {
    let byte = |i: usize| u32::from(stream[(bit / 8 + i) % stream.len()]);
    let word = byte(0) | byte(1) << 8 | byte(2) << 16;
    (word >> (bit % 8)) as usize & (STATES - 1)
}

/// Returns the code of weight `i` of a chunk. Codes are stored as bit planes of four, two and one
/// bits, as required by `bits`, lowest bits first; 8-bit codes are bytes.
///
/// # Panics
/// If the chunk is shorter than its weights.
pub fn code_at(chunk: &[u8], bits: usize, i: usize) -> u8 {
    if bits == 8 {
        return chunk[i];
    }
    let (mut code, mut shift, mut at) = (0, 0, 0);
    for width in [4, 2, 1] {
        if bits & width != 0 {
            let bytes = CHUNK * width / 8;
            let field = chunk[at + i % bytes] >> (i / bytes * width);
            code |= (field & ((1 << width) - 1)) << shift;
            (shift, at) = (shift + width, at + bytes);
        }
    }
    code
}

/// Returns the scales of the sixteen rows of a row group in a codebook column group. The low four
/// bits of rows `j` and `j + 8` are the halves of byte `j`; the high two bits of rows `j`, `j + 4`,
/// ... are in byte `8 + j`.
pub fn unpack_codebook_scales(packed: &[u8; SCALE_BYTES]) -> [u8; GROUP_ROWS] {
    std::array::from_fn(|j| {
        let low = packed[j % 8] >> (j / 8 * 4) & 15;
        let high = packed[8 + j % 4] >> (j / 4 * 2) & 3;
        low | high << 4
    })
}

fn row_group_scales(band: &[u8], group: usize) -> [u8; GROUP_ROWS] {
    let (groups, _) = band.as_chunks::<SCALE_BYTES>();
    unpack_codebook_scales(&groups[group])
}

/// Ensures that a state begins at each weight of a stream.
const _: () = assert!(CHUNK * 2 >= STATE_BITS as usize);
