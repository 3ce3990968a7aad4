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
        ("her", vec![1, token("▁"), token("he"), token("r")]),
        ("é", vec![1, token("▁"), byte(0xc3), byte(0xa9)]),
        ("\n", vec![1, token("▁"), token("\n")]),
    ];
    for (text, expected) in cases {
        let file = scratch.file("text.txt", text);
        assert_eq!(ids(&model, &file), expected, "{text:?}");
    }
}

#[test]
fn bos_is_added_if_the_model_requires_it() {
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
fn vocabulary_only_files_and_artifacts_tokenize_alike() {
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
fn without_json_tokens_are_shown_with_their_text() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let text = scratch.file("text.txt", "the cat");
    let outcome = htc!["tokenize", &model, "--text", &text].run().assert_ok();
    assert!(outcome.stderr.is_empty());
    assert!(
        outcome.text().contains(&token("▁cat").to_string()),
        "{}",
        outcome.text()
    );
}

/// `.inp` has texts, `.out` the ids of llama.cpp without the BOS that some vocabularies add.
fn compare(name: &str, bos: Option<u32>, step: usize) {
    let Some(model) = shared(&format!("models/gguf-vocab/ggml-vocab-{name}.gguf")) else {
        return;
    };
    let read_with_ending =
        |ending: &str| fs::read_to_string(format!("{}{ending}", model.display())).unwrap();
    let (texts, expected) = (read_with_ending(".inp"), read_with_ending(".out"));
    let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
    let expected: Vec<&str> = expected.lines().collect();
    assert!(texts.len() >= expected.len() && expected.len() > 40);
    let scratch = Scratch::new();
    for (text, line) in texts.iter().zip(expected).step_by(step) {
        let file = scratch.file("text.txt", text);
        let line = line.split_whitespace().map(|id| id.parse().unwrap());
        let expected: Vec<u32> = bos.into_iter().chain(line).collect();
        assert_eq!(ids(&model, &file), expected, "{text:?}");
    }
}

#[test]
fn llama_spm_equals_llama_cpp() {
    compare("llama-spm", Some(1), 1);
}

#[test]
fn phi_3_equals_llama_cpp() {
    compare("phi-3", Some(1), 1);
}

#[test]
fn byte_level_vocabularies_equal_llama_cpp() {
    compare("gpt-2", None, 5);
    compare("llama-bpe", Some(128_000), 5);
    compare("qwen2", None, 5);
}

#[test]
fn special_tokens_are_parsed_only_on_request() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let text = scratch.file("text.txt", "<s>the</s>");
    let plain = ids(&model, &text);
    assert_eq!(plain[0], 1);
    assert!(plain.len() > 6 && !plain[1..].contains(&1), "{plain:?}");
    let special = htc!["tokenize", &model, "--text", &text, "--json", "--special"]
        .run()
        .json();
    let expected = serde_json::json!([1, token("▁the"), 2]);
    assert_eq!(special["tokens"], expected);
}

#[test]
fn unsupported_tokenizers_are_refused_by_name() {
    let scratch = Scratch::new();
    let text = scratch.file("text.txt", "the");
    let refused = |tiny: TinyModel, words: &[&str]| {
        let model = scratch.file("model.gguf", tiny.vocabulary_only());
        let outcome = htc!["tokenize", &model, "--text", &text, "--json"].run();
        outcome.assert_refused(1, words);
    };
    let kind = |kind: &str| {
        TinyModel::default().with("tokenizer.ggml.model", Value::String(kind.to_owned()))
    };
    for name in ["bert", "t5", "no such thing"] {
        refused(kind(name), &["model.gguf", name, "llama", "gpt2"]);
    }
    refused(
        kind("gpt2"),
        &["model.gguf", "tokenizer.ggml.pre", "convert"],
    );
    for name in ["default", "gpt-9"] {
        let pre = Value::String(name.to_owned());
        let tiny = kind("gpt2").with("tokenizer.ggml.pre", pre);
        refused(
            tiny,
            &["model.gguf", name, "gpt-2", "llama-bpe", "qwen2", "smollm"],
        );
    }
}

/// A datagram socket preserves the boundaries of writes.
#[test]
fn token_output_is_buffered() {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let text = scratch.file("text.txt", "the cat ".repeat(50_000));
    let (from, to) = UnixDatagram::pair().unwrap();
    let reader = std::thread::spawn(move || {
        let mut room = vec![0; 1 << 20];
        let (mut writes, mut bytes) = (0, 0);
        while let Ok(length @ 1..) = from.recv(&mut room) {
            (writes, bytes) = (writes + 1, bytes + length);
        }
        (writes, bytes)
    });
    let end = to.try_clone().unwrap();
    let run = htc!["tokenize", &model, "--text", &text, "--json"];
    run.stdout(OwnedFd::from(to)).run().assert_ok();
    end.send(&[]).unwrap();
    let (writes, bytes) = reader.join().unwrap();
    assert!(bytes > 500_000, "{bytes}");
    assert!(writes < 100, "{writes} writes of {bytes} bytes");
}
