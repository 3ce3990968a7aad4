//! Removal of the leftovers of earlier runs.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use htc_formats::folder::{Folder, UNFINISHED_SUFFIX};

use crate::calibrate::cache;
use crate::make::work::{idle_work_folders, is_older};
use crate::system::error::FileError;

/// Younger ones may still be written to.
const UNFINISHED_AGE: Duration = Duration::from_secs(60 * 60);

/// Request for [`clean`].
#[derive(Clone, Debug)]
pub struct CleanRequest {
    /// Folders with artifacts; not searched recursively.
    pub folders: Vec<PathBuf>,
    /// Cache folder, if it is to be cleaned.
    pub cache: Option<PathBuf>,
    /// Minimum time since the last write.
    pub age: Duration,
    /// Report only, remove nothing.
    pub dry_run: bool,
}

/// Leftover of an earlier run, and the result of removing it.
#[derive(Debug)]
pub struct Leftover {
    /// Path.
    pub path: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// Time of the last write.
    pub modified: Option<SystemTime>,
    /// Result of the removal; always `Ok` in a dry run.
    pub removed: io::Result<()>,
}

/// Removes leftovers of this user's runs that no process uses, and calls `tell` for each.
///
/// # Errors
/// [`FileError::Access`] if a folder cannot be read.
pub fn clean(request: &CleanRequest, mut tell: impl FnMut(&Leftover)) -> Result<(), FileError> {
    let CleanRequest {
        folders,
        cache,
        age,
        dry_run,
    } = request;
    let mut done = |path: PathBuf, bytes, modified, remove: &dyn Fn() -> io::Result<()>| {
        if is_older(modified, *age) {
            let removed = if *dry_run { Ok(()) } else { remove() };
            tell(&Leftover {
                path,
                bytes,
                modified,
                removed,
            });
        }
    };
    let cache = cache.iter().filter(|path| path.exists());
    for path in folders.iter().chain(cache.clone()) {
        let failed = FileError::access(path);
        let folder = Folder::open(path).map_err(&failed)?;
        for found in idle_work_folders(&folder).map_err(&failed)? {
            let place = path.join(&found.name);
            done(place, found.bytes, found.modified, &|| {
                found.remove(&folder)
            });
        }
        for name in folder.names().map_err(&failed)? {
            if let Some((bytes, modified)) = stale_file(&folder, &name) {
                done(path.join(&name), bytes, modified, &|| folder.remove(&name));
            }
            if let Some(inside) = stale_folder(&folder, &name) {
                let (bytes, modified) = inside.size_and_modified();
                done(path.join(&name), bytes, modified, &|| {
                    let names = inside.names()?;
                    names.iter().try_for_each(|file| inside.remove(file))?;
                    folder.remove_folder(&name)
                });
            }
        }
    }
    for path in cache {
        let failed = FileError::access(path);
        let folder = Folder::open(path).map_err(&failed)?;
        for found in cache::idle_entries(&folder).map_err(&failed)? {
            let place = path.join(&found.name);
            done(place, found.bytes, found.modified, &|| {
                found.remove(&folder)
            });
        }
    }
    Ok(())
}

fn is_unfinished(name: &OsStr) -> bool {
    let bytes = name.as_encoded_bytes();
    bytes.starts_with(b".htc-") && bytes.ends_with(UNFINISHED_SUFFIX.as_bytes())
}

fn stale_folder(folder: &Folder, name: &OsStr) -> Option<Folder> {
    let inside = folder.open_existing(name, false);
    let inside = is_unfinished(name).then_some(inside)?.ok()?;
    let (_, modified) = inside.size_and_modified();
    is_older(modified, UNFINISHED_AGE).then_some(inside)
}

fn stale_file(folder: &Folder, name: &OsStr) -> Option<(u64, Option<SystemTime>)> {
    if !is_unfinished(name) {
        return None;
    }
    let found = folder.open_for_reading(name).ok()?.metadata().ok()?;
    let modified = found.modified().ok();
    is_older(modified, UNFINISHED_AGE).then_some((found.len(), modified))
}
