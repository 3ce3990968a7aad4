use std::path::Path;

use htc_formats::DType;
use htc_formats::model::Experts;

use super::*;
use crate::calibrate::tests::hyper;
use crate::options::Effort;

const SPEED: Speed = Speed::from_rates(1e6, 1e3);

fn unit(projection: ProjectionKind, form: MatrixForm) -> UnitPlan {
    UnitPlan {
        members: vec![UnitMatrix {
            matrix: MatrixId::Projection {
                layer: 0,
                projection,
            },
            rows: 8,
            cols: 256,
            source_type: DType::F32,
        }],
        form,
        notes: Vec::new(),
    }
}

fn dense(weight: DType) -> MatrixForm {
    MatrixForm::Dense { weight }
}

fn close(found: f64, expected: f64) -> bool {
    (found / expected - 1.0).abs() < 1e-12
}

#[test]
fn coding_cost_is_the_sum_of_its_parts() {
    assert!(close(coding_cost(256), 5421.6) && close(coding_cost(1024), 8186.4));
    let numbers = 8.0 * 256.0 * (4500.0 + (3.6 + 2.0) * 256.0);
    let rows = 8.0 * 8.0 * (8.0 + 0.5 * 256.0);
    let of = |projection, form| coded_unit_cost(&unit(projection, form));
    let of_k = of(ProjectionKind::K, dense(DType::Q4K)).unwrap();
    assert!(close(of_k, numbers + rows), "{of_k}");
    let factor = 256.0_f64.powi(3);
    let of_q = of(ProjectionKind::Q, dense(DType::Q8_0)).unwrap();
    assert!(close(of_q, of_k + factor), "{of_q}");
    for form in [dense(DType::F16), MatrixForm::Unchanged] {
        assert_eq!(of(ProjectionKind::Q, form), None);
    }
}

#[test]
fn seconds_follow_speed_threads_and_work() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let demo = root.join("../assets/demo/reference-7m-f16.gguf");
    let source = ModelFile::open(demo).unwrap();
    let (normal, fast) = (Effort::Normal.settings(), Effort::Fast.settings());
    let curves = |effort, codes, rotates, speed, threads| {
        curve_seconds(&source, effort, codes, rotates, speed, threads)
    };
    let gguf = curves(normal, CodeKinds::Gguf, false, SPEED, 1);
    assert_eq!(curves(normal, CodeKinds::Gguf, false, SPEED, 2), gguf / 2.0);
    let twice = curves(
        normal,
        CodeKinds::Gguf,
        false,
        Speed::from_rates(2e6, 1e3),
        1,
    );
    assert_eq!(twice, gguf / 2.0);
    assert!(curves(fast, CodeKinds::Gguf, false, SPEED, 1) < gguf);
    let trellis = curves(normal, CodeKinds::Trellis, false, SPEED, 1);
    assert!(curves(normal, CodeKinds::All, false, SPEED, 1) > trellis);
    let levels = |rotates| curves(normal, CodeKinds::Levels, rotates, SPEED, 1);
    assert!(levels(true) > levels(false));
    let tuning = |steps| tuning_seconds(&source, steps, SPEED, 1);
    assert_eq!(tuning(0), 0.0);
    let [first, second] = [40, 60].map(|steps| tuning(steps) - tuning(steps - 20));
    assert!(first > 0.0 && close(first, second), "{first} {second}");
}

#[test]
fn costs_of_experts_count_the_positions_that_they_read() {
    let mut hyper = hyper();
    let member = |projection| unit(projection, MatrixForm::Unchanged).members[0];
    let (down, expert) = (
        member(ProjectionKind::Down),
        member(ProjectionKind::ExpertDown(3)),
    );
    let together = gradient::outputs_together(8) as f64;
    let costs = |hyper: &HyperParameters, member: &UnitMatrix| {
        let sums = gradient_sums(hyper, member);
        [projection_weights(hyper, member), sums]
    };
    hyper.forward.experts = Some(Experts {
        count: 8,
        used: 2,
        ffn: 256,
        normalised: true,
    });
    assert_eq!(costs(&hyper, &down), [8.0 * 256.0, 8.0 * together]);
    assert_eq!(costs(&hyper, &expert), [2.0 * 256.0, 2.0 * together]);
    let embedding = UnitMatrix {
        matrix: MatrixId::Embedding,
        ..down
    };
    assert_eq!(costs(&hyper, &embedding), [0.0, 0.0]);
}

#[test]
fn each_input_of_an_expert_is_factored_once() {
    let factor = 256.0_f64.powi(3);
    for (projection, count) in [
        (ProjectionKind::ExpertGate(1), 1.0),
        (ProjectionKind::ExpertUp(1), 0.0),
        (ProjectionKind::ExpertDown(1), 1.0),
        (ProjectionKind::Router, 0.0),
    ] {
        let member = unit(projection, MatrixForm::Unchanged).members[0];
        assert_eq!(moment_factor_cost(&member, false), count * factor);
        assert_eq!(moment_factor_cost(&member, true), 2.0 * count * factor);
    }
}

#[test]
fn passes_of_measurements_count_the_source_once_where_its_logits_are_kept() {
    let passes = |vocabulary, times| {
        let hyper = HyperParameters {
            vocabulary,
            ..hyper()
        };
        passes_of_measurements(&hyper, 64 * 512, 512, times)
    };
    // 32 windows of each split: all are kept, none, and half of them.
    assert_eq!(passes(4000, 2.5), 3.5);
    assert_eq!(passes(4000, 0.5), 1.0);
    assert_eq!(passes(200_000, 2.5), 5.0);
    assert_eq!(passes((1 << 26) / 511 / 16, 2.5), 2.5 + 0.5 + 1.25);
}
