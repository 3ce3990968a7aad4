//! Classes of vocabulary rows: rows whose errors cost about the same share the same codes.
//!
//! A row that costs four times another should have one more bit per weight. The rows of frequent
//! tokens of a large vocabulary cost a hundred times as much as most others.

use htc_formats::bands::MAX_CLASSES;
use htc_formats::model::MatrixId;
use htc_formats::source::ModelTensor;

use super::encode::MatrixRows;
use super::{MakeError, ModelTreatment, outputs};
use crate::calibrate::CalibratedInput;
use crate::order::PermutedSource;

const MIN_ROWS: usize = 256;

/// Candidate boundaries between classes: steps of the costs' logarithm.
const STEPS: usize = 256;

/// Returns the relative cost of errors of every row of a vocabulary matrix; `None` for other
/// matrices and without gradients.
pub(crate) fn row_costs(
    source: &PermutedSource<'_>,
    tensor: &ModelTensor,
    matrix: MatrixId,
    place: Option<CalibratedInput>,
    treatment: &ModelTreatment,
) -> Result<Option<Vec<f64>>, MakeError> {
    if matches!(matrix, MatrixId::Projection { .. }) {
        return Ok(None);
    }
    let Some(found) = outputs::row_feedback(source, matrix, place, treatment)? else {
        return Ok(None);
    };
    let weights = found.weights().iter().enumerate();
    let (rows, mut values) = (MatrixRows::all(source, tensor), Vec::new());
    let costs = weights.map(|(row, &weight)| {
        rows.decode(row..row + 1, &mut values)?;
        let energy: f64 = values.iter().map(|&w| f64::from(w).powi(2)).sum();
        Ok(f64::from(weight) * energy)
    });
    costs.collect::<Result<Vec<f64>, MakeError>>().map(Some)
}

fn rank_rows(costs: &[f64]) -> Vec<u32> {
    let mut rows: Vec<u32> = (0..costs.len() as u32).collect();
    rows.sort_by(|&a, &b| {
        let of = |row: u32| costs[row as usize];
        of(b).total_cmp(&of(a)).then(a.cmp(&b))
    });
    rows
}

/// Splits the rows into classes of the given sizes, those that cost most first. Rows of a class are
/// in ascending order.
pub(crate) fn split_into_classes(costs: &[f64], counts: &[usize]) -> Vec<Vec<u32>> {
    let ranked = rank_rows(costs);
    let mut rest = &ranked[..];
    let members = counts.iter().map(|&count| {
        let (own, others) = rest.split_at(count.min(rest.len()));
        rest = others;
        let mut own = own.to_vec();
        own.sort_unstable();
        own
    });
    members.collect()
}

/// Returns the class sizes for which separate codes gain most, at least two; `None` if there are
/// too few rows, or all cost the same.
///
/// With bits allocated by cost, the errors of classes of `n_c` rows that cost `m_c` on average are
/// proportional to `exp(Σ n_c log m_c / n)`. The minimum is searched among boundaries at equal
/// steps of the costs' logarithm.
pub(crate) fn class_sizes(costs: &[f64]) -> Option<Vec<usize>> {
    let ranked = rank_rows(costs);
    let of = |rank: usize| costs[ranked[rank] as usize];
    let positive = ranked.iter().take_while(|&&row| costs[row as usize] > 0.0);
    let positive = positive.count();
    if positive < 2 * MIN_ROWS {
        return None;
    }
    let (high, low) = (of(0).ln(), of(positive - 1).ln());
    let mut ends = vec![0];
    for step in 1..STEPS {
        let least = (high + (low - high) * step as f64 / STEPS as f64).exp();
        let end = ranked.partition_point(|&row| costs[row as usize] >= least);
        let rest = ranked.len() - end;
        if end >= ends[ends.len() - 1] + MIN_ROWS && rest >= MIN_ROWS {
            ends.push(end);
        }
    }
    ends.push(ranked.len());
    let mut sums = vec![0.0];
    for pair in ends.windows(2) {
        let sum: f64 = (pair[0]..pair[1]).map(of).sum();
        sums.push(sums[sums.len() - 1] + sum);
    }
    let loss = |from: usize, to: usize| {
        let rows = (ends[to] - ends[from]) as f64;
        rows * ((sums[to] - sums[from]) / rows).max(f64::MIN_POSITIVE).ln()
    };
    let cuts = best_cuts(ends.len() - 1, loss);
    (cuts.len() > 2).then(|| {
        cuts.windows(2)
            .map(|pair| ends[pair[1]] - ends[pair[0]])
            .collect()
    })
}

/// Returns the boundaries of at most [`MAX_CLASSES`] classes of `0..last` with the least total
/// loss, including 0 and `last`.
fn best_cuts(last: usize, loss: impl Fn(usize, usize) -> f64) -> Vec<usize> {
    // The loss, and the start of the last class.
    let mut best: Vec<Vec<(f64, usize)>> =
        vec![(0..=last).map(|end| (loss(0, end.max(1)), 0)).collect()];
    for classes in 1..MAX_CLASSES {
        let before = &best[classes - 1];
        let of = |end: usize| {
            let starts = (classes..end).map(|start| (before[start].0 + loss(start, end), start));
            let least = starts.min_by(|a, b| a.0.total_cmp(&b.0));
            least.unwrap_or((f64::INFINITY, 0))
        };
        let next = (0..=last).map(of).collect();
        best.push(next);
    }
    let classes = (0..MAX_CLASSES).min_by(|&a, &b| best[a][last].0.total_cmp(&best[b][last].0));
    let (mut cuts, mut end) = (vec![last], last);
    for class in (1..=classes.unwrap_or(0)).rev() {
        end = best[class][end].1;
        cuts.push(end);
    }
    cuts.push(0);
    cuts.reverse();
    cuts
}

#[cfg(test)]
mod tests;
