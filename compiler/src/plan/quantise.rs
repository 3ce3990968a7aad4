//! Allocates the bytes of a file to types of its matrices with the least total loss.
//!
//! The loss of a matrix in a type is measured before ([`LossCurve`]), in nats of KL divergence per
//! token. Losses are added: errors of different matrices are small and nearly independent. The
//! choice is a [knapsack](super::knapsack) with one item per matrix, or per group that may share a
//! basis ([`SharedLossCurve`]).

use htc_formats::bands::Codes;
use htc_formats::model::{HyperParameters, MatrixId};

use super::evidence::curve_of;
use super::form::MatrixForm;
use super::knapsack::{Candidate, core, pareto_front, pareto_sums, solve, spend_remainder};
use super::unit::{UnitMatrix, UnitPlan, is_router, projections};
use crate::options::DenseType;

use super::{
    Budget, Evidence, LossCurve, LossPoint, Plan, PlanError, PlanRequest, SharedLossCurve,
    SourceTypes,
};

/// Returns all matrices that a model stores, in the order of execution.
pub fn matrices(hyper: &HyperParameters, source_type: &impl SourceTypes) -> Vec<UnitMatrix> {
    let all = [MatrixId::Embedding].into_iter().chain(projections(hyper));
    all.chain([MatrixId::Head])
        .filter_map(|matrix| UnitMatrix::new(matrix, hyper, source_type))
        .collect()
}

/// Returns the units and their estimated loss, nats per token.
pub(super) fn allocate(
    hyper: &HyperParameters,
    request: &PlanRequest,
    evidence: &Evidence,
    source_type: &impl SourceTypes,
) -> Result<(Vec<UnitPlan>, f64), PlanError> {
    let lacking = |needs, remedy| PlanError::NoMeasurement { needs, remedy };
    let (overhead, budget) = match (request.budget, evidence.overhead_bytes) {
        (Budget::FileSize(total), Some(overhead)) => (overhead, total.saturating_sub(overhead)),
        (Budget::Bytes(total), _) => (0, total),
        (
            Budget::FileSize(_) | Budget::SourceFraction(_) | Budget::Bits(_) | Budget::Ratio(_),
            None,
        ) => {
            let needs = "the bytes of the file beside its matrices";
            return Err(lacking(needs, "give the file"));
        }
        (budget, _) => return Err(PlanError::BudgetRequiresFactors { budget }),
    };
    let curves = evidence.curves.as_ref().ok_or_else(|| {
        lacking(
            "what each matrix loses in each type",
            "calibrate with `calibration`",
        )
    })?;
    let members = matrices(hyper, source_type);
    let choices: Vec<Vec<Candidate>> = members
        .iter()
        .map(|member| pareto_forms(member, curves))
        .collect();
    let closest = least_loss_units(&members, &choices, curves, &evidence.shared, budget);
    closest.ok_or_else(|| PlanError::FileTooSmall {
        budget: request.budget,
        smallest: least_bytes(&members, &choices, &evidence.shared) + overhead,
    })
}

/// Maximum loss relative to codes alone. Unlike rounding errors, truncation errors are not
/// additive and cost more than estimated.
const MAX_RELATIVE_LOSS: f64 = 0.9;

/// Returns the units of a budget and their loss: in codes alone, or with factors and shared bases
/// if these are estimated to lose clearly less. `None` if even the smallest forms are too large.
fn least_loss_units(
    members: &[UnitMatrix],
    choices: &[Vec<Candidate>],
    curves: &[LossCurve],
    shared: &[SharedLossCurve],
    budget: u64,
) -> Option<(Vec<UnitPlan>, f64)> {
    let finer: Vec<Vec<Candidate>> = members
        .iter()
        .map(|member| intermediate_forms(member, curves))
        .collect();
    let each = |choices: &[Vec<Candidate>]| {
        let (mut chosen, lost) = solve(&core(choices.to_vec(), budget), budget)?;
        let lost = lost - spend_remainder(&mut chosen, [choices, &finer], budget);
        let units = members.iter().zip(chosen);
        let units = units.map(|(member, choice)| UnitPlan::new(vec![*member], choice.form));
        Some((units.collect::<Vec<UnitPlan>>(), lost))
    };
    let is_code = |choice: &&Candidate| choice.form.rank().is_none();
    let codes: Vec<Vec<Candidate>> = members
        .iter()
        .map(|member| {
            let all = candidate_forms(member, curves);
            pareto_front(all.iter().filter(is_code).cloned().collect())
        })
        .collect();
    let alone = each(&codes);
    let with_factors = if codes == choices {
        None
    } else {
        each(choices)
    };
    let together = units_with_shared_bases(members, choices, &finer, shared, budget);
    let less = |one: &(Vec<UnitPlan>, f64), other: &(Vec<UnitPlan>, f64)| one.1.total_cmp(&other.1);
    let mixed = with_factors.into_iter().chain(together).min_by(less);
    match (alone, mixed) {
        (Some(alone), Some(mixed)) if mixed.1 < MAX_RELATIVE_LOSS * alone.1 => Some(mixed),
        (Some(alone), _) => Some(alone),
        (None, mixed) => mixed,
    }
}

