//! Adds residuals to an artifact as separate planes.

use htc_formats::DType;
use htc_formats::htz::{
    DialPoint, Digest, HtzError, HtzWriter, Manifest, QualityRecord, TensorEntry,
};
use htc_formats::model::Role;
use htc_formats::source::ModelFile;

use super::work::Work;
use super::{Built, Inputs, MakeError};
use crate::event::{Event, Watch};
use crate::layout;
use crate::order::Ordered;
use crate::plan::{Form, Plan, Refinement, UnitPlan};
use crate::request::Treatment;
use crate::system::ordered;
use crate::unit::{self, Found, UnitsError};

/// Residuals per thread that may wait to be written.
const AHEAD: usize = 2;

impl Inputs<'_> {
    /// Returns the bytes of the artifact with these residuals.
    ///
    /// # Errors
    /// Those of a reader of the resulting manifest.
    pub fn refined_bytes(
        &self,
        base: &Manifest,
        refinements: &[Refinement],
        points: usize,
    ) -> Result<u64, HtzError> {
        let draft = self.refined_draft(base, refinements, points);
        HtzWriter::length_of(draft, self.sections)
    }

    /// Returns the manifest with residuals before they are made, with space for `points` active
    /// fractions.
    fn refined_draft(
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
        for feature in Manifest::required_features(&draft.hyper, &draft.tensors) {
            if !draft.requires.contains(&feature) {
                draft.requires.push(feature);
            }
        }
        draft.quality = self.measured.then(QualityRecord::draft);
        draft.dial = match (self.measured, refinements) {
            (false, _) | (_, []) => Vec::new(),
            (true, _) => vec![DialPoint::default(); points],
        };
        // The record of tuning the bases stays until the whole is tuned.
        match draft.provenance.tuning {
            Some(_) => draft,
            None => layout::reserve_tuning(draft, self.tuned),
        }
    }

    /// Makes a copy of a complete artifact with these residuals and space for `points` active
    /// fractions, or returns the existing one. The original stays. An interrupted copy is started
    /// again.
    ///
    /// # Errors
    /// [`MakeError`].
    pub fn refined(
        &self,
        built: &Built,
        plan: &Plan,
        (refinements, points): (&[Refinement], usize),
        work: &Work,
        watch: Watch,
    ) -> Result<Built, MakeError> {
        let base = work.artifact(built.key).open()?;
        let draft = self.refined_draft(base.manifest(), refinements, points);
        let mut named = format!("refined {} {points}\n", built.key);
        for of in refinements {
            named.push_str(&format!("{} {}\n", of.member.matrix, of.codes));
        }
        let key = Digest::of(named.as_bytes());
        let bytes = HtzWriter::length_of(draft.clone(), self.sections)?;
        let artifact = work.artifact(key);
        let (left, mut journal) = artifact.journal::<Found>(watch)?;
        if !artifact.is_complete(left.complete) {
            let mut writer = artifact.anew(&mut journal, draft, self.sections)?;
            for entry in &base.manifest().tensors {
                writer.write_tensor(entry.role, base.tensor_bytes(entry))?;
                watch.check()?;
            }
            let base = ModelFile::from_htz(&base)?;
            self.write_refinements(&base, plan, refinements, &mut writer, watch)?;
            writer.finish(|_| {})?;
            journal.complete(Digest::of(artifact.open()?.head()))?;
        }
        Ok(Built {
            key,
            record: built.record.clone(),
            treated: built.treated.clone(),
            bytes,
        })
    }

    fn write_refinements(
        &self,
        base: &ModelFile,
        plan: &Plan,
        refinements: &[Refinement],
        writer: &mut HtzWriter,
        watch: Watch,
    ) -> Result<(), MakeError> {
        let treatment = self.treated(Treatment::default());
        let treatment = treatment.in_order(self.order);
        let treatment = treatment.with_gradients(self.gradients);
        let treatment = treatment.with_effort(plan.request().effort);
        let source = Ordered::new(self.source, self.order).less(base);
        watch.tell(Event::Planned(refinements.len()));
        ordered::for_each(
            self.threads(),
            refinements.len(),
            AHEAD * self.threads(),
            |index| {
                let Refinement { member, codes, .. } = &refinements[index];
                let unit = UnitPlan {
                    members: vec![*member],
                    form: Form::Bands {
                        codes: codes.clone().into(),
                    },
                    notes: Vec::new(),
                };
                let made = unit::factorise(&source, &unit, &treatment);
                made.map_err(|error| MakeError::from(UnitsError::of(self.source)(error)))
            },
            |index, factors| {
                let matrix = refinements[index].member.matrix;
                for bytes in &factors.tensors {
                    writer.write_tensor(Role::Refinement { matrix }, bytes)?;
                }
                Ok::<_, MakeError>(watch.done(&matrix.to_string())?)
            },
        )
    }
}
