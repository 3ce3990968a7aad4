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
mod tests {
    use super::*;
    use crate::math::Host;

    fn sink_of(curve: &[f64]) -> DepthSink {
        depth_sink(curve, 3, Vec::new())
    }

    #[test]
    fn plateau_tolerance_follows_the_slope_of_the_curve() {
        let found = sink_of(&[0.1, 0.5, 0.7, 0.9, 0.9491, 0.9501]);
        assert_eq!((found.layer, found.two_thirds), (Some(3), 4));
        assert_eq!((found.agrees, found.tolerance), (Some(true), 0.17002));
        assert_eq!(found.relative, Some(0.5));
        let early = sink_of(&[0.95; 12]);
        assert_eq!((early.layer, early.agrees), (Some(0), Some(false)));
        assert_eq!(early.tolerance, 1e-3);
        let bent = [0.0, 0.5, 0.81, 0.9, 0.95, 1.0];
        for (scale, layer) in [(1.0, 2), (0.1, 2), (0.01, 2), (0.001, 0)] {
            let curve = bent.map(|value| scale * value);
            assert_eq!(sink_of(&curve).layer, Some(layer), "{scale}");
        }
        let measured = [
            0.894769, 0.904954, 0.917041, 0.927848, 0.933866, 0.943072, 0.947617, 0.950888,
        ];
        assert_eq!(sink_of(&measured).layer, Some(5));
    }

    #[test]
    fn rising_curve_has_no_depth_sink() {
        for curve in [
            (0..8).map(|i| f64::from(i) / 10.0).collect::<Vec<_>>(),
            (0..8).map(|i| f64::from(i * i) / 50.0).collect(),
            vec![0.0, 0.5],
            vec![0.0, 0.5, 0.5, 0.5, 0.5, 0.9],
        ] {
            let found = sink_of(&curve);
            let nothing = (found.layer, found.agrees, found.relative);
            assert_eq!(nothing, (None, None, None), "{curve:?}");
            assert!(found.reason.unwrap().contains("no plateau"));
        }
        let one = sink_of(&[0.95]);
        assert!(one.layer.is_none() && one.reason.unwrap().contains("one layer"));
    }

    #[test]
    fn weights_are_one_over_the_trace() {
        let moment = diagonal(&[3.0, 1.0, 0.0]);
        assert_eq!(weight(&moment), 0.25);
        assert_eq!(weight(&diagonal(&[0.0; 3])), 0.0);
        let sum = cumulated([moment].into_iter()).unwrap();
        assert_eq!((sum[(0, 0)], sum[(1, 1)]), (0.75, 0.25));
    }

    #[test]
    fn two_thirds_match_the_literature() {
        for (layers, expected) in [(32, 21), (26, 17), (30, 20), (1, 1), (8, 5)] {
            assert_eq!(sink_of(&vec![0.0; layers]).two_thirds, expected);
        }
    }

    fn diagonal(variances: &[f64]) -> StoredMoment {
        let n = variances.len();
        let mut second = Vec::new();
        for (row, &variance) in variances.iter().enumerate() {
            second.extend((0..row).map(|_| 0.0));
            second.push(variance as f32);
        }
        StoredMoment {
            count: 100,
            mean: vec![0.0; n],
            second,
        }
    }

    #[test]
    fn curve_is_flat_without_new_directions() {
        let layer = |layer: usize| {
            let mut variances = vec![1e-5; 12];
            variances[..=layer.min(3)].fill(1.0);
            let scale = 10f64.powi(layer as i32);
            diagonal(&variances.map_scaled(scale))
        };
        let layers: Vec<StoredMoment> = (0..7).map(layer).collect();
        let up_to = |last: usize| cumulated(layers[..=last].iter().cloned()).unwrap();
        let whole = CumulatedCovariance::new(up_to(6), &Host).unwrap();
        assert_eq!(whole.rank, 4);
        let curve: Vec<f64> = (0..7)
            .map(|l| whole.explained(up_to(l), &Host).unwrap())
            .collect();
        assert!((curve[6] - curve[2] - 1.0 / 7.0).abs() < 1e-3, "{curve:?}");
        assert!(curve.windows(2).all(|pair| pair[0] <= pair[1] + 1e-12));
        assert_eq!(depth_sink(&curve, whole.rank, Vec::new()).layer, Some(3));
    }

    trait Scaled {
        fn map_scaled(&self, by: f64) -> Vec<f64>;
    }

    impl Scaled for Vec<f64> {
        fn map_scaled(&self, by: f64) -> Vec<f64> {
            self.iter().map(|v| v * by).collect()
        }
    }

    #[test]
    fn constant_stream_does_not_divide_by_zero() {
        let zero = || cumulated([diagonal(&[0.0; 3])].into_iter()).unwrap();
        let whole = CumulatedCovariance::new(zero(), &Host).unwrap();
        assert_eq!(whole.explained(zero(), &Host).unwrap(), 1.0);
        assert!(cumulated(std::iter::empty()).is_none());
    }
}
