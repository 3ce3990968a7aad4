//! Depth phases of a model, by the variance of its residual stream: mix, compress, refine.

use std::fmt;

/// A layer compresses if its smoothed variance is at most this multiple of the smallest.
pub const COMPRESS_BELOW: f64 = 1.5;

/// A profile is flat, without phases, if its largest value is below this multiple of the smallest.
pub const FLAT_BELOW: f64 = 1.15;

/// Phase of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Before the valley.
    Mix,
    /// In the valley.
    Compress,
    /// After the valley.
    Refine,
}

impl Phase {
    /// Returns the name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Mix => "mix",
            Phase::Compress => "compress",
            Phase::Refine => "refine",
        }
    }
}

/// Reason for the absence of phases.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NoPhasesReason {
    /// No calibration.
    NoCalibration,
    /// A single layer.
    OneLayer,
    /// The smoothed profile is flat.
    Flat {
        /// Largest over smallest value.
        ratio: f64,
    },
}

impl fmt::Display for NoPhasesReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoPhasesReason::NoCalibration => f.write_str("no calibration"),
            NoPhasesReason::OneLayer => f.write_str("the model has one layer"),
            NoPhasesReason::Flat { ratio } => write!(
                f,
                "the profile is flat: its largest value is {ratio:.3} times the smallest, phases begin at {FLAT_BELOW}"
            ),
        }
    }
}

/// Returns the first layer of a profile whose variance is negative or not finite.
pub fn invalid_variance(profile: &[f64]) -> Option<usize> {
    let is_invalid = |variance: &f64| !(variance.is_finite() && *variance >= 0.0);
    profile.iter().position(is_invalid)
}

/// Phases of a variance profile.
#[derive(Clone, Debug, PartialEq)]
pub struct Phases {
    /// Smoothed profile; empty without calibration.
    pub smoothed: Vec<f64>,
    /// Phase of every layer, or the reason for their absence.
    pub phases: Result<Vec<Phase>, NoPhasesReason>,
}

impl Phases {
    /// Detects the phases of a [valid](invalid_variance) profile `σ²_ℓ` with one value per layer.
    ///
    /// The profile is smoothed by a moving average over three layers with repeated edges. The
    /// valley is the contiguous run around the first smallest value that stays within
    /// [`COMPRESS_BELOW`] of it (MCR).
    pub fn detect(profile: Option<&[f64]>) -> Phases {
        let Some(profile) = profile.filter(|p| !p.is_empty()) else {
            return Phases {
                smoothed: Vec::new(),
                phases: Err(NoPhasesReason::NoCalibration),
            };
        };
        let last = profile.len() - 1;
        // Avoids overflow.
        let smoothed: Vec<f64> = (0..=last)
            .map(|i| {
                let taps = [i.saturating_sub(1), i, (i + 1).min(last)];
                taps.into_iter().map(|j| profile[j] / 3.0).sum()
            })
            .collect();
        let phases = find_valley(&smoothed);
        Phases { smoothed, phases }
    }
}

fn find_valley(smoothed: &[f64]) -> Result<Vec<Phase>, NoPhasesReason> {
    if smoothed.len() == 1 {
        return Err(NoPhasesReason::OneLayer);
    }
    let (mut lowest, mut largest) = (0, 0.0_f64);
    for (layer, &value) in smoothed.iter().enumerate() {
        if value < smoothed[lowest] {
            lowest = layer;
        }
        largest = largest.max(value);
    }
    let smallest = smoothed[lowest];
    // The smallest may be zero.
    if largest < FLAT_BELOW * smallest || largest == 0.0 {
        let ratio = if largest == 0.0 {
            1.0
        } else {
            largest / smallest
        };
        return Err(NoPhasesReason::Flat { ratio });
    }
    let low = |layer: &usize| smoothed[*layer] <= COMPRESS_BELOW * smallest;
    let first = (0..=lowest).rev().take_while(low).last().unwrap_or(lowest);
    let last = (lowest..smoothed.len())
        .take_while(low)
        .last()
        .unwrap_or(lowest);
    let phase = |layer: usize| match layer {
        layer if layer < first => Phase::Mix,
        layer if layer > last => Phase::Refine,
        _ => Phase::Compress,
    };
    Ok((0..smoothed.len()).map(phase).collect())
}

#[cfg(test)]
mod tests;
