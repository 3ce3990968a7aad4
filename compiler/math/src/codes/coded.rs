//! Codes of a tile of rows before packing.

use htc_formats::CodecError;
use htc_formats::bands::{CodeKind, ColumnGroupWriter, QUADS_PER_GROUP, TILE_ROWS};

/// Unpacked codes of a tile of rows.
#[derive(Clone, Debug, Default)]
pub struct CodedTile {
    /// Scales of the rows: first of codebook, then of trellis column groups.
    pub(super) row_scales: [Vec<f32>; 2],
    pub(super) column_groups: Vec<CodedColumnGroup>,
}

#[derive(Clone, Debug)]
pub(super) enum CodedColumnGroup {
    /// A scale per row; a code per weight for each quad, row by row.
    Codebook(Vec<u8>, [Vec<u8>; QUADS_PER_GROUP]),
    /// A state per weight for each quad.
    Trellis([Vec<u16>; QUADS_PER_GROUP]),
}

impl CodedTile {
    pub(super) fn append(&mut self, other: CodedTile) {
        if self.column_groups.is_empty() {
            *self = other;
            return;
        }
        extend_each(&mut self.row_scales, other.row_scales);
        for (band, more) in self.column_groups.iter_mut().zip(other.column_groups) {
            match (band, more) {
                (
                    CodedColumnGroup::Codebook(scales, quads),
                    CodedColumnGroup::Codebook(more_scales, more),
                ) => {
                    scales.extend(more_scales);
                    extend_each(quads, more);
                }
                (CodedColumnGroup::Trellis(quads), CodedColumnGroup::Trellis(more)) => {
                    extend_each(quads, more);
                }
                _ => {}
            }
        }
    }

    /// Writes the tile with this index.
    ///
    /// # Errors
    /// [`CodecError::Scale`] for a row scale that exceeds f16.
    pub fn pack(&self, strip: usize, packer: &mut ColumnGroupWriter) -> Result<(), CodecError> {
        for (kind, scales) in CodeKind::ALL.into_iter().zip(&self.row_scales) {
            for (r, &scale) in scales.iter().enumerate() {
                packer.set_row_scale(kind, strip * TILE_ROWS + r, scale)?;
            }
        }
        for (band, coded) in self.column_groups.iter().enumerate() {
            match coded {
                CodedColumnGroup::Codebook(scales, quads) => {
                    packer.set_codebook_scales(strip, band, scales);
                    for (quad, codes) in quads.iter().enumerate() {
                        packer.set_codebook_codes(strip, band, quad, codes);
                    }
                }
                CodedColumnGroup::Trellis(quads) => {
                    for (quad, states) in quads.iter().enumerate() {
                        packer.set_trellis_states(strip, band, quad, states);
                    }
                }
            }
        }
        Ok(())
    }
}

fn extend_each<T, const N: usize>(lists: &mut [Vec<T>; N], more: [Vec<T>; N]) {
    let lists = lists.iter_mut().zip(more);
    lists.for_each(|(list, more)| list.extend(more));
}
