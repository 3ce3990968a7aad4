//! Opening of untrusted paths: only regular files, and for a model's folder only files within it.
//!
//! Pipes block, devices may have side effects, and a link in a downloaded folder may lead to any
//! file of the user.

use std::fs::{self, File, FileType, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::map::MapError;

/// Makes a write beyond the limit of file sizes (`ulimit -f`) an error instead of SIGXFSZ, which ends
/// the process. Libraries should not call it, because signals belong to the program.
pub fn ignore_file_size_signal() {
    #[cfg(unix)]
    // SAFETY: SIG_IGN installs no handler.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Opens a regular file for reading, without blocking.
pub fn open_regular(path: &Path) -> Result<File, MapError> {
    // Opening a device may have side effects, and the file may have been replaced meanwhile.
    check_file_type(path, fs::metadata(path))?;
    open_checked(path, path, true)
}

/// Opens a text stream: a regular file, or a descriptor inherited by this process (`/dev/stdin`,
/// and `/dev/fd/N` for `<(command)`).
pub fn open_stream(path: &Path) -> Result<File, MapError> {
    let inherited = path == Path::new("/dev/stdin")
        || path.parent().is_some_and(|folder| {
            folder == Path::new("/dev/fd") || folder == Path::new("/proc/self/fd")
        });
    let kind = fs::metadata(path).map_err(|error| io_error(path, error))?;
    if inherited && !kind.is_dir() && !kind.is_file() {
        return File::open(path).map_err(|error| io_error(path, error));
    }
    open_regular(path)
}

/// Opens the regular file `name` in `folder`. A link is followed to files in the same folder or
/// below it, or from a snapshot of the Hugging Face hub's cache to its blobs
/// (`MODEL/snapshots/REVISION/name` to `MODEL/blobs/DIGEST`).
pub fn open_inside(folder: &Path, name: &str) -> Result<File, MapError> {
    let path = folder.join(name);
    let kind = fs::symlink_metadata(&path).map_err(|error| io_error(&path, error))?;
    if !kind.is_symlink() {
        check_file_type(&path, Ok(kind))?;
        return open_checked(&path, &path, false);
    }
    let found = |path: &Path| fs::canonicalize(path).map_err(|error| io_error(path, error));
    let target = found(&path)?;
    let home = if folder.as_os_str().is_empty() {
        found(Path::new("."))?
    } else {
        found(folder)?
    };
    if !target.starts_with(&home) && !is_blob(&home, &target) {
        return Err(MapError::LinkOutsideFolder { path, target });
    }
    check_file_type(&path, fs::metadata(&target))?;
    open_checked(&path, &target, false)
}

/// Both paths are canonical, so no link leads out of the cache of snapshot `home`.
fn is_blob(home: &Path, target: &Path) -> bool {
    let snapshots = home
        .ancestors()
        .find(|folder| folder.ends_with("snapshots"));
    let cache = snapshots.and_then(Path::parent);
    cache.is_some_and(|cache| target.parent() == Some(&cache.join("blobs")))
}

/// Opens `place`, reported as `path` in errors. Links are refused unless `follow`.
fn open_checked(path: &Path, place: &Path, follow: bool) -> Result<File, MapError> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt as _;
        let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        if !follow {
            flags |= OFlags::NOFOLLOW;
        }
        options.custom_flags(flags.bits() as i32);
    }
    #[cfg(not(unix))]
    let _ = follow;
    let file = options.open(place).map_err(|error| io_error(path, error))?;
    check_file_type(path, file.metadata())?;
    Ok(file)
}

fn check_file_type(path: &Path, kind: io::Result<fs::Metadata>) -> Result<(), MapError> {
    let kind: FileType = kind.map_err(|error| io_error(path, error))?.file_type();
    let path = || PathBuf::from(path);
    match (kind.is_file(), kind.is_dir()) {
        (true, _) => Ok(()),
        (_, true) => Err(MapError::Folder { path: path() }),
        _ => Err(MapError::NotAFile { path: path() }),
    }
}

fn io_error(path: &Path, error: io::Error) -> MapError {
    MapError::Io {
        path: path.to_owned(),
        error,
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests;
