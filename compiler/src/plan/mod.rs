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

use std::fmt;

use htc_formats::DType;
use htc_formats::model::{HyperParameters, InputGroup, Slot};

use crate::request::Asked;
use allocate::{Allocation, Choice, Decision};
use kind::Kind;

pub use error::PlanError;
pub use evidence::{Branches, Evidence};
pub use unit::{Form, Member, Unit, UnitPlan};

/// How slots are approximated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Every slot alone: `W ≈ B A`.
    PerSlot,
    /// Slots that read the same input share a basis: `W_i ≈ W̃_i Pᵀ`.
    SharedBasis,
}

impl Method {
    /// The name used on the command line and in the manifest.
    pub const fn name(self) -> &'static str {
        match self {
            Method::PerSlot => "gp",
            Method::SharedBasis => "grc",
        }
    }

    /// The slots the method compresses unless told otherwise.
    pub const fn default_slots(self) -> &'static [Slot] {
        match self {
            Method::PerSlot => &Slot::ALL,
            Method::SharedBasis => InputGroup::Qkv.slots(),
        }
    }
}

/// How much may be kept. All but the first two are met from below, to the granularity of ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// The same rank for every selected slot.
    Rank(usize),
    /// Every slot at its own full rank, stored as factors even where they are larger than the
    /// dense matrix: nothing is lost but rounding.
    FullRank,
    /// Parameters after over parameters before, counted on the selected slots.
    Ratio(f64),
    /// Numbers stored for the selected slots.
    Parameters(u64),
    /// Bytes stored for the selected slots, as they lie in the artifact, without the alignment
    /// between tensors.
    Bytes(u64),
    /// The mean of the ranks of all units; one that stays dense counts with its full rank.
    MeanRank(f64),
}

/// As it is typed.
impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Budget::Rank(rank) => write!(f, "--rank {rank}"),
            Budget::FullRank => write!(f, "--rank full"),
            Budget::Ratio(ratio) => write!(f, "--ratio {ratio}"),
            Budget::Parameters(total) => write!(f, "--parameters {total}"),
            Budget::Bytes(total) => write!(f, "--bytes {total}"),
            Budget::MeanRank(mean) => write!(f, "--mean-rank {mean}"),
        }
    }
}

/// What the caller asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// How slots are approximated.
    pub method: Method,
    /// How much may be kept.
    pub budget: Budget,
    /// How the budget is shared out, and within which bounds.
    pub allocation: Allocation,
    /// The slots to compress, without repetition, in the order of execution.
    pub slots: Vec<Slot>,
    /// How factors are stored.
    pub factor_type: DType,
    /// How weights are to be treated; a plan does not depend on it, and passes it on.
    pub weighting: Asked,
}

/// As it is typed, without the slots.
impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Allocation {
            allocator,
            floor,
            cap,
        } = self.allocation;
        let (method, factor_type) = (self.method.name(), self.factor_type);
        write!(
            f,
            "--method {method} --factor-type {factor_type} {}",
            self.budget
        )?;
        write!(f, " --allocator {allocator}")?;
        if let Some(floor) = floor {
            write!(f, " --rank-floor {floor}")?;
        }
        if let Some(cap) = cap {
            write!(f, " --rank-cap {cap}")?;
        }
        if self.weighting != Asked::default() {
            write!(f, " {}", self.weighting)?;
        }
        Ok(())
    }
}

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

#[cfg(test)]
mod tests;
