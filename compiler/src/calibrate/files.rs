use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use htc_formats::htz::{Digest, Hasher};
use htc_formats::model::HyperParameters;

use super::PassError;
use super::cache::{EntryKind, HEAD};
use super::entry::CacheEntry;
use super::moments::MomentSums;
use super::statistics::LayerSums;
use super::store::{self, Identity, StoredHead, StoredLayer, TextExtent};
use crate::event::{Event, Progress};
use crate::options::CalibrationOptions;
use crate::system::disk;

const WRITTEN_DAMAGED: &str = "what was written is damaged";

fn layer_name(layer: usize) -> String {
    format!("layer-{layer:04}")
}

fn stream_name(layer: usize) -> String {
    format!("stream-{layer:04}")
}

pub(super) struct FinishedStatistics {
    /// Layers from the first on.
    pub layers: Vec<Arc<StoredLayer>>,
    /// Statistics of the head, if all layers are finished.
    pub head: Option<Arc<StoredHead>>,
}

impl FinishedStatistics {
    pub fn is_complete(&self) -> bool {
        self.head.is_some()
    }
}

pub(super) struct CalibrationFiles {
    pub(super) entry: CacheEntry,
    key: Digest,
    pub(super) extent: TextExtent,
}

/// Returns the disk space of the statistics of a calibration, and that of the residual streams before
/// and after a layer, which are removed at its end.
pub(crate) fn cache_bytes(hyper: &HyperParameters, extent: TextExtent) -> (u64, u64) {
    let layers = (0..hyper.layers).map(|layer| store::file_bytes(hyper, layer, extent) as u64);
    let tokens = extent.windows.saturating_mul(extent.context);
    let stream = 4 * tokens.saturating_mul(hyper.width) as u64;
    let head = store::head_bytes(hyper) as u64;
    let statistics = layers.fold(head, u64::saturating_add);
    (statistics, stream.saturating_mul(2))
}

impl CalibrationFiles {
    pub(super) fn open(
        options: &CalibrationOptions,
        key: Digest,
        extent: TextExtent,
    ) -> Result<CalibrationFiles, PassError> {
        Ok(CalibrationFiles {
            entry: CacheEntry::open(options, EntryKind::Calibration, key)?,
            key,
            extent,
        })
    }

    /// Reads the finished statistics; without the residual stream after the last layer none, so
    /// that all are recomputed.
    pub(super) fn finished(&self, hyper: &HyperParameters, watch: Progress) -> FinishedStatistics {
        let stored = (0..hyper.layers).map_while(|layer| self.stored(layer, hyper, watch));
        let mut layers: Vec<_> = stored.map(Arc::new).collect();
        let head = if layers.len() == hyper.layers {
            self.stored_head(hyper, watch).map(Arc::new)
        } else {
            None
        };
        if let (Some(last), None) = (layers.last(), &head)
            && !self.has_stream(layers.len() - 1, last.stream_digest())
        {
            let said = "calibration cannot go on where it was interrupted; it begins anew";
            watch.report(Event::Warning(said));
            layers.clear();
        }
        FinishedStatistics { layers, head }
    }

    pub(super) fn check_disk_space(
        &self,
        hyper: &HyperParameters,
        finished: &FinishedStatistics,
    ) -> Result<(), PassError> {
        let tokens = self.extent.windows * self.extent.context;
        let stream = 4 * (tokens * hyper.width) as u64;
        let missing = finished.layers.len()..hyper.layers;
        let bytes = |layer| store::file_bytes(hyper, layer, self.extent) as u64;
        let layers: u64 = missing.clone().map(bytes).sum();
        let missing = missing.len() as u64;
        let head = if finished.is_complete() {
            0
        } else {
            store::head_bytes(hyper) as u64
        };
        let needed = layers + head + 2 * stream.min(missing * stream);
        match disk::free_bytes(self.entry.folder().path()).filter(|free| *free < needed) {
            Some(free) => {
                let path = self.entry.folder().path().to_owned();
                Err(PassError::NoSpace { path, needed, free })
            }
            None => Ok(()),
        }
    }

