//! Attention sinks: direction of the first position, outlier positions, tokens and channels.

use faer::Mat;
use htc_formats::block;
use htc_formats::model::{ActivationPoint, Role};
use htc_formats::source::ModelFile;
use htc_formats::vocab::Vocabulary;

use super::record::{Channel, SinkLayer, SinkPosition, SinkToken, SinkTokens, Sinks, rounded};
use crate::calibrate::StoredLayer;
use crate::calibrate::windows::Windows;
use crate::math::{FactoriseError, Host, largest_moments, symmetric_eigen};
use crate::unit::UnitError;

/// Outlier threshold, in standard deviations above the mean.
const DEVIATIONS: f64 = 3.0;

const POSITIONS: usize = 16;

const CHARACTERS: usize = 64;

const CHANNELS: usize = 8;

/// Returns the rule, without layers.
pub(super) fn empty() -> Sinks {
    Sinks {
        deviations: DEVIATIONS,
        layers: Vec::new(),
    }
}

/// Returns the sink of a layer, without coverage, and its direction `ŝ`, if any.
pub(super) fn layer_sink(
    layer: usize,
    stored: &StoredLayer,
) -> Result<(SinkLayer, Option<Vec<f64>>), FactoriseError> {
    let first = stored.sink();
    let order = first.mean.len();
    let second = first.lower();
    let matrix = Mat::from_fn(order, order, |i, j| second[i * order + j]);
    let trace: f64 = first.diagonal().iter().sum();
    let found = symmetric_eigen(matrix, 1, &Host)?;
    let direction = (trace > 0.0).then(|| found.vectors.col(0).iter().copied().collect());
    let share = if trace > 0.0 {
        (found.values[0] / trace).min(1.0)
    } else {
        0.0
    };
    let outliers = outliers(&stored.norms());
    let diagonal = stored.site(ActivationPoint::Attention).diagonal();
    let sink = SinkLayer {
        layer,
        share: rounded(share),
        norm_mean: rounded(outliers.mean),
        norm_deviation: rounded(outliers.deviation),
        positions_found: outliers.positions.len(),
        positions: outliers.positions.into_iter().take(POSITIONS).collect(),
        tokens: Some(tokens(&stored.token_norms(), stored.context())),
        coverage: Vec::new(),
        channels: channels(&diagonal)?,
    };
    Ok((sink, direction))
}

pub(super) fn attention_input_direction(
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

/// Returns the mean and the standard deviation, zero without values.
pub(super) fn mean_and_deviation<I: Iterator<Item = f64>>(values: impl Fn() -> I) -> (f64, f64) {
    let count = values().count().max(1) as f64;
    let mean = values().sum::<f64>() / count;
    let squares: f64 = values().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / count).sqrt())
}

struct Outliers {
    mean: f64,
    deviation: f64,
    positions: Vec<SinkPosition>,
}

/// `‖h‖ > μ + 3 σ` is possible only with more than ten positions.
fn outliers(norms: &[f64]) -> Outliers {
    let (mean, deviation) = mean_and_deviation(|| norms.iter().copied());
    let positions = norms.iter().enumerate();
    let positions = positions
        .filter(|(_, norm)| **norm > mean + DEVIATIONS * deviation)
        .map(|(position, &norm)| SinkPosition {
            position,
            norm: rounded(norm),
            text: None,
        });
    Outliers {
        mean,
        deviation,
        positions: positions.collect(),
    }
}

