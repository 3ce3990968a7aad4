//! Split models, `NAME-00001-of-00003.gguf` and so on, as written by `llama-gguf-split` and
//! llama.cpp's converter.
//!
//! The first part holds the metadata of the model. Every part states its index from 0 (`split.no`),
//! the number of parts (`split.count`) and the total number of tensors (`split.tensors.count`).

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{ALIGNMENT_KEY, Gguf, GgufError, OpenError, SplitError};
use crate::limits;
use crate::map::{MapError, MappedFile};

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// Keys that may differ between parts.
const OWN: [&str; 2] = [NUMBER, ALIGNMENT_KEY];

/// A model in one or several mapped GGUF files.
#[derive(Clone, Debug)]
pub struct Split {
    first: Gguf,
    others: Vec<Gguf>,
}

impl Split {
    /// Maps and validates the file at `path`. If it is any part of a split model, the other parts
    /// are opened from the same folder.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Split, OpenError> {
        let path = path.as_ref();
        let named = Gguf::open(path)?;
        let of = |error| OpenError::Split {
            path: path.to_owned(),
            error,
        };
        let count = number(&named, COUNT)?.unwrap_or(1);
        if count <= 1 {
            return Ok(Split {
                first: named,
                others: Vec::new(),
            });
        }
        if count > limits::MAX_FILES {
            return Err(of(SplitError::Count { found: count }));
        }
        let own = required(&named, NUMBER)?;
        if own >= count {
            let expected = format!("0 to {}", count - 1);
            return Err(of(differs(NUMBER, expected, own)));
        }
        let names = Names::of(path, own, count).map_err(of)?;
        let mut others = Vec::with_capacity(count);
        for part in (0..count).filter(|part| *part != own) {
            others.push(names.open(part)?);
        }
        others.insert(own, named);
        let split = Split {
            first: others.remove(0),
            others,
        };
        split.check(count)?;
        Ok(split)
    }

    /// Part with the metadata.
    pub fn first(&self) -> &Gguf {
        &self.first
    }

    /// The other parts.
    pub fn others(&self) -> &[Gguf] {
        &self.others
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
        std::iter::once(&self.first).chain(&self.others)
    }

    fn check(&self, count: usize) -> Result<(), OpenError> {
        let mut found: HashMap<&str, &Gguf> = HashMap::new();
        for (place, part) in self.parts().enumerate() {
            for (key, expected) in [(NUMBER, place), (COUNT, count)] {
                let found = required(part, key)?;
                if found != expected {
                    return Err(in_part(part, differs(key, expected, found)));
                }
            }
            required(part, TENSORS)?;
            let shared = part
                .metadata()
                .iter()
                .filter(|(key, _)| !OWN.contains(&key.as_str()));
            for (key, value) in shared {
                if let Some(expected) = self.first.get(key).filter(|v| *v != value) {
                    let error = differs(key, expected.describe(), value.describe());
                    return Err(in_part(part, error));
                }
            }
            for tensor in part.tensors() {
                if let Some(other) = found.insert(&tensor.name, part) {
                    let other = other.map().path().file_name().unwrap_or_default();
                    return Err(in_part(
                        part,
                        SplitError::DuplicateTensor {
                            tensor: tensor.name.clone(),
                            other: other.to_string_lossy().into_owned(),
                        },
                    ));
                }
            }
        }
        let expected = required(&self.first, TENSORS)?;
        if found.len() == expected {
            return Ok(());
        }
        let found = found.len();
        Err(in_part(
            &self.first,
            SplitError::Tensors { expected, found },
        ))
    }
}

struct Names {
    folder: PathBuf,
    prefix: String,
    count: usize,
}

impl Names {
    fn of(path: &Path, part: usize, count: usize) -> Result<Names, SplitError> {
        let end = end(part, count);
        // A name that is not UTF-8 never has the expected end.
        let name = path.file_name().and_then(|name| name.to_str());
        match name.and_then(|name| name.strip_suffix(&end)) {
            Some(prefix) => Ok(Names {
                folder: path.parent().unwrap_or(Path::new("")).to_owned(),
                prefix: prefix.to_owned(),
                count,
            }),
            None => Err(SplitError::Name { expected: end }),
        }
    }

    fn open(&self, part: usize) -> Result<Gguf, OpenError> {
        let name = format!("{}{}", self.prefix, end(part, self.count));
        match MappedFile::open_inside(&self.folder, &name) {
            Err(MapError::Io { path, error }) if error.kind() == io::ErrorKind::NotFound => {
                let error = SplitError::Missing { count: self.count };
                Err(OpenError::Split { path, error })
            }
            Err(error) => Err(error.into()),
            Ok(map) => Gguf::of(map),
        }
    }
}

fn end(part: usize, count: usize) -> String {
    format!("-{:05}-of-{count:05}.gguf", part + 1)
}

fn number(part: &Gguf, key: &str) -> Result<Option<usize>, OpenError> {
    part.optional(key)
        .map_err(|error: GgufError| OpenError::Invalid {
            path: part.map().path().to_owned(),
            error,
        })
}

fn required(part: &Gguf, key: &'static str) -> Result<usize, OpenError> {
    number(part, key)?.ok_or_else(|| in_part(part, SplitError::NotAPart { key }))
}

fn differs(key: &str, expected: impl ToString, found: impl ToString) -> SplitError {
    SplitError::Differs {
        key: key.to_owned(),
        expected: expected.to_string(),
        found: found.to_string(),
    }
}

fn in_part(part: &Gguf, error: SplitError) -> OpenError {
    OpenError::Split {
        path: part.map().path().to_owned(),
        error,
    }
}
