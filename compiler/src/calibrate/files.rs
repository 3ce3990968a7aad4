//! The files of one calibration: a folder of the cache, which one process at a time works in.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use htc_formats::htz::{Digest, Hasher};
use htc_formats::model::HyperParameters;

use super::CalibrateError;
use super::store::{self, Extent, Identity, StoredLayer};
use crate::event::{Event, Watch};
use crate::request::CalibrationOptions;
use crate::system::disk;

/// Held by the process that works in the folder of a calibration.
const LOCK: &str = "lock";

/// The files of one calibration.
pub(super) struct Files {
    folder: PathBuf,
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
        let folder = cache_folder(options)?.join(format!("calibration-{key}"));
        fs::create_dir_all(&folder).map_err(failed(&folder))?;
        Ok(Files {
            folder,
            key,
            extent,
        })
    }

    /// The windows that the statistics are of.
    pub(super) fn extent(&self) -> Extent {
        self.extent
    }

    /// What a layer's file is of.
    pub(super) fn identity(&self, layer: usize) -> Identity {
        let key = self.key;
        Identity { key, layer }
    }

    /// Waits until nobody else works here. Whoever comes second finds everything.
    pub(super) fn lock(&self, watch: Watch) -> io::Result<File> {
        let file = File::create(self.folder.join(LOCK))?;
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            let said = "another htc calibrates this model on this text; waiting for it";
            watch.tell(Event::Warning(said));
            file.lock()?;
        }
        Ok(file)
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
            Err(error) => Err(failed(&self.folder.join(LOCK))(error)),
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
        match disk::free(&self.folder).filter(|free| *free < needed) {
            Some(free) => {
                let path = self.folder.clone();
                Err(CalibrateError::NoSpace { path, needed, free })
            }
            None => Ok(()),
        }
    }

    pub(super) fn layer(&self, layer: usize) -> PathBuf {
        self.folder.join(format!("layer-{layer:04}"))
    }

    /// The residual stream behind a layer.
    pub(super) fn stream(&self, layer: usize) -> PathBuf {
        self.folder.join(format!("stream-{layer:04}"))
    }

    /// Removes what runs that were killed left behind the first `found` layers.
    pub(super) fn sweep(&self, found: usize) -> Result<(), CalibrateError> {
        self.try_sweep(found).map_err(failed(&self.folder))
    }

    fn try_sweep(&self, found: usize) -> io::Result<()> {
        let needed: Vec<PathBuf> = (0..found).map(|layer| self.layer(layer)).collect();
        let stream = found.checked_sub(1).map(|last| self.stream(last));
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let is_needed = needed.contains(&path)
                || stream.as_ref() == Some(&path)
                || path.file_name().is_some_and(|name| name == LOCK);
            if !is_needed {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    pub(super) fn stored(
        &self,
        layer: usize,
        hyper: &HyperParameters,
        watch: Watch,
    ) -> Option<StoredLayer> {
        let path = self.layer(layer);
        let identity = self.identity(layer);
        StoredLayer::open(&path, identity, hyper, self.extent, |why| {
            let said = format!("{}: {why}; it is made again", path.display());
            watch.tell(Event::Warning(&said));
        })
    }

    fn has_stream(&self, layer: usize, expected: Digest) -> bool {
        let digest = || -> io::Result<Digest> {
            let mut file = File::open(self.stream(layer))?;
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

/// The folder of the cache.
///
/// # Errors
/// [`CalibrateError::NoCache`].
pub fn cache_folder(options: &CalibrationOptions) -> Result<PathBuf, CalibrateError> {
    if let Some(folder) = &options.cache {
        return Ok(folder.clone());
    }
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    match (variable("XDG_CACHE_HOME"), variable("HOME")) {
        (Some(cache), _) => Ok(PathBuf::from(cache).join("htc")),
        (None, Some(home)) => Ok(PathBuf::from(home).join(".cache/htc")),
        (None, None) => Err(CalibrateError::NoCache),
    }
}
