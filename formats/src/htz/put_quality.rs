//! What was measured on a complete artifact is written into its manifest.

use std::ffi::OsStr;
use std::io::Write as _;

use super::layout::Header;
use super::writer::{failure, head};
use super::{DialPoint, Htz, HtzError, HtzWriter, Manifest, QualityRecord};
use crate::folder::Folder;
use crate::map::{MapError, MappedFile};

impl HtzWriter {
    /// Writes what was measured on the complete artifact `name` of a folder of one's own into its manifest,
    /// where its draft had a quality and so reserved the room; or takes out what stands there. Nothing else
    /// of it changes, but for the minor version and the digests of manifest and header.
    ///
    /// It is written in place, before the artifact is [published](HtzWriter::publish): whoever is
    /// interrupted leaves a head that does not match its digests, and tensors that another writer may
    /// [take over](HtzWriter::take_over).
    ///
    /// # Errors
    /// [`HtzError::Quality`] where the record is none of a measurement, [`HtzError::ManifestRoom`] where there
    /// is too little room for it, what is wrong with the artifact, and failures of the system.
    pub fn put_quality(
        folder: &Folder,
        name: &OsStr,
        quality: Option<QualityRecord>,
    ) -> Result<(), HtzError> {
        rewrite(folder, name, |manifest| manifest.quality = quality)
    }

    /// Writes what the complete artifact `name` was measured to be at parts of its bytes into its manifest, as
    /// [`put_quality`](HtzWriter::put_quality) does.
    ///
    /// # Errors
    /// Those of [`put_quality`](HtzWriter::put_quality), [`HtzError::Dial`] where the points are none of this
    /// artifact.
    pub fn put_dial(folder: &Folder, name: &OsStr, dial: Vec<DialPoint>) -> Result<(), HtzError> {
        rewrite(folder, name, |manifest| manifest.dial = dial)
    }
}

/// Changes the manifest of a complete artifact within the room that it has.
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
    // Nobody reads the mapping while the file changes.
    drop(artifact);
    change(&mut manifest);
    let head = head(&manifest, header)?;
    let written = folder.edit(name).and_then(|mut file| {
        file.write_all(&head)?;
        file.sync_all()
    });
    written.map_err(|error| failure("write", &path, header.file_length, error))
}