    pub(super) fn remove_leftovers(&self, finished: &FinishedStatistics) -> Result<(), PassError> {
        let found = finished.layers.len();
        let mut needed: Vec<String> = (0..found).map(layer_name).collect();
        if finished.is_complete() {
            needed.push(HEAD.to_owned())
        } else {
            needed.extend(found.checked_sub(1).map(stream_name))
        }
        let removed = self.entry.remove_leftovers(&needed);
        removed.map_err(cache_error(self.entry.folder().path()))
    }

    fn stored(
        &self,
        layer: usize,
        hyper: &HyperParameters,
        watch: Progress,
    ) -> Option<StoredLayer> {
        let name = layer_name(layer);
        let identity = self.identity(layer);
        let damaged = |why: &str| self.warn_damaged(&name, why, watch);
        let (folder, name, extent) = (self.entry.folder(), OsStr::new(&name), self.extent);
        StoredLayer::open(folder, name, identity, hyper, extent, damaged)
    }

    fn stored_head(&self, hyper: &HyperParameters, watch: Progress) -> Option<StoredHead> {
        let identity = self.identity(hyper.layers);
        let damaged = |why: &str| self.warn_damaged(HEAD, why, watch);
        StoredHead::open(
            self.entry.folder(),
            OsStr::new(HEAD),
            identity,
            hyper,
            damaged,
        )
    }

    fn warn_damaged(&self, name: &str, why: &str, watch: Progress) {
        let said = format!(
            "{}: {why}; it is made again",
            self.entry.path(name).display()
        );
        watch.report(Event::Warning(&said));
    }

    /// The head's file has the index after the last layer.
    fn identity(&self, layer: usize) -> Identity {
        let key = self.key;
        Identity { key, layer }
    }

    /// Removes the residual stream before the layer.
    pub(super) fn write_layer(
        &self,
        layer: usize,
        hyper: &HyperParameters,
        stream: Digest,
        sums: &LayerSums,
        watch: Progress,
    ) -> Result<StoredLayer, PassError> {
        let name = layer_name(layer);
        let (folder, identity) = (self.entry.folder(), self.identity(layer));
        let written = store::write_layer(folder, OsStr::new(&name), identity, stream, sums);
        self.finish(layer, &name, written, || self.stored(layer, hyper, watch))
    }

    /// Removes the residual stream before it.
    pub(super) fn write_head(
        &self,
        hyper: &HyperParameters,
        sums: &MomentSums,
        watch: Progress,
    ) -> Result<StoredHead, PassError> {
        let (folder, identity) = (self.entry.folder(), self.identity(hyper.layers));
        let written = store::write_head(folder, OsStr::new(HEAD), identity, sums);
        let read = || self.stored_head(hyper, watch);
        self.finish(hyper.layers, HEAD, written, read)
    }

    /// Reads a file that was written, and removes the residual stream before the layer.
    fn finish<T>(
        &self,
        layer: usize,
        name: &str,
        written: io::Result<()>,
        read: impl FnOnce() -> Option<T>,
    ) -> Result<T, PassError> {
        let path = self.entry.path(name);
        written.map_err(cache_error(&path))?;
        if let Some(before) = layer.checked_sub(1) {
            let done = stream_name(before);
            let removed = self.entry.folder().remove(OsStr::new(&done));
            removed.map_err(cache_error(&self.entry.path(&done)))?;
        }
        read().ok_or_else(|| cache_error(&path)(io::Error::other(WRITTEN_DAMAGED)))
    }

    pub(super) fn stream_path(&self, layer: usize) -> PathBuf {
        self.entry.path(&stream_name(layer))
    }

    pub(super) fn read_stream(&self, layer: usize) -> io::Result<File> {
        self.entry
            .folder()
            .open_for_reading(OsStr::new(&stream_name(layer)))
    }

    pub(super) fn write_stream(
        &self,
        layer: usize,
        write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let name = stream_name(layer);
        disk::write_in(self.entry.folder(), OsStr::new(&name), true, |to| write(to))
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

pub(super) fn cache_error(path: &Path) -> impl FnOnce(io::Error) -> PassError {
    let path = path.to_owned();
    move |error| PassError::Cache { path, error }
}
