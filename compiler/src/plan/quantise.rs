//! Allocates the bytes of a file to types of its matrices with the least total loss.
//!
//! The loss of a matrix in a type is measured before ([`Curve`]), in nats of KL divergence per
//! token. Losses are added: errors of different matrices are small and nearly independent. The
//! choice is a [knapsack](super::knapsack) with one item per matrix. Projections that may share a
//! basis ([`SharedCurve`]) form one item, which combines their separate and their shared forms.

use htc_formats::DType;
use htc_formats::model::{HyperParameters, MatrixId, Slot};

use super::form::Form;
use super::knapsack::{Choice, best, core, fill, sums, unbeaten};
use super::unit::{Member, UnitPlan};
use crate::request::DenseType;

use super::{Budget, Curve, Evidence, Plan, PlanError, Request, SharedCurve, SourceTypes};

/// Returns all matrices that a model stores, in the order of execution.
pub fn matrices(hyper: &HyperParameters, source_type: &impl SourceTypes) -> Vec<Member> {
    let slots = (0..hyper.layers).flat_map(|layer| {
        let slots = Slot::ALL.into_iter();
        slots.map(move |slot| MatrixId::Slot { layer, slot })
    });
    let all = [MatrixId::Embedding]
        .into_iter()
        .chain(slots)
        .chain([MatrixId::Head]);
    all.filter_map(|matrix| Member::new(matrix, hyper, source_type))
        .collect()
}

/// Selects the form of every matrix. Returns the units and their estimated loss, nats per token.
pub(super) fn allocate(
    hyper: &HyperParameters,
    request: &Request,
    evidence: &Evidence,
    source_type: &impl SourceTypes,
) -> Result<(Vec<UnitPlan>, f64), PlanError> {
    let lacking = |needs, remedy| PlanError::NoMeasurement { needs, remedy };
    let (beside, budget) = match (request.budget, evidence.beside) {
        (Budget::FileSize(total), Some(beside)) => (beside, total.saturating_sub(beside)),
        (Budget::Bytes(total), _) => (0, total),
        // Bits and ratios are converted to bytes if a file is given.
        (Budget::FileSize(_) | Budget::Bits(_) | Budget::Ratio(_), None) => {
            let needs = "the bytes of the file beside its matrices";
            return Err(lacking(needs, "give the file"));
        }
        (budget, _) => return Err(PlanError::NotOfFiles { budget }),
    };
    let curves = evidence.curves.as_ref().ok_or_else(|| {
        lacking(
            "what each matrix loses in each type",
            "calibrate with `calibration`",
        )
    })?;
    let members = matrices(hyper, source_type);
    let choices: Vec<Vec<Choice>> = members
        .iter()
        .map(|member| choices(member, curves))
        .collect();
    let closest = closest(&members, (&choices, curves), &evidence.shared, budget);
    closest.ok_or_else(|| PlanError::FileTooSmall {
        budget: request.budget,
        smallest: smallest(&members, &choices, &evidence.shared) + beside,
    })
}

/// Required loss of factors relative to codes alone. Truncation errors are not additive like
/// rounding errors and cost more than estimated.
const WORTH: f64 = 0.9;

