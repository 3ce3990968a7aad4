//! Rules of a `tokenizer.json`: read exactly, or refused by name.

use std::time::Instant;

use crate::vocab_common::{BPE, bytes, bytes_of, number, piece, read};
use htc_formats::limits::{MAX_SPECIAL_BYTES, MAX_SPECIAL_TOKEN_BYTES};
use htc_formats::vocab::{HuggingFaceFiles, TokenKind, UnicodeForm, Vocabulary, VocabularyError};
use serde_json::{Value, json};

const SPACE: &str = "▁";

fn metaspace(scheme: &str, split: bool) -> Value {
    json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": split})
}

fn replace() -> Value {
    json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})
}

fn normalizers(steps: &[Value]) -> Value {
    json!({"type": "Sequence", "normalizers": steps})
}

/// A vocabulary of characters with byte fallback, one merge and one special token.
fn characters() -> Value {
    json!({
        "version": "1.0",
        "added_tokens": [{"id": 0, "content": "<s>", "special": true}],
        "normalizer": null,
        "pre_tokenizer": metaspace("first", false),
        "post_processor": null,
        "decoder": null,
        "model": {
            "type": "BPE", "byte_fallback": true, "fuse_unk": true,
            "vocab": {"<s>": 0, "▁": 1, "a": 2, "b": 3, "▁a": 4},
            "merges": [["▁", "a"]],
        },
    })
}

fn read_json(tokenizer: &Value) -> Result<Vocabulary, VocabularyError> {
    read(HuggingFaceFiles {
        tokenizer_json: bytes_of(tokenizer.clone()),
        ..HuggingFaceFiles::default()
    })
}

fn with(changes: &[(&str, Value)]) -> Value {
    let mut tokenizer = characters();
    for (at, value) in changes {
        let (parent, key) = at.rsplit_once('/').unwrap();
        tokenizer.pointer_mut(parent).unwrap()[key] = value.clone();
    }
    tokenizer
}

#[test]
fn schemes_of_spaces_are_read() {
    let spaces = |changes: &[(&str, Value)]| {
        let found = read_json(&with(changes)).unwrap();
        let once = found.space_prefix_once;
        let if_absent = found.space_prefix_if_absent;
        (
            found.add_space_prefix,
            once,
            if_absent,
            found.split_before_spaces,
        )
    };
    let pre = |value: Value| spaces(&[("/pre_tokenizer", value)]);
    assert_eq!(pre(metaspace("always", false)), (true, false, true, false));
    assert_eq!(pre(metaspace("first", false)), (true, true, false, false));
    assert_eq!(pre(metaspace("never", true)), (false, false, false, true));
    // The defaults of `tokenizers`.
    let mut older = json!({"type": "Metaspace", "replacement": SPACE});
    assert_eq!(pre(older.clone()), (true, false, true, true));
    older["add_prefix_space"] = json!(false);
    assert_eq!(pre(older), (false, false, false, true));
    let prepend = json!({"type": "Prepend", "prepend": SPACE});
    for (steps, expected) in [
        (vec![prepend, replace()], (true, false, false, false)),
        (vec![replace()], (false, false, false, false)),
    ] {
        let changes = [
            ("/normalizer", normalizers(&steps)),
            ("/pre_tokenizer", Value::Null),
        ];
        assert_eq!(spaces(&changes), expected);
    }
}

#[test]
fn unicode_forms_are_read() {
    let names = ["NFC", "NFD", "NFKC", "NFKD"];
    for (name, form) in names.into_iter().zip(UnicodeForm::ALL) {
        let step = json!({"type": name});
        for changes in [
            vec![("/normalizer", step.clone())],
            vec![("/normalizer", normalizers(std::slice::from_ref(&step)))],
            vec![
                ("/normalizer", normalizers(&[step.clone(), replace()])),
                ("/pre_tokenizer", Value::Null),
            ],
            vec![
                ("/normalizer", step.clone()),
                ("/pre_tokenizer", json!({"type": "ByteLevel"})),
                ("/model/byte_fallback", json!(false)),
            ],
        ] {
            let found = read_json(&with(&changes)).unwrap();
            assert_eq!(found.normalization, Some(form), "{changes:?}");
        }
    }
}

