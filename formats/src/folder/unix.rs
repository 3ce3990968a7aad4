//! Folders by handle, with the `*at` system calls of Unix.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{EntryMetadata, Folder};
use crate::open::OpenError;

pub(super) type Handle = File;

pub(super) enum OpenMode {
    Read,
    Edit,
    /// The file must not exist and gets these permissions.
    New(u32),
}

/// Flags of a handle for look-ups; needs no read permission where the system supports such handles.
#[cfg(any(target_os = "linux", target_os = "android"))]
const LOOK_UP: OFlags = OFlags::PATH;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const LOOK_UP: OFlags = OFlags::RDONLY;

pub(super) fn open(path: &Path) -> io::Result<Handle> {
    let flags = LOOK_UP | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?.into())
}

pub(super) fn make(at: &Handle, name: &OsStr, private: bool) -> io::Result<()> {
    let mode = if private {
        Mode::RWXU
    } else {
        Mode::RWXU | Mode::RWXG | Mode::RWXO
    };
    Ok(rustix::fs::mkdirat(at, name, mode)?)
}

pub(super) fn enter(at: &Handle, path: &Path, name: &OsStr) -> Result<Handle, OpenError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(at, name, flags, Mode::empty()) {
        Ok(handle) => Ok(handle.into()),
        // Errors of various systems for a link under O_NOFOLLOW.
        Err(Errno::LOOP | Errno::MLINK | Errno::NOTDIR) => Err(OpenError::NotAFolder {
            path: path.to_owned(),
        }),
        Err(error) => Err(OpenError::io(path, error.into())),
    }
}

fn foreign_owner(owner: u32, system: bool) -> Option<u32> {
    let ours = owner == rustix::process::geteuid().as_raw() || (system && owner == 0);
    (!ours).then_some(owner)
}

/// Returns the owner of a folder of another user. With `system`, the system's user is accepted.
pub(super) fn foreign_owner_of_folder(handle: &Handle, system: bool) -> io::Result<Option<u32>> {
    Ok(foreign_owner(handle.metadata()?.uid(), system))
}

pub(super) fn foreign_owner_of_file(found: &Metadata, system: bool) -> Option<u32> {
    foreign_owner(found.uid(), system)
}

pub(super) fn has_hard_links(found: &Metadata) -> bool {
    found.nlink() > 1
}

pub(super) fn remove_foreign_write_permission(handle: &Handle) -> io::Result<()> {
    let mode = handle.metadata()?.mode() & 0o7777;
    match mode & 0o022 {
        0 => Ok(()),
        _ => handle.set_permissions(Permissions::from_mode(mode & !0o022)),
    }
}

pub(super) fn file(at: &Handle, _: &Path, name: &OsStr, wanted: OpenMode) -> io::Result<File> {
    let (flags, mode) = match wanted {
        OpenMode::Read => (OFlags::RDONLY, 0),
        OpenMode::Edit => (OFlags::RDWR | OFlags::CREATE, 0o666),
        OpenMode::New(mode) => (OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, mode),
    };
    // A pipe in place of the file is rejected after opening.
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mode = Mode::from_bits_truncate(mode as _);
    match rustix::fs::openat(at, name, flags, mode) {
        Ok(file) => Ok(file.into()),
        Err(Errno::LOOP | Errno::MLINK) => {
            Err(io::Error::other("a link in the place of a file; remove it"))
        }
        Err(Errno::NXIO) => Err(io::Error::other("not a regular file; remove it")),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn rename(
    from: &Folder,
    name: &OsStr,
    to: &Folder,
    new: &OsStr,
    replace: bool,
) -> io::Result<()> {
    let (from, to) = (&from.handle, &to.handle);
    if replace {
        return Ok(rustix::fs::renameat(from, name, to, new)?);
    }
    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    {
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(from, name, to, new, flags) {
            // The file system does not support the flag.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
            done => return Ok(done?),
        }
    }
    rustix::fs::linkat(from, name, to, new, AtFlags::empty())?;
    Ok(rustix::fs::unlinkat(from, name, AtFlags::empty())?)
}

#[allow(
    clippy::useless_conversion,
    reason = "the type is narrower on other systems"
)]
pub(super) fn mode(at: &Handle, _: &Path, name: &OsStr) -> Option<u32> {
    let found = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    is_file.then_some(u32::from(found.st_mode) & 0o777)
}

pub(super) fn set_mode(file: &File, mode: u32) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(mode))
}

pub(super) fn find(at: &Handle, _: &Path, name: &OsStr) -> io::Result<EntryMetadata> {
    let found = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let kind = FileType::from_raw_mode(found.st_mode);
    let seconds = u64::try_from(found.st_mtime).ok().map(Duration::from_secs);
    Ok(EntryMetadata {
        is_file: kind == FileType::RegularFile,
        is_folder: kind == FileType::Directory,
        length: u64::try_from(found.st_size).unwrap_or(0),
        modified: seconds.and_then(|after| SystemTime::UNIX_EPOCH.checked_add(after)),
    })
}

pub(super) fn remove(at: &Handle, _: &Path, name: &OsStr, folder: bool) -> io::Result<()> {
    let flags = if folder {
        AtFlags::REMOVEDIR
    } else {
        AtFlags::empty()
    };
    Ok(rustix::fs::unlinkat(at, name, flags)?)
}

fn reopen_readable(at: &Handle) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, ".", flags, Mode::empty())?.into())
}

pub(super) fn names(at: &Handle, _: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::new(reopen_readable(at)?)? {
        let name = OsString::from_vec(entry?.file_name().to_bytes().to_vec());
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}

pub(super) fn is_same(one: &Handle, other: &Handle) -> bool {
    match (one.metadata(), other.metadata()) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}

pub(super) fn sync(at: &Handle) -> io::Result<()> {
    reopen_readable(at)?.sync_all()
}