/// Returns the units of a budget and their loss: in codes alone, or with factors and shared bases
/// if these are estimated to lose clearly less. `None` if even the smallest forms are too large.
fn closest(
    members: &[Member],
    (choices, curves): (&[Vec<Choice>], &[Curve]),
    shared: &[SharedCurve],
    budget: u64,
) -> Option<(Vec<UnitPlan>, f64)> {
    let finer: Vec<Vec<Choice>> = members
        .iter()
        .map(|member| between(member, curves))
        .collect();
    let each = |choices: &[Vec<Choice>]| {
        let (mut chosen, lost) = best(&core(choices.to_vec(), budget), budget)?;
        let lost = lost - fill(&mut chosen, [choices, &finer], budget);
        let units = members.iter().zip(chosen);
        let units = units.map(|(member, choice)| unit(vec![*member], choice.form));
        Some((units.collect::<Vec<UnitPlan>>(), lost))
    };
    let is_code = |choice: &&Choice| choice.form.rank().is_none();
    let codes: Vec<Vec<Choice>> = members
        .iter()
        .map(|member| {
            let all = forms(member, curves);
            unbeaten(all.iter().filter(is_code).cloned().collect())
        })
        .collect();
    let alone = each(&codes);
    let with_factors = if codes == choices {
        None
    } else {
        each(choices)
    };
    let together = together(members, (choices, &finer), shared, budget);
    let less = |one: &(Vec<UnitPlan>, f64), other: &(Vec<UnitPlan>, f64)| one.1.total_cmp(&other.1);
    let mixed = with_factors.into_iter().chain(together).min_by(less);
    match (alone, mixed) {
        (Some(alone), Some(mixed)) if mixed.1 < WORTH * alone.1 => Some(mixed),
        (Some(alone), _) => Some(alone),
        (None, mixed) => mixed,
    }
}

fn unit(members: Vec<Member>, form: Form) -> UnitPlan {
    UnitPlan {
        members,
        form,
        notes: Vec::new(),
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Having {
    Each(Vec<Form>),
    Common(Form),
}

fn together(
    members: &[Member],
    (choices, finer): (&[Vec<Choice>], &[Vec<Choice>]),
    shared: &[SharedCurve],
    budget: u64,
) -> Option<(Vec<UnitPlan>, f64)> {
    if shared.is_empty() {
        return None;
    }
    let mut groups: Vec<Vec<Member>> = Vec::new();
    let mut items: Vec<Vec<Choice<Having>>> = Vec::new();
    let each = |sum: Choice<Vec<Form>>| Choice {
        form: Having::Each(sum.form),
        bytes: sum.bytes,
        loss: sum.loss,
    };
    let mut grouped = vec![false; members.len()];
    for curve in shared {
        let of = |matrix: &MatrixId| members.iter().position(|member| member.matrix == *matrix);
        let of: Option<Vec<usize>> = curve.members.iter().map(of).collect();
        // Skip groups with unknown or already grouped matrices.
        let Some(of) = of.filter(|of| of.iter().all(|&index| !grouped[index])) else {
            continue;
        };
        let own: Vec<Vec<Choice>> = of.iter().map(|&index| choices[index].clone()).collect();
        let group: Vec<Member> = of.iter().map(|&index| members[index]).collect();
        let mut all: Vec<Choice<Having>> = sums(&own).into_iter().map(each).collect();
        all.extend(common(&group, curve));
        of.iter().for_each(|&index| grouped[index] = true);
        items.push(unbeaten(all));
        groups.push(group);
    }
    let one = |choice: &Choice| Choice {
        form: Having::Each(vec![choice.form.clone()]),
        bytes: choice.bytes,
        loss: choice.loss,
    };
    let mut between = vec![Vec::new(); items.len()];
    for index in (0..members.len()).filter(|&index| !grouped[index]) {
        items.push(choices[index].iter().map(one).collect());
        between.push(finer[index].iter().map(one).collect());
        groups.push(vec![members[index]]);
    }
    let (mut chosen, lost) = best(&core(items.clone(), budget), budget)?;
    let lost = lost - fill(&mut chosen, [&items, &between], budget);
    let units = groups.into_iter().zip(chosen);
    let units = units.flat_map(|(members, choice)| match choice.form {
        Having::Common(form) => vec![unit(members, form)],
        Having::Each(forms) => {
            let each = members.into_iter().zip(forms);
            each.map(|(member, form)| unit(vec![member], form))
                .collect()
        }
    });
    Some((units.collect(), lost))
}

fn common<'a>(
    members: &'a [Member],
    curve: &'a SharedCurve,
) -> impl Iterator<Item = Choice<Having>> + 'a {
    let finite = |losses: &[f64]| losses.iter().all(|loss| loss.is_finite());
    let points = curve.points.iter();
    let points = points.filter(move |point| finite(&point.losses));
    points.map(|point| Choice {
        bytes: point.form.bytes(members),
        loss: point.losses.iter().map(|loss| loss.max(0.0)).sum(),
        form: Having::Common(point.form.clone()),
    })
}

