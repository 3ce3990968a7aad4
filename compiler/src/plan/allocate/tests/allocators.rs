//! Closed forms of each allocator.

use super::*;
use crate::plan::gpu;

fn ranks(plan: &Plan, projection: ProjectionKind) -> Vec<Option<usize>> {
    let layers = plan
        .units
        .iter()
        .map(|u| u.layer().unwrap())
        .max()
        .unwrap_or(0);
    let rank = |layer| {
        plan.unit_of(MatrixId::Projection { layer, projection })
            .unwrap()
            .rank()
    };
    (0..=layers).map(rank).collect()
}

fn known(allocator: Allocator, evidence: &Evidence, ratio: f64) -> Result<Plan, PlanError> {
    let request = request(allocator, Budget::Ratio(ratio));
    compute(&small(), request, evidence, |_, _| DType::F32)
}

#[test]
fn missing_evidence_names_the_option() {
    for (allocator, word) in [
        (Allocator::Curvature, "variance"),
        (Allocator::Waterfill, "spectra of the weights"),
        (Allocator::Whitened, "spectra of the outputs"),
        (Allocator::DiffPlan, "tokens per joule"),
        (Allocator::CacheFit, "L2 cache"),
    ] {
        let error = known(allocator, &Evidence::default(), 0.5).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, PlanError::NoEvidence { .. }), "{text}");
        assert!(
            text.starts_with(&format!("`allocator` {allocator}: ")),
            "{text}"
        );
        assert!(text.contains(word) && !text.contains('\n'), "{text}");
    }
    let mut rng = Rng(4);
    let request = request(Allocator::DiffPlan, Budget::Ratio(0.5));
    let units = units(&small(), &request, |_, _| DType::F32).unwrap();
    let mut evidence = evidence(&mut rng, &units, 6);
    evidence.spectra = None;
    evidence.whitened = None;
    let error = known(Allocator::DiffPlan, &evidence, 0.5).unwrap_err();
    assert!(error.to_string().contains("spectra"), "{error}");
}

#[test]
fn evidence_of_another_model_is_rejected() {
    let mut rng = Rng(5);
    let asked = request(Allocator::Waterfill, Budget::Ratio(0.5));
    let units = units(&small(), &asked, |_, _| DType::F32).unwrap();
    let good = evidence(&mut rng, &units, 6);
    type Change = fn(&mut Evidence);
    let wrong: [(Allocator, Change); 11] = [
        (Allocator::Whitened, |e| {
            e.branches.as_mut().unwrap().pop();
        }),
        (Allocator::Whitened, |e| {
            e.branches.as_mut().unwrap()[5].attention = f64::NAN;
        }),
        (Allocator::Waterfill, |e| {
            e.spectra.as_mut().unwrap().pop();
        }),
        (Allocator::Waterfill, |e| {
            e.spectra.as_mut().unwrap()[3].pop();
        }),
        (Allocator::Whitened, |e| {
            e.whitened.as_mut().unwrap()[3][0] = f64::NAN;
        }),
        (Allocator::Whitened, |e| {
            e.whitened.as_mut().unwrap()[3].reverse();
        }),
        (Allocator::DiffPlan, |e| {
            e.whitened.as_mut().unwrap()[3][0] = f64::INFINITY;
        }),
        (Allocator::DiffPlan, |e| e.tokens_per_joule = Some(0.0)),
        (Allocator::Phase, |e| e.variance = Some(vec![1.0; 5])),
        (Allocator::Phase, |e| e.variance.as_mut().unwrap()[2] = -1.0),
        (Allocator::Curvature, |e| e.variance = Some(vec![0.0; 6])),
    ];
    for (allocator, change) in wrong {
        assert!(known(allocator, &good, 0.5).is_ok(), "{allocator}");
        let mut changed = good.clone();
        change(&mut changed);
        let error = known(allocator, &changed, 0.5).unwrap_err();
        assert!(
            matches!(error, PlanError::InvalidEvidence { .. }),
            "{error}"
        );
        assert!(!error.to_string().contains('\n'));
    }
}

