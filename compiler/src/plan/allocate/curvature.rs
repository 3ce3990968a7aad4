//! Allocator `curvature`: rank proportional to the variance of the residual stream, after the MCR
//! heuristic `k_ℓ ∝ MCR_ℓ / mean`.

use super::phase::{check_profile, variance_error};
use super::{Allocator, RankFloor, by_layer};
use crate::plan::unit::Unit;
use crate::plan::{Evidence, PlanError};

/// Published floor of the heuristic. On square matrices it exceeds the rank where factors are as
/// large as the matrix, so attention stays dense.
pub const PUBLISHED_FLOOR: RankFloor = RankFloor::Fraction(0.55);

/// Published cap of the heuristic, for a model of width 4096.
pub const PUBLISHED_CAP: usize = 1536;

pub(super) fn scales(
    units: &[Unit],
    evidence: &Evidence,
    layers: usize,
) -> Result<Vec<f64>, PlanError> {
    let allocator = Allocator::Curvature;
    let Some(profile) = evidence.variance.as_deref() else {
        let needs = "the variance of the residual stream in every layer";
        let remedy = "give a text with `calibration`";
        return Err(PlanError::no_evidence(allocator, needs, remedy));
    };
    check_profile(allocator, profile, layers)?;
    // Avoids overflow.
    let mean: f64 = profile.iter().map(|v| v / layers as f64).sum();
    if mean == 0.0 {
        return Err(variance_error(allocator, 0, 0.0));
    }
    let scales: Vec<f64> = profile.iter().map(|v| v / mean).collect();
    Ok(by_layer(units, &scales))
}