#[derive(Clone, Debug, PartialEq)]
enum GroupForm {
    Separate(Vec<MatrixForm>),
    Shared(MatrixForm),
}

fn units_with_shared_bases(
    members: &[UnitMatrix],
    choices: &[Vec<Candidate>],
    finer: &[Vec<Candidate>],
    shared: &[SharedLossCurve],
    budget: u64,
) -> Option<(Vec<UnitPlan>, f64)> {
    if shared.is_empty() {
        return None;
    }
    let mut groups: Vec<Vec<UnitMatrix>> = Vec::new();
    let mut items: Vec<Vec<Candidate<GroupForm>>> = Vec::new();
    let each = |sum: Candidate<Vec<MatrixForm>>| Candidate {
        form: GroupForm::Separate(sum.form),
        bytes: sum.bytes,
        loss: sum.loss,
    };
    let mut grouped = vec![false; members.len()];
    for curve in shared {
        let of = |matrix: &MatrixId| members.iter().position(|member| member.matrix == *matrix);
        let of: Option<Vec<usize>> = curve.members.iter().map(of).collect();
        let Some(of) = of.filter(|of| of.iter().all(|&index| !grouped[index])) else {
            continue;
        };
        let own: Vec<Vec<Candidate>> = of.iter().map(|&index| choices[index].clone()).collect();
        let group: Vec<UnitMatrix> = of.iter().map(|&index| members[index]).collect();
        let mut all: Vec<Candidate<GroupForm>> = pareto_sums(&own).into_iter().map(each).collect();
        all.extend(shared_candidates(&group, curve));
        of.iter().for_each(|&index| grouped[index] = true);
        items.push(pareto_front(all));
        groups.push(group);
    }
    let one = |choice: &Candidate| Candidate {
        form: GroupForm::Separate(vec![choice.form.clone()]),
        bytes: choice.bytes,
        loss: choice.loss,
    };
    let mut between = vec![Vec::new(); items.len()];
    for index in (0..members.len()).filter(|&index| !grouped[index]) {
        items.push(choices[index].iter().map(one).collect());
        between.push(finer[index].iter().map(one).collect());
        groups.push(vec![members[index]]);
    }
    let (mut chosen, lost) = solve(&core(items.clone(), budget), budget)?;
    let lost = lost - spend_remainder(&mut chosen, [&items, &between], budget);
    let units = groups.into_iter().zip(chosen);
    let units = units.flat_map(|(members, choice)| match choice.form {
        GroupForm::Shared(form) => vec![UnitPlan::new(members, form)],
        GroupForm::Separate(forms) => {
            let each = members.into_iter().zip(forms);
            each.map(|(member, form)| UnitPlan::new(vec![member], form))
                .collect()
        }
    });
    Some((units.collect(), lost))
}

fn shared_candidates<'a>(
    members: &'a [UnitMatrix],
    curve: &'a SharedLossCurve,
) -> impl Iterator<Item = Candidate<GroupForm>> + 'a {
    let finite = |losses: &[f64]| losses.iter().all(|loss| loss.is_finite());
    let points = curve.points.iter();
    let points = points.filter(move |point| finite(&point.losses));
    points.map(|point| Candidate {
        bytes: point.form.bytes(members),
        loss: point.losses.iter().map(|loss| loss.max(0.0)).sum(),
        form: GroupForm::Shared(point.form.clone()),
    })
}

