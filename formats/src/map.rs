//! Read-only memory-mapped files, the only use of `mmap` in the project.

mod lost;

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::open::{self, OpenError};
use lost::MappedRegion;

/// A whole file, mapped read-only.
///
/// # Requirements
/// During the lifetime of the value no process may truncate or modify the file. Access beyond a new
/// end raises SIGBUS, see [`install_sigbus_handler`]. Renaming another file over it is safe.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    map: Mmap,
    region: &'static MappedRegion,
}

impl MappedFile {
    /// Maps the file at `path`.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        let path = path.as_ref();
        MappedFile::from_file(path.to_owned(), &open::open_regular(path)?)
    }

    /// Maps the file `name` in a model's folder, opened by [`open::open_inside`].
    pub fn open_inside(folder: &Path, name: &str) -> Result<Self, OpenError> {
        MappedFile::from_file(folder.join(name), &open::open_inside(folder, name)?)
    }

    /// Maps an open regular file; `path` is for errors.
    pub fn from_file(path: PathBuf, file: &File) -> Result<Self, OpenError> {
        let io = |error| OpenError::io(&path, error);
        if file.metadata().map_err(io)?.len() == 0 {
            return Err(OpenError::Empty { path });
        }
        // SAFETY: the mapping is private to this value and only lent as `&[u8]`, for no longer than
        // the value lives. Constant length and contents of the file are a documented requirement of
        // the type, which no system API can enforce.
        let map = unsafe { Mmap::map(file) }.map_err(io)?;
        // Weights are read completely for every token: huge pages reduce page-table walks.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let region = MappedRegion::add(&path, &map);
        Ok(MappedFile { path, map, region })
    }

    /// Path by which the file was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        self.region.remove();
    }
}

/// Makes a write beyond the limit of file sizes (`ulimit -f`) an error instead of SIGXFSZ, which
/// ends the process. Libraries should not call it, because signals belong to the program.
pub fn ignore_file_size_signal() {
    #[cfg(unix)]
    // SAFETY: SIG_IGN installs no handler.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Installs a SIGBUS handler: if a mapped file was truncated, the process exits with code 1 and
/// `PROGRAM: error: FILE: ...` on standard error. Libraries should not call it, because signals
/// belong to the program.
#[cfg(unix)]
pub fn install_sigbus_handler(program: &'static str) -> io::Result<()> {
    lost::install(program)
}

/// Does nothing: this system has no SIGBUS.
#[cfg(not(unix))]
pub fn install_sigbus_handler(_: &'static str) -> io::Result<()> {
    Ok(())
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}