fn smallest(members: &[Member], choices: &[Vec<Choice>], shared: &[SharedCurve]) -> u64 {
    let least = |of: &[Choice]| of.iter().map(|choice| choice.bytes).min().unwrap_or(0);
    let all: u64 = choices.iter().map(|of| least(of)).sum();
    let saved = shared.iter().map(|curve| {
        let of = |(member, _): &(&Member, _)| curve.members.contains(&member.matrix);
        let of: Vec<_> = members.iter().zip(choices).filter(of).collect();
        let own: u64 = of.iter().map(|(_, choices)| least(choices)).sum();
        let group: Vec<Member> = of.iter().map(|(member, _)| **member).collect();
        let common = common(&group, curve).map(|choice| choice.bytes).min();
        own.saturating_sub(common.unwrap_or(own))
    });
    all - saved.sum::<u64>().min(all)
}

/// Returns the Pareto-optimal sums of separate forms for matrices with the same input: bytes and
/// nats per token, smallest first.
pub fn unbeaten_of(members: &[Member], curves: &[Curve]) -> Vec<(u64, f64)> {
    let own: Vec<Vec<Choice>> = members.iter().map(|one| choices(one, curves)).collect();
    let all = sums(&own).into_iter();
    all.map(|sum| (sum.bytes, sum.loss)).collect()
}

/// Returns the plan with every matrix in one type, and its estimated loss. Matrices that would not
/// shrink, or whose rows are not whole blocks, stay as in the source. `None` if nothing was
/// measured for the type.
///
/// # Errors
/// [`PlanError::Inconsistent`].
pub fn uniform(
    hyper: &HyperParameters,
    request: Request,
    evidence: &Evidence,
    source_type: impl SourceTypes,
    dense: DenseType,
) -> Result<Option<(Plan, f64)>, PlanError> {
    let Some(curves) = &evidence.curves else {
        return Ok(None);
    };
    let mut lost = 0.0;
    let units = matrices(hyper, &source_type).into_iter().map(|member| {
        let mut of_member = forms(&member, curves).into_iter();
        let found = of_member.find(|choice| is_in(&choice.form, dense));
        lost += found.as_ref().map_or(0.0, |choice| choice.loss);
        UnitPlan {
            members: vec![member],
            form: found.map_or(Form::Kept, |choice| choice.form),
            notes: Vec::new(),
        }
    });
    let units: Vec<UnitPlan> = units.collect();
    if units.iter().all(|unit| unit.form == Form::Kept) {
        return Ok(None);
    }
    let mut plan = super::checked(hyper, request, units, Vec::new(), &source_type)?;
    plan.expected_loss = Some(lost);
    Ok(Some((plan, lost)))
}

/// Returns the plan with every matrix in one block type, without measurements. Matrices that would
/// not shrink, or whose rows are not whole blocks, stay as in the source. `None` if all of them do.
///
/// # Errors
/// [`PlanError::Inconsistent`].
pub fn plain(
    hyper: &HyperParameters,
    request: Request,
    source_type: impl SourceTypes,
    weight: DType,
) -> Result<Option<Plan>, PlanError> {
    let units = matrices(hyper, &source_type).into_iter().map(|member| {
        let members = vec![member];
        let dense = Form::Dense { weight };
        let fits = weight.row_bytes(member.cols).is_some();
        let form = if fits && dense.bytes(&members) < Form::Kept.bytes(&members) {
            dense
        } else {
            Form::Kept
        };
        UnitPlan {
            members,
            form,
            notes: Vec::new(),
        }
    });
    let units: Vec<UnitPlan> = units.collect();
    if units.iter().all(|unit| unit.form == Form::Kept) {
        return Ok(None);
    }
    super::checked(hyper, request, units, Vec::new(), &source_type).map(Some)
}

