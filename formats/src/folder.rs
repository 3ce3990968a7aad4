//! Folders by handle, which other users cannot replace by a folder or link of their own.
//!
//! A private folder ([`Folder::open_private`]) belongs to the user of the process, and no other
//! user may write to it. On systems other than Unix, paths replace handles, and owners are not
//! checked.

#[cfg(not(unix))]
mod names;
#[cfg(unix)]
mod unix;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::open::OpenError;
#[cfg(not(unix))]
use names as sys;
#[cfg(unix)]
use unix as sys;

/// Suffix of the name of an incomplete file.
pub const UNFINISHED_SUFFIX: &str = ".unfinished";

/// Attempts to find a free name; with 64 random bits the first one succeeds.
const ATTEMPTS: usize = 16;

/// Returns the user's cache folder for htc, if the environment defines one.
pub fn user_cache() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    match (variable("XDG_CACHE_HOME"), variable("HOME")) {
        (Some(cache), _) => Some(PathBuf::from(cache).join("htc")),
        (None, Some(home)) => Some(PathBuf::from(home).join(".cache/htc")),
        (None, None) => None,
    }
}

/// An open folder.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    handle: sys::Handle,
    trusted: bool,
}

/// Metadata of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryMetadata {
    /// A regular file, not a link to one.
    pub is_file: bool,
    /// A folder, not a link to one.
    pub is_folder: bool,
    /// Size in bytes.
    pub length: u64,
    /// Time of the last modification, if known.
    pub modified: Option<SystemTime>,
}

impl Folder {
    /// Opens a folder named by the user, of any owner; links are followed.
    pub fn open(path: &Path) -> io::Result<Folder> {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        Ok(Folder {
            handle: sys::open(path)?,
            path: path.to_owned(),
            trusted: false,
        })
    }

    /// Opens the folder of a file.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidFilename`] if the path names no file.
    pub fn parent_of(path: &Path) -> io::Result<(Folder, OsString)> {
        let name = path.file_name().ok_or(ErrorKind::InvalidFilename)?;
        let folder = Folder::open(path.parent().unwrap_or(Path::new("")))?;
        Ok((folder, name.to_owned()))
    }

    /// Opens the private folder `name`, creating it if missing.
    pub fn open_private(&self, name: &OsStr) -> Result<Folder, OpenError> {
        let path = self.path.join(name);
        let io = |error| OpenError::io(&path, error);
        match sys::make(&self.handle, name, true) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(io(error)),
            _ => {}
        }
        let handle = sys::enter(&self.handle, &path, name)?;
        if let Some(owner) = sys::foreign_owner_of_folder(&handle, false).map_err(io)? {
            return Err(OpenError::ForeignOwner { path, owner });
        }
        sys::remove_foreign_write_permission(&handle).map_err(io)?;
        Ok(Folder {
            handle,
            path,
            trusted: false,
        })
    }

    /// Opens the folder `name` for reading, of this user or the system unless `trusted`.
    pub fn open_existing(&self, name: &OsStr, trusted: bool) -> Result<Folder, OpenError> {
        let path = self.path.join(name);
        let handle = sys::enter(&self.handle, &path, name)?;
        let foreign = if trusted {
            Ok(None)
        } else {
            sys::foreign_owner_of_folder(&handle, true)
        };
        match foreign {
            Ok(Some(owner)) => Err(OpenError::ForeignOwner { path, owner }),
            Ok(None) => Ok(Folder {
                handle,
                path,
                trusted,
            }),
            Err(error) => Err(OpenError::io(path, error)),
        }
    }

    /// Path by which the folder was opened, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the regular file `name`, no link, for reading.
    pub fn open_for_reading(&self, name: &OsStr) -> io::Result<File> {
        let file = sys::file(&self.handle, &self.path, name, sys::OpenMode::Read)?;
        self.check(&file, false)?;
        Ok(file)
    }

    /// Opens the file `name` for reading and writing, creating it if missing; it must be a regular
    /// file of this user, without links.
    pub fn open_for_writing(&self, name: &OsStr) -> io::Result<File> {
        let file = sys::file(&self.handle, &self.path, name, sys::OpenMode::Edit)?;
        self.check(&file, true)?;
        Ok(file)
    }

    fn check(&self, file: &File, written: bool) -> io::Result<()> {
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(io::Error::other("not a regular file; remove it"));
        }
        if written && sys::has_hard_links(&found) {
            let said = "the file has another name elsewhere; remove this one";
            return Err(io::Error::other(said));
        }
        match sys::foreign_owner_of_file(&found, !written) {
            Some(owner) if written || !self.trusted => Err(io::Error::new(
                ErrorKind::PermissionDenied,
                format!("the file belongs to another user ({owner})"),
            )),
            _ => Ok(()),
        }
    }

    /// Creates a file with an unused random name and permissions `mode`, less the umask, that is
    /// removed on drop.
    pub fn temporary(&self, mode: u32) -> io::Result<TemporaryFile<'_>> {
        let (name, file) = self.create_unfinished(mode)?;
        Ok(TemporaryFile {
            folder: self,
            name,
            file: Some(file),
        })
    }

    /// Creates a folder with an unused random name that is removed on drop, with its files.
    pub fn temporary_folder(&self) -> io::Result<TemporaryFolder<'_>> {
        for _ in 0..ATTEMPTS {
            let name = random_name()?;
            match sys::make(&self.handle, &name, false) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                made => made?,
            }
            let folder = self.open_existing(&name, false);
            return Ok(TemporaryFolder {
                folder: folder.map_err(OpenError::into_io)?,
                parent: self,
                name,
                persisted: false,
            });
        }
        Err(ErrorKind::AlreadyExists.into())
    }

    /// Creates a file like [`temporary`](Folder::temporary) that is not removed on drop.
    pub fn create_unfinished(&self, mode: u32) -> io::Result<(OsString, File)> {
        for _ in 0..ATTEMPTS {
            let name = random_name()?;
            match sys::file(&self.handle, &self.path, &name, sys::OpenMode::New(mode)) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                file => return Ok((name, file?)),
            }
        }
        Err(ErrorKind::AlreadyExists.into())
    }

    /// Renames the file `name`, optionally into another folder of the same file system.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] for an existing target, unless `replace`.
    pub fn rename(&self, name: &OsStr, to: &Folder, new: &OsStr, replace: bool) -> io::Result<()> {
        sys::rename(self, name, to, new, replace)
    }

    /// Returns the permissions for a file that will replace `name`.
    pub fn mode_for_replacement(&self, name: &OsStr) -> u32 {
        sys::mode(&self.handle, &self.path, name).unwrap_or(0o666)
    }

    /// Copies the permissions of the regular file `name`, which `file` will replace.
    pub fn copy_mode(&self, name: &OsStr, file: &File) -> io::Result<()> {
        match sys::mode(&self.handle, &self.path, name) {
            Some(mode) => sys::set_mode(file, mode),
            None => Ok(()),
        }
    }

    /// Returns the metadata of an entry, without following links.
    pub fn metadata(&self, name: &OsStr) -> io::Result<EntryMetadata> {
        sys::find(&self.handle, &self.path, name)
    }

    /// Removes a file, or a link itself.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        sys::remove(&self.handle, &self.path, name, false)
    }

    /// Removes an empty folder.
    pub fn remove_folder(&self, name: &OsStr) -> io::Result<()> {
        sys::remove(&self.handle, &self.path, name, true)
    }

    /// Returns the names of all entries, sorted.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = sys::names(&self.handle, &self.path)?;
        names.sort();
        Ok(names)
    }

    /// Returns the total size of the entries, and their last modification.
    pub fn size_and_modified(&self) -> (u64, Option<SystemTime>) {
        let names = self.names().unwrap_or_default();
        let found = names.iter().filter_map(|name| self.metadata(name).ok());
        found.fold((0, None), |(bytes, last), found| {
            (bytes + found.length, last.max(found.modified))
        })
    }

    /// Returns true if `name` still refers to `folder`.
    pub fn is_same_entry(&self, name: &OsStr, folder: &Folder) -> bool {
        sys::enter(&self.handle, &self.path.join(name), name)
            .is_ok_and(|found| sys::is_same(&found, &folder.handle))
    }

    /// Flushes the directory entries to disk, if the file system supports it.
    pub fn sync(&self) -> io::Result<()> {
        match sys::sync(&self.handle) {
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::InvalidInput | ErrorKind::Unsupported
                ) =>
            {
                Ok(())
            }
            done => done,
        }
    }
}

