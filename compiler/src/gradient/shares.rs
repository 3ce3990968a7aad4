//! Second moments of the gradients at the outputs of experts, which read a part of the positions.
//!
//! `½ tr(H E C Eᵀ)` is the cost per position of an error `E`, if `C` is the mean over the rows that
//! the expert reads and `H` the sum over the same rows divided by the number of all positions: the
//! expert's share of the positions weighs the cost.
//!
//! The text of the gradients is short, and other text uses the experts in other shares. An expert
//! that it does not use must not be free: a sixteenth of `H` is that of an expert with the mean
//! share, whose outputs cost as much as the mean output of all experts.

use std::io::{self, Write};

use htc_formats::model::ProjectionKind;

use super::store::{write_means, write_sums};
use super::sums::OutputSums;
use crate::calibrate::moments::diagonal_index;

/// Part of `H` that all experts have alike.
pub(crate) const COMMON_SHARE: f64 = 1.0 / 16.0;

/// Sums of the gradients at the outputs of a projection.
pub(super) struct LayerOutput {
    pub kind: ProjectionKind,
    pub sums: OutputSums,
}

/// Mean costs of the outputs of experts, by the projection of a dense network that they correspond
/// to.
pub(super) struct ExpertShares {
    /// Mean cost of an output of an expert over all positions.
    common: [(ProjectionKind, f64); 3],
    /// Weight of all positions.
    positions: f64,
}

impl ExpertShares {
    /// Computes the mean costs from the outputs of a layer; `positions` is the weight of all
    /// positions.
    pub fn new(outputs: &[LayerOutput], positions: f64) -> ExpertShares {
        let kinds = [
            ProjectionKind::Gate,
            ProjectionKind::Up,
            ProjectionKind::Down,
        ];
        let common = kinds.map(|kind| {
            let of_kind = |output: &&LayerOutput| {
                output.kind.expert().is_some() && output.kind.dense() == kind
            };
            let experts = outputs.iter().filter(of_kind);
            let (mut sum, mut count) = (0.0, 0usize);
            for output in experts {
                sum += output.sums.weight() * output.sums.mean_diagonal();
                count += 1;
            }
            let mean = sum / (positions * count.max(1) as f64);
            (kind, if mean.is_finite() { mean } else { 0.0 })
        });
        ExpertShares { common, positions }
    }

    /// Writes the second moment of a projection's outputs.
    pub fn write(&self, to: &mut dyn Write, output: &LayerOutput) -> io::Result<()> {
        if output.kind.expert().is_none() {
            return write_sums(to, &output.sums);
        }
        let dense = output.kind.dense();
        let common = self.common.iter().find(|(kind, _)| *kind == dense);
        let common = COMMON_SHARE * common.map_or(0.0, |(_, common)| *common);
        let share = (1.0 - COMMON_SHARE) * output.sums.weight() / self.positions;
        let mut means = output.sums.means();
        means.try_for_each(|mut mean| {
            mean.iter_mut().for_each(|number| *number *= share);
            let mut places = (0..).map(diagonal_index);
            while let Some(number) = places.next().and_then(|at| mean.get_mut(at)) {
                *number += common;
            }
            write_means(to, mean)
        })
    }
}

#[cfg(test)]
mod tests;
