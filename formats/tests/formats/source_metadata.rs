//! Metadata of a source in exports: kept, or named as left out.

use std::collections::BTreeMap;

use htc_formats::gguf::{Array, Value};
use htc_formats::metadata::{FolderFiles, SourceMetadata};
use htc_formats::vocab::Vocabulary;
use serde_json::{Map, Value as Json, json};

fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

fn entries(of: &[(&str, Value)]) -> Vec<(String, Value)> {
    let of = of.iter().cloned();
    of.map(|(key, value)| (key.to_owned(), value)).collect()
}

fn object(json: Json) -> Map<String, Json> {
    json.as_object().unwrap().clone()
}

fn folder(files: &[(&str, &str)]) -> SourceMetadata {
    let files = files.iter();
    let files = files.map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    SourceMetadata::Folder(files.collect())
}

fn vocabulary() -> Vocabulary {
    Vocabulary {
        tokens: ["<unk>", "<s>", "</s>", "<pad>", "a"]
            .map(str::to_owned)
            .into(),
        ..Vocabulary::default()
    }
}

fn own() -> FolderFiles {
    FolderFiles {
        config: object(json!({"model_type": "llama", "pad_token_id": null, "use_cache": true})),
        generation_config: object(json!({"eos_token_id": [2]})),
        tokenizer_config: object(json!({"chat_template": "D", "eos_token": "</s>"})),
        ..FolderFiles::default()
    }
}

#[test]
fn entries_of_an_export_are_not_replaced() {
    let source = entries(&[
        ("general.architecture", text("other")),
        ("general.alignment", Value::U32(64)),
        ("general.file_type", Value::U32(7)),
        ("general.quantization_version", Value::U32(1)),
        ("llama.context_length", Value::U32(1)),
        ("llama.unknown", Value::U32(1)),
        ("tokenizer.ggml.eom_token_id", Value::U32(4)),
        ("quantize.imatrix.file", text("x")),
        ("custom.key", Value::Bool(true)),
    ]);
    let own = entries(&[
        ("general.architecture", text("llama")),
        ("llama.context_length", Value::U32(2)),
        ("general.quantization_version", Value::U32(2)),
        ("tokenizer.ggml.eot_token_id", Value::U32(4)),
    ]);
    let made = SourceMetadata::Gguf(source).to_gguf(own.clone(), None);
    // The source says of which kind the end is.
    let mut expected = own[..3].to_vec();
    expected.extend(entries(&[
        ("tokenizer.ggml.eom_token_id", Value::U32(4)),
        ("custom.key", Value::Bool(true)),
    ]));
    assert_eq!(made.entries, expected);
    let left_out = [
        "general.alignment",
        "general.file_type",
        "llama.unknown",
        "quantize.imatrix.file",
    ];
    assert_eq!(made.left_out, left_out);
}

#[test]
fn entries_of_another_vocabulary_are_left_out() {
    let source = [
        ("tokenizer.ggml.merges", text("x")),
        ("tokenizer.ggml.scores", text("x")),
        ("tokenizer.ggml.bos_token_id", Value::U32(1)),
        ("tokenizer.ggml.add_space_prefix", Value::Bool(true)),
        ("tokenizer.chat_template", text("x")),
        ("tokenizer.ggml.eot_token_id", Value::U32(3)),
        ("tokenizer.ggml.eom_token_id", Value::U32(4)),
    ];
    let own = entries(&[
        ("tokenizer.ggml.eos_token_id", Value::U32(2)),
        ("tokenizer.ggml.eot_token_id", Value::U32(4)),
    ]);
    let made = SourceMetadata::Gguf(entries(&source)).to_gguf(own.clone(), None);
    assert_eq!(made.entries, own);
    let keys = source.map(|(key, _)| key);
    assert_eq!(made.left_out, [&keys[..5], &keys[6..]].concat());
}

