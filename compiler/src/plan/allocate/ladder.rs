//! Candidate forms of a unit in the order of their cost.

use htc_formats::DType;

use super::{Allocation, Allocator, Choice, Decision, RankFloor};
use crate::plan::unit::Unit;
use crate::plan::{PlanError, PlanRequest, dense_form};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Currency {
    Parameters,
    Bytes,
    Rank,
}

impl Currency {
    pub(super) fn dense(self, unit: &Unit) -> u64 {
        match self {
            Currency::Parameters => unit.parameters(),
            Currency::Bytes => unit.bytes(),
            Currency::Rank => unit.full_rank() as u64,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    floor: Option<usize>,
    cap: Option<usize>,
}

impl RankFloor {
    pub(super) fn rank(self, width: usize) -> Result<usize, PlanError> {
        match self {
            RankFloor::Rank(rank) if rank >= 1 => Ok(rank),
            RankFloor::Fraction(f) if f > 0.0 && f <= 1.0 => Ok((f * width as f64).ceil() as usize),
            _ => Err(PlanError::FloorRange {
                found: self.to_string(),
            }),
        }
    }
}

impl Bounds {
    pub(super) fn new(allocation: &Allocation, width: usize) -> Result<Bounds, PlanError> {
        let floor = allocation.floor.map(|f| f.rank(width)).transpose()?;
        let cap = allocation.cap;
        match (floor, cap) {
            (Some(floor), Some(cap)) if floor > cap => Err(PlanError::FloorAboveCap { floor, cap }),
            _ => Ok(Bounds { floor, cap }),
        }
    }
}

/// Fraction of an even share that `whitened` guarantees each unit without a floor.
///
/// The allocator adds relative errors of the stream as if they were small and passed through the
/// model unchanged. This fails for a unit that loses most of its output, and early layers would be
/// starved. On the demo model a half loses less than a quarter or about the same.
const MIN_SHARE: f64 = 0.5;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rung {
    pub choice: Choice,
    /// In the currency of the budget; strictly increasing.
    pub cost: u64,
    pub bytes: u64,
    /// The rank; for the dense form that of the same cost.
    pub level: f64,
}

#[derive(Clone, Debug)]
pub(super) struct Ladder {
    pub rungs: Vec<Rung>,
    lowest_note: Option<String>,
    highest_note: Option<String>,
    dense_note: String,
}

impl Ladder {
    /// `share` is the budget over the cost of all dense forms; with `finest`, ranks use the
    /// smallest steps for any factor type.
    pub(super) fn new(
        unit: &Unit,
        request: &PlanRequest,
        currency: Currency,
        share: f64,
        bounds: Bounds,
        finest: bool,
    ) -> Result<Ladder, PlanError> {
        let limit = unit.full_rank();
        let step = if finest {
            smallest_step(limit)
        } else {
            let even = share * unit.parameters() as f64 / (unit.outs + unit.cols) as f64;
            let within = bounds.cap.unwrap_or(usize::MAX);
            step(limit, within.min(even as usize), request.factor_type)
        };
        let (dense_form, _) = dense_form(&unit.members, request.dense_types.projections);
        let dense_bytes = dense_form.bytes(&unit.members);
        let dense_cost = match currency {
            Currency::Bytes => dense_bytes,
            Currency::Parameters | Currency::Rank => currency.dense(unit),
        };
        let at = |rank: usize| -> Rung {
            let form = unit.factored_form(request, rank);
            let bytes = form.bytes(&unit.members);
            Rung {
                choice: Choice::Rank(rank),
                cost: match currency {
                    Currency::Parameters => rank as u64 * (unit.outs + unit.cols) as u64,
                    Currency::Bytes => bytes,
                    Currency::Rank => rank as u64,
                },
                bytes,
                level: rank as f64,
            }
        };
        let pays = |rung: &Rung| rung.bytes < dense_bytes && rung.cost < dense_cost;
        let mut rungs = Vec::new();
        let mut dearest: Option<Rung> = None;
        // Skips ranks that cost no less than a larger one.
        for rank in (1..=limit / step).rev().map(|n| n * step) {
            let rung = at(rank);
            if pays(&rung) && dearest.is_none_or(|above| rung.cost < above.cost) {
                rungs.push(rung);
                dearest = Some(rung);
            }
        }
        rungs.reverse();
        let dense_note = match rungs.first() {
            Some(_) => format!(
                "kept dense: {dense_bytes} bytes lose nothing, and the allocation has space for them"
            ),
            None => dense_note(at(step), step, dense_bytes, dense_cost),
        };
        let mut ladder = Ladder {
            rungs,
            lowest_note: None,
            highest_note: None,
            dense_note,
        };
        if request.allocation.allocator == Allocator::Whitened && bounds.floor.is_none() {
            ladder.enforce_min_share(
                share * unit.parameters() as f64 / (unit.outs + unit.cols) as f64,
            );
        }
        let dense = Rung {
            choice: Choice::Dense,
            cost: dense_cost,
            bytes: dense_bytes,
            level: ladder.rungs.last().map_or(limit as f64, |top| {
                top.level * dense_cost as f64 / top.cost as f64
            }),
        };
        ladder.bound(unit, bounds, step, dense)?;
        Ok(ladder)
    }

    fn enforce_min_share(&mut self, even: f64) {
        let within = |rung: &Rung| rung.level <= MIN_SHARE * even;
        let below = self.rungs.partition_point(within).saturating_sub(1);
        if below > 0 {
            self.rungs.drain(..below);
            self.lowest_note = Some(format!(
                "whitened decided: half of an even share, {:.0} ranks, and no less",
                MIN_SHARE * even
            ));
        }
    }

    fn bound(
        &mut self,
        unit: &Unit,
        bounds: Bounds,
        step: usize,
        dense: Rung,
    ) -> Result<(), PlanError> {
        let (factored, full) = (!self.rungs.is_empty(), unit.full_rank());
        if let Some(cap) = bounds.cap.filter(|&cap| factored && cap < full) {
            let within = self.rungs.partition_point(|r| r.level <= cap as f64);
            if within == 0 {
                return Err(PlanError::CapTooSmall {
                    cap,
                    unit: unit.label(),
                    step,
                    least: self.rungs[0].level as usize,
                });
            }
            self.rungs.truncate(within);
            self.highest_note = Some(format!("--rank-cap {cap} decided: it allows no more"));
        } else {
            self.rungs.push(dense);
        }
        if let Some(floor) = bounds.floor.filter(|_| factored) {
            let below = |r: &Rung| r.choice != Choice::Dense && r.level < floor as f64;
            let below = self.rungs.partition_point(below);
            self.rungs.drain(..below);
            match self.rungs.first() {
                Some(rung) if rung.choice != Choice::Dense => {
                    self.lowest_note = (below > 0)
                        .then(|| format!("--rank-floor {floor} decided: it allows no less"));
                }
                _ => {
                    self.rungs = vec![dense];
                    self.dense_note = format!(
                        "kept dense: --rank-floor {floor} leaves no rank whose factors are smaller"
                    );
                }
            }
        }
        Ok(())
    }

    pub(super) fn truncate(&mut self, last: usize, why: String) {
        if last + 1 < self.rungs.len() {
            self.rungs.truncate(last + 1);
            self.highest_note = Some(why);
        }
    }

    #[cfg(test)]
    pub(super) fn from_costs(costs: &[u64]) -> Ladder {
        let rung = |(i, &cost): (usize, &u64)| Rung {
            choice: Choice::Rank(i + 1),
            cost,
            bytes: cost,
            level: (i + 1) as f64,
        };
        Ladder {
            rungs: costs.iter().enumerate().map(rung).collect(),
            lowest_note: None,
            highest_note: None,
            dense_note: String::new(),
        }
    }

    pub(super) fn cost(&self, rung: usize) -> u64 {
        self.rungs[rung].cost
    }

    /// Returns the cost of the step to the next rung; `None` on the highest.
    pub(super) fn step_cost(&self, rung: usize) -> Option<u64> {
        let next = self.rungs.get(rung + 1)?;
        Some(next.cost - self.rungs[rung].cost)
    }

    pub(super) fn decision(&self, rung: usize) -> Decision {
        let choice = self.rungs[rung].choice;
        let mut notes = Vec::new();
        match choice {
            Choice::Dense => notes.push(self.dense_note.clone()),
            Choice::Rank(_) => {
                if rung + 1 == self.rungs.len() {
                    notes.extend(self.highest_note.clone());
                }
                if rung == 0 {
                    notes.extend(self.lowest_note.clone());
                }
            }
        }
        Decision { choice, notes }
    }
}

fn dense_note(rung: Rung, step: usize, dense_bytes: u64, dense_cost: u64) -> String {
    let Rung { bytes, cost, .. } = rung;
    if bytes >= dense_bytes {
        format!("kept dense: rank {step} needs {bytes} bytes, the dense form {dense_bytes}")
    } else {
        format!("kept dense: rank {step} takes {cost} of the budget, the dense form {dense_cost}")
    }
}

/// Returns the rank step of a unit: the block of a block format; the block of q8_0 if that would
/// leave fewer than four steps (the factor with rows of that length is then stored as q8_0); else
/// the smallest step. A step is at most the even share.
pub(in crate::plan) fn step(limit: usize, even: usize, factor_type: DType) -> usize {
    let (block, shorter) = (factor_type.block_len(), DType::Q8_0.block_len());
    let steps = match block {
        1 => [None, None],
        block if block <= shorter => [Some(block), None],
        block => [Some(block).filter(|b| 4 * b <= limit), Some(shorter)],
    };
    let fits = |step: &usize| *step <= even.min(limit);
    let chosen = steps.into_iter().flatten().find(fits);
    chosen.unwrap_or_else(|| smallest_step(limit))
}

pub(in crate::plan) fn smallest_step(limit: usize) -> usize {
    if limit >= 8 { 8 } else { 1 }
}
