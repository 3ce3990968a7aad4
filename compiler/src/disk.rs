//! How much room there is for an artifact.

use std::path::Path;

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
