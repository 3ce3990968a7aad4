//! Allocators `waterfill` and `whitened`: rank by the energy gained per cost.
//!
//! The loss of a unit at rank `k` is `Σ_{i>k} σ_i² / Σ σ_i²`; the dense form loses nothing.
//! Singular values of the weight give the weight's energy; those of `W C^{1/2}` give the energy of
//! its output on the calibration text. Energies are relative to each unit's total, because the
//! absolute energy is meaningless: a transformer computes the same function if V is scaled by a
//! number and O by its inverse.
//!
//! With [`Evidence::branches`], `whitened` multiplies the relative error by the share of the
//! projection's branch in the residual stream: to first order the relative error of the stream,
//! comparable across projections and layers. An expert adds to its branch only at the positions that
//! it reads; [`Evidence::position_shares`] multiplies by their share. The rounding losses of factor
//! and dense types are added. Gains are divided by bytes in any currency.

use htc_formats::model::ProjectionKind;

use super::ladder::{Ladder, Rung};
use super::{Allocator, rounding};
use crate::plan::allocate::Choice;
use crate::plan::unit::Unit;
use crate::plan::{BranchShares, Evidence, PlanError, PlanRequest, dense_form};

pub(super) fn losses(
    request: &PlanRequest,
    units: &[Unit],
    ladders: &[Ladder],
    evidence: &Evidence,
    layers: usize,
) -> Result<Vec<Vec<f64>>, PlanError> {
    let allocator = request.allocation.allocator;
    let (spectra, needs, remedy) = match allocator {
        Allocator::Whitened => (
            &evidence.whitened,
            "the spectra of the outputs on a text",
            "give a text with `calibration`",
        ),
        _ => (
            &evidence.spectra,
            "the spectra of the weights",
            "analyse the model",
        ),
    };
    let Some(spectra) = spectra else {
        return Err(PlanError::no_evidence(allocator, needs, remedy));
    };
    let mut losses = from_spectra(allocator, units, ladders, spectra)?;
    if allocator != Allocator::Whitened {
        return Ok(losses);
    }
    for ((losses, ladder), unit) in losses.iter_mut().zip(ladders).zip(units) {
        for (loss, rung) in losses.iter_mut().zip(&ladder.rungs) {
            let form = match rung.choice {
                Choice::Rank(rank) => unit.factored_form(request, rank),
                Choice::Dense => dense_form(&unit.members, request.dense_types.projections).0,
            };
            *loss += (1.0 - *loss) * rounding::rounding_loss(&form);
        }
    }
    if let Some(branches) = &evidence.branches {
        for (losses, weight) in losses.iter_mut().zip(shares(units, branches, layers)?) {
            losses.iter_mut().for_each(|loss| *loss *= weight);
        }
    }
    if let Some(shares) = &evidence.position_shares {
        check_position_shares(units, shares)?;
        for (losses, share) in losses.iter_mut().zip(shares) {
            losses.iter_mut().for_each(|loss| *loss *= share);
        }
    }
    Ok(losses)
}

fn check_position_shares(units: &[Unit], shares: &[f64]) -> Result<(), PlanError> {
    if shares.len() != units.len() {
        let what = "shares of the positions";
        let expected = format!("one for each of {} units", units.len());
        return Err(PlanError::invalid_evidence(
            Allocator::Whitened,
            what,
            expected,
            shares.len(),
        ));
    }
    let mut each = units.iter().zip(shares);
    match each.find(|(_, share)| !(0.0..=1.0).contains(*share)) {
        Some((unit, share)) => {
            let what = format!("share of the positions of {}", unit.label());
            let expected = "a number from 0 to 1";
            Err(PlanError::invalid_evidence(
                Allocator::Whitened,
                what,
                expected,
                share,
            ))
        }
        None => Ok(()),
    }
}

fn shares(units: &[Unit], branches: &[BranchShares], layers: usize) -> Result<Vec<f64>, PlanError> {
    if branches.len() != layers {
        let what = "shares of the branches";
        let expected = format!("those of {layers} layers");
        return Err(PlanError::invalid_evidence(
            Allocator::Whitened,
            what,
            expected,
            branches.len(),
        ));
    }
    let share = |unit: &Unit| {
        let branches = branches[unit.layer];
        let projection = unit.members.first().and_then(|m| m.projection());
        let share = match projection.map(ProjectionKind::dense) {
            Some(ProjectionKind::Gate | ProjectionKind::Up | ProjectionKind::Down) => {
                branches.feed_forward
            }
            _ => branches.attention,
        };
        if share.is_finite() && share >= 0.0 {
            return Ok(share);
        }
        let what = format!("share of the branch of {}", unit.label());
        let expected = "a finite number of at least 0";
        Err(PlanError::invalid_evidence(
            Allocator::Whitened,
            what,
            expected,
            share,
        ))
    };
    units.iter().map(share).collect()
}

pub(super) fn from_spectra(
    allocator: Allocator,
    units: &[Unit],
    ladders: &[Ladder],
    spectra: &[Vec<f64>],
) -> Result<Vec<Vec<f64>>, PlanError> {
    let wrong = |what, expected: String, found: String| {
        PlanError::invalid_evidence(allocator, what, expected, found)
    };
    if spectra.len() != units.len() {
        let what = "spectra".to_owned();
        let expected = format!("one for each of {} units", units.len());
        return Err(wrong(what, expected, spectra.len().to_string()));
    }
    let mut losses = Vec::with_capacity(units.len());
    for ((unit, ladder), spectrum) in units.iter().zip(ladders).zip(spectra) {
        let what = || format!("spectrum of {}", unit.label());
        let smaller = unit.full_rank();
        if spectrum.len() != smaller && spectrum.len() != unit.rank_limit {
            let expected = format!("{smaller} singular values");
            return Err(wrong(what(), expected, spectrum.len().to_string()));
        }
        let falling = spectrum.windows(2).all(|pair| pair[0] >= pair[1]);
        let finite = spectrum.iter().all(|s| s.is_finite() && *s >= 0.0);
        if !(falling && finite) {
            let expected = "finite, not negative, decreasing".to_owned();
            let found = "other numbers".to_owned();
            return Err(wrong(what(), expected, found));
        }
        let lost = lost_energy(spectrum);
        let loss = |rung: &Rung| match rung.choice {
            Choice::Dense => 0.0,
            Choice::Rank(rank) => lost[rank.min(spectrum.len())],
        };
        losses.push(ladder.rungs.iter().map(loss).collect());
    }
    Ok(losses)
}

/// Returns the fraction of the energy beyond the first k singular values, for all k from 0. A zero
/// matrix loses nothing.
pub(crate) fn lost_energy(spectrum: &[f64]) -> Vec<f64> {
    let largest = spectrum.first().copied().unwrap_or_default();
    let mut lost = vec![0.0; spectrum.len() + 1];
    if largest == 0.0 {
        return lost;
    }
    // From the small end, to keep the digits of the tail.
    for (k, s) in spectrum.iter().enumerate().rev() {
        lost[k] = lost[k + 1] + (s / largest).powi(2);
    }
    let total = lost[0];
    for tail in &mut lost {
        *tail /= total;
    }
    lost
}
