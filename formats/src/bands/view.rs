//! Reading a matrix in bands.

use std::ops::Range;

use half::f16;

use super::rotation::rotate;
use super::tables::{Trellis, level};
use super::{
    BAND, CHUNK, Code, Codes, GROUP_ROWS, Kind, LEVEL_UNIT, QUAD, QUADS, SCALE_BYTES, STATE_BITS,
    STATES, STRIP_ROWS,
};

/// Why bytes are no matrix in bands.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BandsError {
    /// Bytes that are not those of so many rows and columns.
    #[error(
        "bands: {rows} rows of {cols} columns have {expected} bytes with these codes, found {found}"
    )]
    Length {
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
        /// Bytes that there should be.
        expected: u64,
        /// Bytes that there are.
        found: u64,
    },
    /// A scale that is infinite or no number.
    #[error("bands: the scale of {of} {index} is {value}, expected a finite number")]
    Scale {
        /// `row` or `column`.
        of: &'static str,
        /// Which one.
        index: usize,
        /// What stands there.
        value: f32,
    },
    /// A row that the matrix does not have, or room for another number of columns.
    #[error("bands: row {row} of {rows} asked for in room for {room} numbers, which has {cols}")]
    Row {
        /// The row.
        row: usize,
        /// Rows of the matrix.
        rows: usize,
        /// Room for its numbers.
        room: usize,
        /// Columns of the matrix.
        cols: usize,
    },
    /// A map of classes whose counts are not those of its rows.
    #[error("bands: the map of the rows' classes contradicts itself before row {row}")]
    Rows {
        /// The first row behind what contradicts.
        row: usize,
    },
}

/// A matrix in bands, where it lies.
#[derive(Clone, Copy, Debug)]
pub struct Bands<'a> {
    codes: &'a Codes,
    rows: usize,
    bytes: &'a [u8],
}

impl<'a> Bands<'a> {
    /// The matrix of so many rows in `bytes`.
    ///
    /// # Errors
    /// [`BandsError::Length`].
    pub fn new(codes: &'a Codes, rows: usize, bytes: &'a [u8]) -> Result<Self, BandsError> {
        let expected = codes.bytes(rows);
        let found = bytes.len() as u64;
        if expected != found {
            return Err(BandsError::Length {
                rows,
                cols: codes.cols(),
                expected,
                found,
            });
        }
        Ok(Bands { codes, rows, bytes })
    }

    /// The codes of the bands.
    pub fn codes(&self) -> &'a Codes {
        self.codes
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns, without padding.
    pub fn cols(&self) -> usize {
        self.codes.cols()
    }

    /// Its bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Checks that every scale of a row or column is a finite number, also of columns that are padding; those of
    /// levels always are.
    ///
    /// # Errors
    /// [`BandsError::Scale`] for the first that is not.
    pub fn check_scales(&self) -> Result<(), BandsError> {
        let finite = |of, index, value: f32| match value.is_finite() {
            true => Ok(()),
            false => Err(BandsError::Scale { of, index, value }),
        };
        for kind in [Kind::Levels, Kind::Trellis] {
            for row in 0..self.rows {
                finite("row", row, self.row_scale(kind, row))?;
            }
        }
        for band in 0..self.codes.len() {
            for (c, scale) in self.column_scales(band).into_iter().flatten().enumerate() {
                finite("column", band * BAND + c, scale)?;
            }
        }
        Ok(())
    }

    /// The scale of a row in bands of a kind; zero where there is none.
    pub fn row_scale(&self, kind: Kind, row: usize) -> f32 {
        let scales = self.codes.row_scales(self.rows, kind);
        scales.map_or(0.0, |at| self.half(at + 2 * row))
    }

    /// The scales of a trellis band's columns, those of padding last; `None` for a band of levels.
    pub fn column_scales(&self, band: usize) -> Option<[f32; BAND]> {
        let at = self.codes.column_scales(self.rows, band)?;
        Some(std::array::from_fn(|c| self.half(at + 2 * c)))
    }

