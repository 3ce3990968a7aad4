//! Cache folder of calibrations, with one entry per calibration.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use htc_formats::folder::{self, Folder, UNFINISHED_SUFFIX, user_cache};
use htc_formats::htz::Digest;
use htc_formats::open::OpenError;

use super::entry::CacheEntry;
use super::{CalibrationOptions, PassError};

/// Lock file of an entry, held by the working process.
pub(crate) const LOCK: &str = "lock";

pub(super) const HEAD: &str = "head";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryKind {
    Calibration,
    Gradients,
}

impl EntryKind {
    const ALL: [EntryKind; 2] = [EntryKind::Calibration, EntryKind::Gradients];

    const fn prefix(self) -> &'static str {
        match self {
            EntryKind::Calibration => "calibration-",
            EntryKind::Gradients => "gradients-",
        }
    }
}

pub(super) fn entry_name(kind: EntryKind, key: Digest) -> OsString {
    format!("{}{key}", kind.prefix()).into()
}

/// Returns the folder of the cache.
///
/// # Errors
/// [`PassError::NoCache`].
pub fn cache_folder(options: &CalibrationOptions) -> Result<PathBuf, PassError> {
    match &options.cache {
        Some(folder) => Ok(folder.clone()),
        None => user_cache().ok_or(PassError::NoCache),
    }
}

/// Opens the folder of one entry: owned by this user, or readable if trusted.
pub(super) fn open_entry(cache: &Path, name: &OsStr, trusted: bool) -> Result<Folder, PassError> {
    let failed = |error| PassError::Cache {
        path: cache.join(name),
        error,
    };
    folder::create_private_dir_all(cache).map_err(failed)?;
    let parent = Folder::open(cache).map_err(failed)?;
    match parent.open_private(name) {
        Err(OpenError::ForeignOwner { path, owner }) => match parent.open_existing(name, trusted) {
            Err(OpenError::ForeignOwner { .. }) => Err(PassError::ForeignOwner { path, owner }),
            found => found.map_err(|error| failed(error.into_io())),
        },
        found => found.map_err(|error| failed(error.into_io())),
    }
}

/// Removes the statistics of a key from the cache.
pub fn remove_entry(options: &CalibrationOptions, key: Digest) -> Result<(), PassError> {
    CacheEntry::open(options, EntryKind::Calibration, key)?.clear()
}

/// Removes the files of a folder that `is_own` selects, but not its lock, which excludes other
/// processes.
pub(super) fn remove_files(folder: &Folder, is_own: fn(&OsStr) -> bool) -> io::Result<()> {
    let names = folder.names()?;
    let mut names = names.iter().filter(|name| is_own(name) && *name != LOCK);
    names.try_for_each(|name| folder.remove(name))
}

pub(super) fn is_entry_file(name: &OsStr) -> bool {
    let bytes = name.as_encoded_bytes();
    bytes == HEAD.as_bytes()
        || bytes.starts_with(b"layer-")
        || bytes.starts_with(b"stream-")
        || bytes.starts_with(b"gradient-")
        || bytes.starts_with(b"outputs-")
        || bytes.ends_with(UNFINISHED_SUFFIX.as_bytes())
}

/// Folder of this user that no process uses: an entry of a cache, or a work folder.
#[derive(Debug)]
pub struct IdleFolder {
    folder: Folder,
    is_own: fn(&OsStr) -> bool,
    /// File name.
    pub name: OsString,
    /// Size in bytes.
    pub bytes: u64,
    /// Time of the last change.
    pub modified: Option<SystemTime>,
    _lock: File,
}

impl IdleFolder {
    /// Opens a folder and locks it; `is_own` selects its files.
    pub(crate) fn open(
        parent: &Folder,
        name: &OsStr,
        is_own: fn(&OsStr) -> bool,
    ) -> Option<IdleFolder> {
        let folder = parent.open_existing(name, false).ok()?;
        let lock = folder.open_for_writing(OsStr::new(LOCK)).ok()?;
        lock.try_lock().ok()?;
        let (bytes, modified) = folder.size_and_modified();
        Some(IdleFolder {
            folder,
            is_own,
            name: name.to_owned(),
            bytes,
            modified,
            _lock: lock,
        })
    }

    /// Removes the folder.
    pub fn remove(&self, parent: &Folder) -> io::Result<()> {
        remove_folder(parent, &self.name, &self.folder, self.is_own)
    }
}

/// Removes the files of a folder that `is_own` selects, its lock last, and the folder if it is then
/// empty.
pub(crate) fn remove_folder(
    parent: &Folder,
    name: &OsStr,
    folder: &Folder,
    is_own: fn(&OsStr) -> bool,
) -> io::Result<()> {
    remove_files(folder, is_own)?;
    folder.remove(OsStr::new(LOCK))?;
    if parent.is_same_entry(name, folder) {
        parent.remove_folder(name)
    } else {
        Ok(())
    }
}

/// Returns the entries of this user in a cache that no process uses.
pub fn idle_entries(cache: &Folder) -> io::Result<Vec<IdleFolder>> {
    let names = cache.names()?;
    let entries = names.iter().filter(|name| {
        let bytes = name.as_encoded_bytes();
        let mut kinds = EntryKind::ALL.iter();
        kinds.any(|kind| bytes.starts_with(kind.prefix().as_bytes()))
    });
    let open = |name: &OsString| IdleFolder::open(cache, name, is_entry_file);
    Ok(entries.filter_map(open).collect())
}
