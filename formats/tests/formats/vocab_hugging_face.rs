//! Vocabularies of Hugging Face folders: supported features and error messages.

use crate::vocab_common::{BPE, bytes_of, read, sentence_piece};
use htc_formats::limits;
use htc_formats::vocab::{HuggingFaceFiles, PreTokenizer, TokenKind, Vocabulary, VocabularyError};
use serde_json::{Value, json};

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": use_regex})
}

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

fn sequence(parts: &[Value]) -> Value {
    json!({"type": "Sequence", "pretokenizers": parts})
}

const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

fn tokenizer() -> Value {
    json!({
        "version": "1.0",
        "added_tokens": [{"id": 5, "content": "<x>", "special": true, "normalized": false}],
        "normalizer": null,
        "pre_tokenizer": byte_level(true),
        "post_processor": null,
        "model": {
            "type": "BPE",
            "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4},
            "merges": ["a b", ["ab", "c"]],
        },
    })
}

fn read_with_changes(changes: &[(&str, Value)]) -> Result<Vocabulary, VocabularyError> {
    let mut tokenizer = tokenizer();
    for (at, value) in changes {
        let (parent, key) = at.rsplit_once('/').unwrap();
        tokenizer.pointer_mut(parent).unwrap()[key] = value.clone();
    }
    read(HuggingFaceFiles {
        tokenizer_json: Some(serde_json::to_vec(&tokenizer).unwrap()),
        ..HuggingFaceFiles::default()
    })
}

#[test]
fn byte_level_tokenizer_is_read() {
    let vocabulary = read_with_changes(&[]).unwrap();
    assert_eq!(vocabulary.model, "gpt2");
    assert_eq!(vocabulary.tokens, ["a", "b", "c", "ab", "abc", "<x>"]);
    assert_eq!(
        vocabulary.kinds[4..],
        [TokenKind::Normal, TokenKind::Control]
    );
    assert_eq!(vocabulary.merges, [(0, 1), (3, 2)]);
    assert_eq!(vocabulary.pre, Some(PreTokenizer::Gpt2));
    assert!(vocabulary.scores.is_empty() && !vocabulary.add_bos && vocabulary.bos.is_none());
}

#[test]
fn pre_tokenizers_are_recognised() {
    let digits = json!({"type": "Digits", "individual_digits": true});
    let mut inverted = split(LLAMA_3);
    (inverted["behavior"], inverted["invert"]) = (json!("Removed"), json!(true));
    let literal = LLAMA_3.replace(r"\r", "\r").replace(r"\n", "\n");
    for (pre, ignore, expected) in [
        (json!({"type": "ByteLevel"}), false, PreTokenizer::Gpt2),
        (sequence(&[byte_level(true)]), false, PreTokenizer::Gpt2),
        (
            sequence(&[digits, byte_level(true)]),
            false,
            PreTokenizer::StarCoder,
        ),
        (
            sequence(&[split(r"\p{N}"), byte_level(true)]),
            false,
            PreTokenizer::StarCoder,
        ),
        (
            sequence(&[split(LLAMA_3), byte_level(false)]),
            true,
            PreTokenizer::Llama3,
        ),
        (
            sequence(&[split(LLAMA_3), byte_level(false)]),
            false,
            PreTokenizer::Dbrx,
        ),
        (
            sequence(&[inverted, byte_level(false)]),
            false,
            PreTokenizer::Dbrx,
        ),
        (
            sequence(&[split(&literal), byte_level(false)]),
            false,
            PreTokenizer::Dbrx,
        ),
    ] {
        let read = read_with_changes(&[
            ("/pre_tokenizer", pre.clone()),
            ("/model/ignore_merges", json!(ignore)),
        ]);
        assert_eq!(read.unwrap().pre, Some(expected), "{pre}");
    }
}

