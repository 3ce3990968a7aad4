//! Serialisation of options.

use htc_formats::DType;
use htc_formats::model::ProjectionKind;
use serde_json::{Value, json};

use super::*;

/// Options that all differ from their defaults.
fn options() -> PlanOptions {
    PlanOptions {
        budget: Some(Budget::FileSize(3_200_000)),
        allocator: Some(Allocator::Phase),
        rank_floor: Some(RankFloor::Fraction(0.25)),
        rank_cap: Some(512),
        first_positions: Some(FirstPositions::Included),
        dense_type: Some(DenseChoice::Source),
        left_type: Some(DType::Q8_0.into()),
        embedding_type: Some(DType::Q4K.into()),
        codes: CodeOptions {
            codes: Some(CodeKinds::Levels),
            low_rank: Some(Switch::Off),
            rotation: Some(Switch::Off),
        },
        projections: vec![ProjectionKind::Q, ProjectionKind::Down],
        layout: LayoutOptions {
            order: Some(Switch::Off),
            kv_bases: Switch::On,
        },
        treatment: TreatmentOptions {
            gauge: Some(GaugeKind::Whiten),
            sink: Some(SinkProtection::Channels(8)),
            bias: Some(BiasArg::Auto),
            shrinkage: Some(ShrinkageArg::Auto),
            keep_gauge: false,
        },
        effort: Effort::High,
        ..PlanOptions::default()
    }
}

/// The bytes of the request in plan files.
const WRITTEN: &str = concat!(
    r#"{"budget":{"file_size":3200000},"allocator":"phase","rank_floor":"0.25","rank_cap":512,"#,
    r#""first_positions":"counted","dense_type":"source","left_type":"q8_0","embedding_type":"q4_k","#,
    r#""codes":"levels","low_rank":"off","rotation":"off","projections":["q","down"],"order":"off","#,
    r#""kv_bases":"on","gauge":"whiten","sink":"channels:8","bias":"auto","shrinkage":"auto","#,
    r#""effort":"high"}"#,
);

#[test]
fn plan_options_keep_their_bytes_and_round_trip() {
    assert_eq!(serde_json::to_string(&options()).unwrap(), WRITTEN);
    assert_eq!(
        serde_json::from_str::<PlanOptions>(WRITTEN).unwrap(),
        options()
    );
    let silent = serde_json::to_string(&PlanOptions::default()).unwrap();
    assert_eq!(silent, "{}");
    let read: PlanOptions = serde_json::from_str(&silent).unwrap();
    assert_eq!(read, PlanOptions::default());
}

#[test]
fn explicit_defaults_are_not_written() {
    let explicit = PlanOptions {
        first_positions: Some(FirstPositions::Excluded),
        codes: CodeOptions {
            codes: Some(CodeKinds::All),
            low_rank: Some(Switch::On),
            rotation: Some(Switch::On),
        },
        ..PlanOptions::default()
    };
    assert_eq!(serde_json::to_value(&explicit).unwrap(), json!({}));
}

#[test]
fn budgets_round_trip() {
    for (budget, written) in [
        (Budget::FullRank, json!("full")),
        (Budget::Energy, json!("energy")),
        (Budget::Rank(8), json!({"rank": 8})),
        (Budget::Ratio(0.1 + 0.2), json!({"ratio": 0.1 + 0.2})),
        (Budget::Parameters(9), json!({"parameters": 9})),
        (Budget::Bytes(u64::MAX), json!({"bytes": u64::MAX})),
        (Budget::MeanRank(70.5), json!({"mean_rank": 70.5})),
        (Budget::FileSize(1), json!({"file_size": 1})),
        (Budget::Bits(3.0), json!({"bits": 3.0})),
    ] {
        assert_eq!(serde_json::to_value(budget).unwrap(), written);
        assert_eq!(serde_json::from_value::<Budget>(written).unwrap(), budget);
    }
    for wrong in [
        json!({"rank": 0}),
        json!({"ratio": -1}),
        json!({"bits": 0.0}),
        json!({"bytes": 1.5}),
        json!({"bytes": 1, "bits": 1}),
        json!("rank"),
        json!("all"),
    ] {
        assert!(
            serde_json::from_value::<Budget>(wrong.clone()).is_err(),
            "{wrong}"
        );
    }
}

#[test]
fn unknown_fields_are_refused() {
    fn refuses<T: serde::de::DeserializeOwned>(mut value: Value) {
        assert!(
            serde_json::from_value::<T>(value.clone()).is_ok(),
            "{value}"
        );
        value["seed"] = json!(1);
        let error = serde_json::from_value::<T>(value).map(|_| ()).unwrap_err();
        assert!(
            error.to_string().starts_with("unknown field `seed`"),
            "{error}"
        );
    }
    refuses::<PlanOptions>(json!({"codes": "gguf", "order": "on", "bias": "on", "effort": "fast"}));
    refuses::<CodeOptions>(json!({"rotation": "off"}));
    refuses::<LayoutOptions>(json!({"kv_bases": "on"}));
    refuses::<TreatmentOptions>(json!({"gauge": "axiom"}));
    refuses::<Treatment>(
        json!({"gauge": "whiten", "sink": "off", "bias": false, "shrinkage": 0.1}),
    );
}

#[test]
fn options_that_say_something_of_a_missing_text_are_refused() {
    let request = |set: fn(&mut CompileRequest)| {
        let mut request = CompileRequest::default();
        request.plan.method = Some(Method::PerProjection);
        set(&mut request);
        request.calibration(None).map(|found| found.is_some())
    };
    assert_eq!(request(|_| {}), Ok(false));
    type Change = fn(&mut CompileRequest);
    let cases: [(&str, Change); 5] = [
        ("context", |r| r.calibration.context = Some(64)),
        ("held_out", |r| {
            r.calibration.held_out = Some("h.txt".into())
        }),
        ("max_kl", |r| r.limits.max_kl = Some(0.1)),
        ("preset", |r| r.limits.preset = Some(QualityPreset::Small)),
        ("shrinkage", |r| {
            r.plan.treatment.shrinkage = Some(ShrinkageArg::Auto)
        }),
    ];
    for (option, set) in cases {
        let error = request(set).unwrap_err().to_string();
        let expected = format!("`{option}` requires `calibration`; ");
        assert!(error.starts_with(&expected), "{error}");
        let mut calibrated = CompileRequest::default();
        set(&mut calibrated);
        calibrated.calibration.texts = CalibrationOptions::new("a.txt").texts;
        assert!(
            calibrated
                .calibration(None)
                .is_ok_and(|found| found.is_some())
        );
    }
}

#[test]
fn options_of_other_allocators_are_refused() {
    let mut request = CompileRequest::default();
    request.plan.method = Some(Method::PerProjection);
    let target = TargetMachine {
        l2_bytes: Some(1 << 20),
        ..TargetMachine::default()
    };
    let error = request.plan_source(None, target.clone()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`gpu` requires `allocator` cachefit; the allocator is uniform"
    );
    request.plan.allocator = Some(Allocator::CacheFit);
    assert!(request.plan_source(None, target).is_ok());
}
