mod source;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::layout::{ALIGNMENT, FORMAT_MAJOR, HEADER_BYTES, Header, MAX_MANIFEST_BYTES};
use super::manifest::{PlanRecord, TuningRecord};
use super::quality::LONGEST_NUMBER;
use super::section::{self, Section};
use super::{
    ActiveFractionPoint, DepthSinkOrigin, Digest, GeometryRecord, Hasher, HtzError, Manifest,
    QualityRecord, SourceRecord, TOKENIZER, TensorEntry, check, features,
};
use crate::folder::Folder;
use crate::map::MappedFile;
use crate::model::Role;
use crate::open::OpenError;

/// Writer of an artifact, tensor by tensor.
///
/// The file grows under a temporary name in its final folder and is renamed when it is complete.
/// Dropping the writer removes it, unless it was begun with [`resume`](HtzWriter::resume).
#[derive(Debug)]
pub struct HtzWriter {
    path: PathBuf,
    file_location: UnfinishedFile,
    file: File,
    manifest: Manifest,
    sections: Vec<Section>,
    header: Header,
    end: u64,
    next_tensor: usize,
    next_section: usize,
    next_source_tensor: usize,
}

#[derive(Debug)]
struct UnfinishedFile {
    folder: Arc<Folder>,
    unfinished: OsString,
    name: OsString,
    overwrite: bool,
    keep_on_drop: bool,
}

impl Drop for UnfinishedFile {
    fn drop(&mut self) {
        if !self.keep_on_drop {
            let _ = self.folder.remove(&self.unfinished);
        }
    }
}

