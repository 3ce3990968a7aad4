//! Planning: selects the form, rank and element types of every matrix before any computation.
//!
//! A [`Plan`] is made from the model's shapes, the [`Budget`] and, for some
//! [`allocate::Allocator`]s, [`Evidence`]. Every deviation from the request is recorded in a note.
//! [`json`] writes plans as editable files and reads them back; these pass the same validation.

pub mod allocate;
mod check;
mod error;
mod evidence;
mod form;
pub mod gpu;
pub mod json;
mod kind;
mod knapsack;
mod padding;
pub mod phases;
mod quantise;
mod refine;
mod sources;
mod uniform;
mod unit;

use htc_formats::DType;
use htc_formats::bands::{Codes, GROUP_COLS};
use htc_formats::block;
use htc_formats::model::{HyperParameters, MatrixId, ProjectionKind};

use allocate::{Allocator, Choice, Decision};
use form::factor_type_for;
use kind::ProjectionGroup;

use crate::options::{
    Allocation, DenseType, GaugeKind, OptionError, SinkProtection, Switch, Treatment,
    TreatmentOptions,
};

pub use crate::options::{Budget, Method, PlanRequest};
pub use check::PlanMismatch;
pub use error::PlanError;
pub use evidence::{
    BranchShares, Evidence, LossCurve, LossPoint, SharedLossCurve, SharedLossPoint,
};
pub use form::{MatrixForm, StoredForm};
pub(crate) use kind::MAX_ASPECT;
pub(crate) use knapsack::retain_falling;
pub(crate) use quantise::any_size_single_type_plan;
pub use quantise::{
    losses, matrices, pareto_sums_of, single_type_plan, unmeasured_single_type_plan,
};
pub use refine::{Refinement, choose_refinements, refinable_matrices};
pub use sources::{ModelFileTypes, SourceTypes};
pub(crate) use unit::label;
pub use unit::{Unit, UnitMatrix, UnitPlan, activation_point, is_router};

/// Forms of all planned matrices; others stay as in the source.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    request: PlanRequest,
    units: Vec<UnitPlan>,
    notes: Vec<String>,
    expected_loss: Option<f64>,
}

/// Returns the units of a plan in the order of [`Plan::units`]. `source_type` gives the type of a
/// matrix in the source.
pub fn units(
    hyper: &HyperParameters,
    request: &PlanRequest,
    source_type: impl SourceTypes,
) -> Result<Vec<Unit>, PlanError> {
    Ok(kind::units(
        hyper,
        &kind::projection_groups(hyper, request)?,
        &source_type,
    ))
}

/// Computes a plan. `source_type` gives the type of a matrix in the source.
///
/// # Errors
/// [`PlanError`] if no plan satisfies the request.
pub fn compute(
    hyper: &HyperParameters,
    request: PlanRequest,
    evidence: &Evidence,
    source_type: impl SourceTypes,
) -> Result<Plan, PlanError> {
    let Budget::Ratio(ratio) = request.budget else {
        return compute_unchecked_ratio(hyper, request, evidence, &source_type);
    };
    let factor_type = request.factor_type;
    let meets = |plan: &Plan| plan.ratio() <= ratio;
    let made = compute_unchecked_ratio(hyper, request.clone(), evidence, &source_type);
    let reached = match &made {
        Ok(plan) if !meets(plan) => Some(plan.ratio()),
        Err(PlanError::RatioTooSmall { smallest, .. }) => Some(*smallest),
        _ => None,
    };
    let Some(reached) = reached else {
        return made;
    };
    let others = block::writable_types().iter().copied();
    let others = others.filter(|&of| of != factor_type);
    let types = others.filter(|&factor_type| {
        let request = PlanRequest {
            factor_type,
            ..request.clone()
        };
        compute_unchecked_ratio(hyper, request, evidence, &source_type)
            .is_ok_and(|plan| meets(&plan))
    });
    match types.collect::<Vec<_>>() {
        types if types.is_empty() => made,
        types => Err(PlanError::RatioNeedsType {
            ratio,
            reached: allocate::round_up(reached, 4),
            factor_type,
            types,
        }),
    }
}

