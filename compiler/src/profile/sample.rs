//! Sampled rows of a matrix, and the costs of its errors.

use htc_formats::CodecError;
use htc_formats::DType;
use htc_formats::bands::GROUP_COLS;
use htc_formats::block;
use htc_formats::model::MatrixId;
use htc_formats::source::ModelTensor;

use crate::calibrate::CalibratedInput;
use crate::codes::BlockCoder;
use crate::gradient::Gradients;
use crate::math::codes::{outlier_factors_of_sizes, row_size};
use crate::math::{
    ErrorFeedback, SecondMoment, Weight, dense_energies, weighted_dense_energies,
    weighted_row_errors,
};
use crate::options::EffortSettings;
use crate::order::{ChannelPermutation, PermutedSource, permuted, permuted_lower};
use crate::unit::{MakeError, encode};

/// Cost of errors `e_i` of rows, in nats per token: `Σ_i h_i f(e_i C e_iᵀ)`, with `f(q) = q / 2`
/// for small errors.
pub(super) struct ErrorCost {
    /// True for rows that give logits: a normal error of variance `q` makes a token `exp(q / 2)`
    /// times as likely, so `f(q) = exp(q / 2) - 1`.
    pub of_logits: bool,
    /// `h`, by row.
    pub rows: Vec<f32>,
    /// Length of a row.
    pub order: usize,
    /// Lower triangle of `C`.
    pub moment: Vec<f64>,
}

/// An embedding has also those of lookups.
pub(super) fn costs(
    gradients: &Gradients,
    order: Option<&ChannelPermutation>,
    matrix: MatrixId,
    place: Option<CalibratedInput>,
    moment: Option<SecondMoment<'_>>,
) -> Result<Vec<ErrorCost>, MakeError> {
    let outputs = |of| gradients.for_matrix(of).ok_or(MakeError::NoGradients(of));
    let mut costs = Vec::with_capacity(2);
    if let (Some(place), Some(moment)) = (place, moment) {
        let of = if place == CalibratedInput::Head {
            MatrixId::Head
        } else {
            matrix
        };
        let rows = match of {
            MatrixId::Head => gradients.token_costs().logits,
            of => outputs(of)?.diagonal,
        };
        costs.push(ErrorCost {
            of_logits: of == MatrixId::Head,
            rows: match order.and_then(|order| order.outputs(of)) {
                None => rows,
                Some(order) => permuted(&rows, order),
            },
            order: moment.order,
            moment: moment.values.to_vec(),
        });
    }
    if matrix == MatrixId::Embedding {
        let found = outputs(matrix)?;
        let n = found.diagonal.len();
        let mut moment = vec![0.0; n * n];
        for block in &found.blocks {
            let mut numbers = block.lower.iter();
            for row in 0..block.order {
                let to = &mut moment[(block.first + row) * n + block.first..][..=row];
                for (to, &from) in to.iter_mut().zip(numbers.by_ref()) {
                    *to = f64::from(from);
                }
            }
        }
        costs.push(ErrorCost {
            of_logits: false,
            rows: gradients.token_costs().lookups,
            order: n,
            moment: match order.and_then(|order| order.outputs(matrix)) {
                None => moment,
                Some(order) => permuted_lower(&moment, order),
            },
        });
    }
    Ok(costs)
}

pub(super) struct RowSample {
    pub rows: usize,
    pub cols: usize,
    pub values: Vec<f32>,
    /// Indices of the sampled rows in the matrix.
    pub indices: Vec<usize>,
    pub represented_rows: Vec<f64>,
    /// Rows far larger than the others, sampled or not.
    pub outliers: Vec<OutlierRow>,
    /// Sweeps of the coder.
    pub sweeps: usize,
}

/// A row beyond [`MAX_ROW_RATIO`](crate::math::codes::MAX_ROW_RATIO).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct OutlierRow {
    /// Index in the matrix.
    pub row: usize,
    /// Position among the given rows.
    position: usize,
    /// Factor by which its size counts, below 1.
    factor: f32,
}

