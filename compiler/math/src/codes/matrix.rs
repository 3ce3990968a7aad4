//! Encoding of a whole matrix.

use htc_formats::bands::{Codes, ColumnGroupWriter, TILE_ROWS, rotate};

use super::{ColumnEnergies, QuantisationGuide, TileCoder};
use crate::{FactoriseError, Weight};

/// Encodes `w [rows, codes.cols()]`, rotated if the codes require it, with the error feedback of
/// `guide`.
pub fn encode_column_groups(
    codes: &Codes,
    w: Weight<'_>,
    guide: QuantisationGuide<'_>,
) -> Result<Vec<u8>, FactoriseError> {
    let (rows, cols) = (w.rows, codes.cols());
    if w.cols != cols || rows.checked_mul(cols) != Some(w.values.len()) {
        let found = w.values.len();
        return Err(FactoriseError::Length { rows, cols, found });
    }
    let mut rotated = Vec::new();
    let w = if codes.is_rotated() {
        rotated.extend_from_slice(w.values);
        rotated.chunks_exact_mut(cols).for_each(rotate);
        Weight {
            values: &rotated,
            ..w
        }
    } else {
        w
    };
    let guide = guide.for_codes(codes)?;
    let mut energies = ColumnEnergies::new(cols);
    for row in w.values.chunks_exact(cols) {
        energies.add_row(row)?;
    }
    let columns = energies.scales(codes, guide.columns)?;
    let mut packer = ColumnGroupWriter::new(codes, rows);
    columns.pack(&mut packer)?;
    let mut coder = TileCoder::new(codes, &columns, guide);
    for (strip, values) in w.values.chunks(TILE_ROWS * cols).enumerate() {
        let rows = Weight {
            rows: values.len() / cols,
            cols,
            values,
        };
        coder.quantise(strip, rows)?.pack(strip, &mut packer)?;
    }
    coder.refitted_column_scales().pack(&mut packer)?;
    Ok(packer.finish())
}
