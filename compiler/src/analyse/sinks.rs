//! Attention sinks: direction of the first position, outlier positions, tokens and channels.

use faer::Mat;
use htc_formats::model::{ActivationPoint, Role};
use htc_formats::source::ModelFile;
use htc_formats::vocab::Vocabulary;

use super::record::{Channel, SinkLayer, SinkPosition, SinkToken, SinkTokens, Sinks, rounded};
use super::sample::mean_and_deviation;
use crate::calibrate::StoredLayer;
use crate::calibrate::windows::Windows;
use crate::math::{FactoriseError, Host, largest_moments, symmetric_eigen};
use crate::unit::MakeError;

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
) -> Result<Vec<f64>, MakeError> {
    let Some(norm) = source.tensor(Role::AttentionNorm { layer }) else {
        return Ok(direction.to_vec());
    };
    let mut weights = vec![0.0; direction.len()];
    source
        .decode_rows(norm, 0..1, &mut weights)
        .map_err(|error| MakeError::of_tensor(&norm.name, error))?;
    let channels = direction.iter().zip(&weights);
    Ok(channels.map(|(s, &w)| s * f64::from(w)).collect())
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
mod tests;
