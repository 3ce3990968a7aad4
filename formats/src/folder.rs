//! Folders by their handle: whoever may write beside them can put another in their place, or a link
//! in the place of a file, and it is not followed.
//!
//! A [`Folder`] is opened once; what is in it is named relative to that handle. A folder of one's own
//! ([`Folder::own`]) belongs to the user of the process, and nobody else may write to it. On systems
//! other than Unix names are used instead of handles, and owners are not looked at.

#[cfg(not(unix))]
mod names;
#[cfg(unix)]
mod unix;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

#[cfg(not(unix))]
use names as sys;
#[cfg(unix)]
use unix as sys;

/// What the name of a file that is not complete ends with.
pub const UNFINISHED: &str = ".unfinished";

/// Names that are tried before a free one is given up on: of 64 random bits the first is free.
const ATTEMPTS: usize = 16;

/// The user's cache for htc, where the environment says where that is.
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
    /// Whether files of any owner are read.
    trusted: bool,
}

/// Why a folder is not used. Every message names the path.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The system refused.
    #[error("{}: {error}", path.display())]
    Io {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Something else has its name.
    #[error("{}: a link or a file where a folder of htc's own should be; remove it", path.display())]
    NotAFolder {
        /// The path.
        path: PathBuf,
    },
    /// It is somebody else's.
    #[error("{}: this folder belongs to another user ({owner})", path.display())]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// The number of the user it belongs to.
        owner: u32,
    },
}

impl FolderError {
    /// What is wrong, without the folder's name: for an error that names it.
    pub fn into_io(self) -> io::Error {
        match self {
            FolderError::Io { error, .. } => error,
            FolderError::NotAFolder { .. } => io::Error::other(
                "a link or a file where a folder of htc's own should be; remove it",
            ),
            FolderError::Foreign { owner, .. } => io::Error::new(
                ErrorKind::PermissionDenied,
                format!("this folder belongs to another user ({owner})"),
            ),
        }
    }
}

/// What a name in a folder stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// A regular file, not a link to one.
    pub is_file: bool,
    /// A folder, not a link to one.
    pub is_folder: bool,
    /// Its bytes.
    pub length: u64,
    /// When it was last written to; `None` where the system does not say so.
    pub modified: Option<SystemTime>,
}

