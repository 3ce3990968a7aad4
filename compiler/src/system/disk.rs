//! Room on the disk, and files that are complete or not there.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use htc_formats::folder::Folder;

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

/// Makes sure that a file can be written to a place, before the work whose result it is: the name is
/// one that the file system takes, and a file can be made beside it.
///
/// # Errors
/// What the system says.
pub fn check(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        // Written to as it is; whether it takes anything is found out then.
        Ok(found) if !found.is_file() => return Ok(()),
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let (folder, _) = Folder::of(path)?;
    folder.temporary(0o600).map(|_| ())
}

/// Writes a file beside its place, under a name that nobody can know, and moves it there when it is
/// complete; one that is replaced passes its permissions on. Where nothing may be replaced, what has
/// the name is kept. The file is not forced to the disk: what a crash of the system leaves of it is
/// found out by its digest.
///
/// # Errors
/// What the system says; the place is as it was then.
pub fn write(
    path: &Path,
    replace: bool,
    write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> io::Result<()> {
    // A device or a pipe is written to; a file would take its place.
    if replace && fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        let file = special(path)?;
        let mut to = BufWriter::new(&file);
        write(&mut to)?;
        return to.flush();
    }
    let (folder, name) = Folder::of(path)?;
    write_in(&folder, &name, replace, write)
}

/// As [`write()`], for the file `name` of an open folder.
///
/// # Errors
/// What the system says; the place is as it was then.
pub fn write_in(
    folder: &Folder,
    name: &OsStr,
    replace: bool,
    write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> io::Result<()> {
    let temporary = folder.temporary(folder.mode(name))?;
    let mut to = BufWriter::with_capacity(1 << 20, temporary.file()?);
    write(&mut to)?;
    to.flush()?;
    drop(to);
    temporary.persist(name, replace)
}

/// Opens a device or a pipe for writing. A pipe that nobody reads is refused instead of waited for.
#[cfg(unix)]
fn special(path: &Path) -> io::Result<File> {
    use rustix::fs::OFlags;
    use std::os::unix::fs::OpenOptionsExt as _;
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = OpenOptions::new();
    let file = options.write(true).custom_flags(flags.bits() as i32);
    let file = file.open(path).map_err(|error| {
        match error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) {
            true => io::Error::other("nobody reads this pipe"),
            false => error,
        }
    })?;
    // Only opening must not wait.
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Opens a device for writing.
#[cfg(not(unix))]
fn special(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).open(path)
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

    #[test]
    fn a_file_is_complete_or_not_there() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("n".repeat(255));
        let names = || fs::read_dir(folder.path()).unwrap().count();
        check(&path).unwrap();
        assert!(check(&folder.path().join("n".repeat(256))).is_err());
        assert!(check(&folder.path().join("no/such")).is_err());
        let failing = |to: &mut BufWriter<&File>| {
            to.write_all(b"half")?;
            Err(io::Error::from(ErrorKind::StorageFull))
        };
        assert!(write(&path, false, failing).is_err());
        assert_eq!(names(), 0);
        write(&path, false, |to| to.write_all(b"one")).unwrap();
        let taken = write(&path, false, |to| to.write_all(b"two"));
        assert_eq!(taken.unwrap_err().kind(), ErrorKind::AlreadyExists);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        write(&path, true, |to| to.write_all(b"three")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"three");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!((mode & 0o777, names()), (0o600, 1));
    }
}
