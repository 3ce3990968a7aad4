//! Properties of all allocators and budgets.

use super::*;
use crate::options::{CodeOptions, DenseTypes, LayoutOptions, TreatmentOptions};

struct Case {
    hyper: HyperParameters,
    request: PlanRequest,
    evidence: Evidence,
    source: DType,
}

impl Case {
    fn random(rng: &mut Rng, allocator: Allocator) -> Case {
        let kv_heads = 1 + rng.below(3);
        let heads = kv_heads * (1 + rng.below(3));
        let head_size = rng.choose(&[2, 8, 16, 24, 32]);
        let width = 1 + rng.below(200);
        let ffn = 1 + rng.below(400);
        let hyper = hyper(1 + rng.below(5), (heads, kv_heads, head_size), (width, ffn));
        let method = rng.choose(&[Method::PerProjection, Method::SharedBasis]);
        let mut projections: Vec<ProjectionKind> = ProjectionKind::ALL.to_vec();
        projections.retain(|s| {
            (method == Method::PerProjection || s.group().is_some()) && rng.below(4) > 0
        });
        if projections.is_empty() {
            projections = method.default_projections().to_vec();
        }
        let floats = [DType::F32, DType::F16, DType::BF16];
        let blocks = [DType::Q8_0, DType::Q4_0, DType::Q4K, DType::Q6K];
        let whole = [hyper.width, hyper.ffn, heads * head_size];
        let whole = whole.iter().all(|cols| cols.is_multiple_of(32));
        let source = match rng.below(2) {
            0 if whole => rng.choose(&[DType::Q8_0, DType::Q4_0]),
            _ => rng.choose(&floats),
        };
        let mut request = PlanRequest {
            method,
            budget: Budget::FullRank,
            allocation: Allocation {
                first_positions: Default::default(),
                allocator,
                floor: match rng.below(6) {
                    0 => Some(RankFloor::Rank(1 + rng.below(40))),
                    1 => Some(RankFloor::Fraction(0.01 + 0.4 * rng.unit())),
                    _ => None,
                },
                cap: (rng.below(4) == 0).then(|| 8 + rng.below(80)),
            },
            projections,
            factor_type: rng.choose(&[&floats[..], &blocks[..]].concat()),
            dense_types: DenseTypes::default(),
            codes: CodeOptions::default(),
            layout: LayoutOptions::default(),
            treatment: TreatmentOptions::default(),
            effort: Default::default(),
        };
        let Ok(units) = units(&hyper, &request, |_, _| source) else {
            return Case::random(rng, allocator);
        };
        let share = rng.unit() * 1.1;
        let sum = |of: fn(&Unit) -> u64| units.iter().map(of).sum::<u64>() as f64;
        request.budget = match rng.below(4) {
            0 => Budget::Ratio(share.clamp(1e-6, 1.0)),
            1 => Budget::Parameters((share * sum(Unit::parameters)) as u64),
            2 => Budget::Bytes((share * sum(Unit::bytes)) as u64),
            _ => Budget::MeanRank(
                (share * sum(|u| u.full_rank() as u64) / units.len() as f64).max(1e-6),
            ),
        };
        Case {
            evidence: evidence(rng, &units, hyper.layers),
            hyper,
            request,
            source,
        }
    }

    fn make(&self) -> Result<Plan, PlanError> {
        let request = self.request.clone();
        compute(&self.hyper, request, &self.evidence, |_, _| self.source)
    }

    fn spent(&self, plan: &Plan) -> (f64, f64) {
        let sum = |of: &dyn Fn(&crate::plan::UnitPlan) -> u64| -> f64 {
            plan.units.iter().map(of).sum::<u64>() as f64
        };
        let units = units(&self.hyper, &self.request, |_, _| self.source).unwrap();
        match self.request.budget {
            Budget::Ratio(ratio) => (
                ratio * sum(&|u| u.parameters_before()),
                sum(&|u| u.parameters_after()),
            ),
            Budget::Parameters(total) => (total as f64, sum(&|u| u.parameters_after())),
            Budget::Bytes(total) => (total as f64, sum(&|u| u.bytes_after())),
            Budget::MeanRank(mean) => {
                let both = plan.units.iter().zip(&units);
                let ranks: usize = both.map(|(p, u)| p.rank().unwrap_or(u.full_rank())).sum();
                (mean * units.len() as f64, ranks as f64)
            }
            Budget::Rank(_)
            | Budget::FullRank
            | Budget::FileSize(_)
            | Budget::SourceFraction(_)
            | Budget::Bits(_)
            | Budget::Energy => unreachable!(),
        }
    }

