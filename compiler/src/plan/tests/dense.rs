//! Types of matrices that are left dense.

use htc_formats::model::StoredTensor;

use super::*;

fn sizes(unit: &UnitPlan) -> (u64, u64) {
    let tensors = unit.tensors();
    let bytes = |t: &StoredTensor| t.dtype.matrix_bytes(t.rows, t.cols).unwrap() as u64;
    let numbers = tensors.iter().map(|t| (t.rows * t.cols) as u64).sum();
    (numbers, tensors.iter().map(bytes).sum())
}

#[test]
fn dense_types_apply_to_all_unfactorised_matrices() {
    let hyper = hyper(256, 8, 4, 768);
    let mut asked = request(Method::SharedBasis, Budget::Rank(64), DType::F16);
    let plain = compute(
        &hyper,
        asked.clone(),
        &Evidence::default(),
        Whole(DType::F16),
    );
    let plain = plain.unwrap();
    asked.dense_types = DenseTypes {
        projections: Some(DType::Q8_0.into()),
        selected: None,
        embedding_and_head: Some(DType::Q4K.into()),
    };
    let plan = compute(
        &hyper,
        asked.clone(),
        &Evidence::default(),
        Whole(DType::F16),
    );
    let plan = plan.unwrap();
    assert_eq!(plan.ratio(), plain.ratio());
    assert_eq!(plan.units.len(), plain.units.len() + 3 * 4 + 2);
    let form = |matrix| plan.unit_of(matrix).unwrap().form.clone();
    let projection = |layer, projection| MatrixId::Projection { layer, projection };
    assert_eq!(form(projection(1, ProjectionKind::Q)), plain.units[1].form);
    for dense in [
        ProjectionKind::O,
        ProjectionKind::Gate,
        ProjectionKind::Up,
        ProjectionKind::Down,
    ] {
        let weight = DType::Q8_0;
        assert_eq!(form(projection(2, dense)), MatrixForm::Dense { weight });
    }
    for matrix in [MatrixId::Embedding, MatrixId::Head] {
        let weight = DType::Q4K;
        assert_eq!(form(matrix), MatrixForm::Dense { weight });
        assert_eq!(plan.unit_of(matrix).unwrap().bytes_after(), 512 * 144);
    }
    assert_eq!(plan.units[0].label(), "embedding");
    assert_eq!(plan.units.last().unwrap().label(), "head");
    for unit in &plan.units {
        let stored = (unit.parameters_after(), unit.bytes_after());
        assert_eq!(stored, sizes(unit), "{}", unit.label());
    }
    let tied = compute(&hyper, asked, &Evidence::default(), Tied).unwrap();
    assert!(tied.unit_of(MatrixId::Head).is_none());
    assert!(tied.unit_of(MatrixId::Embedding).is_some());
}

#[test]
fn dense_type_as_large_as_the_source_is_ignored() {
    let hyper = hyper(256, 8, 4, 768);
    let mut asked = request(Method::PerProjection, Budget::Rank(256), DType::F32);
    asked.projections = vec![ProjectionKind::Q];
    asked.dense_types.projections = Some(DType::Q8_0.into());
    let made = |source| compute(&hyper, asked.clone(), &Evidence::default(), Whole(source));
    let short = made(DType::Q4_0).unwrap();
    for unit in &short.units {
        assert_eq!(unit.form, MatrixForm::Unchanged);
        assert!(
            unit.notes.iter().any(|note| note.starts_with("kept")),
            "{:?}",
            unit.notes
        );
    }
    let same = made(DType::Q8_0).unwrap();
    let o = same.unit_of(MatrixId::Projection {
        layer: 0,
        projection: ProjectionKind::O,
    });
    assert_eq!(
        o.map(|unit| (unit.form.clone(), unit.notes.len())),
        Some((MatrixForm::Unchanged, 0))
    );
    let long = made(DType::F32).unwrap();
    let q = long
        .unit_of(MatrixId::Projection {
            layer: 0,
            projection: ProjectionKind::Q,
        })
        .unwrap();
    let weight = DType::Q8_0;
    assert_eq!(q.form, MatrixForm::Dense { weight });
    assert!(
        q.notes[0].starts_with("kept dense: rank 256 needs"),
        "{:?}",
        q.notes
    );
}

#[test]
fn type_of_projections_left_dense_can_be_set() {
    let hyper = hyper(256, 8, 4, 768);
    let mut asked = request(Method::PerProjection, Budget::Rank(256), DType::F16);
    asked.projections = vec![ProjectionKind::Q];
    asked.dense_types.selected = Some(DType::Q8_0.into());
    let made = |asked| compute(&hyper, asked, &Evidence::default(), Whole(DType::F16)).unwrap();
    let of = |plan: &Plan, projection| {
        plan.unit_of(MatrixId::Projection {
            layer: 0,
            projection,
        })
        .cloned()
    };
    let plan = made(asked.clone());
    let form = |weight| Some(MatrixForm::Dense { weight });
    assert_eq!(
        of(&plan, ProjectionKind::Q).map(|unit| unit.form),
        form(DType::Q8_0)
    );
    assert_eq!(of(&plan, ProjectionKind::K), None);
    asked.dense_types.projections = Some(DType::Q4K.into());
    let plan = made(asked);
    assert_eq!(
        of(&plan, ProjectionKind::Q).map(|unit| unit.form),
        form(DType::Q4K)
    );
    assert_eq!(
        of(&plan, ProjectionKind::K).map(|unit| unit.form),
        form(DType::Q4K)
    );
}

#[test]
fn dense_type_with_partial_blocks_falls_back_with_a_note() {
    let hyper = hyper(64, 8, 4, 172);
    let mut asked = request(Method::PerProjection, Budget::Rank(8), DType::F16);
    asked.projections = vec![ProjectionKind::Q];
    asked.dense_types.projections = Some(DType::Q4K.into());
    let plan = compute(&hyper, asked, &Evidence::default(), Whole(DType::F32)).unwrap();
    let of = |projection| {
        plan.unit_of(MatrixId::Projection {
            layer: 0,
            projection,
        })
        .unwrap()
    };
    let form = |weight| MatrixForm::Dense { weight };
    assert_eq!(of(ProjectionKind::K).form, form(DType::Q8_0));
    assert_eq!(of(ProjectionKind::Down).form, form(DType::F16));
    assert!(of(ProjectionKind::Down).notes[0].contains("instead of q4_k"));
}
