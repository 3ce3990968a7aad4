//! Climbs the ladders of all units until the budget is spent.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::ladder::{Currency, Ladder};
use crate::plan::unit::{Unit, UnitMatrix};
use crate::plan::{Budget, PlanError, PlanRequest};

#[derive(Clone, Copy, Debug)]
pub(super) struct BudgetTotals {
    pub currency: Currency,
    pub budget: u64,
    /// Budget over the cost of all dense forms.
    pub share: f64,
    dense: u64,
    units: usize,
}

impl BudgetTotals {
    pub(super) fn new(request: &PlanRequest, units: &[Unit]) -> Result<BudgetTotals, PlanError> {
        let currency = match request.budget {
            Budget::Bytes(_) => Currency::Bytes,
            Budget::MeanRank(_) | Budget::Rank(_) | Budget::FullRank => Currency::Rank,
            Budget::Ratio(_)
            | Budget::Parameters(_)
            | Budget::FileSize(_)
            | Budget::SourceFraction(_)
            | Budget::Bits(_)
            | Budget::Energy => Currency::Parameters,
        };
        let dense: u64 = units.iter().map(|u| currency.dense(u)).sum();
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let budget = match request.budget {
            Budget::Ratio(ratio) if !(ratio > 0.0 && ratio <= 1.0) => {
                return Err(PlanError::RatioRange(ratio));
            }
            Budget::Ratio(ratio) => (ratio * dense as f64).floor() as u64,
            Budget::Parameters(total) | Budget::Bytes(total) => total,
            Budget::MeanRank(mean) if !positive(mean) => {
                return Err(PlanError::BudgetRange {
                    option: "`mean_rank`",
                    found: mean.to_string(),
                });
            }
            Budget::MeanRank(mean) => (mean * units.len() as f64).floor() as u64,
            // The first four are handled before allocation, the last is unbounded.
            Budget::Rank(_)
            | Budget::FullRank
            | Budget::FileSize(_)
            | Budget::SourceFraction(_)
            | Budget::Bits(_)
            | Budget::Energy => dense,
        };
        Ok(BudgetTotals {
            currency,
            budget,
            share: (budget as f64 / dense as f64).min(1.0),
            dense,
            units: units.len(),
        })
    }

    pub(super) fn too_small(&self, least: u64, budget: &Budget) -> PlanError {
        let (option, asked, smallest) = match *budget {
            Budget::Ratio(ratio) => {
                let smallest = round_up(least as f64 / self.dense as f64, 4);
                return PlanError::RatioTooSmall { ratio, smallest };
            }
            Budget::MeanRank(mean) => (
                "`mean_rank`",
                mean.to_string(),
                round_up(least as f64 / self.units as f64, 2).to_string(),
            ),
            Budget::Bytes(total) => ("`bytes`", total.to_string(), least.to_string()),
            Budget::Parameters(total) => ("`parameters`", total.to_string(), least.to_string()),
            Budget::Rank(_)
            | Budget::FullRank
            | Budget::FileSize(_)
            | Budget::SourceFraction(_)
            | Budget::Bits(_)
            | Budget::Energy => ("`rank`", String::new(), least.to_string()),
        };
        PlanError::BudgetTooSmall {
            option,
            asked,
            smallest,
        }
    }
}

/// Rounds up at a decimal, so that the printed value is itself a valid budget.
pub(in crate::plan) fn round_up(value: f64, decimals: i32) -> f64 {
    let scale = 10.0_f64.powi(decimals);
    (value * scale).ceil() / scale
}

pub(super) fn least_cost(ladders: &[Ladder]) -> u64 {
    ladders.iter().map(|l| l.cost(0)).sum()
}

#[derive(Clone, Copy, PartialEq)]
struct QueueEntry(f64, Reverse<usize>);

impl Eq for QueueEntry {}

impl Ord for QueueEntry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1))
    }
}

impl PartialOrd for QueueEntry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn climb(
    ladders: &[Ladder],
    rungs: &mut [usize],
    budget: u64,
    worth: impl Fn(usize, usize) -> f64,
) {
    let spent: u64 = ladders.iter().zip(&*rungs).map(|(l, &r)| l.cost(r)).sum();
    let mut left = budget.saturating_sub(spent);
    let all = rungs.iter().enumerate();
    let mut queue: BinaryHeap<QueueEntry> = all
        .map(|(i, &r)| QueueEntry(worth(i, r), Reverse(i)))
        .collect();
    while let Some(QueueEntry(_, Reverse(i))) = queue.pop() {
        // The remainder only shrinks.
        if let Some(cost) = ladders[i].step_cost(rungs[i]).filter(|&cost| cost <= left) {
            left -= cost;
            rungs[i] += 1;
            queue.push(QueueEntry(worth(i, rungs[i]), Reverse(i)));
        }
    }
}

