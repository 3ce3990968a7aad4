//! Work folder next to an artifact, from which the same command resumes after any interruption.
//!
//! A growing artifact is `KEY.partial`; `KEY.journal` lists its complete tensors and the
//! measurements of its units; a complete one is `KEY.htz`. The key is a digest of everything that
//! its bytes depend on. The journal is sealed with a secret of the user, and only tensors whose
//! digest matches it are reused. The folder is removed at the end of the compilation and stays if
//! it fails.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use htc_formats::folder::{Folder, UNFINISHED_SUFFIX};
use htc_formats::htz::{Digest, HtzError};
use htc_formats::open::OpenError;

use super::journal::Artifact;
use crate::calibrate::cache::{IdleFolder, LOCK, remove_folder};
use crate::event::{Event, Progress};
use crate::system::secret::Secret;
use crate::system::show::format_bytes;
use crate::system::{disk, lock};

const NAME_BYTES: usize = 100;

const SUFFIX: &str = ".htc-work";

const ATTEMPTS: usize = 8;

/// Age at which abandoned work is removed by the next compilation.
pub const MAX_IDLE_AGE: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Work folder of an artifact, removed on drop unless [`keep`](Self::keep) was called.
#[derive(Debug)]
pub struct WorkFolder {
    parent: Folder,
    name: OsString,
    folder: Arc<Folder>,
    secret: Secret,
    /// Reason why this work cannot be resumed.
    not_resumable: Option<String>,
    stays: bool,
    _lock: File,
}

impl WorkFolder {
    /// Opens or creates the work folder for the artifact `output`, and removes old abandoned ones
    /// next to it.
    ///
    /// # Errors
    /// [`HtzError::NotWritable`] or [`HtzError::Io`] if it cannot be created, belongs to another
    /// user, or is locked.
    pub fn open(output: &Path, watch: Progress) -> Result<WorkFolder, HtzError> {
        let path = disk::folder_of(output);
        let name = work_folder_name(output);
        let place = path.join(&name);
        let not_made = |error: io::Error| match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => HtzError::NotWritable {
                path: path.to_owned(),
                source: error.kind().into(),
            },
            _ => io_failure("create", &place, error),
        };
        let parent = Folder::open(path).map_err(not_made)?;
        let held = || {
            let busy = "another htc is making this artifact; wait for it, or choose another name";
            io_failure(
                "create",
                output,
                io::Error::new(ErrorKind::ResourceBusy, busy),
            )
        };
        for _ in 0..ATTEMPTS {
            let folder = parent.open_private(&name).map_err(|error| match error {
                OpenError::Io { error, .. } => not_made(error),
                error => io_failure("use", &place, error.into_io()),
            })?;
            let file = match folder.open_for_writing(OsStr::new(LOCK)) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                file => file.map_err(|error| io_failure("use", &place.join(LOCK), error))?,
            };
            if !lock::acquire(&file, Duration::ZERO, || {}, || false).map_err(not_made)? {
                return Err(held());
            }
            // The lock of a removed folder excludes nobody.
            if !parent.is_same_entry(&name, &folder) || folder.metadata(OsStr::new(LOCK)).is_err() {
                continue;
            }
            let (secret, forgotten) = match Secret::of_user() {
                Ok(secret) => (secret, None),
                Err(error) => {
                    let secret = Secret::for_this_run().map_err(not_made)?;
                    (secret, Some(error.to_string()))
                }
            };
            sweep(&parent, watch);
            return Ok(WorkFolder {
                parent,
                name,
                folder: Arc::new(folder),
                secret,
                not_resumable: forgotten,
                stays: false,
                _lock: file,
            });
        }
        Err(held())
    }

    /// Leaves the folder for the next run if its work can be resumed; returns true then.
    pub fn keep(mut self) -> bool {
        let finished = || -> io::Result<bool> {
            let names = self.folder.names()?;
            let mut found = names.iter().filter(|name| is_finished(name));
            Ok(found.any(|name| self.folder.metadata(name).is_ok_and(|file| file.length > 0)))
        };
        self.stays = self.not_resumable.is_none() && finished().unwrap_or(false);
        self.stays
    }

    /// Returns the folder if its work can be resumed.
    pub fn resumable_path(&self) -> Option<&Path> {
        self.not_resumable.is_none().then(|| self.path())
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the handle.
    pub fn folder(&self) -> &Arc<Folder> {
        &self.folder
    }

    pub(super) fn secret(&self) -> &Secret {
        &self.secret
    }

    pub(super) fn not_resumable_reason(&self) -> Option<&str> {
        self.not_resumable.as_deref()
    }

    /// Returns the artifact of a key, complete or unfinished.
    pub fn artifact(&self, key: Digest) -> Artifact<'_> {
        Artifact { work: self, key }
    }

    /// Returns the bytes that an existing work folder occupies.
    pub fn bytes(output: &Path) -> u64 {
        let Ok(parent) = Folder::open(disk::folder_of(output)) else {
            return 0;
        };
        let folder = parent.open_existing(&work_folder_name(output), false);
        folder.map_or(0, |folder| folder.size_and_modified().0)
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        if !self.stays {
            let _ = remove_folder(&self.parent, &self.name, &self.folder, is_work_file);
        }
    }
}

