//! Metadata of the source in artifacts and exports.

use std::fs;
use std::path::{Path, PathBuf};

use htc_formats::gguf::{Array, Gguf, Value};
use htc_tests::{Scratch, TinyModel, htc};
use serde_json::{Value as Json, json};

use super::{UNCHANGED_PLAN, compile_unchanged, export, fixture, list, to_folder};

fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

/// Entries that a GGUF export keeps as they are.
fn kept() -> Vec<(&'static str, Value)> {
    let texts = |texts: &[&str]| {
        let texts = texts.iter().map(|text| (*text).to_owned());
        Value::Array(Array::String(texts.collect()))
    };
    vec![
        ("general.license", text("mit")),
        ("general.author", text("Åsa")),
        ("general.tags", texts(&["one", "two"])),
        ("general.base_model.count", Value::U32(1)),
        ("general.base_model.0.name", text("base")),
        ("general.base_model.0.organization", text("group")),
        ("general.sampling.temp", Value::F32(0.6)),
        ("general.sampling.top_k", Value::I32(20)),
        ("tokenizer.ggml.padding_token_id", Value::U32(2)),
        ("tokenizer.chat_template", text("D")),
        ("tokenizer.chat_template.tool_use", text("T")),
        ("tokenizer.chat_templates", texts(&["tool_use"])),
        ("custom.key", text("value")),
    ]
}

fn gguf_source(scratch: &Scratch) -> PathBuf {
    let entries = kept().into_iter();
    let tiny = entries.fold(TinyModel::default(), |tiny, (key, value)| {
        tiny.with(key, value)
    });
    let tiny = tiny.with("general.file_type", Value::U32(1));
    scratch.file("model.gguf", tiny.bytes())
}

const CARD: &str = "---\nlicense: mit\nbase_model: group/base\ntags: [one]\n---\n# Model\n";

fn folder_source(scratch: &Scratch) -> PathBuf {
    let folder = scratch.path("source");
    fs::create_dir_all(folder.join("additional_chat_templates")).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.model"] {
        fs::copy(fixture("llama").join(name), folder.join(name)).unwrap();
    }
    let mut config = read_json(&folder.join("config.json"));
    config["pad_token_id"] = json!(2);
    config["custom_number"] = json!("INFINITY");
    let config = config.to_string().replace("\"INFINITY\"", "Infinity");
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    write("config.json", &config);
    write("README.md", CARD);
    write("LICENSE", "Permission is hereby granted\n");
    write(
        "generation_config.json",
        r#"{"temperature": 0.6, "max_new_tokens": 7, "eos_token_id": 2}"#,
    );
    write(
        "tokenizer_config.json",
        r#"{"chat_template": "D", "pad_token": "</s>", "padding_side": "left"}"#,
    );
    write("additional_chat_templates/tool_use.jinja", "T");
    folder
}

