//! Metadata of a source as entries of a GGUF.

use std::collections::{BTreeMap, HashSet};

use super::card::{self, README};
use super::folder::{
    self, CONFIG, GENERATION_CONFIG, SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG, named_templates,
};
use super::{Object, SourceMetadata, object};
use crate::gguf::{ALIGNMENT_KEY, Array, Value};
use crate::vocab::{END_KEYS, Vocabulary};

/// Sampling defaults: key of a `generation_config.json`, key of a GGUF, whether it is an integer.
pub(super) const SAMPLING: [(&str, &str, bool); 5] = [
    ("temperature", "general.sampling.temp", false),
    ("top_k", "general.sampling.top_k", true),
    ("top_p", "general.sampling.top_p", false),
    ("min_p", "general.sampling.min_p", false),
    (
        "repetition_penalty",
        "general.sampling.penalty_repeat",
        false,
    ),
];

/// Special tokens that a vocabulary does not hold: key of a `tokenizer_config.json`, key of a GGUF.
pub(super) const SPECIAL_TOKENS: [(&str, &str); 4] = [
    ("pad_token", "tokenizer.ggml.padding_token_id"),
    ("sep_token", "tokenizer.ggml.seperator_token_id"),
    ("cls_token", "tokenizer.ggml.cls_token_id"),
    ("mask_token", "tokenizer.ggml.mask_token_id"),
];

/// Further chat templates: their names, and the prefix of a template.
pub(super) const TEMPLATE_NAMES: &str = "tokenizer.chat_templates";
pub(super) const TEMPLATE: &str = "tokenizer.chat_template.";

/// Returns true for an entry that is only true of the source's file, as it says how its tensors
/// are stored.
pub(super) fn is_of_file(key: &str) -> bool {
    let own = [
        ALIGNMENT_KEY,
        "general.file_type",
        "general.quantization_version",
    ];
    own.contains(&key) || key.starts_with("quantize.") || key.starts_with("split.")
}

/// Entries of a GGUF.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufEntries {
    /// All entries, each key once.
    pub entries: Vec<(String, Value)>,
    /// Entries of the source, or files and their keys, that are left out.
    pub left_out: Vec<String>,
}

impl SourceMetadata {
    /// Returns `own` entries of a GGUF, which state architecture and vocabulary, with those of the
    /// source that they do not contain.
    pub fn to_gguf(
        &self,
        own: Vec<(String, Value)>,
        vocabulary: Option<&Vocabulary>,
    ) -> GgufEntries {
        match self {
            SourceMetadata::Gguf(source) => from_entries(own, source),
            SourceMetadata::Folder(files) => from_files(own, files, vocabulary),
        }
    }
}

fn from_entries(own: Vec<(String, Value)>, source: &[(String, Value)]) -> GgufEntries {
    let mut made = GgufEntries {
        entries: own,
        left_out: Vec::new(),
    };
    // A vocabulary knows which tokens end a text, and not which of them ends a turn.
    let ends = |key: &str| END_KEYS.contains(&key);
    if source.iter().any(|(key, _)| ends(key)) {
        made.entries.retain(|(key, _)| !ends(key));
    }
    let known: HashSet<String> = made.entries.iter().map(|(key, _)| key.clone()).collect();
    let architecture = architecture_prefix(&made.entries);
    for (key, value) in source.iter().filter(|(key, _)| !known.contains(key)) {
        let is_architecture = architecture
            .as_ref()
            .is_some_and(|prefix| key.starts_with(prefix));
        if is_architecture || is_of_file(key) {
            made.left_out.push(key.clone());
        } else {
            made.entries.push((key.clone(), value.clone()));
        }
    }
    made
}

/// Returns the prefix of the keys of hyper-parameters.
pub(super) fn architecture_prefix(entries: &[(String, Value)]) -> Option<String> {
    let mut entries = entries.iter();
    let name = entries.find(|(key, _)| key == "general.architecture");
    match name {
        Some((_, Value::String(name))) => Some(format!("{name}.")),
        _ => None,
    }
}