/// Finds outliers in `norms [windows, context]`, without first positions, which would hide others.
fn tokens(norms: &[f32], context: usize) -> SinkTokens {
    let places = || {
        let norms = norms.iter().map(|&norm| f64::from(norm)).enumerate();
        norms.filter(|(place, _)| place % context.max(1) != 0)
    };
    let (mean, deviation) = mean_and_deviation(|| places().map(|(_, norm)| norm));
    let limit = mean + DEVIATIONS * deviation;
    let mut outliers: Vec<(usize, f64)> = places().filter(|(_, norm)| *norm > limit).collect();
    outliers.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    let listed = outliers.iter().take(POSITIONS);
    SinkTokens {
        norm_mean: rounded(mean),
        norm_deviation: rounded(deviation),
        found: outliers.len(),
        largest: listed
            .map(|&(place, norm)| SinkToken {
                window: place / context.max(1),
                position: place % context.max(1),
                norm: rounded(norm),
                text: None,
            })
            .collect(),
    }
}

pub(super) fn name_tokens(layer: &mut SinkLayer, windows: &Windows, vocabulary: &Vocabulary) {
    let text = |id: u32| Some(shortened(vocabulary.tokens.get(id as usize)?));
    for found in &mut layer.positions {
        let mut ids = windows.iter().map(|window| window.get(found.position));
        let first = ids.next().flatten();
        let same = first.filter(|id| ids.all(|other| other == Some(id)));
        found.text = same.and_then(|&id| text(id));
    }
    let tokens = layer.tokens.iter_mut();
    for found in tokens.flat_map(|tokens| &mut tokens.largest) {
        let window = windows.iter().nth(found.window);
        let id = window.and_then(|window| window.get(found.position));
        found.text = id.and_then(|&id| text(id));
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(CHARACTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn channels(diagonal: &[f64]) -> Result<Vec<Channel>, FactoriseError> {
    let total: f64 = diagonal.iter().sum();
    let mut largest = largest_moments(diagonal, CHANNELS.min(diagonal.len()))?;
    largest.sort_by(|&i, &j| diagonal[j].total_cmp(&diagonal[i]));
    let channel = |channel: usize| Channel {
        channel,
        share: if total > 0.0 {
            rounded(diagonal[channel] / total)
        } else {
            0.0
        },
    };
    Ok(largest.into_iter().map(channel).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_beyond_three_deviations_are_outliers() {
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
    fn outlier_tokens_are_found_at_any_position() {
        let (context, windows) = (16, 8);
        let mut norms = vec![10.0f32; context * windows];
        for first in norms.iter_mut().step_by(context) {
            *first = 4000.0;
        }
        norms[3 * context + 5] = 40.0;
        norms[6 * context + 15] = 90.0;
        let found = tokens(&norms, context);
        let places: Vec<_> = found
            .largest
            .iter()
            .map(|t| (t.window, t.position))
            .collect();
        assert_eq!((found.found, places), (2, vec![(6, 15), (3, 5)]));
        assert_eq!(found.largest[0].norm, 90.0);
        assert!((found.norm_mean - (118.0 * 10.0 + 130.0) / 120.0).abs() < 1e-4);
        let by_position = (0..context).map(|position| {
            let of = norms.iter().skip(position).step_by(context);
            of.map(|&norm| f64::from(norm)).sum::<f64>() / windows as f64
        });
        let by_position = outliers(&by_position.collect::<Vec<_>>());
        assert!(by_position.positions.iter().all(|p| p.position == 0));
        let even = tokens(&[3.0; 64], 16);
        assert_eq!((even.found, even.norm_deviation), (0, 0.0));
        assert_eq!(tokens(&[], 16).found, 0);
        let many: Vec<f32> = (0..4096)
            .map(|i| if i % 100 == 50 { 9.0 + i as f32 } else { 1.0 })
            .collect();
        let found = tokens(&many, 64);
        assert!(found.largest.len() == 16 && found.found > 16);
    }

    #[test]
    fn channels_are_sorted_by_energy() {
        let found = channels(&[1.0, 5.0, 0.0, 5.0, 9.0]).unwrap();
        let order: Vec<usize> = found.iter().map(|c| c.channel).collect();
        assert_eq!(order, [4, 1, 3, 0, 2]);
        assert_eq!(found[0].share, 0.45);
        assert_eq!(channels(&[0.0; 20]).unwrap().len(), 8);
    }
}