    fn check(&self, plan: &Plan) {
        let (budget, spent) = self.spent(plan);
        assert!(spent <= budget, "{spent} of {budget}");
        let units = units(&self.hyper, &self.request, |_, _| self.source).unwrap();
        let (totals, ladders) =
            prepare(&self.hyper, &self.request, &units, &self.evidence).unwrap();
        let left = totals.budget - spent as u64;
        let floor = self.request.allocation.floor;
        let floor = floor.map_or(1, |f| f.rank(self.hyper.width).unwrap());
        let cap = self.request.allocation.cap.unwrap_or(usize::MAX);
        let allocator = self.request.allocation.allocator;
        let mut steps: Vec<(&[crate::plan::UnitMatrix], Option<u64>, &Ladder)> = Vec::new();
        for ((unit, ladder), made) in units.iter().zip(&ladders).zip(&plan.units) {
            let choice = made.rank().map_or(Choice::Dense, Choice::Rank);
            let rung = ladder
                .rungs
                .iter()
                .position(|r| r.choice == choice)
                .unwrap();
            steps.push((&unit.members, ladder.step_cost(rung), ladder));
            assert_eq!(ladder.rungs[rung].bytes, made.bytes_after());
            let notes = made.notes.join("; ");
            match made.rank() {
                None => assert!(notes.starts_with("kept dense: "), "{notes}"),
                Some(rank) => {
                    assert!((floor..=cap).contains(&rank), "{rank}");
                    assert!(made.bytes_after() < made.bytes_before());
                    if self.request.allocation.floor.is_none() {
                        assert!(!notes.contains("--rank-floor"), "{notes}");
                    } else if rung == 0 && rank > 8 && rank - 8 >= floor {
                        assert!(ladder.rungs.len() == 1 || rank - floor < 256, "{rank}");
                    }
                }
            }
        }
        for (members, step, ladder) in &steps {
            let together = matches!(allocator, Allocator::Uniform | Allocator::CacheFit)
                || plan.notes.iter().any(|n| n.contains("uniform"));
            let alike = |other: &&(&[crate::plan::UnitMatrix], Option<u64>, &Ladder)| {
                let projections = |m: &[crate::plan::UnitMatrix]| -> Vec<Option<ProjectionKind>> {
                    m.iter().map(crate::plan::UnitMatrix::projection).collect()
                };
                projections(other.0) == projections(members) && other.2.rungs == ladder.rungs
            };
            let count = if together {
                steps.iter().filter(alike).count() as u64
            } else {
                1
            };
            assert!(
                step.is_none_or(|step| step * count > left),
                "{step:?} {left}"
            );
        }
    }
}

