//! Vocabularies of SentencePiece models.

use crate::vocab_common::{BPE, bytes, bytes_of, piece, read, sentence_piece};
use htc_formats::vocab::{HuggingFaceFiles, TokenKind, Vocabulary, VocabularyError};
use serde_json::json;

fn of_model(model: Vec<u8>) -> Result<Vocabulary, VocabularyError> {
    read(HuggingFaceFiles {
        tokenizer_model: Some(model),
        ..HuggingFaceFiles::default()
    })
}

#[test]
fn sentence_piece_model_is_read() {
    let vocabulary = of_model(sentence_piece(&[BPE], &[])).unwrap();
    assert_eq!(vocabulary.model, "llama");
    assert_eq!(vocabulary.tokens, ["<unk>", "<s>", "</s>", "▁", "▁a", "  "]);
    assert_eq!(vocabulary.scores, [0.0, 0.0, 0.0, 0.0, -1.5, -2.0]);
    assert_eq!(vocabulary.kinds[0], TokenKind::Unknown);
    assert_eq!(
        vocabulary.kinds[3..],
        [TokenKind::Normal, TokenKind::Normal, TokenKind::UserDefined]
    );
    let special = (vocabulary.bos, vocabulary.eos, vocabulary.unknown);
    assert_eq!(special, (Some(1), Some(2), Some(0)));
    assert!(vocabulary.add_space_prefix && vocabulary.collapse_spaces && vocabulary.add_bos);

    let minus_one = u64::MAX;
    let trainer = [BPE, (40, 2), (41, minus_one), (42, 0)];
    let other = of_model(sentence_piece(&trainer, &[(3, 0), (4, 0), (5, 1)])).unwrap();
    assert_eq!(
        (other.bos, other.eos, other.unknown),
        (None, Some(0), Some(2))
    );
    assert!(!other.add_space_prefix && !other.collapse_spaces);
}

#[test]
fn sentence_piece_models_of_other_kinds_are_refused_by_name() {
    for (trainer, normalizer, words) in [
        (vec![], vec![], ["model_type", "unigram"]),
        (vec![(3, 1)], vec![], ["model_type", "unigram"]),
        (vec![(3, 3)], vec![], ["model_type", "word"]),
        (vec![(3, 4)], vec![], ["model_type", "char"]),
        (
            vec![BPE, (24, 1)],
            vec![],
            ["treat_whitespace_as_suffix", "true"],
        ),
        (vec![BPE], vec![(5, 0)], ["escape_whitespaces", "false"]),
    ] {
        let said = of_model(sentence_piece(&trainer, &normalizer))
            .unwrap_err()
            .to_string();
        for word in words {
            assert!(said.contains(word), "{said}");
        }
    }
    let mapped = bytes(3, &[bytes(1, b"nmt_nfkc"), bytes(2, b"map")].concat());
    let model = [sentence_piece(&[BPE], &[]), mapped].concat();
    let said = of_model(model).unwrap_err().to_string();
    assert!(
        said.contains("nmt_nfkc") && said.contains("identity"),
        "{said}"
    );
}

#[test]
fn damaged_sentence_piece_models_are_refused() {
    let whole = sentence_piece(&[BPE], &[(4, 0)]);
    for len in 0..whole.len() {
        let _ = of_model(whole[..len].to_vec());
    }
    let start = piece("<unk>", 0.0, 2);
    for (rest, word) in [
        (vec![0x0A, 5, 1], "ends within a field"),
        (vec![0x0A], "ends within a number"),
        (
            vec![0x0A, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F],
            "ends within a field",
        ),
        ([vec![0x10], vec![0xFF; 10]].concat(), "more than 64 bits"),
        (vec![0x0B], "unknown kind"),
        (piece("x", 0.0, 9), "unknown type"),
        (bytes(1, &bytes(1, &[0xFF])), "no UTF-8"),
    ] {
        let said = of_model([start.clone(), rest].concat())
            .unwrap_err()
            .to_string();
        assert!(
            said.contains(word) && said.contains("tokenizer.model"),
            "{said}"
        );
    }
    let nan = [piece("x", f32::NAN, 1), sentence_piece(&[BPE], &[])].concat();
    assert!(matches!(
        of_model(nan),
        Err(VocabularyError::Score { token: 0, .. })
    ));
    let said = of_model(b"IQ== 0\nIg== 1\n".to_vec())
        .unwrap_err()
        .to_string();
    assert!(said.contains("no SentencePiece model"), "{said}");
    let said = of_model(Vec::new()).unwrap_err().to_string();
    assert!(said.contains("no SentencePiece model"), "{said}");
}

#[test]
fn tokens_are_added_to_sentence_piece_models() {
    let files = HuggingFaceFiles {
        tokenizer_model: Some(sentence_piece(&[BPE], &[(4, 0)])),
        added_tokens: bytes_of(json!({"<new>": 6})),
        tokenizer_config: bytes_of(json!({
            "added_tokens_decoder": {
                "2": {"content": "</s>", "special": true, "rstrip": true},
                "7": {"content": "<|end|>", "special": false},
            },
            "add_bos_token": false,
        })),
        config: bytes_of(json!({"vocab_size": 9})),
        ..HuggingFaceFiles::default()
    };
    let vocabulary = read(files.clone()).unwrap();
    assert_eq!(vocabulary.tokens[6..], ["<new>", "<|end|>", "[PAD8]"]);
    assert_eq!(vocabulary.scores[5..], [-2.0, -1000.0, -1000.0, -10000.0]);
    let expected = [
        TokenKind::UserDefined,
        TokenKind::Control,
        TokenKind::Unused,
    ];
    assert_eq!(vocabulary.kinds[6..], expected);
    assert_eq!(vocabulary.strip_after, [2]);
    assert!(!vocabulary.add_bos && vocabulary.add_space_prefix);

    for (config, prefix) in [
        (json!({"model_type": "gemma2"}), false),
        (json!({"model_type": "gemma3_text"}), false),
        (json!({"model_type": "llama"}), true),
    ] {
        let gemma = HuggingFaceFiles {
            config: bytes_of(config),
            ..files.clone()
        };
        assert_eq!(read(gemma).unwrap().add_space_prefix, prefix);
    }
    let without = HuggingFaceFiles {
        tokenizer_config: bytes_of(json!({"add_prefix_space": false})),
        ..files.clone()
    };
    assert!(!read(without).unwrap().add_space_prefix);
    for key in ["x", "-1", "99999999999"] {
        let bad = HuggingFaceFiles {
            tokenizer_config: bytes_of(json!({"added_tokens_decoder": {key: {"content": "y"}}})),
            ..files.clone()
        };
        let said = read(bad).unwrap_err().to_string();
        assert!(
            said.contains(key) && said.contains("tokenizer_config.json"),
            "{said}"
        );
    }
    let far = HuggingFaceFiles {
        added_tokens: bytes_of(json!({"<new>": 4_000_000_000_u32})),
        ..files
    };
    let said = read(far).unwrap_err().to_string();
    assert!(said.contains("<new>") && said.contains("below"), "{said}");
}
