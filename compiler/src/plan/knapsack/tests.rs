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
            let of = |bits: i32| choice((size * f64::from(bits)) as u64, loss * 4f64.powi(-bits));
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

/// Lists that are far too short are no worse than the choices that bound them.
#[test]
fn short_lists_lose_no_more_than_a_greedy_choice() {
    let mut rng = Rng(19);
    for _ in 0..200 {
        let choices: Vec<Vec<Candidate>> = (0..12)
            .map(|_| {
                let (size, loss) = (1e3 * (1.0 + 9.0 * rng.unit()), rng.unit());
                let of =
                    |bits: i32| choice((size * f64::from(bits)) as u64, loss * 4f64.powi(-bits));
                (2..9).map(of).collect()
            })
            .collect();
        let smallest: u64 = choices.iter().map(|of| of[0].bytes).sum();
        let budget = smallest + rng.below(smallest as usize) as u64;
        let greedy = LagrangianBound::new(&choices, budget).feasible.unwrap();
        for longest in [2, 5] {
            let (chosen, lost) = solve_with_lists(&choices, budget, longest).unwrap();
            assert!(lost <= greedy.1, "{lost} {}", greedy.1);
            assert!(chosen.iter().map(|choice| choice.bytes).sum::<u64>() <= budget);
        }
    }
}
