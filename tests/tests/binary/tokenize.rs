//! `htc tokenize`: ids by hand, and the ids of llama.cpp on the vocabularies of real models.

use std::fs;
use std::path::Path;

use htc_formats::gguf::Value;
use htc_tests::material::shared;
use htc_tests::model::token;
use htc_tests::{Scratch, TinyModel, htc};

use super::{compile, list};

fn ids(model: &Path, text: &Path) -> Vec<u32> {
    let result = htc!["tokenize", model, "--text", text, "--json"]
        .run()
        .json();
    list(&result, "/tokens")
        .iter()
        .map(|id| id.as_u64().unwrap() as u32)
        .collect()
}

#[test]
fn ids_of_a_known_vocabulary() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let byte = |byte: u8| u32::from(byte) + 3;
    let cases: [(&str, Vec<u32>); 7] = [
        ("", vec![1]),
        ("the", vec![1, token("▁the")]),
        ("the cat", vec![1, token("▁the"), token("▁cat")]),
        ("then", vec![1, token("▁then")]),
        // "he" comes before "▁h", so "▁h" never comes to be.
        ("her", vec![1, token("▁"), token("he"), token("r")]),
        // Not in the vocabulary: its bytes.
        ("é", vec![1, token("▁"), byte(0xc3), byte(0xa9)]),
        ("\n", vec![1, token("▁"), token("\n")]),
    ];
    for (text, expected) in cases {
        let file = scratch.file("text.txt", text);
        assert_eq!(ids(&model, &file), expected, "{text:?}");
    }
}

#[test]
fn bos_is_put_where_the_model_asks_for_it() {
    let scratch = Scratch::new();
    let text = scratch.file("text.txt", "the cat");
    let expected = [token("▁the"), token("▁cat")];
    for (add, start) in [(true, &[1][..]), (false, &[])] {
        let tiny = TinyModel::default().with("tokenizer.ggml.add_bos_token", Value::Bool(add));
        let model = scratch.file("model.gguf", tiny.bytes());
        assert_eq!(ids(&model, &text), [start, &expected].concat());
    }
}

#[test]
fn a_vocabulary_is_enough_and_survives_compiling() {
    let scratch = Scratch::new();
    let text = scratch.file("text.txt", "the cat sat on a hat, häuser\n and then");
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let vocabulary = scratch.file("vocab.gguf", TinyModel::default().vocabulary_only());
    let (artifact, _) = compile(&scratch, &model, "out.htz", &["--rank", "8"]);
    let expected = ids(&model, &text);
    assert!(expected.len() > 10);
    assert_eq!(ids(&vocabulary, &text), expected);
    assert_eq!(ids(&artifact, &text), expected);
}

#[test]
fn without_json_the_tokens_are_for_people() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let text = scratch.file("text.txt", "the cat");
    let outcome = htc!["tokenize", &model, "--text", &text].run().ok();
    assert!(outcome.stdout.is_empty());
    assert!(
        outcome.stderr.contains(&token("▁cat").to_string()),
        "{}",
        outcome.stderr
    );
}

/// `.inp` holds texts, `.out` the ids that llama.cpp gives them, without BOS.
fn compare(name: &str) {
    let Some(model) = shared(&format!("models/gguf-vocab/ggml-vocab-{name}.gguf")) else {
        return;
    };
    let beside = |ending: &str| fs::read_to_string(format!("{}{ending}", model.display())).unwrap();
    let (texts, expected) = (beside(".inp"), beside(".out"));
    let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
    let expected: Vec<&str> = expected.lines().collect();
    assert!(texts.len() >= expected.len() && expected.len() > 40);
    let scratch = Scratch::new();
    for (text, line) in texts.iter().zip(expected) {
        let file = scratch.file("text.txt", text);
        let line = line.split_whitespace().map(|id| id.parse().unwrap());
        let expected: Vec<u32> = std::iter::once(1).chain(line).collect();
        assert_eq!(ids(&model, &file), expected, "{text:?}");
    }
}

#[test]
fn llama_spm_equals_llama_cpp() {
    compare("llama-spm");
}

#[test]
fn phi_3_equals_llama_cpp() {
    compare("phi-3");
}

#[test]
fn other_kinds_are_refused_by_name() {
    let scratch = Scratch::new();
    let text = scratch.file("text.txt", "the");
    for kind in ["gpt2", "bert", "t5", "no such thing"] {
        let kind_value = Value::String(kind.to_owned());
        let tiny = TinyModel::default().with("tokenizer.ggml.model", kind_value);
        let model = scratch.file("model.gguf", tiny.vocabulary_only());
        let outcome = htc!["tokenize", &model, "--text", &text, "--json"].run();
        outcome.refused(1, &["model.gguf", kind, "llama"]);
    }
}

#[test]
fn published_vocabularies_of_other_kinds_are_refused_by_name() {
    let scratch = Scratch::new();
    let text = scratch.file("text.txt", "the");
    for name in ["gpt-2", "llama-bpe", "qwen2"] {
        let Some(model) = shared(&format!("models/gguf-vocab/ggml-vocab-{name}.gguf")) else {
            return;
        };
        let outcome = htc!["tokenize", &model, "--text", &text, "--json"].run();
        outcome.refused(1, &[name, "gpt2", "llama"]);
    }
}
