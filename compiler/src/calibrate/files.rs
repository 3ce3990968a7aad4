//! The files of one calibration: a layer's statistics each, and the residual stream behind the last.
//! They lie in a folder of the cache, in which one process at a time works.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use htc_formats::folder::Folder;
use htc_formats::htz::{Digest, Hasher};
use htc_formats::model::HyperParameters;

use super::CalibrateError;
use super::cache::{LOCK, cache_folder, entry_name, is_of_entry, open_entry};
use super::statistics::LayerSums;
use super::store::{self, Extent, Identity, StoredLayer};
use crate::event::{Event, Watch};
use crate::request::CalibrationOptions;
use crate::system::{disk, lock};

fn layer_name(layer: usize) -> String {
    format!("layer-{layer:04}")
}

fn stream_name(layer: usize) -> String {
    format!("stream-{layer:04}")
}

/// The files of one calibration.
pub(super) struct Files {
    folder: Folder,
    key: Digest,
    extent: Extent,
}

impl Files {
    /// Those in the folder of the cache that the key names.
    pub(super) fn open(
        options: &CalibrationOptions,
        key: Digest,
        extent: Extent,
    ) -> Result<Files, CalibrateError> {
        let cache = cache_folder(options)?;
        Ok(Files {
            folder: open_entry(&cache, &entry_name(key), options.trust_cache)?,
            key,
            extent,
        })
    }

    /// The windows that the statistics are of.
    pub(super) fn extent(&self) -> Extent {
        self.extent
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Waits until nobody else works here. Whoever comes second finds everything.
    ///
    /// # Errors
    /// [`CalibrateError::Locked`], [`CalibrateError::Cancelled`]; inside of the result what the system
    /// says, which is no error where the cache is complete.
    pub(super) fn lock(
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

    /// The lock, or `None` where it could not be had and is not needed: a cache that is complete and may
    /// only be read is as good.
    pub(super) fn locked(
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
            Err(error) => Err(failed(&self.path(LOCK))(error)),
        }
    }

    /// The layers that are finished, from the first on, as far as it can be gone on behind them. The
    /// next one needs the residual stream behind the last; without it everything is made again, with the
    /// same bytes.
    pub(super) fn finished(&self, hyper: &HyperParameters, watch: Watch) -> Vec<Arc<StoredLayer>> {
        let stored = (0..hyper.layers).map_while(|layer| self.stored(layer, hyper, watch));
        let mut layers: Vec<_> = stored.map(Arc::new).collect();
        if (1..hyper.layers).contains(&layers.len()) {
            let last = layers.len() - 1;
            if !self.has_stream(last, layers[last].stream_digest()) {
                let said = "calibration cannot go on where it was interrupted; it begins anew";
                watch.tell(Event::Warning(said));
                layers.clear();
            }
        }
        layers
    }

    /// Makes sure that the layers behind the first `found` have room.
    pub(super) fn make_room(
        &self,
        hyper: &HyperParameters,
        found: usize,
    ) -> Result<(), CalibrateError> {
        let tokens = self.extent.windows * self.extent.context;
        let stream = 4 * (tokens * hyper.width) as u64;
        let missing = (hyper.layers - found) as u64;
        let layers = missing * store::file_bytes(hyper, self.extent) as u64;
        let needed = layers + 2 * stream.min(missing * stream);
        match disk::free(self.folder.path()).filter(|free| *free < needed) {
            Some(free) => {
                let path = self.folder.path().to_owned();
                Err(CalibrateError::NoSpace { path, needed, free })
            }
            None => Ok(()),
        }
    }

    /// Removes what runs that were killed left behind the first `found` layers.
    pub(super) fn sweep(&self, found: usize) -> Result<(), CalibrateError> {
        self.try_sweep(found).map_err(failed(self.folder.path()))
    }

    fn try_sweep(&self, found: usize) -> io::Result<()> {
        let mut needed: Vec<String> = (0..found).map(layer_name).collect();
        needed.extend(found.checked_sub(1).map(stream_name));
        for name in self.folder.names()? {
            if is_of_entry(&name) && !needed.iter().any(|of| name == of.as_str()) {
                self.folder.remove(&name)?;
            }
        }
        Ok(())
    }

    /// The statistics of a layer, where they are there and sound.
    fn stored(&self, layer: usize, hyper: &HyperParameters, watch: Watch) -> Option<StoredLayer> {
        let name = layer_name(layer);
        let identity = self.identity(layer);
        let damaged = |why: &str| {
            let said = format!("{}: {why}; it is made again", self.path(&name).display());
            watch.tell(Event::Warning(&said));
        };
        let (folder, name, extent) = (&self.folder, OsStr::new(&name), self.extent);
        StoredLayer::open(folder, name, identity, hyper, extent, damaged)
    }

    /// What a layer's file is of.
    fn identity(&self, layer: usize) -> Identity {
        let key = self.key;
        Identity { key, layer }
    }

    /// Writes the statistics of a layer and reads them back; the residual stream before it goes.
    ///
    /// # Errors
    /// [`CalibrateError::Cache`].
    pub(super) fn store(
        &self,
        layer: usize,
        hyper: &HyperParameters,
        stream: Digest,
        sums: &LayerSums,
        watch: Watch,
    ) -> Result<StoredLayer, CalibrateError> {
        let name = layer_name(layer);
        let path = self.path(&name);
        let identity = self.identity(layer);
        let written = store::write(&self.folder, OsStr::new(&name), identity, stream, sums);
        written.map_err(failed(&path))?;
        if layer > 0 {
            let done = stream_name(layer - 1);
            let removed = self.folder.remove(OsStr::new(&done));
            removed.map_err(failed(&self.path(&done)))?;
        }
        let stored = self.stored(layer, hyper, watch);
        stored.ok_or_else(|| failed(&path)(io::Error::other("what was written is damaged")))
    }

    /// Where the residual stream behind a layer lies, for messages.
    pub(super) fn stream(&self, layer: usize) -> PathBuf {
        self.path(&stream_name(layer))
    }

    /// The residual stream behind a layer.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn read_stream(&self, layer: usize) -> io::Result<File> {
        self.folder.read(OsStr::new(&stream_name(layer)))
    }

    /// Writes the residual stream behind a layer; nothing has its name unless `write` succeeds.
    ///
    /// # Errors
    /// What the system or `write` says.
    pub(super) fn write_stream(
        &self,
        layer: usize,
        write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let name = stream_name(layer);
        disk::write_in(&self.folder, OsStr::new(&name), true, |to| write(to))
    }

    fn has_stream(&self, layer: usize, expected: Digest) -> bool {
        let digest = || -> io::Result<Digest> {
            let mut file = self.read_stream(layer)?;
            let mut hasher = Hasher::default();
            let mut buffer = vec![0; 1 << 20];
            loop {
                match file.read(&mut buffer)? {
                    0 => return Ok(hasher.finish()),
                    n => hasher.update(&buffer[..n]),
                }
            }
        };
        digest().is_ok_and(|found| found == expected)
    }
}

/// The error of a file or folder of the cache.
pub(super) fn failed(path: &Path) -> impl FnOnce(io::Error) -> CalibrateError {
    let path = path.to_owned();
    move |error| CalibrateError::Cache { path, error }
}