#[test]
fn ranks_follow_the_phases() {
    let evidence = Evidence {
        variance: Some(vec![9.0, 9.0, 1.0, 1.0, 9.0, 9.0]),
        ..Evidence::default()
    };
    let phases = crate::plan::phases::Phases::detect(evidence.variance.as_deref());
    let names: Vec<_> = phases.phases.unwrap().iter().map(|p| p.name()).collect();
    assert_eq!(
        names,
        ["mix", "mix", "compress", "compress", "refine", "refine"]
    );
    let plan = known(Allocator::Phase, &evidence, 0.3).unwrap();
    let (total, gates) = (plan.ratio(), ranks(&plan, ProjectionKind::Gate));
    assert!(total <= 0.3 && total > 0.3 - 0.01, "{total}");
    let unit = gates[0].unwrap() as f64 / 1.5;
    for (rank, scale) in gates.iter().zip([1.5, 1.5, 0.35, 0.35, 1.2, 1.2]) {
        assert!(
            (rank.unwrap() as f64 - scale * unit).abs() <= 16.0,
            "{gates:?}"
        );
    }
}

#[test]
fn without_phases_allocation_is_uniform_with_a_note() {
    let flat = Evidence {
        variance: Some(vec![1.0; 6]),
        ..Evidence::default()
    };
    for (evidence, reason) in [(flat, "flat"), (Evidence::default(), "no calibration")] {
        let plan = known(Allocator::Phase, &evidence, 0.3).unwrap();
        assert!(plan.notes[0].starts_with("phases_valid = false: "));
        assert!(plan.notes[0].contains(reason), "{:?}", plan.notes);
        for projection in ProjectionKind::ALL {
            let ranks = ranks(&plan, projection);
            assert!(ranks.windows(2).all(|pair| pair[0] == pair[1]), "{ranks:?}");
        }
    }
}

