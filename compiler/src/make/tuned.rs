//! Copies an artifact with changed tensors.

use std::borrow::Cow;
use std::collections::BTreeMap;

use htc_formats::block;
use htc_formats::htz::{DialPoint, Digest, QualityRecord, TensorEntry, TuningRecord};
use htc_formats::model::Role;

use super::work::Work;
use super::{Built, Inputs, MakeError, stored_spectra};
use crate::event::Watch;
use crate::unit::Found;

/// Change of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Replaces the bytes.
    Bytes(Vec<u8>),
    /// Keeps the codes and multiplies rows by these factors.
    Rows(Vec<f32>),
}

impl Change {
    fn digest(&self) -> Digest {
        match self {
            Change::Bytes(bytes) => Digest::of(bytes),
            Change::Rows(factors) => {
                let bytes: Vec<u8> = factors.iter().flat_map(|x| x.to_le_bytes()).collect();
                Digest::of(&bytes)
            }
        }
    }

    fn of(&self, entry: &TensorEntry, bytes: &[u8]) -> Result<Vec<u8>, MakeError> {
        let factors = match self {
            Change::Bytes(bytes) => return Ok(bytes.clone()),
            Change::Rows(factors) => factors,
        };
        let mut bytes = bytes.to_vec();
        let tensor = || entry.name.clone();
        if let Some(codes) = &entry.codes {
            let scaled = codes.scale_rows(&mut bytes, factors);
            scaled.map_err(|source| MakeError::Bands {
                tensor: tensor(),
                source,
            })?;
            return Ok(bytes);
        }
        let row = bytes.len() / factors.len().max(1);
        for (row, &factor) in bytes.chunks_exact_mut(row.max(1)).zip(factors) {
            block::scale(entry.dtype, row, factor).map_err(|source| MakeError::Block {
                tensor: tensor(),
                source,
            })?;
        }
        Ok(bytes)
    }
}

impl Inputs<'_> {
    /// Makes a copy of a complete artifact with these changes, or returns the existing one. The
    /// original stays. With residuals there is space for `points` active fractions.
    ///
    /// # Errors
    /// [`MakeError`].
    pub fn with_tuned(
        &self,
        built: &Built,
        changes: &BTreeMap<Role, Change>,
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
        for (role, change) in changes {
            named.push_str(&format!("{role} {}\n", change.digest()));
        }
        let key = Digest::of(named.as_bytes());
        let artifact = work.artifact(key);
        let (left, mut journal) = artifact.journal::<Found>(watch)?;
        if !artifact.is_complete(left.complete) {
            let mut writer = artifact.anew(&mut journal, draft, self.sections)?;
            for entry in &untuned.manifest().tensors {
                let bytes = untuned.tensor_bytes(entry);
                let changed = match changes.get(&entry.role) {
                    Some(change) => Cow::Owned(change.of(entry, bytes)?),
                    None => Cow::Borrowed(bytes),
                };
                writer.write_tensor(entry.role, &changed)?;
                watch.check()?;
            }
            // Scaled rows change the spectra.
            if let Some(mut geometry) = untuned.manifest().geometry.clone() {
                let layers = self.source.hyper.layers;
                geometry.spectra = stored_spectra(&writer, layers, self.threads())?;
                writer.describe(geometry);
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
