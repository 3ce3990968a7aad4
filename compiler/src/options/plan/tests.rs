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

/// Options of factors are refused until a method with factors is named.
#[test]
fn options_of_factors_require_a_method() {
    let none = PlanOptions::default();
    assert_eq!((none.method(), none.check()), (Method::Quantise, Ok(())));
    let budget = |budget| PlanOptions {
        budget: Some(budget),
        ..PlanOptions::default()
    };
    for sized in [
        Budget::FileSize(1000),
        Budget::SourceFraction(0.5),
        Budget::Bits(3.5),
    ] {
        assert_eq!(budget(sized).check(), Ok(()));
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
        (budget(Budget::Ratio(0.5)), "`ratio`"),
        (budget(Budget::FullRank), "`rank`"),
        (budget(Budget::Bytes(5)), "`bytes`"),
        (floor.clone(), "`rank_floor` 4"),
        (gauge(GaugeKind::Whiten), "`gauge` whiten"),
    ] {
        assert_eq!(options.method(), Method::Quantise);
        let refused = options.check().unwrap_err().to_string();
        assert!(refused.starts_with(option), "{refused}");
        assert!(
            refused.contains("`method` low-rank or shared-basis"),
            "{refused}"
        );
        for method in [Method::PerProjection, Method::SharedBasis] {
            let named = PlanOptions {
                method: Some(method),
                ..options.clone()
            };
            assert_eq!((named.method(), named.check()), (method, Ok(())));
        }
    }
    assert_eq!(gauge(GaugeKind::None).check(), Ok(()));
    let both = PlanOptions {
        budget: Some(Budget::Bits(3.0)),
        ..floor
    };
    let refused = both.check().unwrap_err().to_string();
    assert!(refused.starts_with("`rank_floor` 4: "), "{refused}");
}

/// A percentage is shown as it was typed.
#[test]
fn a_fraction_of_the_source_is_shown_as_a_percentage() {
    for (fraction, shown) in [(0.07, "7%"), (0.6, "60%"), (0.125, "12.5%")] {
        let options = PlanOptions {
            budget: Some(Budget::SourceFraction(fraction)),
            ..PlanOptions::default()
        };
        let budget = options.resolve(true).budget;
        assert_eq!(budget.to_string(), format!("--target-size {shown}"));
    }
}

#[test]
fn method_names_have_aliases() {
    for (name, method) in [
        ("low-rank", Method::PerProjection),
        ("gp", Method::PerProjection),
        ("shared-basis", Method::SharedBasis),
        ("grc", Method::SharedBasis),
        ("quantise", Method::Quantise),
        ("quantize", Method::Quantise),
    ] {
        assert_eq!(name.parse(), Ok(method));
    }
    assert!("svd".parse::<Method>().is_err());
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
