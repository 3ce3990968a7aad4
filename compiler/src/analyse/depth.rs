//! Depth sink: the layer after which the residual stream gains no dimensions.

use faer::{Accum, Mat};

use super::dimension::{ENERGY, components_for, covariance};
use super::record::{DepthSink, rounded};
use crate::calibrate::{Calibration, StoredMoment};
use crate::math::{Algebra, FactoriseError, symmetric_eigen, symmetric_eigenvalues};

const TOLERANCE: f64 = 1e-3;

/// Maximum mean step on a plateau, relative to the mean step of the curve.
const MAX_PLATEAU_STEP: f64 = 0.5;

/// Sums the covariances of the stream after each layer, each over its trace; lower triangle.
pub(super) fn cumulated(moments: impl Iterator<Item = StoredMoment>) -> Option<Mat<f64>> {
    let mut sum: Option<Mat<f64>> = None;
    for moment in moments {
        let own = covariance(&moment);
        let n = own.nrows();
        let sum = sum.get_or_insert_with(|| Mat::zeros(n, n));
        *sum += own * faer::Scale(weight(&moment));
    }
    sum
}

/// Returns the weight of a layer's covariance: 1 / trace, or zero for a constant stream.
pub(super) fn weight(moment: &StoredMoment) -> f64 {
    let trace = moment.variance() * moment.mean.len() as f64;
    if trace > 0.0 { 1.0 / trace } else { 0.0 }
}

pub(super) struct CumulatedCovariance {
    matrix: Mat<f64>,
    trace: f64,
    /// Fewest eigenvectors with 95 % of the trace.
    pub(super) rank: usize,
}

impl CumulatedCovariance {
    pub(super) fn new(
        mut lower: Mat<f64>,
        algebra: &dyn Algebra,
    ) -> Result<CumulatedCovariance, FactoriseError> {
        let n = lower.nrows();
        let rank = components_for(&symmetric_eigenvalues(lower.clone(), algebra)?, ENERGY);
        for j in 0..n {
            for i in 0..j {
                lower[(i, j)] = lower[(j, i)];
            }
        }
        Ok(CumulatedCovariance {
            trace: (0..n).map(|i| lower[(i, i)]).sum(),
            matrix: lower,
            rank,
        })
    }

    pub(super) fn explained(
        &self,
        part: Mat<f64>,
        algebra: &dyn Algebra,
    ) -> Result<f64, FactoriseError> {
        if self.trace <= 0.0 || self.rank == 0 {
            return Ok(1.0);
        }
        let vectors = symmetric_eigen(part, self.rank, algebra)?.vectors;
        let mut product = Mat::zeros(vectors.nrows(), vectors.ncols());
        algebra.multiply(
            product.as_mut(),
            Accum::Replace,
            self.matrix.as_ref(),
            vectors.as_ref(),
            1.0,
        )?;
        let sum: f64 = product
            .col_iter()
            .zip(vectors.col_iter())
            .map(|(x, y)| x.iter().zip(y.iter()).map(|(x, y)| x * y).sum::<f64>())
            .sum();
        Ok(sum / self.trace)
    }
}

pub(super) fn cumulated_up_to(calibration: &Calibration, last: usize) -> Option<Mat<f64>> {
    let layers = calibration.layers.iter().take(last + 1);
    cumulated(layers.map(|layer| layer.stream()))
}

/// `weights` are those of the layers.
pub(super) fn depth_sink(curve: &[f64], rank: usize, weights: Vec<f64>) -> DepthSink {
    let layers = curve.len();
    let two_thirds = (2.0 * layers as f64 / 3.0).round() as usize;
    let tolerance = mean_step(curve).max(TOLERANCE);
    let (layer, reason) = match plateau(curve, tolerance) {
        Ok(layer) => (Some(layer), None),
        Err(reason) => (None, Some(reason.to_owned())),
    };
    DepthSink {
        curve: curve.iter().copied().map(rounded).collect(),
        weights: weights.into_iter().map(rounded).collect(),
        rank,
        tolerance: rounded(tolerance),
        layer,
        relative: layer.map(|layer| rounded(layer as f64 / layers as f64)),
        reason,
        two_thirds,
        agrees: layer.map(|layer| layer.abs_diff(two_thirds) <= 1),
    }
}

fn mean_step(curve: &[f64]) -> f64 {
    match (curve.first(), curve.last()) {
        (Some(first), Some(last)) if curve.len() > 1 => (last - first) / (curve.len() - 1) as f64,
        _ => 0.0,
    }
}

/// The curve must be flat after the returned layer.
fn plateau(curve: &[f64], tolerance: f64) -> Result<usize, &'static str> {
    let Some(&last) = curve.last().filter(|_| curve.len() > 1) else {
        return Err("the model has one layer");
    };
    let flat = (MAX_PLATEAU_STEP * mean_step(curve)).max(TOLERANCE);
    let first = curve.iter().position(|value| last - value <= tolerance);
    match first {
        Some(layer) if layer + 1 < curve.len() && mean_step(&curve[layer..]) <= flat => Ok(layer),
        _ => Err("no plateau: the curve goes on rising to the last layer"),
    }
}

#[cfg(test)]
mod tests;
