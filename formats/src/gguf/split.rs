//! Split models, `NAME-00001-of-00003.gguf` and so on, as written by `llama-gguf-split`.
//!
//! The first part holds the metadata. Every part states its index from 0 (`split.no`), the number
//! of parts (`split.count`) and the total number of tensors (`split.tensors.count`).

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{ALIGNMENT_KEY, Gguf, GgufError};
use crate::limits;
use crate::map::MappedFile;
use crate::source::SourceError;

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

const PART_KEYS: [&str; 2] = [NUMBER, ALIGNMENT_KEY];

/// A model in one or several mapped GGUF files.
#[derive(Clone, Debug)]
pub struct SplitModel {
    first: Gguf,
    other_parts: Vec<Gguf>,
}

impl SplitModel {
    /// Maps and validates the file at `path`. If it is any part of a split model, the other parts
    /// are opened from the same folder.
    ///
    /// # Errors
    ///
    /// [`SourceError`].
    pub fn open(path: impl AsRef<Path>) -> Result<SplitModel, SourceError> {
        let path = path.as_ref();
        let named = Gguf::open(path)?;
        let of = |error| SourceError::Gguf {
            path: path.to_owned(),
            error,
        };
        let count = optional_number(&named, COUNT)?.unwrap_or(1);
        if count <= 1 {
            return Ok(SplitModel {
                first: named,
                other_parts: Vec::new(),
            });
        }
        if count > limits::MAX_FILES {
            return Err(of(GgufError::PartCount { found: count }));
        }
        let own = required_number(&named, NUMBER)?;
        if own >= count {
            let expected = format!("0 to {}", count - 1);
            return Err(of(differs_error(NUMBER, expected, own)));
        }
        let names = PartNames::from_part(path, own, count).map_err(of)?;
        let mut others = Vec::with_capacity(count);
        for part in (0..count).filter(|part| *part != own) {
            others.push(names.open(part)?);
        }
        others.insert(own, named);
        let split = SplitModel {
            first: others.remove(0),
            other_parts: others,
        };
        split.check(count)?;
        Ok(split)
    }

    /// Part with the metadata.
    pub fn first_part(&self) -> &Gguf {
        &self.first
    }

    /// The other parts.
    pub fn other_parts(&self) -> &[Gguf] {
        &self.other_parts
    }

    /// Mapped files of all parts, in order.
    pub fn files(&self) -> Vec<Arc<MappedFile>> {
        self.parts().map(|part| Arc::clone(part.map())).collect()
    }

    /// Returns the mapped file of the part with a tensor, or of the first part.
    pub fn file_of(&self, tensor: Option<&str>) -> &MappedFile {
        let part = tensor.and_then(|name| self.parts().find(|part| part.tensor(name).is_some()));
        part.unwrap_or(&self.first).map()
    }

    fn parts(&self) -> impl Iterator<Item = &Gguf> {
        std::iter::once(&self.first).chain(&self.other_parts)
    }

    fn check(&self, count: usize) -> Result<(), SourceError> {
        let mut found: HashMap<&str, &Gguf> = HashMap::new();
        for (place, part) in self.parts().enumerate() {
            for (key, expected) in [(NUMBER, place), (COUNT, count)] {
                let found = required_number(part, key)?;
                if found != expected {
                    return Err(error_in_part(part, differs_error(key, expected, found)));
                }
            }
            required_number(part, TENSORS)?;
            let shared = part
                .metadata()
                .iter()
                .filter(|(key, _)| !PART_KEYS.contains(&key.as_str()));
            for (key, value) in shared {
                if let Some(expected) = self.first.get(key).filter(|v| *v != value) {
                    let error = differs_error(key, expected.describe(), value.describe());
                    return Err(error_in_part(part, error));
                }
            }
            for tensor in part.tensors() {
                if let Some(other) = found.insert(&tensor.name, part) {
                    let other = other.map().path().file_name().unwrap_or_default();
                    return Err(error_in_part(
                        part,
                        GgufError::TensorInTwoParts {
                            tensor: tensor.name.clone(),
                            other: other.to_string_lossy().into_owned(),
                        },
                    ));
                }
            }
        }
        let expected = required_number(&self.first, TENSORS)?;
        if found.len() == expected {
            return Ok(());
        }
        let found = found.len();
        Err(error_in_part(
            &self.first,
            GgufError::TensorCount { expected, found },
        ))
    }
}

struct PartNames {
    folder: PathBuf,
    prefix: String,
    count: usize,
}

impl PartNames {
    fn from_part(path: &Path, part: usize, count: usize) -> Result<PartNames, GgufError> {
        let end = part_suffix(part, count);
        let name = path.file_name().and_then(|name| name.to_str());
        match name.and_then(|name| name.strip_suffix(&end)) {
            Some(prefix) => Ok(PartNames {
                folder: path.parent().unwrap_or(Path::new("")).to_owned(),
                prefix: prefix.to_owned(),
                count,
            }),
            None => Err(GgufError::PartName { expected: end }),
        }
    }

    fn open(&self, part: usize) -> Result<Gguf, SourceError> {
        let name = format!("{}{}", self.prefix, part_suffix(part, self.count));
        match MappedFile::open_inside(&self.folder, &name) {
            Err(error) if error.is_not_found() => Err(SourceError::Gguf {
                path: self.folder.join(&name),
                error: GgufError::MissingPart { count: self.count },
            }),
            Err(error) => Err(error.into()),
            Ok(map) => Gguf::from_map(map),
        }
    }
}

fn part_suffix(part: usize, count: usize) -> String {
    format!("-{:05}-of-{count:05}.gguf", part + 1)
}

fn optional_number(part: &Gguf, key: &str) -> Result<Option<usize>, SourceError> {
    part.optional(key)
        .map_err(|error| error_in_part(part, error))
}

fn required_number(part: &Gguf, key: &'static str) -> Result<usize, SourceError> {
    optional_number(part, key)?.ok_or_else(|| error_in_part(part, GgufError::NotAPart { key }))
}

fn differs_error(key: &str, expected: impl ToString, found: impl ToString) -> GgufError {
    GgufError::PartDiffers {
        key: key.to_owned(),
        expected: expected.to_string(),
        found: found.to_string(),
    }
}

fn error_in_part(part: &Gguf, error: GgufError) -> SourceError {
    SourceError::Gguf {
        path: part.map().path().to_owned(),
        error,
    }
}
