//! The depth sink: where the residual stream stops growing dimensionally.

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, Par};

use super::dimension::{ENERGY, components_for, covariance};
use super::record::{DepthSink, rounded};
use crate::calibrate::{Calibration, Moment};
use crate::math::{FactoriseError, symmetric_eigen, symmetric_eigenvalues};

/// How near the last value of the curve is the plateau.
const TOLERANCE: f64 = 1e-3;

/// The sum of the covariances of the stream behind the layers `0..=last`, each over its trace; the
/// lower triangle. A stream that does not vary adds nothing.
pub(super) fn cumulated(moments: impl Iterator<Item = Moment>) -> Option<Mat<f64>> {
    let mut sum: Option<Mat<f64>> = None;
    for moment in moments {
        let own = covariance(&moment);
        let n = own.nrows();
        let trace: f64 = (0..n).map(|i| own[(i, i)]).sum();
        let sum = sum.get_or_insert_with(|| Mat::zeros(n, n));
        if trace > 0.0 {
            *sum += own * faer::Scale(1.0 / trace);
        }
    }
    sum
}

/// What is compared with all layers.
pub(super) struct Whole {
    /// `A_{L−1}`, both triangles.
    matrix: Mat<f64>,
    trace: f64,
    /// The fewest eigenvectors with 95 % of the trace.
    pub(super) rank: usize,
}

impl Whole {
    /// # Errors
    /// Statistics that no activations have.
    pub(super) fn new(mut lower: Mat<f64>) -> Result<Whole, FactoriseError> {
        let n = lower.nrows();
        let rank = components_for(&symmetric_eigenvalues(lower.clone())?, ENERGY);
        for j in 0..n {
            for i in 0..j {
                lower[(i, j)] = lower[(j, i)];
            }
        }
        Ok(Whole {
            trace: (0..n).map(|i| lower[(i, i)]).sum(),
            matrix: lower,
            rank,
        })
    }

    /// The part of the whole that the leading eigenvectors of a part explain.
    ///
    /// # Errors
    /// Statistics that no activations have.
    pub(super) fn explained(&self, part: Mat<f64>) -> Result<f64, FactoriseError> {
        if self.trace <= 0.0 || self.rank == 0 {
            return Ok(1.0);
        }
        let vectors = symmetric_eigen(part, self.rank)?.vectors;
        let mut product = Mat::zeros(vectors.nrows(), vectors.ncols());
        matmul(
            product.as_mut(),
            Accum::Replace,
            self.matrix.as_ref(),
            vectors.as_ref(),
            1.0,
            Par::Seq,
        );
        let sum: f64 = product
            .col_iter()
            .zip(vectors.col_iter())
            .map(|(x, y)| x.iter().zip(y.iter()).map(|(x, y)| x * y).sum::<f64>())
            .sum();
        Ok(sum / self.trace)
    }
}

/// The streams behind the layers `0..=last` together.
pub(super) fn up_to(calibration: &Calibration, last: usize) -> Option<Mat<f64>> {
    let layers = calibration.layers.iter().take(last + 1);
    cumulated(layers.map(|layer| layer.stream()))
}

/// What a curve says.
pub(super) fn depth_sink(curve: &[f64], rank: usize) -> DepthSink {
    let layers = curve.len();
    let two_thirds = (2.0 * layers as f64 / 3.0).round() as usize;
    let (layer, reason) = match plateau(curve) {
        Ok(layer) => (Some(layer), None),
        Err(reason) => (None, Some(reason.to_owned())),
    };
    DepthSink {
        curve: curve.iter().copied().map(rounded).collect(),
        rank,
        tolerance: TOLERANCE,
        layer,
        relative: layer.map(|layer| rounded(layer as f64 / layers as f64)),
        reason,
        two_thirds,
        agrees: layer.map(|layer| layer.abs_diff(two_thirds) <= 1),
    }
}

/// The first layer whose value is within the tolerance of the last.
fn plateau(curve: &[f64]) -> Result<usize, &'static str> {
    let Some(&last) = curve.last().filter(|_| curve.len() > 1) else {
        return Err("the model has one layer");
    };
    let first = curve.iter().position(|value| last - value <= TOLERANCE);
    match first {
        Some(layer) if layer + 1 < curve.len() => Ok(layer),
        _ => Err("no plateau: the last layer still adds more than the tolerance"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plateau_begins_where_the_curve_is_near_its_end() {
        let found = depth_sink(&[0.1, 0.5, 0.9, 0.9489, 0.9491, 0.9501], 3);
        assert_eq!((found.layer, found.two_thirds), (Some(4), 4));
        assert_eq!(found.agrees, Some(true));
        assert_eq!(found.relative, Some(0.666667));
        let early = depth_sink(&[0.95; 12], 3);
        assert_eq!((early.layer, early.agrees), (Some(0), Some(false)));
    }

    #[test]
    fn a_curve_that_rises_to_its_end_has_none() {
        let rising: Vec<f64> = (0..8).map(|i| f64::from(i) / 10.0).collect();
        let found = depth_sink(&rising, 1);
        assert_eq!(
            (found.layer, found.agrees, found.relative),
            (None, None, None)
        );
        assert!(found.reason.unwrap().contains("no plateau"));
        let one = depth_sink(&[0.95], 1);
        assert!(one.layer.is_none() && one.reason.unwrap().contains("one layer"));
    }

    #[test]
    fn two_thirds_are_those_of_the_literature() {
        for (layers, expected) in [(32, 21), (26, 17), (30, 20), (1, 1), (8, 5)] {
            assert_eq!(depth_sink(&vec![0.0; layers], 1).two_thirds, expected);
        }
    }

    /// A stream of zero mean with these variances.
    fn diagonal(variances: &[f64]) -> Moment {
        let n = variances.len();
        let mut second = Vec::new();
        for (row, &variance) in variances.iter().enumerate() {
            second.extend((0..row).map(|_| 0.0));
            second.push(variance as f32);
        }
        Moment {
            count: 100,
            mean: vec![0.0; n],
            second,
        }
    }

    /// Layers that use one direction more each, up to the fourth; the scale of a layer does not matter.
    #[test]
    fn the_curve_stands_still_when_no_direction_is_new() {
        let layer = |layer: usize| {
            let mut variances = vec![1e-5; 12];
            variances[..=layer.min(3)].fill(1.0);
            let scale = 10f64.powi(layer as i32);
            diagonal(&variances.map_scaled(scale))
        };
        let layers: Vec<Moment> = (0..7).map(layer).collect();
        let up_to = |last: usize| cumulated(layers[..=last].iter().cloned()).unwrap();
        let whole = Whole::new(up_to(6)).unwrap();
        assert_eq!(whole.rank, 4);
        let curve: Vec<f64> = (0..7).map(|l| whole.explained(up_to(l)).unwrap()).collect();
        // Direction 3 holds a quarter of each of the last four layers: 1/7 of the whole.
        assert!((curve[6] - curve[2] - 1.0 / 7.0).abs() < 1e-3, "{curve:?}");
        assert!(curve.windows(2).all(|pair| pair[0] <= pair[1] + 1e-12));
        assert_eq!(depth_sink(&curve, whole.rank).layer, Some(3));
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
    fn a_stream_that_does_not_vary_is_no_division_by_zero() {
        let zero = || cumulated([diagonal(&[0.0; 3])].into_iter()).unwrap();
        let whole = Whole::new(zero()).unwrap();
        assert_eq!(whole.explained(zero()).unwrap(), 1.0);
        assert!(cumulated(std::iter::empty()).is_none());
    }
}
