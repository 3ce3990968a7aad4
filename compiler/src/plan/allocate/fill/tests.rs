use super::*;
use crate::system::random::Rng;

struct Case {
    ladders: Vec<Ladder>,
    losses: Vec<Vec<f64>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    EqualSteps,
    StepsByUnit,
    Any,
}

impl Case {
    fn random(rng: &mut Rng, kind: Kind) -> Case {
        let (mut ladders, mut losses) = (Vec::new(), Vec::new());
        for _ in 0..2 + rng.below(3) {
            let rungs = 2 + rng.below(4);
            let own = 1 + rng.below(6) as u64;
            let step = |rng: &mut Rng| match kind {
                Kind::EqualSteps => 3,
                Kind::StepsByUnit => own,
                Kind::Any => 1 + rng.below(6) as u64,
            };
            let mut costs = vec![step(rng)];
            for _ in 1..rungs {
                costs.push(costs[costs.len() - 1] + step(rng));
            }
            let mut squares: Vec<f64> = (0..rungs).map(|_| rng.unit().powi(2)).collect();
            if kind != Kind::Any {
                squares.sort_by(|a, b| b.total_cmp(a));
            }
            let total: f64 = squares.iter().sum::<f64>() + rng.unit();
            let mut kept = 0.0;
            let lost = squares.iter().map(|s| {
                kept += s / total;
                1.0 - kept
            });
            losses.push(lost.collect());
            ladders.push(Ladder::from_costs(&costs));
        }
        Case { ladders, losses }
    }

    fn cost(&self, rungs: &[usize]) -> u64 {
        self.ladders
            .iter()
            .zip(rungs)
            .map(|(l, &r)| l.cost(r))
            .sum()
    }

    fn loss(&self, rungs: &[usize]) -> f64 {
        self.losses.iter().zip(rungs).map(|(l, &r)| l[r]).sum()
    }

    fn choices(&self) -> Vec<Vec<usize>> {
        let mut choices = vec![Vec::new()];
        for ladder in &self.ladders {
            let longer = |c: &Vec<usize>| {
                let c = c.clone();
                (0..ladder.rungs.len()).map(move |r| [c.clone(), vec![r]].concat())
            };
            choices = choices.iter().flat_map(longer).collect();
        }
        choices
    }

    fn best(&self, choices: &[Vec<usize>], budget: u64) -> f64 {
        let within = choices.iter().filter(|c| self.cost(c) <= budget);
        within.map(|c| self.loss(c)).fold(f64::INFINITY, f64::min)
    }

    fn path(&self) -> Vec<u64> {
        let mut prices = Vec::new();
        for (ladder, losses) in self.ladders.iter().zip(&self.losses) {
            for to in 0..ladder.rungs.len() {
                for from in 0..to {
                    let cost = (ladder.cost(to) - ladder.cost(from)) as f64;
                    prices.push((losses[from] - losses[to]) / cost);
                }
            }
        }
        prices.push(0.0);
        prices.push(10.0);
        prices.sort_by(f64::total_cmp);
        let between = prices.windows(2).map(|p| 0.5 * (p[0] + p[1]));
        let cost_at = |price: f64| -> u64 {
            let units = self.ladders.iter().zip(&self.losses);
            let chosen = units.map(|(ladder, losses)| {
                let paid = |r: &usize| losses[*r] + price * ladder.cost(*r) as f64;
                let all = 0..ladder.rungs.len();
                all.min_by(|a, b| paid(a).total_cmp(&paid(b))).unwrap()
            });
            self.cost(&chosen.collect::<Vec<_>>())
        };
        let mut budgets: Vec<u64> = between.map(cost_at).collect();
        budgets.sort_unstable();
        budgets.dedup();
        budgets
    }

    fn largest_segment(&self) -> f64 {
        let units = self.ladders.iter().zip(&self.losses);
        let segments = units.map(|(ladder, losses)| {
            let hull = hull(ladder, losses, GainDivisor::Budget);
            let gains = hull.windows(2).map(|s| losses[s[0]] - losses[s[1]]);
            gains.fold(0.0, f64::max)
        });
        segments.fold(0.0, f64::max)
    }

    fn highest(&self) -> u64 {
        let last = |l: &Ladder| l.rungs.len() - 1;
        self.cost(&self.ladders.iter().map(last).collect::<Vec<_>>())
    }
}

