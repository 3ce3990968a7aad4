//! Byte-level vocabularies against PyPI's `tokenizers` (`scripts/make_tokenizer_fixtures.py`).

use crate::tokenizer_common::{cases, fixture, from_json};
use htc_formats::vocab::{PreTokenizer, TokenKind, Vocabulary, VocabularyError};
use htc_loader::tokenizer::{AddSpecialTokens, Tokenizer};
use serde_json::{Value, json};

fn small() -> Vocabulary {
    from_json(&fixture("bpe_tokenizer.json"))
}

fn token(vocabulary: &Vocabulary, text: &str) -> u32 {
    let mut tokens = (0..).zip(&vocabulary.tokens);
    tokens.find(|(_, token)| *token == text).unwrap().0
}

#[test]
fn ids_with_every_pre_tokenizer() {
    let fixture_ids = fixture("bpe_ids.json");
    let mut model = fixture("bpe_tokenizer.json");
    for (name, pre) in fixture_ids["pre_tokenizers"].as_object().unwrap() {
        model["pre_tokenizer"] = pre.clone();
        let ignores = matches!(name.as_str(), "llama-bpe" | "tekken");
        model["model"]["ignore_merges"] = json!(ignores);
        let vocabulary = from_json(&model);
        assert_eq!(vocabulary.pre, PreTokenizer::from_name(name), "{name}");
        let tokenizer = Tokenizer::new(vocabulary).unwrap();
        for (text, expected) in cases(&fixture_ids["texts"], &fixture_ids["ids"][name]) {
            // The peer always parses special tokens.
            let found = tokenizer.encode_with_special(text, AddSpecialTokens::TextOnly);
            assert_eq!(found, expected, "{name}: {text:?}");
            let plain = tokenizer.encode(text, AddSpecialTokens::TextOnly);
            assert_eq!(tokenizer.decode(&plain), text, "{name}");
            assert_eq!(plain == found, !text.contains("<|im_"), "{name}: {text:?}");
        }
    }
}

#[test]
fn special_tokens_are_parsed_only_on_request() {
    let vocabulary = Vocabulary {
        bos: Some(1),
        eos: Some(2),
        add_bos: true,
        add_eos: true,
        ..small()
    };
    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    let text = "<|im_start|>a<|im_end|>";
    let a = token(tokenizer.vocabulary(), "a");
    let special = |add| tokenizer.encode_with_special(text, add);
    assert_eq!(special(AddSpecialTokens::TextOnly), [1, a, 2]);
    assert_eq!(special(AddSpecialTokens::AsConfigured), [1, a, 2]);
    assert_eq!(special(AddSpecialTokens::Prompt), [1, a, 2]);
    let plain = tokenizer.encode(text, AddSpecialTokens::AsConfigured);
    assert!(plain.len() > 10 && plain.starts_with(&[1]) && plain.ends_with(&[2]));
    assert!(!plain[1..plain.len() - 1].iter().any(|&id| id < 3));
    let other = tokenizer.encode_with_special("a<|endoftext|>", AddSpecialTokens::AsConfigured);
    assert_eq!(other, [1, a, 0, 2]);
}

#[test]
fn whitespace_next_to_special_tokens_is_stripped() {
    let vocabulary = Vocabulary {
        strip_before: vec![2],
        strip_after: vec![1, 2],
        ..small()
    };
    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    let encode = |text| tokenizer.encode_with_special(text, AddSpecialTokens::TextOnly);
    let bare = encode("<|im_start|>a<|im_end|>a<|endoftext|>");
    for text in [
        "<|im_start|>\n\n a \t<|im_end|> \u{a0}a<|endoftext|>",
        "<|im_start|> a\n<|im_end|>a<|endoftext|>",
    ] {
        assert_eq!(encode(text), bare, "{text:?}");
    }
    assert_eq!(encode("<|im_start|> \n<|im_end|>  "), [1, 2]);
    assert_ne!(encode("a <|endoftext|>"), encode("a<|endoftext|>"));
}

#[test]
fn whole_words_take_precedence_over_merges() {
    let mut vocabulary = small();
    let word = vocabulary.tokens.len() as u32;
    vocabulary.tokens.push("Ġxyzzy".to_owned());
    vocabulary.kinds.push(TokenKind::Normal);
    for (pre, whole) in [
        (PreTokenizer::Llama3, true),
        (PreTokenizer::Tekken, true),
        (PreTokenizer::Dbrx, false),
    ] {
        let pre = Some(pre);
        let tokenizer = Tokenizer::new(Vocabulary {
            pre,
            ..vocabulary.clone()
        })
        .unwrap();
        let ids = tokenizer.encode("a xyzzy", AddSpecialTokens::TextOnly);
        assert_eq!(ids.contains(&word), whole, "{pre:?}");
        assert_eq!(tokenizer.decode(&ids), "a xyzzy");
    }
}

