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
mod waterfill;

use std::fmt;
use std::str::FromStr;

use htc_formats::model::HyperParameters;

use self::fill::Totals;
use self::ladder::{Bounds, Currency, Ladder};
use super::unit::Unit;
use super::{Evidence, PlanError, Request};

pub(super) use fill::round_up;
pub(super) use ladder::{smallest_step, step};

pub use cachefit::{CACHE_SHARE, L2_SPEEDUP, Prediction, predict};
pub use curvature::{PUBLISHED_CAP, PUBLISHED_FLOOR};
pub use diffplan::ENERGY_WEIGHT;
pub(crate) use waterfill::lost_energy;

/// How a budget is shared out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allocator {
    /// The same share of every slot, the same rank in every layer.
    #[default]
    Uniform,
    /// More rank where layers mix or refine, less where they compress.
    Phase,
    /// Rank in proportion to the profile over the layers.
    Curvature,
    /// Where a step of rank adds most of the weight's energy for its cost.
    Waterfill,
    /// Where a step of rank adds most of the output's energy for its cost.
    Whitened,
    /// Levels of rank under a softmax, by gradient descent, with a price on energy.
    DiffPlan,
    /// The largest rank whose factors stay in the target's second-level cache.
    CacheFit,
}

impl Allocator {
    /// Every allocator.
    pub const ALL: [Allocator; 7] = [
        Allocator::Uniform,
        Allocator::Phase,
        Allocator::Curvature,
        Allocator::Waterfill,
        Allocator::Whitened,
        Allocator::DiffPlan,
        Allocator::CacheFit,
    ];

    /// The name used on the command line and in plans.
    pub const fn name(self) -> &'static str {
        match self {
            Allocator::Uniform => "uniform",
            Allocator::Phase => "phase",
            Allocator::Curvature => "curvature",
            Allocator::Waterfill => "waterfill",
            Allocator::Whitened => "whitened",
            Allocator::DiffPlan => "diffplan",
            Allocator::CacheFit => "cachefit",
        }
    }
}

impl fmt::Display for Allocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Allocator {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Allocator::ALL.into_iter().find(|a| a.name() == text);
        known.ok_or_else(|| {
            let names: Vec<_> = Allocator::ALL.iter().map(|a| a.name()).collect();
            format!("allocators are {}", names.join(", "))
        })
    }
}

/// The smallest rank that a factored unit may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Floor {
    /// A rank.
    Rank(usize),
    /// A fraction of the model's width, rounded up.
    Fraction(f64),
}

impl Floor {
    fn rank(self, width: usize) -> Result<usize, PlanError> {
        match self {
            Floor::Rank(rank) if rank >= 1 => Ok(rank),
            Floor::Fraction(f) if f > 0.0 && f <= 1.0 => Ok((f * width as f64).ceil() as usize),
            _ => Err(PlanError::FloorRange {
                found: self.to_string(),
            }),
        }
    }
}

/// As it is typed: a whole number is a rank, a number with a point a fraction of the width.
impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Floor::Rank(rank) => write!(f, "{rank}"),
            Floor::Fraction(fraction) => write!(f, "{fraction:?}"),
        }
    }
}

impl FromStr for Floor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let floor = match text.parse::<usize>() {
            Ok(rank) => Some(Floor::Rank(rank)).filter(|_| rank >= 1),
            Err(_) => match text.parse::<f64>() {
                Ok(f) if f > 0.0 && f <= 1.0 => Some(Floor::Fraction(f)),
                _ => None,
            },
        };
        floor.ok_or_else(|| {
            "a floor is a rank of at least 1, or a fraction of the model's width such as 0.25"
                .to_owned()
        })
    }
}

/// How the budget is shared out, and within which bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Allocation {
    /// What decides.
    pub allocator: Allocator,
    /// The smallest rank of a factored unit. A unit whose factors of that rank would not be smaller
    /// than the dense form stays dense.
    pub floor: Option<Floor>,
    /// The largest rank of a factored unit. Units that can be factorised within it are.
    pub cap: Option<usize>,
}

impl Allocation {
    /// The first option that is not left at its default.
    pub(super) fn option(&self) -> String {
        match (self.allocator, self.floor, self.cap) {
            (Allocator::Uniform, Some(floor), _) => format!("--rank-floor {floor}"),
            (Allocator::Uniform, None, Some(cap)) => format!("--rank-cap {cap}"),
            (allocator, ..) => format!("--allocator {allocator}"),
        }
    }
}

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
            let losses = waterfill::losses(allocator, units, &ladders, evidence, hyper.layers)?;
            fill::marginal(&ladders, &losses, totals.budget)
        }
        Allocator::DiffPlan => {
            // What is said on the command line comes before what takes a measurement.
            let energy = diffplan::joules_per_rank(units, evidence)?;
            let losses = diffplan::losses(units, &ladders, evidence)?;
            let targets = diffplan::soft_levels(&ladders, &losses, &energy, totals.budget);
            fill::proportional(&ladders, &targets, totals.budget)
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
