//! An artifact as a model file.

use std::path::Path;
use std::sync::Arc;

use super::{Htz, HtzError, KernelCode};
use crate::source::{Container, ModelFile, ModelTensor, Place, SourceError};

impl ModelFile {
    /// Opens an artifact; the digests of its tensors are not compared.
    ///
    /// # Errors
    /// [`SourceError::Htz`].
    pub fn open_htz(path: impl AsRef<Path>) -> Result<ModelFile, SourceError> {
        Ok(ModelFile::from_htz(&Htz::open(path)?)?)
    }

    /// The model in an artifact that is open.
    ///
    /// # Errors
    /// [`HtzError::ItemDigest`] or [`HtzError::Section`] where the tokenizer is damaged, inside
    /// [`HtzError::InFile`].
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
                .map(|entry| ModelTensor {
                    name: entry.name.clone(),
                    role: entry.role,
                    dtype: entry.dtype,
                    // These casts lose nothing: the file, hence its tensors, is in memory.
                    rows: entry.rows as usize,
                    cols: entry.cols as usize,
                    codes: entry.codes.clone(),
                    place: Place::File {
                        index: 0,
                        range: entry.offset as usize..(entry.offset + entry.length) as usize,
                    },
                })
                .collect(),
        })
    }

    /// The model that an artifact was made from, where its weights lie in it, in the same mapping; `None` where they do
    /// not, and for what is no artifact. Its tensors have the bytes, types and names that they had in the source; their
    /// digests are not compared.
    ///
    /// # Errors
    /// [`HtzError`], inside [`HtzError::InFile`], where the file is no artifact any more.
    pub fn sealed_source(&self) -> Result<Option<ModelFile>, HtzError> {
        let (Container::Htz { .. }, [map]) = (self.container, &self.files[..]) else {
            return Ok(None);
        };
        let in_file = |fault: HtzError| fault.in_file(map.path());
        let htz = Htz::parse(Arc::clone(map)).map_err(in_file)?;
        let manifest = htz.manifest();
        let Some(record) = &manifest.source else {
            return Ok(None);
        };
        let places = manifest.source_places().map_err(in_file)?;
        let tensors = record.tensors.iter().zip(places);
        let tensors = tensors.map(|(tensor, (offset, length))| ModelTensor {
            name: tensor.name.clone(),
            role: tensor.role,
            dtype: tensor.dtype,
            // These casts lose nothing, as above.
            rows: tensor.rows as usize,
            cols: tensor.cols as usize,
            codes: None,
            place: Place::File {
                index: 0,
                range: offset as usize..(offset + length) as usize,
            },
        });
        Ok(Some(ModelFile {
            path: self.path.clone(),
            files: self.files.clone(),
            container: Container::Sealed {
                sha256: manifest.provenance.source_sha256,
            },
            hyper: manifest.hyper.clone(),
            vocabulary: self.vocabulary.clone(),
            tensors: tensors.collect(),
        }))
    }

    /// The kernels for GPUs in an artifact, compiled ahead of time. `None` where it has none, and for what is no artifact.
    ///
    /// # Errors
    /// [`HtzError`] where they are damaged.
    pub fn kernels(&self) -> Result<Option<KernelCode>, HtzError> {
        let (Container::Htz { .. }, [map]) = (self.container, &self.files[..]) else {
            return Ok(None);
        };
        let in_file = |fault: HtzError| fault.in_file(map.path());
        let htz = Htz::parse(Arc::clone(map)).map_err(in_file)?;
        htz.kernels().map_err(in_file)
    }
}
