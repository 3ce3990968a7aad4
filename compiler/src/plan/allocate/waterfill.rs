//! `waterfill` and `whitened`: rank where it adds most energy for its cost.
//!
//! What a unit loses at rank `k` is `Σ_{i>k} σ_i² / Σ σ_i²`, a fraction of its energy; the dense form
//! loses nothing, and the next step of rank gains `σ_{k+1}² / Σ σ_i²`. Of the weight's own singular values that is the weight's
//! energy, of those of `W C^{1/2}` the energy of its output on the calibration text.
//!
//! Energies are taken relative to each unit's own, not added up as they are. A transformer computes
//! the same function when V is scaled by a number and O by its inverse, likewise up and down, or a
//! norm's gain and the slots that read it, so the absolute energy of a slot's output says nothing
//! about how much of it counts. The relative error does not change under any of these.
//!
//! Where [`Evidence::branches`] is known, `whitened` weighs the relative error of a slot with the
//! share of its branch in the residual stream. An error of Q, K, V or O reaches the rest of the model
//! only through what attention adds, one of gate, up or down only through what the feed-forward
//! network adds, and the norm in front of the next slots divides by the stream; so the product is,
//! to first order, the relative error of the stream, which is the same measure for every slot of
//! every layer. It does not change under the scalings above either. What the types of the factors and of
//! dense forms round is lost beside what the rank loses, and a gain is divided by the bytes it takes, whatever
//! the budget counts.

use htc_formats::model::Slot;

use super::ladder::{Ladder, Rung};
use super::{Allocator, rounding};
use crate::plan::allocate::Choice;
use crate::plan::unit::Unit;
use crate::plan::{Branches, Evidence, PlanError, Request, dense_form};

/// The loss at every rung of every unit.
pub(super) fn losses(
    request: &Request,
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
        return Err(PlanError::NoEvidence {
            allocator,
            needs,
            remedy,
        });
    };
    let mut losses = from_spectra(allocator, units, ladders, spectra)?;
    if allocator != Allocator::Whitened {
        return Ok(losses);
    }
    for ((losses, ladder), unit) in losses.iter_mut().zip(ladders).zip(units) {
        for (loss, rung) in losses.iter_mut().zip(&ladder.rungs) {
            let form = match rung.choice {
                Choice::Rank(rank) => unit.factored(request, rank),
                Choice::Dense => dense_form(&unit.members, request.dense.slots).0,
            };
            *loss += (1.0 - *loss) * rounding::lost(&form);
        }
    }
    if let Some(branches) = &evidence.branches {
        for (losses, weight) in losses.iter_mut().zip(shares(units, branches, layers)?) {
            losses.iter_mut().for_each(|loss| *loss *= weight);
        }
    }
    Ok(losses)
}

/// The share in the residual stream of the branch that each unit belongs to.
fn shares(units: &[Unit], branches: &[Branches], layers: usize) -> Result<Vec<f64>, PlanError> {
    let wrong = |what: String, expected: String, found: String| PlanError::Evidence {
        allocator: Allocator::Whitened,
        what,
        expected,
        found,
    };
    if branches.len() != layers {
        let what = "shares of the branches".to_owned();
        let expected = format!("those of {layers} layers");
        return Err(wrong(what, expected, branches.len().to_string()));
    }
    let share = |unit: &Unit| {
        let branches = branches[unit.layer];
        let share = match unit.members.first().and_then(|m| m.slot()) {
            Some(Slot::Gate | Slot::Up | Slot::Down) => branches.feed_forward,
            _ => branches.attention,
        };
        if share.is_finite() && share >= 0.0 {
            return Ok(share);
        }
        let what = format!("share of the branch of {}", unit.label());
        let expected = "a finite number of at least 0".to_owned();
        Err(wrong(what, expected, share.to_string()))
    };
    units.iter().map(share).collect()
}

/// The losses for given spectra, which are checked.
pub(super) fn from_spectra(
    allocator: Allocator,
    units: &[Unit],
    ladders: &[Ladder],
    spectra: &[Vec<f64>],
) -> Result<Vec<Vec<f64>>, PlanError> {
    let wrong = |what: String, expected: String, found: String| PlanError::Evidence {
        allocator,
        what,
        expected,
        found,
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
        if spectrum.len() != smaller && spectrum.len() != unit.limit {
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

/// The fraction of the energy beyond the first k singular values, for k from 0 to all of them. Of a
/// matrix of zeros nothing can be lost.
pub(crate) fn lost_energy(spectrum: &[f64]) -> Vec<f64> {
    let largest = spectrum.first().copied().unwrap_or_default();
    let mut lost = vec![0.0; spectrum.len() + 1];
    if largest == 0.0 {
        return lost;
    }
    // Over the largest, so that no square overflows, and from the small end, so that the tail keeps
    // its digits.
    for (k, s) in spectrum.iter().enumerate().rev() {
        lost[k] = lost[k + 1] + (s / largest).powi(2);
    }
    let total = lost[0];
    for tail in &mut lost {
        *tail /= total;
    }
    lost
}