#[test]
fn decoders_must_agree_with_the_rules() {
    let spaces = json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "});
    let steps = [
        spaces,
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
        json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}),
    ];
    let decoder = |steps: &[Value]| json!({"type": "Sequence", "decoders": steps});
    for (scheme, length) in [("first", 4), ("always", 4), ("never", 3)] {
        for given in [3, 4] {
            let read = read_json(&with(&[
                ("/pre_tokenizer", metaspace(scheme, false)),
                ("/decoder", decoder(&steps[..given])),
            ]));
            assert_eq!(read.is_ok(), given == length, "{scheme} {given}");
        }
    }
}

#[test]
fn rules_that_are_not_applied_are_refused_by_name() {
    let split = |invert: bool| json!({"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": invert});
    let mut slashes = metaspace("first", false);
    slashes["replacement"] = json!("/");
    let mut contradiction = metaspace("first", false);
    contradiction["add_prefix_space"] = json!(false);
    let nfc = json!({"type": "NFC"});
    let prepend = json!({"type": "Prepend", "prepend": "x"});
    let overlapping = |first: &str, second: &str| {
        let tokens = json!([{"id": 5, "content": first}, {"id": 6, "content": second}]);
        vec![("/added_tokens", tokens)]
    };
    for fine in [
        overlapping("  ", "   "),
        overlapping("<xy", "yz"),
        overlapping("<", "<x"),
    ] {
        let tokens = read_json(&with(&fine)).map(|found| found.tokens.len());
        assert_eq!(tokens, Ok(7));
    }
    for (changes, words) in [
        (
            vec![("/normalizer", json!({"type": "Lowercase"}))],
            "Lowercase",
        ),
        (
            vec![("/normalizer", json!({"type": "StripAccents"}))],
            "StripAccents",
        ),
        (
            vec![("/normalizer", json!({"type": "Precompiled"}))],
            "Precompiled",
        ),
        (
            vec![("/normalizer", normalizers(&[nfc.clone(), nfc.clone()]))],
            "NFC, NFC",
        ),
        (
            vec![
                ("/normalizer", normalizers(&[replace(), nfc])),
                ("/pre_tokenizer", Value::Null),
            ],
            "Replace \" \" \"▁\", NFC",
        ),
        (
            vec![("/normalizer", json!({"type": "Strip", "strip_left": true}))],
            "strip_left",
        ),
        (
            vec![
                ("/normalizer", normalizers(&[prepend, replace()])),
                ("/pre_tokenizer", Value::Null),
            ],
            "Prepend \"x\"",
        ),
        (
            vec![("/normalizer", replace()), ("/pre_tokenizer", split(true))],
            "Split \" \" invert",
        ),
        (vec![("/pre_tokenizer", slashes)], "\"/\""),
        (vec![("/pre_tokenizer", contradiction)], "Metaspace"),
        (
            vec![("/pre_tokenizer", metaspace("last", false))],
            "\"last\"",
        ),
        (
            vec![("/decoder", json!({"type": "WordPiece"}))],
            "decoder is \"WordPiece\"",
        ),
        (vec![("/model/merges", json!([]))], "model.merges is empty"),
        (
            overlapping("<x", "xyz"),
            "\"<x\" and \"xyz\", which can overlap",
        ),
        (
            overlapping("  ", " xy"),
            "\"  \" and \" xy\", which can overlap",
        ),
        (
            vec![("/added_tokens/0/id", json!(3))],
            "\"<s>\" has the id 3, expected 0",
        ),
        (
            vec![(
                "/added_tokens",
                json!([{"id": 5, "content": "x"}, {"id": 5, "content": "x"}]),
            )],
            "\"x\" is listed twice",
        ),
        (
            vec![(
                "/added_tokens",
                json!([{"id": 5, "content": "x y", "normalized": true}]),
            )],
            "normalized is \"true for the added token \"x y\"\"",
        ),
    ] {
        let said = read_json(&with(&changes)).unwrap_err().to_string();
        let said = said.replace('\\', "");
        assert!(
            said.contains(words) && said.contains("tokenizer.json"),
            "{said}"
        );
    }
    assert!(
        read_json(&with(&[
            ("/normalizer", replace()),
            ("/pre_tokenizer", split(false))
        ]))
        .is_ok()
    );
}

