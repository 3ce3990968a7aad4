//! The test strings that llama.cpp keeps beside its vocabularies.

#![allow(clippy::unwrap_used)] // Helpers outside `#[test]` functions fail as those do.

use std::path::PathBuf;

use htc_formats::gguf::Gguf;
use htc_formats::vocab::Vocabulary;
use htc_loader::tokenizer::{AddSpecial, Tokenizer, TokenizerError};

fn vocabulary(name: &str) -> Option<PathBuf> {
    let shared = std::env::var_os("HTC_SHARED").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared"),
        PathBuf::from,
    );
    let path = shared.join(format!("models/gguf-vocab/ggml-vocab-{name}.gguf"));
    if path.exists() {
        return Some(path);
    }
    println!("skipped: {} is not there", path.display());
    None
}

fn check(name: &str) {
    let Some(path) = vocabulary(name) else { return };
    let gguf = Gguf::open(&path).unwrap();
    let tokenizer = Tokenizer::new(Vocabulary::from_gguf(&gguf).unwrap()).unwrap();
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
        let found = tokenizer.encode(text, AddSpecial::Nothing);
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

/// The vocabularies of byte-level BPE are refused, whichever layer comes first.
#[test]
fn gpt_2_is_refused() {
    let Some(path) = vocabulary("gpt-2") else {
        return;
    };
    let gguf = Gguf::open(&path).unwrap();
    let refused = match Vocabulary::from_gguf(&gguf) {
        Ok(vocabulary) => Tokenizer::new(vocabulary).map(|_| ()),
        Err(error) => Err(TokenizerError::from(error)),
    };
    assert!(refused.unwrap_err().to_string().contains("gpt2"));
}
