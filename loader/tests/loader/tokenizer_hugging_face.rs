//! Vocabularies from Hugging Face folders: same ids as the GGUF of the same model and as PyPI's
//! `tokenizers`.

use crate::tokenizer_common::{cases, fixture, from_json, shared, texts, vocabulary_of};
use htc_formats::gguf::Gguf;
use htc_formats::source::ModelFile;
use htc_formats::vocab::{Vocabulary, VocabularyError};
use htc_loader::tokenizer::{AddSpecialTokens, Tokenizer};

#[test]
fn folders_and_ggufs_give_the_same_vocabulary() {
    let Some(folder) = shared("reference/arch") else {
        return;
    };
    let mut models = 0;
    let entries = std::fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    for folder in paths.filter(|path| path.is_dir()) {
        if let Err(error) = ModelFile::open(folder.join("model.gguf")) {
            println!("skipped: {error}");
            continue;
        }
        // A converter may leave out how a text is normalised.
        let facts = std::fs::read_to_string(folder.join("facts.json")).unwrap_or_default();
        if !facts.is_empty() && !facts.contains("\"tokens_equal\": true") {
            println!("skipped: {}: no equal tokens", folder.display());
            continue;
        }
        let mut read = Vocabulary::from_hugging_face(&folder).unwrap();
        // A GGUF cannot state the form, and llama.cpp does not normalise.
        if read.normalization.take().is_some() {
            let json = std::fs::read_to_string(folder.join("tokenizer.json")).unwrap();
            assert!(json.contains("\"NFC\""), "{}", folder.display());
        }
        let expected = vocabulary_of(&folder.join("model.gguf"));
        assert!(read == expected, "{}", folder.display());
        models += 1;
    }
    assert!(models > 5);
}

#[test]
fn folders_and_ggufs_give_the_same_ids() {
    let Some(folder) = shared("models/reference-7m") else {
        return;
    };
    let read = Vocabulary::from_hugging_face(&folder).unwrap();
    let expected = vocabulary_of(&folder.join("reference-7m-f16.gguf"));
    assert_eq!(read, expected);
    let (read, expected) = (
        Tokenizer::new(read).unwrap(),
        Tokenizer::new(expected).unwrap(),
    );
    for (name, text) in texts() {
        let ids = read.encode(&text, AddSpecialTokens::AsConfigured);
        assert!(
            ids == expected.encode(&text, AddSpecialTokens::AsConfigured),
            "{name}"
        );
        assert!(read.decode(&ids) == text, "{name}");
    }
}

#[test]
fn characters_with_byte_fallback() {
    let expected = fixture("characters_ids.json");
    let mut model = fixture("characters_tokenizer.json");
    for (name, variant) in expected["variants"].as_object().unwrap() {
        model["normalizer"] = variant[0].clone();
        model["pre_tokenizer"] = variant[1].clone();
        let vocabulary = from_json(&model);
        assert_eq!((vocabulary.unknown, vocabulary.scores.len()), (Some(0), 0));
        let tokenizer = Tokenizer::new(vocabulary).unwrap();
        for (text, expected) in cases(&expected["texts"], &expected["ids"][name]) {
            let found = tokenizer.encode_with_special(text, AddSpecialTokens::TextOnly);
            assert_eq!(found, expected, "{name}: {text:?}");
            if ["prepend", "replace", "gemma"].contains(&name.as_str()) {
                let plain = tokenizer.encode(text, AddSpecialTokens::TextOnly);
                let shown = text.replace('\u{2581}', " ");
                assert_eq!(tokenizer.decode(&plain), shown, "{name}");
            }
        }
    }
}

/// Every scheme of `Metaspace`, every Unicode form, and added tokens that are matched in the
/// normalised text, with the ids of `tokenizers`.
#[test]
fn rules_of_tokenizer_json_give_the_same_ids() {
    for (model, rules) in [
        ("characters_tokenizer.json", "rules_characters_ids.json"),
        ("bpe_tokenizer.json", "rules_bytes_ids.json"),
    ] {
        let (model, rules) = (fixture(model), fixture(rules));
        for (name, changes) in rules["variants"].as_object().unwrap() {
            let mut variant = model.clone();
            for (entry, value) in changes.as_object().unwrap() {
                variant[entry] = value.clone();
            }
            let tokenizer = Tokenizer::new(from_json(&variant)).unwrap();
            for (text, expected) in cases(&rules["texts"], &rules["ids"][name]) {
                let found = tokenizer.encode_with_special(text, AddSpecialTokens::TextOnly);
                assert_eq!(found, expected, "{name}: {text:?}");
            }
        }
    }
}

