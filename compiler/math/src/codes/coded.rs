//! Codes of a tile of rows before packing.

use htc_formats::bands::{BandsError, Kind, Packer, QUADS, STRIP_ROWS};

/// Unpacked codes of a tile of rows.
#[derive(Clone, Debug, Default)]
pub struct CodedStrip {
    /// Of codebook and of trellis column groups.
    pub(super) rows: [Vec<f32>; 2],
    pub(super) bands: Vec<CodedBand>,
}

#[derive(Clone, Debug)]
pub(super) enum CodedBand {
    /// A scale per row; for each quad a code per weight, row by row.
    Levels(Vec<u8>, [Vec<u8>; QUADS]),
    /// For each quad a state per weight, row by row.
    Trellis([Vec<u16>; QUADS]),
}

impl CodedStrip {
    pub(super) fn append(&mut self, other: CodedStrip) {
        if self.bands.is_empty() {
            *self = other;
            return;
        }
        for (rows, more) in self.rows.iter_mut().zip(other.rows) {
            rows.extend(more);
        }
        for (band, more) in self.bands.iter_mut().zip(other.bands) {
            match (band, more) {
                (CodedBand::Levels(scales, quads), CodedBand::Levels(more_scales, more)) => {
                    scales.extend(more_scales);
                    quads
                        .iter_mut()
                        .zip(more)
                        .for_each(|(to, of)| to.extend(of));
                }
                (CodedBand::Trellis(quads), CodedBand::Trellis(more)) => {
                    quads
                        .iter_mut()
                        .zip(more)
                        .for_each(|(to, of)| to.extend(of));
                }
                _ => {}
            }
        }
    }

    /// Writes the tile with this index.
    ///
    /// # Errors
    /// [`BandsError::Scale`] for a row scale that exceeds f16.
    pub fn pack(&self, strip: usize, packer: &mut Packer) -> Result<(), BandsError> {
        for (kind, scales) in KINDS.into_iter().zip(&self.rows) {
            for (r, &scale) in scales.iter().enumerate() {
                packer.row_scale(kind, strip * STRIP_ROWS + r, scale)?;
            }
        }
        for (band, coded) in self.bands.iter().enumerate() {
            match coded {
                CodedBand::Levels(scales, quads) => {
                    packer.level_scales(strip, band, scales);
                    for (quad, codes) in quads.iter().enumerate() {
                        packer.levels(strip, band, quad, codes);
                    }
                }
                CodedBand::Trellis(quads) => {
                    for (quad, states) in quads.iter().enumerate() {
                        packer.trellis(strip, band, quad, states);
                    }
                }
            }
        }
        Ok(())
    }
}

/// In the order of [`CodedStrip::rows`].
pub(super) const KINDS: [Kind; 2] = [Kind::Levels, Kind::Trellis];
