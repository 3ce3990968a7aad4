//! Folder of one cache entry, used by one process at a time.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::PathBuf;

use htc_formats::folder::Folder;
use htc_formats::htz::Digest;

use super::CalibrateError;
use super::cache::{Kind, LOCK, cache_folder, empty, entry_name, is_of_entry, open_entry};
use crate::event::{Event, Watch};
use crate::request::CalibrationOptions;
use crate::system::lock;

/// Folder of one cache entry.
pub(crate) struct Entry {
    folder: Folder,
}

impl Entry {
    /// Opens the entry of a key.
    pub(super) fn open(
        options: &CalibrationOptions,
        kind: Kind,
        key: Digest,
    ) -> Result<Entry, CalibrateError> {
        let (cache, name) = (cache_folder(options)?, entry_name(kind, key));
        let folder = open_entry(&cache, &name, options.trust_cache)?;
        Ok(Entry { folder })
    }

    /// Opens the entry of a backward pass.
    pub(crate) fn of_gradients(
        options: &CalibrationOptions,
        key: Digest,
    ) -> Result<Entry, CalibrateError> {
        Entry::open(options, Kind::Gradients, key)
    }

    /// Returns the folder.
    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Returns the path of a file in the entry.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Waits for the lock of the entry.
    ///
    /// # Errors
    /// [`CalibrateError::Locked`], [`CalibrateError::Cancelled`]; the inner error is ignored for
    /// complete entries.
    pub(crate) fn lock(
        &self,
        options: &CalibrationOptions,
        watch: Watch,
    ) -> Result<io::Result<File>, CalibrateError> {
        let file = match self.folder.edit(OsStr::new(LOCK)) {
            Ok(file) => file,
            failed => return Ok(failed),
        };
        let held = || {
            let said = format!(
                "another htc calibrates this model on this text; waiting for it, {} seconds at most",
                options.lock_timeout.as_secs()
            );
            watch.tell(Event::Warning(&said));
        };
        let ended = || watch.check().is_err();
        let taken = lock::take(&file, options.lock_timeout, held, ended);
        watch.check()?;
        match taken {
            Ok(true) => Ok(Ok(file)),
            Ok(false) => Err(CalibrateError::Locked(self.path(LOCK))),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Returns the lock; `None` for a complete entry in a read-only folder.
    pub(crate) fn locked(
        &self,
        lock: io::Result<File>,
        complete: bool,
    ) -> Result<Option<File>, CalibrateError> {
        let kinds = [
            io::ErrorKind::ReadOnlyFilesystem,
            io::ErrorKind::PermissionDenied,
        ];
        match lock {
            Ok(file) => Ok(Some(file)),
            Err(error) if complete && kinds.contains(&error.kind()) => Ok(None),
            Err(error) => Err(CalibrateError::Cache {
                path: self.path(LOCK),
                error,
            }),
        }
    }

    /// Removes all files but the lock.
    ///
    /// # Errors
    /// [`CalibrateError::Cache`].
    pub(crate) fn forget(&self) -> Result<(), CalibrateError> {
        empty(&self.folder).map_err(|error| CalibrateError::Cache {
            path: self.folder.path().to_owned(),
            error,
        })
    }

    /// Removes files of this program that are not in `needed`.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn sweep(&self, needed: &[String]) -> io::Result<()> {
        for name in self.folder.names()? {
            if is_of_entry(&name) && !needed.iter().any(|of| name == of.as_str()) {
                self.folder.remove(&name)?;
            }
        }
        Ok(())
    }
}