#[test]
fn templates_state_the_ids_of_their_tokens() {
    let template = |ids: Value| {
        json!({
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "special_tokens": {"<s>": {"id": "<s>", "ids": ids, "tokens": ["<s>"]}},
        })
    };
    let read = |processor: Value| read_json(&with(&[("/post_processor", processor)]));
    assert!(read(template(json!([0]))).unwrap().add_bos);
    let said = read(template(json!([2]))).unwrap_err().to_string();
    assert!(said.contains("post_processor is \"<s> [2] $A\""), "{said}");
    let twice = json!({
        "type": "Sequence",
        "processors": [template(json!([0])), template(json!([0]))],
    });
    let said = read(twice).unwrap_err().to_string();
    assert!(said.contains("two templates"), "{said}");
}

#[test]
fn bytes_without_a_token_must_not_be_unknown() {
    let byte_level = |model: (&str, Value)| {
        read_json(&with(&[
            ("/pre_tokenizer", json!({"type": "ByteLevel"})),
            ("/model/byte_fallback", json!(false)),
            model,
        ]))
    };
    assert!(byte_level(("/model/unk_token", Value::Null)).is_ok());
    for (entry, value) in [
        ("/model/unk_token", json!("<s>")),
        ("/model/byte_fallback", json!(true)),
    ] {
        let said = byte_level((entry, value)).unwrap_err().to_string();
        let field = entry.trim_start_matches('/').replace('/', ".");
        assert!(said.contains(&field) && said.contains("byte"), "{said}");
    }
}

#[test]
fn normalised_tokens_are_listed_where_it_matters() {
    let token = |id: u32, content: &str, normalized: bool| json!({"id": id, "content": content, "normalized": normalized});
    let listed = |added: Value, changes: &[(&str, Value)]| {
        let mut tokenizer = with(changes);
        tokenizer["added_tokens"] = added;
        read_json(&tokenizer).unwrap().match_normalized
    };
    let all = json!([token(5, "<x>", true), token(6, "<y>", true)]);
    let mixed = json!([token(5, "<x>", true), token(6, "<y>", false)]);
    assert_eq!(listed(all.clone(), &[]), [] as [u32; 0]);
    assert_eq!(listed(mixed, &[]), [5]);
    assert_eq!(
        listed(all.clone(), &[("/normalizer", json!({"type": "NFC"}))]),
        [5, 6]
    );
    let prepend = json!({"type": "Prepend", "prepend": SPACE});
    let changes = [
        ("/normalizer", normalizers(&[prepend, replace()])),
        ("/pre_tokenizer", Value::Null),
    ];
    assert_eq!(listed(all, &changes), [5, 6]);
}

/// Pieces with the tokens and merges of [`characters`].
fn pieces() -> Vec<u8> {
    let fields = [BPE, (40, 99), (41, 0), (42, 99)];
    let trainer = fields.map(|(field, value)| number(field, value)).concat();
    [
        piece("<s>", 0.0, 3),
        piece("▁", -3.0, 1),
        piece("a", -2.0, 1),
        piece("b", -1.0, 1),
        piece("▁a", -0.5, 1),
        bytes(2, &trainer),
    ]
    .concat()
}

fn both(tokenizer: &Value) -> Vocabulary {
    read(HuggingFaceFiles {
        tokenizer_json: bytes_of(tokenizer.clone()),
        tokenizer_model: Some(pieces()),
        ..HuggingFaceFiles::default()
    })
    .unwrap()
}

