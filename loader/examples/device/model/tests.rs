use htc_loader::{Cpu, Model, Session};

use super::super::shape::SHAPES;
use super::*;

const FORMS: [&str; 10] = [
    "dense:f16",
    "dense:q8_0",
    "dense:q4_k",
    "lowrank:64:f16",
    "lowrank:64:q8_0",
    "basis:96:q8_0",
    "grc:64:q8_0",
    "levels:4",
    "trellis:3",
    "planes:2",
];

#[test]
fn every_form_executes_with_finite_logits() {
    for form in FORMS {
        let mut maker = MatrixGenerator::new(true);
        let file = random_model(&SHAPES[0], form.parse().unwrap(), 64, &mut maker).unwrap();
        let model = Model::bind(file).unwrap();
        let mut session = Session::new(model, Cpu::with_threads(1).unwrap(), 64).unwrap();
        let tokens: Vec<u32> = (3..40).collect();
        let logits = session.step(&tokens).unwrap();
        let square = logits.iter().map(|x| x * x).sum::<f32>() / logits.len() as f32;
        assert!((0.1..10.0).contains(&square), "{form}: {square}");
    }
}

#[test]
fn written_gguf_matches_the_model_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("random.gguf");
    let form = StorageForm::Dense(DType::Q8_0);
    let file = random_model(&SHAPES[0], form, 64, &mut MatrixGenerator::new(false)).unwrap();
    write_gguf(&file, &path).unwrap();
    let opened = ModelFile::open(&path).unwrap();
    assert_eq!(opened.tensors.len(), file.tensors.len());
    for (a, b) in opened.tensors.iter().zip(&file.tensors) {
        assert_eq!((a.role, opened.bytes(a)), (b.role, file.bytes(b)));
    }
    assert_eq!(opened.vocabulary.unwrap().tokens.len(), 512);
    // GGUF has no factors.
    let form = StorageForm::LowRank(64, DType::F16);
    let file = random_model(&SHAPES[0], form, 64, &mut MatrixGenerator::new(false)).unwrap();
    assert!(
        write_gguf(&file, &path)
            .unwrap_err()
            .to_string()
            .contains("only forms dense")
    );
}

#[test]
fn only_projections_count_as_operations() {
    let shape = &SHAPES[0];
    let count = |form: &str| {
        let file = random_model(
            shape,
            form.parse().unwrap(),
            64,
            &mut MatrixGenerator::new(false),
        )
        .unwrap();
        projection_parameters(&file)
    };
    let dense = 2 * (256 * 256 * 2 + 256 * 128 * 2 + 3 * 256 * 512);
    assert_eq!(count("dense:q8_0"), dense);
    assert_eq!(count("planes:2"), 2 * dense);
    let low = 2 * 64 * ((256 + 256) * 2 + (256 + 128) * 2 + 3 * (256 + 512));
    assert_eq!(count("lowrank:64:q8_0"), low);
}

#[test]
fn partial_blocks_are_rejected() {
    let shape = "SmolLM2-135M".parse().unwrap();
    let form = StorageForm::Dense(DType::Q4K);
    let error = random_model(&shape, form, 64, &mut MatrixGenerator::new(false)).unwrap_err();
    assert!(
        error.to_string().contains("whole blocks of q4_k"),
        "{error}"
    );
}