/// Levels proportional to `targets` within floors, caps and steps: the unit furthest below its
/// target is raised first.
pub(super) fn proportional(ladders: &[Ladder], targets: &[f64], budget: u64) -> Vec<usize> {
    let mut rungs = vec![0; ladders.len()];
    climb(ladders, &mut rungs, budget, |i, rung| {
        -(ladders[i].rungs[rung].level / targets[i])
    });
    rungs
}

pub(super) fn proportional_by_kind(
    units: &[Unit],
    ladders: &[Ladder],
    targets: &[f64],
    budget: u64,
) -> Vec<usize> {
    let mut firsts: Vec<usize> = Vec::new();
    let mut kinds = Vec::with_capacity(units.len());
    let alike = |a: usize, b: usize| {
        let projections = |i: usize| units[i].members.iter().map(UnitMatrix::projection);
        projections(a).eq(projections(b)) && ladders[a].rungs == ladders[b].rungs
    };
    for i in 0..units.len() {
        let known = firsts.iter().position(|&first| alike(first, i));
        kinds.push(known.unwrap_or(firsts.len()));
        if known.is_none() {
            firsts.push(i);
        }
    }
    let merged: Vec<Ladder> = firsts
        .iter()
        .enumerate()
        .map(|(kind, &first)| {
            let count = kinds.iter().filter(|&&k| k == kind).count() as u64;
            let mut ladder = ladders[first].clone();
            for rung in &mut ladder.rungs {
                rung.cost *= count;
            }
            ladder
        })
        .collect();
    let targets: Vec<f64> = firsts.iter().map(|&first| targets[first]).collect();
    let rungs = proportional(&merged, &targets, budget);
    kinds.into_iter().map(|kind| rungs[kind]).collect()
}

/// Returns rungs with the least total loss; `losses` has a decreasing value for every rung of every
/// unit.
///
/// The gain over the cost need not be concave, so the climb follows the upper concave hull of every
/// unit, steepest segment first: the path of the Lagrangian relaxation, at whose points no choice
/// of the same cost gains more. Budgets between points are filled with later segments that fit,
/// then rung by rung.
///
/// The gain is divided by the cost or, with [`GainDivisor::Bytes`], by the bytes: of steps with
/// equal cost, the one that stores less comes first.
pub(super) fn least_loss_rungs(
    ladders: &[Ladder],
    losses: &[Vec<f64>],
    price: GainDivisor,
    budget: u64,
) -> Vec<usize> {
    let hulls: Vec<Vec<usize>> = ladders
        .iter()
        .zip(losses)
        .map(|(l, e)| hull(l, e, price))
        .collect();
    let slope = |i: usize, from: usize, to: usize| gain(&ladders[i], &losses[i], price, from, to);
    let mut rungs = vec![0; ladders.len()];
    let mut at = vec![0; ladders.len()];
    let mut left = budget.saturating_sub(least_cost(ladders));
    let next = |i: usize, at: usize| -> Option<QueueEntry> {
        let hull = &hulls[i];
        let (from, to) = (hull[at], *hull.get(at + 1)?);
        Some(QueueEntry(slope(i, from, to), Reverse(i)))
    };
    let mut queue: BinaryHeap<QueueEntry> = (0..ladders.len()).filter_map(|i| next(i, 0)).collect();
    while let Some(QueueEntry(_, Reverse(i))) = queue.pop() {
        let to = hulls[i][at[i] + 1];
        let cost = ladders[i].cost(to) - ladders[i].cost(rungs[i]);
        if cost <= left {
            left -= cost;
            rungs[i] = to;
            at[i] += 1;
            queue.extend(next(i, at[i]));
        }
    }
    climb(ladders, &mut rungs, budget, |i, rung| {
        if rung + 1 < ladders[i].rungs.len() {
            slope(i, rung, rung + 1)
        } else {
            0.0
        }
    });
    rungs
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GainDivisor {
    Budget,
    /// Steps without additional bytes come first.
    Bytes,
}

fn gain(ladder: &Ladder, losses: &[f64], price: GainDivisor, from: usize, to: usize) -> f64 {
    let gain = losses[from] - losses[to];
    let step = match price {
        GainDivisor::Budget => ladder.cost(to).saturating_sub(ladder.cost(from)),
        GainDivisor::Bytes => ladder.rungs[to]
            .bytes
            .saturating_sub(ladder.rungs[from].bytes),
    };
    match step {
        0 => f64::INFINITY,
        step => gain / step as f64,
    }
}

/// Returns the rungs on the upper concave hull of gain over cost, from the lowest rung. Collinear
/// points are included, to keep segments short.
fn hull(ladder: &Ladder, losses: &[f64], price: GainDivisor) -> Vec<usize> {
    let slope = |from: usize, to: usize| gain(ladder, losses, price, from, to);
    let mut hull: Vec<usize> = Vec::new();
    for rung in 0..ladder.rungs.len() {
        while let [.., before, last] = hull[..]
            && slope(before, last) < slope(last, rung)
        {
            hull.pop();
        }
        hull.push(rung);
    }
    hull
}

#[cfg(test)]
mod tests;
