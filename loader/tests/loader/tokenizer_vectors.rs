//! Ids of published vocabularies, if present in `../shared`, against llama.cpp.

use crate::tokenizer_common::{fixture, published, texts, tokenizer_of};
use htc_formats::htz::Digest;
use htc_loader::tokenizer::AddSpecialTokens;

fn check(name: &str) {
    let Some(path) = published(name) else { return };
    let tokenizer = tokenizer_of(&path);
    let texts = std::fs::read_to_string(path.with_extension("gguf.inp")).unwrap();
    let ids = std::fs::read_to_string(path.with_extension("gguf.out")).unwrap();
    let texts: Vec<_> = texts.split_terminator("\n__ggml_vocab_test__\n").collect();
    let ids: Vec<Vec<u32>> = ids
        .lines()
        .map(|line| {
            line.split_whitespace()
                .map(|id| id.parse().unwrap())
                .collect()
        })
        .collect();
    assert_eq!(texts.len(), ids.len());
    assert!(texts.len() > 40);
    for (text, expected) in texts.iter().zip(&ids) {
        let found = tokenizer.encode(text, AddSpecialTokens::TextOnly);
        assert_eq!(found, *expected, "{text:?}");
        assert_eq!(tokenizer.decode(&found), *text);
    }
}

#[test]
fn llama() {
    check("llama-spm");
}

#[test]
fn phi_3() {
    check("phi-3");
}

#[test]
fn llama_3() {
    check("llama-bpe");
}

#[test]
fn gpt_2() {
    check("gpt-2");
}

#[test]
fn qwen_2() {
    check("qwen2");
}

/// Digests by `scripts/make_tokenizer_fixtures.py --peer llama-tokenize` (llama.cpp, commit
/// 0c1e57098).
#[test]
fn whole_texts() {
    let digests = fixture("token_digests.json");
    let texts = texts();
    for (vocabulary, expected) in digests.as_object().unwrap() {
        let Some(path) = published(vocabulary) else {
            continue;
        };
        let tokenizer = tokenizer_of(&path);
        for (name, text) in &texts {
            let ids = tokenizer.encode(text, AddSpecialTokens::TextOnly);
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            let found = serde_json::json!([ids.len(), Digest::of_bytes(&bytes).to_string()]);
            assert_eq!(found, expected[name], "{vocabulary} on {name}");
            assert!(tokenizer.decode(&ids) == *text, "{vocabulary} on {name}");
        }
    }
}
