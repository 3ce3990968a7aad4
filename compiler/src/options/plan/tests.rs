use super::super::GaugeKind;
use super::*;

#[test]
fn defaults_depend_on_the_method_and_the_calibration() {
    let of_factors = PlanOptions {
        method: Some(Method::PerProjection),
        ..PlanOptions::default()
    };
    let plain = of_factors.resolve(false);
    assert_eq!(plain.budget, Budget::Ratio(DEFAULT_RATIO));
    assert_eq!(plain.allocation, Allocation::default());
    assert_eq!(plain.projections, ProjectionKind::ALL);
    let calibrated = of_factors.resolve(true);
    assert_eq!(calibrated.allocation.allocator, Allocator::Whitened);
    let shared = PlanOptions {
        method: Some(Method::SharedBasis),
        ..PlanOptions::default()
    };
    assert_eq!(shared.allocator(true), Allocator::Waterfill);
    let fixed = PlanOptions {
        budget: Some(Budget::Rank(4)),
        ..shared
    };
    assert_eq!(fixed.allocator(true), Allocator::Uniform);
}

#[test]
fn options_imply_the_method() {
    let none = PlanOptions::default();
    assert_eq!(
        (none.method(), none.method_implied_by()),
        (Method::Quantise, None)
    );
    let budget = |budget| PlanOptions {
        budget: Some(budget),
        ..PlanOptions::default()
    };
    for sized in [Budget::FileSize(1000), Budget::Bits(3.5)] {
        assert_eq!(budget(sized).method(), Method::Quantise);
    }
    let floor = PlanOptions {
        rank_floor: Some(RankFloor::Rank(4)),
        ..PlanOptions::default()
    };
    let gauge = |kind| PlanOptions {
        treatment: TreatmentOptions {
            gauge: Some(kind),
            ..TreatmentOptions::default()
        },
        ..PlanOptions::default()
    };
    for (options, option) in [
        (budget(Budget::Ratio(0.5)), "ratio"),
        (budget(Budget::FullRank), "rank"),
        (budget(Budget::Bytes(5)), "bytes"),
        (floor.clone(), "rank_floor"),
        (gauge(GaugeKind::Whiten), "gauge"),
    ] {
        assert_eq!(options.method_implied_by(), Some(option));
        let request = options.resolve(false);
        let decided = (request.method, request.method_implied_by);
        assert_eq!(decided, (Method::PerProjection, Some(option)));
        assert_eq!(options.check(), Ok(()));
        let asked = PlanOptions {
            method: Some(Method::SharedBasis),
            ..options
        };
        assert_eq!(
            (asked.method(), asked.method_implied_by()),
            (Method::SharedBasis, None)
        );
    }
    assert_eq!(gauge(GaugeKind::None).method(), Method::Quantise);
    let both = PlanOptions {
        budget: Some(Budget::Bits(3.0)),
        ..floor
    };
    assert_eq!(both.method(), Method::Quantise);
    let refused = both.check().unwrap_err().to_string();
    assert!(refused.starts_with("`rank_floor` 4: "), "{refused}");
}

#[test]
fn projections_are_unique_and_sorted() {
    let options = PlanOptions {
        projections: vec![ProjectionKind::Up, ProjectionKind::Q, ProjectionKind::Up],
        ..PlanOptions::default()
    };
    assert_eq!(
        options.resolve(false).projections,
        [ProjectionKind::Q, ProjectionKind::Up]
    );
}