#[test]
fn curvature_gives_rank_in_proportion_to_the_profile() {
    let evidence = Evidence {
        variance: Some(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        ..Evidence::default()
    };
    let plan = known(Allocator::Curvature, &evidence, 0.35).unwrap();
    let ups = ranks(&plan, ProjectionKind::Up);
    let unit = ups[5].unwrap() as f64 / 6.0;
    for (layer, rank) in ups.iter().enumerate() {
        let due = unit * (layer + 1) as f64;
        assert!((rank.unwrap() as f64 - due).abs() <= 16.0, "{ups:?}");
    }
}

#[test]
fn published_bounds_conflict_on_8b() {
    let mut request = request(Allocator::Uniform, Budget::Ratio(0.9));
    request.allocation.floor = Some(PUBLISHED_FLOOR);
    request.allocation.cap = Some(PUBLISHED_CAP);
    let made = |request: &PlanRequest| {
        let none = Evidence::default();
        compute(&eight_billion(), request.clone(), &none, |_, _| DType::F16)
    };
    let (floor, cap) = (2253, 1536);
    assert_eq!(made(&request), Err(PlanError::FloorAboveCap { floor, cap }));
    request.allocation.cap = None;
    request.budget = Budget::Ratio(1.0);
    let plan = made(&request).unwrap();
    for projection in [
        ProjectionKind::Q,
        ProjectionKind::K,
        ProjectionKind::V,
        ProjectionKind::O,
    ] {
        let unit = plan
            .unit_of(MatrixId::Projection {
                layer: 7,
                projection,
            })
            .unwrap();
        assert_eq!(unit.form, MatrixForm::Unchanged);
        assert!(
            unit.notes[0].contains("--rank-floor 2253"),
            "{:?}",
            unit.notes
        );
    }
    request.allocation.floor = None;
    request.allocation.cap = cap.into();
    let plan = made(&request).unwrap();
    let gate = plan
        .unit_of(MatrixId::Projection {
            layer: 7,
            projection: ProjectionKind::Gate,
        })
        .unwrap();
    assert_eq!(gate.rank(), Some(1536));
    assert!(
        gate.notes[0].contains("--rank-cap 1536"),
        "{:?}",
        gate.notes
    );
    assert_eq!(
        plan.unit_of(MatrixId::Projection {
            layer: 7,
            projection: ProjectionKind::K
        })
        .unwrap()
        .form,
        MatrixForm::Unchanged
    );
}

#[test]
fn unit_without_smaller_factors_is_dense_with_a_note() {
    let four_bits = {
        let mut request = request(Allocator::Uniform, Budget::Bytes(u64::MAX));
        request.factor_type = DType::Q8_0;
        compute(&small(), request, &Evidence::default(), |_, _| DType::Q4_0).unwrap()
    };
    for unit in &four_bits.units {
        assert!(
            unit.notes[0].starts_with("kept dense: "),
            "{:?}",
            unit.notes
        );
        assert_eq!(unit.bytes_after(), unit.bytes_before());
    }
    let narrow = hyper(1, (1, 1, 8), (8, 64));
    let mut asked = request(Allocator::Uniform, Budget::Parameters(10_000));
    asked.projections = vec![ProjectionKind::Q];
    asked.factor_type = DType::F16;
    let plan = compute(&narrow, asked, &Evidence::default(), |_, _| DType::F32).unwrap();
    let told = "kept dense: rank 8 needs 256 bytes, the dense form 256";
    assert_eq!(plan.units[0].notes, [told]);
    let mut asked = request(Allocator::Uniform, Budget::Parameters(10_000));
    asked.projections = vec![ProjectionKind::Q];
    asked.factor_type = DType::F16;
    let plan = compute(&narrow, asked, &Evidence::default(), |_, _| DType::F64).unwrap();
    let told = "kept dense: rank 8 takes 128 of the budget, the dense form 64";
    assert_eq!(plan.units[0].notes, [told]);
}

#[test]
fn waterfill_gives_rank_to_high_energy() {
    let asked = request(Allocator::Waterfill, Budget::Ratio(0.55));
    let units = units(&small(), &asked, |_, _| DType::F32).unwrap();
    let spectrum = |u: &Unit| -> Vec<f64> {
        let steep = |i: usize| if i < 16 { 1.0 } else { 1e-6 };
        let value = |i| {
            if u.layer.is_multiple_of(2) {
                steep(i)
            } else {
                1.0
            }
        };
        (0..u.full_rank()).map(value).collect()
    };
    let spectra: Vec<_> = units.iter().map(spectrum).collect();
    let plain = Evidence {
        spectra: Some(spectra.clone()),
        ..Evidence::default()
    };
    let plan = known(Allocator::Waterfill, &plain, 0.55).unwrap();
    for unit in plan
        .units
        .iter()
        .filter(|u| u.layer().unwrap().is_multiple_of(2))
    {
        assert!(unit.rank().unwrap() >= 16, "{unit:?}");
    }
    let flat = plan.units.iter().filter(|u| u.layer().unwrap() % 2 == 1);
    let dense = flat
        .clone()
        .filter(|u| u.form == MatrixForm::Unchanged)
        .count();
    assert!(dense * 10 >= flat.count() * 9, "{dense}");
    assert!(
        plan.ratio() <= 0.55 && plan.ratio() > 0.545,
        "{}",
        plan.ratio()
    );
    let both = Evidence {
        whitened: Some(spectra.clone()),
        spectra: Some(spectra),
        ..Evidence::default()
    };
    let made = |allocator, floor| {
        let mut request = request(allocator, Budget::Ratio(0.55));
        request.allocation.floor = floor;
        compute(&small(), request, &both, |_, _| DType::F16).unwrap()
    };
    let floor = Some(RankFloor::Rank(8));
    let [plain, other] =
        [Allocator::Waterfill, Allocator::Whitened].map(|of| made(of, floor).units);
    assert_eq!(other, plain);
    assert!(plain.iter().any(|unit| unit.rank() == Some(16)));
    for (unit, planned) in units.iter().zip(&made(Allocator::Whitened, None).units) {
        let even = 0.55 * (unit.outs * unit.cols) as f64 / (unit.outs + unit.cols) as f64;
        let rank = planned.rank().unwrap_or(unit.full_rank());
        assert!(rank as f64 > even / 2.0 - 8.0, "{rank} of {even}");
        let told = planned
            .notes
            .iter()
            .any(|note| note.starts_with("whitened decided: half"));
        assert!(rank as f64 > even / 2.0 || told, "{:?}", planned.notes);
    }
}

#[test]
fn rounding_loss_is_added_to_rank_loss() {
    let mut rng = Rng(9);
    let mut asked = request(Allocator::Whitened, Budget::Ratio(0.9));
    let units = units(&small(), &asked, |_, _| DType::F16).unwrap();
    let mut evidence = evidence(&mut rng, &units, 6);
    evidence.branches = None;
    let mut losses = |factor_type, dense| {
        asked.factor_type = factor_type;
        asked.dense_types.projections = dense;
        let (_, ladders) = prepare(&small(), &asked, &units, &evidence).unwrap();
        let losses = waterfill::losses(&asked, &units, &ladders, &evidence, 6).unwrap();
        let last = ladders[0].rungs.len() - 1;
        assert_eq!(ladders[0].rungs[last].choice, Choice::Dense);
        let Choice::Rank(rank) = ladders[0].rungs[0].choice else {
            panic!("{:?}", ladders[0]);
        };
        let tail = waterfill::lost_energy(&evidence.whitened.as_ref().unwrap()[0])[rank];
        let rounded = (losses[0][0] - tail) / (1.0 - tail);
        (rounded, losses[0][last])
    };
    let (rounded, dense) = losses(DType::F16, None);
    assert!(rounded < 1e-6 && dense == 0.0, "{rounded} {dense}");
    let (rounded, dense) = losses(DType::Q8_0, Some(DType::Q8_0.into()));
    assert!((rounded / 4.6e-5 - 1.0).abs() < 0.2, "{rounded}");
    assert!((dense / 2.3e-5 - 1.0).abs() < 0.2, "{dense}");
    let (rounded, dense) = losses(DType::Q4_0, Some(DType::F16.into()));
    assert!(rounded > 0.01 && dense == 0.0, "{rounded} {dense}");
}

#[test]
fn branch_share_weighs_its_projections() {
    let asked = request(Allocator::Whitened, Budget::Ratio(0.3));
    let units = units(&small(), &asked, |_, _| DType::F32).unwrap();
    let spectrum = |u: &Unit| (0..u.full_rank()).map(|i| 0.9_f64.powi(i as i32)).collect();
    let branches = |attention, feed_forward| BranchShares {
        attention,
        feed_forward,
    };
    let mut evidence = Evidence {
        whitened: Some(units.iter().map(spectrum).collect()),
        ..Evidence::default()
    };
    let made = |evidence: &Evidence| known(Allocator::Whitened, evidence, 0.3).unwrap();
    let even = made(&evidence);
    evidence.branches = Some(vec![branches(0.25, 0.25); 6]);
    assert_eq!(made(&evidence), even);
    evidence.branches = Some(vec![branches(1e-4, 1e-4); 6]);
    evidence.branches.as_mut().unwrap()[2] = branches(1.0, 1e-4);
    evidence.branches.as_mut().unwrap()[4] = branches(1e-4, 1.0);
    let plan = made(&evidence);
    for (projection, layer) in [
        (ProjectionKind::Q, 2),
        (ProjectionKind::O, 2),
        (ProjectionKind::Gate, 4),
        (ProjectionKind::Down, 4),
    ] {
        let ranks = ranks(&plan, projection);
        let rank = |layer: usize| ranks[layer].unwrap_or(usize::MAX);
        for other in (0..6).filter(|&other| other != layer) {
            assert!(rank(layer) >= rank(other) + 32, "{projection} {ranks:?}");
        }
    }
}

#[test]
fn scale_of_a_spectrum_has_no_effect() {
    let mut rng = Rng(6);
    let asked = request(Allocator::Whitened, Budget::Ratio(0.5));
    let units = units(&small(), &asked, |_, _| DType::F32).unwrap();
    let mut evidence = evidence(&mut rng, &units, 6);
    let first = known(Allocator::Whitened, &evidence, 0.5).unwrap();
    for (i, spectrum) in evidence.whitened.iter_mut().flatten().enumerate() {
        let scale = 2.0_f64.powi(i as i32 * 20 - 400);
        spectrum.iter_mut().for_each(|s| *s *= scale);
    }
    assert_eq!(known(Allocator::Whitened, &evidence, 0.5), Ok(first));
}

#[test]
fn the_energy_beyond_a_rank_is_exact_to_its_last_digit() {
    let lost = waterfill::lost_energy(&[2.0, 1.0, 1.0, 0.0]);
    assert_eq!(lost, [1.0, 2.0 / 6.0, 1.0 / 6.0, 0.0, 0.0]);
    assert_eq!(waterfill::lost_energy(&[0.0, 0.0]), [0.0; 3]);
    let huge = waterfill::lost_energy(&[1e300, 1e300, 1e-300]);
    assert_eq!(huge[1], 0.5);
    assert!(huge.iter().all(|l| l.is_finite()));
}

#[test]
fn diffplan_matches_waterfill_within_its_levels() {
    let mut rng = Rng(7);
    let asked = request(Allocator::Waterfill, Budget::Ratio(0.4));
    let units = units(&small(), &asked, |_, _| DType::F32).unwrap();
    let mut evidence = evidence(&mut rng, &units, 6);
    evidence.whitened = None;
    let loss = |allocator| -> f64 {
        let plan = known(allocator, &evidence, 0.4).unwrap();
        let spectra = evidence.spectra.as_ref().unwrap();
        let lost = plan.units.iter().zip(spectra).map(|(u, s)| {
            let lost = waterfill::lost_energy(s);
            u.rank().map_or(0.0, |rank| lost[rank])
        });
        lost.sum()
    };
    let [uniform, water, soft] = [
        Allocator::Uniform,
        Allocator::Waterfill,
        Allocator::DiffPlan,
    ]
    .map(loss);
    assert!(water <= soft && soft < uniform, "{water} {soft} {uniform}");
}

#[test]
fn energy_sets_the_total_only_without_a_budget() {
    let mut rng = Rng(8);
    let asked = request(Allocator::DiffPlan, Budget::Energy);
    let units = units(&small(), &asked, |_, _| DType::F32).unwrap();
    let mut evidence = evidence(&mut rng, &units, 6);
    let mut made = |budget, tokens| {
        evidence.tokens_per_joule = Some(tokens);
        let request = request(Allocator::DiffPlan, budget);
        compute(&small(), request, &evidence, |_, _| DType::F32).unwrap()
    };
    let [free, dear] = [0.4, 0.004].map(|tokens| made(Budget::Ratio(0.5), tokens));
    assert_eq!(free.units, dear.units);
    assert!(
        free.notes[0].contains("the energy term nothing"),
        "{:?}",
        free.notes
    );
    let prices = [1e9, 1e-2, 1e-3, 1e-4];
    let plans = prices.map(|tokens| made(Budget::Energy, tokens));
    let ratios = plans.each_ref().map(Plan::ratio);
    assert_eq!(ratios[0], 1.0);
    assert!(
        ratios.windows(2).all(|pair| pair[0] > pair[1]),
        "{ratios:?}"
    );
    assert!(plans[0].notes[0].contains("decided the total"));
    let all: f64 = units.iter().map(|u| u.parameters() as f64).sum();
    let spectra = evidence.whitened.as_ref().unwrap();
    for ((unit, planned), spectrum) in units.iter().zip(&plans[2].units).zip(spectra) {
        let Some(rank) = planned.rank() else { continue };
        let joule = 0.005 * (unit.outs + unit.cols) as f64 / all / 1e-3;
        let lost = waterfill::lost_energy(spectrum);
        assert!(
            rank < 16 || lost[rank - 8] - lost[rank] > 8.0 * joule,
            "{rank}"
        );
        let above = rank + 8;
        let factored = above * (unit.outs + unit.cols) < unit.outs * unit.cols;
        assert!(
            !factored || lost[rank] - lost[above] <= 8.0 * joule,
            "{rank}"
        );
    }
    let uniform = request(Allocator::Waterfill, Budget::Energy);
    let refused = compute(&small(), uniform, &evidence, |_, _| DType::F32);
    assert_eq!(refused, Err(PlanError::NoBudget));
}

#[test]
fn cachefit_rank_is_exact_to_the_byte() {
    let mut request = request(Allocator::CacheFit, Budget::Ratio(1.0));
    request.method = Method::SharedBasis;
    request.projections = vec![ProjectionKind::Q, ProjectionKind::K, ProjectionKind::V];
    request.factor_type = DType::Q8_0;
    let cache = gpu::find_by_name("rtx-4070-laptop").unwrap().l2_bytes;
    let evidence = Evidence {
        l2_bytes: Some(cache),
        ..Evidence::default()
    };
    let made = |evidence| {
        compute(&eight_billion(), request.clone(), evidence, |_, _| {
            DType::F16
        })
    };
    let plan = made(&evidence).unwrap();
    let limit = 3 * cache / 4;
    for unit in &plan.units {
        assert_eq!(unit.rank(), Some(2304));
        assert_eq!(unit.bytes_after(), 2304 * 10240 * 34 / 32);
        assert!(unit.bytes_after() <= limit && 2336 * 10240 * 34 / 32 > limit);
        assert!(
            unit.notes[0].starts_with("cachefit decided: "),
            "{:?}",
            unit.notes
        );
    }
    let others = 32 * 2 * (4096 * 4096 + 3 * 4096 * 14336);
    let told = predict_speed(&plan, MatrixId::Head, others, cache).to_string();
    assert_eq!(plan.notes, [told]);
    assert!(plan.notes[0].starts_with("a prediction by bytes alone"));
    let tiny = Evidence {
        l2_bytes: Some(1000),
        ..Evidence::default()
    };
    let error = made(&tiny).unwrap_err();
    assert!(error.to_string().contains("layer 0: q+k+v"), "{error}");
}

#[test]
fn projections_with_one_input_share_the_cache() {
    let mut request = request(Allocator::CacheFit, Budget::Ratio(1.0));
    request.projections = vec![
        ProjectionKind::Q,
        ProjectionKind::K,
        ProjectionKind::V,
        ProjectionKind::O,
    ];
    let evidence = Evidence {
        l2_bytes: Some(16 << 20),
        ..Evidence::default()
    };
    let plan = compute(&eight_billion(), request, &evidence, |_, _| DType::F16).unwrap();
    let bytes = |projection| {
        plan.unit_of(MatrixId::Projection {
            layer: 5,
            projection,
        })
        .unwrap()
        .bytes_after()
    };
    let together = bytes(ProjectionKind::Q) + bytes(ProjectionKind::K) + bytes(ProjectionKind::V);
    let (limit, step) = (12 << 20, 2 * 8 * (8192 + 5120 + 5120));
    assert!(together <= limit && together + step > limit, "{together}");
    let rank = |projection| {
        plan.unit_of(MatrixId::Projection {
            layer: 5,
            projection,
        })
        .unwrap()
        .rank()
    };
    assert_eq!(rank(ProjectionKind::Q), rank(ProjectionKind::K));
    assert!(bytes(ProjectionKind::O) <= limit && bytes(ProjectionKind::O) + 2 * 8 * 8192 > limit);
}

#[test]
fn a_roofline_counts_bytes() {
    let mut asked = request(Allocator::Uniform, Budget::Ratio(0.5));
    asked.projections = vec![ProjectionKind::Gate];
    let made = |hyper: &HyperParameters| {
        compute(hyper, asked.clone(), &Evidence::default(), |_, _| {
            DType::F16
        })
        .unwrap()
    };
    let plan = made(&eight_billion());
    let (before, after) = (4096 * 14336 * 2, plan.units[0].bytes_after());
    let nothing_fits = predict_speed(&plan, MatrixId::Head, 0, 1 << 20);
    assert_eq!(nothing_fits.streamed, before as f64 / after as f64);
    assert_eq!(nothing_fits.cached, nothing_fits.streamed);
    let fits = predict_speed(&plan, MatrixId::Head, 0, after * 4 / 3 + 4);
    assert_eq!(fits.streamed, nothing_fits.streamed);
    let expected = fits.streamed * L2_SPEEDUP;
    assert!((fits.cached - expected).abs() < 1e-9, "{fits:?}");
    let others = predict_speed(&plan, MatrixId::Head, 32 * before, 1 << 20);
    let expected = 2.0 / (1.0 + after as f64 / before as f64);
    assert!((others.streamed - expected).abs() < 1e-12, "{others:?}");
}