impl Folder {
    /// Opens a folder that a person named: links to it are followed, and it may be anybody's.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path) -> io::Result<Folder> {
        let path = match path.as_os_str().is_empty() {
            true => Path::new("."),
            false => path,
        };
        Ok(Folder {
            handle: sys::open(path)?,
            path: path.to_owned(),
            trusted: false,
        })
    }

    /// The folder that a file of this name lies in, and the name in it.
    ///
    /// # Errors
    /// What the system says; [`ErrorKind::InvalidFilename`] where the path names no file.
    pub fn of(path: &Path) -> io::Result<(Folder, OsString)> {
        let name = path.file_name().ok_or(ErrorKind::InvalidFilename)?;
        let folder = Folder::open(path.parent().unwrap_or(Path::new("")))?;
        Ok((folder, name.to_owned()))
    }

    /// The folder `name` in this one, made where there is none: it belongs to the user of this
    /// process, and nobody else may write to it.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn own(&self, name: &OsStr) -> Result<Folder, FolderError> {
        let path = self.path.join(name);
        let io = |error| FolderError::Io {
            path: path.clone(),
            error,
        };
        match sys::make(&self.handle, name, true) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(io(error)),
            _ => {}
        }
        let handle = sys::enter(&self.handle, &path, name)?;
        if let Some(owner) = sys::foreign(&handle, false).map_err(io)? {
            return Err(FolderError::Foreign { path, owner });
        }
        sys::close_to_others(&handle).map_err(io)?;
        Ok(Folder {
            handle,
            path,
            trusted: false,
        })
    }

    /// The folder `name` in this one, for reading: it belongs to the user of this process or of the
    /// system, or to anybody where they are `trusted`.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn existing(&self, name: &OsStr, trusted: bool) -> Result<Folder, FolderError> {
        let path = self.path.join(name);
        let handle = sys::enter(&self.handle, &path, name)?;
        let foreign = match trusted {
            true => Ok(None),
            false => sys::foreign(&handle, true),
        };
        match foreign {
            Ok(Some(owner)) => Err(FolderError::Foreign { path, owner }),
            Ok(None) => Ok(Folder {
                handle,
                path,
                trusted,
            }),
            Err(error) => Err(FolderError::Io { path, error }),
        }
    }

    /// The path that it was opened by, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file `name` for reading: a regular one, no link, and of an owner whose files are
    /// read.
    ///
    /// # Errors
    /// What the system says, and [`ErrorKind::Other`] for what is no such file.
    pub fn read(&self, name: &OsStr) -> io::Result<File> {
        let file = sys::file(&self.handle, &self.path, name, sys::Use::Read)?;
        self.check(&file, false)?;
        Ok(file)
    }

    /// Opens the file `name` for reading and writing, made where there is none: a regular one, no link
    /// and without another name elsewhere, and of this process's user.
    ///
    /// # Errors
    /// As [`read`](Folder::read).
    pub fn edit(&self, name: &OsStr) -> io::Result<File> {
        let file = sys::file(&self.handle, &self.path, name, sys::Use::Edit)?;
        self.check(&file, true)?;
        Ok(file)
    }

    fn check(&self, file: &File, written: bool) -> io::Result<()> {
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(io::Error::other("not a regular file; remove it"));
        }
        if written && sys::has_other_names(&found) {
            let said = "the file has another name elsewhere; remove this one";
            return Err(io::Error::other(said));
        }
        match sys::foreign_file(&found, !written) {
            Some(owner) if written || !self.trusted => Err(io::Error::new(
                ErrorKind::PermissionDenied,
                format!("the file belongs to another user ({owner})"),
            )),
            _ => Ok(()),
        }
    }

    /// Makes a file that goes away when it is dropped, with the permissions `mode` less what the umask
    /// takes away, under a random name that nobody has.
    ///
    /// # Errors
    /// What the system says.
    pub fn temporary(&self, mode: u32) -> io::Result<Temporary<'_>> {
        let (name, file) = self.unfinished(mode)?;
        Ok(Temporary {
            folder: self,
            name,
            file: Some(file),
        })
    }

    /// Makes a folder that goes away with the files in it when it is dropped, for everybody to read less
    /// what the umask takes away, under a random name that nobody has.
    ///
    /// # Errors
    /// What the system says.
    pub fn temporary_folder(&self) -> io::Result<TemporaryFolder<'_>> {
        for _ in 0..ATTEMPTS {
            let name = random_name()?;
            match sys::make(&self.handle, &name, false) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                made => made?,
            }
            let folder = self.existing(&name, false);
            return Ok(TemporaryFolder {
                folder: folder.map_err(FolderError::into_io)?,
                parent: self,
                name,
                stays: false,
            });
        }
        Err(ErrorKind::AlreadyExists.into())
    }

    /// As [`temporary`](Folder::temporary), but it stays.
    ///
    /// # Errors
    /// What the system says.
    pub fn unfinished(&self, mode: u32) -> io::Result<(OsString, File)> {
        for _ in 0..ATTEMPTS {
            let name = random_name()?;
            match sys::file(&self.handle, &self.path, &name, sys::Use::New(mode)) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                file => return Ok((name, file?)),
            }
        }
        Err(ErrorKind::AlreadyExists.into())
    }

    /// Gives the file `name` another name, in this folder or another of the same file system; what has
    /// that name is replaced, or an error.
    ///
    /// # Errors
    /// What the system says; [`ErrorKind::AlreadyExists`].
    pub fn rename(&self, name: &OsStr, to: &Folder, new: &OsStr, replace: bool) -> io::Result<()> {
        sys::rename((self, name), (to, new), replace)
    }

    /// The permissions that a new file is made with where it takes the place of `name`: those of the
    /// file that is there, or any, less what the umask takes away.
    pub fn mode(&self, name: &OsStr) -> u32 {
        sys::mode(&self.handle, &self.path, name).unwrap_or(0o666)
    }

    /// Gives `file` the permissions of the regular file `name`, whose place it is about to take.
    ///
    /// # Errors
    /// What the system says.
    pub fn keep_mode(&self, name: &OsStr, file: &File) -> io::Result<()> {
        match sys::mode(&self.handle, &self.path, name) {
            Some(mode) => sys::set_mode(file, mode),
            None => Ok(()),
        }
    }

    /// What a name stands for; a link for itself.
    ///
    /// # Errors
    /// What the system says.
    pub fn find(&self, name: &OsStr) -> io::Result<Found> {
        sys::find(&self.handle, &self.path, name)
    }

    /// Removes a file, or a link itself.
    ///
    /// # Errors
    /// What the system says.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        sys::remove(&self.handle, &self.path, name, false)
    }

    /// Removes an empty folder.
    ///
    /// # Errors
    /// What the system says.
    pub fn remove_folder(&self, name: &OsStr) -> io::Result<()> {
        sys::remove(&self.handle, &self.path, name, true)
    }

    /// The names in it, sorted.
    ///
    /// # Errors
    /// What the system says.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = sys::names(&self.handle, &self.path)?;
        names.sort();
        Ok(names)
    }

    /// Bytes of what is in it, and when the last of them were written.
    pub fn size(&self) -> (u64, Option<SystemTime>) {
        let names = self.names().unwrap_or_default();
        let found = names.iter().filter_map(|name| self.find(name).ok());
        found.fold((0, None), |(bytes, last), found| {
            (bytes + found.length, last.max(found.modified))
        })
    }

    /// Whether `name` in this folder is `folder` itself, and not what came into its place.
    pub fn holds(&self, name: &OsStr, folder: &Folder) -> bool {
        sys::enter(&self.handle, &self.path.join(name), name)
            .is_ok_and(|found| sys::is_same(&found, &folder.handle))
    }

    /// Forces the names in it to the disk. Some file systems have no such operation for folders, and
    /// keep names in a journal of their own: that is success.
    ///
    /// # Errors
    /// What the system says, for instance that the folder may be written but not read.
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