fn least_bytes(
    members: &[UnitMatrix],
    choices: &[Vec<Candidate>],
    shared: &[SharedLossCurve],
) -> u64 {
    let least = |of: &[Candidate]| of.iter().map(|choice| choice.bytes).min().unwrap_or(0);
    let all: u64 = choices.iter().map(|of| least(of)).sum();
    let saved = shared.iter().map(|curve| {
        let of = |(member, _): &(&UnitMatrix, _)| curve.members.contains(&member.matrix);
        let of: Vec<_> = members.iter().zip(choices).filter(of).collect();
        let own: u64 = of.iter().map(|(_, choices)| least(choices)).sum();
        let group: Vec<UnitMatrix> = of.iter().map(|(member, _)| **member).collect();
        let common = shared_candidates(&group, curve)
            .map(|choice| choice.bytes)
            .min();
        own.saturating_sub(common.unwrap_or(own))
    });
    all - saved.sum::<u64>().min(all)
}

/// Returns the Pareto-optimal sums of separate forms: bytes and nats per token, smallest first.
pub fn pareto_sums_of(members: &[UnitMatrix], curves: &[LossCurve]) -> Vec<(u64, f64)> {
    let own: Vec<Vec<Candidate>> = members
        .iter()
        .map(|one| pareto_forms(one, curves))
        .collect();
    let all = pareto_sums(&own).into_iter();
    all.map(|sum| (sum.bytes, sum.loss)).collect()
}

/// Returns the plan with every matrix in one type, and its estimated loss. Matrices that would not
/// shrink, or whose rows are not whole blocks, stay as in the source. `None` if nothing was
/// measured for the type.
pub fn single_type_plan(
    hyper: &HyperParameters,
    request: PlanRequest,
    evidence: &Evidence,
    source_type: impl SourceTypes,
    dense: DenseType,
) -> Result<Option<(Plan, f64)>, PlanError> {
    let Some(curves) = &evidence.curves else {
        return Ok(None);
    };
    let mut lost = 0.0;
    let units = matrices(hyper, &source_type).into_iter().map(|member| {
        let mut of_member = candidate_forms(&member, curves).into_iter();
        let found = of_member.find(|choice| has_type(&choice.form, dense));
        lost += found.as_ref().map_or(0.0, |choice| choice.loss);
        let form = found.map_or(MatrixForm::Unchanged, |choice| choice.form);
        UnitPlan::new(vec![member], form)
    });
    let plan = plan_of_changed(hyper, request, units.collect(), &source_type)?;
    Ok(plan.map(|mut plan| {
        plan.expected_loss = Some(lost);
        (plan, lost)
    }))
}

/// Returns the plan of these units; `None` if all of them stay as in the source.
fn plan_of_changed(
    hyper: &HyperParameters,
    request: PlanRequest,
    units: Vec<UnitPlan>,
    source_type: &impl SourceTypes,
) -> Result<Option<Plan>, PlanError> {
    if units.iter().all(|unit| unit.form == MatrixForm::Unchanged) {
        return Ok(None);
    }
    super::validated(hyper, request, units, Vec::new(), source_type).map(Some)
}

/// Returns the plan with every matrix in one type, without measurements. Matrices that would not
/// shrink, or whose rows are not whole blocks, stay as in the source. `None` if all of them do.
pub fn unmeasured_single_type_plan(
    hyper: &HyperParameters,
    request: PlanRequest,
    source_type: impl SourceTypes,
    dense: DenseType,
) -> Result<Option<Plan>, PlanError> {
    let shrinks = |member: UnitMatrix, form: &MatrixForm| form.bytes(&[member]) < member.bytes();
    single_type_plan_where(hyper, request, source_type, dense, shrinks)
}

/// As [`unmeasured_single_type_plan`], but matrices may grow.
pub(crate) fn any_size_single_type_plan(
    hyper: &HyperParameters,
    request: PlanRequest,
    source_type: impl SourceTypes,
    dense: DenseType,
) -> Result<Option<Plan>, PlanError> {
    single_type_plan_where(hyper, request, source_type, dense, |_, _| true)
}