    /// The scales of all rows in bands of a kind, as they lie there: f16, lowest byte first. Empty where
    /// there are none.
    pub fn row_scale_bytes(&self, kind: Kind) -> &'a [u8] {
        let at = self.codes.row_scales(self.rows, kind);
        self.halves(at, self.rows)
    }

    /// The scales of a trellis band's columns, padding too, likewise; empty for a band of levels.
    pub fn column_scale_bytes(&self, band: usize) -> &'a [u8] {
        self.halves(self.codes.column_scales(self.rows, band), BAND)
    }

    fn halves(&self, at: Option<usize>, count: usize) -> &'a [u8] {
        at.and_then(|at| self.bytes.get(at..at + 2 * count))
            .unwrap_or(&[])
    }

    fn half(&self, at: usize) -> f32 {
        match self.bytes.get(at..at + 2) {
            Some(&[low, high]) => f16::from_le_bytes([low, high]).to_f32(),
            _ => 0.0,
        }
    }

    /// The bytes of a band in a strip of 256 rows; empty where there is none.
    pub fn band(&self, strip: usize, band: usize) -> &'a [u8] {
        let place = self.codes.place(self.rows, strip, band);
        self.bytes.get(place).unwrap_or(&[])
    }

    /// The numbers of a row, in float32: in a trellis band the product of the scales of row and column
    /// (exact), times the integer from the tables; in a band of levels the product of the row's scale,
    /// that of row and band, the integer from the table and 2^-13 (exact). Those of a matrix that is rotated
    /// are [rotated](super::rotate) back.
    ///
    /// # Errors
    /// [`BandsError::Row`].
    pub fn row(&self, row: usize, out: &mut [f32]) -> Result<(), BandsError> {
        if row >= self.rows || out.len() != self.cols() {
            return Err(BandsError::Row {
                row,
                rows: self.rows,
                room: out.len(),
                cols: self.cols(),
            });
        }
        let of_row = |kind| self.row_scale(kind, row);
        let (levels, trellis) = (of_row(Kind::Levels), of_row(Kind::Trellis));
        let (strip, r) = (row / STRIP_ROWS, row % STRIP_ROWS);
        for (band, (out, &code)) in out.chunks_mut(BAND).zip(&**self.codes).enumerate() {
            let bytes = self.band(strip, band);
            let value = |c: usize| f32::from(weight(code, bytes, r, c));
            match self.column_scales(band) {
                Some(columns) => {
                    for (c, (out, column)) in out.iter_mut().zip(columns).enumerate() {
                        *out = trellis * column * value(c);
                    }
                }
                None => {
                    let of_band = f32::from(scales_of(bytes, r / GROUP_ROWS)[r % GROUP_ROWS]);
                    let scale = levels * (of_band * LEVEL_UNIT);
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

    /// The integers of some groups of sixteen rows of a band in a strip, as [`unpack`](Bands::unpack)
    /// orders them.
    pub fn integers(&self, strip: usize, band: usize, groups: Range<usize>, out: &mut [i8]) {
        if let Some(&code) = self.codes.get(band) {
            Bands::unpack(code, self.band(strip, band), groups, out);
        }
    }

    /// The integers of some groups of a band, whose bytes in a strip are given:
    /// `out [groups, 8 quads, 16 rows, 4 columns]`. What every kernel's version must give, bit by bit.
    ///
    /// # Panics
    /// Where the groups lie outside of the bytes, or `out` has another length.
    pub fn unpack(code: Code, band: &[u8], groups: Range<usize>, out: &mut [i8]) {
        assert_eq!(out.len(), groups.len() * QUADS * CHUNK);
        let rows = groups.start * GROUP_ROWS..groups.end * GROUP_ROWS;
        for (r, g) in rows.zip(0..) {
            let (group, row) = (g / GROUP_ROWS, g % GROUP_ROWS);
            for c in 0..BAND {
                let at = (group * QUADS + c / QUAD) * CHUNK + row * QUAD + c % QUAD;
                out[at] = weight(code, band, r, c);
            }
        }
    }
}

/// The integer of a weight: row `r` of the strip, column `c` of the band.
fn weight(code: Code, band: &[u8], r: usize, c: usize) -> i8 {
    let groups = band.len() / code.group_bytes();
    let bits = usize::from(code.bits());
    let quad = c / QUAD;
    match Trellis::of(code) {
        Some(tables) => {
            let length = groups * CHUNK * bits / 8;
            let stream = &band[quad * length..][..length];
            let state = state_at(stream, (r * QUAD + c % QUAD) * bits);
            tables.value(state)
        }
        None => {
            let chunk = (r / GROUP_ROWS) * QUADS + quad;
            let at = groups * SCALE_BYTES + chunk * CHUNK * bits / 8;
            let code = code_at(
                &band[at..][..CHUNK * bits / 8],
                bits,
                (r % GROUP_ROWS) * QUAD + c % QUAD,
            );
            level(bits as u8, code)
        }
    }
}

/// The state whose first bit is `bit` of a stream, which goes on at its beginning where it ends.
fn state_at(stream: &[u8], bit: usize) -> usize {
    let byte = |i: usize| u32::from(stream[(bit / 8 + i) % stream.len()]);
    let word = byte(0) | byte(1) << 8 | byte(2) << 16;
    (word >> (bit % 8)) as usize & (STATES - 1)
}

/// The code of weight `i` of a chunk: planes of four, two and one bits, as many as the bits are made of,
/// the lowest bits first; eight bits are bytes.
///
/// # Panics
/// Where the chunk is shorter than its weights.
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

/// The scales of the sixteen rows of a group in a band of levels: the low four bits of rows `j` and
/// `j + 8` are the halves of byte `j`, the high two of rows `j`, `j + 4`, ... are in byte `8 + j`.
///
/// # Panics
/// Never: the room is that of a group.
pub fn level_scales(packed: &[u8; SCALE_BYTES]) -> [u8; GROUP_ROWS] {
    std::array::from_fn(|j| {
        let low = packed[j % 8] >> (j / 8 * 4) & 15;
        let high = packed[8 + j % 4] >> (j / 4 * 2) & 3;
        low | high << 4
    })
}

fn scales_of(band: &[u8], group: usize) -> [u8; GROUP_ROWS] {
    let (groups, _) = band.as_chunks::<SCALE_BYTES>();
    level_scales(&groups[group])
}

/// What a stream needs so that a state begins at each of its weights.
const _: () = assert!(CHUNK * 2 >= STATE_BITS as usize);