fn is_full(case: &Case, rungs: &[usize], budget: u64) -> bool {
    let left = budget - case.cost(rungs);
    let mut units = case.ladders.iter().zip(rungs);
    units.all(|(l, &r)| l.step_cost(r).is_none_or(|cost| cost > left))
}

#[test]
fn greedy_is_optimal_with_equal_step_costs() {
    let mut rng = Rng(1);
    for _ in 0..400 {
        let case = Case::random(&mut rng, Kind::EqualSteps);
        let choices = case.choices();
        for budget in least_cost(&case.ladders)..=case.highest() {
            let rungs = least_loss_rungs(&case.ladders, &case.losses, GainDivisor::Budget, budget);
            assert!(case.cost(&rungs) <= budget);
            let (found, best) = (case.loss(&rungs), case.best(&choices, budget));
            assert!((found - best).abs() < 1e-12, "{found} {best}");
        }
    }
}

#[test]
fn greedy_is_optimal_on_the_lagrangian_path() {
    let mut rng = Rng(2);
    let (mut on_path, mut off_path) = (0, 0);
    for i in 0..600 {
        let kind = [Kind::StepsByUnit, Kind::Any][i % 2];
        let case = Case::random(&mut rng, kind);
        let (choices, path) = (case.choices(), case.path());
        for budget in least_cost(&case.ladders)..=case.highest() {
            let rungs = least_loss_rungs(&case.ladders, &case.losses, GainDivisor::Budget, budget);
            assert!(case.cost(&rungs) <= budget && is_full(&case, &rungs, budget));
            let (found, best) = (case.loss(&rungs), case.best(&choices, budget));
            if path.contains(&budget) {
                assert!((found - best).abs() < 1e-12, "{budget}: {found} {best}");
                on_path += 1;
            } else {
                assert!(found - best < case.largest_segment(), "{found} {best}");
                off_path += usize::from(found - best > 1e-12);
            }
        }
    }
    assert!(on_path > 3000 && off_path > 100, "{on_path} {off_path}");
}

#[test]
fn levels_follow_their_targets() {
    let ladders = vec![Ladder::from_costs(&[2, 4, 6, 8, 10, 12, 14, 16, 18, 20]); 3];
    let targets = [1.0, 2.0, 3.0];
    assert_eq!(proportional(&ladders, &targets, 36), [2, 5, 8]);
    assert_eq!(proportional(&ladders, &targets, 38), [3, 5, 8]);
    assert_eq!(proportional(&ladders, &targets, 39), [3, 5, 8]);
    assert_eq!(proportional(&ladders, &targets, 6), [0, 0, 0]);
    assert_eq!(proportional(&ladders, &targets, 999), [9, 9, 9]);
}

#[test]
fn remainder_of_a_capped_unit_goes_to_others() {
    let ladders = [
        Ladder::from_costs(&[1, 100]),
        Ladder::from_costs(&[1, 2, 3, 4]),
    ];
    assert_eq!(proportional(&ladders, &[1.0, 1.0], 50), [0, 3]);
    let losses = [vec![1.0, 0.0], vec![1.0, 0.9, 0.8, 0.7]];
    assert_eq!(
        least_loss_rungs(&ladders, &losses, GainDivisor::Budget, 50),
        [0, 3]
    );
    assert_eq!(
        least_loss_rungs(&ladders, &losses, GainDivisor::Budget, 104),
        [1, 3]
    );
}

#[test]
fn round_up_never_rounds_down() {
    assert_eq!(round_up(0.12341, 4), 0.1235);
    assert_eq!(round_up(3.0, 2), 3.0);
}

#[test]
fn bytes_break_ties_of_equal_cost() {
    let mut ladders = vec![
        Ladder::from_costs(&[1, 11]),
        Ladder::from_costs(&[1, 11]),
        Ladder::from_costs(&[1, 11]),
    ];
    let losses = vec![vec![1.0, 0.0]; 3];
    ladders[0].rungs[1].bytes = 21;
    let climbed =
        |ladders: &[Ladder], budget| least_loss_rungs(ladders, &losses, GainDivisor::Bytes, budget);
    assert_eq!(climbed(&ladders, 13), [0, 1, 0]);
    assert_eq!(climbed(&ladders, 23), [0, 1, 1]);
    ladders[2].rungs[1].bytes = 1;
    assert_eq!(climbed(&ladders, 13), [0, 0, 1]);
    assert_eq!(
        least_loss_rungs(&ladders, &losses, GainDivisor::Budget, 13),
        [1, 0, 0]
    );
}
