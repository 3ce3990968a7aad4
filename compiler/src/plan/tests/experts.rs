//! Mixtures of experts.

use htc_formats::model::Experts;

use super::*;

fn mixture() -> HyperParameters {
    let mut hyper = hyper(256, 8, 4, 768);
    hyper.forward.experts = Some(Experts {
        count: 4,
        used: 2,
        ffn: 384,
        normalised: true,
    });
    hyper
}

#[test]
fn the_ratio_counts_the_matrices_of_experts() {
    let hyper = mixture();
    let of_experts = vec![
        ProjectionKind::Gate,
        ProjectionKind::Up,
        ProjectionKind::Down,
    ];
    for projections in [of_experts, ProjectionKind::ALL.to_vec()] {
        let mut request = request(Method::PerProjection, Budget::Ratio(0.5), DType::F16);
        request.projections = projections;
        let plan = make(&hyper, request, |_, _| DType::F32).unwrap();
        let ratio = plan.ratio();
        assert!(ratio <= 0.5 && ratio > 0.4, "{ratio}");
        let planned = plan.units.iter().filter(|unit| unit.rank().is_some());
        let before: u64 = planned.clone().map(UnitPlan::parameters_before).sum();
        let after: u64 = planned.map(UnitPlan::parameters_after).sum();
        assert_eq!(ratio, after as f64 / before as f64);
    }
}

#[test]
fn exempt_channels_are_exact_in_what_reads_the_stream() {
    let mut request = request(Method::PerProjection, Budget::Rank(32), DType::Q8_0);
    request.treatment.sink = Some(SinkProtection::Channels(2));
    let treatment = request.treatment.resolve(false).unwrap();
    let plan = make(&mixture(), request, |_, _| DType::F16).unwrap();
    treatment.check(&plan).unwrap();
    for unit in &plan.units {
        let reads = !matches!(
            unit.members[0].projection(),
            Some(ProjectionKind::O | ProjectionKind::ExpertDown(_))
        );
        assert_eq!(unit.reads_stream(), reads, "{}", unit.label());
        let MatrixForm::LowRank { b, .. } = unit.form else {
            panic!("{:?}", unit.form);
        };
        assert_eq!(b == DType::F16, reads, "{}", unit.label());
    }
}

#[test]
fn matrices_are_in_their_order() {
    let matrices = matrices(&mixture(), &Whole(DType::F16));
    assert_eq!(matrices.len(), 2 + 3 * (4 + 1 + 3 * 4));
    assert!(matrices.is_sorted_by_key(|member| member.matrix));
}

#[test]
fn experts_share_no_basis() {
    let mut request = request(Method::SharedBasis, Budget::Rank(32), DType::F16);
    request.projections = vec![ProjectionKind::Q, ProjectionKind::K];
    make(&mixture(), request.clone(), |_, _| DType::F16).unwrap();
    request.projections.push(ProjectionKind::Up);
    let dense = make(&hyper(256, 8, 4, 768), request.clone(), |_, _| DType::F16);
    assert!(dense.is_ok());
    let error = make(&mixture(), request, |_, _| DType::F16).unwrap_err();
    assert_eq!(
        error,
        PlanError::ExpertsShareNoBasis(ProjectionKind::Up),
        "{error}"
    );
}