#[test]
fn tokenizer_model_adds_scores_to_the_same_merges() {
    let found = both(&characters());
    assert_eq!(found.scores, [0.0, -3.0, -2.0, -1.0, -0.5]);
    assert_eq!(found.merges, []);
    // The rules are those of tokenizer.json; tokenizer.model has others.
    assert!(found.add_space_prefix && found.space_prefix_once && !found.collapse_spaces);

    let added = json!([
        {"id": 0, "content": "<s>", "special": true},
        {"id": 5, "content": "<|start|>", "special": true, "rstrip": true},
        {"id": 6, "content": "<x>"},
    ]);
    let found = both(&with(&[("/added_tokens", added)]));
    assert_eq!(found.tokens[5..], ["<|start|>", "<x>"]);
    assert_eq!(
        found.kinds[5..],
        [TokenKind::Control, TokenKind::UserDefined]
    );
    assert_eq!(found.scores[5..], [-1000.0, -1000.0]);
    assert_eq!(found.strip_after, [5]);
}

#[test]
fn tokenizer_json_counts_where_tokenizer_model_differs() {
    let renamed = with(&[
        (
            "/model/vocab",
            json!({"<s>": 0, "▁": 1, "a": 2, "<|start|>": 3, "▁a": 4}),
        ),
        (
            "/added_tokens",
            json!([
                {"id": 0, "content": "<s>", "special": true},
                {"id": 3, "content": "<|start|>", "special": true},
            ]),
        ),
    ]);
    let found = both(&renamed);
    assert_eq!(
        (found.tokens[3].as_str(), found.kinds[3]),
        ("<|start|>", TokenKind::Control)
    );
    // The scores imply the same merges.
    assert_eq!((found.merges.len(), found.scores[3]), (0, -1000.0));

    let other = with(&[
        (
            "/model/vocab",
            json!({"<s>": 0, "▁": 1, "a": 2, "b": 3, "▁a": 4, "ab": 5}),
        ),
        ("/model/merges", json!([["a", "b"], ["▁", "a"]])),
    ]);
    let found = both(&other);
    assert_eq!((found.merges, found.scores), (vec![(2, 3), (1, 2)], vec![]));
    let fewer = with(&[
        (
            "/model/vocab",
            json!({"<s>": 0, "▁": 1, "a": 2, "b": 3, "▁a": 4, "▁b": 5, "ab": 6}),
        ),
        ("/model/merges", json!([["▁", "a"], ["a", "b"]])),
    ]);
    assert_eq!(both(&fewer).merges.len(), 2);
}

/// transformers adds tokens that only `tokenizer_config.json` lists.
#[test]
fn added_tokens_of_tokenizer_config_count() {
    let read = |decoder: Value| {
        read(HuggingFaceFiles {
            tokenizer_json: bytes_of(characters()),
            tokenizer_config: bytes_of(json!({"added_tokens_decoder": decoder})),
            ..HuggingFaceFiles::default()
        })
    };
    let found = read(json!({
        "0": {"content": "<s>", "special": true},
        "5": {"content": "<x>", "special": false},
    }));
    let found = found.unwrap();
    assert_eq!(
        (found.tokens[5].as_str(), found.kinds[5]),
        ("<x>", TokenKind::UserDefined)
    );
    let said = read(json!({"2": {"content": "<x>"}}))
        .unwrap_err()
        .to_string();
    for word in ["tokenizer_config.json", "<x>", "id 2", "expected 5"] {
        assert!(said.contains(word), "{said}");
    }
    let overlapping = json!({"6": {"content": "xyz"}, "5": {"content": "<x"}});
    let said = read(overlapping).unwrap_err().to_string();
    assert!(said.contains("which can overlap"), "{said}");
}

/// Every part of every token is compared with those of the others.
#[test]
fn long_added_tokens_are_read_quickly() {
    let one = vec!["x".repeat(MAX_SPECIAL_BYTES)];
    let many = (0..MAX_SPECIAL_BYTES / MAX_SPECIAL_TOKEN_BYTES).map(|token| {
        let digits = MAX_SPECIAL_TOKEN_BYTES - 2;
        format!("<{token:0digits$}>")
    });
    let started = Instant::now();
    for texts in [one, many.collect()] {
        let tokens = (5..).zip(&texts);
        let tokens: Value = tokens
            .map(|(id, text): (u32, _)| json!({"id": id, "content": text}))
            .collect();
        let found = read_json(&with(&[("/added_tokens", tokens)])).unwrap();
        assert_eq!(found.tokens.len(), 5 + texts.len());
    }
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}
