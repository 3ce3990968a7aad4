//! Reads the metadata of a source for its artifact.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::io::Read as _;
use std::path::Path;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value as Json;

use super::folder::{CONFIG_FILES, TEMPLATES, TEXT_FILES, template_name};
use super::{Object, SourceMetadata};
use crate::bounded_json::{ValueCount, ValueSeed};
use crate::escape::escape_truncated;
use crate::folder::Folder;
use crate::gguf::{ALIGNMENT_KEY, Contents, Value, Writer};
use crate::limits::{MAX_METADATA_FILES, MAX_SOURCE_METADATA_BYTES, MAX_VALUES_OF_CONFIG};
use crate::open;
use crate::source::{Container, ModelFile};

/// Entries that an artifact states elsewhere: in its vocabulary, or in its tensors.
const STATED: [&str; 8] = [
    ALIGNMENT_KEY,
    "tokenizer.chat_template",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.model",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.scores",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.tokens",
];

/// Returns true for an entry of a GGUF that no metadata of a source has.
pub(super) fn is_entry_of_artifact(key: &str) -> bool {
    STATED.contains(&key)
}

/// Metadata as read from a source.
#[derive(Clone, Debug, Default)]
pub struct ReadMetadata {
    /// The metadata; `None` if the source has none.
    pub metadata: Option<SourceMetadata>,
    /// Entries or files that are not kept, with the reason.
    pub omitted: Vec<String>,
}

impl SourceMetadata {
    /// Reads the metadata of a source. Files that cannot be read, and what exceeds
    /// [`MAX_SOURCE_METADATA_BYTES`], are omitted and named.
    pub fn read(source: &ModelFile) -> ReadMetadata {
        let mut reader = Reader {
            left: MAX_SOURCE_METADATA_BYTES,
            omitted: Vec::new(),
        };
        let metadata = match source.container {
            Container::Gguf { .. } => reader.gguf(source),
            Container::Safetensors { .. } => reader.folder(&source.path),
            Container::Htz { .. } | Container::EmbeddedSource { .. } => None,
        };
        ReadMetadata {
            metadata,
            omitted: reader.omitted,
        }
    }

    /// Returns the possible names of the files that the metadata of a folder is read from.
    pub fn file_names() -> impl Iterator<Item = &'static str> {
        SourceMetadata::text_names().chain(CONFIG_FILES)
    }

    /// Returns the possible names of those of these files that any folder may have.
    pub fn text_names() -> impl Iterator<Item = &'static str> {
        TEXT_FILES.into_iter()
    }
}

struct Reader {
    /// Bytes that the section may still take.
    left: u64,
    omitted: Vec<String>,
}

