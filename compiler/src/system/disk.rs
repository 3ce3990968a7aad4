//! Room on the disk, and files that are complete or not there.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Bytes that may still be written to the file system of a folder; `None` where the system does not
/// say so, or where the file system has no size of its own.
#[cfg(unix)]
pub fn free(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    (found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize))
}

/// Unknown on this system.
#[cfg(not(unix))]
pub fn free(_: &Path) -> Option<u64> {
    None
}

/// The folder that a file is written to.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Whether two paths lead to one file, which need not exist yet.
pub(crate) fn same_place(a: &Path, b: &Path) -> bool {
    let place = |path: &Path| -> Option<PathBuf> {
        fs::canonicalize(path).ok().or_else(|| {
            let folder = match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            Some(fs::canonicalize(folder).ok()?.join(path.file_name()?))
        })
    };
    a == b || same_inode(a, b) || place(a).is_some_and(|a| Some(a) == place(b))
}

/// Whether two names are hard links of one file.
#[cfg(unix)]
fn same_inode(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    match (fs::metadata(a), fs::metadata(b)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

/// Unknown on this system.
#[cfg(not(unix))]
fn same_inode(_: &Path, _: &Path) -> bool {
    false
}

/// Writes a file beside its place and moves it there when it is complete. It is not forced to the
/// disk: what a crash of the system leaves of it is found out by its digest.
///
/// # Errors
/// What the system says; the place is as it was then.
pub fn replace(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    // A device or a pipe is written to; a file would take its place.
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        let mut to = BufWriter::new(File::create(path)?);
        write(&mut to)?;
        return to.flush();
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.unfinished", std::process::id()));
    let unfinished = PathBuf::from(name);
    let attempt = || -> io::Result<()> {
        let mut to = BufWriter::with_capacity(1 << 20, File::create(&unfinished)?);
        write(&mut to)?;
        to.flush()?;
        fs::rename(&unfinished, path)
    };
    attempt().inspect_err(|_| {
        // The first error is the one to tell.
        let _ = fs::remove_file(&unfinished);
    })
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_some_room_and_what_is_not_there_has_none() {
        let folder = tempfile::tempdir().unwrap();
        assert!(free(folder.path()).is_some_and(|bytes| bytes < 1 << 60));
        assert_eq!(free(&folder.path().join("no")), None);
        assert_eq!(folder_of(Path::new("a/b.htz")), Path::new("a"));
        assert_eq!(folder_of(Path::new("b.htz")), Path::new("."));
    }
}
