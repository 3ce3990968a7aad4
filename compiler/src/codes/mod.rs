//! From weights and the second moment of what they read to codes: the types of GGUF with feedback.
//!
//! Scales are searched on the weights as feedback has moved them, with the importance of each column; codes
//! are taken column by column, and what one loses of the outputs is put back by those behind it
//! ([`crate::math::Feedback`]).

use htc_formats::DType;
use htc_formats::block::{BlockError, BlockFit};
use htc_formats::model::MatrixId;
use thiserror::Error;

use crate::math::{BlockCode, FactoriseError, Feedback, Weight};

/// Part of the mean of a second moment's diagonal that is added to all of it: what feedback moves into inputs
/// that a text hardly excites counts where another text excites them.
pub const DAMPING: f64 = 0.02;

/// The same of a matrix that is embedding and head: as an embedding all of its columns count alike.
pub const DAMPING_WHERE_TIED: f64 = 0.3;

/// Rows that are coded together. Whoever codes the same rows in the same strips gets the same codes.
pub const STRIP: usize = 64;

/// Why rows were not coded.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum CodeError {
    /// The format refuses.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// The arithmetic refuses.
    #[error(transparent)]
    Feedback(#[from] FactoriseError),
}

/// The damping for matrices that read the same, where they are not passed through.
pub fn damping(matrix: Option<MatrixId>) -> f64 {
    match matrix {
        Some(MatrixId::Embedding) => DAMPING_WHERE_TIED,
        _ => DAMPING,
    }
}

/// Whether a type has codes that feedback can choose.
pub fn has_feedback(dtype: DType) -> bool {
    BlockFit::TYPES.contains(&dtype)
}

/// A type of GGUF.
#[derive(Clone, Copy, Debug)]
struct Ggml(DType);

impl BlockCode for Ggml {
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
}

/// Codes rows of whole blocks with feedback and sweeps, strip by strip: `bytes` become those of the rows in a type,
/// and `stored` the numbers that a decoder makes of them.
///
/// # Errors
/// [`CodeError`].
pub fn encode(
    dtype: DType,
    rows: Weight<'_>,
    (feedback, sweeps): (&Feedback, usize),
    bytes: &mut [u8],
    stored: &mut [f32],
) -> Result<(), CodeError> {
    rows.check(0)?;
    let (cols, block) = (rows.cols, dtype.block_len());
    let row_bytes = dtype.row_bytes(cols).unwrap_or(0);
    if row_bytes * rows.rows != bytes.len() || stored.len() != rows.values.len() {
        return Err(BlockError::Length {
            dtype,
            bytes: bytes.len(),
            numbers: stored.len(),
        }
        .into());
    }
    let strips = rows.values.chunks(STRIP * cols);
    let results = bytes.chunks_mut(STRIP * row_bytes);
    for ((values, bytes), stored) in strips.zip(results).zip(stored.chunks_mut(STRIP * cols)) {
        let strip = Weight {
            rows: values.len() / cols,
            cols,
            values,
        };
        let coded = feedback.code(strip, &Ggml(dtype), sweeps)?;
        let blocks = bytes.chunks_mut(dtype.block_bytes());
        let codes = coded.codes.chunks(block);
        for ((fit, codes), bytes) in coded.scales.iter().zip(codes).zip(blocks) {
            fit.pack(codes, bytes)?;
        }
        stored.copy_from_slice(&coded.values);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use htc_formats::block;

    use super::*;
    use crate::math::random::Rng;
    use crate::math::{SecondMoment, weighted_dense_energies};

    /// A second moment of `n` inputs of which each depends on the one before.
    fn moment(n: usize) -> Vec<f64> {
        let entry = |i: usize, j: usize| 0.9f64.powi(i.abs_diff(j) as i32);
        (0..n * n).map(|at| entry(at / n, at % n)).collect()
    }

    #[test]
    fn every_type_decodes_to_what_was_counted_and_loses_less_than_alone() {
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
        let feedback = Feedback::new(moment, DAMPING).unwrap();
        for &dtype in BlockFit::TYPES {
            assert!(has_feedback(dtype) && block::writable().contains(&dtype));
            let mut bytes = vec![0; rows * dtype.row_bytes(cols).unwrap()];
            let mut stored = vec![0.0; values.len()];
            encode(dtype, weight, (&feedback, 2), &mut bytes, &mut stored).unwrap();
            let mut decoded = vec![0.0; values.len()];
            block::decode(dtype, &bytes, &mut decoded).unwrap();
            assert_eq!(decoded, stored, "{dtype}");
            let lost = weighted_dense_energies(weight, &stored, moment).missing;
            block::encode(dtype, &values, &mut bytes).unwrap();
            block::decode(dtype, &bytes, &mut decoded).unwrap();
            let alone = weighted_dense_energies(weight, &decoded, moment).missing;
            println!("{dtype}: {:.3} of the error without feedback", lost / alone);
            assert!(lost < 0.6 * alone, "{dtype}: {lost} {alone}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let of = moment(256);
        let moment = SecondMoment {
            order: 256,
            values: &of,
        };
        let feedback = Feedback::new(moment, DAMPING).unwrap();
        let weight = |values| Weight {
            rows: 1,
            cols: 256,
            values,
        };
        let mut bytes = [0; 8];
        let mut stored = [0.0; 256];
        let found = encode(
            DType::Q4_0,
            weight(&[0.5; 256]),
            (&feedback, 2),
            &mut bytes,
            &mut stored,
        );
        assert!(matches!(found, Err(CodeError::Block(_))));
        let mut bytes = [0; 144];
        let mut huge = [0.5; 256];
        huge[9] = 1e30;
        let found = encode(
            DType::Q4_0,
            weight(&huge),
            (&feedback, 2),
            &mut bytes,
            &mut stored,
        );
        assert!(matches!(found, Err(CodeError::Feedback(_))), "{found:?}");
    }
}
