//! Coding of weights in GGUF block types with GPTQ error feedback ([`crate::math::ErrorFeedback`]).
//! Scales are searched on the weights after feedback, weighted by column importance.

use htc_formats::CodecError;
use htc_formats::DType;
use htc_formats::block::{BlockFit, NearbyKind};
use htc_formats::model::MatrixId;

use crate::math::codes::{CarriedErrors, RowFeedback, clear_outliers, outlier_factors};
use crate::math::{BlockFormat, ErrorFeedback, FactoriseError, Weight};

/// Damping relative to the mean diagonal of the second moment.
pub const DAMPING: f64 = 0.02;

/// Damping of a tied embedding, whose columns are equally important for lookups.
pub const DAMPING_TIED: f64 = 0.3;

/// Multiplier of the damping for bases with a refinement.
pub const DAMPING_OF_BASES: f64 = 5.0;

/// Rows coded together without row feedback.
pub const ROWS_PER_TILE: usize = 64;

/// Returns the damping for a coded matrix.
pub fn damping(matrix: Option<MatrixId>) -> f64 {
    match matrix {
        Some(MatrixId::Embedding) => DAMPING_TIED,
        _ => DAMPING,
    }
}

/// Returns true if a type supports error feedback.
pub fn has_feedback(dtype: DType) -> bool {
    BlockFit::TYPES.contains(&dtype)
}

#[derive(Clone, Copy, Debug)]
struct GgufBlockType(DType);

impl BlockFormat for GgufBlockType {
    type Scales = BlockFit;

    fn block_len(&self) -> usize {
        self.0.block_len()
    }

    fn scales(&self, values: &[f32], importance: &[f32]) -> Option<BlockFit> {
        BlockFit::search(self.0, values, Some(importance)).ok()
    }

    fn nearest(&self, scales: &BlockFit, place: usize, value: f32) -> (u8, f32) {
        scales.nearest(place, value)
    }

    fn run_len(&self) -> usize {
        BlockFit::run_len(self.0).unwrap_or(self.0.block_len())
    }

    fn level(&self, scales: &BlockFit, code: u8) -> f32 {
        scales.level(code)
    }

    fn step_and_shift(&self, scales: &BlockFit, run: usize) -> (f32, f32) {
        scales.step_and_shift(run)
    }

    fn neighbouring_scales(
        &self,
        scales: &BlockFit,
        run: usize,
        of: NearbyKind,
    ) -> impl Iterator<Item = BlockFit> {
        scales.nearby_fits(run, of)
    }
}

/// Coder of a matrix' rows with feedback and sweeps. Batches should be multiples of
/// [`ROWS_PER_TILE`].
#[derive(Clone, Debug)]
pub struct BlockCoder<'a> {
    dtype: DType,
    feedback: &'a ErrorFeedback,
    sweeps: usize,
    carried: CarriedErrors<'a>,
    done: usize,
}

impl<'a> BlockCoder<'a> {
    /// Creates a coder with feedback along columns and, with `rows`, along rows.
    pub fn new(
        dtype: DType,
        feedback: &'a ErrorFeedback,
        rows: Option<&'a RowFeedback>,
        sweeps: usize,
    ) -> BlockCoder<'a> {
        BlockCoder {
            dtype,
            feedback,
            sweeps,
            carried: CarriedErrors::new(rows, feedback.columns()),
            done: 0,
        }
    }

    /// Codes the next rows into `bytes`; `stored` receives the decoded values.
    pub fn code(
        &mut self,
        rows: Weight<'_>,
        bytes: &mut [u8],
        stored: &mut [f32],
    ) -> Result<(), FactoriseError> {
        rows.check(0)?;
        let (dtype, cols) = (self.dtype, rows.cols);
        if cols != self.feedback.columns() {
            return Err(FactoriseError::VectorLength {
                expected: self.feedback.columns(),
                found: cols,
            });
        }
        let row_bytes = dtype.row_bytes(cols).unwrap_or(0);
        let fits = row_bytes * rows.rows == bytes.len() && stored.len() == rows.values.len();
        if row_bytes == 0 || !fits {
            return Err(CodecError::Length {
                dtype,
                bytes: bytes.len(),
                numbers: stored.len(),
            }
            .into());
        }
        let step = self.carried.rows_per_step().unwrap_or(ROWS_PER_TILE);
        let mut first = 0;
        while first < rows.rows {
            let end = rows.rows.min(first + step - self.done % step);
            let numbers = first * cols..end * cols;
            let own = &mut bytes[first * row_bytes..end * row_bytes];
            self.code_group(&rows.values[numbers.clone()], own, &mut stored[numbers])?;
            first = end;
        }
        Ok(())
    }

    fn code_group(
        &mut self,
        exact: &[f32],
        bytes: &mut [u8],
        stored: &mut [f32],
    ) -> Result<(), FactoriseError> {
        let cols = self.feedback.columns();
        let factors = outlier_factors(Weight {
            rows: exact.len() / cols,
            cols,
            values: exact,
        });
        let mut wanted = exact.to_vec();
        for (row, wanted) in wanted.chunks_exact_mut(cols).enumerate() {
            let moved = self
                .carried
                .error_of_row(self.done + row)
                .unwrap_or_default();
            wanted.iter_mut().zip(moved).for_each(|(w, by)| *w += by);
        }
        let rows = Weight {
            rows: exact.len() / cols,
            cols,
            values: &wanted,
        };
        let code = GgufBlockType(self.dtype);
        let coded = self.feedback.quantise(rows, &code, self.sweeps)?;
        let blocks = bytes.chunks_mut(self.dtype.block_bytes());
        let codes = coded.codes.chunks(code.block_len());
        for ((fit, codes), bytes) in coded.scales.iter().zip(codes).zip(blocks) {
            fit.pack(codes, bytes)?;
        }
        stored.copy_from_slice(&coded.values);
        let errors = exact.iter().zip(&*stored).map(|(w, value)| w - value);
        let mut errors: Vec<f32> = errors.collect();
        clear_outliers(&factors, cols, &mut errors);
        self.carried.record_errors(self.done, &errors);
        self.done += rows.rows;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