fn is_in(form: &Form, dense: DenseType) -> bool {
    match (form, dense) {
        (Form::Dense { weight }, DenseType::Blocks(dtype)) => *weight == dtype,
        (Form::Bands { codes }, DenseType::Bands(code)) => codes.same() == Some(code),
        _ => false,
    }
}

/// Returns the estimated loss of each matrix of a plan if its form was measured; unchanged matrices
/// have loss 0.
pub fn losses<'a>(
    plan: &'a Plan,
    curves: &'a [Curve],
    shared: &'a [SharedCurve],
) -> impl Iterator<Item = (&'a Member, &'a Form, f64)> {
    let units = plan.units().iter();
    let members = units.flat_map(|unit| {
        let members = unit.members.iter().enumerate();
        members.map(move |(index, member)| (unit, index, member))
    });
    members.filter_map(|(unit, index, member)| {
        let own = || curves.iter().find(|curve| curve.matrix == member.matrix);
        let loss = match &unit.form {
            Form::Kept => own().map(|_| 0.0)?,
            form @ Form::SharedBasis { .. } => {
                let is_own = |curve: &&SharedCurve| {
                    let of = unit.members.iter().map(|member| member.matrix);
                    of.eq(curve.members.iter().copied())
                };
                let points = &shared.iter().find(is_own)?.points;
                let point = points.iter().find(|point| point.form == *form)?;
                *point.losses.get(index)?
            }
            form => {
                let own = own()?;
                let mut measured = own.points.iter().chain(&own.between);
                measured.find(|point| point.form == *form)?.loss
            }
        };
        Some((member, &unit.form, loss))
    })
}

fn forms(member: &Member, curves: &[Curve]) -> Vec<Choice> {
    let members = std::slice::from_ref(member);
    let of = |form: Form, loss| Choice {
        bytes: form.bytes(members),
        form,
        loss,
    };
    let measured = curves.iter().find(|curve| curve.matrix == member.matrix);
    let points = measured.map_or(&[][..], |curve| &curve.points);
    let new =
        |form: &Form| !matches!(form, Form::Dense { weight } if *weight == member.source_type);
    let dense = points
        .iter()
        .filter(|point| new(&point.form) && point.loss.is_finite())
        .map(|point| of(point.form.clone(), point.loss.max(0.0)));
    dense.chain([of(Form::Kept, 0.0)]).collect()
}

fn between(member: &Member, curves: &[Curve]) -> Vec<Choice> {
    let members = std::slice::from_ref(member);
    let measured = curves.iter().find(|curve| curve.matrix == member.matrix);
    let points = measured.map_or(&[][..], |curve| &curve.between).iter();
    let finite = points.filter(|point| point.loss.is_finite());
    finite
        .map(|point| Choice {
            bytes: point.form.bytes(members),
            form: point.form.clone(),
            loss: point.loss.max(0.0),
        })
        .collect()
}

fn choices(member: &Member, curves: &[Curve]) -> Vec<Choice> {
    unbeaten(forms(member, curves))
}

#[cfg(test)]
mod tests {
    use htc_formats::DType;

    use super::*;

    #[test]
    fn dominated_forms_are_dropped() {
        let member = Member {
            matrix: MatrixId::Embedding,
            rows: 4,
            cols: 256,
            source_type: DType::F16,
        };
        let point = |weight, loss| super::super::Point {
            form: Form::Dense { weight },
            loss,
        };
        let curve = Curve {
            matrix: MatrixId::Embedding,
            points: vec![
                // Larger than q4_k and worse.
                point(DType::Q5K, 0.5),
                point(DType::Q4K, 0.4),
                point(DType::Q8_0, 0.1),
                point(DType::BF16, 0.2),
                point(DType::F32, f64::NAN),
            ],
            between: Vec::new(),
        };
        let dense = |weight| Form::Dense { weight };
        let curves = [curve];
        let found: Vec<Form> = choices(&member, &curves)
            .iter()
            .map(|c| c.form.clone())
            .collect();
        let all = forms(&member, &curves);
        assert!(all.iter().any(|c| c.form == dense(DType::Q5K)));
        assert_eq!(found, [dense(DType::Q4K), dense(DType::Q8_0), Form::Kept]);
    }

