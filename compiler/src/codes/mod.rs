//! Coding of weights in GGUF block types with GPTQ error feedback ([`crate::math::ErrorFeedback`]).
//! Scales are searched on the weights after feedback, weighted by column importance.

use htc_formats::CodecError;
use htc_formats::DType;
use htc_formats::block::{BlockFit, NearbyKind};
use htc_formats::model::MatrixId;

use crate::math::codes::{CarriedErrors, RowFeedback};
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
        self.carried
            .record_errors(self.done, &errors.collect::<Vec<f32>>());
        self.done += rows.rows;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use htc_formats::block;

    use super::*;
    use crate::math::codes::OutputBlock;
    use crate::math::random::Rng;
    use crate::math::{SecondMoment, dense_energies, weighted_dense_energies};

    fn moment(n: usize) -> Vec<f64> {
        let entry = |i: usize, j: usize| 0.9f64.powi(i.abs_diff(j) as i32);
        (0..n * n).map(|at| entry(at / n, at % n)).collect()
    }

    #[test]
    fn every_type_decodes_exactly_and_gains_by_feedback() {
        let (rows, cols) = (70, 512);
        let mut rng = Rng(3);
        let values: Vec<f32> = (0..rows * cols).map(|_| rng.normal() as f32).collect();
        let weight = Weight {
            rows,
            cols,
            values: &values,
        };
        let of = moment(cols);
        let moment = SecondMoment {
            order: cols,
            values: &of,
        };
        let feedback = ErrorFeedback::new(moment, DAMPING).unwrap();
        for &dtype in BlockFit::TYPES {
            assert!(has_feedback(dtype) && block::writable_types().contains(&dtype));
            let mut bytes = vec![0; rows * dtype.row_bytes(cols).unwrap()];
            let mut stored = vec![0.0; values.len()];
            let mut coder = BlockCoder::new(dtype, &feedback, None, 2);
            coder.code(weight, &mut bytes, &mut stored).unwrap();
            let mut decoded = vec![0.0; values.len()];
            block::decode(dtype, &bytes, &mut decoded).unwrap();
            assert_eq!(decoded, stored, "{dtype}");
            let lost = weighted_dense_energies(weight, &stored, moment).error;
            block::encode(dtype, &values, &mut bytes).unwrap();
            block::decode(dtype, &bytes, &mut decoded).unwrap();
            let alone = weighted_dense_energies(weight, &decoded, moment).error;
            println!("{dtype}: {:.3} of the error without feedback", lost / alone);
            assert!(lost < 0.6 * alone, "{dtype}: {lost} {alone}");
        }
    }

    fn outputs(n: usize) -> Vec<f64> {
        let entry = |i: usize, j: usize| if i == j { 1.0 } else { 0.7 };
        (0..n * n).map(|at| entry(at / n, at % n)).collect()
    }

    fn cost(rows: usize, cols: usize, errors: &[f32]) -> f64 {
        let (h, c) = (outputs(rows), moment(cols));
        let row = |r: usize| &errors[r * cols..][..cols];
        let spread = |r: usize| -> Vec<f64> {
            let by = |j: usize| (0..cols).map(move |i| (i, j));
            let sum = |j| by(j).map(|(i, j)| f64::from(row(r)[i]) * c[i * cols + j]);
            (0..cols).map(|j| sum(j).sum()).collect()
        };
        let of_row = |r: usize| {
            let spread = spread(r);
            let with = |s: usize| {
                let products = spread.iter().zip(row(s)).map(|(a, &b)| a * f64::from(b));
                h[r * rows + s] * products.sum::<f64>()
            };
            (0..rows).map(with).sum::<f64>()
        };
        (0..rows).map(of_row).sum()
    }

    #[test]
    fn row_feedback_gains_for_any_batching_of_rows() {
        let (rows, cols) = (160, 256);
        let mut rng = Rng(9);
        let values: Vec<f32> = (0..rows * cols).map(|_| rng.normal() as f32).collect();
        let columns = moment(cols);
        let columns = SecondMoment {
            order: cols,
            values: &columns,
        };
        let feedback = ErrorFeedback::new(columns, DAMPING).unwrap();
        let outputs = outputs(rows);
        let lower = (0..rows).flat_map(|r| (0..=r).map(move |s| (r, s)));
        let lower: Vec<f32> = lower.map(|(r, s)| outputs[r * rows + s] as f32).collect();
        let block = OutputBlock {
            first: 0,
            order: rows,
            lower: &lower,
        };
        let outputs = RowFeedback::new(&[block], 0.01).unwrap();
        for dtype in [DType::Q2K, DType::Q4_0, DType::Q6K] {
            let row_bytes = dtype.row_bytes(cols).unwrap();
            let coded = |rows: Option<&RowFeedback>, at_a_time: usize| {
                let mut coder = BlockCoder::new(dtype, &feedback, rows, 2);
                let (mut bytes, mut errors) = (Vec::new(), Vec::new());
                for values in values.chunks(at_a_time * cols) {
                    let weight = Weight {
                        rows: values.len() / cols,
                        cols,
                        values,
                    };
                    let mut own = vec![0; weight.rows * row_bytes];
                    let mut stored = vec![0.0; values.len()];
                    coder.code(weight, &mut own, &mut stored).unwrap();
                    bytes.extend(own);
                    errors.extend(values.iter().zip(&stored).map(|(w, s)| w - s));
                }
                (bytes, cost(values.len() / cols, cols, &errors))
            };
            let (alone, together) = (coded(None, rows), coded(Some(&outputs), rows));
            let gain = together.1 / alone.1;
            println!("{dtype}: {gain:.3} of the cost without feedback along rows");
            assert!(gain < 0.9, "{dtype}: {gain}");
            assert!(
                coded(Some(&outputs), ROWS_PER_TILE).0 == together.0,
                "{dtype}"
            );
            let some = coded(Some(&outputs), 7).1;
            let parts = some / together.1;
            assert!((parts - 1.0).abs() < 0.03, "{dtype}: {parts}");
        }
    }

    #[test]
    fn damping_of_bases_trades_output_errors_for_weight_errors() {
        let (rows, cols) = (64, 256);
        let mut rng = Rng(11);
        let values: Vec<f32> = (0..rows * cols).map(|_| rng.normal() as f32).collect();
        let weight = Weight {
            rows,
            cols,
            values: &values,
        };
        let of = moment(cols);
        let moment = SecondMoment {
            order: cols,
            values: &of,
        };
        let lost = |damping: f64| {
            let feedback = ErrorFeedback::new(moment, damping).unwrap();
            let mut bytes = vec![0; rows * DType::Q3K.row_bytes(cols).unwrap()];
            let mut stored = vec![0.0; values.len()];
            let mut coder = BlockCoder::new(DType::Q3K, &feedback, None, 2);
            coder.code(weight, &mut bytes, &mut stored).unwrap();
            let of_weights = dense_energies(weight, &stored).error;
            (
                of_weights,
                weighted_dense_energies(weight, &stored, moment).error,
            )
        };
        let (alone, refined) = (lost(DAMPING), lost(DAMPING_OF_BASES * DAMPING));
        println!(
            "{:.3} of the errors of weights, {:.3} of those of outputs",
            refined.0 / alone.0,
            refined.1 / alone.1
        );
        assert!(refined.0 < 0.95 * alone.0);
        assert!(alone.1 < refined.1 && refined.1 < 1.2 * alone.1);
    }

    #[test]
    fn wrong_lengths_and_huge_values_are_rejected() {
        let of = moment(256);
        let moment = SecondMoment {
            order: 256,
            values: &of,
        };
        let feedback = ErrorFeedback::new(moment, DAMPING).unwrap();
        let weight = |values| Weight {
            rows: 1,
            cols: 256,
            values,
        };
        let mut bytes = [0; 8];
        let mut stored = [0.0; 256];
        let mut coder = BlockCoder::new(DType::Q4_0, &feedback, None, 2);
        let found = coder.code(weight(&[0.5; 256]), &mut bytes, &mut stored);
        assert!(matches!(found, Err(FactoriseError::Codec(_))));
        let wide = Weight {
            rows: 1,
            cols: 512,
            values: &[0.5; 512],
        };
        let found = coder.code(wide, &mut [0; 288], &mut [0.0; 512]);
        assert!(
            matches!(found, Err(FactoriseError::VectorLength { .. })),
            "{found:?}"
        );
        let mut bytes = [0; 144];
        let mut huge = [0.5; 256];
        huge[9] = 1e30;
        let found = coder.code(weight(&huge), &mut bytes, &mut stored);
        assert!(
            matches!(found, Err(FactoriseError::ValuesOutOfRange { .. })),
            "{found:?}"
        );
    }
}