#[test]
fn unsupported_features_are_named() {
    let removed = json!({"type": "Split", "pattern": {"Regex": LLAMA_3}, "behavior": "Removed"});
    let nested = sequence(&[sequence(&[byte_level(true)])]);
    let many = vec![byte_level(true); 17];
    let mut prefix = byte_level(true);
    prefix["add_prefix_space"] = json!(true);
    let bert = json!({"type": "BertPreTokenizer"});
    let template = |single: Value| json!({"type": "TemplateProcessing", "single": single});
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let x = json!({"SpecialToken": {"id": "<x>", "type_id": 0}});
    let single_word = json!([{"id": 5, "content": "<x>", "single_word": true, "special": true}]);
    for (at, value, words) in [
        (
            "/model/type",
            json!("Unigram"),
            &["model.type", "Unigram", "BPE"][..],
        ),
        (
            "/model/type",
            json!("WordPiece"),
            &["model.type", "WordPiece"],
        ),
        ("/model/dropout", json!(0.5), &["dropout", "0.5"]),
        (
            "/model/continuing_subword_prefix",
            json!("##"),
            &["continuing_subword_prefix", "##"],
        ),
        (
            "/model/end_of_word_suffix",
            json!("</w>"),
            &["end_of_word_suffix", "</w>"],
        ),
        (
            "/model/ignore_merges",
            json!(true),
            &["pre_tokenizer", "ignore_merges"],
        ),
        (
            "/normalizer",
            json!({"type": "Lowercase"}),
            &["normalizer", "Lowercase", "NFC"],
        ),
        ("/version", json!("2.0"), &["version", "2.0", "1.0"]),
        (
            "/pre_tokenizer",
            sequence(&[split("x+y"), byte_level(false)]),
            &["pre_tokenizer", "x+y", "Llama 3"],
        ),
        (
            "/pre_tokenizer",
            sequence(&[split(LLAMA_3), byte_level(true)]),
            &["pre_tokenizer"],
        ),
        (
            "/pre_tokenizer",
            sequence(&[removed, byte_level(false)]),
            &["pre_tokenizer", "Removed"],
        ),
        (
            "/pre_tokenizer",
            sequence(&[bert.clone(), byte_level(false)]),
            &["BertPreTokenizer"],
        ),
        (
            "/pre_tokenizer",
            bert,
            &["pre_tokenizer", "BertPreTokenizer", "byte_fallback"],
        ),
        ("/pre_tokenizer", Value::Null, &["pre_tokenizer", "none"]),
        (
            "/pre_tokenizer",
            prefix,
            &["pre_tokenizer", "add_prefix_space"],
        ),
        ("/pre_tokenizer", nested, &["a sequence in a sequence"]),
        ("/pre_tokenizer", sequence(&many), &["at most 16"]),
        (
            "/post_processor",
            json!({"type": "BertProcessing"}),
            &["post_processor", "BertProcessing"],
        ),
        (
            "/post_processor",
            template(json!([x, text, x, x])),
            &["post_processor", "<x> $A <x> <x>"],
        ),
        ("/added_tokens", single_word, &["single_word", "<x>"]),
        (
            "/added_tokens",
            json!([{"id": 12, "content": "<y>"}]),
            &["added token \"<y>\"", "id 12", "expected 5"],
        ),
        ("/model/vocab/abc", json!(3), &["ab", "abc", "id 3"]),
        (
            "/model/vocab/abc",
            json!(4_000_000_000_u32),
            &["4000000000", "below 12"],
        ),
        ("/model/vocab/abc", json!(-1), &["tokenizer.json", "-1"]),
        ("/model/merges", json!(["a b", "a  b"]), &["merge"]),
        ("/model/merges", json!([["a", "b", "c"]]), &["merge"]),
        ("/model/merges", json!([["a"]]), &["merge"]),
        (
            "/model/merges",
            json!(["a x"]),
            &["tokenizer.json: merge 0 has the part \"x\"", "copy"],
        ),
        (
            "/model/merges",
            json!(["a b", "b a"]),
            &[
                "tokenizer.json: merge 1 produces a token that is not in the vocabulary",
                "\"ba\"",
            ],
        ),
        ("/model", json!({"vocab": {}}), &["model.type", "missing"]),
    ] {
        let said = read_with_changes(&[(at, value.clone())])
            .unwrap_err()
            .to_string();
        for word in words {
            assert!(said.contains(word), "{at} {value}: {said}");
        }
    }
    let unigram = json!({"type": "Unigram", "vocab": [["a", -1.5], ["b", -2.5]], "unk_id": 0});
    let said = read_with_changes(&[("/model", unigram)])
        .unwrap_err()
        .to_string();
    assert!(said.contains("Unigram"), "{said}");
}

