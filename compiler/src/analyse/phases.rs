//! Variance of the residual stream by depth.

use super::record::{PhaseProfiles, Profile, rounded};
use crate::calibrate::Calibration;
use crate::plan::phases::{Phases, invalid_variance};
use crate::unit::MakeError;

pub(super) fn phase_profiles(calibration: &Calibration) -> Result<PhaseProfiles, MakeError> {
    let mut without = Vec::new();
    let mut with = Vec::new();
    for layer in &calibration.layers {
        let later = layer.stream();
        with.push(layer.sink().variance_with(&later));
        without.push(later.variance());
    }
    Ok(PhaseProfiles {
        without_first: profile(&without)?,
        with_first: profile(&with)?,
    })
}

fn profile(variance: &[f64]) -> Result<Profile, MakeError> {
    if let Some(layer) = invalid_variance(variance) {
        let found = variance[layer];
        return Err(MakeError::Variance { layer, found });
    }
    let found = Phases::detect(Some(variance));
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
mod tests;
