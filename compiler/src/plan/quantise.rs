//! Shares the bytes of a file out among its matrices: for each a type, so that what they lose together is least.
//!
//! What a matrix loses in a type is measured before ([`Curve`]), in nats of KL divergence per token, and
//! losses are added up: errors of different matrices are nearly independent and small. So the choice is a
//! knapsack with one item of each group. It is solved over lists of the sums that nothing else beats in both
//! bytes and loss (Nemhauser and Ullmann, "Discrete dynamic programming and capital allocation", 1969):
//! exactly as long as a list has at most [`LONGEST`] sums, beyond that up to the width of a bucket.

use htc_formats::model::{HyperParameters, MatrixId, Slot};

use super::form::Form;
use super::unit::{Member, UnitPlan};
use crate::request::DenseType;

use super::{Budget, Curve, Evidence, Plan, PlanError, Request, SourceTypes};

/// Sums of a list at most; beyond, those that fall into one bucket of bytes are one.
const LONGEST: usize = 1 << 14;

/// A form that a matrix may have.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Choice {
    pub form: Form,
    pub bytes: u64,
    /// Nats per token.
    pub loss: f64,
}

/// Every matrix that a model has of its own, in the order of execution.
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

/// Gives every matrix its form; and what they are expected to lose together, nats per token.
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
        // Bits and parts are made bytes of the file where there is one.
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
    let Some((mut chosen, lost)) = best(&core(choices.clone(), budget), budget) else {
        let least = choices.iter().map(|of| of.iter().map(|c| c.bytes).min());
        let least: u64 = least.flatten().sum();
        return Err(PlanError::FileTooSmall {
            budget: request.budget,
            smallest: least + beside,
        });
    };
    let finer: Vec<Vec<Choice>> = members
        .iter()
        .map(|member| between(member, curves))
        .collect();
    let lost = lost - fill(&mut chosen, [&choices, &finer], budget);
    let units = members
        .into_iter()
        .zip(chosen)
        .map(|(member, choice)| UnitPlan {
            members: vec![member],
            form: choice.form,
            notes: Vec::new(),
        });
    Ok((units.collect(), lost))
}

/// The plan that stores every matrix in one type, and what it is expected to lose; matrices that would not be
/// smaller, or whose rows are no whole blocks of it, stay as in the source. `None` where nothing is known of it.
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

/// Whether all of a matrix is in this type or code.
fn is_in(form: &Form, dense: DenseType) -> bool {
    match (form, dense) {
        (Form::Dense { weight }, DenseType::Blocks(dtype)) => *weight == dtype,
        (Form::Bands { codes }, DenseType::Bands(code)) => codes.same() == Some(code),
        _ => false,
    }
}

/// What each matrix of a plan is expected to lose, where its form was measured; kept as in the source it loses
/// nothing.
pub fn losses<'a>(
    plan: &'a Plan,
    curves: &'a [Curve],
) -> impl Iterator<Item = (&'a Member, &'a Form, f64)> {
    let units = plan.units().iter();
    let members =
        units.flat_map(|unit| unit.members.iter().map(move |member| (member, &unit.form)));
    members.filter_map(|(member, form)| {
        let own = curves.iter().find(|curve| curve.matrix == member.matrix)?;
        let loss = match form {
            Form::Kept => 0.0,
            form => {
                let mut measured = own.points.iter().chain(&own.between);
                measured.find(|point| point.form == *form)?.loss
            }
        };
        Some((member, form, loss))
    })
}

/// The forms that a matrix may have.
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

/// The forms of a matrix between those that a budget is shared out by.
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

