use super::*;

#[test]
fn unreachable_ratio_names_factor_types_that_meet_it() {
    let hyper = hyper(256, 8, 4, 768);
    let ask = |factor_type, source: DType| {
        let request = request(Method::PerProjection, Budget::Ratio(0.9), factor_type);
        make(&hyper, request, |_, _| source)
    };
    for source in [DType::Q4K, DType::Q4_0] {
        let error = ask(DType::Q8_0, source).unwrap_err();
        let PlanError::RatioNeedsType { types, reached, .. } = &error else {
            panic!("{error}");
        };
        assert!(*reached > 0.9, "{error}");
        assert!(
            !types.is_empty() && !types.contains(&DType::Q8_0),
            "{error}"
        );
        assert!(error.to_string().contains("q4_0"), "{error}");
        for &factor_type in types {
            let plan = ask(factor_type, source).unwrap();
            assert!(plan.ratio() <= 0.9, "{factor_type}: {}", plan.ratio());
            assert!(plan.units.iter().any(|unit| unit.rank().is_some()));
        }
    }
    assert!(ask(DType::Q8_0, DType::Q8_0).unwrap().ratio() <= 0.9);
}

#[test]
fn exempt_channels_set_the_factor_type() {
    let hyper = hyper(256, 8, 4, 768);
    for (source, asked, first, second) in [
        (DType::F16, DType::Q8_0, DType::F16, DType::F16),
        (DType::F32, DType::Q8_0, DType::F16, DType::F32),
        (DType::Q4K, DType::BF16, DType::BF16, DType::F32),
        (DType::BF16, DType::F16, DType::F16, DType::BF16),
        (DType::F16, DType::F16, DType::F16, DType::F16),
        (DType::BF16, DType::F32, DType::F32, DType::F32),
    ] {
        let mut request = request(Method::PerProjection, Budget::Rank(8), asked);
        request.treatment.sink = Some(SinkProtection::Channels(2));
        let treatment = request.treatment.resolve(false).unwrap();
        let plan = make(&hyper, request.clone(), |_, _| source).unwrap();
        treatment.check(&plan).unwrap();
        let unit = |projection| {
            plan.unit_of(MatrixId::Projection {
                layer: 0,
                projection,
            })
            .unwrap()
        };
        let MatrixForm::LowRank { a, b, .. } = unit(ProjectionKind::Q).form else {
            panic!("{:?}", unit(ProjectionKind::Q));
        };
        assert_eq!((a, b), (first, second), "{source} {asked}");
        let told = unit(ProjectionKind::Q).notes.iter();
        let told = told.filter(|note| note.contains("exempt channels are exact"));
        let expected = usize::from(a != asked) + usize::from(b != asked);
        assert_eq!(told.count(), expected);
        request.treatment.sink = None;
        let plain = make(&hyper, request, |_, _| source).unwrap();
        let down = |plan: &Plan| {
            let projection = ProjectionKind::Down;
            plan.unit_of(MatrixId::Projection {
                layer: 0,
                projection,
            })
            .unwrap()
            .form
            .clone()
        };
        assert_eq!(down(&plain), down(&plan));
        let exact = plain
            .units
            .iter()
            .all(|unit| unit.rounded_source_type().is_none());
        assert_eq!(treatment.check(&plain).is_ok(), exact);
    }
}

/// A matrix of the source may be shorter than in the type of the plan, which then stands for the
/// work alone.
#[test]
fn single_type_of_any_size_includes_matrices_that_grow() {
    let hyper = hyper(256, 4, 2, 512);
    let request = || request(Method::Quantise, Budget::FileSize(1 << 20), DType::F16);
    let source = |_: usize, _: ProjectionKind| DType::Q4_0;
    let trellis = "trellis5".parse().unwrap();
    let shrinking = unmeasured_single_type_plan(&hyper, request(), source, trellis);
    assert_eq!(shrinking.unwrap(), None);
    let any = quantise::any_size_single_type_plan(&hyper, request(), source, trellis);
    let any = any.unwrap().unwrap();
    let mut units = any.units().iter();
    assert!(units.all(|unit| matches!(unit.form, MatrixForm::ColumnGroups { .. })));
}
