//! Vocabularies of GGUF files.

use crate::gguf_common::model_metadata;
use htc_formats::gguf::{Array, Contents, Value, Writer};
use htc_formats::vocab::{PreTokenizer, TokenKind, Vocabulary, VocabularyError};

fn parsed(writer: &Writer<'_>) -> Contents {
    Contents::parse(&writer.to_bytes().unwrap()).unwrap()
}

fn vocabulary_with(changes: &[(&str, Option<Value>)]) -> Result<Vocabulary, VocabularyError> {
    let changes: Vec<(String, &Option<Value>)> = changes
        .iter()
        .map(|(key, value)| (format!("tokenizer.ggml.{key}"), value))
        .collect();
    let original = parsed(&model_metadata());
    let mut writer = Writer::new();
    for (key, value) in original.metadata() {
        if !changes.iter().any(|(k, _)| k == key) {
            writer.metadata(key.as_str(), value.clone());
        }
    }
    for (key, value) in changes {
        if let Some(value) = value {
            writer.metadata(key, value.clone());
        }
    }
    let result = Vocabulary::from_gguf(&parsed(&writer));
    if let Err(error) = &result {
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    result
}

#[test]
fn sentence_piece_defaults_apply() {
    let vocabulary = vocabulary_with(&[]).unwrap();
    assert_eq!(vocabulary.tokens[3], "\u{2581}");
    assert_eq!(vocabulary.scores, [0.0, 0.0, 0.0, -1.0, -2.0]);
    assert_eq!(
        vocabulary.kinds[..2],
        [TokenKind::Unknown, TokenKind::Control]
    );
    assert_eq!((vocabulary.bos, vocabulary.eos), (Some(1), Some(2)));
    assert_eq!(vocabulary.unknown, Some(0));
    assert!(vocabulary.add_bos && !vocabulary.add_eos && vocabulary.add_space_prefix);
    let one = Value::Array(Array::String(vec!["a".to_owned()]));
    let vocabulary = vocabulary_with(&[
        ("tokens", Some(one)),
        ("scores", Some(Value::Array(Array::F32(vec![0.0])))),
        ("token_type", None),
    ])
    .unwrap();
    assert_eq!(
        (vocabulary.bos, vocabulary.eos, vocabulary.unknown),
        (None, None, Some(0))
    );
    assert_eq!(vocabulary.kinds, [TokenKind::Normal]);
}

#[test]
fn stated_values_override_defaults() {
    let vocabulary = vocabulary_with(&[
        ("bos_token_id", Some(Value::U32(4))),
        ("eos_token_id", Some(Value::I32(3))),
        ("unknown_token_id", Some(Value::U64(2))),
        ("add_bos_token", Some(Value::Bool(false))),
        ("add_eos_token", Some(Value::Bool(true))),
        ("add_space_prefix", Some(Value::Bool(false))),
    ])
    .unwrap();
    assert_eq!(
        (vocabulary.bos, vocabulary.eos, vocabulary.unknown),
        (Some(4), Some(3), Some(2))
    );
    assert!(!vocabulary.add_bos && vocabulary.add_eos && !vocabulary.add_space_prefix);
}

#[test]
fn invalid_vocabularies_are_refused() {
    let scores = |list: &[f32]| Some(Value::Array(Array::F32(list.to_vec())));
    let kinds = |list: &[i32]| Some(Value::Array(Array::I32(list.to_vec())));
    let error = |change| vocabulary_with(&[change]).unwrap_err();

    assert_eq!(error(("model", None)), VocabularyError::Absent);
    let found = "t5".to_owned();
    let value = Some(Value::String(found.clone()));
    assert_eq!(error(("model", value)), VocabularyError::Model { found });

    for (key, wrong) in [
        ("tokens", None),
        ("scores", None),
        ("scores", kinds(&[0; 5])),
    ] {
        assert!(matches!(error((key, wrong)), VocabularyError::Metadata(_)));
    }
    let none = Some(Value::Array(Array::String(Vec::new())));
    assert_eq!(error(("tokens", none)), VocabularyError::Size { found: 0 });
    let (expected, found) = (5, 4);
    assert_eq!(
        error(("scores", scores(&[0.0; 4]))),
        VocabularyError::Length {
            item: "scores",
            expected,
            found
        }
    );
    assert_eq!(
        error(("token_type", kinds(&[1; 4]))),
        VocabularyError::Length {
            item: "token types",
            expected,
            found
        }
    );
    let score = error(("scores", scores(&[0.0, 0.0, 0.0, f32::NEG_INFINITY, 0.0])));
    assert_eq!(
        score,
        VocabularyError::Score {
            token: 3,
            found: f32::NEG_INFINITY
        }
    );
    for found in [0, 7, -1, 257] {
        assert_eq!(
            error(("token_type", kinds(&[1, 1, found, 1, 1]))),
            VocabularyError::Kind { token: 2, found }
        );
    }
    for (key, which) in [
        ("bos_token_id", "BOS"),
        ("eos_token_id", "EOS"),
        ("unknown_token_id", "unknown"),
    ] {
        let (id, tokens) = (5, 5);
        let found = error((key, Some(Value::U32(id))));
        assert_eq!(
            found,
            VocabularyError::Special {
                name: which,
                id,
                tokens
            }
        );
    }
}

#[test]
fn vocabularies_of_other_sources_are_checked() {
    let good = vocabulary_with(&[]).unwrap();
    good.validate().unwrap();
    let json = serde_json::to_string(&good).unwrap();
    assert_eq!(serde_json::from_str::<Vocabulary>(&json).unwrap(), good);
    let checked = |change: fn(&mut Vocabulary)| {
        let mut bad = good.clone();
        change(&mut bad);
        bad.validate().unwrap_err()
    };
    assert!(matches!(
        checked(|v| v.model.push('3')),
        VocabularyError::Model { .. }
    ));
    assert!(matches!(
        checked(|v| v.scores[1] = f32::NAN),
        VocabularyError::Score { token: 1, .. }
    ));
    assert!(matches!(
        checked(|v| v.kinds.truncate(2)),
        VocabularyError::Length { found: 2, .. }
    ));
    assert!(matches!(
        checked(|v| v.eos = Some(99)),
        VocabularyError::Special { id: 99, .. }
    ));
}

fn byte_level_with(changes: &[(&str, Option<Value>)]) -> Result<Vocabulary, VocabularyError> {
    let texts = |list: &[&str]| {
        let list = list.iter().map(|text| (*text).to_owned());
        Some(Value::Array(Array::String(list.collect())))
    };
    let mut entries = vec![
        ("model", Some(Value::String("gpt2".to_owned()))),
        ("pre", Some(Value::String("llama-bpe".to_owned()))),
        ("tokens", texts(&["a", "b", "c", "ab", "abc", "<x>"])),
        (
            "token_type",
            Some(Value::Array(Array::I32(vec![1, 1, 1, 1, 1, 3]))),
        ),
        ("merges", texts(&["a b", "ab c"])),
        ("scores", None),
    ];
    entries.retain(|(key, _)| !changes.iter().any(|(changed, _)| changed == key));
    entries.extend_from_slice(changes);
    vocabulary_with(&entries)
}

#[test]
fn byte_level_defaults_depend_on_the_pre_tokenizer() {
    let vocabulary = byte_level_with(&[]).unwrap();
    assert_eq!(vocabulary.merges, [(0, 1), (3, 2)]);
    assert_eq!(vocabulary.pre, Some(PreTokenizer::Llama3));
    assert_eq!(
        (vocabulary.bos, vocabulary.eos, vocabulary.unknown),
        (None, None, None)
    );
    assert!(vocabulary.add_bos && !vocabulary.add_eos && !vocabulary.add_space_prefix);
    let zeros = Value::Array(Array::F32(vec![0.0; 6]));
    assert_eq!(
        byte_level_with(&[("scores", Some(zeros))]).unwrap(),
        vocabulary
    );

    let qwen = Value::String("qwen2".to_owned());
    let ends = byte_level_with(&[
        ("pre", Some(qwen)),
        ("eos_token_id", Some(Value::U32(5))),
        ("eot_token_id", Some(Value::U32(4))),
        ("fim_pad_token_id", Some(Value::U32(1))),
        ("add_space_prefix", Some(Value::Bool(true))),
    ])
    .unwrap();
    assert_eq!((ends.eos, ends.end_of_generation), (Some(5), vec![4, 1]));
    assert!(!ends.add_bos && !ends.add_space_prefix);
}

#[test]
fn invalid_byte_level_vocabularies_are_refused() {
    let text = |text: &str| Some(Value::String(text.to_owned()));
    let error = |change| byte_level_with(&[change]).unwrap_err();
    assert_eq!(error(("pre", None)), VocabularyError::PreTokenizerMissing);
    for name in ["default", "gpt-9", ""] {
        let found = error(("pre", text(name)));
        assert_eq!(
            found,
            VocabularyError::PreTokenizer {
                found: name.to_owned()
            }
        );
        let said = found.to_string();
        for known in [
            "gpt-2",
            "llama-bpe",
            "qwen2",
            "smollm",
            "deepseek-v3",
            "phi-2",
        ] {
            assert!(said.contains(known), "{said}");
        }
    }
    assert!(matches!(
        error(("merges", None)),
        VocabularyError::Metadata(_)
    ));
    assert!(matches!(
        error(("pre", Some(Value::U32(1)))),
        VocabularyError::Metadata(_)
    ));
    for merge in ["", "a", "ab", " ", "a  b", "a x", "x b", "a\nb", " a b"] {
        let list = Array::String(vec!["a b".to_owned(), merge.to_owned()]);
        let found = error(("merges", Some(Value::Array(list))));
        let expected = VocabularyError::Merge {
            merge: 1,
            found: merge.to_owned(),
        };
        assert_eq!(found, expected, "{merge:?}");
    }
    let end = error(("eot_token_id", Some(Value::U32(6))));
    let which = "end-of-generation";
    assert_eq!(
        end,
        VocabularyError::Special {
            name: which,
            id: 6,
            tokens: 6
        }
    );
}

#[test]
fn chat_templates_are_read() {
    let mut writer = model_metadata();
    writer.metadata(
        "tokenizer.chat_template",
        Value::String("{{ x }}".to_owned()),
    );
    let vocabulary = Vocabulary::from_gguf(&parsed(&writer)).unwrap();
    assert_eq!(vocabulary.chat_template.as_deref(), Some("{{ x }}"));
    let without = Vocabulary::from_gguf(&parsed(&model_metadata())).unwrap();
    assert_eq!(without.chat_template, None);
}

#[test]
fn phi_3_is_recognised_by_name() {
    for (name, expected) in [
        ("Phi 3", &[][..]),
        ("phi-3 mini", &[2, 4, 5]),
        ("Phi3", &[2, 4, 5]),
    ] {
        let mut writer = Writer::new();
        let texts = [
            "<unk>",
            "<s>",
            "</s>",
            "a",
            "<|end|>",
            "<|user|>",
            "<|endoftext|>",
        ];
        let texts = texts.iter().map(|&text| text.to_owned()).collect();
        writer.metadata("general.name", Value::String(name.to_owned()));
        let entries = [
            ("model", Value::String("llama".to_owned())),
            ("tokens", Value::Array(Array::String(texts))),
            ("scores", Value::Array(Array::F32(vec![0.0; 7]))),
            (
                "token_type",
                Value::Array(Array::I32(vec![2, 3, 1, 1, 3, 4, 3])),
            ),
        ];
        for (key, value) in entries {
            writer.metadata(format!("tokenizer.ggml.{key}"), value);
        }
        let vocabulary = Vocabulary::from_gguf(&parsed(&writer)).unwrap();
        assert_eq!(vocabulary.strip_after, expected, "{name}");
    }
}