fn single_type_plan_where(
    hyper: &HyperParameters,
    request: PlanRequest,
    source_type: impl SourceTypes,
    dense: DenseType,
    is_taken: impl Fn(UnitMatrix, &MatrixForm) -> bool,
) -> Result<Option<Plan>, PlanError> {
    let rotates = request.codes.rotates();
    let encoded = |cols: usize| match dense {
        DenseType::Blocks(weight) => {
            let fits = weight.row_bytes(cols).is_some();
            fits.then_some(MatrixForm::Dense { weight })
        }
        DenseType::ColumnGroups(code) => {
            let codes = Codes::uniform(code, cols).ok()?;
            let codes = if rotates {
                codes.with_rotation()
            } else {
                codes
            };
            let codes = codes.into();
            Some(MatrixForm::ColumnGroups { codes })
        }
    };
    let units = matrices(hyper, &source_type).into_iter().map(|member| {
        let form = encoded(member.cols);
        let form = form.filter(|form| !is_router(member.matrix) && is_taken(member, form));
        UnitPlan::new(vec![member], form.unwrap_or(MatrixForm::Unchanged))
    });
    plan_of_changed(hyper, request, units.collect(), &source_type)
}

fn has_type(form: &MatrixForm, dense: DenseType) -> bool {
    match (form, dense) {
        (MatrixForm::Dense { weight }, DenseType::Blocks(dtype)) => *weight == dtype,
        (MatrixForm::ColumnGroups { codes }, DenseType::ColumnGroups(code)) => {
            codes.uniform_code() == Some(code)
        }
        _ => false,
    }
}

/// Returns the estimated loss of each matrix of a plan if its form was measured.
pub fn losses<'a>(
    plan: &'a Plan,
    curves: &'a [LossCurve],
    shared: &'a [SharedLossCurve],
) -> impl Iterator<Item = (&'a UnitMatrix, &'a MatrixForm, f64)> {
    let units = plan.units().iter();
    let members = units.flat_map(|unit| {
        let members = unit.members.iter().enumerate();
        members.map(move |(index, member)| (unit, index, member))
    });
    members.filter_map(|(unit, index, member)| {
        let own = || curve_of(curves, member.matrix);
        let loss = match &unit.form {
            MatrixForm::Unchanged => own().map(|_| 0.0)?,
            form @ MatrixForm::SharedBasis { .. } => {
                let is_own = |curve: &&SharedLossCurve| {
                    let of = unit.members.iter().map(|member| member.matrix);
                    of.eq(curve.members.iter().copied())
                };
                let points = &shared.iter().find(is_own)?.points;
                let point = points.iter().find(|point| point.form == *form)?;
                *point.losses.get(index)?
            }
            form => {
                let own = own()?;
                let mut measured = own.points.iter().chain(&own.intermediate);
                measured.find(|point| point.form == *form)?.loss
            }
        };
        Some((member, &unit.form, loss))
    })
}

fn candidate_forms(member: &UnitMatrix, curves: &[LossCurve]) -> Vec<Candidate> {
    let members = std::slice::from_ref(member);
    let measured = curve_of(curves, member.matrix);
    let mut all = candidates(member, measured.map_or(&[], |curve| &curve.points));
    all.retain(
        |of| !matches!(of.form, MatrixForm::Dense { weight } if weight == member.source_type),
    );
    all.push(Candidate {
        bytes: MatrixForm::Unchanged.bytes(members),
        form: MatrixForm::Unchanged,
        loss: 0.0,
    });
    all
}

fn intermediate_forms(member: &UnitMatrix, curves: &[LossCurve]) -> Vec<Candidate> {
    let measured = curve_of(curves, member.matrix);
    candidates(member, measured.map_or(&[], |curve| &curve.intermediate))
}

fn candidates(member: &UnitMatrix, points: &[LossPoint]) -> Vec<Candidate> {
    let finite = points.iter().filter(|point| point.loss.is_finite());
    let candidate = |point: &LossPoint| Candidate {
        bytes: point.form.bytes(std::slice::from_ref(member)),
        form: point.form.clone(),
        loss: point.loss.max(0.0),
    };
    finite.map(candidate).collect()
}

fn pareto_forms(member: &UnitMatrix, curves: &[LossCurve]) -> Vec<Candidate> {
    pareto_front(candidate_forms(member, curves))
}

#[cfg(test)]
mod tests;
