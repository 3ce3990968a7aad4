//! Depth phases of a model, by the variance of its residual stream: mix, compress, refine.

use std::fmt;

use thiserror::Error;

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

/// Error returned when a variance is negative or not finite.
#[derive(Clone, Debug, Error, PartialEq)]
#[error(
    "variance of layer {layer}: expected a finite number of at least 0, found {found}; calibrate again"
)]
pub struct ProfileError {
    /// First such layer.
    pub layer: usize,
    /// Value of the variance.
    pub found: f64,
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
    /// Detects the phases of a profile `σ²_ℓ` with one value per layer.
    ///
    /// The profile is smoothed by a moving average over three layers with repeated edges. The
    /// valley is the contiguous run around the first smallest value that stays within
    /// [`COMPRESS_BELOW`] of it (MCR).
    pub fn detect(profile: Option<&[f64]>) -> Result<Phases, ProfileError> {
        let Some(profile) = profile.filter(|p| !p.is_empty()) else {
            return Ok(Phases {
                smoothed: Vec::new(),
                phases: Err(NoPhasesReason::NoCalibration),
            });
        };
        let wrong = |v: &f64| !(v.is_finite() && *v >= 0.0);
        if let Some(layer) = profile.iter().position(wrong) {
            return Err(ProfileError {
                layer,
                found: profile[layer],
            });
        }
        let last = profile.len() - 1;
        // Avoids overflow.
        let smoothed: Vec<f64> = (0..=last)
            .map(|i| {
                let taps = [i.saturating_sub(1), i, (i + 1).min(last)];
                taps.into_iter().map(|j| profile[j] / 3.0).sum()
            })
            .collect();
        let phases = find_valley(&smoothed);
        Ok(Phases { smoothed, phases })
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
mod tests {
    use super::*;

    fn phase_initials(profile: &[f64]) -> String {
        let phases = Phases::detect(Some(profile)).unwrap().phases.unwrap();
        phases.iter().map(|p| &p.name()[..1]).collect()
    }

    #[test]
    fn smoothing_repeats_the_edges() {
        let phases = Phases::detect(Some(&[3.0, 6.0, 0.0, 9.0])).unwrap();
        for (found, expected) in phases.smoothed.iter().zip([4.0, 3.0, 5.0, 6.0]) {
            assert!((found - expected).abs() < 1e-12, "{phases:?}");
        }
    }

    #[test]
    fn valley_separates_mix_from_refine() {
        // Smoothed: 7.33, 5, 2.33, 1.33, 1, 3.67, 6.33, 9.
        assert_eq!(
            phase_initials(&[9.0, 4.0, 2.0, 1.0, 1.0, 1.0, 9.0, 9.0]),
            "mmmccrrr"
        );
    }

    #[test]
    fn deepest_valley_wins_and_ties_take_the_first() {
        let deeper = [8.0, 8.0, 3.0, 3.0, 3.0, 8.0, 8.0, 2.0, 2.0, 2.0, 8.0, 8.0];
        // The first valley is also within 1.5 of the smallest value, but not contiguous.
        assert_eq!(phase_initials(&deeper), "mmmmmmmmcrrr");
        let equal = [8.0, 8.0, 2.0, 2.0, 2.0, 8.0, 8.0, 2.0, 2.0, 2.0, 8.0, 8.0];
        assert_eq!(phase_initials(&equal), "mmmcrrrrrrrr");
    }

    #[test]
    fn valley_at_an_edge_omits_a_phase() {
        assert_eq!(phase_initials(&[1.0, 1.0, 1.0, 9.0, 9.0]), "ccrrr");
        assert_eq!(phase_initials(&[9.0, 9.0, 1.0, 1.0, 1.0]), "mmmcc");
        assert_eq!(phase_initials(&[0.0, 0.0, 0.0, 5.0]), "ccrr");
    }

    #[test]
    fn thresholds_match_the_constants() {
        let flat = |top: f64| Phases::detect(Some(&[1.0, 1.0, 1.0, top, top, top])).unwrap();
        assert!(flat(1.149).phases.is_err() && flat(1.151).phases.is_ok());
        assert_eq!(
            phase_initials(&[1.0, 1.0, 1.0, 1.0, 1.499, 1.499, 1.499]),
            "ccccccc"
        );
        assert_eq!(
            phase_initials(&[1.0, 1.0, 1.0, 1.0, 1.501, 1.501, 1.501]),
            "cccccrr"
        );
    }

    #[test]
    fn absence_of_phases_has_a_reason() {
        let reason = |profile| Phases::detect(profile).unwrap().phases.unwrap_err();
        assert_eq!(reason(None), NoPhasesReason::NoCalibration);
        assert_eq!(reason(Some(&[][..])), NoPhasesReason::NoCalibration);
        assert_eq!(reason(Some(&[2.0][..])), NoPhasesReason::OneLayer);
        assert_eq!(
            reason(Some(&[0.0, 0.0][..])),
            NoPhasesReason::Flat { ratio: 1.0 }
        );
        assert_eq!(
            reason(Some(&[2.0, 2.0][..])),
            NoPhasesReason::Flat { ratio: 1.0 }
        );
        let text = reason(Some(&[3.0, 3.1, 3.0][..])).to_string();
        assert!(text.contains("flat"), "{text}");
    }

    #[test]
    fn invalid_variance_names_its_layer() {
        for wrong in [f64::NAN, f64::INFINITY, -1.0] {
            let error = Phases::detect(Some(&[1.0, 2.0, wrong, wrong])).unwrap_err();
            assert_eq!(error.layer, 2);
            assert!(error.to_string().contains("layer 2"));
        }
        let largest = Phases::detect(Some(&[1e308, 1e308, 1.0, 1.0, 1.0])).unwrap();
        assert!(largest.smoothed.iter().all(|v| v.is_finite()));
    }
}
