//! What errors of a matrix' rows count, and how rows make up for each other's.

use htc_formats::model::MatrixId;
use htc_formats::source::ModelFile;

use super::{ModelTreatment, UnitError};
use crate::calibrate::Place;
use crate::gradient::{Gradients, MomentBlock};
use crate::math::codes::{OutputBlock, RowFeedback};
use crate::order::{Order, reordered, reordered_lower};
use crate::plan::Member;

fn env(name: &str, or: f64) -> f64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(or)
}

/// Of a matrix in the order in which it is stored; `None` where no gradients are known.
///
/// # Errors
/// Gradients of another model, or ones that are not finite.
pub(super) fn row_feedback(
    source: &ModelFile,
    member: &Member,
    place: Option<Place>,
    treatment: &ModelTreatment,
) -> Result<Option<RowFeedback>, UnitError> {
    let Some(gradients) = treatment.gradients() else {
        return Ok(None);
    };
    let matrix = member.matrix;
    let mode = env("HTC_MODE", 2.0) as usize;
    if mode == 0 {
        return Ok(None);
    }
    let found = match matrix {
        MatrixId::Embedding | MatrixId::Head => {
            let weights = weights_of_tokens(gradients, matrix, place, treatment)?;
            let mean = weights.iter().map(|&w| f64::from(w)).sum::<f64>() / weights.len() as f64;
            let added = (env("HTC_ED", 0.1) * mean) as f32;
            let weights = weights.iter().map(|w| w + added).collect();
            if env("HTC_EW", 1.0) == 0.0 { return Ok(None); }
            RowFeedback::of_weights(weights)
        }
        MatrixId::Slot { .. } => {
            let outputs = gradients.of(matrix)?;
            let order = treatment.order().and_then(|order| order.outputs(matrix));
            let damping = env("HTC_RD", 0.05);
            if mode == 1 {
                let weights = match order { None => outputs.diagonal, Some(order) => reordered(&outputs.diagonal, order) };
                let mean = weights.iter().map(|&w| f64::from(w)).sum::<f64>() / weights.len() as f64;
                let added = (damping * mean) as f32;
                let weights = weights.iter().map(|w| w + added).collect();
                return Ok(Some(RowFeedback::of_weights(weights)));
            }
            let blocks = in_order(outputs.blocks, order);
            let blocks: Vec<OutputBlock<'_>> = blocks
                .iter()
                .map(|of| OutputBlock {
                    first: of.first,
                    order: of.order,
                    lower: &of.lower,
                })
                .collect();
            let made = RowFeedback::new(&blocks, damping);
            made.map_err(|error| super::encode::refused(source, matrix, error))?
        }
    };
    Ok(Some(found))
}

/// The blocks of a second moment in another order, which has all of them in one.
fn in_order(blocks: Vec<MomentBlock>, order: Option<&[u32]>) -> Vec<MomentBlock> {
    let Some(order) = order else { return blocks };
    if blocks.len() != 1 {
        todo!()
    }
    blocks
        .into_iter()
        .map(|block| {
            let n = block.order;
            let at = |a: usize, b: usize| block.lower[a.max(b) * (a.max(b) + 1) / 2 + a.min(b)];
            let mut lower = Vec::with_capacity(block.lower.len());
            for row in 0..n {
                for col in 0..=row {
                    lower.push(at(order[row] as usize, order[col] as usize));
                }
            }
            MomentBlock { lower, ..block }
        })
        .collect()
}

fn weights_of_tokens(
    gradients: &Gradients,
    matrix: MatrixId,
    place: Option<Place>,
    treatment: &ModelTreatment,
) -> Result<Vec<f32>, UnitError> {
    let mut weights: Vec<f32> = Vec::new();
    let mut add = |rows: Vec<f32>, by: f64| {
        weights.resize(rows.len(), 0.0);
        for (w, r) in weights.iter_mut().zip(rows) {
            *w += (f64::from(r) * by) as f32;
        }
    };
    if let Some(place) = place {
        let size = treatment.mean_square(place).unwrap_or(1.0);
        add(gradients.of(MatrixId::Head)?.diagonal, size);
    }
    if matrix == MatrixId::Embedding {
        let size = gradients.of(matrix)?.mean_diagonal;
        add(gradients.shares()?, size);
    }
    Ok(weights)
}
