//! Opening of untrusted paths: only regular files, and for a model's folder only files within it.
//!
//! Pipes block, devices may have side effects, and a link in a downloaded folder may lead to any
//! file of the user.

use std::fs::{self, File, FileType, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::map::MapError;

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
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    fn text(file: Result<File, MapError>) -> String {
        let mut text = String::new();
        file.unwrap().read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn only_regular_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), "text").unwrap();
        let pipe = Command::new("mkfifo").arg(path("pipe")).status().unwrap();
        assert!(pipe.success());
        let _socket = UnixListener::bind(path("socket")).unwrap();
        symlink("pipe", path("link to pipe")).unwrap();
        assert_eq!(text(open_regular(&path("file"))), "text");
        assert_eq!(text(open_inside(folder.path(), "file")), "text");
        assert_eq!(text(open_stream(&path("file"))), "text");
        for name in ["pipe", "socket", "link to pipe"] {
            for found in [
                open_regular(&path(name)),
                open_inside(folder.path(), name),
                open_stream(&path(name)),
            ] {
                assert!(matches!(found, Err(MapError::NotAFile { .. })), "{name}");
            }
        }
        let device = open_regular(Path::new("/dev/zero"));
        assert!(matches!(device, Err(MapError::NotAFile { .. })));
        let other = open_regular(folder.path());
        assert!(matches!(other, Err(MapError::Folder { .. })));
    }

    #[test]
    fn links_must_stay_in_their_folder_or_cache() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("models--a--b");
        let snapshot = cache.join("snapshots/0123");
        fs::create_dir_all(&snapshot).unwrap();
        fs::create_dir_all(snapshot.join("below")).unwrap();
        fs::create_dir_all(cache.join("blobs/deeper")).unwrap();
        for name in [
            "secret",
            "models--a--b/secret",
            "models--a--b/blobs/4567",
            "models--a--b/blobs/deeper/file",
            "models--a--b/snapshots/0123/file",
            "models--a--b/snapshots/0123/below/file",
        ] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        let secret = folder.path().join("secret");
        for (name, target, allowed) in [
            ("a", Path::new("../../blobs/4567"), true),
            ("b", Path::new("file"), true),
            ("c", Path::new("below/file"), true),
            ("d", Path::new("../../secret"), false),
            ("e", Path::new("../../../secret"), false),
            ("f", &secret, false),
            ("g", Path::new("../../blobs/deeper/file"), false),
            ("h", Path::new("../../blobs/../../secret"), false),
            ("i", Path::new("e"), false),
        ] {
            symlink(target, snapshot.join(name)).unwrap();
            match open_inside(&snapshot, name) {
                Ok(_) => assert!(allowed, "{name}"),
                Err(MapError::LinkOutsideFolder { path, .. }) => {
                    assert!(!allowed && path.ends_with(name), "{name}");
                }
                Err(other) => panic!("{name}: {other}"),
            }
        }
        symlink(&snapshot, folder.path().join("model")).unwrap();
        assert!(open_inside(&folder.path().join("model"), "a").is_ok());
        let planted = folder.path().join("models--c--d/snapshots/0123");
        fs::create_dir_all(&planted).unwrap();
        symlink(folder.path(), folder.path().join("models--c--d/blobs")).unwrap();
        symlink("../../blobs/secret", planted.join("file")).unwrap();
        let found = open_inside(&planted, "file");
        assert!(matches!(found, Err(MapError::LinkOutsideFolder { .. })));
        symlink("nowhere", snapshot.join("dangling")).unwrap();
        let found = open_inside(&snapshot, "dangling");
        assert!(matches!(found, Err(MapError::Io { .. })));
    }
}
