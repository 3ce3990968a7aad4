mod check;
mod dense;
mod experts;
mod types;

use super::kind::projection_groups;
use super::*;
use crate::options::{CodeOptions, DenseTypes, Effort, LayoutOptions, TreatmentOptions};

fn hyper(width: usize, heads: usize, kv_heads: usize, ffn: usize) -> HyperParameters {
    HyperParameters {
        architecture: "llama".into(),
        name: None,
        vocabulary: 512,
        context: 512,
        width,
        layers: 3,
        heads,
        kv_heads,
        head_size: width / heads,
        ffn,
        norm_epsilon: 1e-5,
        rope_theta: 10000.0,
        rope_dimensions: width / heads,
        rope_linear_scale: 1.0,
        forward: htc_formats::model::Forward::default(),
    }
}

fn make(
    hyper: &HyperParameters,
    request: PlanRequest,
    source_type: impl Fn(usize, ProjectionKind) -> DType,
) -> Result<Plan, PlanError> {
    super::compute(hyper, request, &Evidence::default(), source_type)
}

fn request(method: Method, budget: Budget, factor_type: DType) -> PlanRequest {
    PlanRequest {
        method,
        budget,
        allocation: Allocation::default(),
        projections: method.default_projections().to_vec(),
        factor_type,
        dense_types: DenseTypes::default(),
        codes: CodeOptions::default(),
        layout: LayoutOptions::default(),
        treatment: TreatmentOptions::default(),
        effort: Effort::default(),
    }
}

#[test]
fn ratio_is_met_from_below_within_one_step() {
    let hyper = hyper(256, 8, 4, 768);
    for method in [Method::PerProjection, Method::SharedBasis] {
        for (factor_type, granule) in [(DType::Q8_0, 32), (DType::F16, 8)] {
            for percent in 15..=100 {
                let ratio = f64::from(percent) / 100.0;
                let request = request(method, Budget::Ratio(ratio), factor_type);
                let kinds = projection_groups(&hyper, &request).unwrap();
                let plan = make(&hyper, request, |_, _| DType::F32).unwrap();
                assert!(plan.ratio() <= ratio, "{ratio} {}", plan.ratio());
                let dense: u64 = kinds.iter().map(ProjectionGroup::dense).sum();
                let largest = kinds.iter().map(|k| k.cost(granule)).max().unwrap();
                let slack = kinds.len() as f64 * largest as f64 / dense as f64;
                assert!(plan.ratio() > ratio - slack, "{ratio} {}", plan.ratio());
                for unit in &plan.units {
                    assert!(unit.parameters_after() <= unit.parameters_before());
                }
            }
        }
    }
}

#[test]
fn every_layer_gets_the_same_rank() {
    let hyper = hyper(256, 8, 4, 768);
    let plan = make(
        &hyper,
        request(Method::PerProjection, Budget::Ratio(0.6), DType::F16),
        |_, _| DType::F32,
    )
    .unwrap();
    for projection in ProjectionKind::ALL {
        let ranks: Vec<_> = (0..3)
            .map(|layer| {
                plan.unit_of(MatrixId::Projection { layer, projection })
                    .unwrap()
                    .rank()
            })
            .collect();
        assert!(ranks.windows(2).all(|w| w[0] == w[1]) && ranks[0].is_some());
    }
}

#[test]
fn rank_error_names_the_largest_rank() {
    let hyper = hyper(256, 8, 4, 768);
    let error = make(
        &hyper,
        request(Method::PerProjection, Budget::Rank(200), DType::F16),
        |_, _| DType::F32,
    )
    .unwrap_err();
    assert_eq!(
        error,
        PlanError::RankTooLarge {
            rank: 200,
            projection: "k".into(),
            limit: 128,
            rows: 128,
            cols: 256,
            largest: 128
        }
    );
    let shared = request(Method::SharedBasis, Budget::Rank(256), DType::F16);
    assert!(make(&hyper, shared, |_, _| DType::F32).is_ok());
}

#[test]
fn ratio_error_names_the_smallest_ratio() {
    let hyper = hyper(64, 8, 4, 172);
    let ask = |ratio| {
        make(
            &hyper,
            request(Method::PerProjection, Budget::Ratio(ratio), DType::F16),
            |_, _| DType::F32,
        )
    };
    let Err(PlanError::RatioTooSmall { smallest, .. }) = ask(0.01) else {
        panic!("0.01 must be impossible");
    };
    assert!(ask(smallest).is_ok());
    assert!(ask(smallest - 2e-4).is_err());
    for ratio in [0.0, -0.5, 1.01, f64::NAN, f64::INFINITY] {
        assert!(matches!(ask(ratio), Err(PlanError::RatioRange(_))));
    }
}

#[test]
fn projection_that_would_grow_stays_dense_with_a_note() {
    let hyper = hyper(256, 8, 4, 768);
    let plan = make(
        &hyper,
        request(Method::PerProjection, Budget::Rank(128), DType::Q8_0),
        |_, _| DType::Q4_0,
    )
    .unwrap();
    for unit in &plan.units {
        assert_eq!(unit.form, MatrixForm::Unchanged);
        assert!(
            unit.notes[0].starts_with("kept dense: rank "),
            "{:?}",
            unit.notes
        );
        assert_eq!(unit.bytes_after(), unit.bytes_before());
    }
    assert_eq!(plan.ratio(), 1.0);
}

#[test]
fn full_rank_stores_factors_with_a_note_on_growth() {
    let hyper = hyper(256, 8, 4, 768);
    for method in [Method::PerProjection, Method::SharedBasis] {
        let request = request(method, Budget::FullRank, DType::F32);
        let plan = make(&hyper, request, |_, _| DType::F32).unwrap();
        for unit in &plan.units {
            assert_ne!(unit.form, MatrixForm::Unchanged);
            assert!(unit.notes[0].starts_with("grows: "), "{:?}", unit.notes);
        }
    }
}

