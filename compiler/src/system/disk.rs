//! Free disk space, and atomic writes of files.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use htc_formats::folder::{Folder, TemporaryFile};

use super::error::FileError;

/// Returns the available bytes of a folder's file system, if known.
#[cfg(unix)]
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    (found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize))
}

/// Unknown here.
#[cfg(not(unix))]
pub fn free_bytes(_: &Path) -> Option<u64> {
    None
}

/// Returns the folder of a file.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Returns true if two paths are the same file, which need not exist yet.
pub(crate) fn is_same_file(a: &Path, b: &Path) -> bool {
    let place = |path: &Path| -> Option<PathBuf> {
        fs::canonicalize(path).ok().or_else(|| {
            let folder = fs::canonicalize(folder_of(path)).ok()?;
            Some(folder.join(path.file_name()?))
        })
    };
    a == b || same_inode(a, b) || place(a).is_some_and(|a| Some(a) == place(b))
}

#[cfg(unix)]
fn same_inode(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    match (fs::metadata(a), fs::metadata(b)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

#[cfg(not(unix))]
fn same_inode(_: &Path, _: &Path) -> bool {
    false
}

/// Checks that a file can be created at `path`.
///
/// # Errors
/// [`FileError::Write`].
pub fn check_writable(path: &Path) -> Result<(), FileError> {
    let check = || match fs::metadata(path) {
        Ok(found) if !found.is_file() => Ok(()),
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => {
            let (folder, _) = Folder::parent_of(path)?;
            folder.temporary(0o600).map(|_| ())
        }
    };
    check().map_err(FileError::write(path))
}

/// Writes a text atomically, without sync; keeps the permissions of a replaced file. Writes to
/// special files such as devices, if they may be replaced.
///
/// # Errors
/// [`FileError::Write`].
pub fn write(path: &Path, text: &str, replace: bool) -> Result<(), FileError> {
    let write = || {
        if replace && fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return open_special(path)?.write_all(text.as_bytes());
        }
        let (folder, name) = Folder::parent_of(path)?;
        write_in(&folder, &name, replace, |to| to.write_all(text.as_bytes()))
    };
    write().map_err(FileError::write(path))
}

/// Writes two texts atomically, without sync: both files or, unless the second replacement fails,
/// none; keeps the permissions of replaced files.
///
/// # Errors
/// [`FileError::Write`].
pub fn write_both(files: [(&Path, &str); 2], replace: bool) -> Result<(), FileError> {
    let [(first, text), (second, second_text)] = files;
    let (folder, name) = Folder::parent_of(first).map_err(FileError::write(first))?;
    let written = temporary_with(&folder, &name, |to| to.write_all(text.as_bytes()))
        .map_err(FileError::write(first))?;
    write(second, second_text, replace)?;
    written.persist(&name, replace).map_err(|error| {
        if !replace {
            // Otherwise a file would stay that nobody is told of.
            let _ = fs::remove_file(second);
        }
        FileError::write(first)(error)
    })
}

/// Writes the file `name` of an open folder atomically, without sync; keeps the permissions of a
/// replaced file.
pub fn write_in(
    folder: &Folder,
    name: &OsStr,
    replace: bool,
    write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> io::Result<()> {
    temporary_with(folder, name, write)?.persist(name, replace)
}

/// Writes a temporary file that may become the file `name` of an open folder.
fn temporary_with<'a>(
    folder: &'a Folder,
    name: &OsStr,
    write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> io::Result<TemporaryFile<'a>> {
    let temporary = folder.temporary(folder.mode_for_replacement(name))?;
    let mut to = BufWriter::with_capacity(1 << 20, temporary.file()?);
    write(&mut to)?;
    to.flush()?;
    drop(to);
    Ok(temporary)
}

/// Fails on a pipe without a reader.
#[cfg(unix)]
fn open_special(path: &Path) -> io::Result<File> {
    use rustix::fs::OFlags;
    use std::os::unix::fs::OpenOptionsExt as _;
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = OpenOptions::new();
    let file = options.write(true).custom_flags(flags.bits() as i32);
    let file = file.open(path).map_err(|error| {
        if error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) {
            io::Error::other("nobody reads this pipe")
        } else {
            error
        }
    })?;
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    Ok(file)
}

#[cfg(not(unix))]
fn open_special(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).open(path)
}

#[cfg(all(test, unix))]
mod tests;