/// A control token that is matched in the normalised text is text inside a user's message too.
#[test]
fn normalised_control_tokens_in_messages_are_text() {
    let mut model = fixture("characters_tokenizer.json");
    let id = model["model"]["vocab"].as_object().unwrap().len() as u32;
    let token =
        serde_json::json!({"id": id, "content": "<x>", "special": true, "normalized": true});
    model["added_tokens"].as_array_mut().unwrap().push(token);
    let rules = fixture("rules_characters_ids.json");
    for variant in ["prepend NFC", "always NFKD", "replace NFD"] {
        model["pre_tokenizer"] = serde_json::Value::Null;
        for (entry, value) in rules["variants"][variant].as_object().unwrap() {
            model[entry] = value.clone();
        }
        let tokenizer = Tokenizer::new(from_json(&model)).unwrap();
        let text = "cafe\u{301} <x> é <x>b <x>";
        let said = text.find("é").unwrap()..text.find('b').unwrap();
        let count = |ids: &[u32]| ids.iter().filter(|&&one| one == id).count();
        let add = AddSpecialTokens::TextOnly;
        let all = tokenizer.encode_with_special(text, add);
        let some = tokenizer.encode_conversation(text, std::slice::from_ref(&said), add);
        assert_eq!((count(&all), count(&some)), (3, 2), "{variant}");
        assert_eq!(count(&tokenizer.encode(text, add)), 0, "{variant}");
        assert_eq!(tokenizer.find_control_token("a <x>"), Some("<x>"));
    }
}

/// Runs of spaces are merged; the added token is matched as it is written. Both decode to spaces.
#[test]
fn added_tokens_of_u_2581_are_literal() {
    let mut model = fixture("characters_tokenizer.json");
    let vocab = model["model"]["vocab"].as_object_mut().unwrap();
    let id = vocab.len() as u32;
    vocab.insert("▁▁▁".to_owned(), id.into());
    let token = serde_json::json!({"id": id, "content": "▁▁▁", "normalized": false});
    model["added_tokens"].as_array_mut().unwrap().push(token);
    model["normalizer"] = serde_json::json!(
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    );
    let tokenizer = Tokenizer::new(from_json(&model)).unwrap();
    let encode = |text: &str| tokenizer.encode(text, AddSpecialTokens::TextOnly);
    let literal = encode("a▁▁▁b");
    assert_eq!(literal[1], id);
    assert!(!encode("a   b").contains(&id));
    assert_eq!(tokenizer.decode(&literal), "a   b");
}

#[test]
fn scores_and_merges_agree() {
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo");
    let gguf = Gguf::open(format!("{demo}/reference-7m-f16.gguf")).unwrap();
    let by_scores = Vocabulary::from_gguf(&gguf).unwrap();
    let id = |text: &str| by_scores.tokens.iter().position(|token| token == text);
    let mut merges = Vec::new();
    let mut order: Vec<usize> = (259..by_scores.tokens.len()).collect();
    order.sort_by(|&a, &b| by_scores.scores[b].total_cmp(&by_scores.scores[a]));
    for token in order {
        let text = &by_scores.tokens[token];
        for (at, _) in text.char_indices().skip(1) {
            if let (Some(left), Some(right)) = (id(&text[..at]), id(&text[at..])) {
                merges.push((left as u32, right as u32));
            }
        }
    }
    let by_merges = Vocabulary {
        merges,
        scores: Vec::new(),
        ..by_scores.clone()
    };
    let (a, b) = (
        Tokenizer::new(by_scores).unwrap(),
        Tokenizer::new(by_merges).unwrap(),
    );
    for name in ["alice.txt", "time_machine.txt"] {
        let text = std::fs::read_to_string(format!("{demo}/{name}")).unwrap();
        let ids = a.encode(&text, AddSpecialTokens::TextOnly);
        assert!(ids == b.encode(&text, AddSpecialTokens::TextOnly), "{name}");
    }
    let run = "ab".repeat(1 << 19);
    let ids = b.encode(&run, AddSpecialTokens::TextOnly);
    assert!(b.decode(&ids) == run);
}

#[test]
fn missing_byte_tokens_are_rejected() {
    let mut vocabulary = from_json(&{
        let mut model = fixture("characters_tokenizer.json");
        let variants = fixture("characters_ids.json");
        model["normalizer"] = variants["variants"]["prepend"][0].clone();
        model
    });
    vocabulary.tokens[77] = "renamed".to_owned();
    vocabulary.kinds[77] = htc_formats::vocab::TokenKind::Normal;
    assert_eq!(
        Tokenizer::new(vocabulary).unwrap_err(),
        VocabularyError::BytesMissing
    );
}