impl HtzWriter {
    /// Begins the artifact `path` with tensors and plan of `draft` and with `sections`.
    ///
    /// In `draft`, offsets, lengths, digests and sections are ignored; errors of the plan, the
    /// depth sink and the numbers of the spectra may be set later. A quality reserves space for
    /// [`write_quality`](HtzWriter::write_quality), and a [draft](super::TuningRecord::draft) of a
    /// tuning for tuned scales. Tensors of a source [follow](HtzWriter::write_source) those of the
    /// artifact.
    ///
    /// # Errors
    /// Errors that a reader would report for the manifest; [`HtzError::Exists`],
    /// [`HtzError::NotAFile`], [`HtzError::FolderMissing`], [`HtzError::NotWritable`],
    /// [`HtzError::DiskFull`] or [`HtzError::Io`].
    pub fn create(
        path: impl AsRef<Path>,
        draft: Manifest,
        sections: Vec<Section>,
        overwrite: bool,
    ) -> Result<HtzWriter, HtzError> {
        let path = path.as_ref();
        let mut manifest = draft;
        let header = lay_out(&mut manifest, &sections)?;
        let (parent, name) = destination(path, overwrite)?;
        let made = Folder::open(&parent).and_then(|folder| {
            let (unfinished, file) =
                folder.create_unfinished(folder.mode_for_replacement(&name))?;
            Ok((folder, unfinished, file))
        });
        let (folder, unfinished, file) = made.map_err(|source| match source.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => HtzError::NotWritable {
                path: parent,
                source,
            },
            _ => io_error("create a file in", &parent, header.file_length, source),
        })?;
        let place = UnfinishedFile {
            folder: Arc::new(folder),
            unfinished,
            name,
            overwrite,
            keep_on_drop: false,
        };
        Ok(HtzWriter::begin(
            path.to_owned(),
            place,
            file,
            manifest,
            sections,
            header,
        ))
    }

    /// Begins the artifact `name` in a private folder, like [`create`](HtzWriter::create), in the
    /// file `partial`, which is kept on drop, so that a later writer can [take
    /// over](HtzWriter::resume_tensors).
    pub fn resume(
        folder: &Arc<Folder>,
        name: &OsStr,
        partial: &OsStr,
        draft: Manifest,
        sections: Vec<Section>,
    ) -> Result<HtzWriter, HtzError> {
        let mut manifest = draft;
        let header = lay_out(&mut manifest, &sections)?;
        let path = folder.path().join(partial);
        let file = folder.open_for_writing(partial);
        let file = file.map_err(|source| io_error("open", &path, header.file_length, source))?;
        let place = UnfinishedFile {
            folder: Arc::clone(folder),
            unfinished: partial.to_owned(),
            name: name.to_owned(),
            overwrite: true,
            keep_on_drop: true,
        };
        Ok(HtzWriter::begin(
            path, place, file, manifest, sections, header,
        ))
    }

    fn begin(
        path: PathBuf,
        place: UnfinishedFile,
        file: File,
        manifest: Manifest,
        sections: Vec<Section>,
        header: Header,
    ) -> HtzWriter {
        HtzWriter {
            path,
            file_location: place,
            file,
            manifest,
            sections,
            header,
            // Header and manifest are written last.
            end: header.data_offset(),
            next_tensor: 0,
            next_section: 0,
            next_source_tensor: 0,
        }
    }

    /// Accepts tensors that an earlier writer wrote to the same unfinished file, as long as their
    /// bytes have these digests, and returns their number.
    pub fn resume_tensors(&mut self, digests: &[Digest]) -> Result<usize, HtzError> {
        let length = self.io("read", |file| Ok(file.metadata()?.len()))?;
        let mut taken = 0;
        for &expected in digests {
            let Some(entry) = self.manifest.tensors.get(self.next_tensor) else {
                break;
            };
            let (offset, bytes) = (entry.offset, entry.length);
            if offset.checked_add(bytes).is_none_or(|end| end > length) {
                break;
            }
            let found = self.io("read", |file| {
                file.seek(SeekFrom::Start(offset))?;
                let mut hasher = Hasher::default();
                let mut buffer = vec![0; 1 << 20];
                let mut rest = file.take(bytes);
                loop {
                    match rest.read(&mut buffer)? {
                        0 => break,
                        n => hasher.update(&buffer[..n]),
                    }
                }
                Ok(hasher.finish())
            })?;
            if found != expected {
                break;
            }
            self.manifest.tensors[self.next_tensor].sha256 = found;
            self.end = offset + bytes;
            self.next_tensor += 1;
            taken += 1;
        }
        let end = self.end;
        self.io("write", |file| file.set_len(end))?;
        Ok(taken)
    }

    /// Moves the complete artifact `name` to its destination on the same file system. The inner
    /// result states whether the new name was flushed to disk.
    ///
    /// # Errors
    /// [`HtzError::Exists`] and I/O errors; then the artifact stays in place.
    pub fn publish(
        folder: &Folder,
        name: &OsStr,
        to: impl AsRef<Path>,
        overwrite: bool,
    ) -> Result<io::Result<()>, HtzError> {
        let path = to.as_ref();
        let (parent, new) = destination(path, overwrite)?;
        let renamed = Folder::open(&parent).and_then(|parent| {
            if overwrite {
                parent.copy_mode(&new, &folder.open_for_reading(name)?)?;
            }
            folder.rename(name, &parent, &new, overwrite)?;
            Ok(parent)
        });
        let parent = renamed.map_err(|source| rename_error("create", path, source))?;
        Ok(parent.sync())
    }

    /// Checks early that an artifact can be written to `path`.
    pub fn check_destination(path: impl AsRef<Path>, overwrite: bool) -> Result<(), HtzError> {
        destination(path.as_ref(), overwrite).map(|_| ())
    }

    /// Returns the exact size of the artifact that [`create`](HtzWriter::create) would give.
    ///
    /// # Errors
    /// Errors that a reader would report for the manifest.
    pub fn predict_length(draft: Manifest, sections: &[Section]) -> Result<u64, HtzError> {
        let mut manifest = draft;
        Ok(lay_out(&mut manifest, sections)?.file_length)
    }

    /// Path of the unfinished file.
    pub fn temp_path(&self) -> PathBuf {
        self.file_location
            .folder
            .path()
            .join(&self.file_location.unfinished)
    }

    /// Maps the unfinished file.
    pub fn map_unfinished(&self) -> Result<MappedFile, OpenError> {
        MappedFile::from_file(self.temp_path(), &self.file)
    }

    /// Returns the next tensor to write.
    pub fn next_tensor(&self) -> Option<&TensorEntry> {
        self.manifest.tensors.get(self.next_tensor)
    }

    /// Tensors written so far, with their digests.
    pub fn written_tensors(&self) -> &[TensorEntry] {
        &self.manifest.tensors[..self.next_tensor]
    }

    /// Size of the complete artifact in bytes.
    pub fn file_length(&self) -> u64 {
        self.header.file_length
    }

    /// Writes the next tensor, in the order of the draft.
    ///
    /// # Errors
    /// [`HtzError::OutOfOrder`], [`HtzError::Property`] for a wrong number of bytes, and I/O errors.
    pub fn write_tensor(&mut self, role: Role, bytes: &[u8]) -> Result<(), HtzError> {
        let entry = match self.manifest.tensors.get_mut(self.next_tensor) {
            Some(entry) if entry.role == role => entry,
            other => {
                let expected = other.map_or_else(
                    || "the end of the tensors".to_owned(),
                    |entry| entry.role.to_string(),
                );
                return Err(HtzError::OutOfOrder {
                    expected,
                    found: role.to_string(),
                });
            }
        };
        if bytes.len() as u64 != entry.length {
            return Err(entry.error("length", entry.length, bytes.len()));
        }
        entry.sha256 = Digest::of_bytes(bytes);
        let offset = entry.offset;
        self.append(offset, bytes)?;
        self.next_tensor += 1;
        Ok(())
    }

    /// Replaces the geometry record of the draft, which must have one.
    pub fn set_geometry(&mut self, geometry: GeometryRecord) {
        self.manifest.geometry = Some(geometry);
    }

    /// Completes the artifact: `measured` sets the errors of the plan; the file is flushed to disk
    /// and renamed.
    ///
    /// # Errors
    /// [`HtzError::OutOfOrder`] for a missing tensor, [`HtzError::ManifestSpace`], errors that a
    /// reader would report for plan or geometry, and I/O errors; then no file remains.
    pub fn finish(mut self, measured: impl FnOnce(&mut PlanRecord)) -> Result<(), HtzError> {
        if let Some(entry) = self.next_tensor() {
            return Err(HtzError::OutOfOrder {
                expected: entry.role.to_string(),
                found: "the end of the tensors".to_owned(),
            });
        }
        self.finish_source()?;
        measured(&mut self.manifest.plan);
        let head = encode_head(&self.manifest, self.header)?;
        self.io("write", |file| {
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&head)?;
            file.sync_all()
        })?;
        let UnfinishedFile {
            folder,
            unfinished,
            name,
            overwrite,
            ..
        } = &self.file_location;
        let named = if *overwrite {
            folder.copy_mode(name, &self.file)
        } else {
            Ok(())
        };
        named
            .and_then(|()| folder.rename(unfinished, folder, name, *overwrite))
            .map_err(|source| rename_error("create", &self.path, source))?;
        match folder.sync() {
            // The folder is writable but not readable.
            Err(error) if error.kind() != ErrorKind::PermissionDenied => {
                let path = folder.path().to_owned();
                self.file_location.keep_on_drop = true;
                Err(HtzError::Io {
                    action: "force to the disk the folder",
                    path,
                    source: error,
                })
            }
            _ => {
                self.file_location.keep_on_drop = true;
                Ok(())
            }
        }
    }

    /// Writes `bytes` at `offset`, after zero padding. Can be retried after an error.
    fn append(&mut self, offset: u64, bytes: &[u8]) -> Result<(), HtzError> {
        const ZEROS: [u8; ALIGNMENT as usize] = [0; ALIGNMENT as usize];
        let padding = &ZEROS[..(offset - self.end) as usize];
        let start = SeekFrom::Start(self.end);
        self.io("write", |file| {
            file.seek(start)?;
            file.write_all(padding)?;
            file.write_all(bytes)
        })?;
        self.end = offset + bytes.len() as u64;
        Ok(())
    }

    fn io<T>(
        &mut self,
        action: &'static str,
        act: impl FnOnce(&mut File) -> io::Result<T>,
    ) -> Result<T, HtzError> {
        let result = act(&mut self.file);
        result.map_err(|source| io_error(action, &self.path, self.header.file_length, source))
    }
}