#[test]
fn factor_with_partial_blocks_falls_back_to_f16_with_a_note() {
    let hyper = hyper(64, 8, 4, 172);
    let plan = make(
        &hyper,
        request(Method::PerProjection, Budget::Rank(20), DType::Q8_0),
        |_, _| DType::F32,
    )
    .unwrap();
    let down = plan
        .unit_of(MatrixId::Projection {
            layer: 0,
            projection: ProjectionKind::Down,
        })
        .unwrap();
    assert_eq!(
        down.form,
        MatrixForm::LowRank {
            rank: 20,
            a: DType::F16,
            b: DType::F16
        }
    );
    assert_eq!(down.notes.len(), 2);
    let q = plan
        .unit_of(MatrixId::Projection {
            layer: 0,
            projection: ProjectionKind::Q,
        })
        .unwrap();
    assert_eq!(
        q.form,
        MatrixForm::LowRank {
            rank: 20,
            a: DType::Q8_0,
            b: DType::F16
        }
    );
    assert_eq!(q.bytes_after(), 20 * 68 + 64 * 40);
}

#[test]
fn k_quants_fall_back_to_q8_0_if_blocks_do_not_fit() {
    let wide = hyper(1024, 16, 4, 3072);
    let ratio = request(Method::PerProjection, Budget::Ratio(0.6), DType::Q4K);
    let plan = make(&wide, ratio, |_, _| DType::F16).unwrap();
    let gate = plan
        .unit_of(MatrixId::Projection {
            layer: 0,
            projection: ProjectionKind::Gate,
        })
        .unwrap();
    let (a, b) = (DType::Q4K, DType::Q4K);
    assert_eq!(gate.form, MatrixForm::LowRank { rank: 512, a, b });
    assert!(gate.notes.is_empty(), "{:?}", gate.notes);
    let k = plan
        .unit_of(MatrixId::Projection {
            layer: 0,
            projection: ProjectionKind::K,
        })
        .unwrap();
    let MatrixForm::LowRank { rank, a, b } = k.form else {
        panic!("{:?}", k.form);
    };
    assert!(rank < 256 && rank.is_multiple_of(32), "{rank}");
    assert_eq!((a, b), (DType::Q4K, DType::Q8_0));
    assert_eq!(k.notes.len(), 1);
    let rank = request(Method::PerProjection, Budget::Rank(20), DType::Q6K);
    let plan = make(&wide, rank, |_, _| DType::F16).unwrap();
    let (rank, a, b) = (20, DType::Q6K, DType::F16);
    let form = &plan
        .unit_of(MatrixId::Projection {
            layer: 0,
            projection: ProjectionKind::Up,
        })
        .unwrap()
        .form;
    assert_eq!(*form, MatrixForm::LowRank { rank, a, b });
}

#[test]
fn a_shared_basis_counts_its_parameters_once() {
    let hyper = hyper(256, 8, 4, 768);
    let plan = make(
        &hyper,
        request(Method::SharedBasis, Budget::Rank(64), DType::F16),
        |_, _| DType::F32,
    )
    .unwrap();
    let unit = plan
        .unit_of(MatrixId::Projection {
            layer: 0,
            projection: ProjectionKind::V,
        })
        .unwrap();
    assert_eq!(unit.parameters_after(), 64 * (256 + 256 + 128 + 128));
    assert_eq!(unit.parameters_before(), 256 * 512);
    assert!(
        plan.unit_of(MatrixId::Projection {
            layer: 0,
            projection: ProjectionKind::O
        })
        .is_none()
    );
}

#[test]
fn projection_alone_on_its_input_cannot_share_a_basis() {
    let hyper = hyper(256, 8, 4, 768);
    let mut request = request(Method::SharedBasis, Budget::Rank(64), DType::F16);
    request.projections = vec![ProjectionKind::Q, ProjectionKind::O];
    assert_eq!(
        make(&hyper, request.clone(), |_, _| DType::F32).unwrap_err(),
        PlanError::NoSharedInput(ProjectionKind::O)
    );
    request.projections.clear();
    assert_eq!(
        make(&hyper, request, |_, _| DType::F32).unwrap_err(),
        PlanError::NoProjections
    );
}

#[test]
fn disproportionately_wide_input_shares_no_basis() {
    let mut wide = hyper(256, 8, 4, 768);
    wide.width = 1 << 20;
    let request = request(Method::SharedBasis, Budget::Rank(8), DType::F16);
    assert!(matches!(
        make(&wide, request, |_, _| DType::F32),
        Err(PlanError::InputTooWide { outs: 512, .. })
    ));
}

#[test]
fn a_ratio_between_two_possible_ones_is_possible() {
    let mut hyper = hyper(256, 32, 1, 768);
    hyper.head_size = 8;
    for thousandth in 92..=1000 {
        let mut request = request(
            Method::PerProjection,
            Budget::Ratio(f64::from(thousandth) / 1e3),
            DType::Q8_0,
        );
        request.projections = vec![ProjectionKind::Q, ProjectionKind::K];
        let plan = make(&hyper, request, |_, _| DType::F32);
        assert!(plan.is_ok(), "{thousandth}: {plan:?}");
    }
}

struct Whole(DType);

impl SourceTypes for Whole {
    fn dtype(&self, _: MatrixId) -> Option<DType> {
        Some(self.0)
    }
}

struct Tied;

impl SourceTypes for Tied {
    fn dtype(&self, matrix: MatrixId) -> Option<DType> {
        (matrix != MatrixId::Head).then_some(DType::F16)
    }
}
