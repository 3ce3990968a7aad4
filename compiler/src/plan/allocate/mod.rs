//! Shares a budget out among the units of a model.
//!
//! Every unit is a ladder: the forms it may take, in the order of what they cost, from the
//! smallest rank that the floor allows to the dense matrix, which costs what it costs and loses
//! nothing. Ranks whose factors would not be smaller than the dense form are no rungs, so nothing
//! is taken back after the budget is shared out. An allocator says which rungs are worth more, and
//! the units climb until none could take one more step: the budget is met from below, after floors
//! and caps, to the granularity.
//!
//! The same shapes, evidence and request give the same ranks; ties go to the unit that comes first.

mod cachefit;
mod curvature;
mod diffplan;
mod fill;
mod ladder;
mod phase;
mod rounding;
mod waterfill;

use htc_formats::model::HyperParameters;

use self::fill::Totals;
use self::ladder::{Bounds, Currency, Ladder};
use super::unit::Unit;
use super::{Budget, Evidence, PlanError, Request};

use crate::request::FirstPositions;
pub use crate::request::{Allocation, Allocator, Floor};
pub(super) use fill::round_up;
pub(super) use ladder::{smallest_step, step};

pub use cachefit::{CACHE_SHARE, L2_SPEEDUP, Prediction, predict};
pub use curvature::{PUBLISHED_CAP, PUBLISHED_FLOOR};
pub use diffplan::ENERGY_WEIGHT;
pub(crate) use waterfill::lost_energy;

/// A form that a unit may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// Factors of a rank.
    Rank(usize),
    /// As in the source.
    Dense,
}

/// What was decided about a unit.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Decision {
    pub choice: Choice,
    /// Bounds that decided.
    pub notes: Vec<String>,
}

impl Decision {
    pub(super) fn rank(rank: usize) -> Decision {
        Decision {
            choice: Choice::Rank(rank),
            notes: Vec::new(),
        }
    }
}

/// What was decided about all of them.
#[derive(Debug)]
pub(super) struct Allocated {
    pub decisions: Vec<Decision>,
    pub notes: Vec<String>,
}

/// The budget in numbers, and a ladder for every unit whose lowest rungs it can pay.
fn prepare(
    hyper: &HyperParameters,
    request: &Request,
    units: &[Unit],
    evidence: &Evidence,
) -> Result<(Totals, Vec<Ladder>), PlanError> {
    let bounds = Bounds::new(&request.allocation, hyper.width)?;
    let totals = Totals::new(request, units)?;
    let build = |finest: bool| -> Result<Vec<Ladder>, PlanError> {
        let ladder = |u| Ladder::new(u, request, totals.currency, totals.share, bounds, finest);
        let mut ladders = units.iter().map(ladder).collect::<Result<Vec<_>, _>>()?;
        if request.allocation.allocator == Allocator::CacheFit {
            cachefit::cap(&mut ladders, units, evidence)?;
        }
        Ok(ladders)
    };
    let mut ladders = match build(false) {
        Err(PlanError::CacheTooSmall { .. }) => build(true),
        built => built,
    }?;
    if fill::least(&ladders) > totals.budget {
        // A whole block may be more than the others leave; every plan begins with the finest steps.
        ladders = build(true)?;
    }
    let least = fill::least(&ladders);
    if least > totals.budget {
        return Err(totals.too_small(least, &request.budget));
    }
    Ok((totals, ladders))
}

/// Shares the budget out.
pub(super) fn allocate(
    hyper: &HyperParameters,
    request: &Request,
    units: &[Unit],
    evidence: &Evidence,
) -> Result<Allocated, PlanError> {
    let allocator = request.allocation.allocator;
    let (totals, ladders) = prepare(hyper, request, units, evidence)?;
    let mut notes = Vec::new();
    if request.allocation.first_positions == FirstPositions::Counted {
        notes.push("the variance counts the first position of every window".to_owned());
    }
    let even = || even_targets(units, totals.currency);
    let rungs = match allocator {
        Allocator::Uniform | Allocator::CacheFit => {
            fill::together(units, &ladders, &even(), totals.budget)
        }
        Allocator::Phase => match phase::scales(units, evidence, hyper.layers)? {
            Ok(scales) => {
                let targets = scaled(&even(), &scales);
                fill::proportional(&ladders, &targets, totals.budget)
            }
            Err(reason) => {
                notes.push(format!(
                    "phases_valid = false: {reason}; the allocation is uniform"
                ));
                fill::together(units, &ladders, &even(), totals.budget)
            }
        },
        Allocator::Curvature => {
            let scales = curvature::scales(units, evidence, hyper.layers)?;
            fill::proportional(&ladders, &scaled(&even(), &scales), totals.budget)
        }
        Allocator::Waterfill | Allocator::Whitened => {
            let losses = waterfill::losses(request, units, &ladders, evidence, hyper.layers)?;
            let price = match allocator {
                Allocator::Whitened => fill::Price::Bytes,
                _ => fill::Price::Budget,
            };
            fill::marginal(&ladders, &losses, price, totals.budget)
        }
        Allocator::DiffPlan => {
            // What is said on the command line comes before what takes a measurement.
            let energy = diffplan::joules(units, &ladders, evidence)?;
            let losses = diffplan::losses(units, &ladders, evidence)?;
            if request.budget == Budget::Energy {
                notes.push(diffplan::DECIDED.to_owned());
                notes.extend(evidence.energy.as_ref().map(diffplan::measured));
                diffplan::least(&ladders, &losses, &energy)
            } else {
                notes.push(diffplan::inert(evidence, totals.currency).to_owned());
                notes.extend(evidence.energy.as_ref().map(diffplan::measured));
                let targets = diffplan::soft_levels(&ladders, &losses, &energy, totals.budget);
                fill::proportional(&ladders, &targets, totals.budget)
            }
        }
    };
    let decisions = ladders.iter().zip(rungs);
    Ok(Allocated {
        decisions: decisions.map(|(l, rung)| l.decision(rung)).collect(),
        notes,
    })
}

/// What an even share is in proportion to: with ranks as the currency the rank itself, else the
/// rank whose factors have as many numbers as the dense form, so that every unit is left the same
/// ratio.
fn even_targets(units: &[Unit], currency: Currency) -> Vec<f64> {
    let target = |u: &Unit| match currency {
        Currency::Rank => 1.0,
        Currency::Parameters | Currency::Bytes => u.parameters() as f64 / (u.outs + u.cols) as f64,
    };
    units.iter().map(target).collect()
}

fn scaled(targets: &[f64], scales: &[f64]) -> Vec<f64> {
    targets.iter().zip(scales).map(|(t, s)| t * s).collect()
}

/// A number per layer, given to the units of each.
fn by_layer(units: &[Unit], values: &[f64]) -> Vec<f64> {
    let of = |u: &Unit| values.get(u.layer).copied().unwrap_or_default();
    units.iter().map(of).collect()
}

#[cfg(test)]
mod tests;