    #[test]
    fn factors_and_shared_bases_compete_with_codes() {
        let slot = |slot, rows| Member {
            matrix: MatrixId::Slot { layer: 0, slot },
            rows,
            cols: 256,
            source_type: DType::F16,
        };
        let members = [
            slot(Slot::Q, 256),
            slot(Slot::K, 128),
            slot(Slot::V, 128),
            slot(Slot::O, 256),
            slot(Slot::Gate, 512),
        ];
        let q8 = DType::Q8_0;
        let low_rank = |rank| Form::LowRank { rank, a: q8, b: q8 };
        let curve = |member: &Member| {
            let dense = [(DType::Q4K, 4e-3), (DType::Q8_0, 1e-4)];
            let dense = dense.map(|(weight, loss)| (Form::Dense { weight }, loss));
            let own = match member.slot() {
                Some(Slot::O) => vec![(low_rank(32), 1e-3)],
                Some(Slot::Gate) => vec![(low_rank(32), 9e-2)],
                _ => vec![(low_rank(64), 3e-3)],
            };
            let all = dense.into_iter().chain(own);
            Curve {
                matrix: member.matrix,
                points: all
                    .map(|(form, loss)| super::super::Point { form, loss })
                    .collect(),
                between: Vec::new(),
            }
        };
        let curves: Vec<Curve> = members.iter().map(curve).collect();
        let basis = |rank| Form::SharedBasis {
            rank,
            basis: q8,
            projected: q8,
        };
        let points = [(32, 2e-2), (64, 2e-3)];
        let shared = SharedCurve {
            members: members[..3].iter().map(|member| member.matrix).collect(),
            points: points
                .map(|(rank, loss)| super::super::SharedPoint {
                    form: basis(rank),
                    losses: vec![loss / 4.0, loss / 4.0, loss / 2.0],
                })
                .to_vec(),
        };
        let choices: Vec<Vec<Choice>> = members
            .iter()
            .map(|member| choices(member, &curves))
            .collect();
        let finer = vec![Vec::new(); members.len()];
        let (mut in_common, mut of_low_rank) = (0, 0);
        for budget in (60_000..500_000).step_by(9_973) {
            let alone = best(&choices, budget);
            let shared = std::slice::from_ref(&shared);
            let found = together(&members, (&choices, &finer), shared, budget);
            let least = smallest(&members, &choices, shared);
            let Some((mut units, lost)) = found else {
                assert!(budget < least && alone.is_none(), "{budget} {least}");
                continue;
            };
            assert!(budget >= least);
            assert!(alone.is_none_or(|(_, other)| lost <= other + 1e-15));
            units.sort_by_key(|unit| unit.members[0].matrix);
            let bytes: u64 = units.iter().map(UnitPlan::bytes_after).sum();
            assert!(bytes <= budget);
            let named: Vec<MatrixId> = units
                .iter()
                .flat_map(|unit| unit.members.iter().map(|member| member.matrix))
                .collect();
            assert_eq!(named, members.map(|member| member.matrix));
            let is_common = units[0].form.stored(DType::F16).form().name() == "shared_basis";
            in_common += usize::from(is_common);
            let of_o = units.iter().find(|unit| unit.members[0] == members[3]);
            of_low_rank += usize::from(of_o.is_some_and(|unit| unit.rank() == Some(32)));
        }
        assert!(
            in_common > 3 && of_low_rank > 3,
            "{in_common} {of_low_rank}"
        );
        assert!(together(&members, (&choices, &finer), &[], 1 << 20).is_none());
        let codes = unbeaten_of(&members[..3], &curves);
        assert!(
            codes
                .windows(2)
                .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 > pair[1].1)
        );
    }
}