/// A name for what is not complete.
fn random_name() -> io::Result<OsString> {
    let random = getrandom::u64().map_err(io::Error::other)?;
    Ok(OsString::from(format!(".htc-{random:016x}{UNFINISHED}")))
}

/// A folder that goes away with the files in it when it is dropped before it has its name.
#[derive(Debug)]
pub struct TemporaryFolder<'a> {
    parent: &'a Folder,
    name: OsString,
    folder: Folder,
    stays: bool,
}

impl TemporaryFolder<'_> {
    /// The folder.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Gives it its name beside where it is. Another folder of that name is replaced only where it is to
    /// be, with the files in it.
    ///
    /// # Errors
    /// What the system says; the other folder is as it was then, and this one goes away.
    pub fn persist(mut self, name: &OsStr, replace: bool) -> io::Result<()> {
        let parent = self.parent;
        let taken = replace && parent.find(name).is_ok();
        // An empty folder gives way to the one that is replaced, and goes away with what was in it.
        let aside = match taken {
            true => Some(parent.temporary_folder()?),
            false => None,
        };
        if let Some(aside) = &aside {
            parent.rename(name, parent, &aside.name, true)?;
        }
        if let Err(error) = parent.rename(&self.name, parent, name, false) {
            if let Some(aside) = &aside {
                // Where that fails, too, it is kept under the name of something unfinished.
                let _ = parent.rename(&aside.name, parent, name, false);
            }
            return Err(error);
        }
        self.stays = true;
        Ok(())
    }
}

impl Drop for TemporaryFolder<'_> {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        // Another folder may have taken its place. What cannot be removed has a name that says what it is.
        if let Ok(folder) = self.parent.existing(&self.name, true) {
            for name in folder.names().unwrap_or_default() {
                let _ = folder.remove(&name);
            }
        }
        let _ = self.parent.remove_folder(&self.name);
    }
}

/// A file that goes away when it is dropped before it has its name.
#[derive(Debug)]
pub struct Temporary<'a> {
    folder: &'a Folder,
    name: OsString,
    file: Option<File>,
}

impl Temporary<'_> {
    /// The file.
    ///
    /// # Errors
    /// None that a caller can meet.
    pub fn file(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(|| ErrorKind::NotFound.into())
    }

    /// Gives it its name in the folder; what has that name is replaced, whose permissions it keeps, or
    /// an error.
    ///
    /// # Errors
    /// What the system says; the file goes away then.
    pub fn persist(mut self, name: &OsStr, replace: bool) -> io::Result<()> {
        if replace {
            self.folder.keep_mode(name, self.file()?)?;
        }
        self.folder.rename(&self.name, self.folder, name, replace)?;
        self.file = None;
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            // What cannot be removed is swept later.
            let _ = self.folder.remove(&self.name);
        }
    }
}

/// Makes a folder and those above it, for the user of this process alone where they are new.
///
/// # Errors
/// What the system says.
pub fn make_private(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

#[cfg(unix)]
#[cfg(test)]
mod tests;
