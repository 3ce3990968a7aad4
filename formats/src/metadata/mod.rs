//! Metadata of the source beyond weights, architecture and vocabulary: licence, author, tags, base
//! model, sampling defaults, further special tokens and chat templates.
//!
//! An artifact holds them as the source states them (sections [`GGUF_METADATA`] and
//! [`FOLDER_METADATA`]). An export translates them, and names those that its container cannot hold.

mod card;
mod folder;
mod gguf;
mod read;

use std::collections::BTreeMap;

use serde::Deserialize as _;

use crate::bounded_json;
use crate::escape::escape_truncated;
use crate::gguf::{Contents, Value, Writer};
use crate::htz::{FOLDER_METADATA, GGUF_METADATA, HtzError, Record, Section};
use crate::limits::{MAX_METADATA_FILES, MAX_SOURCE_METADATA_BYTES, MAX_VALUES_OF_CONFIG};

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
    /// Returns the section of an artifact that holds the metadata.
    ///
    /// # Errors
    /// [`HtzError::Property`] for more than [`MAX_SOURCE_METADATA_BYTES`].
    pub fn section(&self) -> Result<Section, HtzError> {
        let name = match self {
            SourceMetadata::Gguf(_) => GGUF_METADATA,
            SourceMetadata::Folder(_) => FOLDER_METADATA,
        };
        let data = match self {
            SourceMetadata::Gguf(entries) => {
                let mut writer = Writer::new();
                for (key, value) in entries {
                    writer.metadata(key.clone(), value.clone());
                }
                writer.to_bytes().map_err(|error| invalid(name, &error))?
            }
            SourceMetadata::Folder(files) => {
                serde_json::to_vec(files).map_err(|error| invalid(name, &error))?
            }
        };
        SourceMetadata::check_length(name, data.len() as u64)?;
        Section::new(name, false, &data)
    }

    /// Checks the decoded length of the section `name`.
    pub(crate) fn check_length(name: &str, found: u64) -> Result<(), HtzError> {
        if found <= MAX_SOURCE_METADATA_BYTES {
            return Ok(());
        }
        let expected = format!("at most {MAX_SOURCE_METADATA_BYTES}");
        Err(Record::Section(name.to_owned()).error("decoded length", expected, found))
    }

    /// Parses the decoded bytes of the section `name`.
    pub(crate) fn parse(name: &str, data: &[u8]) -> Result<SourceMetadata, HtzError> {
        if name == GGUF_METADATA {
            let contents = Contents::parse(data).map_err(|error| invalid(name, &error))?;
            if let Some(tensor) = contents.tensors().first() {
                return Err(invalid(name, &format!("tensor {:?}", tensor.name)));
            }
            let entries = contents.metadata();
            if let Some((key, _)) = entries.iter().find(|(key, _)| read::is_stated(key)) {
                return Err(invalid(
                    name,
                    &format!("{key:?}, which the artifact states"),
                ));
            }
            return Ok(SourceMetadata::Gguf(entries.to_vec()));
        }
        let mut json = serde_json::Deserializer::from_slice(data);
        let files = bounded_json::deserialize(&mut json, MAX_METADATA_FILES + 1);
        let files = files.map_err(|error| invalid(name, &error))?;
        json.end().map_err(|error| invalid(name, &error))?;
        let files: BTreeMap<String, String> =
            BTreeMap::deserialize(files).map_err(|error| invalid(name, &error))?;
        for file in folder::CONFIG_FILES {
            let text = files.get(file).map_or("{}", String::as_str);
            parse_object(text).map_err(|error| invalid(name, &format!("{file}: {error}")))?;
        }
        Ok(SourceMetadata::Folder(files))
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

fn invalid(name: &str, error: &dyn std::fmt::Display) -> HtzError {
    let found = escape_truncated(&error.to_string());
    Record::Section(name.to_owned()).error("content", "metadata of the source", found)
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
