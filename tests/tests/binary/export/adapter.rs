//! Factors as an adapter next to a base.

use htc_formats::block;
use htc_formats::gguf::{Gguf, Value};
use htc_tests::artifact::Artifact;
use htc_tests::float64::Matrix;
use htc_tests::{Scratch, TinyModel};

use super::{compile, list, to_gguf};

const PLAN: &str = r#"{
  "format": "htc-plan", "version": 2, "method": "low-rank", "factor_type": "f32",
  "units": [
    {"layer": 0, "projections": ["q"], "form": "residual", "rank": 16, "types": {"base": "q4_0", "a": "q8_0", "b": "f16"}},
    {"layer": 0, "projections": ["up"], "form": "low_rank", "rank": 32, "types": {"a": "q8_0", "b": "q8_0"}},
    {"layer": 1, "projections": ["down"], "form": "low_rank", "rank": 20, "types": {"a": "f32", "b": "f32"}}
  ]
}"#;

fn matrix(gguf: &Gguf, name: &str) -> Matrix {
    let tensor = gguf.tensor(name).unwrap();
    let mut values = vec![0.0; tensor.rows() * tensor.cols()];
    block::decode(tensor.dtype().unwrap(), gguf.bytes(tensor), &mut values).unwrap();
    Matrix::new(tensor.rows(), tensor.cols(), &values)
}

#[test]
fn base_plus_adapter_equals_the_artifact() {
    let scratch = Scratch::new();
    let tiny = TinyModel {
        ffn: 192,
        ..TinyModel::default()
    };
    let model = scratch.file("model.gguf", tiny.bytes());
    let plan = scratch.file("plan.json", PLAN);
    let options = ["--plan", plan.to_str().unwrap()];
    let (path, _) = compile(&scratch, &model, "model.htz", &options);
    let lora = scratch.path("lora.gguf");
    let options = ["--lora", lora.to_str().unwrap()];
    let (base, report) = to_gguf(&scratch, &path, "base.gguf", &options);
    let (base, lora) = (Gguf::open(&base).unwrap(), Gguf::open(&lora).unwrap());
    let artifact = Artifact::open(&path);
    for (key, value) in [
        ("general.type", "adapter"),
        ("adapter.type", "lora"),
        ("general.architecture", "llama"),
    ] {
        assert_eq!(lora.get(key), Some(&Value::String(value.to_owned())));
    }
    assert_eq!(lora.get("adapter.lora.alpha"), Some(&Value::F32(0.0)));
    assert_eq!(lora.tensors().len(), 6);
    for (name, layer, projection, zero) in [
        ("blk.0.attn_q.weight", 0, "q", false),
        ("blk.0.ffn_up.weight", 0, "up", true),
        ("blk.1.ffn_down.weight", 1, "down", true),
    ] {
        let b = matrix(&lora, &format!("{name}.lora_b"));
        let product = b.times(&matrix(&lora, &format!("{name}.lora_a")));
        let mut sum = matrix(&base, name);
        assert_eq!(sum.values.iter().all(|value| *value == 0.0), zero, "{name}");
        sum.add(1.0, &product);
        let expected = artifact.dense_projection(layer, projection);
        let off = expected.relative_distance(&sum);
        assert!(off < 1e-12, "{name}: {off:.2e}");
    }
    let stored = |gguf: &Gguf, name: &str| gguf.bytes(gguf.tensor(name).unwrap()).to_vec();
    let up = "blk.0.ffn_up.weight";
    assert!(stored(&lora, &format!("{up}.lora_a")) == artifact.tensor_bytes("blk.0.ffn_up.a"));
    assert!(stored(&lora, &format!("{up}.lora_b")) == artifact.tensor_bytes("blk.0.ffn_up.b"));
    let q = stored(&base, "blk.0.attn_q.weight");
    assert!(q == artifact.tensor_bytes("blk.0.attn_q.weight"));
    let notes = list(&report, "/notes");
    let first_note = notes[0].as_str().unwrap();
    assert!(
        first_note.starts_with("2 matrices of zeros in the base"),
        "{first_note}"
    );
}
