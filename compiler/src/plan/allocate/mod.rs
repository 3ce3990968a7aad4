//! Allocates a budget to the units of a model.
//!
//! Every unit has a ladder: its candidate forms by cost, from the smallest rank that the floor
//! permits to the dense matrix. An allocator ranks the steps, and units climb until no step fits:
//! the budget is met from below within one step, after floors and caps. Ties go to the first unit.

mod cachefit;
mod curvature;
mod diffplan;
mod fill;
mod ladder;
mod phase;
mod rounding;
mod waterfill;

use htc_formats::model::HyperParameters;

use self::fill::BudgetTotals;
use self::ladder::{Bounds, Currency, Ladder};
use super::unit::Unit;
use super::{Budget, Evidence, PlanError, PlanRequest};

use crate::options::FirstPositions;
pub use crate::options::{Allocation, Allocator, RankFloor};
pub(super) use fill::round_up;
pub(super) use ladder::{smallest_step, step};

pub use cachefit::{CACHE_SHARE, L2_SPEEDUP, SpeedPrediction, predict_speed};
pub use curvature::{PUBLISHED_CAP, PUBLISHED_FLOOR};
pub use diffplan::ENERGY_WEIGHT;
pub(crate) use waterfill::lost_energy;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Rank(usize),
    Dense,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Decision {
    pub choice: Choice,
    /// Notes on bounds that determined the decision.
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

fn prepare(
    hyper: &HyperParameters,
    request: &PlanRequest,
    units: &[Unit],
    evidence: &Evidence,
) -> Result<(BudgetTotals, Vec<Ladder>), PlanError> {
    let bounds = Bounds::new(&request.allocation, hyper.width)?;
    let totals = BudgetTotals::new(request, units)?;
    let build = |finest: bool| -> Result<Vec<Ladder>, PlanError> {
        let ladder = |u| Ladder::new(u, request, totals.currency, totals.share, bounds, finest);
        let mut ladders = units.iter().map(ladder).collect::<Result<Vec<_>, _>>()?;
        if request.allocation.allocator == Allocator::CacheFit {
            cachefit::cap_ladders(&mut ladders, units, evidence)?;
        }
        Ok(ladders)
    };
    let mut ladders = match build(false) {
        Err(PlanError::CacheTooSmall { .. }) => build(true),
        built => built,
    }?;
    if fill::least_cost(&ladders) > totals.budget {
        // A whole block may exceed the remainder.
        ladders = build(true)?;
    }
    let least = fill::least_cost(&ladders);
    if least > totals.budget {
        return Err(totals.too_small(least, &request.budget));
    }
    Ok((totals, ladders))
}

/// Returns the decisions on the units, and notes.
pub(super) fn allocate(
    hyper: &HyperParameters,
    request: &PlanRequest,
    units: &[Unit],
    evidence: &Evidence,
) -> Result<(Vec<Decision>, Vec<String>), PlanError> {
    let allocator = request.allocation.allocator;
    let (totals, ladders) = prepare(hyper, request, units, evidence)?;
    let mut notes = Vec::new();
    if request.allocation.first_positions == FirstPositions::Included {
        notes.push("the variance counts the first position of every window".to_owned());
    }
    let even = || even_targets(units, totals.currency);
    let rungs = match allocator {
        Allocator::Uniform | Allocator::CacheFit => {
            fill::proportional_by_kind(units, &ladders, &even(), totals.budget)
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
                fill::proportional_by_kind(units, &ladders, &even(), totals.budget)
            }
        },
        Allocator::Curvature => {
            let scales = curvature::scales(units, evidence, hyper.layers)?;
            fill::proportional(&ladders, &scaled(&even(), &scales), totals.budget)
        }
        Allocator::Waterfill | Allocator::Whitened => {
            let losses = waterfill::losses(request, units, &ladders, evidence, hyper.layers)?;
            let price = match allocator {
                Allocator::Whitened => fill::GainDivisor::Bytes,
                _ => fill::GainDivisor::Budget,
            };
            fill::least_loss_rungs(&ladders, &losses, price, totals.budget)
        }
        Allocator::DiffPlan => {
            let energy = diffplan::joules(units, &ladders, evidence)?;
            let losses = diffplan::losses(units, &ladders, evidence)?;
            if request.budget == Budget::Energy {
                notes.push(diffplan::ENERGY_TOTAL_NOTE.to_owned());
                notes.extend(evidence.energy.as_ref().map(diffplan::energy_note));
                diffplan::least_energy_rungs(&ladders, &losses, &energy)
            } else {
                notes.push(diffplan::budget_note(evidence, totals.currency).to_owned());
                notes.extend(evidence.energy.as_ref().map(diffplan::energy_note));
                let targets = diffplan::soft_levels(&ladders, &losses, &energy, totals.budget);
                fill::proportional(&ladders, &targets, totals.budget)
            }
        }
    };
    let decisions = ladders.iter().zip(rungs);
    let decisions = decisions.map(|(l, rung)| l.decision(rung));
    Ok((decisions.collect(), notes))
}

/// 1 per unit for a rank budget, else the rank whose factors have as many elements as the dense
/// form.
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

fn by_layer(units: &[Unit], values: &[f64]) -> Vec<f64> {
    let of = |u: &Unit| values.get(u.layer).copied().unwrap_or_default();
    units.iter().map(of).collect()
}

#[cfg(test)]
mod tests;