fn rename_error(action: &'static str, path: &Path, source: io::Error) -> HtzError {
    match source.kind() {
        ErrorKind::AlreadyExists => HtzError::Exists { path: path.into() },
        _ => io_error(action, path, 0, source),
    }
}

/// Sets all offsets, and checks everything that does not need tensor data.
fn lay_out(manifest: &mut Manifest, sections: &[Section]) -> Result<Header, HtzError> {
    manifest.sections = sections.iter().map(|s| s.entry().clone()).collect();
    let of_source = manifest.source.iter().flat_map(SourceRecord::sections);
    manifest.sections.extend(of_source);
    let quality = manifest.quality.take();
    let dial = std::mem::take(&mut manifest.dial).len();
    let tuning = manifest
        .provenance
        .tuning
        .take_if(|tuning| tuning.is_draft());
    for entry in &mut manifest.tensors {
        entry.length = entry.stored_bytes().unwrap_or(0);
        entry.sha256 = Digest::default();
    }
    let names = sections
        .iter()
        .map(|s| (s.entry().name.as_str(), s.entry().required));
    let mut header = Header {
        major: FORMAT_MAJOR,
        minor: features::minor_version(manifest),
        manifest_length: 0,
        file_length: 0,
        manifest_sha256: Digest::default(),
    };
    features::check_requirements(&manifest.requires, names, &header)?;
    check::check_contents(manifest)?;
    for section in sections.iter().filter(|s| s.entry().name == TOKENIZER) {
        let data = section::decode(section.entry(), section.bytes())?;
        section::parse_vocabulary(&data, manifest.hyper.vocabulary, &manifest.requires)?;
    }
    header.manifest_length = manifest_space(manifest, quality, tuning, dial)?;
    let data_offset = header.data_offset();
    let mut end = data_offset;
    for entry in &mut manifest.tensors {
        entry.offset = check::allocate_aligned(&mut end, entry.length).unwrap_or(u64::MAX);
    }
    for entry in &mut manifest.sections {
        entry.offset = check::allocate_aligned(&mut end, entry.length).unwrap_or(u64::MAX);
    }
    header.file_length = check::check_layout(manifest, data_offset)?;
    Ok(header)
}

