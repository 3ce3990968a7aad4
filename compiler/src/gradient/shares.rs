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

/// Part of `H` that all experts have alike.
pub(crate) const COMMON: f64 = 1.0 / 16.0;

/// Sums of the gradients at the outputs of a projection.
pub(super) struct LayerOutput {
    pub projection: ProjectionKind,
    pub sums: OutputSums,
}

/// What experts share, by the projection of a dense network that theirs correspond to.
pub(super) struct ExpertShares {
    /// Mean cost of an output of an expert over all positions.
    common: Vec<(ProjectionKind, f64)>,
    /// Weight of all positions.
    positions: f64,
}

impl ExpertShares {
    /// Returns what the experts of a layer share, at positions of this weight.
    pub fn new(outputs: &[LayerOutput], positions: f64) -> ExpertShares {
        let kinds = [
            ProjectionKind::Gate,
            ProjectionKind::Up,
            ProjectionKind::Down,
        ];
        let common = kinds.map(|kind| {
            let of_kind = |output: &&LayerOutput| {
                output.projection.expert().is_some() && output.projection.dense() == kind
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
        ExpertShares {
            common: common.to_vec(),
            positions,
        }
    }

    /// Writes the second moment of a projection's outputs.
    pub fn write(&self, to: &mut dyn Write, output: &LayerOutput) -> io::Result<()> {
        if output.projection.expert().is_none() {
            return write_sums(to, &output.sums);
        }
        let dense = output.projection.dense();
        let common = self.common.iter().find(|(kind, _)| *kind == dense);
        let common = COMMON * common.map_or(0.0, |(_, common)| *common);
        let share = (1.0 - COMMON) * output.sums.weight() / self.positions;
        let mut means = output.sums.means();
        means.try_for_each(|mut mean| {
            mean.iter_mut().for_each(|number| *number *= share);
            let mut at = 0;
            let mut row = 0;
            // The diagonal of a lower triangle.
            while let Some(number) = mean.get_mut(at) {
                *number += common;
                row += 1;
                at += row + 1;
            }
            write_means(to, mean)
        })
    }
}

#[cfg(test)]
mod tests;
