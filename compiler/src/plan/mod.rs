//! Decides, before any arithmetic, what becomes of every slot: its method, its rank and the
//! element type of its factors.
//!
//! A [`Plan`] is made from the model's shapes, the caller's [`Budget`] and, where the
//! [`allocate::Allocator`] looks at more than shapes, from [`Evidence`]. It never changes what was
//! asked without saying so: whatever differs from the request carries a note. [`json`] writes a
//! plan for people to read and edit, and takes it back.

pub mod allocate;
mod error;
mod evidence;
pub mod gpu;
pub mod json;
mod kind;
pub mod phases;
mod uniform;
mod unit;

use htc_formats::DType;
use htc_formats::model::{HyperParameters, Slot};

use allocate::{Choice, Decision};
use kind::Kind;

use crate::request::{Allocation, SinkProtection, Treatment, TreatmentError};

pub use crate::request::{Budget, Method, Request};
pub use error::PlanError;
pub use evidence::{Branches, Evidence};
pub use unit::{Form, Member, Unit, UnitPlan};

/// The whole decision, in the order of execution; slots that no unit names stay dense.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What was asked.
    pub request: Request,
    /// The selected slots.
    pub units: Vec<UnitPlan>,
    /// What is to be said of the plan as a whole.
    pub notes: Vec<String>,
}

/// The units that a plan decides about, in the order of [`Plan::units`]: what [`Evidence`] is
/// measured on. `source_type` tells how the source stores a slot of a layer.
///
/// # Errors
/// [`PlanError::NoSlots`], [`PlanError::NoSharedInput`], [`PlanError::InputTooWide`].
pub fn units(
    hyper: &HyperParameters,
    request: &Request,
    source_type: impl Fn(usize, Slot) -> DType,
) -> Result<Vec<Unit>, PlanError> {
    Ok(kind::units(
        hyper,
        &kind::kinds(hyper, request)?,
        source_type,
    ))
}

/// Makes a plan. `source_type` tells how the source stores a slot of a layer.
///
/// # Errors
/// [`PlanError`] where no plan satisfies the request.
pub fn make(
    hyper: &HyperParameters,
    request: Request,
    evidence: &Evidence,
    source_type: impl Fn(usize, Slot) -> DType,
) -> Result<Plan, PlanError> {
    let kinds = kind::kinds(hyper, &request)?;
    let units = kind::units(hyper, &kinds, source_type);
    let (decisions, notes) = match fixed(&kinds, &request)? {
        Some(ranks) => {
            let ranks = ranks.iter().cycle().take(units.len());
            (ranks.copied().map(Decision::rank).collect(), Vec::new())
        }
        None => {
            let allocated = allocate::allocate(hyper, &request, &units, evidence)?;
            (allocated.decisions, allocated.notes)
        }
    };
    let units = units.into_iter().zip(decisions);
    let units = units.map(|(unit, decision)| settle(unit, decision, &request));
    Ok(Plan {
        units: units.collect(),
        notes,
        request,
    })
}

/// The rank of every kind where it does not depend on the layer; `None` where it is to be
/// allocated.
fn fixed(kinds: &[Kind], request: &Request) -> Result<Option<Vec<usize>>, PlanError> {
    let plain = request.allocation == Allocation::default();
    match request.budget {
        Budget::Rank(_) | Budget::FullRank if !plain => Err(PlanError::NothingToAllocate {
            option: request.allocation.option(),
        }),
        Budget::Rank(0) => Err(PlanError::RankZero),
        Budget::Rank(rank) => {
            let largest = kinds.iter().map(|k| k.limit).min().unwrap_or(0);
            match kinds.iter().find(|k| k.limit < rank) {
                Some(kind) => Err(PlanError::RankTooLarge {
                    rank,
                    slot: kind.name(),
                    limit: kind.limit,
                    rows: kind.outs,
                    cols: kind.cols,
                    largest,
                }),
                None => Ok(Some(vec![rank; kinds.len()])),
            }
        }
        Budget::FullRank => Ok(Some(kinds.iter().map(|k| k.limit).collect())),
        Budget::Ratio(ratio) if plain => {
            uniform::allocate(kinds, ratio, request.factor_type).map(Some)
        }
        Budget::Ratio(_) | Budget::Parameters(_) | Budget::Bytes(_) | Budget::MeanRank(_) => {
            Ok(None)
        }
    }
}

/// Gives a unit the form that was decided. Factors that would not be smaller are not made, unless
/// every component was asked for.
fn settle(unit: Unit, decision: Decision, request: &Request) -> UnitPlan {
    let asked = request.factor_type;
    let mut notes = decision.notes;
    let form = match decision.choice {
        Choice::Dense => Form::Dense,
        Choice::Rank(rank) => unit.factored(request.method, rank, asked),
    };
    let factors = match form {
        Form::Dense => Vec::new(),
        Form::LowRank { rank, a, b } => vec![("A", unit.cols, a), ("B", rank, b)],
        Form::SharedBasis {
            rank,
            basis,
            projected,
        } => vec![
            ("basis", unit.cols, basis),
            ("projected weights", rank, projected),
        ],
    };
    for (what, cols, dtype) in factors {
        if dtype != asked {
            notes.push(format!(
                "{what} in {dtype} instead of {asked}: rows of {cols} numbers are not whole blocks of {}",
                asked.block_len()
            ));
        }
    }
    let (before, after) = (unit.bytes(), form.bytes(&unit.members));
    let mut plan = UnitPlan {
        layer: unit.layer,
        members: unit.members,
        form,
        notes,
    };
    if let Choice::Rank(rank) = decision.choice
        && after >= before
    {
        let growth = format!("rank {rank} needs {after} bytes, the dense form {before}");
        if request.budget == Budget::FullRank {
            plan.notes.push(format!("grows: {growth}"));
        } else {
            plan.form = Form::Dense;
            plan.notes = vec![format!("kept dense: {growth}")];
        }
    }
    plan
}

impl Plan {
    /// The unit that holds a slot of a layer.
    pub fn unit_of(&self, layer: usize, slot: Slot) -> Option<&UnitPlan> {
        // Units are in the order of the layers.
        let first = self.units.partition_point(|u| u.layer < layer);
        self.units[first..]
            .iter()
            .take_while(|u| u.layer == layer)
            .find(|u| u.members.iter().any(|m| m.slot == slot))
    }

    /// Parameters after over parameters before, on the selected slots.
    pub fn ratio(&self) -> f64 {
        let before: u64 = self.units.iter().map(UnitPlan::parameters_before).sum();
        let after: u64 = self.units.iter().map(UnitPlan::parameters_after).sum();
        after as f64 / before as f64
    }
}

impl Treatment {
    /// Makes sure that a plan leaves room for it.
    ///
    /// # Errors
    /// [`TreatmentError::Channels`] where more channels are to stay exact than a unit has ranks.
    pub fn check(&self, plan: &Plan) -> Result<(), TreatmentError> {
        let SinkProtection::Channels(channels) = self.sink else {
            return Ok(());
        };
        let reads = plan.units.iter().filter(|unit| {
            let first = unit.members.first();
            unit.form != Form::Dense && first.is_some_and(|member| member.slot.group().is_some())
        });
        let small = reads.filter_map(|unit| Some((unit.rank()?, unit)));
        match small.min_by_key(|(rank, _)| *rank) {
            Some((rank, unit)) if rank < channels => Err(TreatmentError::Channels {
                channels,
                rank,
                unit: unit.label(),
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
