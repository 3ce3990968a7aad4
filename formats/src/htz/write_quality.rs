//! Writes measurements of a complete artifact into its manifest.

use std::ffi::OsStr;
use std::io::Write as _;

use super::layout::Header;
use super::writer::{encode_head, io_error};
use super::{ActiveFractionPoint, Htz, HtzError, HtzWriter, Manifest, QualityRecord, TuningRecord};
use crate::folder::Folder;
use crate::map::MappedFile;
use crate::open::OpenError;

impl HtzWriter {
    /// Writes the quality measured on the complete artifact `name` of a private folder into the
    /// space that its draft reserved, or removes it.
    ///
    /// It is written in place, before the artifact is [published](HtzWriter::publish). After an
    /// interruption another writer may [take over](HtzWriter::resume_tensors) the tensors.
    ///
    /// # Errors
    /// [`HtzError::Property`], [`HtzError::ManifestSpace`], errors of the artifact and I/O errors.
    pub fn write_quality(
        folder: &Folder,
        name: &OsStr,
        quality: Option<QualityRecord>,
    ) -> Result<(), HtzError> {
        rewrite_manifest(folder, name, |manifest| manifest.quality = quality)
    }

    /// Writes the divergences measured before and after tuning into the manifest, like
    /// [`write_quality`](HtzWriter::write_quality).
    ///
    /// # Errors
    /// Those of [`write_quality`](HtzWriter::write_quality).
    pub fn write_tuning(
        folder: &Folder,
        name: &OsStr,
        tuning: TuningRecord,
    ) -> Result<(), HtzError> {
        rewrite_manifest(folder, name, |manifest| {
            manifest.provenance.tuning = Some(tuning);
        })
    }

    /// Writes the quality by active fraction into the manifest, like
    /// [`write_quality`](HtzWriter::write_quality).
    ///
    /// # Errors
    /// Those of [`write_quality`](HtzWriter::write_quality), and [`HtzError::Property`].
    pub fn write_active_fractions(
        folder: &Folder,
        name: &OsStr,
        dial: Vec<ActiveFractionPoint>,
    ) -> Result<(), HtzError> {
        rewrite_manifest(folder, name, |manifest| manifest.dial = dial)
    }
}

fn rewrite_manifest(
    folder: &Folder,
    name: &OsStr,
    change: impl FnOnce(&mut Manifest),
) -> Result<(), HtzError> {
    let path = folder.path().join(name);
    let file = folder
        .open_for_reading(name)
        .map_err(|error| OpenError::io(&path, error))?;
    let artifact = Htz::from_map(MappedFile::from_file(path.clone(), &file)?)?;
    let header = Header::decode(artifact.map())?;
    let mut manifest = artifact.manifest().clone();
    drop(artifact);
    change(&mut manifest);
    let head = encode_head(&manifest, header)?;
    let written = folder.open_for_writing(name).and_then(|mut file| {
        file.write_all(&head)?;
        file.sync_all()
    });
    written.map_err(|error| io_error("write", &path, header.file_length, error))
}
