//! Copies an artifact with changed tensors.

use std::borrow::Cow;
use std::collections::BTreeMap;

use htc_formats::block;
use htc_formats::htz::{ActiveFractionPoint, Digest, QualityRecord, TensorEntry, TuningRecord};
use htc_formats::model::Role;

use super::{ArtifactBuilder, BuiltArtifact, MakeError, stored_spectra};

/// Change of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorChange {
    /// Replaces the bytes.
    Bytes(Vec<u8>),
    /// Keeps the codes and multiplies rows by these factors.
    ScaleRows(Vec<f32>),
}

impl TensorChange {
    fn digest(&self) -> Digest {
        match self {
            TensorChange::Bytes(bytes) => Digest::of_bytes(bytes),
            TensorChange::ScaleRows(factors) => {
                let bytes: Vec<u8> = factors.iter().flat_map(|x| x.to_le_bytes()).collect();
                Digest::of_bytes(&bytes)
            }
        }
    }

    fn apply(&self, entry: &TensorEntry, bytes: &[u8]) -> Result<Vec<u8>, MakeError> {
        let factors = match self {
            TensorChange::Bytes(bytes) => return Ok(bytes.clone()),
            TensorChange::ScaleRows(factors) => factors,
        };
        let mut bytes = bytes.to_vec();
        let refused = |source| MakeError::ScaleRows {
            tensor: entry.name.clone(),
            source,
        };
        if let Some(codes) = &entry.codes {
            codes.scale_rows(&mut bytes, factors).map_err(refused)?;
            return Ok(bytes);
        }
        let row = bytes.len() / factors.len().max(1);
        for (row, &factor) in bytes.chunks_exact_mut(row.max(1)).zip(factors) {
            block::scale_blocks(entry.dtype, row, factor).map_err(refused)?;
        }
        Ok(bytes)
    }
}

impl ArtifactBuilder<'_> {
    /// Makes a copy of a complete artifact with these changes, or returns the existing one. With
    /// residuals there is space for `points` active fractions.
    pub fn with_tuned(
        &self,
        built: &BuiltArtifact,
        changes: &BTreeMap<Role, TensorChange>,
        tuning: TuningRecord,
        points: usize,
    ) -> Result<BuiltArtifact, MakeError> {
        let untuned = self.work.artifact(built.key).open()?;
        let mut draft = untuned.manifest().clone();
        draft.quality = self.reserve_quality.then(QualityRecord::draft);
        draft.provenance.tuning = Some(tuning);
        let is_refinement = |entry: &TensorEntry| matches!(entry.role, Role::Refinement { .. });
        if self.reserve_quality && draft.tensors.iter().any(is_refinement) {
            draft.dial = vec![ActiveFractionPoint::default(); points];
        }
        let mut named = format!("tuned {}\n", built.key);
        for (role, change) in changes {
            named.push_str(&format!("{role} {}\n", change.digest()));
        }
        let key = Digest::of_bytes(named.as_bytes());
        self.derive(key, draft, |mut writer, _| {
            for entry in &untuned.manifest().tensors {
                let bytes = untuned.tensor_bytes(entry);
                let changed = match changes.get(&entry.role) {
                    Some(change) => Cow::Owned(change.apply(entry, bytes)?),
                    None => Cow::Borrowed(bytes),
                };
                writer.write_tensor(entry.role, &changed)?;
                self.progress.check_cancelled()?;
            }
            // Scaled rows change the spectra.
            if let Some(mut geometry) = untuned.manifest().geometry.clone() {
                let layers = self.source.hyper.layers;
                geometry.spectra = stored_spectra(&writer, layers, self.threads())?;
                writer.set_geometry(geometry);
            }
            Ok(writer.finish(|_| {})?)
        })?;
        Ok(BuiltArtifact {
            key,
            ..built.clone()
        })
    }
}
