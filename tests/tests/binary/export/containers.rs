//! Metadata of the containers.

use std::fs;

use htc_formats::gguf::{Gguf, Value};
use htc_tests::{Scratch, TinyModel, htc};
use serde_json::Value as Json;

use super::{ARCHITECTURES, compile, compile_unchanged, fixture, to_folder, to_gguf};

fn json(path: &std::path::Path) -> Json {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn folder_is_complete() {
    let scratch = Scratch::new();
    let written = scratch.file("text.txt", "the white rabbit  ran\n\nand the cat sat ");
    for name in ARCHITECTURES {
        for source in ["model.gguf", "."] {
            let artifact = compile_unchanged(&scratch, &fixture(name).join(source), "model.htz");
            let out = to_folder(&scratch, &artifact, "out", &["--force"]);
            let mut names: Vec<String> = fs::read_dir(&out)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            // The card of the model, which a GGUF has among its metadata.
            let card = (source == "model.gguf").then_some("README.md");
            let files = [
                "config.json",
                "generation_config.json",
                "model.safetensors",
                "tokenizer.json",
                "tokenizer.model",
                "tokenizer_config.json",
            ];
            let expected: Vec<&str> = card.into_iter().chain(files).collect();
            assert_eq!(names, expected);
            let (found, stated) = (
                json(&out.join("config.json")),
                json(&fixture(name).join("config.json")),
            );
            for key in [
                "architectures",
                "model_type",
                "tie_word_embeddings",
                "vocab_size",
            ] {
                assert_eq!(found[key], stated[key], "{name}: {key}");
            }
            assert_eq!(found["torch_dtype"], "float16", "{name}");
            let tokens = |model: &std::path::Path| {
                let run = htc!["tokenize", model, "--text", &written, "--json"];
                run.run().json()["tokens"].clone()
            };
            assert_eq!(tokens(&out), tokens(&artifact), "{name} {source}");
        }
    }
}

#[test]
fn rope_scalings_keep_their_published_form() {
    let scratch = Scratch::new();
    for (name, kind) in [
        ("llama3-rope", "llama3"),
        ("llama-linear-rope", "linear"),
        ("phi3", "longrope"),
    ] {
        let artifact = compile_unchanged(&scratch, &fixture(name).join("model.gguf"), "model.htz");
        let out = to_folder(&scratch, &artifact, "out", &["--force"]);
        let scaling = &json(&out.join("config.json"))["rope_scaling"];
        let found = scaling.get("rope_type").or(scaling.get("type"));
        assert_eq!(found.unwrap(), kind);
        if name == "llama3-rope" {
            assert_eq!(scaling["factor"], 8.0);
            assert_eq!(scaling["original_max_position_embeddings"], 32);
        }
    }
}

#[test]
fn tokenizer_is_complete() {
    let scratch = Scratch::new();
    let tiny = TinyModel::default()
        .with(
            "tokenizer.chat_template",
            Value::String("{{ messages[0].content }}".to_owned()),
        )
        .with("tokenizer.ggml.eot_token_id", Value::U32(298))
        .with("tokenizer.ggml.add_bos_token", Value::Bool(false));
    let model = scratch.file("model.gguf", tiny.bytes());
    let artifact = compile_unchanged(&scratch, &model, "model.htz");
    let (path, _) = to_gguf(&scratch, &artifact, "out.gguf", &[]);
    let (found, expected) = (Gguf::open(&path).unwrap(), Gguf::open(&model).unwrap());
    for (key, value) in expected.metadata() {
        assert_eq!(found.get(key), Some(value), "{key}");
    }
    let out = to_folder(&scratch, &artifact, "out", &[]);
    let config = json(&out.join("tokenizer_config.json"));
    assert_eq!(config["chat_template"], "{{ messages[0].content }}");
    assert_eq!(config["add_bos_token"], false);
    let generation = json(&out.join("generation_config.json"));
    assert_eq!(generation["eos_token_id"], serde_json::json!([2, 298]));
}

#[test]
fn missing_biases_are_zero_or_refused() {
    let scratch = Scratch::new();
    let words = scratch.file("words.txt", htc_tests::material::words(4000));
    let cache = scratch.path("cache");
    let biased = |text: &std::path::Path, context: &str| {
        let text = [
            "--calibration",
            text.to_str().unwrap(),
            "--context",
            context,
        ];
        let options = [
            "--method",
            "low-rank",
            "--rank",
            "4",
            "--projections",
            "q",
            "--bias",
            "on",
            "--gauge",
            "none",
            "--factor-type",
            "f32",
            "--force",
            "--cache",
            cache.to_str().unwrap(),
        ];
        let options = text.iter().chain(&options);
        options.map(|&option| option.to_owned()).collect::<Vec<_>>()
    };
    let compiled = |model: &std::path::Path, options: &[String]| {
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        compile(&scratch, model, "model.htz", &options).0
    };
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let artifact = compiled(&model, &biased(&words, "64"));
    let out = to_folder(&scratch, &artifact, "out", &["--type", "f32"]);
    assert_eq!(json(&out.join("config.json"))["attention_bias"], true);
    let (gguf, _) = to_gguf(&scratch, &artifact, "out.gguf", &["--type", "f32"]);
    let tokens: Vec<u32> = (3..43).collect();
    for exported in [&out, &gguf] {
        let difference = super::difference(exported, &artifact, &tokens);
        assert!(difference < 1e-4, "{difference:.2e}");
    }
    let gemma = fixture("gemma2").join("model.gguf");
    let text = scratch.file("text.txt", "the white rabbit ran away ".repeat(200));
    let artifact = compiled(&gemma, &biased(&text, "32"));
    let target = scratch.path("gemma.gguf");
    htc!["export", &artifact, "-o", &target]
        .run()
        .assert_refused(1, &["blk.0.attn_q.bias", "gemma2", "--bias off"]);
    let target = scratch.path("gemma");
    htc!["export", &artifact, "--to-safetensors", &target]
        .run()
        .assert_refused(1, &["bias", "gemma2"]);
}