/// Returns the outliers among rows of a matrix, the largest first.
fn outlier_rows(
    source: &PermutedSource<'_>,
    tensor: &ModelTensor,
    among: &[u32],
) -> Result<Vec<OutlierRow>, MakeError> {
    let mut values = vec![0.0; tensor.cols];
    let mut sizes = Vec::with_capacity(among.len());
    for &row in among {
        let row = row as usize;
        let decoded = source.decode(tensor, row..row + 1, &mut values);
        decoded.map_err(|error| MakeError::of_tensor(&tensor.name, error))?;
        encode::check_finite(source, tensor, &values, row)?;
        sizes.push(row_size(&values));
    }
    let factors = outlier_factors_of_sizes(&sizes).into_iter().enumerate();
    let beyond = factors.filter(|&(_, factor)| factor < 1.0);
    let mut found: Vec<OutlierRow> = beyond
        .map(|(position, factor)| OutlierRow {
            row: among[position] as usize,
            position,
            factor,
        })
        .collect();
    found.sort_by(|a, b| a.factor.total_cmp(&b.factor).then(a.row.cmp(&b.row)));
    Ok(found)
}

const LARGEST_EXPONENT: f64 = 30.0;

/// Share of the inclusion probability that is spread evenly, because costs are estimates.
const UNIFORM_FRACTION: f64 = 0.2;

/// Inclusion probabilities for about `target` rows, by cost: a thousandth of the vocabulary has
/// most of it.
fn inclusion_probabilities(costs: &[ErrorCost], rows: &[u32], target: usize) -> Vec<f64> {
    let mut parts = vec![0.0; rows.len()];
    let mut all = 0.0;
    for cost in costs {
        let energy: f64 = (0..cost.order)
            .map(|i| cost.moment[i * cost.order + i])
            .sum();
        for (part, &row) in parts.iter_mut().zip(rows) {
            let h = cost.rows.get(row as usize).copied().unwrap_or(0.0);
            let of_row = energy * f64::from(h.max(0.0));
            *part += of_row;
            all += of_row;
        }
    }
    let even = 1.0 / rows.len().max(1) as f64;
    for part in &mut parts {
        *part = if all > 0.0 && all.is_finite() {
            UNIFORM_FRACTION * even + (1.0 - UNIFORM_FRACTION) * *part / all
        } else {
            even
        };
    }
    let (mut certain, mut factor) = (0, target as f64);
    loop {
        let found = parts.iter().filter(|part| *part * factor >= 1.0).count();
        if found <= certain || found >= target {
            break;
        }
        certain = found;
        let rest: f64 = parts.iter().filter(|part| *part * factor < 1.0).sum();
        factor = (target - certain) as f64 / rest;
    }
    parts.iter().map(|part| (part * factor).min(1.0)).collect()
}

/// Systematic sampling; returns rows and the number of rows each represents.
fn systematic_sample(chances: &[f64]) -> impl Iterator<Item = (usize, f64)> {
    let mut sum = 0.5;
    chances
        .iter()
        .enumerate()
        .filter_map(move |(row, &chance)| {
            let before = f64::floor(sum);
            sum += chance;
            (sum.floor() > before).then(|| (row, 1.0 / chance))
        })
}

impl RowSample {
    /// Samples rows among the given ones, with probability by cost, and outliers with certainty:
    /// few rows with errors that no other row has.
    pub fn draw(
        source: &PermutedSource<'_>,
        tensor: &ModelTensor,
        among: &[u32],
        costs: &[ErrorCost],
        effort: EffortSettings,
    ) -> Result<RowSample, MakeError> {
        let (rows, cols) = (among.len().min(effort.sampled_rows), tensor.cols);
        let mut chances = inclusion_probabilities(costs, among, rows);
        let outliers = outlier_rows(source, tensor, among)?;
        for outlier in outliers.iter().take(rows.div_ceil(2)) {
            chances[outlier.position] = 1.0;
        }
        let taken = systematic_sample(&chances)
            .map(|(index, stands_for)| (among[index] as usize, stands_for));
        let (indices, stand_for): (Vec<usize>, Vec<f64>) = taken.unzip();
        let rows = indices.len();
        let mut values = vec![0.0; rows * cols];
        for (&row, values) in indices.iter().zip(values.chunks_mut(cols.max(1))) {
            let decoded = source.decode(tensor, row..row + 1, values);
            decoded.map_err(|error| MakeError::of_tensor(&tensor.name, error))?;
            encode::check_finite(source, tensor, values, row)?;
        }
        Ok(RowSample {
            rows,
            cols,
            values,
            indices,
            represented_rows: stand_for,
            outliers,
            sweeps: effort.sweeps,
        })
    }

