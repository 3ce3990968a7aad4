//! Adds the weights of the source to an artifact.

use std::collections::BTreeSet;

use htc_formats::htz::{Digest, HtzWriter, Manifest, SourceRecord};
use htc_formats::model::Role;

use super::work::Work;
use super::{Built, Inputs, MakeError};
use crate::event::{Event, Watch};
use crate::unit::Found;

/// An artifact in the work folder that includes its source's weights.
#[derive(Clone, Copy, Debug)]
pub struct WithSource {
    /// Key in the work folder.
    pub key: Digest,
    /// Bytes of the file.
    pub file: u64,
    /// Bytes of the source's tensors that differ from the artifact's.
    pub source: u64,
    /// Bytes of the source's tensors that are identical to the artifact's and are stored once.
    pub shared: u64,
}

impl Inputs<'_> {
    /// Copies a complete artifact, with its quality and active fractions, and appends the source's
    /// weights tensor by tensor; or returns the existing copy. The original stays. An interrupted
    /// copy is started again.
    ///
    /// # Errors
    /// [`MakeError`].
    pub fn with_source(
        &self,
        built: &Built,
        work: &Work,
        watch: Watch,
    ) -> Result<WithSource, MakeError> {
        let source = self.source;
        let base = work.artifact(built.key).open()?;
        // The measurements are in the header, but not in the key.
        let named = format!("with source {} {}", built.key, Digest::of(base.head()));
        let key = Digest::of(named.as_bytes());
        let record = SourceRecord::of(source, &base);
        let shared = record.tensors.iter().filter(|tensor| tensor.shared);
        let shared = shared.filter_map(|of| source.tensor(of.role));
        let shared = shared.map(|tensor| tensor.place.len() as u64).sum();
        let mut draft = base.manifest().clone();
        let (quality, dial) = (draft.quality.clone(), draft.dial.clone());
        for feature in Manifest::required_features(&draft.hyper, &record.entries()) {
            if !draft.requires.contains(&feature) {
                draft.requires.push(feature);
            }
        }
        let own = record.tensors.iter().filter(|tensor| !tensor.shared);
        let own: BTreeSet<Role> = own.map(|tensor| tensor.role).collect();
        draft.source = Some(record);
        let artifact = work.artifact(key);
        let (left, mut journal) = artifact.journal::<Found>(watch)?;
        if !artifact.is_complete(left.complete) {
            let mut writer = artifact.anew(&mut journal, draft, self.sections)?;
            watch.tell(Event::Planned(own.len()));
            for entry in &base.manifest().tensors {
                writer.write_tensor(entry.role, base.tensor_bytes(entry))?;
                watch.check()?;
            }
            let tensors = source.tensors.iter();
            for tensor in tensors.filter(|tensor| own.contains(&tensor.role)) {
                writer.write_source(tensor.role, source.bytes(tensor))?;
                watch.done(&tensor.name)?;
            }
            watch.tell(Event::Sealing);
            writer.finish(|_| {})?;
            if quality.is_some() {
                HtzWriter::put_quality(work.folder(), &artifact.complete(), quality)?;
            }
            if !dial.is_empty() {
                HtzWriter::put_dial(work.folder(), &artifact.complete(), dial)?;
            }
            journal.complete(Digest::of(artifact.open()?.head()))?;
        }
        let made = artifact.open()?;
        Ok(WithSource {
            key,
            file: made.map().len() as u64,
            source: made.manifest().source_bytes(),
            shared,
        })
    }
}
