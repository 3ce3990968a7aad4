//! The variance of the residual stream by depth, with and without the first positions.

use super::record::{PhaseProfiles, Profile, rounded};
use crate::calibrate::{Calibration, Moment};
use crate::plan::phases::{Phases, ProfileError};

/// # Errors
/// [`ProfileError`] where a variance is none.
pub(super) fn of(calibration: &Calibration) -> Result<PhaseProfiles, ProfileError> {
    let mut without = Vec::new();
    let mut with = Vec::new();
    for layer in &calibration.layers {
        let later = layer.stream();
        with.push(together(&layer.sink(), &later));
        without.push(later.variance());
    }
    Ok(PhaseProfiles {
        without_first: profile(&without)?,
        with_first: profile(&with)?,
    })
}

/// `E‖x − E[x]‖² / n` of two sets of vectors together.
fn together(first: &Moment, later: &Moment) -> f64 {
    let counts = [first.count as f64, later.count as f64];
    let total = (counts[0] + counts[1]).max(1.0);
    let mixed = |a: f64, b: f64| (counts[0] * a + counts[1] * b) / total;
    let means = first.mean.iter().zip(&later.mean);
    let squares: f64 = means.map(|(&a, &b)| mixed(a, b).powi(2)).sum();
    let energy = |moment: &Moment| moment.diagonal().iter().sum::<f64>();
    let energy = mixed(energy(first), energy(later));
    ((energy - squares) / first.mean.len().max(1) as f64).max(0.0)
}

fn profile(variance: &[f64]) -> Result<Profile, ProfileError> {
    let found = Phases::detect(Some(variance))?;
    let rounded = |values: &[f64]| values.iter().copied().map(rounded).collect();
    let (phases, reason) = match found.phases {
        Ok(phases) => {
            let names = phases.iter().map(|phase| phase.name().to_owned());
            (Some(names.collect()), None)
        }
        Err(reason) => (None, Some(reason.to_string())),
    };
    Ok(Profile {
        variance: rounded(variance),
        smoothed: rounded(&found.smoothed),
        phases,
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_of_both_kinds_have_one_variance() {
        // The numbers 10, 14 and 1, 2, 3 in the one channel, 0 in the other.
        let first = Moment {
            count: 2,
            mean: vec![12.0, 0.0],
            second: vec![148.0, 0.0, 0.0],
        };
        let later = Moment {
            count: 3,
            mean: vec![2.0, 0.0],
            second: vec![14.0 / 3.0, 0.0, 0.0],
        };
        // E[x²] = 62, E[x] = 6.
        assert!((together(&first, &later) - (62.0 - 36.0) / 2.0).abs() < 1e-5);
        assert!((later.variance() - 1.0 / 3.0).abs() < 1e-6);
    }

    #[test]
    fn a_profile_has_phases_or_a_reason() {
        let found = profile(&[9.0, 9.0, 1.0, 1.0, 1.0, 9.0, 9.0]).unwrap();
        assert_eq!(found.phases.unwrap()[3], "compress");
        assert!(found.reason.is_none());
        let flat = profile(&[2.0, 2.0]).unwrap();
        assert!(flat.phases.is_none() && flat.reason.unwrap().contains("flat"));
    }
}