#[test]
fn nesting_depth_is_limited() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for text in [
        deep.clone(),
        format!("{{\"model\": {deep}}}"),
        format!("{{\"other\": {deep}}}"),
        format!("{{\"model\": {{\"type\": \"BPE\", \"vocab\": {deep}}}}}"),
    ] {
        let files = HuggingFaceFiles {
            tokenizer_json: Some(text.into_bytes()),
            ..HuggingFaceFiles::default()
        };
        let said = read(files).unwrap_err().to_string();
        assert!(said.starts_with("tokenizer.json"), "{said}");
    }
}

fn folder() -> HuggingFaceFiles {
    let mut tokenizer = tokenizer();
    tokenizer["added_tokens"] = json!([
        {"id": 5, "content": "<x>", "special": true},
        {"id": 6, "content": "<|y|>", "special": false, "lstrip": true, "rstrip": true},
        {"id": 7, "content": "z▁z", "special": false},
    ]);
    HuggingFaceFiles {
        tokenizer_json: bytes_of(tokenizer),
        ..HuggingFaceFiles::default()
    }
}

#[test]
fn added_tokens_are_control_or_user_defined() {
    let vocabulary = read(folder()).unwrap();
    let expected = [
        TokenKind::Control,
        TokenKind::Control,
        TokenKind::UserDefined,
    ];
    assert_eq!(vocabulary.kinds[5..], expected);
    assert_eq!(vocabulary.tokens[5..], ["<x>", "<|y|>", "z▁z"]);
    let stripping = (vocabulary.strip_before, vocabulary.strip_after);
    assert_eq!(stripping, (vec![6], vec![6]));
}

#[test]
fn special_tokens_are_read_by_name_and_id() {
    let config = json!({"bos_token_id": 1, "eos_token_id": [2, 3], "model_type": "llama"});
    let generation = json!({"bos_token_id": 0, "eos_token_id": [6, 3, 4]});
    let by_id = HuggingFaceFiles {
        config: bytes_of(config),
        generation_config: bytes_of(generation),
        ..folder()
    };
    let vocabulary = read(by_id.clone()).unwrap();
    assert_eq!((vocabulary.bos, vocabulary.eos), (Some(1), Some(2)));
    assert_eq!(vocabulary.end_of_generation, [3, 4, 6]);

    let names = HuggingFaceFiles {
        tokenizer_config: bytes_of(json!({
            "bos_token": {"content": "<x>", "lstrip": false},
            "eos_token": "",
            "unk_token": null,
        })),
        special_tokens_map: bytes_of(json!({"bos_token": "a", "eos_token": "<|y|>"})),
        ..by_id
    };
    let vocabulary = read(names.clone()).unwrap();
    assert_eq!((vocabulary.bos, vocabulary.eos), (Some(5), Some(6)));
    assert_eq!(vocabulary.end_of_generation, [2, 3, 4]);

    let absent = HuggingFaceFiles {
        tokenizer_config: bytes_of(json!({"bos_token": "<none>"})),
        ..names
    };
    let said = read(absent).unwrap_err().to_string();
    assert!(said.contains("BOS") && said.contains("<none>"), "{said}");
    let beyond = HuggingFaceFiles {
        config: bytes_of(json!({"text_config": {"eos_token_id": 99}})),
        ..folder()
    };
    assert!(matches!(
        read(beyond),
        Err(VocabularyError::Special { id: 99, .. })
    ));
}

