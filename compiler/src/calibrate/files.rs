//! The files of one calibration: a layer's statistics each, and the residual stream behind the last.

use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::path::PathBuf;

use htc_formats::folder::Folder;
use htc_formats::htz::{Digest, Hasher};
use htc_formats::model::HyperParameters;

use super::cache::is_of_entry;
use super::store::{Extent, Identity, StoredLayer};
use crate::event::{Event, Watch};

pub(super) fn layer_name(layer: usize) -> String {
    format!("layer-{layer:04}")
}

/// The residual stream behind a layer.
pub(super) fn stream_name(layer: usize) -> String {
    format!("stream-{layer:04}")
}

/// The files of one calibration.
pub(super) struct Files {
    pub folder: Folder,
    pub key: Digest,
    pub extent: Extent,
}

impl Files {
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Removes what runs that were killed left behind the first `found` layers.
    pub fn sweep(&self, found: usize) -> io::Result<()> {
        let mut needed: Vec<String> = (0..found).map(layer_name).collect();
        needed.extend(found.checked_sub(1).map(stream_name));
        for name in self.folder.names()? {
            if is_of_entry(&name) && !needed.iter().any(|of| name == of.as_str()) {
                self.folder.remove(&name)?;
            }
        }
        Ok(())
    }

    pub fn open(&self, layer: usize, hyper: &HyperParameters, watch: Watch) -> Option<StoredLayer> {
        let name = layer_name(layer);
        let identity = Identity {
            key: self.key,
            layer,
        };
        let damaged = |why: &str| {
            let said = format!("{}: {why}; it is made again", self.path(&name).display());
            watch.tell(Event::Warning(&said));
        };
        StoredLayer::open(
            &self.folder,
            OsStr::new(&name),
            identity,
            hyper,
            self.extent,
            damaged,
        )
    }

    pub fn has_stream(&self, layer: usize, expected: Digest) -> bool {
        let digest = || -> io::Result<Digest> {
            let mut file = self.folder.read(OsStr::new(&stream_name(layer)))?;
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
