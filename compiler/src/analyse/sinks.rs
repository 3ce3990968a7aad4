//! Attention sinks: the direction of the first position, positions and channels that stand out.

use faer::Mat;
use htc_formats::block;
use htc_formats::model::{Role, Site};
use htc_formats::source::ModelFile;

use super::record::{Channel, SinkLayer, SinkPosition, rounded};
use crate::calibrate::StoredLayer;
use crate::math::{FactoriseError, largest_moments, symmetric_eigen};
use crate::unit::UnitError;

/// A position stands out where its norm is more than this many standard deviations above the mean.
pub(super) const DEVIATIONS: f64 = 3.0;

/// Positions that are listed.
const POSITIONS: usize = 16;

/// Channels that are listed.
const CHANNELS: usize = 8;

/// The sink of a layer, and its direction `ŝ`, absent where the stream is zero at the first position.
/// How much of the direction a basis covers is told later.
///
/// # Errors
/// Statistics that no activations have.
pub(super) fn of_layer(
    layer: usize,
    stored: &StoredLayer,
) -> Result<(SinkLayer, Option<Vec<f64>>), FactoriseError> {
    let first = stored.sink();
    let order = first.mean.len();
    let second = first.lower();
    let matrix = Mat::from_fn(order, order, |i, j| second[i * order + j]);
    let trace: f64 = first.diagonal().iter().sum();
    let found = symmetric_eigen(matrix, 1)?;
    let direction = (trace > 0.0).then(|| found.vectors.col(0).iter().copied().collect());
    let share = match trace > 0.0 {
        true => (found.values[0] / trace).min(1.0),
        false => 0.0,
    };
    let outliers = outliers(&stored.norms());
    let diagonal = stored.site(Site::Attention).diagonal();
    let sink = SinkLayer {
        layer,
        share: rounded(share),
        norm_mean: rounded(outliers.mean),
        norm_deviation: rounded(outliers.deviation),
        positions_found: outliers.positions.len(),
        positions: outliers.positions.into_iter().take(POSITIONS).collect(),
        coverage: Vec::new(),
        channels: channels(&diagonal)?,
    };
    Ok((sink, direction))
}

/// The direction that the attention of a layer reads where the stream in front of it has this one: a
/// norm scales a vector as a whole, and its channels by its weights.
///
/// # Errors
/// Weights that do not decode.
pub(super) fn as_read(
    source: &ModelFile,
    layer: usize,
    direction: &[f64],
) -> Result<Vec<f64>, UnitError> {
    let Some(norm) = source.tensor(Role::AttentionNorm { layer }) else {
        return Ok(direction.to_vec());
    };
    let mut weights = vec![0.0; direction.len()];
    block::decode(norm.dtype, source.bytes(norm), &mut weights).map_err(|source| {
        UnitError::Block {
            tensor: norm.name.clone(),
            source,
        }
    })?;
    let channels = direction.iter().zip(&weights);
    Ok(channels.map(|(s, &w)| s * f64::from(w)).collect())
}

/// Norms that stand out.
struct Outliers {
    mean: f64,
    deviation: f64,
    positions: Vec<SinkPosition>,
}

/// Positions with `‖h‖ > μ + 3 σ` over the positions of a window. Of ten positions or fewer none can
/// be that far from the mean.
fn outliers(norms: &[f64]) -> Outliers {
    let count = norms.len().max(1) as f64;
    let mean = norms.iter().sum::<f64>() / count;
    let squares: f64 = norms.iter().map(|norm| (norm - mean).powi(2)).sum();
    let deviation = (squares / count).sqrt();
    let positions = norms.iter().enumerate();
    let positions = positions
        .filter(|(_, norm)| **norm > mean + DEVIATIONS * deviation)
        .map(|(position, &norm)| SinkPosition {
            position,
            norm: rounded(norm),
        });
    Outliers {
        mean,
        deviation,
        positions: positions.collect(),
    }
}

/// The channels of largest energy, the largest first.
fn channels(diagonal: &[f64]) -> Result<Vec<Channel>, FactoriseError> {
    let total: f64 = diagonal.iter().sum();
    let mut largest = largest_moments(diagonal, CHANNELS.min(diagonal.len()))?;
    // Stable: of equal ones the lower stays first.
    largest.sort_by(|&i, &j| diagonal[j].total_cmp(&diagonal[i]));
    let channel = |channel: usize| Channel {
        channel,
        share: match total > 0.0 {
            true => rounded(diagonal[channel] / total),
            false => 0.0,
        },
    };
    Ok(largest.into_iter().map(channel).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_stands_out_beyond_three_deviations() {
        // One of n equal norms but for one: (n − 1)^½ deviations above the mean.
        let norms = |n: usize| {
            let mut norms = vec![1.0; n];
            norms[2] = 5.0;
            norms
        };
        assert!(outliers(&norms(10)).positions.is_empty());
        let found = outliers(&norms(11));
        assert_eq!(found.positions.len(), 1);
        assert_eq!(
            (found.positions[0].position, found.positions[0].norm),
            (2, 5.0)
        );
        assert!((found.mean - 15.0 / 11.0).abs() < 1e-12);
        assert!(outliers(&[3.0; 40]).positions.is_empty() && outliers(&[]).positions.is_empty());
    }

    #[test]
    fn channels_come_in_the_order_of_their_energy() {
        let found = channels(&[1.0, 5.0, 0.0, 5.0, 9.0]).unwrap();
        let order: Vec<usize> = found.iter().map(|c| c.channel).collect();
        assert_eq!(order, [4, 1, 3, 0, 2]);
        assert_eq!(found[0].share, 0.45);
        assert_eq!(channels(&[0.0; 20]).unwrap().len(), 8);
    }
}