fn from_files(
    own: Vec<(String, Value)>,
    files: &BTreeMap<String, String>,
    vocabulary: Option<&Vocabulary>,
) -> GgufEntries {
    let facts = card::facts_of_files(files);
    let mut found = facts.entries();
    let mut left_out = Vec::new();
    let mut leave = |file: &str, key: &str| left_out.push(format!("{file}: {key}"));

    for (key, value) in &object(files, GENERATION_CONFIG) {
        match sampling(key, value) {
            Some(entry) => found.push(entry),
            None if folder::is_stated(key) || value.is_null() => {}
            None => leave(GENERATION_CONFIG, key),
        }
    }
    let config = object(files, CONFIG);
    for (key, value) in &config {
        if !folder::is_stated(key) && key != "pad_token_id" && !value.is_null() {
            leave(CONFIG, key);
        }
    }
    let [tokenizer, map] = [TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP].map(|name| object(files, name));
    for (key, entry) in SPECIAL_TOKENS {
        let name = tokenizer.get(key).or_else(|| map.get(key));
        let id = vocabulary.and_then(|vocabulary| folder::token_id(vocabulary, name?));
        let stated = config.get("pad_token_id").filter(|_| key == "pad_token");
        let stated = stated.and_then(serde_json::Value::as_u64);
        let id = id.or_else(|| stated.and_then(|id| u32::try_from(id).ok()));
        match id {
            Some(id) => found.push((entry.to_owned(), Value::U32(id))),
            None if name.is_some_and(|name| !name.is_null()) => leave(TOKENIZER_CONFIG, key),
            None => {}
        }
    }
    for (file, object) in [(TOKENIZER_CONFIG, &tokenizer), (SPECIAL_TOKENS_MAP, &map)] {
        for key in keys_without_entry(object) {
            leave(file, key);
        }
    }
    let templates = named_templates(files, &tokenizer);
    if !templates.is_empty() {
        let names = templates.keys().cloned().collect();
        found.push((
            TEMPLATE_NAMES.to_owned(),
            Value::Array(Array::String(names)),
        ));
    }
    for (name, template) in templates {
        found.push((format!("{TEMPLATE}{name}"), Value::String(template)));
    }
    for key in &facts.others {
        leave(README, key);
    }
    let texts = files.keys().filter(|name| folder::is_text(name));
    left_out.extend(texts.map(|name| match name.as_str() {
        README => format!("{name}: text"),
        name => name.to_owned(),
    }));
    let mut made = GgufEntries {
        entries: own,
        left_out,
    };
    let known: HashSet<String> = made.entries.iter().map(|(key, _)| key.clone()).collect();
    let found = found.into_iter().filter(|(key, _)| !known.contains(key));
    made.entries.extend(found);
    made
}

/// Returns the keys of a `tokenizer_config.json` or `special_tokens_map.json` that a GGUF states
/// nowhere.
fn keys_without_entry(object: &Object) -> impl Iterator<Item = &String> {
    let entries = object.iter().filter(|(key, value)| {
        let special = SPECIAL_TOKENS.iter().any(|(name, _)| name == key);
        !special && key.as_str() != "chat_template" && !folder::is_stated(key) && !value.is_null()
    });
    entries.map(|(key, _)| key)
}

/// Returns a sampling default as an entry of a GGUF.
fn sampling(key: &str, value: &serde_json::Value) -> Option<(String, Value)> {
    let (_, entry, is_integer) = SAMPLING.iter().find(|(name, ..)| *name == key)?;
    let value = if *is_integer {
        Value::I32(value.as_i64()?.try_into().ok()?)
    } else {
        Value::F32(value.as_f64()? as f32)
    };
    Some(((*entry).to_owned(), value))
}
