//! Metadata of a source as entries of a GGUF.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::card::{self, README};
use super::folder::{
    self, CONFIG, GENERATION_CONFIG, SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG, TokenIds,
    named_templates,
};
use super::read::is_entry_of_artifact;
use super::{Object, SourceMetadata, object};
use crate::gguf::{ALIGNMENT_KEY, Array, FromValue as _, Value};
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

const EOS_KEY: &str = "tokenizer.ggml.eos_token_id";

/// Entries that state a vocabulary, besides [`END_KEYS`] and those that metadata never have. One that
/// an export has not is not true of its vocabulary.
const OF_VOCABULARY: [&str; 6] = [
    EOS_KEY,
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.add_eos_token",
    "tokenizer.ggml.add_space_prefix",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.unknown_token_id",
];

pub(super) const PAD_TOKEN_ID: &str = "pad_token_id";

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
    let is_end = |key: &str| END_KEYS.contains(&key);
    let has_same_ends = end_ids(&made.entries, source) == end_ids(&made.entries, &made.entries);
    if has_same_ends {
        made.entries.retain(|(key, _)| !is_end(key));
    }
    let known: HashSet<String> = made.entries.iter().map(|(key, _)| key.clone()).collect();
    let architecture = architecture_prefix(&made.entries);
    for (key, value) in source.iter().filter(|(key, _)| !known.contains(key)) {
        let is_architecture = architecture
            .as_ref()
            .is_some_and(|prefix| key.starts_with(prefix));
        let is_of_vocabulary = OF_VOCABULARY.contains(&key.as_str())
            || is_entry_of_artifact(key)
            || is_end(key) && !has_same_ends;
        if is_architecture || is_of_vocabulary || is_of_file(key) {
            made.left_out.push(key.clone());
        } else {
            made.entries.push((key.clone(), value.clone()));
        }
    }
    made
}

/// Returns the ids of the tokens that end a text: EOS of `own` entries and the others of `ends`;
/// `None` if one is no id.
fn end_ids(own: &[(String, Value)], ends: &[(String, Value)]) -> Option<BTreeSet<u32>> {
    let eos = own.iter().filter(|(key, _)| key == EOS_KEY);
    let ends = ends.iter();
    let ends = ends.filter(|(key, _)| END_KEYS.contains(&key.as_str()));
    eos.chain(ends)
        .map(|(_, value)| u32::from_value(value))
        .collect()
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

    let generation = object(files, GENERATION_CONFIG);
    for (key, value) in &generation {
        match sampling(key, value) {
            Some(entry) => found.push(entry),
            None if folder::is_config_key_of_artifact(key)
                || key == PAD_TOKEN_ID
                || value.is_null() => {}
            None => leave(GENERATION_CONFIG, key),
        }
    }
    let config = object(files, CONFIG);
    for (key, value) in &config {
        if !folder::is_config_key_of_artifact(key) && key != PAD_TOKEN_ID && !value.is_null() {
            leave(CONFIG, key);
        }
    }
    let [tokenizer, map] = [TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP].map(|name| object(files, name));
    let ids = TokenIds::new(vocabulary);
    for (key, entry) in SPECIAL_TOKENS {
        let name = tokenizer.get(key).or_else(|| map.get(key));
        let name = name.filter(|name| !name.is_null());
        let named = name.and_then(|name| ids.of_name(name));
        if name.is_some() && named.is_none() {
            leave(TOKENIZER_CONFIG, key);
        }
        let mut id = named;
        if key == "pad_token" {
            for (file, object) in [(CONFIG, &config), (GENERATION_CONFIG, &generation)] {
                let stated = object.get(PAD_TOKEN_ID).filter(|stated| !stated.is_null());
                let known = stated.and_then(|stated| ids.of_number(stated));
                id = id.or(known);
                if stated.is_some() && (known.is_none() || known != id) {
                    leave(file, PAD_TOKEN_ID);
                }
            }
        }
        found.extend(id.map(|id| (entry.to_owned(), Value::U32(id))));
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
        !special
            && key.as_str() != "chat_template"
            && !folder::is_config_key_of_artifact(key)
            && !value.is_null()
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
