//! Encoders for the codes of [column groups](htc_formats::bands): [`ColumnEnergies`] gathers column
//! scales, then [`TileCoder`] quantises tiles of 256 rows; [`encode_column_groups`] does both.

mod coded;
mod columns;
mod descent;
mod groups;
mod levels;
mod matrix;
mod metric;
mod outliers;
mod refit;
mod rows;
mod strip;
mod trellis;

use htc_formats::bands::{Code, CodeKind};

pub use coded::CodedTile;
pub use columns::{ColumnEnergies, ColumnScales};
pub use levels::{CodebookEncoder, NearestLevel};
pub use matrix::encode_column_groups;
pub use outliers::{
    MAX_ROW_RATIO, clear_outliers, outlier_factors, outlier_factors_of_sizes, row_size,
};
pub use rows::{CarriedErrors, OutputBlock, RowFeedback};
pub use strip::{MAX_FIT_COLUMNS, QuantisationGuide, TileCoder};
pub use trellis::{PathStart, Viterbi};

/// Returns the relative energy loss of a code on independent Gaussian numbers.
pub fn gaussian_relative_error(code: Code) -> f64 {
    const LEVELS: [f64; 7] = [0.104, 2.55e-2, 5.9e-3, 1.46e-3, 4.0e-4, 1.04e-4, 2.4e-5];
    const TRELLIS: [f64; 4] = [0.0765, 2.04e-2, 4.94e-3, 1.31e-3];
    let losses = match code.kind() {
        CodeKind::Codebook => &LEVELS[..],
        CodeKind::Trellis => &TRELLIS,
    };
    let index = usize::from(code.bits()) - 2;
    losses.get(index).copied().unwrap_or(0.0)
}