fn random_name() -> io::Result<OsString> {
    let random = getrandom::u64().map_err(io::Error::other)?;
    Ok(OsString::from(format!(
        ".htc-{random:016x}{UNFINISHED_SUFFIX}"
    )))
}

/// A folder that is removed with its files on drop, unless persisted.
#[derive(Debug)]
pub struct TemporaryFolder<'a> {
    parent: &'a Folder,
    name: OsString,
    folder: Folder,
    persisted: bool,
}

impl TemporaryFolder<'_> {
    /// The folder.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Renames the folder to `name` in its parent; an existing folder is replaced, with its files,
    /// only if `replace`.
    ///
    /// # Errors
    /// I/O errors; then the existing folder is unchanged, and this one is removed.
    pub fn persist(mut self, name: &OsStr, replace: bool) -> io::Result<()> {
        let parent = self.parent;
        let taken = replace && parent.metadata(name).is_ok();
        // The temporary folder is then removed with the old files.
        let aside = if taken {
            Some(parent.temporary_folder()?)
        } else {
            None
        };
        if let Some(aside) = &aside {
            parent.rename(name, parent, &aside.name, true)?;
        }
        if let Err(error) = parent.rename(&self.name, parent, name, false) {
            if let Some(aside) = &aside {
                let _ = parent.rename(&aside.name, parent, name, false);
            }
            return Err(error);
        }
        self.persisted = true;
        Ok(())
    }
}

impl Drop for TemporaryFolder<'_> {
    fn drop(&mut self) {
        if self.persisted {
            return;
        }
        // The name may refer to another folder by now.
        if let Ok(folder) = self.parent.open_existing(&self.name, true) {
            for name in folder.names().unwrap_or_default() {
                let _ = folder.remove(&name);
            }
        }
        let _ = self.parent.remove_folder(&self.name);
    }
}

/// A file that is removed on drop, unless persisted.
#[derive(Debug)]
pub struct TemporaryFile<'a> {
    folder: &'a Folder,
    name: OsString,
    file: Option<File>,
}

impl TemporaryFile<'_> {
    /// The file.
    ///
    /// # Errors
    /// None in practice.
    pub fn file(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(|| ErrorKind::NotFound.into())
    }

    /// Renames the file to `name` in its folder; an existing file is replaced only if `replace`,
    /// and passes on its permissions.
    ///
    /// # Errors
    /// I/O errors; then the file is removed.
    pub fn persist(mut self, name: &OsStr, replace: bool) -> io::Result<()> {
        if replace {
            self.folder.copy_mode(name, self.file()?)?;
        }
        self.folder.rename(&self.name, self.folder, name, replace)?;
        self.file = None;
        Ok(())
    }
}

impl Drop for TemporaryFile<'_> {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = self.folder.remove(&self.name);
        }
    }
}

/// Creates a folder and its missing parents, private to this user.
pub fn create_private_dir_all(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

#[cfg(unix)]
#[cfg(test)]
mod tests;
