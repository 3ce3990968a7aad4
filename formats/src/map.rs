//! Files mapped read-only: the one `mmap` of the project.
//!
//! Models are larger than memory should have to be, and most of a model is read in order, once
//! per token. Everything that reads a file of weights therefore borrows from a [`MappedFile`].

mod lost;

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::open;
use lost::Region;

/// A whole file, mapped read-only. Share it as `Arc<MappedFile>`.
///
/// # The contract with the outside
///
/// As long as the value lives nobody may shorten the file or write to it in place. A file that
/// shrinks makes the process die with a bus error at the first access behind its new end, with a
/// line that names it where [`tell_of_lost_files`] was called, and a
/// file that is written to changes under checks that were made already. Replacing a file by
/// renaming another over it is safe, because the mapping keeps the old contents; that is how
/// this project and the usual download tools write files.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    map: Mmap,
    region: &'static Region,
}

/// Why a file was not opened or mapped. Every message names the path.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The system refused to open, to examine or to map the file.
    #[error("{}: {}", path.display(), told(error))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The path leads to a folder.
    #[error("{}: this is a folder; name the file in it", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
    },
    /// The path leads to a pipe, a socket or a device, which cannot be mapped.
    #[error("{}: this is not a regular file; copy its contents to one", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A link in a model's folder leads out of it.
    #[error(
        "{}: this link leads out of the model's folder, to {}; put the file itself into the folder",
        path.display(),
        target.display()
    )]
    Outside {
        /// The link.
        path: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },
    /// The file holds no bytes.
    #[error("{}: the file is empty; copy or download it again", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// What the system said, with the remedy where there is one.
fn told(error: &io::Error) -> String {
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

impl MapError {
    /// What is wrong, without the file's name: for an error that names it.
    pub fn into_io(self) -> io::Error {
        match self {
            MapError::Io { error, .. } => error,
            MapError::Folder { .. } => io::ErrorKind::IsADirectory.into(),
            MapError::NotAFile { .. } => {
                io::Error::other("this is not a regular file; copy its contents to one")
            }
            MapError::Outside { target, .. } => io::Error::other(format!(
                "this link leads out of the model's folder, to {}",
                target.display()
            )),
            MapError::Empty { .. } => io::Error::other("the file is empty"),
        }
    }
}

impl MappedFile {
    /// Maps the file at `path`.
    ///
    /// # Errors
    ///
    /// [`MapError`] when the file is absent, unreadable, empty, or no regular file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, MapError> {
        let path = path.as_ref();
        MappedFile::of_file(path.to_owned(), &open::regular(path)?)
    }

    /// Maps the file called `name` in a model's folder, as [`open::inside`] opens it.
    ///
    /// # Errors
    ///
    /// As [`open`](MappedFile::open), and [`MapError::Outside`] for a link that leads elsewhere.
    pub fn open_inside(folder: &Path, name: &str) -> Result<Self, MapError> {
        MappedFile::of_file(folder.join(name), &open::inside(folder, name)?)
    }

    /// Maps a regular file that is open; errors call it `path`.
    ///
    /// # Errors
    ///
    /// [`MapError::Io`], [`MapError::Empty`].
    pub fn of_file(path: PathBuf, file: &File) -> Result<Self, MapError> {
        let io = |error| MapError::Io {
            path: path.clone(),
            error,
        };
        if file.metadata().map_err(io)?.len() == 0 {
            return Err(MapError::Empty { path });
        }
        // SAFETY: the mapping is private to this value and only ever lent as `&[u8]`, for no
        // longer than the value lives. That the file keeps its length and contents meanwhile
        // is the contract stated on the type; no API of any system can enforce it.
        let map = unsafe { Mmap::map(file) }.map_err(io)?;
        // Weights are read from end to end for every token: large pages spare the processor most
        // of the walks through its page tables. A wish only: many file systems have none.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let region = Region::add(&path, &map);
        Ok(MappedFile { path, map, region })
    }

    /// The path the file was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        self.region.remove();
    }
}

/// From now on, a process that reads a part of a mapped file that is gone ends with one line on
/// standard error, `PROGRAM: error: FILE: ...`, and exit code 1, instead of a signal. For the `main`
/// of a program: a library must leave signals to who uses it.
///
/// # Errors
///
/// What the system says; the signal then does what it did.
#[cfg(unix)]
pub fn tell_of_lost_files(program: &'static str) -> io::Result<()> {
    lost::install(program)
}

/// Nothing: this system has other words for it.
///
/// # Errors
///
/// None.
#[cfg(not(unix))]
pub fn tell_of_lost_files(_: &'static str) -> io::Result<()> {
    Ok(())
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}
