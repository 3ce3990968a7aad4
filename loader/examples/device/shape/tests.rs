use super::*;

#[test]
fn shapes_and_forms_are_parsed() {
    for shape in SHAPES {
        assert_eq!(shape.name.parse(), Ok(shape));
        assert_eq!(shape.hyper(64).check(), Ok(()));
    }
    assert!("Llama-7".parse::<Shape>().unwrap_err().contains("tiny"));
    assert_eq!("dense:q4_k".parse(), Ok(StorageForm::Dense(DType::Q4K)));
    assert_eq!(
        "lowrank:64:f16".parse(),
        Ok(StorageForm::LowRank(64, DType::F16))
    );
    assert_eq!(
        "basis:32:q8_0".parse(),
        Ok(StorageForm::Basis(32, DType::Q8_0))
    );
    assert_eq!("grc:32:q8_0".parse(), Ok(StorageForm::Grc(32, DType::Q8_0)));
    for text in ["levels:4", "trellis:3", "planes:2"] {
        text.parse::<StorageForm>().unwrap();
    }
    for text in [
        "",
        "dense",
        "dense:q9",
        "lowrank:33:q8_0",
        "lowrank:0:f16",
        "levels:9",
        "trellis:x",
    ] {
        let error = text.parse::<StorageForm>().unwrap_err();
        assert!(error.contains("expected dense:TYPE"), "{error}");
    }
}

#[test]
fn ranks_are_limited_to_the_full_rank() {
    let form = StorageForm::LowRank(1024, DType::F16);
    assert_eq!(
        form.projection_tensors(ProjectionKind::K, 192, 576)
            .unwrap()
            .rank(),
        Some(192)
    );
    let form = StorageForm::Basis(1024, DType::F16);
    assert_eq!(
        form.projection_tensors(ProjectionKind::K, 192, 576)
            .unwrap()
            .rank(),
        Some(576)
    );
    assert_eq!(
        form.projection_tensors(ProjectionKind::Down, 576, 1536)
            .unwrap()
            .rank(),
        Some(576)
    );
}