/// Returns the bytes to reserve for the manifest with all later values; header and manifest end at
/// a multiple of [`ALIGNMENT`].
fn manifest_space(
    manifest: &Manifest,
    quality: Option<QualityRecord>,
    tuning: Option<TuningRecord>,
    dial: usize,
) -> Result<u64, HtzError> {
    let mut longest = manifest.clone();
    longest.dial = vec![ActiveFractionPoint::with_longest_numbers(); dial];
    longest.quality = quality.map(|record| record.with_longest_numbers());
    let tuning = tuning.or(manifest.provenance.tuning);
    longest.provenance.tuning = tuning.map(|_| TuningRecord::with_longest_numbers());
    for entry in &mut longest.tensors {
        entry.offset = u64::MAX;
    }
    for entry in &mut longest.sections {
        entry.offset = u64::MAX;
    }
    for projection in &mut longest.plan.projections {
        projection.error = Some(LONGEST_NUMBER);
    }
    for matrix in &mut longest.plan.matrices {
        matrix.error = Some(LONGEST_NUMBER);
    }
    if let Some(geometry) = &mut longest.geometry {
        geometry.depth_sink.layer = longest.hyper.layers;
        geometry.depth_sink.origin = DepthSinkOrigin::Measured;
        for spectrum in &mut geometry.spectra {
            spectrum.largest = LONGEST_NUMBER;
            spectrum.energy = LONGEST_NUMBER;
        }
    }
    let needed = HEADER_BYTES as u64 + to_json(&longest)?.len() as u64;
    let length = needed.next_multiple_of(ALIGNMENT) - HEADER_BYTES as u64;
    if length > MAX_MANIFEST_BYTES {
        return Err(HtzError::ManifestTooLarge { found: length });
    }
    Ok(length)
}

pub(super) fn encode_head(manifest: &Manifest, mut header: Header) -> Result<Vec<u8>, HtzError> {
    check::check_contents(manifest)?;
    let mut text = to_json(manifest)?;
    let (needed, reserved) = (text.len() as u64, header.manifest_length);
    if needed > reserved {
        return Err(HtzError::ManifestSpace { reserved, needed });
    }
    text.resize(text.len() + (reserved - needed) as usize, b' ');
    // That of a rewritten manifest may be of format 1.
    header.minor = features::minor_version(manifest);
    header.manifest_sha256 = Digest::of_bytes(&text);
    Ok([header.encode(), text].concat())
}

fn to_json(manifest: &Manifest) -> Result<Vec<u8>, HtzError> {
    serde_json::to_vec(manifest).map_err(|error| HtzError::ManifestSyntax {
        detail: crate::escape::escape_truncated(&error.to_string()),
    })
}

fn destination(path: &Path, overwrite: bool) -> Result<(PathBuf, OsString), HtzError> {
    let not_a_file = |found| HtzError::NotAFile {
        path: path.to_owned(),
        found,
    };
    // `file_name` ignores a trailing slash, which denotes a folder.
    let slash = path.as_os_str().as_encoded_bytes().ends_with(b"/");
    let Some(name) = path.file_name().filter(|_| !slash) else {
        return Err(not_a_file("a folder"));
    };
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if !folder.is_dir() {
        return Err(HtzError::FolderMissing {
            path: folder.to_owned(),
        });
    }
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(not_a_file("a folder")),
        // They would be replaced by the artifact.
        Ok(found) if !found.is_file() => Err(not_a_file("a special file")),
        Ok(_) if !overwrite => Err(HtzError::Exists {
            path: path.to_owned(),
        }),
        Err(source) if source.kind() == ErrorKind::InvalidFilename => Err(HtzError::Io {
            action: "create",
            path: path.to_owned(),
            source,
        }),
        _ => Ok((folder.to_owned(), name.to_owned())),
    }
}

pub(super) fn io_error(
    action: &'static str,
    path: &Path,
    needed: u64,
    source: io::Error,
) -> HtzError {
    let path = path.to_owned();
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => HtzError::DiskFull { path, needed },
        _ => HtzError::Io {
            action,
            path,
            source,
        },
    }
}

#[cfg(test)]
mod tests;