/// Returns this user's unused work folders in a folder.
pub fn idle_work_folders(parent: &Folder) -> io::Result<Vec<IdleFolder>> {
    let names = parent.names()?;
    let of_work = names.iter().filter(|name| is_work(name));
    let open = |name: &OsString| IdleFolder::open(parent, name, is_work_file);
    Ok(of_work.filter_map(open).collect())
}

/// Returns true if the last write is at least `age` ago.
pub fn is_older(modified: Option<SystemTime>, age: Duration) -> bool {
    let passed = modified.and_then(|at| SystemTime::now().duration_since(at).ok());
    passed.is_some_and(|passed| passed >= age)
}

/// Removes work folders that nobody used for long. A folder that cannot be listed is left alone; the
/// own one is locked by this process, and thus not idle.
fn sweep(parent: &Folder, watch: Progress) {
    for found in idle_work_folders(parent).unwrap_or_default() {
        if is_older(found.modified, MAX_IDLE_AGE) && found.remove(parent).is_ok() {
            let said = format!(
                "{}: removed; nobody went on with it for {} days ({})",
                parent.path().join(&found.name).display(),
                MAX_IDLE_AGE.as_secs() / (24 * 60 * 60),
                format_bytes(found.bytes)
            );
            watch.report(Event::Note(&said));
        }
    }
}

fn is_work(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b".") && name.ends_with(SUFFIX.as_bytes())
}

fn is_finished(name: &OsStr) -> bool {
    let extension = Path::new(name).extension();
    extension.is_some_and(|of| {
        ["journal", "htz", "json", "state"]
            .iter()
            .any(|own| of == *own)
    })
}

fn is_work_file(name: &OsStr) -> bool {
    let extension = Path::new(name).extension();
    is_finished(name)
        || extension.is_some_and(|of| of == "partial")
        || name
            .as_encoded_bytes()
            .ends_with(UNFINISHED_SUFFIX.as_bytes())
}

fn work_folder_name(output: &Path) -> OsString {
    let name = output.file_name().unwrap_or_default().to_string_lossy();
    let name = if name.len() <= NAME_BYTES {
        name.into_owned()
    } else {
        Digest::of_bytes(name.as_bytes()).to_string()
    };
    format!(".{name}{SUFFIX}").into()
}

pub(super) fn io_failure(action: &'static str, path: &Path, source: io::Error) -> HtzError {
    let path = PathBuf::from(path);
    HtzError::Io {
        action,
        path,
        source,
    }
}

#[cfg(test)]
mod tests;
