//! Multiple-choice knapsack: selects one form for each matrix with the least total loss within a
//! byte budget.
//!
//! The solver keeps lists of Pareto-optimal sums (Nemhauser and Ullmann, "Discrete dynamic
//! programming and capital allocation", 1969). It is exact while a list has at most [`LONGEST`]
//! sums; beyond, to the width of a bucket.

use super::form::MatrixForm;

const MAX_SUMS: usize = 1 << 14;

/// Maximum length of the list of a group with shared forms. A bucket is about as wide as the step
/// between two forms of a matrix.
const MAX_GROUP_SUMS: usize = 1 << 9;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Candidate<T = MatrixForm> {
    pub form: T,
    pub bytes: u64,
    /// Nats per token.
    pub loss: f64,
}

pub(super) fn pareto_front<T>(mut all: Vec<Candidate<T>>) -> Vec<Candidate<T>> {
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

/// Choices kept on each side of the one selected by the price of a byte (the core of a knapsack:
/// Balas and Zemel, "An algorithm for large zero-one knapsack problems", 1980).
const CORE_RADIUS: usize = 4;

/// Keeps the choices around those that the budget's price selects, and the smallest.
pub(super) fn core<T>(mut choices: Vec<Vec<Candidate<T>>>, budget: u64) -> Vec<Vec<Candidate<T>>> {
    let at = |of: &[Candidate<T>], price: f64| {
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
        if bytes(middle.exp()) > budget {
            low = middle
        } else {
            high = middle
        }
    }
    for of in &mut choices {
        let taken = at(of, high.exp());
        let mut index = 0;
        of.retain(|_| {
            let near = index == 0 || index + CORE_RADIUS >= taken && index <= taken + CORE_RADIUS;
            index += 1;
            near
        });
    }
    choices
}

#[derive(Clone, Copy, Debug)]
struct Sum {
    bytes: u64,
    loss: f64,
    /// Indices of the preceding sum and of the choice of the last matrix.
    from: u32,
    choice: u32,
}

/// Returns one choice for each matrix and the total loss; `None` if even the smallest choices
/// exceed the budget.
pub(super) fn solve<T: Clone>(
    choices: &[Vec<Candidate<T>>],
    budget: u64,
) -> Option<(Vec<Candidate<T>>, f64)> {
    let smallest = |of: &Vec<Candidate<T>>| of.iter().map(|choice| choice.bytes).min();
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
        thin(&mut sums, MAX_SUMS, |sum| sum.bytes);
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

fn thin<T: Clone>(sums: &mut Vec<T>, longest: usize, bytes: impl Fn(&T) -> u64) {
    let (Some(first), Some(last)) = (sums.first().map(&bytes), sums.last().cloned()) else {
        return;
    };
    if sums.len() <= longest {
        return;
    }
    let width = (bytes(&last) - first) / (longest as u64 - 1) + 1;
    let mut bucket = None;
    sums.retain(|sum| {
        let of = Some((bytes(sum) - first) / width);
        let new = of != bucket;
        bucket = of;
        new
    });
    if sums.last().is_some_and(|sum| bytes(sum) != bytes(&last)) {
        sums.push(last);
    }
}

/// Returns the Pareto-optimal sums of one choice for each matrix, smallest first; thinned above
/// [`MAX_GROUP_SUMS`].
pub(super) fn pareto_sums(choices: &[Vec<Candidate>]) -> Vec<Candidate<Vec<MatrixForm>>> {
    let mut all = vec![Candidate {
        form: Vec::new(),
        bytes: 0,
        loss: 0.0,
    }];
    for of in choices {
        let longer = all.iter().flat_map(|sum| {
            of.iter().map(move |add| Candidate {
                form: sum.form.iter().chain([&add.form]).cloned().collect(),
                bytes: sum.bytes + add.bytes,
                loss: sum.loss + add.loss,
            })
        });
        all = pareto_front(longer.collect());
        thin(&mut all, MAX_GROUP_SUMS, |sum| sum.bytes);
    }
    all
}

/// Repeatedly applies the larger choice that fits and reduces the loss most; returns the total
/// reduction.
pub(super) fn spend_remainder<T: Clone>(
    chosen: &mut [Candidate<T>],
    of: [&[Vec<Candidate<T>>]; 2],
    budget: u64,
) -> f64 {
    let taken: u64 = chosen.iter().map(|choice| choice.bytes).sum();
    let mut left = budget.saturating_sub(taken);
    let mut gained = 0.0;
    loop {
        let mut best: Option<(f64, usize, &Candidate<T>)> = None;
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

#[cfg(test)]
mod tests {
    use htc_formats::DType;

    use super::*;
    use crate::math::random::Rng;

    fn choice(bytes: u64, loss: f64) -> Candidate {
        Candidate {
            form: MatrixForm::Dense {
                weight: DType::Q8_0,
            },
            bytes,
            loss,
        }
    }

    fn exhaustive(choices: &[Vec<Candidate>], budget: u64) -> Option<f64> {
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
    fn knapsack_matches_brute_force() {
        let mut rng = Rng(7);
        for _ in 0..300 {
            let matrices = 1 + rng.below(6);
            let choices: Vec<Vec<Candidate>> = (0..matrices)
                .map(|_| {
                    let count = 1 + rng.below(5);
                    let one = |_| choice(1 + rng.below(40) as u64, rng.unit());
                    (0..count).map(one).collect()
                })
                .collect();
            let budget = rng.below(40 * matrices) as u64;
            let found = solve(&choices, budget);
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

    #[test]
    fn thinned_lists_come_close_to_the_bound() {
        let mut rng = Rng(11);
        let choices: Vec<Vec<Candidate>> = (0..160)
            .map(|_| {
                let (size, loss) = (1e5 * (1.0 + 20.0 * rng.unit()), rng.unit());
                let bits = 2..9;
                let of =
                    |bits: i32| choice((size * f64::from(bits)) as u64, loss * 4f64.powi(-bits));
                bits.map(of).collect()
            })
            .collect();
        let largest = |of: &Vec<Candidate>| of.iter().map(|c| c.bytes).max().unwrap();
        let budget = choices.iter().map(largest).sum::<u64>() / 2;
        let (chosen, lost) = solve(&choices, budget).unwrap();
        let bytes: u64 = chosen.iter().map(|choice| choice.bytes).sum();
        assert!(bytes <= budget && bytes as f64 > 0.999 * budget as f64);
        let bound = |price: f64| {
            let of = |of: &Vec<Candidate>| {
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
    fn core_keeps_the_optimum_and_the_smallest_choice() {
        let mut rng = Rng(13);
        for _ in 0..40 {
            let choices: Vec<Vec<Candidate>> = (0..4 + rng.below(8))
                .map(|_| {
                    let (size, loss) = (1e4 * (1.0 + 20.0 * rng.unit()), rng.unit());
                    let of = |step: i32| {
                        let bits = 2.0 + 0.2 * f64::from(step);
                        choice((size * bits) as u64, loss * 4f64.powf(-bits))
                    };
                    (0..30).map(of).collect()
                })
                .collect();
            let of = |of: &Vec<Candidate>, at: usize| of[at].bytes;
            let smallest: u64 = choices.iter().map(|c| of(c, 0)).sum();
            let largest: u64 = choices.iter().map(|c| of(c, 29)).sum();
            assert!(solve(&core(choices.clone(), smallest), smallest).is_some());
            let budget = smallest + ((largest - smallest) as f64 * rng.unit()) as u64;
            let (_, lost) = solve(&core(choices.clone(), budget), budget).unwrap();
            let (_, least) = solve(&choices, budget).unwrap();
            assert!(lost <= 1.002 * least, "{lost} {least}");
        }
    }

    #[test]
    fn shared_forms_match_brute_force() {
        let mut rng = Rng(17);
        let mut shared = 0;
        for _ in 0..200 {
            let mut some = |count: usize| -> Vec<Candidate> {
                let one = |_| choice(1 + rng.below(30) as u64, rng.unit());
                pareto_front((0..count).map(one).collect())
            };
            let (first, second, alone) = (some(5), some(4), some(6));
            let common = pareto_front(some(3));
            let together = pareto_sums(&[first.clone(), second.clone()]);
            let mut of_group: Vec<Candidate<Option<Vec<MatrixForm>>>> = Vec::new();
            of_group.extend(together.into_iter().map(|sum| Candidate {
                form: Some(sum.form),
                bytes: sum.bytes,
                loss: sum.loss,
            }));
            of_group.extend(common.iter().map(|one| Candidate {
                form: None,
                bytes: one.bytes,
                loss: one.loss,
            }));
            let beside = alone.iter().map(|one| Candidate {
                form: Some(vec![one.form.clone()]),
                bytes: one.bytes,
                loss: one.loss,
            });
            let items = [pareto_front(of_group), beside.collect()];
            let budget = rng.below(90) as u64;
            let found = solve(&items, budget);
            let each = exhaustive(&[first, second, alone.clone()], budget);
            let in_common = exhaustive(&[common, alone], budget);
            let expected = each.into_iter().chain(in_common).min_by(f64::total_cmp);
            match (found, expected) {
                (None, None) => {}
                (Some((chosen, lost)), Some(expected)) => {
                    assert!((lost - expected).abs() < 1e-12, "{lost} {expected}");
                    shared += usize::from(chosen[0].form.is_none());
                    let forms = chosen[0].form.as_ref().map(Vec::len);
                    assert!(forms.is_none_or(|count| count == 2));
                }
                (found, expected) => panic!("{found:?} {expected:?}"),
            }
        }
        assert!((20..180).contains(&shared), "{shared}");
    }

    #[test]
    fn remaining_bytes_go_to_the_largest_gain() {
        let coarse = vec![
            vec![choice(10, 1.0), choice(100, 0.1)],
            vec![choice(10, 1.0), choice(30, 0.4)],
        ];
        let finer = vec![
            vec![choice(16, 0.9), choice(34, 0.7), choice(60, 0.65)],
            vec![choice(20, 0.8)],
        ];
        let filled = |budget| {
            let (mut chosen, lost) = solve(&coarse, budget).unwrap();
            let lost = lost - spend_remainder(&mut chosen, [&coarse, &finer], budget);
            let bytes: Vec<u64> = chosen.iter().map(|choice| choice.bytes).collect();
            let sum: f64 = chosen.iter().map(|choice| choice.loss).sum();
            assert!((sum - lost).abs() < 1e-12 && bytes.iter().sum::<u64>() <= budget);
            bytes
        };
        assert_eq!(filled(21), [10, 10]);
        assert_eq!(filled(64), [34, 30]);
        assert_eq!(filled(46), [16, 30]);
        assert_eq!(filled(29), [16, 10]);
        assert_eq!(filled(27), [16, 10]);
        assert_eq!(filled(1000), [100, 30]);
    }
}