    /// Returns the sampled rows as decoded from a type.
    pub fn stored(
        &self,
        tensor: &ModelTensor,
        dtype: DType,
        feedback: Option<&ErrorFeedback>,
    ) -> Result<Vec<f32>, MakeError> {
        let codec = |source: CodecError| MakeError::of_tensor(&tensor.name, source);
        let bytes = dtype.row_bytes(self.cols).unwrap_or(0) * self.rows;
        let (mut bytes, mut stored) = (vec![0; bytes], vec![0.0; self.values.len()]);
        let weight = self.weight(&self.values);
        match feedback {
            Some(feedback) => BlockCoder::new(dtype, feedback, None, self.sweeps)
                .code(weight, &mut bytes, &mut stored)
                .map_err(|error| MakeError::of_tensor(&tensor.name, error))?,
            None => {
                block::encode(dtype, &self.values, &mut bytes).map_err(codec)?;
                block::decode(dtype, &bytes, &mut stored).map_err(codec)?;
            }
        }
        Ok(stored)
    }

    /// Returns the relative error of the output energy.
    pub fn relative_error(&self, stored: &[f32], moment: Option<SecondMoment<'_>>) -> f64 {
        let weight = self.weight(&self.values);
        let energies = match moment {
            Some(moment) => weighted_dense_energies(weight, stored, moment),
            None => dense_energies(weight, stored),
        };
        energies.relative_error().powi(2)
    }

    /// Estimates the cost of the errors of all rows.
    pub fn cost(&self, stored: &[f32], cost: &ErrorCost) -> f64 {
        let moment = SecondMoment {
            order: cost.order,
            values: &cost.moment,
        };
        if cost.of_logits {
            let weight = self.weight(&self.values);
            let Some(errors) = weighted_row_errors(weight, stored, moment) else {
                return f64::NAN;
            };
            let rows = self.indices.iter().zip(&self.represented_rows).zip(errors);
            let of_rows = rows.map(|((&row, stand_for), error)| {
                let h = cost.rows.get(row).map_or(0.0, |h| f64::from(h.max(0.0)));
                h * stand_for * (0.5 * error).min(LARGEST_EXPONENT).exp_m1()
            });
            return of_rows.sum();
        }
        let exact = self.weighted_rows(&self.values, cost);
        let stored = self.weighted_rows(stored, cost);
        let lost = weighted_dense_energies(self.weight(&exact), &stored, moment);
        0.5 * lost.error
    }

    /// Scales rows by the root of their error cost and represented rows.
    pub fn weighted_rows(&self, values: &[f32], cost: &ErrorCost) -> Vec<f32> {
        let of_rows = self.indices.iter().zip(&self.represented_rows);
        let roots = of_rows.map(|(&row, stand_for)| {
            let h = cost.rows.get(row).map_or(0.0, |h| f64::from(h.max(0.0)));
            (h * stand_for).sqrt() as f32
        });
        let rows = values.chunks(self.cols.max(1)).zip(roots);
        rows.flat_map(|(row, root)| row.iter().map(move |value| value * root))
            .collect()
    }

    /// Returns the expected loss of codes in column groups with rotation, relative to that without:
    /// the error of a column is proportional to its own weights without, and to the mean of its
    /// group with.
    pub fn relative_loss_of_rotation(&self, costs: &[ErrorCost]) -> f64 {
        let (mut rotated, mut plain) = (0.0, 0.0);
        for cost in costs {
            let mut energies = vec![0.0; self.cols];
            let weighted = self.weighted_rows(&self.values, cost);
            for row in weighted.chunks_exact(self.cols.max(1)) {
                let pairs = energies.iter_mut().zip(row);
                pairs.for_each(|(sum, &w)| *sum += f64::from(w).powi(2));
            }
            let moments: Vec<f64> = (0..cost.order)
                .map(|col| cost.moment[col * cost.order + col])
                .collect();
            let groups = energies.chunks_exact(GROUP_COLS);
            for (energies, moments) in groups.zip(moments.chunks_exact(GROUP_COLS)) {
                let mean = energies.iter().sum::<f64>() / GROUP_COLS as f64;
                rotated += mean * moments.iter().sum::<f64>();
                let pairs = energies.iter().zip(moments);
                plain += pairs.map(|(energy, moment)| energy * moment).sum::<f64>();
            }
        }
        if plain > 0.0 { rotated / plain } else { 1.0 }
    }

    pub fn weight<'a>(&self, values: &'a [f32]) -> Weight<'a> {
        Weight {
            rows: self.rows,
            cols: self.cols,
            values,
        }
    }
}

#[cfg(test)]
mod tests;
