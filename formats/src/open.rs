//! Opening of untrusted paths: only regular files, and for a model's folder only files within it.
//!
//! Pipes block, devices may have side effects, and a link in a downloaded folder may lead to any
//! file of the user.

use std::fs::{self, File, FileType, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// Error returned when a file cannot be opened or mapped, or a folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "fields that the messages name")]
#[error("{}: {}", self.path().display(), self.reason())]
pub enum OpenError {
    /// A system call failed.
    Io { path: PathBuf, error: io::Error },
    /// The path is a folder.
    Folder { path: PathBuf },
    /// The path is a pipe, socket or device, which cannot be mapped.
    NotAFile { path: PathBuf },
    /// A link leads out of the model's folder.
    LinkOutsideFolder { path: PathBuf, target: PathBuf },
    /// The file is empty.
    Empty { path: PathBuf },
    /// The file stands for one that Git LFS has not fetched.
    LfsPointer { path: PathBuf },
    /// The path is not a folder.
    NotAFolder { path: PathBuf },
    /// The folder belongs to the user with the ID `owner`.
    ForeignOwner { path: PathBuf, owner: u32 },
}

fn describe_io_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            "no such file or folder; check the path".to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            format!("{error}; ask for the right to read it")
        }
        _ => error.to_string(),
    }
}

impl OpenError {
    /// Returns the error of a system call on a path.
    pub fn io(path: impl Into<PathBuf>, error: io::Error) -> OpenError {
        let path = path.into();
        OpenError::Io { path, error }
    }

    /// Returns true if there is no such file.
    pub fn is_not_found(&self) -> bool {
        matches!(self, OpenError::Io { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }

    /// Returns the error without the name of the file or folder.
    pub fn into_io(self) -> io::Error {
        let kind = match self {
            OpenError::Io { error, .. } => return error,
            OpenError::Folder { .. } => io::ErrorKind::IsADirectory,
            OpenError::ForeignOwner { .. } => io::ErrorKind::PermissionDenied,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, self.reason())
    }

    fn path(&self) -> &Path {
        match self {
            OpenError::Io { path, .. }
            | OpenError::Folder { path }
            | OpenError::NotAFile { path }
            | OpenError::LinkOutsideFolder { path, .. }
            | OpenError::Empty { path }
            | OpenError::LfsPointer { path }
            | OpenError::NotAFolder { path }
            | OpenError::ForeignOwner { path, .. } => path,
        }
    }

    fn reason(&self) -> String {
        let reason = match self {
            OpenError::Io { error, .. } => return describe_io_error(error),
            OpenError::LinkOutsideFolder { target, .. } => {
                return format!(
                    "this link leads out of the model's folder, to {}; put the file itself into the \
                     folder",
                    target.display()
                );
            }
            OpenError::ForeignOwner { owner, .. } => {
                return format!("this folder belongs to another user ({owner})");
            }
            OpenError::Folder { .. } => "this is a folder; name the file in it",
            OpenError::NotAFile { .. } => "this is not a regular file; copy its contents to one",
            OpenError::Empty { .. } => "the file is empty; copy or download it again",
            OpenError::LfsPointer { .. } => {
                "a pointer of Git LFS, expected the file itself; run `git lfs pull` in its \
                 repository, or download it again"
            }
            OpenError::NotAFolder { .. } => {
                "a link or a file where a folder of htc's own should be; remove it"
            }
        };
        reason.to_owned()
    }
}

/// Opens a regular file for reading, without blocking.
pub fn open_regular(path: &Path) -> Result<File, OpenError> {
    // Opening a device may have side effects, and the file may have been replaced meanwhile.
    check_file_type(path, fs::metadata(path))?;
    open_checked(path, path, true)
}

/// Opens a text stream: a regular file, or a descriptor inherited by this process (`/dev/stdin`,
/// and `/dev/fd/N` for `<(command)`).
pub fn open_stream(path: &Path) -> Result<File, OpenError> {
    let inherited = path == Path::new("/dev/stdin")
        || path.parent().is_some_and(|folder| {
            folder == Path::new("/dev/fd") || folder == Path::new("/proc/self/fd")
        });
    let kind = fs::metadata(path).map_err(|error| OpenError::io(path, error))?;
    if inherited && !kind.is_dir() && !kind.is_file() {
        return File::open(path).map_err(|error| OpenError::io(path, error));
    }
    open_regular(path)
}

/// Opens the regular file `name` in `folder`. A link is followed to files in the same folder or
/// below it, or from a snapshot of the Hugging Face hub's cache to its blobs
/// (`MODEL/snapshots/REVISION/name` to `MODEL/blobs/DIGEST`).
pub fn open_inside(folder: &Path, name: &str) -> Result<File, OpenError> {
    let path = folder.join(name);
    let kind = fs::symlink_metadata(&path).map_err(|error| OpenError::io(&path, error))?;
    if !kind.is_symlink() {
        check_file_type(&path, Ok(kind))?;
        return open_checked(&path, &path, false);
    }
    let found = |path: &Path| fs::canonicalize(path).map_err(|error| OpenError::io(path, error));
    let target = found(&path)?;
    let home = if folder.as_os_str().is_empty() {
        found(Path::new("."))?
    } else {
        found(folder)?
    };
    if !target.starts_with(&home) && !is_blob(&home, &target) {
        return Err(OpenError::LinkOutsideFolder { path, target });
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
fn open_checked(path: &Path, place: &Path, follow: bool) -> Result<File, OpenError> {
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
    let file = options
        .open(place)
        .map_err(|error| OpenError::io(path, error))?;
    check_file_type(path, file.metadata())?;
    if is_lfs_pointer(&file).map_err(|error| OpenError::io(path, error))? {
        return Err(OpenError::LfsPointer { path: path.into() });
    }
    Ok(file)
}

/// Returns true for a pointer as in the specification of Git LFS.
fn is_lfs_pointer(file: &File) -> io::Result<bool> {
    const FIRST_LINE: &[u8] = b"version https://git-lfs.github.com/spec/v1\n";
    const MAX_BYTES: u64 = 1024;
    let bytes = file.metadata()?.len();
    if bytes < FIRST_LINE.len() as u64 || bytes >= MAX_BYTES {
        return Ok(false);
    }
    let mut line = [0; FIRST_LINE.len()];
    let found = read_start(file, &mut line)?;
    Ok(line[..found] == *FIRST_LINE)
}

/// Reads the first bytes, without a change of the position.
#[cfg(unix)]
fn read_start(file: &File, bytes: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, bytes, 0)
}

#[cfg(not(unix))]
fn read_start(mut file: &File, bytes: &mut [u8]) -> io::Result<usize> {
    use std::io::{Read as _, Seek as _};
    let found = file.read(bytes)?;
    file.rewind()?;
    Ok(found)
}

fn check_file_type(path: &Path, kind: io::Result<fs::Metadata>) -> Result<(), OpenError> {
    let kind: FileType = kind
        .map_err(|error| OpenError::io(path, error))?
        .file_type();
    let path = || PathBuf::from(path);
    match (kind.is_file(), kind.is_dir()) {
        (true, _) => Ok(()),
        (_, true) => Err(OpenError::Folder { path: path() }),
        _ => Err(OpenError::NotAFile { path: path() }),
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests;
