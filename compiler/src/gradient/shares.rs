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
const COMMON: f64 = 1.0 / 16.0;

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
mod tests {
    use htc_kernels::cpu::Cpu;

    use super::*;
    use crate::system::random::Rng;

    fn output(projection: ProjectionKind, g: &[f32], order: usize) -> LayerOutput {
        let mut sums = OutputSums::new(order);
        sums.add(&Cpu::with_threads(1).unwrap(), g);
        LayerOutput { projection, sums }
    }

    fn written(shares: &ExpertShares, output: &LayerOutput) -> Vec<f64> {
        let mut bytes = Vec::new();
        shares.write(&mut bytes, output).unwrap();
        let numbers = bytes.as_chunks::<4>().0.iter();
        numbers.map(|b| f64::from(f32::from_le_bytes(*b))).collect()
    }

    /// Direct sums over the rows of experts, per position of the text.
    #[test]
    fn moments_of_experts_are_sums_over_their_rows_per_position() {
        let (order, positions) = (6, 20.0);
        let mut random = Rng(8);
        let rows: Vec<f32> = (0..15 * order).map(|_| random.normal() as f32).collect();
        let (first, second) = rows.split_at(11 * order);
        let outputs = [
            output(ProjectionKind::Router, &rows, order),
            output(ProjectionKind::ExpertDown(0), first, order),
            output(ProjectionKind::ExpertDown(1), second, order),
            output(ProjectionKind::ExpertDown(2), &[], order),
        ];
        let shares = ExpertShares::new(&outputs, positions);
        let product = |g: &[f32], i: usize, j: usize| -> f64 {
            let rows = g.chunks_exact(order);
            rows.map(|g| f64::from(g[i]) * f64::from(g[j])).sum()
        };
        let trace: f64 = (0..order).map(|i| product(&rows, i, i)).sum();
        let common = trace / order as f64 / positions / 3.0 / 16.0;
        let parts: [&[f32]; 3] = [first, second, &[]];
        for (output, g) in outputs[1..].iter().zip(parts) {
            let mut found = written(&shares, output).into_iter();
            for i in 0..order {
                for j in 0..=i {
                    let own = 15.0 / 16.0 * product(g, i, j) / positions;
                    let expected = if i == j { own + common } else { own };
                    let found = found.next().unwrap();
                    assert!((found - expected).abs() < 1e-6, "{found} for {expected}");
                }
            }
        }
        // All outputs together cost the same as before.
        let diagonal = |output: &LayerOutput| -> f64 {
            let found = written(&shares, output);
            (0..order).map(|i| found[i * (i + 3) / 2]).sum()
        };
        let all: f64 = outputs[1..].iter().map(diagonal).sum();
        assert!((all - trace / positions).abs() < 1e-5, "{all}");
        // Others are means over their rows.
        let found = written(&shares, &outputs[0])[0];
        assert!((found - product(&rows, 0, 0) / 15.0).abs() < 1e-6);
    }
}
