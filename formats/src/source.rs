//! Uniform access to model files of all container formats.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::CodecError;
use crate::architecture::{self, BindError, WeightFile};
use crate::block;
use crate::gguf::{self, Contents, GgufError, SplitModel};
use crate::htz::{self, Digest, Htz, HtzError};
use crate::map::MappedFile;
use crate::model::{HyperParameters, ModelSpec, Role};
use crate::open::OpenError;
use crate::safetensors::{CONFIG, INDEX, ModelFolder, SafetensorsError};
use crate::vocab::{Vocabulary, VocabularyError};

pub use crate::architecture::{ModelTensor, Place};

/// Container format of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// GGUF, in one or several files.
    Gguf {
        /// Version of the format.
        version: u32,
    },
    /// A folder in Hugging Face's layout.
    Safetensors {
        /// Number of weight files.
        shards: usize,
    },
    /// An artifact of this project.
    Htz {
        /// Major version of the format.
        major: u16,
        /// Minor version of the format.
        minor: u16,
    },
    /// Source model whose weights are stored in an artifact.
    EmbeddedSource {
        /// Digest of the source, as stated by the artifact.
        sha256: Digest,
    },
}

/// A model in mapped files: its description and its tensors.
#[derive(Clone, Debug)]
pub struct ModelFile {
    /// Path that was opened: a folder, a file, or the first of several files.
    pub path: PathBuf,
    /// All files of the model, sorted by name, except those read only for the vocabulary.
    pub files: Vec<Arc<MappedFile>>,
    /// Container format.
    pub container: Container,
    /// Validated hyper-parameters.
    pub hyper: HyperParameters,
    /// Vocabulary with a token per row of the embedding, or the reason for its absence.
    pub vocabulary: Result<Vocabulary, VocabularyError>,
    /// Tensors in execution order but for refinements, which come last; their shapes checked
    /// against `hyper`.
    pub tensors: Vec<ModelTensor>,
}

/// Error returned when a file cannot be opened as a model.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "fields that the messages name")]
pub enum SourceError {
    /// A file cannot be opened or mapped.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A GGUF file is invalid, or no part of its split model.
    #[error("{}: {error}", path.display())]
    Gguf { path: PathBuf, error: GgufError },
    /// A safetensors file, an index or a model folder is invalid.
    #[error("{}: {error}", path.display())]
    Safetensors {
        /// The file or folder.
        path: PathBuf,
        /// The error.
        error: SafetensorsError,
    },
    /// The model is not supported.
    #[error("{}: {error}", path.display())]
    Bind {
        /// The file, or the folder if no single file is the cause.
        path: PathBuf,
        error: BindError,
    },
    /// The artifact is invalid.
    #[error(transparent)]
    Htz(#[from] HtzError),
    /// The kind of file is not supported.
    #[error(
        "{}: not a model file: it begins with \"{}\"; supported are GGUF, .htz and folders with \
         a {CONFIG} and .safetensors files",
        path.display(),
        found.escape_ascii()
    )]
    Container {
        /// The file.
        path: PathBuf,
        /// First bytes, at most eight.
        found: Vec<u8>,
    },
}

