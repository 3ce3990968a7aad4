//! What earlier runs left: work that nobody went on with, unfinished files, statistics in the cache.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use htc_formats::folder::{Folder, UNFINISHED};
use thiserror::Error;

use crate::calibrate::cache;
use crate::make::work::{Idle, is_older};

/// A file that is written lies unfinished for moments.
const UNFINISHED_AGE: Duration = Duration::from_secs(60 * 60);

/// What to clean.
#[derive(Clone, Debug)]
pub struct Clean {
    /// Folders with artifacts; those in them are not looked into.
    pub folders: Vec<PathBuf>,
    /// The folder of the cache, if it is to be cleaned.
    pub cache: Option<PathBuf>,
    /// How long ago something was last written to, at least.
    pub age: Duration,
    /// Whether nothing is removed.
    pub dry_run: bool,
}

/// What was left, and what became of it.
#[derive(Debug)]
pub struct Leftover {
    /// Where it is, or was.
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: u64,
    /// When it was last written to.
    pub modified: Option<SystemTime>,
    /// Whether it is removed, or why it is not; in a dry run it would be.
    pub removed: io::Result<()>,
}

/// Why nothing is cleaned.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CleanError {
    /// A folder cannot be read.
    #[error("{}: {error}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

/// Removes what this user's runs left, and nothing that a running one uses; each is told.
///
/// # Errors
/// [`CleanError`] where a folder cannot be read.
pub fn clean(request: &Clean, mut tell: impl FnMut(&Leftover)) -> Result<(), CleanError> {
    let Clean {
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
    // A cache that was never made has nothing to be cleaned.
    let cache = cache.iter().filter(|path| path.exists());
    for path in folders.iter().chain(cache.clone()) {
        let failed = |error| CleanError::Folder {
            path: path.clone(),
            error,
        };
        let folder = Folder::open(path).map_err(failed)?;
        for found in Idle::all(&folder).map_err(failed)? {
            let place = path.join(&found.name);
            done(place, found.bytes, found.modified, &|| {
                found.remove(&folder)
            });
        }
        for name in folder.names().map_err(failed)? {
            if let Some((bytes, modified)) = unfinished(&folder, &name) {
                done(path.join(&name), bytes, modified, &|| folder.remove(&name));
            }
            if let Some(inside) = unfinished_folder(&folder, &name) {
                let (bytes, modified) = inside.size();
                done(path.join(&name), bytes, modified, &|| {
                    let names = inside.names()?;
                    names.iter().try_for_each(|file| inside.remove(file))?;
                    folder.remove_folder(&name)
                });
            }
        }
    }
    for path in cache {
        let found = cache::idle(path).map_err(|error| CleanError::Folder {
            path: path.clone(),
            error,
        })?;
        for found in found {
            done(found.path.clone(), found.bytes, found.modified, &|| {
                found.remove()
            });
        }
    }
    Ok(())
}

/// Whether a name is one of what is not complete.
fn is_unfinished(name: &OsStr) -> bool {
    let bytes = name.as_encoded_bytes();
    bytes.starts_with(b".htc-") && bytes.ends_with(UNFINISHED.as_bytes())
}

/// A folder of ours that a program which ended left unfinished.
fn unfinished_folder(folder: &Folder, name: &OsStr) -> Option<Folder> {
    let inside = folder.existing(name, false);
    let inside = is_unfinished(name).then_some(inside)?.ok()?;
    let (_, modified) = inside.size();
    is_older(modified, UNFINISHED_AGE).then_some(inside)
}

/// Bytes and age of a file of ours that a program which ended left unfinished.
fn unfinished(folder: &Folder, name: &OsStr) -> Option<(u64, Option<SystemTime>)> {
    if !is_unfinished(name) {
        return None;
    }
    let found = folder.read(name).ok()?.metadata().ok()?;
    let modified = found.modified().ok();
    is_older(modified, UNFINISHED_AGE).then_some((found.len(), modified))
}