fn read_json(path: &Path) -> Json {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Returns the names in the note on metadata that are left out.
fn left_out(report: &Json) -> Vec<String> {
    let notes = list(report, "/notes")
        .iter()
        .map(|note| note.as_str().unwrap());
    let mut named = notes.filter_map(|note| note.strip_prefix("metadata of the source left out: "));
    let names = named.next().unwrap_or_default();
    assert_eq!(named.next(), None);
    let names = names.split(", ").filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

#[test]
fn gguf_source_keeps_its_metadata_in_a_gguf() {
    let scratch = Scratch::new();
    let artifact = compile_unchanged(&scratch, &gguf_source(&scratch), "model.htz");
    let path = scratch.path("out.gguf");
    let report = export(&artifact, &["-o", path.to_str().unwrap()]);
    let found = Gguf::open(&path).unwrap();
    for (key, value) in kept() {
        assert_eq!(found.get(key), Some(&value), "{key}");
    }
    assert_eq!(found.get("general.file_type"), None);
    assert_eq!(left_out(&report), ["general.file_type"]);
}

#[test]
fn gguf_source_keeps_its_metadata_in_a_folder() {
    let scratch = Scratch::new();
    let artifact = compile_unchanged(&scratch, &gguf_source(&scratch), "model.htz");
    let out = scratch.path("out");
    let report = export(&artifact, &["--to-safetensors", out.to_str().unwrap()]);
    let card = fs::read_to_string(out.join("README.md")).unwrap();
    for line in [
        "license: \"mit\"",
        "model_creator: \"Åsa\"",
        "- \"two\"",
        "- \"group/base\"",
        "| custom.key | value |",
    ] {
        assert!(
            card.lines().any(|found| found == line),
            "{line:?} is missing from {card}"
        );
    }
    let generation = read_json(&out.join("generation_config.json"));
    assert_eq!(
        (&generation["temperature"], &generation["top_k"]),
        (&json!(0.6), &json!(20))
    );
    assert_eq!(read_json(&out.join("config.json"))["pad_token_id"], 2);
    let tokenizer = read_json(&out.join("tokenizer_config.json"));
    assert_eq!(tokenizer["pad_token"], "</s>");
    let template = |name: &str, text: &str| json!({"name": name, "template": text});
    let templates = json!([template("default", "D"), template("tool_use", "T")]);
    assert_eq!(tokenizer["chat_template"], templates);
    assert_eq!(left_out(&report), ["general.file_type"]);
}

#[test]
fn folder_source_keeps_its_metadata_in_a_folder() {
    let scratch = Scratch::new();
    let source = folder_source(&scratch);
    let artifact = compile_unchanged(&scratch, &source, "model.htz");
    let out = to_folder(&scratch, &artifact, "out", &[]);
    for name in ["README.md", "LICENSE"] {
        assert!(fs::read(out.join(name)).unwrap() == fs::read(source.join(name)).unwrap());
    }
    let config = read_json(&out.join("config.json"));
    let stated = read_json(&fixture("llama").join("config.json"));
    for key in ["initializer_range", "pretraining_tp"] {
        assert_eq!(config[key], stated[key], "{key}");
    }
    assert_eq!(config["custom_number"], json!({"__float__": "Infinity"}));
    assert_eq!(config["pad_token_id"], 2);
    assert_eq!(config.get("rope_parameters"), None);
    let generation = read_json(&out.join("generation_config.json"));
    assert_eq!(
        generation,
        json!({"bos_token_id": 1, "eos_token_id": [2], "max_new_tokens": 7, "temperature": 0.6})
    );
    let tokenizer = read_json(&out.join("tokenizer_config.json"));
    assert_eq!(
        (&tokenizer["pad_token"], &tokenizer["padding_side"]),
        (&json!("</s>"), &json!("left"))
    );
    assert_eq!(tokenizer["chat_template"][1]["template"], "T");

    // The export is a source, with the same metadata.
    let again = compile_unchanged(&scratch, &out, "again.htz");
    let again = to_folder(&scratch, &again, "again", &[]);
    for name in [
        "README.md",
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
    ] {
        let [one, other] = [&out, &again].map(|folder| fs::read(folder.join(name)).unwrap());
        assert!(one == other, "{name}");
    }
    // Files of an earlier export may be replaced, texts only if the configuration names it.
    to_folder(&scratch, &artifact, "out", &["--force"]);
    let unmarked = serde_json::to_string(&stated).unwrap();
    fs::write(out.join("config.json"), unmarked).unwrap();
    htc!["export", &artifact, "--to-safetensors", &out, "--force"]
        .run()
        .assert_refused(1, &["which is no file of an earlier export"]);
    assert!(out.join("README.md").exists());
}

#[test]
fn folder_source_keeps_its_metadata_in_a_gguf() {
    let scratch = Scratch::new();
    let artifact = compile_unchanged(&scratch, &folder_source(&scratch), "model.htz");
    let path = scratch.path("out.gguf");
    let report = export(&artifact, &["-o", path.to_str().unwrap()]);
    let found = Gguf::open(&path).unwrap();
    for (key, value) in kept().into_iter().filter(|(key, _)| {
        !key.starts_with("custom")
            && !key.ends_with("author")
            && !key.ends_with("top_k")
            && !key.ends_with("tags")
    }) {
        assert_eq!(found.get(key), Some(&value), "{key}");
    }
    assert_eq!(
        left_out(&report),
        [
            "generation_config.json: max_new_tokens",
            "config.json: attention_dropout",
            "config.json: custom_number",
            "config.json: initializer_range",
            "config.json: pretraining_tp",
            "config.json: use_cache",
            "tokenizer_config.json: padding_side",
            "LICENSE",
            "README.md: text",
        ]
    );
}

#[test]
fn inspect_shows_licence_author_and_base_model() {
    let scratch = Scratch::new();
    for source in [gguf_source(&scratch), folder_source(&scratch)] {
        let artifact = compile_unchanged(&scratch, &source, "model.htz");
        let shown = htc!["inspect", &artifact]
            .run()
            .assert_ok()
            .text()
            .to_owned();
        for line in [
            "licence of the source: mit",
            "base model of the source: group/base",
        ] {
            assert!(
                shown.lines().any(|found| found == line),
                "{line:?} is missing from {shown}"
            );
        }
        let json = htc!["inspect", &artifact, "--json"].run().json();
        assert_eq!(json["source_metadata"]["licence"], "mit");
        assert_eq!(json["source_metadata"]["base_model"], "group/base");
    }
}

#[test]
fn metadata_that_are_not_kept_are_named() {
    let scratch = Scratch::new();
    let folder = folder_source(&scratch);
    fs::write(folder.join("NOTICE"), b"\xff").unwrap();
    fs::write(folder.join("USE_POLICY.md"), vec![b'x'; 5 << 20]).unwrap();
    let tiny = TinyModel::default().with("custom.long", text(&"x".repeat(5 << 20)));
    let model = scratch.file("model.gguf", tiny.bytes());
    let plan = scratch.file("as-it-is.json", UNCHANGED_PLAN);
    for (source, names) in [
        (
            &folder,
            &[
                "NOTICE (not UTF-8)",
                "USE_POLICY.md (more than 4194304 bytes)",
            ][..],
        ),
        (
            &model,
            &["custom.long (", "an artifact keeps 4194304 bytes"],
        ),
    ] {
        let output = scratch.path("out.htz");
        let run = htc!["compile", source, "-o", &output, "--plan", &plan, "--force"];
        let said = run.run().assert_ok().stderr;
        for name in names {
            assert!(said.contains(name), "{name:?} is missing from {said}");
        }
    }
}

#[test]
fn same_source_gives_identical_exports() {
    let scratch = Scratch::new();
    let source = folder_source(&scratch);
    let mut outputs = Vec::new();
    for name in ["one", "two"] {
        let artifact = compile_unchanged(&scratch, &source, &format!("{name}.htz"));
        let gguf = scratch.path(&format!("{name}.gguf"));
        export(&artifact, &["-o", gguf.to_str().unwrap()]);
        outputs.push((fs::read(artifact).unwrap(), fs::read(gguf).unwrap()));
    }
    assert!(outputs[0] == outputs[1]);
}