#[test]
fn long_words_match_the_quadratic_reference() {
    let vocabulary = small();
    let rank = |pair: (u32, u32)| vocabulary.merges.iter().position(|merge| *merge == pair);
    let text = "ththeererinininganandandaalliicecehesaidtotheQueen".repeat(4);
    let mut expected: Vec<u32> = text
        .chars()
        .map(|character| token(&vocabulary, &character.to_string()))
        .collect();
    loop {
        let ranked = (1..expected.len())
            .filter_map(|at| Some((rank((expected[at - 1], expected[at]))?, at)));
        let Some((_, at)) = ranked.min() else { break };
        let right = expected.remove(at) as usize;
        let left = expected[at - 1] as usize;
        let text = format!("{}{}", vocabulary.tokens[left], vocabulary.tokens[right]);
        expected[at - 1] = token(&vocabulary, &text);
    }
    assert!(expected.len() < text.len() * 3 / 4);
    let tokenizer = Tokenizer::new(vocabulary.clone()).unwrap();
    assert_eq!(
        tokenizer.encode(&text, AddSpecialTokens::TextOnly),
        expected
    );
}

#[test]
fn long_words_are_fast() {
    let tokenizer = Tokenizer::new(small()).unwrap();
    for run in ["a", "th", " ", "!", "é", "the"] {
        let text = run.repeat((1 << 20) / run.len());
        let ids = tokenizer.encode(&text, AddSpecialTokens::TextOnly);
        assert!(tokenizer.decode(&ids) == text, "{run:?}");
    }
}

#[test]
fn bytes_without_a_token_are_dropped() {
    let mut vocabulary = small();
    let merged = |id: u32| vocabulary.merges.iter().any(|&(a, b)| a == id || b == id);
    let mut letters = ('A'..='Z').map(String::from);
    let letter = letters.find(|text| !merged(token(&vocabulary, text)));
    let letter = letter.unwrap();
    let at = token(&vocabulary, &letter) as usize;
    vocabulary.tokens[at] = "renamed".to_owned();
    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    let without = tokenizer.encode("ab", AddSpecialTokens::TextOnly);
    let with = tokenizer.encode(&format!("a{letter}b"), AddSpecialTokens::TextOnly);
    assert_eq!(with, without);
}

#[test]
fn ends_of_generation() {
    let mut vocabulary = small();
    let tokens = vocabulary.tokens.len() as u32;
    for text in ["<|eot_id|>", "<end_of_turn>", "<|end|>", "other"] {
        vocabulary.tokens.push(text.to_owned());
        vocabulary.kinds.push(TokenKind::Control);
    }
    vocabulary.eos = Some(1);
    vocabulary.end_of_generation = vec![tokens + 3];
    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    let ends: Vec<u32> = (0..tokens + 9)
        .filter(|&id| tokenizer.is_end_token(id))
        .collect();
    let named = [tokens, tokens + 1, tokens + 2, tokens + 3];
    assert_eq!(ends, [&[0, 1, 2], named.as_slice()].concat());
    assert_eq!(tokenizer.decode(&ends), "");
}

#[test]
fn invalid_vocabularies_are_rejected() {
    let refuse = |change: fn(&mut Vocabulary)| {
        let mut vocabulary = small();
        change(&mut vocabulary);
        let error = Tokenizer::new(vocabulary).unwrap_err();
        assert!(!error.to_string().contains('\n'), "{error}");
        error
    };
    let no_token = refuse(|v| v.merges[3] = (0, 0));
    assert!(
        matches!(no_token, VocabularyError::MergeResult { merge: 3, .. }),
        "{no_token}"
    );
    let twice = refuse(|v| v.merges[7] = v.merges[3]);
    let (first, second) = (3, 7);
    assert!(
        matches!(twice, VocabularyError::DuplicateMerge { first: a, second: b, .. } if (a, b) == (first, second)),
        "{twice}"
    );
    let outside = refuse(|v| v.merges[0].0 = u32::MAX);
    assert!(
        matches!(outside, VocabularyError::Merge { .. }),
        "{outside}"
    );
    let duplicate = refuse(|v| v.tokens[9] = v.tokens[8].clone());
    assert!(
        matches!(
            duplicate,
            VocabularyError::DuplicateText {
                first: 8,
                second: 9,
                ..
            }
        ),
        "{duplicate}"
    );
    let no_pre = refuse(|v| v.pre = None);
    assert!(
        no_pre.to_string().contains("tokenizer.ggml.pre"),
        "{no_pre}"
    );
    let end = refuse(|v| v.end_of_generation = vec![5, 1 << 30]);
    assert!(
        end.to_string()
            .contains("end-of-generation token is 1073741824"),
        "{end}"
    );
}

#[test]
fn vocabulary_round_trips_through_json() {
    let vocabulary = small();
    let json = serde_json::to_value(&vocabulary).unwrap();
    assert_eq!(json["pre"], "gpt-2");
    for absent in ["scores", "chat_template", "strip_after", "collapse_spaces"] {
        assert_eq!(json.get(absent), None);
    }
    assert_eq!(
        serde_json::from_value::<Vocabulary>(json.clone()).unwrap(),
        vocabulary
    );
    let mut unknown = json;
    unknown["pre"] = Value::from("gpt-9");
    let error = serde_json::from_value::<Vocabulary>(unknown).unwrap_err();
    assert!(error.to_string().contains("gpt-9"), "{error}");
}
