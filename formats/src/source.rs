//! One view of a model file, whatever container it came in.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::architecture::{self, BindError};
use crate::gguf::{Contents, OpenError, Split};
use crate::htz::{Digest, HtzError};
use crate::map::MappedFile;
use crate::model::{HyperParameters, Role};
use crate::vocab::{Vocabulary, VocabularyError};

pub use crate::architecture::{ModelTensor, Place};

/// What kind of file a model came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// GGUF.
    Gguf {
        /// Version of the format.
        version: u32,
    },
    /// The artifact of this project.
    Htz {
        /// Major version of the format.
        major: u16,
        /// Minor version of the format.
        minor: u16,
    },
}

/// A model in mapped files: what it is, and where its tensors are.
#[derive(Clone, Debug)]
pub struct ModelFile {
    /// What was opened: a file or a folder.
    pub path: PathBuf,
    /// Every file that the model was read from, in the order of their names; tensors say in
    /// which they are.
    pub files: Vec<Arc<MappedFile>>,
    /// The kind of file.
    pub container: Container,
    /// The numbers of the forward pass; checked.
    pub hyper: HyperParameters,
    /// The vocabulary, with a token per row of the embedding, or why there is none: a model
    /// executes without.
    pub vocabulary: Result<Vocabulary, VocabularyError>,
    /// Tensors in the order of execution, their shapes checked against `hyper`.
    pub tensors: Vec<ModelTensor>,
}

/// Why a file was not opened as a model. Every message names the path.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The container is unreadable.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The container holds something that is not executed.
    #[error("{}: {error}", path.display())]
    Bind {
        /// The file.
        path: PathBuf,
        /// What was found in it.
        error: BindError,
    },
    /// The file is an artifact and is unreadable.
    #[error(transparent)]
    Htz(#[from] HtzError),
    /// The file is of a kind that is not supported.
    #[error(
        "{}: not a model file: it begins with \"{}\"; supported are GGUF and .htz",
        path.display(),
        found.escape_ascii()
    )]
    Container {
        /// The file.
        path: PathBuf,
        /// Its first bytes, at most eight.
        found: Vec<u8>,
    },
}

impl ModelFile {
    /// Opens a GGUF model; where it is in several files, by any of them.
    ///
    /// # Errors
    ///
    /// [`SourceError`] when a file is no valid GGUF, the files do not go together, or they hold
    /// no model of an architecture in [`architecture::SUPPORTED`] that is complete and
    /// consistent.
    pub fn open_gguf(path: impl AsRef<Path>) -> Result<Self, SourceError> {
        let split = Split::open(path)?;
        let gguf = split.first();
        let others: Vec<&Contents> = split.others().iter().map(|part| &**part).collect();
        let (hyper, tensors) =
            architecture::bind_parts(gguf, &others).map_err(|error| SourceError::Bind {
                path: split.file_of(error.tensor()).path().to_path_buf(),
                error,
            })?;
        let vocabulary = Vocabulary::from_gguf(gguf).and_then(|vocabulary| {
            vocabulary.check_rows(hyper.vocabulary)?;
            Ok(vocabulary)
        });
        Ok(ModelFile {
            path: gguf.map().path().to_path_buf(),
            files: split.files(),
            container: Container::Gguf {
                version: gguf.version(),
            },
            hyper,
            vocabulary,
            tensors,
        })
    }

    /// The tensor of a role, where the model has it.
    pub fn tensor(&self, role: Role) -> Option<&ModelTensor> {
        self.tensors.iter().find(|tensor| tensor.role == role)
    }

    /// The bytes of a tensor of this model.
    ///
    /// # Panics
    ///
    /// May panic when `tensor` is of another model.
    pub fn bytes<'a>(&'a self, tensor: &'a ModelTensor) -> &'a [u8] {
        match &tensor.place {
            Place::File { index, range } => &self.files[*index][range.clone()],
            Place::Computed(bytes) => bytes,
        }
    }

    /// Bytes of all files together.
    pub fn size(&self) -> u64 {
        self.files.iter().map(|file| file.len() as u64).sum()
    }

    /// The digest that names the model: of a single file it is that file's; of several it is
    /// that of the lines `DIGEST  NAME\n` of all of them, as `sha256sum` writes them.
    pub fn digest(&self) -> Digest {
        if let [file] = &self.files[..] {
            return Digest::of(file);
        }
        let mut lines = String::new();
        for file in &self.files {
            let name = file.path().file_name().unwrap_or_default();
            lines += &format!("{}  {}\n", Digest::of(file), name.to_string_lossy());
        }
        Digest::of(lines.as_bytes())
    }
}