#[test]
fn files_become_entries() {
    let source = folder(&[
        ("README.md", "---\nlicense: mit\nthumbnail: x\n---\ntext\n"),
        ("LICENSE", "text"),
        (
            "config.json",
            r#"{"hidden_size": 8, "initializer_range": 0.5, "pad_token_id": 1}"#,
        ),
        (
            "generation_config.json",
            r#"{"temperature": 0.5, "top_k": 20, "top_p": "x", "eos_token_id": 2, "max_length": 9}"#,
        ),
        (
            "tokenizer_config.json",
            r#"{"pad_token": {"content": "<pad>"}, "mask_token": "<mask>", "legacy": true,
                "chat_template": [{"name": "default", "template": "D"}, {"name": "rag", "template": "R"}]}"#,
        ),
        ("special_tokens_map.json", r#"{"sep_token": "a"}"#),
        ("additional_chat_templates/tool_use.jinja", "T"),
    ]);
    let own = entries(&[("general.architecture", text("llama"))]);
    let vocabulary = vocabulary();
    let made = source.to_gguf(own.clone(), Some(&vocabulary));
    let found: BTreeMap<String, Value> = made.entries.into_iter().collect();
    let names = Array::String(vec!["rag".to_owned(), "tool_use".to_owned()]);
    let expected = entries(&[
        ("general.architecture", text("llama")),
        ("general.license", text("mit")),
        ("general.sampling.temp", Value::F32(0.5)),
        ("general.sampling.top_k", Value::I32(20)),
        ("tokenizer.chat_template.rag", text("R")),
        ("tokenizer.chat_template.tool_use", text("T")),
        ("tokenizer.chat_templates", Value::Array(names)),
        ("tokenizer.ggml.padding_token_id", Value::U32(3)),
        ("tokenizer.ggml.seperator_token_id", Value::U32(4)),
    ]);
    assert_eq!(found, expected.into_iter().collect());
    let mut left_out = made.left_out;
    left_out.sort();
    let expected = [
        "LICENSE",
        "README.md: text",
        "README.md: thumbnail",
        "config.json: initializer_range",
        "config.json: pad_token_id",
        "generation_config.json: max_length",
        "generation_config.json: top_p",
        "tokenizer_config.json: legacy",
        "tokenizer_config.json: mask_token",
    ];
    assert_eq!(left_out, expected);
}

