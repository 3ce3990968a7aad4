//! Artifacts as model files.

use std::path::Path;
use std::sync::Arc;

use super::{Htz, HtzError, KernelCode, TensorEntry};
use crate::source::{Container, ModelFile, ModelTensor, Place, SourceError};

impl ModelFile {
    /// Opens an artifact without verifying the digests of its tensors.
    pub fn open_htz(path: impl AsRef<Path>) -> Result<ModelFile, SourceError> {
        Ok(ModelFile::from_htz(&Htz::open(path)?)?)
    }

    /// Creates a model file from an open artifact.
    ///
    /// # Errors
    /// [`HtzError::InFile`] for a damaged tokenizer.
    pub fn from_htz(htz: &Htz) -> Result<ModelFile, HtzError> {
        let manifest = htz.manifest();
        let vocabulary = match htz.vocabulary() {
            Ok(vocabulary) => Ok(vocabulary),
            Err(HtzError::Vocabulary(error)) => Err(error),
            Err(fault) => return Err(fault.in_file(htz.map().path())),
        };
        let (major, minor) = htz.format();
        Ok(ModelFile {
            path: htz.map().path().to_path_buf(),
            files: vec![Arc::clone(htz.map())],
            container: Container::Htz { major, minor },
            hyper: manifest.hyper.clone(),
            vocabulary,
            tensors: manifest
                .tensors
                .iter()
                .map(|entry| model_tensor(entry, entry.offset))
                .collect(),
        })
    }

    /// Returns the source model stored in an artifact, in the same mapping; `None` without one, and
    /// for other files. Digests are not verified.
    pub fn embedded_source(&self) -> Result<Option<ModelFile>, HtzError> {
        let (Container::Htz { .. }, [map]) = (self.container, &self.files[..]) else {
            return Ok(None);
        };
        let in_file = |fault: HtzError| fault.in_file(map.path());
        let htz = Htz::parse(Arc::clone(map)).map_err(in_file)?;
        let manifest = htz.manifest();
        let Some(record) = &manifest.source else {
            return Ok(None);
        };
        let offsets = manifest.source_offsets().map_err(in_file)?;
        let tensors = record.tensors.iter().zip(offsets);
        let tensors = tensors.map(|(tensor, offset)| model_tensor(&tensor.entry(), offset));
        Ok(Some(ModelFile {
            path: self.path.clone(),
            files: self.files.clone(),
            container: Container::EmbeddedSource {
                sha256: manifest.provenance.source_sha256,
            },
            hyper: manifest.hyper.clone(),
            vocabulary: self.vocabulary.clone(),
            tensors: tensors.collect(),
        }))
    }

    /// Returns the GPU kernels of an artifact; `None` without any, and for other files.
    pub fn kernels(&self) -> Result<Option<KernelCode>, HtzError> {
        let (Container::Htz { .. }, [map]) = (self.container, &self.files[..]) else {
            return Ok(None);
        };
        let in_file = |fault: HtzError| fault.in_file(map.path());
        let htz = Htz::parse(Arc::clone(map)).map_err(in_file)?;
        htz.kernels().map_err(in_file)
    }
}

fn model_tensor(entry: &TensorEntry, offset: u64) -> ModelTensor {
    ModelTensor {
        name: entry.name.clone(),
        role: entry.role,
        dtype: entry.dtype,
        rows: entry.rows as usize,
        cols: entry.cols as usize,
        codes: entry.codes.clone(),
        place: Place::File {
            index: 0,
            range: offset as usize..(offset + entry.length) as usize,
        },
    }
}
