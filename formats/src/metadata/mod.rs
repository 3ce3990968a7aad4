//! Metadata of the source beyond weights, architecture and vocabulary: licence, author, tags, base
//! model, sampling defaults, further special tokens and chat templates.
//!
//! An artifact holds them as the source states them (sections [`GGUF_METADATA`] and
//! [`FOLDER_METADATA`]). An export translates them, and names those that its container cannot hold.
//!
//! [`GGUF_METADATA`]: crate::htz::GGUF_METADATA
//! [`FOLDER_METADATA`]: crate::htz::FOLDER_METADATA

mod card;
mod folder;
mod gguf;
mod read;

use std::collections::BTreeMap;

use serde::Deserialize as _;

use crate::bounded_json;
use crate::gguf::Value;
use crate::limits::MAX_VALUES_OF_CONFIG;

pub use folder::{EXPORTED_BY, FolderFiles};
pub use gguf::GgufEntries;
pub use read::ReadMetadata;

/// A JSON object.
type Object = serde_json::Map<String, serde_json::Value>;

/// Metadata of a model's source.
#[derive(Clone, Debug, PartialEq)]
pub enum SourceMetadata {
    /// Entries of a GGUF, in the order of the file.
    Gguf(Vec<(String, Value)>),
    /// Texts of the files of a folder, by name.
    Folder(BTreeMap<String, String>),
}

impl SourceMetadata {
    /// Checks what an artifact requires of its metadata; returns what is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            SourceMetadata::Gguf(entries) => {
                let mut keys = entries.iter().map(|(key, _)| key);
                match keys.find(|key| read::is_entry_of_artifact(key)) {
                    None => Ok(()),
                    Some(key) => Err(format!("{key:?}, which the artifact states")),
                }
            }
            SourceMetadata::Folder(files) => folder::CONFIG_FILES.iter().try_for_each(|file| {
                let text = files.get(*file).map_or("{}", String::as_str);
                let object = parse_object(text);
                object.map(drop).map_err(|error| format!("{file}: {error}"))
            }),
        }
    }

    /// Returns `licence`, `author` and `base_model` of the source, as far as it states them.
    pub fn summary(&self) -> Vec<(&'static str, String)> {
        let facts = match self {
            SourceMetadata::Gguf(entries) => card::facts_of_entries(entries),
            SourceMetadata::Folder(files) => card::facts_of_files(files),
        };
        let bases = facts.base_models.iter().map(card::Repository::id);
        let bases: Vec<String> = bases.collect();
        [
            ("licence", facts.text("general.license")),
            ("author", facts.text("general.author")),
            ("base_model", Some(bases.join(", "))),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value.filter(|text| !text.is_empty())?)))
        .collect()
    }
}

fn parse_object(text: &str) -> serde_json::Result<Object> {
    let mut json = serde_json::Deserializer::from_str(text);
    let object = bounded_json::deserialize(&mut json, MAX_VALUES_OF_CONFIG)?;
    json.end()?;
    Object::deserialize(object)
}

/// Returns a configuration among the files, empty if there is none. They have been parsed when they
/// were read.
fn object(files: &BTreeMap<String, String>, name: &str) -> Object {
    let text = files.get(name).map_or("{}", String::as_str);
    parse_object(text).unwrap_or_default()
}
