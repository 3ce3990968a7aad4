//! Adds the weights of the source to an artifact.

use std::collections::BTreeSet;

use htc_formats::htz::{Digest, HtzWriter, Manifest, SourceRecord};
use htc_formats::model::Role;

use super::{ArtifactBuilder, BuiltArtifact, MakeError, require};
use crate::event::Task;

/// An artifact in the work folder that includes its source's weights.
#[derive(Clone, Copy, Debug)]
pub struct ArtifactWithSource {
    /// Key in the work folder.
    pub key: Digest,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes of the source's tensors that are stored in addition.
    pub source_bytes: u64,
    /// Bytes of the source's tensors that are identical to the artifact's.
    pub shared_bytes: u64,
}

impl ArtifactBuilder<'_> {
    /// Copies a complete artifact and appends the source's weights tensor by tensor; or returns the
    /// existing copy.
    pub fn with_source(&self, built: &BuiltArtifact) -> Result<ArtifactWithSource, MakeError> {
        let (source, work, watch) = (self.source, self.work, self.progress);
        let base = work.artifact(built.key).open()?;
        let named = format!(
            "with source {} {}",
            built.key,
            Digest::of_bytes(base.header_and_manifest())
        );
        let key = Digest::of_bytes(named.as_bytes());
        let record = SourceRecord::new(source, &base);
        let shared = record.tensors.iter().filter(|tensor| tensor.shared);
        let shared = shared.filter_map(|of| source.tensor(of.role));
        let shared = shared.map(|tensor| tensor.place.len() as u64).sum();
        let mut draft = base.manifest().clone();
        let (quality, dial) = (draft.quality.clone(), draft.dial.clone());
        let features = Manifest::required_features(&draft.hyper, &record.entries());
        require(&mut draft, features);
        let own = record.tensors.iter().filter(|tensor| !tensor.shared);
        let own: BTreeSet<Role> = own.map(|tensor| tensor.role).collect();
        draft.source = Some(record);
        let artifact = self.derive(key, draft, |mut writer, artifact| {
            watch.begin(Task::SourceTensors, own.len());
            for entry in &base.manifest().tensors {
                writer.write_tensor(entry.role, base.tensor_bytes(entry))?;
                watch.check_cancelled()?;
            }
            let tensors = source.tensors.iter();
            for tensor in tensors.filter(|tensor| own.contains(&tensor.role)) {
                writer.write_source(tensor.role, source.bytes(tensor))?;
                watch.step_done(&tensor.name)?;
            }
            watch.begin(Task::Sealing, 0);
            writer.finish(|_| {})?;
            if quality.is_some() {
                HtzWriter::write_quality(work.folder(), &artifact.complete_name(), quality)?;
            }
            if !dial.is_empty() {
                HtzWriter::write_active_fractions(work.folder(), &artifact.complete_name(), dial)?;
            }
            Ok(())
        })?;
        let made = artifact.open()?;
        Ok(ArtifactWithSource {
            key,
            file_bytes: made.map().len() as u64,
            source_bytes: made.manifest().source_bytes(),
            shared_bytes: shared,
        })
    }
}