#[test]
fn post_processor_sets_bos_and_eos() {
    let adds = |processor: Value, config: Value| {
        let mut files = folder();
        let mut tokenizer: Value =
            serde_json::from_slice(files.tokenizer_json.as_ref().unwrap()).unwrap();
        tokenizer["post_processor"] = processor;
        files.tokenizer_json = bytes_of(tokenizer);
        files.tokenizer_config = bytes_of(config);
        let vocabulary = read(files).unwrap();
        (vocabulary.bos, vocabulary.add_bos, vocabulary.add_eos)
    };
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let token = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
    let template =
        |single: Value| json!({"type": "TemplateProcessing", "single": single, "pair": []});
    let x = json!({"bos_token": "<x>", "eos_token": "a"});
    let flags =
        json!({"add_bos_token": true, "add_eos_token": true, "bos_token": "<x>", "eos_token": "a"});
    let named = Some(5);
    assert_eq!(adds(Value::Null, x.clone()), (named, false, false));
    assert_eq!(adds(Value::Null, flags.clone()), (named, true, true));
    let before = template(json!([token("<x>"), text]));
    assert_eq!(adds(before.clone(), x.clone()), (named, true, false));
    assert_eq!(adds(before.clone(), json!({})), (named, true, false));
    let both = template(json!([token("<x>"), text, token("a")]));
    assert_eq!(adds(both, x.clone()), (named, true, true));
    let parts = json!({"type": "Sequence", "processors": [byte_level(true), before]});
    assert_eq!(adds(parts, x.clone()), (named, true, false));
    let alone = template(json!([text]));
    assert_eq!(adds(alone.clone(), x), (named, false, false));
    assert_eq!(adds(alone, flags), (named, true, true));
}

#[test]
fn vocabulary_has_the_size_of_the_embedding() {
    let sized = |size: Value| {
        read(HuggingFaceFiles {
            config: bytes_of(size),
            ..folder()
        })
    };
    let padded = sized(json!({"vocab_size": 10})).unwrap();
    assert_eq!(padded.tokens[8..], ["[PAD8]", "[PAD9]"]);
    assert_eq!(padded.kinds[8..], [TokenKind::Unused; 2]);
    let nested = sized(json!({"text_config": {"vocab_size": 9}})).unwrap();
    assert_eq!(nested.tokens.len(), 9);
    let cut = sized(json!({"vocab_size": 6})).unwrap();
    assert_eq!((cut.tokens.len(), cut.strip_after.len()), (6, 0));
    for rows in [4_usize, 1 << 20] {
        let refused = sized(json!({"vocab_size": rows}));
        assert_eq!(refused, Err(VocabularyError::Rows { tokens: 8, rows }));
    }
}

#[test]
fn chat_template_is_read_from_all_files() {
    let template = |files: HuggingFaceFiles| read(files).unwrap().chat_template;
    let one = HuggingFaceFiles {
        tokenizer_config: bytes_of(json!({"chat_template": "one"})),
        ..folder()
    };
    assert_eq!(template(one.clone()).as_deref(), Some("one"));
    let list = json!({"chat_template": [
        {"name": "tool_use", "template": "tools"},
        {"name": "default", "template": "two"},
    ]});
    let several = HuggingFaceFiles {
        tokenizer_config: bytes_of(list),
        ..folder()
    };
    assert_eq!(template(several).as_deref(), Some("two"));
    let beside = HuggingFaceFiles {
        chat_template_json: bytes_of(json!({"chat_template": "three"})),
        ..folder()
    };
    assert_eq!(template(beside).as_deref(), Some("three"));
    let jinja = HuggingFaceFiles {
        chat_template_jinja: Some(b"four".to_vec()),
        ..one
    };
    assert_eq!(template(jinja).as_deref(), Some("four"));
    assert_eq!(template(folder()), None);
    let broken = HuggingFaceFiles {
        chat_template_jinja: Some(vec![0xFF]),
        ..folder()
    };
    assert!(
        read(broken)
            .unwrap_err()
            .to_string()
            .contains("chat_template.jinja")
    );
}

#[test]
fn folders_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let read = || {
        let result = Vocabulary::from_hugging_face(dir.path());
        result.map_err(|error| error.to_string())
    };
    let said = read().unwrap_err();
    assert!(
        said.contains("tokenizer.json") && said.contains("tokenizer.model"),
        "{said}"
    );

    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
    write("tokenizer.json", &serde_json::to_vec(&tokenizer()).unwrap());
    write("generation_config.json", br#"{"eos_token_id": 5}"#);
    assert_eq!(read().unwrap().eos, Some(5));
    write("tokenizer.model", b"IQ== 0\n");
    assert_eq!(read().unwrap().model, "gpt2");
    write("tokenizer.model", &sentence_piece(&[BPE], &[]));
    assert_eq!(read().unwrap().model, "gpt2");
    std::fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
    assert_eq!(read().unwrap().model, "llama");

    write("tokenizer_config.json", b"{");
    assert!(read().unwrap_err().contains("tokenizer_config.json"));
    let open = |name: &str, len: u64| {
        let file = std::fs::File::create(dir.path().join(name)).unwrap();
        file.set_len(len).unwrap();
    };
    open("tokenizer_config.json", limits::MAX_CONFIG_FILE_BYTES + 1);
    let said = read().unwrap_err();
    assert!(
        said.contains("tokenizer_config.json") && said.contains("more than"),
        "{said}"
    );
    open("tokenizer.model", limits::MAX_TOKENIZER_FILE_BYTES + 1);
    let said = read().unwrap_err();
    assert!(
        said.contains("tokenizer.model") && said.contains("more than"),
        "{said}"
    );
}

