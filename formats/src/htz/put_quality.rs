//! Writes measurements of a complete artifact into its manifest.

use std::ffi::OsStr;
use std::io::Write as _;

use super::layout::Header;
use super::writer::{failure, head};
use super::{DialPoint, Htz, HtzError, HtzWriter, Manifest, QualityRecord};
use crate::folder::Folder;
use crate::map::{MapError, MappedFile};

impl HtzWriter {
    /// Writes the quality measured on the complete artifact `name` of a private folder into the
    /// space that its draft reserved, or removes it. Otherwise only the minor version and the
    /// digests of manifest and header change.
    ///
    /// It is written in place, before the artifact is [published](HtzWriter::publish). After an
    /// interruption the head does not match its digests, and another writer may [take
    /// over](HtzWriter::take_over) the tensors.
    ///
    /// # Errors
    /// [`HtzError::Quality`], [`HtzError::ManifestRoom`], errors of the artifact and I/O errors.
    pub fn put_quality(
        folder: &Folder,
        name: &OsStr,
        quality: Option<QualityRecord>,
    ) -> Result<(), HtzError> {
        rewrite(folder, name, |manifest| manifest.quality = quality)
    }

    /// Writes the quality by active fraction into the manifest, like
    /// [`put_quality`](HtzWriter::put_quality).
    ///
    /// # Errors
    /// Those of [`put_quality`](HtzWriter::put_quality), and [`HtzError::Dial`].
    pub fn put_dial(folder: &Folder, name: &OsStr, dial: Vec<DialPoint>) -> Result<(), HtzError> {
        rewrite(folder, name, |manifest| manifest.dial = dial)
    }
}

fn rewrite(
    folder: &Folder,
    name: &OsStr,
    change: impl FnOnce(&mut Manifest),
) -> Result<(), HtzError> {
    let path = folder.path().join(name);
    let file = folder.read(name).map_err(|error| MapError::Io {
        path: path.clone(),
        error,
    })?;
    let artifact = Htz::of_map(MappedFile::of_file(path.clone(), &file)?)?;
    let header = Header::decode(artifact.map())?;
    let mut manifest = artifact.manifest().clone();
    // Unmaps the file before it changes.
    drop(artifact);
    change(&mut manifest);
    let head = head(&manifest, header)?;
    let written = folder.edit(name).and_then(|mut file| {
        file.write_all(&head)?;
        file.sync_all()
    });
    written.map_err(|error| failure("write", &path, header.file_length, error))
}
