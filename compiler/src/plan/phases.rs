//! The phases of a model's depth, found in the variance of its residual stream: layers that mix,
//! layers that compress, layers that refine.

use std::fmt;

use thiserror::Error;

/// A layer compresses where its smoothed variance is at most this many times the smallest.
pub const COMPRESS_BELOW: f64 = 1.5;

/// A profile whose largest value is less than this many times the smallest has no phases.
pub const FLAT_BELOW: f64 = 1.15;

/// What a layer does.
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
    /// The name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Mix => "mix",
            Phase::Compress => "compress",
            Phase::Refine => "refine",
        }
    }
}

/// Why a model shows no phases.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NoPhases {
    /// Nothing was measured.
    NoCalibration,
    /// A single layer.
    OneLayer,
    /// The smoothed profile is flat.
    Flat {
        /// Largest over smallest value.
        ratio: f64,
    },
}

impl fmt::Display for NoPhases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoPhases::NoCalibration => f.write_str("no calibration"),
            NoPhases::OneLayer => f.write_str("the model has one layer"),
            NoPhases::Flat { ratio } => write!(
                f,
                "the profile is flat: its largest value is {ratio:.3} times the smallest, phases begin at {FLAT_BELOW}"
            ),
        }
    }
}

/// A variance that is none.
#[derive(Clone, Debug, Error, PartialEq)]
#[error(
    "variance of layer {layer}: expected a finite number of at least 0, found {found}; calibrate again"
)]
pub struct ProfileError {
    /// The first such layer.
    pub layer: usize,
    /// Its value.
    pub found: f64,
}

/// What a profile shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Phases {
    /// The profile after smoothing; empty without calibration.
    pub smoothed: Vec<f64>,
    /// The phase of every layer, or why there is none.
    pub phases: Result<Vec<Phase>, NoPhases>,
}

impl Phases {
    /// Finds the phases of a profile `σ²_ℓ`, one value per layer; `None` where nothing was measured.
    ///
    /// A moving average over three layers, the outermost repeated at the edges, takes the noise of
    /// single layers away. The valley is the contiguous run around the first smallest value that
    /// stays within [`COMPRESS_BELOW`] of it. This is the rule of the MCR phase detection.
    ///
    /// # Errors
    /// [`ProfileError`] where a value is negative, infinite or not a number.
    pub fn detect(profile: Option<&[f64]>) -> Result<Phases, ProfileError> {
        let Some(profile) = profile.filter(|p| !p.is_empty()) else {
            return Ok(Phases {
                smoothed: Vec::new(),
                phases: Err(NoPhases::NoCalibration),
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
        // Divided before they are added, so that no sum of finite values overflows.
        let smoothed: Vec<f64> = (0..=last)
            .map(|i| {
                let taps = [i.saturating_sub(1), i, (i + 1).min(last)];
                taps.into_iter().map(|j| profile[j] / 3.0).sum()
            })
            .collect();
        let phases = valley(&smoothed);
        Ok(Phases { smoothed, phases })
    }

    /// Whether there are phases.
    pub fn valid(&self) -> bool {
        self.phases.is_ok()
    }
}

fn valley(smoothed: &[f64]) -> Result<Vec<Phase>, NoPhases> {
    if smoothed.len() == 1 {
        return Err(NoPhases::OneLayer);
    }
    let (mut lowest, mut largest) = (0, 0.0_f64);
    for (layer, &value) in smoothed.iter().enumerate() {
        if value < smoothed[lowest] {
            lowest = layer;
        }
        largest = largest.max(value);
    }
    let smallest = smoothed[lowest];
    // Not a quotient: the smallest may be zero.
    if largest < FLAT_BELOW * smallest || largest == 0.0 {
        let ratio = if largest == 0.0 {
            1.0
        } else {
            largest / smallest
        };
        return Err(NoPhases::Flat { ratio });
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

    fn found(profile: &[f64]) -> String {
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
    fn a_valley_parts_mixing_from_refining() {
        // Smoothed: 7.33, 5, 2.33, 1.33, 1, 3.67, 6.33, 9.
        assert_eq!(found(&[9.0, 4.0, 2.0, 1.0, 1.0, 1.0, 9.0, 9.0]), "mmmccrrr");
    }

    #[test]
    fn of_two_valleys_the_deeper_counts_and_of_equal_ones_the_first() {
        let deeper = [8.0, 8.0, 3.0, 3.0, 3.0, 8.0, 8.0, 2.0, 2.0, 2.0, 8.0, 8.0];
        // The first valley is within 1.5 of the smallest too, but apart from it.
        assert_eq!(found(&deeper), "mmmmmmmmcrrr");
        let equal = [8.0, 8.0, 2.0, 2.0, 2.0, 8.0, 8.0, 2.0, 2.0, 2.0, 8.0, 8.0];
        assert_eq!(found(&equal), "mmmcrrrrrrrr");
    }

    #[test]
    fn a_valley_at_an_edge_leaves_a_phase_out() {
        assert_eq!(found(&[1.0, 1.0, 1.0, 9.0, 9.0]), "ccrrr");
        assert_eq!(found(&[9.0, 9.0, 1.0, 1.0, 1.0]), "mmmcc");
        assert_eq!(found(&[0.0, 0.0, 0.0, 5.0]), "ccrr");
    }

    #[test]
    fn the_thresholds_are_where_they_are_said_to_be() {
        let flat = |top: f64| Phases::detect(Some(&[1.0, 1.0, 1.0, top, top, top])).unwrap();
        assert!(flat(1.149).phases.is_err() && flat(1.151).valid());
        assert_eq!(found(&[1.0, 1.0, 1.0, 1.0, 1.499, 1.499, 1.499]), "ccccccc");
        assert_eq!(found(&[1.0, 1.0, 1.0, 1.0, 1.501, 1.501, 1.501]), "cccccrr");
    }

    #[test]
    fn without_phases_there_is_a_reason() {
        let reason = |profile| Phases::detect(profile).unwrap().phases.unwrap_err();
        assert_eq!(reason(None), NoPhases::NoCalibration);
        assert_eq!(reason(Some(&[][..])), NoPhases::NoCalibration);
        assert_eq!(reason(Some(&[2.0][..])), NoPhases::OneLayer);
        assert_eq!(reason(Some(&[0.0, 0.0][..])), NoPhases::Flat { ratio: 1.0 });
        assert_eq!(reason(Some(&[2.0, 2.0][..])), NoPhases::Flat { ratio: 1.0 });
        let text = reason(Some(&[3.0, 3.1, 3.0][..])).to_string();
        assert!(text.contains("flat"), "{text}");
    }

    #[test]
    fn what_is_no_variance_is_refused_by_layer() {
        for wrong in [f64::NAN, f64::INFINITY, -1.0] {
            let error = Phases::detect(Some(&[1.0, 2.0, wrong, wrong])).unwrap_err();
            assert_eq!(error.layer, 2);
            assert!(error.to_string().contains("layer 2"));
        }
        let largest = Phases::detect(Some(&[1e308, 1e308, 1.0, 1.0, 1.0])).unwrap();
        assert!(largest.smoothed.iter().all(|v| v.is_finite()));
    }
}
