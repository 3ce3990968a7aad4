//! Writing a matrix in bands.

use half::f16;

use super::{
    BAND, BandsError, CHUNK, Codes, GROUP_ROWS, Kind, MAX_SCALE, QUAD, QUADS, SCALE_BYTES,
    STRIP_ROWS,
};

/// The bytes of a matrix in bands, filled piece by piece in any order. What is never filled is zero.
///
/// A piece is what an encoder finishes at once: the scales of a row or column, a band of levels in a
/// strip, four columns of a trellis in a strip. Rows are padded to whole groups of sixteen; codes of
/// the rows behind the last are of no meaning, but for a trellis they lie on its path. Neither are codes and scales of
/// columns behind the last, which an encoder leaves at zero.
///
/// # Panics
/// Its methods panic for pieces of another length, or outside of the matrix.
#[derive(Clone, Debug)]
pub struct Packer {
    codes: Codes,
    rows: usize,
    bytes: Vec<u8>,
}

impl Packer {
    /// A matrix of zeros.
    pub fn new(codes: &Codes, rows: usize) -> Packer {
        let bytes = usize::try_from(codes.bytes(rows)).unwrap_or(usize::MAX);
        Packer {
            codes: codes.clone(),
            rows,
            bytes: vec![0; bytes],
        }
    }

    /// Rows of a strip, padded to whole groups: how many a piece has.
    pub fn strip_rows(&self, strip: usize) -> usize {
        Codes::strip_rows(self.rows, strip)
    }

    /// Strips of the matrix.
    pub fn strips(&self) -> usize {
        self.rows.div_ceil(STRIP_ROWS)
    }

    /// Sets the scale of a row in bands of a kind; what it is as an f16.
    ///
    /// # Errors
    /// [`BandsError::Scale`] where that is not finite.
    pub fn row_scale(&mut self, kind: Kind, row: usize, scale: f32) -> Result<f32, BandsError> {
        assert!(row < self.rows);
        let at = self.codes.row_scales(self.rows, kind);
        self.half(at.map_or(usize::MAX, |at| at + 2 * row), "row", row, scale)
    }

    /// Sets the scale of a column in a trellis band; what it is as an f16.
    ///
    /// # Errors
    /// [`BandsError::Scale`] where that is not finite.
    pub fn column_scale(&mut self, col: usize, scale: f32) -> Result<f32, BandsError> {
        let at = self.codes.column_scales(self.rows, col / BAND);
        let at = at.map_or(usize::MAX, |at| at + 2 * (col % BAND));
        self.half(at, "column", col, scale)
    }

    fn half(
        &mut self,
        at: usize,
        of: &'static str,
        index: usize,
        value: f32,
    ) -> Result<f32, BandsError> {
        let rounded = f16::from_f32(value);
        if !rounded.is_finite() {
            return Err(BandsError::Scale { of, index, value });
        }
        self.bytes[at..][..2].copy_from_slice(&rounded.to_le_bytes());
        Ok(rounded.to_f32())
    }

    /// Sets four columns of a trellis band in a strip: one state for each weight, row by row. The low
    /// bits of each are new and the others those of the state behind it, the first being behind the last.
    pub fn trellis(&mut self, strip: usize, band: usize, quad: usize, states: &[u16]) {
        let code = self.codes[band];
        assert_eq!(code.kind(), Kind::Trellis);
        assert_eq!(states.len(), self.strip_rows(strip) * QUAD);
        let bits = u32::from(code.bits());
        let place = self.codes.place(self.rows, strip, band);
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

    /// Sets four columns of a band of levels in a strip: a code for each weight, row by row.
    pub fn levels(&mut self, strip: usize, band: usize, quad: usize, codes: &[u8]) {
        let code = self.codes[band];
        assert_eq!(code.kind(), Kind::Levels);
        let rows = self.strip_rows(strip);
        assert_eq!(codes.len(), rows * QUAD);
        let bits = usize::from(code.bits());
        let place = self.codes.place(self.rows, strip, band);
        let chunks = &mut self.bytes[place][rows / GROUP_ROWS * SCALE_BYTES..];
        let chunks = chunks.chunks_exact_mut(CHUNK * bits / 8);
        for (codes, chunk) in codes
            .chunks_exact(CHUNK)
            .zip(chunks.skip(quad).step_by(QUADS))
        {
            pack_chunk(codes, bits, chunk);
        }
    }

    /// Sets the scales of a strip's rows in a band of levels, at most 63 each.
    pub fn level_scales(&mut self, strip: usize, band: usize, scales: &[u8]) {
        assert_eq!(self.codes[band].kind(), Kind::Levels);
        assert_eq!(scales.len(), self.strip_rows(strip));
        let place = self.codes.place(self.rows, strip, band);
        let (groups, _) = self.bytes[place].as_chunks_mut::<SCALE_BYTES>();
        for (scales, out) in scales.chunks_exact(GROUP_ROWS).zip(groups) {
            *out = [0; SCALE_BYTES];
            for (j, &scale) in scales.iter().enumerate() {
                assert!(scale <= MAX_SCALE);
                out[j % 8] |= (scale & 15) << (j / 8 * 4);
                out[8 + j % 4] |= (scale >> 4) << (j / 4 * 2);
            }
        }
    }

    /// The bytes.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// A scale of a row or column as it is stored; infinite where it is too large.
pub fn stored_scale(scale: f32) -> f32 {
    f16::from_f32(scale).to_f32()
}

/// The codes of a chunk in planes of four, two and one bits.
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
