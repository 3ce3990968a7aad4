//! Allocator `phase`: rank by the phase of the layer (MCR).

use super::{Allocator, by_layer};
use crate::plan::phases::{NoPhasesReason, Phase, Phases, ProfileError};
use crate::plan::unit::Unit;
use crate::plan::{Evidence, PlanError};

const fn scale(phase: Phase) -> f64 {
    match phase {
        Phase::Mix => 1.5,
        Phase::Compress => 0.35,
        Phase::Refine => 1.2,
    }
}

pub(super) fn scales(
    units: &[Unit],
    evidence: &Evidence,
    layers: usize,
) -> Result<Result<Vec<f64>, NoPhasesReason>, PlanError> {
    let profile = evidence.variance.as_deref();
    if let Some(profile) = profile {
        check_length(Allocator::Phase, profile, layers)?;
    }
    let phases =
        Phases::detect(profile).map_err(|error| profile_error(Allocator::Phase, &error))?;
    Ok(phases.phases.map(|phases| {
        let scales: Vec<f64> = phases.into_iter().map(scale).collect();
        by_layer(units, &scales)
    }))
}

pub(super) fn check_length(
    allocator: Allocator,
    profile: &[f64],
    layers: usize,
) -> Result<(), PlanError> {
    if profile.len() == layers {
        return Ok(());
    }
    Err(PlanError::InvalidEvidence {
        allocator,
        what: "variance of the residual stream".into(),
        expected: format!("a value for each of {layers} layers"),
        found: profile.len().to_string(),
    })
}

pub(super) fn profile_error(allocator: Allocator, error: &ProfileError) -> PlanError {
    PlanError::InvalidEvidence {
        allocator,
        what: format!("variance of the residual stream at layer {}", error.layer),
        expected: "a finite number of at least 0".into(),
        found: error.found.to_string(),
    }
}