fn compute_unchecked_ratio(
    hyper: &HyperParameters,
    request: PlanRequest,
    evidence: &Evidence,
    source_type: &impl SourceTypes,
) -> Result<Plan, PlanError> {
    if request.method == Method::Quantise {
        let (units, lost) = quantise::allocate(hyper, &request, evidence, source_type)?;
        let mut notes = vec![format!(
            "the types are expected to cost {lost:.2e} nats of KL divergence per token"
        )];
        notes.extend(evidence.outliers.iter().cloned());
        let mut plan = validated(hyper, request, units, notes, source_type)?;
        plan.expected_loss = Some(lost);
        return Ok(plan);
    }
    let kinds = kind::projection_groups(hyper, &request)?;
    let units = kind::units(hyper, &kinds, source_type);
    let (decisions, notes) = match fixed_ranks(&kinds, &request)? {
        Some(ranks) => {
            let ranks = ranks.iter().cycle().take(units.len());
            (ranks.copied().map(Decision::rank).collect(), Vec::new())
        }
        None => allocate::allocate(hyper, &request, &units, evidence)?,
    };
    let decided = units.into_iter().zip(decisions);
    let mut units: Vec<UnitPlan> = decided
        .map(|(unit, decision)| apply_decision(unit, decision, &request))
        .collect();
    units.extend(unselected_dense_units(hyper, &request, source_type));
    let mut plan = validated(hyper, request, units, notes, source_type)?;
    if plan.request.allocation.allocator == Allocator::CacheFit
        && let Some(cache) = evidence.l2_bytes
    {
        let head = match source_type.dtype(MatrixId::Head) {
            Some(_) => MatrixId::Head,
            None => MatrixId::Embedding,
        };
        let unplanned = unplanned_bytes(hyper, &plan, head, source_type);
        let predicted = allocate::predict_speed(&plan, head, unplanned, cache).to_string();
        plan.notes.push(predicted);
    }
    Ok(plan)
}

/// Returns a plan of units that were computed.
pub(crate) fn validated(
    hyper: &HyperParameters,
    request: PlanRequest,
    units: Vec<UnitPlan>,
    notes: Vec<String>,
    source_type: &impl SourceTypes,
) -> Result<Plan, PlanError> {
    Plan::new(hyper, request, units, notes, source_type)
        .map_err(|faults| PlanError::Inconsistent(faults.first().map(ToString::to_string)))
}

/// Returns the bytes that a token reads apart from the units of a plan: unplanned projections, and
/// the head or the tied embedding.
fn unplanned_bytes(
    hyper: &HyperParameters,
    plan: &Plan,
    head: MatrixId,
    source_type: &impl SourceTypes,
) -> u64 {
    let unplanned = unit::projections(hyper)
        .into_iter()
        .chain([head])
        .filter(|&matrix| plan.unit_of(matrix).is_none());
    let members = unplanned.filter_map(|matrix| UnitMatrix::new(matrix, hyper, source_type));
    members.map(|member| member.bytes()).sum()
}

fn unselected_dense_units(
    hyper: &HyperParameters,
    request: &PlanRequest,
    source_type: &impl SourceTypes,
) -> Vec<UnitPlan> {
    let is_selected =
        |projection: ProjectionKind| request.projections.contains(&projection.dense());
    let others = unit::projections(hyper).into_iter();
    let others = others.filter(|matrix| !matrix.projection().is_some_and(is_selected));
    let others = others.filter(|&matrix| !is_router(matrix));
    let outside = [MatrixId::Embedding, MatrixId::Head].into_iter();
    let of_type = |requested: Option<DenseType>| move |matrix| Some((matrix, requested?));
    let dense = outside.filter_map(of_type(request.dense_types.embedding_and_head));
    let dense = dense.chain(others.filter_map(of_type(request.dense_types.projections)));
    let units = dense.filter_map(|(matrix, requested)| {
        let members = vec![UnitMatrix::new(matrix, hyper, source_type)?];
        let (form, notes) = dense_form(&members, Some(requested));
        Some(UnitPlan {
            members,
            form,
            notes,
        })
    });
    units.collect()
}

/// Returns the dense form of matrices with the same input: as in the source, or in the requested
/// type if that is smaller. The notes list deviations.
fn dense_form(members: &[UnitMatrix], requested: Option<DenseType>) -> (MatrixForm, Vec<String>) {
    let Some(requested) = requested else {
        return (MatrixForm::Unchanged, Vec::new());
    };
    let cols = members.first().map_or(0, |member| member.cols);
    let (form, weight) = match requested {
        DenseType::Blocks(dtype) => {
            let weight = factor_type_for(dtype, cols);
            (MatrixForm::Dense { weight }, DenseType::Blocks(weight))
        }
        DenseType::ColumnGroups(code) => match Codes::uniform(code, cols) {
            Ok(codes) => (
                MatrixForm::ColumnGroups {
                    codes: codes.into(),
                },
                requested,
            ),
            Err(_) => {
                let weight = DType::F16;
                (MatrixForm::Dense { weight }, DenseType::Blocks(weight))
            }
        },
    };
    let (before, after) = (MatrixForm::Unchanged.bytes(members), form.bytes(members));
    let same = |member: &UnitMatrix| DenseType::Blocks(member.source_type) == requested;
    if members.iter().all(same) {
        return (MatrixForm::Unchanged, Vec::new());
    }
    if after >= before {
        let said =
            format!("kept as in the source: {weight} needs {after} bytes, the source {before}");
        return (MatrixForm::Unchanged, vec![said]);
    }
    let instead = (weight != requested).then(|| fallback_note("weight", weight, requested, cols));
    (form, instead.into_iter().collect())
}

