//! Helpers of the tokenizer tests.

use std::path::PathBuf;

use htc_formats::gguf::Gguf;
use htc_formats::vocab::{HuggingFaceFiles, Vocabulary};
use htc_loader::tokenizer::Tokenizer;
use serde_json::Value;

/// Path of `NAME` in `HTC_SHARED` or `../shared`; if absent, prints a line and returns `None`.
pub fn shared(name: &str) -> Option<PathBuf> {
    let shared = std::env::var_os("HTC_SHARED").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared"),
        PathBuf::from,
    );
    let path = shared.join(name);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: {} is not there", path.display());
    None
}

pub fn published(name: &str) -> Option<PathBuf> {
    shared(&format!("models/gguf-vocab/ggml-vocab-{name}.gguf"))
}

pub fn vocabulary_of(path: &PathBuf) -> Vocabulary {
    Vocabulary::from_gguf(&Gguf::open(path).unwrap()).unwrap()
}

pub fn tokenizer_of(path: &PathBuf) -> Tokenizer {
    Tokenizer::new(vocabulary_of(path)).unwrap()
}

pub fn texts() -> Vec<(String, String)> {
    let Some(folder) = shared("text") else {
        return Vec::new();
    };
    let mut texts: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect();
    texts.sort();
    assert!(texts.len() > 5);
    texts
}

pub fn fixture(name: &str) -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

pub fn from_json(tokenizer: &Value) -> Vocabulary {
    HuggingFaceFiles {
        tokenizer_json: Some(serde_json::to_vec(tokenizer).unwrap()),
        ..HuggingFaceFiles::default()
    }
    .vocabulary()
    .unwrap()
}

pub fn ids(value: &Value) -> Vec<u32> {
    let list = value.as_array().unwrap();
    list.iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

pub fn cases<'a>(texts: &'a Value, listed: &'a Value) -> Vec<(&'a str, Vec<u32>)> {
    let (texts, listed) = (texts.as_array().unwrap(), listed.as_array().unwrap());
    assert_eq!(texts.len(), listed.len());
    let texts = texts.iter().map(|text| text.as_str().unwrap());
    texts.zip(listed.iter().map(ids)).collect()
}
