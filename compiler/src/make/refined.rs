//! Adds residuals to an artifact as separate planes.

use htc_formats::DType;
use htc_formats::htz::{
    ActiveFractionPoint, Digest, HtzError, HtzWriter, Manifest, QualityRecord, TensorEntry,
};
use htc_formats::model::Role;
use htc_formats::source::ModelFile;

use super::{ArtifactBuilder, BuiltArtifact, MakeError, require};
use crate::event::Task;
use crate::layout;
use crate::options::Treatment;
use crate::order::PermutedSource;
use crate::plan::{MatrixForm, Plan, Refinement, UnitPlan};
use crate::system::ordered;
use crate::unit;

/// Residuals per thread that may wait to be written.
const PENDING_PER_THREAD: usize = 2;

impl ArtifactBuilder<'_> {
    /// Returns the bytes of the artifact with these residuals.
    pub fn bytes_with_residuals(
        &self,
        base: &Manifest,
        refinements: &[Refinement],
        points: usize,
    ) -> Result<u64, HtzError> {
        let draft = self.draft_with_residuals(base, refinements, points);
        HtzWriter::predict_length(draft, self.sections)
    }

    /// Returns the manifest with residuals before they are made, with space for `points` active
    /// fractions.
    fn draft_with_residuals(
        &self,
        base: &Manifest,
        refinements: &[Refinement],
        points: usize,
    ) -> Manifest {
        let mut draft = base.clone();
        for refinement in refinements {
            let member = &refinement.member;
            let matrix = member.matrix;
            let stored = draft.tensor(matrix.weight()).map(|entry| &entry.name);
            let name = stored.map_or_else(|| matrix.to_string(), Clone::clone);
            let name = name.strip_suffix(".weight").unwrap_or(&name);
            let entry = TensorEntry::new(
                format!("{name}.refinement"),
                Role::Refinement { matrix },
                DType::Bands,
                member.rows,
                member.cols,
            );
            draft
                .tensors
                .push(entry.with_codes(Some(refinement.codes.clone().into())));
        }
        let features = Manifest::required_features(&draft.hyper, &draft.tensors);
        require(&mut draft, features);
        draft.quality = self.reserve_quality.then(QualityRecord::draft);
        draft.dial = match (self.reserve_quality, refinements) {
            (false, _) | (_, []) => Vec::new(),
            (true, _) => vec![ActiveFractionPoint::default(); points],
        };
        match draft.provenance.tuning {
            Some(_) => draft,
            None => layout::reserve_tuning(draft, self.reserve_tuning),
        }
    }

    /// Makes a copy of a complete artifact with these residuals and space for `points` active
    /// fractions, or returns the existing one.
    pub fn with_residuals(
        &self,
        built: &BuiltArtifact,
        plan: &Plan,
        refinements: &[Refinement],
        points: usize,
    ) -> Result<BuiltArtifact, MakeError> {
        let watch = self.progress;
        let base = self.work.artifact(built.key).open()?;
        let draft = self.draft_with_residuals(base.manifest(), refinements, points);
        let mut named = format!("refined {} {points}\n", built.key);
        for of in refinements {
            named.push_str(&format!("{} {}\n", of.member.matrix, of.codes));
        }
        let key = Digest::of_bytes(named.as_bytes());
        let bytes = HtzWriter::predict_length(draft.clone(), self.sections)?;
        self.derive(key, draft, |mut writer, _| {
            for entry in &base.manifest().tensors {
                writer.write_tensor(entry.role, base.tensor_bytes(entry))?;
                watch.check_cancelled()?;
            }
            let base = ModelFile::from_htz(&base)?;
            self.write_residuals(&base, plan, refinements, &mut writer)?;
            Ok(writer.finish(|_| {})?)
        })?;
        Ok(BuiltArtifact {
            key,
            bytes,
            ..built.clone()
        })
    }

    fn write_residuals(
        &self,
        base: &ModelFile,
        plan: &Plan,
        refinements: &[Refinement],
        writer: &mut HtzWriter,
    ) -> Result<(), MakeError> {
        let watch = self.progress;
        let mut treatment = self.model_treatment(Treatment::default());
        treatment.effort = plan.request().effort;
        let source = PermutedSource::new(self.source, self.permutation).minus(base);
        watch.begin(Task::Residuals, refinements.len());
        ordered::for_each(
            self.threads(),
            refinements.len(),
            PENDING_PER_THREAD * self.threads(),
            |index| {
                let Refinement { member, codes, .. } = &refinements[index];
                let codes = codes.clone().into();
                let unit = UnitPlan::new(vec![*member], MatrixForm::ColumnGroups { codes });
                let made = unit::factorise(&source, &unit, &treatment);
                made.map_err(|error| MakeError::with_source_path(self.source)(error))
            },
            |index, factors| {
                let matrix = refinements[index].member.matrix;
                for bytes in &factors.tensors {
                    writer.write_tensor(Role::Refinement { matrix }, bytes)?;
                }
                Ok::<_, MakeError>(watch.step_done(&matrix.to_string())?)
            },
        )
    }
}
