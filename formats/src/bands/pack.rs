//! Writer of column-group matrices.

use half::f16;

use super::{
    CHUNK, CodeKind, Codes, GROUP_COLS, GROUP_ROWS, MAX_CODEBOOK_SCALE, QUAD, QUADS_PER_GROUP,
    SCALE_BYTES, TILE_ROWS,
};
use crate::CodecError;

/// Writer of a column-group matrix, piece by piece in any order; unset pieces are zero.
///
/// A piece is the scale of a row or column, a codebook column group in a tile, or four trellis
/// columns in a tile. Codes of padding rows are ignored, except that a trellis passes through them.
///
/// # Panics
/// Methods panic for pieces of the wrong length or outside of the matrix.
#[derive(Clone, Debug)]
pub struct ColumnGroupWriter {
    codes: Codes,
    rows: usize,
    bytes: Vec<u8>,
}

impl ColumnGroupWriter {
    /// Creates a matrix of zeros.
    pub fn new(codes: &Codes, rows: usize) -> ColumnGroupWriter {
        let bytes = usize::try_from(codes.bytes(rows)).unwrap_or(usize::MAX);
        ColumnGroupWriter {
            codes: codes.clone(),
            rows,
            bytes: vec![0; bytes],
        }
    }

    /// Returns the number of rows of a piece, padded to whole row groups.
    pub fn tile_rows(&self, strip: usize) -> usize {
        Codes::tile_rows(self.rows, strip)
    }

    /// Number of tiles of the matrix.
    pub fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    /// Sets the scale of a row in column groups of a kind. Returns it rounded to f16.
    ///
    /// # Errors
    /// [`CodecError::Scale`] if the rounded scale is not finite.
    pub fn set_row_scale(
        &mut self,
        kind: CodeKind,
        row: usize,
        scale: f32,
    ) -> Result<f32, CodecError> {
        assert!(row < self.rows);
        let at = self.codes.row_scales_offset(self.rows, kind);
        self.store_scale(at.map_or(usize::MAX, |at| at + 2 * row), "row", row, scale)
    }

    /// Sets the scale of a column in a trellis column group. Returns it rounded to f16.
    ///
    /// # Errors
    /// [`CodecError::Scale`] if the rounded scale is not finite.
    pub fn set_column_scale(&mut self, col: usize, scale: f32) -> Result<f32, CodecError> {
        let at = self.codes.column_scales_offset(self.rows, col / GROUP_COLS);
        let at = at.map_or(usize::MAX, |at| at + 2 * (col % GROUP_COLS));
        self.store_scale(at, "column", col, scale)
    }

    fn store_scale(
        &mut self,
        at: usize,
        of: &'static str,
        index: usize,
        value: f32,
    ) -> Result<f32, CodecError> {
        let rounded = f16::from_f32(value);
        if !rounded.is_finite() {
            return Err(CodecError::Scale {
                axis: of,
                index,
                value,
            });
        }
        self.bytes[at..][..2].copy_from_slice(&rounded.to_le_bytes());
        Ok(rounded.to_f32())
    }

    /// Sets four columns of a trellis column group in a tile: one state per weight, row by row. The
    /// low bits of each state are new, the others those of the following state; the first state
    /// follows the last.
    pub fn set_trellis_states(&mut self, strip: usize, band: usize, quad: usize, states: &[u16]) {
        let code = self.codes[band];
        assert_eq!(code.kind(), CodeKind::Trellis);
        assert_eq!(states.len(), self.tile_rows(strip) * QUAD);
        let bits = u32::from(code.bits());
        let place = self.codes.tile_range(self.rows, strip, band);
        let length = states.len() * bits as usize / 8;
        let out = &mut self.bytes[place][quad * length..][..length];
        let (mut word, mut held, mut at) = (0_u32, 0, 0);
        for &state in states {
            word |= (u32::from(state) & ((1 << bits) - 1)) << held;
            held += bits;
            while held >= 8 {
                out[at] = word as u8;
                (word, held, at) = (word >> 8, held - 8, at + 1);
            }
        }
    }

    /// Sets four columns of a codebook column group in a tile: one code per weight, row by row.
    pub fn set_codebook_codes(&mut self, strip: usize, band: usize, quad: usize, codes: &[u8]) {
        let code = self.codes[band];
        assert_eq!(code.kind(), CodeKind::Codebook);
        let rows = self.tile_rows(strip);
        assert_eq!(codes.len(), rows * QUAD);
        let bits = usize::from(code.bits());
        let place = self.codes.tile_range(self.rows, strip, band);
        let chunks = &mut self.bytes[place][rows / GROUP_ROWS * SCALE_BYTES..];
        let chunks = chunks.chunks_exact_mut(CHUNK * bits / 8);
        for (codes, chunk) in codes
            .chunks_exact(CHUNK)
            .zip(chunks.skip(quad).step_by(QUADS_PER_GROUP))
        {
            pack_chunk(codes, bits, chunk);
        }
    }

    /// Sets the scales, at most 63, of a tile's rows in a codebook column group.
    pub fn set_codebook_scales(&mut self, strip: usize, band: usize, scales: &[u8]) {
        assert_eq!(self.codes[band].kind(), CodeKind::Codebook);
        assert_eq!(scales.len(), self.tile_rows(strip));
        let place = self.codes.tile_range(self.rows, strip, band);
        let (groups, _) = self.bytes[place].as_chunks_mut::<SCALE_BYTES>();
        for (scales, out) in scales.chunks_exact(GROUP_ROWS).zip(groups) {
            *out = [0; SCALE_BYTES];
            for (j, &scale) in scales.iter().enumerate() {
                assert!(scale <= MAX_CODEBOOK_SCALE);
                out[j % 8] |= (scale & 15) << (j / 8 * 4);
                out[8 + j % 4] |= (scale >> 4) << (j / 4 * 2);
            }
        }
    }

    /// Returns the bytes.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Returns a scale rounded to its stored form; infinite if too large.
pub fn stored_scale(scale: f32) -> f32 {
    f16::from_f32(scale).to_f32()
}

/// Packs the codes of a chunk as bit planes of four, two and one bits.
fn pack_chunk(codes: &[u8], bits: usize, out: &mut [u8]) {
    if bits == 8 {
        return out.copy_from_slice(codes);
    }
    out.fill(0);
    let (mut shift, mut at) = (0, 0);
    for width in [4, 2, 1] {
        if bits & width != 0 {
            let bytes = CHUNK * width / 8;
            for (i, code) in codes.iter().enumerate() {
                let field = (code >> shift) & ((1 << width) - 1);
                out[at + i % bytes] |= field << (i / bytes * width);
            }
            (shift, at) = (shift + width, at + bytes);
        }
    }
}
