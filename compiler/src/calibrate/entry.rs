//! Folder of one cache entry, used by one process at a time.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::PathBuf;

use htc_formats::folder::Folder;
use htc_formats::htz::Digest;

use super::PassError;
use super::cache::{
    EntryKind, LOCK, cache_folder, entry_name, is_entry_file, open_entry, remove_files,
};
use super::files::cache_error;
use crate::event::{Event, Progress};
use crate::options::CalibrationOptions;
use crate::system::lock;

pub(crate) struct CacheEntry {
    folder: Folder,
}

impl CacheEntry {
    pub(super) fn open(
        options: &CalibrationOptions,
        kind: EntryKind,
        key: Digest,
    ) -> Result<CacheEntry, PassError> {
        let (cache, name) = (cache_folder(options)?, entry_name(kind, key));
        let folder = open_entry(&cache, &name, options.trust_cache)?;
        Ok(CacheEntry { folder })
    }

    pub(crate) fn open_gradients(
        options: &CalibrationOptions,
        key: Digest,
    ) -> Result<CacheEntry, PassError> {
        CacheEntry::open(options, EntryKind::Gradients, key)
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn lock(
        &self,
        options: &CalibrationOptions,
        watch: Progress,
    ) -> Result<io::Result<File>, PassError> {
        let file = match self.folder.open_for_writing(OsStr::new(LOCK)) {
            Ok(file) => file,
            failed => return Ok(failed),
        };
        let held = || {
            let said = format!(
                "another htc calibrates this model on this text; waiting for it, {} seconds at most",
                options.lock_timeout.as_secs()
            );
            watch.report(Event::Warning(&said));
        };
        let ended = || watch.check_cancelled().is_err();
        let taken = lock::acquire(&file, options.lock_timeout, held, ended);
        watch.check_cancelled()?;
        match taken {
            Ok(true) => Ok(Ok(file)),
            Ok(false) => Err(PassError::Locked(self.path(LOCK))),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Returns the lock; `None` for a complete entry in a read-only folder.
    pub(crate) fn optional_lock(
        &self,
        lock: io::Result<File>,
        complete: bool,
    ) -> Result<Option<File>, PassError> {
        let kinds = [
            io::ErrorKind::ReadOnlyFilesystem,
            io::ErrorKind::PermissionDenied,
        ];
        match lock {
            Ok(file) => Ok(Some(file)),
            Err(error) if complete && kinds.contains(&error.kind()) => Ok(None),
            Err(error) => Err(cache_error(&self.path(LOCK))(error)),
        }
    }

    pub(crate) fn clear(&self) -> Result<(), PassError> {
        remove_files(&self.folder, is_entry_file).map_err(cache_error(self.folder.path()))
    }

    pub(crate) fn remove_leftovers(&self, needed: &[String]) -> io::Result<()> {
        for name in self.folder.names()? {
            if is_entry_file(&name) && !needed.iter().any(|of| name == of.as_str()) {
                self.folder.remove(&name)?;
            }
        }
        Ok(())
    }
}
