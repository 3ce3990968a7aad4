//! One view of a model file, whatever container it came in.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::architecture::{self, BindError, WeightFile};
use crate::gguf::{self, Contents, OpenError, Split};
use crate::htz::{self, Digest, Htz, HtzError};
use crate::map::{MapError, MappedFile};
use crate::model::{HyperParameters, ModelSpec, Role};
use crate::safetensors::{CONFIG, Folder, FolderError, INDEX};
use crate::vocab::{Vocabulary, VocabularyError};

pub use crate::architecture::{ModelTensor, Place};

/// What kind of file a model came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// GGUF, in one file or in several.
    Gguf {
        /// Version of the format.
        version: u32,
    },
    /// A folder of Hugging Face's tools.
    Safetensors {
        /// Files of weights.
        shards: usize,
    },
    /// The artifact of this project.
    Htz {
        /// Major version of the format.
        major: u16,
        /// Minor version of the format.
        minor: u16,
    },
    /// What an artifact of this project was made from, with its weights in the artifact.
    Sealed {
        /// The digest of the source, as the artifact says it.
        sha256: Digest,
    },
}

/// A model in mapped files: what it is, and where its tensors are.
#[derive(Clone, Debug)]
pub struct ModelFile {
    /// What was opened: a folder, a file, or the first of several files.
    pub path: PathBuf,
    /// Every file that the model was read from, the configuration and the index of a folder
    /// among them, in the order of their names; tensors say in which they are. Those that only
    /// the vocabulary was read from are not.
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
    /// The folder is incomplete or unreadable.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The container holds something that is not executed.
    #[error("{}: {error}", path.display())]
    Bind {
        /// The file, or the folder where it is none of the files in it.
        path: PathBuf,
        /// What was found in it.
        error: BindError,
    },
    /// The file is an artifact and is unreadable.
    #[error(transparent)]
    Htz(#[from] HtzError),
    /// The file is of a kind that is not supported.
    #[error(
        "{}: not a model file: it begins with \"{}\"; supported are GGUF, .htz and folders with \
         a {CONFIG} and .safetensors files",
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
    /// Opens a model, whatever its container: a file tells by its first bytes, or by its name
    /// that it is in the folder of a model.
    ///
    /// # Errors
    ///
    /// [`SourceError::Container`] where the file is of no kind that is supported; the errors of
    /// [`open_gguf`](ModelFile::open_gguf), [`open_htz`](ModelFile::open_htz) and
    /// [`open_folder`](ModelFile::open_folder).
    pub fn open(path: impl AsRef<Path>) -> Result<ModelFile, SourceError> {
        let path = path.as_ref();
        let map = match MappedFile::open(path) {
            Ok(map) => map,
            Err(MapError::Folder { path }) => return ModelFile::open_folder(path),
            Err(error) => return Err(OpenError::Map(error).into()),
        };
        if map.starts_with(&htz::MAGIC) {
            ModelFile::open_htz(path)
        } else if map.starts_with(&gguf::MAGIC) {
            ModelFile::open_gguf(path)
        } else if is_in_folder(path) {
            ModelFile::open_folder(path)
        } else {
            Err(SourceError::Container {
                path: path.to_owned(),
                found: map.iter().copied().take(htz::MAGIC.len()).collect(),
            })
        }
    }

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

    /// Opens the model in a folder, which may be named by its configuration, its index or one
    /// of its weights.
    ///
    /// # Errors
    ///
    /// [`SourceError`] when the folder is incomplete or a file of it invalid, or the model is of
    /// no architecture in [`architecture::SUPPORTED`], incomplete or inconsistent.
    pub fn open_folder(path: impl AsRef<Path>) -> Result<Self, SourceError> {
        let folder = Folder::open(path)?;
        let files = folder.files();
        let place = |map: &Arc<MappedFile>| files.iter().position(|file| Arc::ptr_eq(file, map));
        let weights: Vec<WeightFile<'_>> = folder
            .shards()
            .iter()
            .filter_map(|shard| {
                Some(WeightFile {
                    index: place(&shard.map)?,
                    bytes: &shard.map,
                    contents: &shard.contents,
                })
            })
            .collect();
        let (hyper, tensors) =
            architecture::bind_hugging_face(folder.config(), &weights).map_err(|error| {
                SourceError::Bind {
                    path: file_of(&folder, &error),
                    error,
                }
            })?;
        let vocabulary = Vocabulary::from_hugging_face(folder.path()).and_then(|vocabulary| {
            vocabulary.check_rows(hyper.vocabulary)?;
            Ok(vocabulary)
        });
        Ok(ModelFile {
            path: folder.path().to_path_buf(),
            container: Container::Safetensors {
                shards: weights.len(),
            },
            hyper,
            vocabulary,
            tensors,
            files,
        })
    }

    /// Returns the description of the forward pass.
    pub fn spec(&self) -> ModelSpec {
        ModelSpec::new(&self.hyper, self.tensors.iter().map(|tensor| tensor.role))
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

    /// Bytes of all tensors together.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.place.len() as u64).sum()
    }

    /// Bytes of all files together; of an artifact without the weights of its source, and of a source in an artifact those
    /// of its tensors.
    pub fn size(&self) -> u64 {
        match (self.container, &self.files[..]) {
            (Container::Sealed { .. }, _) => return self.tensor_bytes(),
            (Container::Htz { .. }, [map]) => {
                if let Ok(htz) = Htz::parse(Arc::clone(map)) {
                    return htz.own_bytes();
                }
            }
            _ => {}
        }
        self.files.iter().map(|file| file.len() as u64).sum()
    }

    /// The digest that names the model: of a single file it is that file's; of several it is
    /// that of the lines `DIGEST  NAME\n` of all of them, as `sha256sum` writes them. A source that lies in an artifact
    /// has the digest that it had when it was compiled.
    pub fn digest(&self) -> Digest {
        if let Container::Sealed { sha256 } = self.container {
            return sha256;
        }
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

/// Whether a file's name is one of those in the folder of a model.
pub fn is_in_folder(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    name == CONFIG || name == INDEX || path.extension().is_some_and(|e| e == "safetensors")
}

/// Where in a folder the cause of an error is.
fn file_of(folder: &Folder, error: &BindError) -> PathBuf {
    let of_tensor = error.tensor().map(|name| {
        let mut shards = folder.shards().iter();
        let shard = shards.find(|shard| shard.contents.tensor(name).is_some());
        shard.map_or(folder.path(), |shard| shard.map.path())
    });
    of_tensor.unwrap_or(folder.config().path()).to_path_buf()
}
