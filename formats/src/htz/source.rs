//! An artifact as a model file.

use std::path::Path;
use std::sync::Arc;

use super::{Htz, HtzError};
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
}
