//! Folders by path, for systems without handles. Links are checked, owners are not.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use super::{EntryMetadata, Folder};
use crate::open::OpenError;

pub(super) type Handle = PathBuf;

pub(super) enum OpenMode {
    Read,
    Edit,
    /// The file must not exist.
    #[allow(dead_code, reason = "permissions of files are not those of Unix here")]
    New(u32),
}

pub(super) fn open(path: &Path) -> io::Result<Handle> {
    if fs::metadata(path)?.is_dir() {
        fs::canonicalize(path)
    } else {
        Err(io::ErrorKind::NotADirectory.into())
    }
}

pub(super) fn make(at: &Handle, name: &OsStr, _: bool) -> io::Result<()> {
    fs::create_dir(at.join(name))
}

pub(super) fn enter(at: &Handle, path: &Path, name: &OsStr) -> Result<Handle, OpenError> {
    let place = at.join(name);
    match fs::symlink_metadata(&place) {
        Ok(found) if found.is_dir() => Ok(place),
        Ok(_) => Err(OpenError::NotAFolder {
            path: path.to_owned(),
        }),
        Err(error) => Err(OpenError::io(path, error)),
    }
}

pub(super) fn foreign_owner_of_folder(_: &Handle, _: bool) -> io::Result<Option<u32>> {
    Ok(None)
}

pub(super) fn foreign_owner_of_file(_: &Metadata, _: bool) -> Option<u32> {
    None
}

pub(super) fn has_hard_links(_: &Metadata) -> bool {
    false
}

pub(super) fn remove_foreign_write_permission(_: &Handle) -> io::Result<()> {
    Ok(())
}

pub(super) fn file(at: &Handle, _: &Path, name: &OsStr, wanted: OpenMode) -> io::Result<File> {
    let path = at.join(name);
    let is_link = fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink());
    if is_link {
        return Err(io::Error::other("a link in the place of a file; remove it"));
    }
    let mut options = OpenOptions::new();
    options.read(true);
    match wanted {
        OpenMode::Read => &mut options,
        OpenMode::Edit => options.write(true).create(true).truncate(false),
        OpenMode::New(_) => options.write(true).create_new(true),
    };
    options.open(path)
}

pub(super) fn rename(
    from: &Folder,
    name: &OsStr,
    to: &Folder,
    new: &OsStr,
    replace: bool,
) -> io::Result<()> {
    let (from, to) = (from.handle.join(name), to.handle.join(new));
    if replace {
        return fs::rename(from, to);
    }
    fs::hard_link(&from, to)?;
    fs::remove_file(from)
}

pub(super) fn mode(_: &Handle, _: &Path, _: &OsStr) -> Option<u32> {
    None
}

pub(super) fn set_mode(_: &File, _: u32) -> io::Result<()> {
    Ok(())
}

pub(super) fn find(at: &Handle, _: &Path, name: &OsStr) -> io::Result<EntryMetadata> {
    let found = fs::symlink_metadata(at.join(name))?;
    Ok(EntryMetadata {
        is_file: found.is_file(),
        is_folder: found.is_dir(),
        length: found.len(),
        modified: found.modified().ok(),
    })
}

pub(super) fn remove(at: &Handle, _: &Path, name: &OsStr, folder: bool) -> io::Result<()> {
    if folder {
        fs::remove_dir(at.join(name))
    } else {
        fs::remove_file(at.join(name))
    }
}

pub(super) fn names(at: &Handle, _: &Path) -> io::Result<Vec<OsString>> {
    fs::read_dir(at)?
        .map(|entry| Ok(entry?.file_name()))
        .collect()
}

pub(super) fn is_same(one: &Handle, other: &Handle) -> bool {
    one == other
}

/// Does nothing: these systems keep names in their own journal.
pub(super) fn sync(_: &Handle) -> io::Result<()> {
    Ok(())
}
