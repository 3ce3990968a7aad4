//! An artifact with other numbers in some of its tensors.

use std::collections::BTreeMap;

use htc_formats::htz::{DialPoint, Digest, HtzWriter, QualityRecord, TensorEntry, TuningRecord};
use htc_formats::model::Role;

use super::journal::Left;
use super::work::Work;
use super::{Built, Inputs, MakeError};
use crate::event::Watch;
use crate::unit::Found;

impl Inputs<'_> {
    /// Makes the artifact that has the bytes of `tensors` and is else as one that is complete, or finds it; the other
    /// stays. Where it has refinements there is room for so many points of its dial.
    ///
    /// # Errors
    /// [`MakeError`].
    pub fn with_tuned(
        &self,
        built: &Built,
        tensors: &BTreeMap<Role, Vec<u8>>,
        (tuning, points): (TuningRecord, usize),
        work: &Work,
        watch: Watch,
    ) -> Result<Built, MakeError> {
        let untuned = work.artifact(built.key).open()?;
        let mut draft = untuned.manifest().clone();
        draft.quality = self.measured.then(QualityRecord::draft);
        draft.provenance.tuning = Some(tuning);
        let is_refinement = |entry: &TensorEntry| matches!(entry.role, Role::Refinement { .. });
        if self.measured && draft.tensors.iter().any(is_refinement) {
            draft.dial = vec![DialPoint::default(); points];
        }
        let mut named = format!("tuned {}\n", built.key);
        for (role, bytes) in tensors {
            named.push_str(&format!("{role} {}\n", Digest::of(bytes)));
        }
        let key = Digest::of(named.as_bytes());
        let artifact = work.artifact(key);
        let (left, mut journal) = artifact.journal::<Found>(watch)?;
        if !artifact.is_complete(left.complete) {
            // Copied at once: nothing is gone on with.
            journal.rewrite(&Left::<Found>::default())?;
            let (name, partial) = (artifact.complete(), artifact.partial());
            let sections = vec![self.tokenizer.clone()];
            let mut writer = HtzWriter::resume(work.folder(), &name, &partial, draft, sections)?;
            writer.take_over(&[])?;
            for entry in &untuned.manifest().tensors {
                let bytes = tensors.get(&entry.role).map(Vec::as_slice);
                let bytes = bytes.unwrap_or_else(|| untuned.tensor_bytes(entry));
                writer.write_tensor(entry.role, bytes)?;
                watch.check()?;
            }
            writer.finish(|_| {})?;
            journal.complete(Digest::of(artifact.open()?.head()))?;
        }
        Ok(Built {
            key,
            record: built.record.clone(),
            treated: built.treated.clone(),
            bytes: built.bytes,
        })
    }
}