#[test]
fn padding_token_may_be_in_the_configuration_alone() {
    let source = folder(&[("config.json", r#"{"pad_token_id": 3}"#)]);
    let made = source.to_gguf(Vec::new(), Some(&vocabulary()));
    let expected = entries(&[("tokenizer.ggml.padding_token_id", Value::U32(3))]);
    assert_eq!(
        (made.entries, made.left_out),
        (expected.clone(), Vec::new())
    );
    for beyond in [-1, 5] {
        let config = format!("{{\"pad_token_id\": {beyond}}}");
        let generation = r#"{"pad_token_id": 3}"#;
        let source = folder(&[
            ("config.json", &config),
            ("generation_config.json", generation),
        ]);
        let made = source.to_gguf(Vec::new(), Some(&vocabulary()));
        assert_eq!(made.entries, expected);
        assert_eq!(made.left_out, ["config.json: pad_token_id"]);
        let made = source.to_folder(own(), Some(&vocabulary()), &[]);
        assert_eq!(Json::Object(made.config), Json::Object(own().config));
        assert_eq!(made.generation_config["pad_token_id"], 3);
        assert_eq!(made.left_out, ["config.json: pad_token_id"]);
    }
}

#[test]
fn files_of_a_folder_are_merged() {
    let source = folder(&[
        ("README.md", "---\nlicense: mit\n---\ntext\n"),
        ("NOTICE", "notice"),
        ("../outside", "text"),
        ("additional_chat_templates/../x.jinja", "text"),
        (
            "config.json",
            r#"{"model_type": "mistral", "rope_parameters": {"rope_theta": 1.0}, "pad_token_id": 3,
                "auto_map": {"AutoModel": "model.Model"}, "initializer_range": 0.5, "use_cache": false}"#,
        ),
        (
            "generation_config.json",
            r#"{"temperature": 0.5, "eos_token_id": 9}"#,
        ),
        (
            "tokenizer_config.json",
            r#"{"pad_token": "<pad>", "mask_token": "<mask>", "eos_token": "x", "padding_side": "left",
                "additional_special_tokens": ["a"], "extra_special_tokens": {"b": "b"}}"#,
        ),
        ("additional_chat_templates/tool_use.jinja", "T"),
    ]);
    let made = source.to_folder(own(), Some(&vocabulary()), &[]);
    let config = json!({
        "model_type": "llama", "pad_token_id": 3, "use_cache": false, "initializer_range": 0.5,
    });
    assert_eq!(Json::Object(made.config), config);
    let generation = json!({"temperature": 0.5, "eos_token_id": [2]});
    assert_eq!(Json::Object(made.generation_config), generation);
    let tokenizer = json!({
        "pad_token": "<pad>", "eos_token": "</s>", "padding_side": "left",
        "additional_special_tokens": ["a"],
        "chat_template": [
            {"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"},
        ],
    });
    assert_eq!(Json::Object(made.tokenizer_config), tokenizer);
    let texts: Vec<&str> = made.texts.keys().map(String::as_str).collect();
    assert_eq!(texts, ["NOTICE", "README.md"]);
    let left_out = [
        "config.json: auto_map",
        "tokenizer_config.json: extra_special_tokens",
        "tokenizer_config.json: mask_token",
        "../outside",
        "additional_chat_templates/../x.jinja",
    ];
    assert_eq!(made.left_out, left_out);
}

#[test]
fn entries_become_files() {
    let source = SourceMetadata::Gguf(entries(&[
        ("general.architecture", text("llama")),
        ("general.name", text("A | B\nC")),
        ("general.license", text("mit")),
        ("general.author", text("Åsa")),
        ("general.size_label", text("1B")),
        ("general.sampling.temp", Value::F32(0.6)),
        ("general.sampling.penalty_last_n", Value::I32(4)),
        ("general.file_type", Value::U32(7)),
        ("llama.context_length", Value::U32(1)),
        ("llama.unknown", Value::U32(1)),
        ("tokenizer.ggml.padding_token_id", Value::U32(3)),
        ("tokenizer.ggml.mask_token_id", Value::U32(99)),
        ("tokenizer.ggml.eot_token_id", Value::U32(4)),
        ("tokenizer.chat_template.tool_use", text("T")),
        (
            "tokenizer.chat_templates",
            Value::Array(Array::String(vec!["tool_use".to_owned()])),
        ),
        ("custom.list", Value::Array(Array::U8(vec![1]))),
        ("custom.key", text("x")),
    ]));
    let stated = [
        "general.architecture",
        "general.name",
        "llama.context_length",
    ];
    let made = source.to_folder(own(), Some(&vocabulary()), &stated.map(str::to_owned));
    assert_eq!(made.config["pad_token_id"], 3);
    let generation = json!({
        "temperature": 0.6, "do_sample": true, "pad_token_id": 3, "eos_token_id": [2],
    });
    assert_eq!(Json::Object(made.generation_config), generation);
    assert_eq!(made.tokenizer_config["pad_token"], "<pad>");
    assert_eq!(made.tokenizer_config["chat_template"][1]["template"], "T");
    let card = "---\nlicense: \"mit\"\nmodel_creator: \"Åsa\"\n---\n\n# A \\| B C\n\n\
                Metadata of the GGUF that this model was made from:\n\n\
                | key | value |\n|---|---|\n| general.size_label | 1B |\n\
                | general.sampling.penalty_last_n | 4 |\n| custom.key | x |\n";
    assert_eq!(made.texts["README.md"], card);
    let left_out = [
        "general.file_type",
        "llama.unknown",
        "tokenizer.ggml.mask_token_id",
        "custom.list",
    ];
    assert_eq!(made.left_out, left_out);
}