#[test]
fn folders_and_ggufs_agree() {
    let root = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/fixtures/architectures"
    );
    let mut models = 0;
    for entry in std::fs::read_dir(root).unwrap() {
        let folder = entry.unwrap().path();
        if !folder.join("tokenizer.model").is_file() || !folder.join("model.gguf").is_file() {
            continue;
        }
        let gguf = htc_formats::gguf::Gguf::open(folder.join("model.gguf")).unwrap();
        let mut expected = Vocabulary::from_gguf(&gguf).unwrap();
        expected.collapse_spaces = true;
        let found = Vocabulary::from_hugging_face(&folder).unwrap();
        assert_eq!(found, expected, "{}", folder.display());
        models += 1;
    }
    assert!(models > 5);
}

/// A linear search for duplicates took minutes.
#[test]
fn a_million_added_tokens_are_read_and_written_quickly() {
    const TOKENS: u32 = 1_150_000;
    let mut json = String::from(
        r#"{"model": {"type": "BPE", "vocab": {"a": 0}}, "pre_tokenizer": {"type": "ByteLevel"},
            "added_tokens": ["#,
    );
    for id in 1..TOKENS {
        let comma = if id == 1 { "" } else { "," };
        json += &format!(r#"{comma}{{"id":{id},"content":"<{id}>","lstrip":true}}"#);
    }
    json += "]}";
    assert!((json.len() as u64) < limits::MAX_TOKENIZER_FILE_BYTES);
    let started = std::time::Instant::now();
    let vocabulary = read(HuggingFaceFiles {
        tokenizer_json: Some(json.into()),
        ..HuggingFaceFiles::default()
    })
    .unwrap();
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
    assert_eq!(vocabulary.strip_before.len(), TOKENS as usize - 1);
    let started = std::time::Instant::now();
    HuggingFaceFiles::from_vocabulary(&vocabulary, 64).unwrap();
    assert!(started.elapsed().as_secs() < 30, "{:?}", started.elapsed());
}

#[test]
fn number_of_merges_is_limited() {
    let merges = "\" \",".repeat(limits::MAX_MERGES + 1);
    let json = format!(
        r#"{{"model": {{"type": "BPE", "merges": [{merges}" "]}}, "pre_tokenizer": null}}"#
    );
    let error = read(HuggingFaceFiles {
        tokenizer_json: Some(json.into()),
        ..HuggingFaceFiles::default()
    })
    .unwrap_err();
    let most = format!("at most {}", limits::MAX_MERGES);
    assert!(error.to_string().contains(&most), "{error}");
}

#[cfg(unix)]
#[test]
fn non_regular_files_are_refused() {
    use std::os::unix::fs::symlink;

    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("model");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(scratch.path().join("secret"), "{{ a }}").unwrap();
    std::fs::write(folder.join("tokenizer.json"), tokenizer().to_string()).unwrap();
    assert!(Vocabulary::from_hugging_face(&folder).is_ok());
    for name in HuggingFaceFiles::NAMES {
        let path = folder.join(name);
        let _ = std::fs::remove_file(&path);
        let refused = |words: &str| {
            let error = Vocabulary::from_hugging_face(&folder).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(name) && error.contains(words), "{error}");
        };
        symlink("../secret", &path).unwrap();
        refused("leads out of");
        std::fs::remove_file(&path).unwrap();
        let pipe = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(pipe.unwrap().success());
        refused("not a regular file");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(folder.join("tokenizer.json"), tokenizer().to_string()).unwrap();
    }
}