/// Spends what a choice of each matrix leaves over of a budget: as long as a larger choice of some matrix fits and loses
/// less, the one that takes most off the loss. Gives what it took off.
pub(super) fn fill(chosen: &mut [Choice], of: [&[Vec<Choice>]; 2], budget: u64) -> f64 {
    let taken: u64 = chosen.iter().map(|choice| choice.bytes).sum();
    let mut left = budget.saturating_sub(taken);
    let mut gained = 0.0;
    loop {
        let mut best: Option<(f64, usize, &Choice)> = None;
        for (index, now) in chosen.iter().enumerate() {
            let all = of.iter().filter_map(|choices| choices.get(index)).flatten();
            for choice in all.filter(|choice| choice.bytes <= now.bytes + left) {
                let gain = now.loss - choice.loss;
                if gain > best.as_ref().map_or(0.0, |(most, ..)| *most) {
                    best = Some((gain, index, choice));
                }
            }
        }
        let Some((gain, index, choice)) = best else {
            return gained;
        };
        left = left + chosen[index].bytes - choice.bytes;
        gained += gain;
        chosen[index] = choice.clone();
    }
}

/// The forms of a matrix that nothing else beats in both bytes and loss, from the smallest on.
fn choices(member: &Member, curves: &[Curve]) -> Vec<Choice> {
    unbeaten(forms(member, curves))
}