fn fallback_note(what: &str, found: DenseType, requested: DenseType, cols: usize) -> String {
    let block = match requested {
        DenseType::Blocks(dtype) => dtype.block_len(),
        DenseType::ColumnGroups(_) => GROUP_COLS,
    };
    format!(
        "{what} in {found} instead of {requested}: rows of {cols} numbers are not whole blocks of {block}"
    )
}

fn fixed_ranks(
    kinds: &[ProjectionGroup],
    request: &PlanRequest,
) -> Result<Option<Vec<usize>>, PlanError> {
    let plain = request.allocation == Allocation::default();
    match request.budget {
        Budget::Rank(_) | Budget::FullRank if !plain => Err(PlanError::NothingToAllocate {
            option: request.allocation.first_non_default_option(),
        }),
        Budget::Rank(0) => Err(PlanError::RankZero),
        Budget::Rank(rank) => {
            let largest = kinds.iter().map(|k| k.limit).min().unwrap_or(0);
            match kinds.iter().find(|k| k.limit < rank) {
                Some(kind) => Err(PlanError::RankTooLarge {
                    rank,
                    projection: kind.name(),
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
        Budget::Energy if request.allocation.allocator != Allocator::DiffPlan => {
            Err(PlanError::NoBudget)
        }
        Budget::Ratio(_)
        | Budget::Parameters(_)
        | Budget::Bytes(_)
        | Budget::MeanRank(_)
        | Budget::Energy => Ok(None),
        Budget::FileSize(_) | Budget::SourceFraction(_) | Budget::Bits(_) => {
            Err(PlanError::BudgetRequiresQuantise {
                budget: request.budget,
                method: request.method,
            })
        }
    }
}

/// Factors that are not smaller than the dense form are dropped, unless full rank was requested.
fn apply_decision(unit: Unit, decision: Decision, request: &PlanRequest) -> UnitPlan {
    let requested = request.factor_type;
    let mut notes = decision.notes;
    let (dense, of_dense) = dense_form(&unit.members, request.dense_type_of_selected());
    // With the dense type of the projections, if any.
    let (compared, _) = dense_form(&unit.members, request.dense_types.projections);
    let form = match decision.choice {
        Choice::Dense => dense.clone(),
        Choice::Rank(rank) => unit.factored_form(request, rank),
    };
    let factors = match form {
        MatrixForm::LowRank { rank, a, b } => vec![("A", unit.cols, a), ("B", rank, b)],
        MatrixForm::SharedBasis {
            rank,
            basis,
            projected,
        } => vec![
            ("basis", unit.cols, basis),
            ("projected weights", rank, projected),
        ],
        _ => {
            notes.extend(of_dense.clone());
            Vec::new()
        }
    };
    let exempt = unit.exact_type(request).is_some();
    for (what, cols, dtype) in factors
        .into_iter()
        .filter(|(.., dtype)| *dtype != requested)
    {
        notes.push(if exempt {
            format!("{what} in {dtype} instead of {requested}: exempt channels are exact there")
        } else {
            fallback_note(what, dtype.into(), requested.into(), cols)
        });
    }
    let (before, after) = (compared.bytes(&unit.members), form.bytes(&unit.members));
    let mut plan = UnitPlan {
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
            plan.form = dense;
            plan.notes = vec![format!("kept dense: {growth}")];
            plan.notes.extend(of_dense);
        }
    }
    plan
}

impl Plan {
    /// Returns a plan of these units after validation.
    ///
    /// # Errors
    /// All faults of the units.
    pub fn new(
        hyper: &HyperParameters,
        request: PlanRequest,
        mut units: Vec<UnitPlan>,
        mut notes: Vec<String>,
        source_type: &impl SourceTypes,
    ) -> Result<Plan, Vec<PlanMismatch>> {
        units.sort_by_key(|unit| unit.members.first().map(|member| member.matrix));
        padding::update_padding_note(&units, &mut notes);
        let plan = Plan {
            request,
            units,
            notes,
            expected_loss: None,
        };
        let faults = plan.check(hyper, source_type);
        if faults.is_empty() {
            Ok(plan)
        } else {
            Err(faults)
        }
    }

    /// Returns all faults of the plan for a model.
    pub fn check(
        &self,
        hyper: &HyperParameters,
        source_type: &impl SourceTypes,
    ) -> Vec<PlanMismatch> {
        let mut check = check::PlanChecker::new(hyper, self.request.method, source_type);
        let units = self.units.iter();
        units.flat_map(|unit| check.check_unit(unit)).collect()
    }

    /// Returns the request.
    pub fn request(&self) -> &PlanRequest {
        &self.request
    }

    /// Returns true if the plan permutes channels.
    pub fn permutes_channels(&self) -> bool {
        self.request.layout.order == Some(Switch::On)
    }

    /// Returns true if the artifact has bases for the KV cache.
    pub fn has_kv_bases(&self) -> bool {
        self.request.layout.kv_bases.is_on()
    }

    /// Returns true if execution needs gradients of the outputs.
    pub fn needs_gradients(&self) -> bool {
        let quantises = self.request.method == Method::Quantise;
        self.units.iter().any(|unit| match &unit.form {
            MatrixForm::ColumnGroups { .. } => true,
            MatrixForm::Dense { weight } => quantises && crate::codes::has_feedback(*weight),
            _ => false,
        })
    }

    /// Sets the weight treatment for execution.
    pub fn set_treatment(&mut self, treatment: TreatmentOptions) {
        self.request.treatment = treatment;
    }

    /// Returns the treatment of units with factors; with the method `quantise` the gauge is
    /// [`GaugeKind::Whiten`], as during planning.
    pub fn treatment_of_factors(&self, treatment: Treatment, calibrated: bool) -> Treatment {
        let factors = self.units.iter().any(|unit| unit.rank().is_some());
        let gauge = match self.request.method {
            Method::Quantise if factors && calibrated => GaugeKind::Whiten,
            _ => treatment.gauge,
        };
        Treatment { gauge, ..treatment }
    }

    /// Returns the estimated increase of the KL divergence, nats per token, if types were chosen by
    /// it.
    pub fn estimated_loss(&self) -> Option<f64> {
        self.expected_loss
    }

    pub(crate) fn add_note(&mut self, said: String) {
        self.notes.push(said);
    }

    /// Returns the planned matrices in the order of execution.
    pub fn units(&self) -> &[UnitPlan] {
        &self.units
    }

    /// Returns the notes on the whole plan.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the type or code that all re-encoded matrices share, if any.
    pub fn uniform_type(&self) -> Option<DenseType> {
        let mut types = self.units.iter().filter_map(|unit| match &unit.form {
            MatrixForm::Unchanged => None,
            MatrixForm::Dense { weight } => Some(Some(DenseType::Blocks(*weight))),
            MatrixForm::ColumnGroups { codes } => {
                Some(codes.uniform_code().map(DenseType::ColumnGroups))
            }
            _ => Some(None),
        });
        let first = types.next()??;
        types.all(|other| other == Some(first)).then_some(first)
    }

    /// Returns the unit that contains a matrix.
    pub fn unit_of(&self, matrix: MatrixId) -> Option<&UnitPlan> {
        let block = |matrix: MatrixId| match matrix {
            MatrixId::Embedding => (0, 0),
            MatrixId::Projection { layer, .. } => (1, layer),
            MatrixId::Head => (2, 0),
        };
        let of = |unit: &UnitPlan| unit.members.first().map(|member| block(member.matrix));
        let target = Some(block(matrix));
        let first = self.units.partition_point(|unit| of(unit) < target);
        self.units[first..]
            .iter()
            .take_while(|unit| of(unit) == target)
            .find(|unit| unit.members.iter().any(|member| member.matrix == matrix))
    }

    /// Returns parameters after over parameters before of the selected projections.
    pub fn ratio(&self) -> f64 {
        let selected = |unit: &&UnitPlan| {
            let mut projections = unit.members.iter().filter_map(UnitMatrix::projection);
            projections.any(|projection| self.request.projections.contains(&projection.dense()))
        };
        let units = || self.units.iter().filter(selected);
        let before: u64 = units().map(UnitPlan::parameters_before).sum();
        let after: u64 = units().map(UnitPlan::parameters_after).sum();
        match before {
            0 => 1.0,
            before => after as f64 / before as f64,
        }
    }
}

impl Treatment {
    /// Checks that a plan permits this treatment.
    ///
    /// # Errors
    /// [`OptionError::Channels`] if more channels are exempt than a unit has ranks,
    /// [`OptionError::ChannelType`] if the factor type cannot hold them exactly.
    pub fn check(&self, plan: &Plan) -> Result<(), OptionError> {
        let SinkProtection::Channels(channels) = self.sink else {
            return Ok(());
        };
        let reads = || plan.units.iter().filter(|unit| unit.reads_stream());
        if let Some((unit, (stored, exact))) =
            reads().find_map(|unit| Some((unit, unit.rounded_source_type()?)))
        {
            return Err(OptionError::ChannelType {
                channels,
                unit: unit.label(),
                stored,
                exact,
            });
        }
        let small = reads().filter_map(|unit| Some((unit.rank()?, unit)));
        match small.min_by_key(|(rank, _)| *rank) {
            Some((rank, unit)) if rank < channels => Err(OptionError::Channels {
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