impl ModelFile {
    /// Opens a model of any container format, detected by the first bytes of a file, or by a file
    /// name that belongs to a model folder.
    pub fn open(path: impl AsRef<Path>) -> Result<ModelFile, SourceError> {
        let path = path.as_ref();
        let map = match MappedFile::open(path) {
            Ok(map) => map,
            Err(OpenError::Folder { path }) => return ModelFile::open_folder(path),
            Err(error) => return Err(error.into()),
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

    /// Opens a GGUF model; a split model by any of its parts.
    ///
    /// # Errors
    /// [`SourceError`] for invalid files, mismatched parts, and models that are incomplete or not
    /// [`architecture::SUPPORTED`].
    pub fn open_gguf(path: impl AsRef<Path>) -> Result<Self, SourceError> {
        let split = SplitModel::open(path)?;
        let gguf = split.first_part();
        let others: Vec<&Contents> = split.other_parts().iter().map(|part| &**part).collect();
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

    /// Opens the model in a folder, given by its path or by its configuration, index or a weight
    /// file.
    ///
    /// # Errors
    /// [`SourceError`] for invalid or missing files, and models that are incomplete or not
    /// [`architecture::SUPPORTED`].
    pub fn open_folder(path: impl AsRef<Path>) -> Result<Self, SourceError> {
        let folder = ModelFolder::open(path)?;
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
                    path: file_of_error(&folder, &error),
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

    /// Returns the tensor with a role, if any.
    pub fn tensor(&self, role: Role) -> Option<&ModelTensor> {
        if let Role::Refinement { .. } = role {
            return self.refinements().iter().find(|tensor| tensor.role == role);
        }
        let order = role.execution_order();
        let by_order = |tensor: &ModelTensor| tensor.role.execution_order().cmp(&order);
        let index = self.tensors.binary_search_by(by_order).ok()?;
        self.tensors.get(index)
    }

    /// Returns the refinements in the order of activation.
    pub fn refinements(&self) -> &[ModelTensor] {
        let is_other = |tensor: &ModelTensor| !matches!(tensor.role, Role::Refinement { .. });
        &self.tensors[self.tensors.partition_point(is_other)..]
    }

    /// Returns the bytes of a tensor of this model.
    ///
    /// # Panics
    ///
    /// May panic for a tensor of another model.
    pub fn bytes<'a>(&'a self, tensor: &'a ModelTensor) -> &'a [u8] {
        match &tensor.place {
            Place::File { index, range } => &self.files[*index][range.clone()],
            Place::Computed(bytes) => bytes,
        }
    }

    /// Decodes rows of a tensor to `out`, row by row.
    ///
    /// # Errors
    /// [`CodecError`] if the bytes do not decode.
    ///
    /// # Panics
    ///
    /// May panic for a tensor of another model.
    pub fn decode_rows(
        &self,
        tensor: &ModelTensor,
        rows: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), CodecError> {
        let bytes = self.bytes(tensor);
        let Some(codes) = &tensor.codes else {
            let row_bytes = tensor.dtype.row_bytes(tensor.cols).unwrap_or(0);
            let bytes = &bytes[rows.start * row_bytes..rows.end * row_bytes];
            return block::decode(tensor.dtype, bytes, out);
        };
        let groups = codes.view(tensor.rows, bytes)?;
        for (row, out) in rows.zip(out.chunks_exact_mut(tensor.cols.max(1))) {
            groups.decode_row(row, out)?;
        }
        Ok(())
    }

    /// Returns the bytes of all tensors.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.place.len() as u64).sum()
    }

    /// Returns the size of all files, without source weights in an artifact, or of the tensors of
    /// such a source.
    pub fn size(&self) -> u64 {
        match (self.container, &self.files[..]) {
            (Container::EmbeddedSource { .. }, _) => return self.tensor_bytes(),
            (Container::Htz { .. }, [map]) => {
                if let Ok(htz) = Htz::parse(Arc::clone(map)) {
                    return htz.bytes_without_source();
                }
            }
            _ => {}
        }
        self.files.iter().map(|file| file.len() as u64).sum()
    }

    /// Returns the digest that identifies the model: of a single file, or of the lines `DIGEST
    /// NAME\n` that `sha256sum` writes for several. A source in an artifact has its digest at
    /// compilation.
    pub fn digest(&self) -> Digest {
        if let Container::EmbeddedSource { sha256 } = self.container {
            return sha256;
        }
        if let [file] = &self.files[..] {
            return Digest::of_bytes(file);
        }
        let mut lines = String::new();
        for file in &self.files {
            let name = file.path().file_name().unwrap_or_default();
            lines += &format!("{}  {}\n", Digest::of_bytes(file), name.to_string_lossy());
        }
        Digest::of_bytes(lines.as_bytes())
    }
}

/// Returns true if the name is one of a model folder's files.
pub fn is_in_folder(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    name == CONFIG || name == INDEX || path.extension().is_some_and(|e| e == "safetensors")
}

fn file_of_error(folder: &ModelFolder, error: &BindError) -> PathBuf {
    let of_tensor = error.tensor().map(|name| {
        let mut shards = folder.shards().iter();
        let shard = shards.find(|shard| shard.contents.tensor(name).is_some());
        shard.map_or(folder.path(), |shard| shard.map.path())
    });
    of_tensor.unwrap_or(folder.config().path()).to_path_buf()
}