/// Those that no other beats in both bytes and loss, from the smallest on.
pub(super) fn unbeaten(mut all: Vec<Choice>) -> Vec<Choice> {
    all.sort_by(|a, b| {
        (a.bytes, a.loss)
            .partial_cmp(&(b.bytes, b.loss))
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    let mut least = f64::INFINITY;
    all.retain(|choice| {
        let better = choice.loss < least;
        least = least.min(choice.loss);
        better
    });
    all
}

/// Choices on each side of the one that a price of bytes takes, which are looked at (the core of a knapsack:
/// Balas and Zemel, "An algorithm for large zero-one knapsack problems", 1980).
const BESIDE: usize = 4;

/// Of choices in the order of their bytes those around the ones that the budget's price takes, and the smallest.
/// Choices further off are in none of the best plans unless bytes are left over.
pub(super) fn core(mut choices: Vec<Vec<Choice>>, budget: u64) -> Vec<Vec<Choice>> {
    let at = |of: &[Choice], price: f64| {
        let costs = of.iter().map(|c| c.loss + price * c.bytes as f64);
        let least = costs.enumerate().min_by(|a, b| a.1.total_cmp(&b.1));
        least.map_or(0, |(index, _)| index)
    };
    let bytes = |price: f64| -> u64 {
        let taken = choices.iter().filter_map(|of| of.get(at(of, price)));
        taken.map(|choice| choice.bytes).sum()
    };
    let (mut low, mut high) = (-80.0_f64, 20.0_f64);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        match bytes(middle.exp()) > budget {
            true => low = middle,
            false => high = middle,
        }
    }
    for of in &mut choices {
        let taken = at(of, high.exp());
        let mut index = 0;
        of.retain(|_| {
            let near = index == 0 || index + BESIDE >= taken && index <= taken + BESIDE;
            index += 1;
            near
        });
    }
    choices
}

/// A sum over the first matrices that no other beats.
#[derive(Clone, Copy, Debug)]
struct Sum {
    bytes: u64,
    loss: f64,
    /// Which sum over the matrices before, and which choice of the last.
    from: u32,
    choice: u32,
}

/// Of every matrix one choice, so that all together take at most `budget` bytes and lose least; and what they
/// lose. `None` where even the smallest take more.
pub(super) fn best(choices: &[Vec<Choice>], budget: u64) -> Option<(Vec<Choice>, f64)> {
    let smallest = |of: &Vec<Choice>| of.iter().map(|choice| choice.bytes).min();
    // What the matrices from each on take at least.
    let mut needed = vec![0; choices.len() + 1];
    for (index, of) in choices.iter().enumerate().rev() {
        needed[index] = needed[index + 1] + smallest(of)?;
    }
    if needed[0] > budget {
        return None;
    }
    let mut lists: Vec<Vec<Sum>> = vec![vec![Sum {
        bytes: 0,
        loss: 0.0,
        from: 0,
        choice: 0,
    }]];
    for (of, behind) in choices.iter().zip(&needed[1..]) {
        let before = lists.last()?;
        let mut sums = Vec::with_capacity(before.len() * of.len());
        for (from, sum) in before.iter().enumerate() {
            for (choice, add) in of.iter().enumerate() {
                let bytes = sum.bytes + add.bytes;
                if bytes + behind <= budget {
                    sums.push(Sum {
                        bytes,
                        loss: sum.loss + add.loss,
                        from: from as u32,
                        choice: choice as u32,
                    });
                }
            }
        }
        sums.sort_by(|a, b| {
            let order = a.bytes.cmp(&b.bytes);
            order.then(a.loss.total_cmp(&b.loss))
        });
        let mut least = f64::INFINITY;
        sums.retain(|sum| {
            let better = sum.loss < least;
            least = least.min(sum.loss);
            better
        });
        thin(&mut sums);
        lists.push(sums);
    }
    let last = lists.last()?;
    let mut at = last.len().checked_sub(1)?;
    let lost = last[at].loss;
    let mut chosen = Vec::with_capacity(choices.len());
    for (of, list) in choices.iter().zip(&lists[1..]).rev() {
        let sum = list[at];
        chosen.push(of[sum.choice as usize].clone());
        at = sum.from as usize;
    }
    chosen.reverse();
    Some((chosen, lost))
}

/// Keeps of the sums in a bucket of bytes the first and, of the last bucket, the last.
fn thin(sums: &mut Vec<Sum>) {
    let (Some(first), Some(last)) = (sums.first().copied(), sums.last().copied()) else {
        return;
    };
    if sums.len() <= LONGEST {
        return;
    }
    let width = (last.bytes - first.bytes) / (LONGEST as u64 - 1) + 1;
    let mut bucket = None;
    sums.retain(|sum| {
        let of = Some((sum.bytes - first.bytes) / width);
        let new = of != bucket;
        bucket = of;
        new
    });
    if sums.last().is_some_and(|sum| sum.bytes != last.bytes) {
        sums.push(last);
    }
}

#[cfg(test)]
mod tests {
    use htc_formats::DType;

    use super::*;
    use crate::math::random::Rng;

    fn choice(bytes: u64, loss: f64) -> Choice {
        Choice {
            form: Form::Dense {
                weight: DType::Q8_0,
            },
            bytes,
            loss,
        }
    }

    /// The least loss within a budget, by trying everything.
    fn exhaustive(choices: &[Vec<Choice>], budget: u64) -> Option<f64> {
        let Some((first, others)) = choices.split_first() else {
            return Some(0.0);
        };
        let of = first.iter().filter(|choice| choice.bytes <= budget);
        let all = of.filter_map(|choice| {
            exhaustive(others, budget - choice.bytes).map(|loss| loss + choice.loss)
        });
        all.min_by(f64::total_cmp)
    }

    #[test]
    fn it_is_as_good_as_trying_everything() {
        let mut rng = Rng(7);
        for _ in 0..300 {
            let matrices = 1 + rng.below(6);
            let choices: Vec<Vec<Choice>> = (0..matrices)
                .map(|_| {
                    let count = 1 + rng.below(5);
                    let one = |_| choice(1 + rng.below(40) as u64, rng.unit());
                    (0..count).map(one).collect()
                })
                .collect();
            let budget = rng.below(40 * matrices) as u64;
            let found = best(&choices, budget);
            let expected = exhaustive(&choices, budget);
            match (found, expected) {
                (None, None) => {}
                (Some((chosen, lost)), Some(expected)) => {
                    assert!((lost - expected).abs() < 1e-12, "{lost} {expected}");
                    let bytes: u64 = chosen.iter().map(|choice| choice.bytes).sum();
                    assert!(bytes <= budget);
                    let sum: f64 = chosen.iter().map(|choice| choice.loss).sum();
                    assert!((sum - lost).abs() < 1e-12);
                }
                (found, expected) => panic!("{found:?} {expected:?}"),
            }
        }
    }

    /// Many matrices with many sizes, where lists are thinned: hardly worse than the bound that a price per
    /// byte gives.
    #[test]
    fn thinned_lists_come_close_to_the_bound() {
        let mut rng = Rng(11);
        let choices: Vec<Vec<Choice>> = (0..160)
            .map(|_| {
                let (size, loss) = (1e5 * (1.0 + 20.0 * rng.unit()), rng.unit());
                let bits = 2..9;
                let of =
                    |bits: i32| choice((size * f64::from(bits)) as u64, loss * 4f64.powi(-bits));
                bits.map(of).collect()
            })
            .collect();
        let largest = |of: &Vec<Choice>| of.iter().map(|c| c.bytes).max().unwrap();
        let budget = choices.iter().map(largest).sum::<u64>() / 2;
        let (chosen, lost) = best(&choices, budget).unwrap();
        let bytes: u64 = chosen.iter().map(|choice| choice.bytes).sum();
        assert!(bytes <= budget && bytes as f64 > 0.999 * budget as f64);
        // Lagrange: for every price λ, min Σ loss + λ (bytes − budget) is below the optimum.
        let bound = |price: f64| {
            let of = |of: &Vec<Choice>| {
                let costs = of.iter().map(|c| c.loss + price * c.bytes as f64);
                costs.min_by(f64::total_cmp).unwrap()
            };
            choices.iter().map(of).sum::<f64>() - price * budget as f64
        };
        let prices = (0..4000).map(|i| 10f64.powf(-4.0 - f64::from(i) / 250.0));
        let bound = prices.map(bound).max_by(f64::total_cmp).unwrap();
        assert!(bound > 0.0 && lost < 1.01 * bound, "{lost} {bound}");
    }

    #[test]
    fn the_core_is_as_good_as_all_and_holds_what_is_smallest() {
        let mut rng = Rng(13);
        for _ in 0..40 {
            let choices: Vec<Vec<Choice>> = (0..4 + rng.below(8))
                .map(|_| {
                    let (size, loss) = (1e4 * (1.0 + 20.0 * rng.unit()), rng.unit());
                    let of = |step: i32| {
                        let bits = 2.0 + 0.2 * f64::from(step);
                        choice((size * bits) as u64, loss * 4f64.powf(-bits))
                    };
                    (0..30).map(of).collect()
                })
                .collect();
            let of = |of: &Vec<Choice>, at: usize| of[at].bytes;
            let smallest: u64 = choices.iter().map(|c| of(c, 0)).sum();
            let largest: u64 = choices.iter().map(|c| of(c, 29)).sum();
            assert!(best(&core(choices.clone(), smallest), smallest).is_some());
            let budget = smallest + ((largest - smallest) as f64 * rng.unit()) as u64;
            let (_, lost) = best(&core(choices.clone(), budget), budget).unwrap();
            let (_, least) = best(&choices, budget).unwrap();
            assert!(lost <= 1.002 * least, "{lost} {least}");
        }
    }

    #[test]
    fn what_is_left_over_is_spent_where_it_gains_most() {
        let coarse = vec![
            vec![choice(10, 1.0), choice(100, 0.1)],
            vec![choice(10, 1.0), choice(30, 0.4)],
        ];
        let finer = vec![
            vec![choice(16, 0.9), choice(34, 0.7), choice(60, 0.65)],
            vec![choice(20, 0.8)],
        ];
        let filled = |budget| {
            let (mut chosen, lost) = best(&coarse, budget).unwrap();
            let lost = lost - fill(&mut chosen, [&coarse, &finer], budget);
            let bytes: Vec<u64> = chosen.iter().map(|choice| choice.bytes).collect();
            let sum: f64 = chosen.iter().map(|choice| choice.loss).sum();
            assert!((sum - lost).abs() < 1e-12 && bytes.iter().sum::<u64>() <= budget);
            bytes
        };
        // Nothing finer fits.
        assert_eq!(filled(21), [10, 10]);
        // The larger of what fits, and then the smaller in what that leaves.
        assert_eq!(filled(64), [34, 30]);
        assert_eq!(filled(46), [16, 30]);
        assert_eq!(filled(29), [16, 10]);
        assert_eq!(filled(27), [16, 10]);
        assert_eq!(filled(1000), [100, 30]);
    }

    #[test]
    fn what_is_beaten_is_no_choice() {
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
                // As large as the source.
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
        // A file of one type has it nevertheless.
        let all = forms(&member, &curves);
        assert!(all.iter().any(|c| c.form == dense(DType::Q5K)));
        assert_eq!(found, [dense(DType::Q4K), dense(DType::Q8_0), Form::Kept]);
    }
}
