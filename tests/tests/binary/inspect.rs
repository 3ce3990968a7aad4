//! `htc inspect`: contents of files, for programs and for people.

use std::fs;

use htc_formats::gguf::Value;
use htc_tests::artifact::Artifact;
use htc_tests::material::shared;
use htc_tests::{Scratch, TinyModel, htc};

use super::{compile, list, number, text};

#[test]
fn gguf_as_json() {
    let scratch = Scratch::new();
    let tiny = TinyModel::default();
    let model = scratch.file("model.gguf", tiny.bytes());
    let found = htc!["inspect", &model, "--json"].run().json();
    assert_eq!(text(&found, "/format"), "gguf");
    assert_eq!(number(&found, "/version"), 3.0);
    assert_eq!(
        number(&found, "/bytes"),
        fs::metadata(&model).unwrap().len() as f64
    );
    let metadata = &found["metadata"];
    assert_eq!(metadata["general.architecture"], "llama");
    assert_eq!(metadata["llama.block_count"], 2);
    let tensors = list(&found, "/tensors");
    assert_eq!(tensors.len(), tiny.tensors().len());
    for (found, tensor) in tensors.iter().zip(tiny.tensors()) {
        assert_eq!(found["name"], tensor.name);
        assert_eq!(found["type"], "F32");
        assert_eq!(found["dims"][0], tensor.cols);
        assert_eq!(found["bytes"], 4 * tensor.rows * tensor.cols);
    }
}

#[test]
fn vocabulary_only_gguf_as_json() {
    let scratch = Scratch::new();
    let model = scratch.file("vocab.gguf", TinyModel::default().vocabulary_only());
    let found = htc!["inspect", &model, "--json"].run().json();
    assert!(list(&found, "/tensors").is_empty());
    assert_eq!(found["metadata"]["tokenizer.ggml.model"], "llama");
}

#[test]
fn artifact_as_json() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let options = ["--method", "shared-basis", "--rank", "16"];
    let (artifact, report) = compile(&scratch, &model, "out.htz", &options);
    let found = htc!["inspect", &artifact, "--json"].run().json();
    assert_eq!(text(&found, "/format"), "htz");
    assert_eq!(text(&found, "/version"), "2.1");
    assert_eq!(
        number(&found, "/bytes"),
        fs::metadata(&artifact).unwrap().len() as f64
    );
    assert_eq!(text(&found, "/hyper/architecture"), "llama");
    assert_eq!(found["plan"], report["plan"]);
    assert_eq!(
        found["provenance"]["source_sha256"],
        report["source_sha256"]
    );
    let manifest = Artifact::open(&artifact).manifest;
    assert_eq!(
        found["tensors"],
        serde_json::to_value(&manifest.tensors).unwrap()
    );
    assert_eq!(
        found["sections"],
        serde_json::to_value(&manifest.sections).unwrap()
    );
}

#[test]
fn readable_output_goes_to_stderr() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let (artifact, _) = compile(&scratch, &model, "out.htz", &["--rank", "16"]);
    for (file, words) in [
        (
            &model,
            ["GGUF", "llama.block_count", "blk.1.ffn_down.weight"],
        ),
        (&artifact, ["2 layers", "low rank", "blk.1.ffn_down.a"]),
    ] {
        let outcome = htc!["inspect", file].run().assert_ok();
        assert!(outcome.stderr.is_empty());
        for word in words {
            assert!(
                outcome.text().contains(word),
                "no {word} in:\n{}",
                outcome.text()
            );
        }
    }
}

#[test]
fn control_characters_are_escaped() {
    let scratch = Scratch::new();
    let name = Value::String("\u{1b}]0;title\u{7}\u{1b}[2J".to_owned());
    let tiny = TinyModel::default().with("general.name", name.clone());
    let tiny = tiny.with("a\u{1b}[31mkey", name);
    let model = scratch.file("model.gguf", tiny.bytes());
    let (artifact, _) = compile(&scratch, &model, "out.htz", &["--rank", "8"]);
    for file in [&model, &artifact] {
        let outcome = htc!["inspect", file].run().assert_ok();
        let controls = |text: &str| text.contains(|c: char| c.is_control() && c != '\n');
        assert!(!controls(outcome.text()), "{:?}", outcome.text());
        let json = htc!["inspect", file, "--json"].run().assert_ok();
        assert!(!controls(json.text()));
    }
}

#[test]
fn published_vocabularies_are_shown() {
    for name in ["gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2"] {
        let Some(model) = shared(&format!("models/gguf-vocab/ggml-vocab-{name}.gguf")) else {
            return;
        };
        let found = htc!["inspect", &model, "--json"].run().json();
        assert!(found["metadata"]["tokenizer.ggml.tokens"]["length"].as_u64() > Some(30_000));
        htc!["inspect", &model].run().assert_ok();
    }
}
