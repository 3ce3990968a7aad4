//! Weights of errors per row, and error feedback along rows.

use htc_formats::model::MatrixId;

use super::{MakeError, ModelTreatment, weight_name};
use crate::calibrate::CalibratedInput;
use crate::gradient::{Gradients, MomentBlock};
use crate::math::codes::{OutputBlock, RowFeedback};
use crate::order::{PermutedSource, permuted, permuted_triangle};

/// Damping relative to the mean diagonal; gradients come from only some thousand sampled tokens.
const DAMPING: f64 = 0.2;

/// Returns the row feedback of a matrix in its stored channel order; `None` without gradients.
pub(super) fn row_feedback(
    source: &PermutedSource<'_>,
    matrix: MatrixId,
    place: Option<CalibratedInput>,
    treatment: &ModelTreatment,
) -> Result<Option<RowFeedback>, MakeError> {
    let Some(gradients) = treatment.gradients else {
        return Ok(None);
    };
    if !matches!(matrix, MatrixId::Projection { .. }) {
        let weights = vocabulary_row_costs(gradients, matrix, place, treatment)?;
        return Ok(Some(RowFeedback::from_weights(weights)));
    }
    let outputs = gradients
        .for_matrix(matrix)
        .ok_or(MakeError::NoGradients(matrix))?;
    let order = source.order().and_then(|order| order.outputs(matrix));
    let blocks = match (order, outputs.blocks) {
        (None, blocks) => blocks,
        (Some(order), blocks) if blocks.len() == 1 => blocks
            .into_iter()
            .map(|block| MomentBlock {
                lower: permuted_triangle(&block.lower, order),
                ..block
            })
            .collect(),
        (Some(order), _) => {
            let weights = permuted(&outputs.diagonal, order);
            return Ok(Some(uncoupled_rows(weights, DAMPING)));
        }
    };
    let blocks: Vec<OutputBlock<'_>> = blocks
        .iter()
        .map(|of| OutputBlock {
            first: of.first,
            order: of.order,
            lower: &of.lower,
        })
        .collect();
    let made = RowFeedback::new(&blocks, DAMPING).map(Some);
    made.map_err(|error| MakeError::of_tensor(&weight_name(source, matrix), error))
}

fn uncoupled_rows(mut weights: Vec<f32>, damping: f64) -> RowFeedback {
    let sum: f64 = weights.iter().map(|&w| f64::from(w)).sum();
    let added = (damping * sum / weights.len().max(1) as f64) as f32;
    weights.iter_mut().for_each(|w| *w += added);
    RowFeedback::from_weights(weights)
}

/// Returns the costs of rows of an embedding or a head. As a head: the gradient at the logits times
/// the size of the input. As an embedding: the token's frequency times the size of the gradient.
fn vocabulary_row_costs(
    gradients: &Gradients,
    matrix: MatrixId,
    place: Option<CalibratedInput>,
    treatment: &ModelTreatment,
) -> Result<Vec<f32>, MakeError> {
    let mut all = Vec::with_capacity(2);
    let tokens = gradients.token_costs();
    if let Some(read) = place.and_then(|place| treatment.mean_square(place)) {
        all.push((tokens.logits, read));
    }
    if matrix == MatrixId::Embedding {
        let size = gradients.for_matrix(matrix);
        let size = size.ok_or(MakeError::NoGradients(matrix))?;
        all.push((tokens.lookups, size.mean_diagonal));
    }
    let mut weights = vec![0.0; all.first().map_or(0, |(rows, _)| rows.len())];
    for (rows, size) in all {
        for (weight, row) in weights.iter_mut().zip(rows) {
            *weight += (f64::from(row) * size) as f32;
        }
    }
    Ok(weights)
}
