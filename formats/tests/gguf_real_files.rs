//! Files that other programs wrote, where the folder with them is present: `HTC_SHARED`, or
//! `../shared` beside the repository.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, and so do its helpers"
)]

use std::path::PathBuf;

use htc_formats::architecture::{BindError, SUPPORTED};
use htc_formats::gguf::Gguf;
use htc_formats::model::Role;
use htc_formats::source::{ModelFile, SourceError};
use htc_formats::vocab::{Vocabulary, VocabularyError};

fn shared(path: &str) -> Option<PathBuf> {
    let root = std::env::var_os("HTC_SHARED").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared"),
        PathBuf::from,
    );
    let path = root.join(path);
    if !path.exists() {
        println!("skipped: {} is absent", path.display());
        return None;
    }
    Some(path)
}

fn model(path: &str) -> Option<ModelFile> {
    Some(ModelFile::open_gguf(shared(path)?).unwrap())
}

#[test]
fn llama_files_bind() {
    for (name, output, factors, scale) in [
        ("llama", false, false, 1.0),
        ("mistral", true, false, 1.0),
        ("llama3-rope", true, true, 1.0),
        ("llama-linear-rope", true, false, 4.0),
    ] {
        let Some(model) = model(&format!("reference/arch/{name}/model.gguf")) else {
            continue;
        };
        let hyper = &model.hyper;
        assert_eq!(
            (hyper.layers, hyper.width, hyper.vocabulary),
            (3, 64, 4096),
            "{name}"
        );
        assert_eq!(
            (hyper.heads, hyper.kv_heads, hyper.ffn),
            (4, 2, 160),
            "{name}"
        );
        assert_eq!(hyper.rope_linear_scale, scale, "{name}");
        assert_eq!(model.tensor(Role::Output).is_some(), output, "{name}");
        assert_eq!(model.tensor(Role::RopeFactors).is_some(), factors, "{name}");
        let tensors = 2 + 9 * 3 + usize::from(output) + usize::from(factors);
        assert_eq!(model.tensors.len(), tensors, "{name}");
        let vocabulary = model.vocabulary.unwrap();
        assert_eq!(
            (vocabulary.bos, vocabulary.eos),
            (Some(1), Some(2)),
            "{name}"
        );
        assert_eq!(vocabulary.tokens[0], "<unk>", "{name}");
    }
}

#[test]
fn other_architectures_are_refused_by_name() {
    for name in ["gemma2", "gemma3", "phi3", "qwen2", "qwen3"] {
        // The table is what decides: whoever adds an architecture moves its row.
        assert!(
            SUPPORTED
                .iter()
                .all(|architecture| architecture.name != name)
        );
        let Some(path) = shared(&format!("reference/arch/{name}/model.gguf")) else {
            continue;
        };
        let error = ModelFile::open_gguf(path).unwrap_err();
        assert!(
            matches!(
                &error,
                SourceError::Bind { error: BindError::Architecture { found }, .. } if found == name
            ),
            "{error}"
        );
    }
}

#[test]
fn every_format_of_one_model_decodes_to_about_the_same() {
    let decode = |format: &str| -> Option<Vec<(Role, Vec<f32>)>> {
        let model = model(&format!("models/reference-7m/reference-7m-{format}.gguf"))?;
        let decoded = model.tensors.iter().map(|tensor| {
            let mut values = vec![0.0; tensor.rows * tensor.cols];
            htc_formats::block::decode(tensor.dtype, model.bytes(tensor), &mut values).unwrap();
            (tensor.role, values)
        });
        Some(decoded.collect())
    };
    let Some(reference) = decode("f16") else {
        return;
    };
    // Relative errors of whole matrices; a wrong scale, sign or order of codes gives about 1.
    for (format, bound) in [
        ("q8_0", 0.01),
        ("q6_k", 0.03),
        ("q5_k_m", 0.06),
        ("q4_k_m", 0.12),
        ("q4_0", 0.15),
    ] {
        let Some(found) = decode(format) else {
            continue;
        };
        for ((role, expected), (found_role, found)) in reference.iter().zip(&found) {
            assert_eq!(role, found_role);
            let norm: f64 = expected.iter().map(|x| f64::from(*x).powi(2)).sum();
            let error: f64 = expected
                .iter()
                .zip(found)
                .map(|(x, y)| (f64::from(*x) - f64::from(*y)).powi(2))
                .sum();
            let relative = (error / norm).sqrt();
            assert!(relative < bound, "{format} {role}: {relative}");
        }
    }
}

#[test]
fn vocabulary_files_are_read_and_their_kinds_named() {
    for (name, tokens) in [
        ("llama-spm", Some(32_000)),
        ("phi-3", Some(32_064)),
        ("gpt-2", None),
        ("llama-bpe", None),
        ("qwen2", None),
    ] {
        let Some(path) = shared(&format!("models/gguf-vocab/ggml-vocab-{name}.gguf")) else {
            continue;
        };
        let gguf = Gguf::open(path).unwrap();
        assert!(gguf.tensors().is_empty());
        let vocabulary = Vocabulary::from_gguf(&gguf);
        match tokens {
            Some(tokens) => assert_eq!(vocabulary.unwrap().tokens.len(), tokens, "{name}"),
            None => assert_eq!(
                vocabulary.unwrap_err(),
                VocabularyError::Model {
                    found: "gpt2".to_owned()
                }
            ),
        }
    }
}
