//! Allocator `phase`: rank by the phase of the layer (MCR).

use super::{Allocator, by_layer};
use crate::plan::phases::{NoPhasesReason, Phase, Phases, invalid_variance};
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
        check_profile(Allocator::Phase, profile, layers)?;
    }
    Ok(Phases::detect(profile).phases.map(|phases| {
        let scales: Vec<f64> = phases.into_iter().map(scale).collect();
        by_layer(units, &scales)
    }))
}

/// Checks that a profile has a finite variance of at least 0 for every layer.
pub(super) fn check_profile(
    allocator: Allocator,
    profile: &[f64],
    layers: usize,
) -> Result<(), PlanError> {
    if profile.len() != layers {
        let what = "variance of the residual stream";
        let expected = format!("a value for each of {layers} layers");
        return Err(PlanError::invalid_evidence(
            allocator,
            what,
            expected,
            profile.len(),
        ));
    }
    match invalid_variance(profile) {
        Some(layer) => Err(variance_error(allocator, layer, profile[layer])),
        None => Ok(()),
    }
}

pub(super) fn variance_error(allocator: Allocator, layer: usize, found: f64) -> PlanError {
    let what = format!("variance of the residual stream at layer {layer}");
    PlanError::invalid_evidence(allocator, what, "a finite number of at least 0", found)
}