#[test]
fn every_allocator_meets_budgets_from_below() {
    let mut rng = Rng(3);
    let (mut made, mut impossible) = (0, 0);
    for i in 0..2800 {
        let allocator = Allocator::ALL[i % Allocator::ALL.len()];
        let mut case = Case::random(&mut rng, allocator);
        let plain = case.request.allocation == Allocation::default();
        if plain && matches!(case.request.budget, Budget::Ratio(_)) {
            continue;
        }
        match case.make() {
            Ok(plan) => {
                case.check(&plan);
                assert_eq!(case.make(), Ok(plan));
                made += 1;
            }
            Err(
                PlanError::FloorAboveCap { .. }
                | PlanError::CapTooSmall { .. }
                | PlanError::CacheTooSmall { .. },
            ) => {}
            Err(error) => {
                let smallest = match &error {
                    PlanError::RatioTooSmall { smallest, .. } => *smallest,
                    PlanError::RatioNeedsType { reached, .. } => *reached,
                    PlanError::BudgetTooSmall { smallest, .. } => smallest.parse().unwrap(),
                    error => panic!("{error}"),
                };
                let slightly = 1.0 - 1e-3;
                case.request.budget = match case.request.budget {
                    Budget::Ratio(_) => Budget::Ratio(smallest),
                    Budget::Parameters(_) => Budget::Parameters(smallest as u64),
                    Budget::Bytes(_) => Budget::Bytes(smallest as u64),
                    _ => Budget::MeanRank(smallest),
                };
                let plan = case.make();
                case.check(&plan.unwrap_or_else(|e| panic!("{error}: {e}")));
                case.request.budget = match case.request.budget {
                    Budget::Ratio(r) => Budget::Ratio(r * slightly - 1e-4),
                    Budget::Parameters(n) => Budget::Parameters(n - 1),
                    Budget::Bytes(n) => Budget::Bytes(n - 1),
                    _ => Budget::MeanRank(smallest * slightly - 0.01),
                };
                assert!(case.make().is_err(), "{error}");
                impossible += 1;
            }
        }
    }
    assert!(made > 1500 && impossible > 50, "{made} {impossible}");
}

#[test]
fn non_finite_budgets_are_rejected() {
    let hyper = hyper(2, (4, 2, 16), (64, 160));
    let ask = |budget| {
        let mut request = request(Allocator::Uniform, budget);
        request.allocation.floor = Some(RankFloor::Rank(8));
        compute(&hyper, request, &Evidence::default(), |_, _| DType::F32)
    };
    for ratio in [0.0, -0.5, 1.01, f64::NAN, f64::INFINITY] {
        let error = ask(Budget::Ratio(ratio)).unwrap_err();
        assert!(matches!(error, PlanError::RatioRange(_)), "{error}");
    }
    for mean in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = ask(Budget::MeanRank(mean)).unwrap_err();
        assert!(matches!(error, PlanError::BudgetRange { .. }), "{error}");
    }
    for budget in [Budget::Bytes(0), Budget::Parameters(0)] {
        let error = ask(budget).unwrap_err();
        assert!(matches!(error, PlanError::BudgetTooSmall { .. }), "{error}");
    }
    let all = ask(Budget::Bytes(u64::MAX)).unwrap();
    assert!(all.units.iter().all(|u| u.form == MatrixForm::Unchanged));
}

#[test]
fn fixed_rank_rejects_allocation_options() {
    let hyper = hyper(2, (4, 2, 16), (64, 160));
    for (allocation, option) in [
        (("phase", None, None), "`allocator` phase"),
        (("uniform", Some("8"), None), "`rank_floor` 8"),
        (("uniform", None, Some(8)), "`rank_cap` 8"),
    ] {
        let (allocator, floor, cap): (&str, Option<&str>, _) = allocation;
        let mut request = request(allocator.parse().unwrap(), Budget::Rank(8));
        request.allocation.floor = floor.map(|f| f.parse().unwrap());
        request.allocation.cap = cap;
        let error = compute(&hyper, request, &Evidence::default(), |_, _| DType::F32);
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with(option), "{error}");
    }
}

#[test]
fn floors_and_caps_parse_as_ranks_or_fractions() {
    assert_eq!("64".parse(), Ok(RankFloor::Rank(64)));
    assert_eq!("0.55".parse(), Ok(RankFloor::Fraction(0.55)));
    assert_eq!("1".parse(), Ok(RankFloor::Rank(1)));
    assert_eq!("1.0".parse(), Ok(RankFloor::Fraction(1.0)));
    for floor in [
        RankFloor::Rank(7),
        RankFloor::Fraction(1.0),
        RankFloor::Fraction(0.3),
    ] {
        assert_eq!(floor.to_string().parse(), Ok(floor));
    }
    for wrong in ["0", "-1", "0.0", "1.5", "nan", "half", ""] {
        assert!(wrong.parse::<RankFloor>().is_err(), "{wrong}");
    }
}