impl Reader {
    /// Returns true, and reserves the bytes, if they fit in the section.
    fn reserve(&mut self, name: &str, bytes: u64) -> bool {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                true
            }
            None => {
                let name = escape_truncated(name);
                self.omitted.push(format!(
                    "{name} ({bytes} bytes; an artifact keeps {MAX_SOURCE_METADATA_BYTES} bytes of metadata)"
                ));
                false
            }
        }
    }

    fn gguf(&mut self, source: &ModelFile) -> Option<SourceMetadata> {
        // The first part of a split model has the metadata.
        let first = source.files.first()?;
        let contents = match Contents::parse(first) {
            Ok(contents) => contents,
            Err(error) => {
                let error = escape_truncated(&error.to_string());
                self.omitted.push(format!("metadata of the GGUF ({error})"));
                return None;
            }
        };
        let mut entries: Vec<(String, Value)> = Vec::new();
        // Header, and padding at the end.
        self.left -= 64;
        for (key, value) in contents.metadata() {
            if is_entry_of_artifact(key) || key.starts_with("split.") {
                continue;
            }
            let mut alone = Writer::new();
            alone.metadata(key.clone(), value.clone());
            let bytes = alone.file_length().unwrap_or(u64::MAX);
            if self.reserve(key, bytes) {
                entries.push((key.clone(), value.clone()));
            }
        }
        (!entries.is_empty()).then_some(SourceMetadata::Gguf(entries))
    }

    fn folder(&mut self, folder: &Path) -> Option<SourceMetadata> {
        let mut files = BTreeMap::new();
        // Braces of the object.
        self.left -= 16;
        // Configurations are the first that fit.
        let names = CONFIG_FILES.into_iter().chain(TEXT_FILES);
        let names = names.map(str::to_owned).chain(self.templates(folder));
        for name in names {
            let Some(text) = self.text(folder, &name) else {
                continue;
            };
            let text = if CONFIG_FILES.contains(&name.as_str()) {
                match config(&text) {
                    Ok(text) => text,
                    Err(error) => {
                        let error = escape_truncated(&error.to_string());
                        self.omitted.push(format!("{name} ({error})"));
                        continue;
                    }
                }
            } else {
                text
            };
            let bytes = Json::from(text.as_str()).to_string().len() + name.len();
            if self.reserve(&name, bytes as u64 + 8) {
                files.insert(name, text);
            }
        }
        (!files.is_empty()).then_some(SourceMetadata::Folder(files))
    }

    /// Returns the names of further chat templates, relative to the model's folder.
    fn templates(&mut self, folder: &Path) -> Vec<String> {
        // A link could lead out of the model's folder.
        let inside = Folder::open(folder).and_then(|folder| folder.metadata(OsStr::new(TEMPLATES)));
        if !inside.is_ok_and(|found| found.is_folder) {
            return Vec::new();
        }
        let names = Folder::open(&folder.join(TEMPLATES)).and_then(|folder| folder.names());
        let names = names.unwrap_or_else(|error| {
            self.omitted.push(format!("{TEMPLATES} ({error})"));
            Vec::new()
        });
        let names = names.into_iter().filter_map(|name| name.into_string().ok());
        let mut names: Vec<String> = names
            .map(|name| format!("{TEMPLATES}/{name}"))
            .filter(|name| template_name(name).is_some())
            .collect();
        names.sort();
        let most = MAX_METADATA_FILES - TEXT_FILES.len() - CONFIG_FILES.len();
        for name in names.drain(most.min(names.len())..) {
            let name = escape_truncated(&name);
            self.omitted
                .push(format!("{name} (more than {most} templates)"));
        }
        names
    }

    fn text(&mut self, folder: &Path, name: &str) -> Option<String> {
        let file = match open::open_inside(folder, name) {
            Ok(file) => file,
            Err(error) if error.is_not_found() => return None,
            Err(error) => {
                self.omitted.push(error.to_string());
                return None;
            }
        };
        let mut bytes = Vec::new();
        let read = file
            .take(MAX_SOURCE_METADATA_BYTES + 1)
            .read_to_end(&mut bytes);
        let problem = match (read, String::from_utf8(bytes)) {
            (Err(error), _) => error.to_string(),
            (Ok(read), _) if read as u64 > MAX_SOURCE_METADATA_BYTES => {
                format!("more than {MAX_SOURCE_METADATA_BYTES} bytes")
            }
            (Ok(_), Err(_)) => "not UTF-8".to_owned(),
            (Ok(_), Ok(text)) => return Some(text),
        };
        let name = escape_truncated(name);
        self.omitted.push(format!("{name} ({problem})"));
        None
    }
}

/// Returns a configuration without what the vocabulary of the artifact states, in standard JSON.
fn config(text: &str) -> serde_json::Result<String> {
    let json = crate::python_json::standard(text.as_bytes());
    let mut json = serde_json::Deserializer::from_slice(&json);
    let object = json.deserialize_map(ConfigVisitor)?;
    json.end()?;
    serde_json::to_string(&object)
}

struct ConfigVisitor;

impl<'de> Visitor<'de> for ConfigVisitor {
    type Value = Object;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Object, A::Error> {
        let mut object = Object::new();
        let mut count = ValueCount::new(MAX_VALUES_OF_CONFIG - 1);
        while let Some(key) = entries.next_key::<String>()? {
            // Long, and in the vocabulary.
            if key == "added_tokens_decoder" {
                entries.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = entries.next_value_seed(ValueSeed(&mut count))?;
            if !(key == "chat_template" && value.is_string()) {
                object.insert(key, value);
            }
        }
        Ok(object)
    }
}
