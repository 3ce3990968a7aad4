//! Makes one artifact from one plan, resuming after an interruption.

mod journal;
mod refined;
mod treatment;
mod tuned;
mod with_source;
pub mod work;

use std::borrow::Cow;
use std::collections::BTreeMap;

use htc_formats::htz::{
    ActiveFractionPoint, DepthSinkOrigin, DepthSinkRecord, Digest, HtzError, HtzWriter, Manifest,
    PlanRecord, QualityRecord, Section, SpectrumRecord, TensorEntry, TuningRecord,
};
use htc_formats::model::Role;
use htc_formats::source::ModelFile;

use crate::calibrate::Calibration;
use crate::device::Device;
use crate::event::{Progress, Task};
use crate::geometry::probe;
use crate::gradient::Gradients;
use crate::layout::{self, WriteStep};
use crate::options::{GaugeKind, Treatment};
use crate::order::{ChannelPermutation, PermutedSource};
use crate::plan::{Plan, UnitPlan};
use crate::system::ordered;
pub use crate::unit::MakeError;
use crate::unit::ModelTreatment;
use crate::unit::{self, Factors, UnitMeasurements, kv_bases};
pub use journal::Artifact;
use journal::Journal;
pub use treatment::{
    AxiomSearch, ExemptChannels, MeasuredMatrix, MeasuredProjection, SinkCoverage, TreatmentReport,
};
pub use tuned::TensorChange;
pub use with_source::ArtifactWithSource;
use work::WorkFolder;

/// Version of the arithmetic, which changes whenever the same source and request give other
/// results.
pub const ARITHMETIC_VERSION: u32 = 9;

/// Makes the artifacts of a compilation in its work folder.
#[derive(Clone, Copy, Debug)]
pub struct ArtifactBuilder<'a> {
    /// The model.
    pub source: &'a ModelFile,
    /// Digest of the model.
    pub digest: Digest,
    /// Statistics of its activations.
    pub calibration: Option<&'a Calibration>,
    /// Costs of errors at the outputs of its matrices, if codes are chosen by them.
    pub gradients: Option<&'a Gradients>,
    /// Channel permutation, if any.
    pub permutation: Option<&'a ChannelPermutation>,
    /// Layer that the artifact records for probes.
    pub depth_sink: DepthSinkRecord,
    /// Sections after the tensors: the vocabulary, and compiled GPU kernels.
    pub sections: &'a [Section],
    /// Reserves space in the artifact for the measured quality.
    pub reserve_quality: bool,
    /// Reserves space in the artifact for the record of tuning.
    pub reserve_tuning: bool,
    /// Set for bases whose residuals will be coded.
    pub is_base: bool,
    /// Device that executes models.
    pub device: &'a dyn Device,
    /// Folder of the artifacts.
    pub work: &'a WorkFolder,
    /// Progress and cancellation.
    pub progress: Progress<'a>,
}

/// A complete artifact in the work folder.
#[derive(Clone, Debug)]
pub struct BuiltArtifact {
    /// Key in the work folder.
    pub key: Digest,
    /// Plan record with the measured errors.
    pub record: PlanRecord,
    /// Measurements of its units.
    pub treatment_report: TreatmentReport,
    /// Size in bytes.
    pub bytes: u64,
}

impl ArtifactBuilder<'_> {
    /// Returns the number of threads that factorise.
    pub fn threads(&self) -> usize {
        self.device.pool().threads()
    }

    fn model_treatment(&self, treatment: Treatment) -> ModelTreatment<'_> {
        let algebra = self.device.algebra();
        let mut treatment = ModelTreatment::new(treatment, self.calibration, algebra);
        treatment.gradients = self.gradients;
        treatment.order = self.permutation;
        treatment
    }

    /// Returns the artifact's manifest before its first tensor.
    pub fn draft(&self, plan: &Plan, treatment: Treatment) -> Manifest {
        let (source, calibration) = (self.source, self.calibration);
        let mut draft = layout::draft_manifest(
            source,
            plan,
            layout::ManifestInputs {
                source_sha256: self.digest,
                calibration,
                linear_algebra: &self.device.algebra().name(),
                order: self.permutation.map(ChannelPermutation::digest),
            },
            &treatment,
            self.reserve_quality,
        );
        draft = layout::reserve_tuning(draft, self.reserve_tuning);
        if let Some(geometry) = &mut draft.geometry {
            geometry.depth_sink = self.depth_sink;
        }
        if self.depth_sink.origin == DepthSinkOrigin::Asked {
            draft.requires.push(Manifest::PROBE.to_owned());
        }
        draft
    }

    /// Returns a digest of everything that the artifact depends on.
    pub fn key(&self, plan: &Plan, treatment: Treatment) -> Digest {
        self.key_of_draft(&self.draft(plan, treatment), treatment, plan)
    }

    fn key_of_draft(&self, draft: &Manifest, treatment: Treatment, plan: &Plan) -> Digest {
        let ArtifactBuilder {
            source,
            digest,
            calibration,
            gradients,
            depth_sink,
            sections,
            is_base: to_be_refined,
            permutation: _,
            reserve_quality: _,
            reserve_tuning: _,
            // The rest is in the calibration's key.
            device,
            work: _,
            progress: _,
        } = self;
        let Treatment {
            gauge,
            sink,
            bias,
            shrinkage,
        } = treatment;
        let calibration = calibration.map(|found| {
            let Calibration {
                key,
                arithmetic: _,
                layers: _,
                head: _,
                texts: _,
                context,
                windows: _,
                cached_layers: _,
                is_new: _,
                held_out: _,
                held_out_text: _,
            } = found;
            let (text, tokens) = (found.text_digest(), found.tokens());
            format!("{key} {text} {tokens} {context}")
        });
        let gradients = gradients.map(|found| found.key);
        let container = source.container;
        let effort = plan.request().effort;
        let manifest = serde_json::to_string(draft).unwrap_or_default();
        let entries: Vec<_> = sections.iter().map(Section::entry).collect();
        let section = serde_json::to_string(&entries).unwrap_or_default();
        let named = format!(
            "htc {} arithmetic {ARITHMETIC_VERSION} {} {}\n\
             source {digest} {container:?}\ncalibration {calibration:?} {gradients:?}\ndepth sink {depth_sink:?}\n\
             gauge {gauge} sink {sink} bias {bias} shrinkage {shrinkage} effort {effort} refined {to_be_refined}\n{section}\n{manifest}",
            env!("CARGO_PKG_VERSION"),
            device.algebra().name(),
            htc_kernels::cpu::instruction_set(),
        );
        Digest::of_bytes(named.as_bytes())
    }

    /// Makes the artifact of a plan, or returns the complete one.
    pub fn build(&self, plan: &Plan, treatment: Treatment) -> Result<BuiltArtifact, MakeError> {
        let (source, work, watch) = (self.source, self.work, self.progress);
        let jobs = layout::write_steps(source, plan, treatment.bias);
        let draft = self.draft(plan, treatment);
        let key = self.key_of_draft(&draft, treatment, plan);
        let artifact = work.artifact(key);
        let (mut left, mut journal) = artifact.journal::<UnitMeasurements>(watch)?;
        let mut known: BTreeMap<usize, UnitMeasurements> = left.steps.iter().cloned().collect();
        let mut record = draft.plan.clone();
        let sections = self.sections.to_vec();
        let bytes = HtzWriter::predict_length(draft.clone(), &sections)?;
        let is_known =
            |index: usize| unit_of_job(jobs[index]).is_none() || known.contains_key(&index);
        let all_known = (0..jobs.len()).all(is_known);
        if !(all_known && artifact.is_complete(left.complete)) {
            let (name, partial) = (artifact.complete_name(), artifact.partial_name());
            let geometry = draft.geometry.clone();
            let mut writer = HtzWriter::resume(work.folder(), &name, &partial, draft, sections)?;
            let taken = writer.resume_tensors(&left.tensors)?;
            if taken < left.tensors.len() {
                left.tensors.truncate(taken);
                journal.rewrite(&left)?;
            }
            let written: Vec<Role> = writer
                .written_tensors()
                .iter()
                .map(|entry| entry.role)
                .collect();
            let has_tensors = |index: usize| {
                let roles = roles(jobs[index], treatment.bias);
                roles.iter().all(|role| written.contains(role))
            };
            let done = |index| has_tensors(index) && is_known(index);
            let writing = ArtifactWriter {
                jobs: &jobs,
                done: (0..jobs.len()).map(done).collect(),
                biases: treatment.bias,
                source: PermutedSource::new(source, self.permutation),
                written,
                writer: &mut writer,
                journal: &mut journal,
                ready: BTreeMap::new(),
                found: Vec::new(),
                watch,
            };
            let found = self.write_missing(plan, treatment, writing)?;
            watch.begin(Task::Sealing, 0);
            known.extend(found);
            record_errors(&mut record, &jobs, &known);
            if let Some(mut geometry) = geometry {
                geometry.spectra = stored_spectra(&writer, source.hyper.layers, self.threads())?;
                writer.set_geometry(geometry);
            }
            writer.finish(|plan| plan.clone_from(&record))?;
            journal.record_complete(&artifact)?;
        }
        record_errors(&mut record, &jobs, &known);
        let mut treated = TreatmentReport::default();
        for (&index, found) in &known {
            if let Some(unit) = jobs.get(index).and_then(|&job| unit_of_job(job)) {
                treated.add(unit, found);
            }
        }
        Ok(BuiltArtifact {
            key,
            record,
            treatment_report: treated,
            bytes,
        })
    }

    /// Writes measured quality into the complete artifact of a key, or removes that of an earlier
    /// run.
    ///
    /// # Errors
    /// [`HtzError::Property`] for an invalid quality.
    pub fn put_quality(&self, key: Digest, quality: Option<QualityRecord>) -> Result<(), HtzError> {
        let artifact = self.work.artifact(key);
        HtzWriter::write_quality(self.work.folder(), &artifact.complete_name(), quality)?;
        self.record_complete(&artifact)
    }

    /// Writes the divergences before and after tuning into the complete artifact of a key.
    pub fn put_tuning(&self, key: Digest, tuning: TuningRecord) -> Result<(), HtzError> {
        let artifact = self.work.artifact(key);
        HtzWriter::write_tuning(self.work.folder(), &artifact.complete_name(), tuning)?;
        self.record_complete(&artifact)
    }

    /// Writes the points of the active fraction into the complete artifact of a key.
    ///
    /// # Errors
    /// [`HtzError::Property`] for points that do not match the artifact.
    pub fn put_active_fractions(
        &self,
        key: Digest,
        dial: Vec<ActiveFractionPoint>,
    ) -> Result<(), HtzError> {
        let artifact = self.work.artifact(key);
        HtzWriter::write_active_fractions(self.work.folder(), &artifact.complete_name(), dial)?;
        self.record_complete(&artifact)
    }

    fn record_complete(&self, artifact: &Artifact) -> Result<(), HtzError> {
        let (_, mut journal) = artifact.journal::<UnitMeasurements>(self.progress)?;
        journal.record_complete(artifact)
    }

    /// Makes the artifact of a key by `write`, which finishes it, or returns the complete one.
    fn derive(
        &self,
        key: Digest,
        draft: Manifest,
        write: impl FnOnce(HtzWriter, &Artifact) -> Result<(), MakeError>,
    ) -> Result<Artifact<'_>, MakeError> {
        let artifact = self.work.artifact(key);
        let (left, mut journal) = artifact.journal::<UnitMeasurements>(self.progress)?;
        if !artifact.is_complete(left.complete) {
            write(
                artifact.restart(&mut journal, draft, self.sections)?,
                &artifact,
            )?;
            journal.record_complete(&artifact)?;
        }
        Ok(artifact)
    }

    /// Makes the missing units on several threads and writes them in order; returns their
    /// measurements.
    fn write_missing(
        &self,
        plan: &Plan,
        treatment: Treatment,
        mut writing: ArtifactWriter,
    ) -> Result<Vec<(usize, UnitMeasurements)>, MakeError> {
        let (source, jobs, watch) = (self.source, writing.jobs, writing.watch);
        let (done, ordered) = (writing.done.clone(), writing.source);
        self.device.unload_idle_models();
        let mut treatment = self.model_treatment(treatment).with_plan(ordered, plan);
        treatment.is_base = self.is_base;
        let open = |layer: usize| {
            let open = (0..jobs.len()).filter(|&index| !done[index]);
            let mut units = open.filter_map(|index| unit_of_job(jobs[index]));
            units.any(|unit| unit.layer() == Some(layer))
        };
        search_axioms(&treatment, source, self.threads(), open, watch)?;
        watch.begin(Task::Encoding, jobs.len());
        let of_source = |error| MakeError::with_source_path(source)(error);
        let algebra = self.device.algebra();
        let bases = |layer: usize| {
            let calibration = self.calibration.ok_or(MakeError::KvBasesWithoutText)?;
            let found = &calibration.layers[layer];
            let hyper = &source.hyper;
            let made = kv_bases::layer_tensors(found, hyper, layer, self.permutation, algebra);
            made.map(JobResult::Tensors).map_err(of_source)
        };
        ordered::for_each(
            self.threads(),
            jobs.len(),
            pending_limit(jobs, source.hyper.layers, self.threads()),
            |index| match jobs[index] {
                _ if done[index] => Ok(JobResult::Nothing),
                WriteStep::PassThrough(tensor) => {
                    unit::check_tensor_finite(source, tensor).map_err(of_source)?;
                    Ok(JobResult::Nothing)
                }
                WriteStep::Compute(unit) => unit::factorise(&ordered, unit, &treatment)
                    .map(JobResult::Unit)
                    .map_err(of_source),
                WriteStep::KvBases(layer) => bases(layer),
            },
            |index, made| writing.step(index, made),
        )?;
        Ok(writing.found)
    }
}

fn require(draft: &mut Manifest, features: Vec<String>) {
    for feature in features {
        if !draft.requires.contains(&feature) {
            draft.requires.push(feature);
        }
    }
}

fn unit_of_job(job: WriteStep<'_>) -> Option<&UnitPlan> {
    match job {
        WriteStep::Compute(unit) => Some(unit),
        WriteStep::PassThrough(_) | WriteStep::KvBases(_) => None,
    }
}

enum JobResult {
    Nothing,
    Unit(Factors),
    Tensors(Vec<(Role, Vec<u8>)>),
}

struct ArtifactWriter<'a> {
    jobs: &'a [WriteStep<'a>],
    done: Vec<bool>,
    biases: bool,
    source: PermutedSource<'a>,
    written: Vec<Role>,
    writer: &'a mut HtzWriter,
    journal: &'a mut Journal,
    /// Finished tensors that wait for their turn.
    ready: BTreeMap<Role, Cow<'a, [u8]>>,
    found: Vec<(usize, UnitMeasurements)>,
    watch: Progress<'a>,
}

impl ArtifactWriter<'_> {
    fn step(&mut self, index: usize, made: JobResult) -> Result<(), MakeError> {
        let job = self.jobs[index];
        match (job, made) {
            (WriteStep::Compute(_), JobResult::Unit(factors)) => {
                let tensors = factors.tensors.into_iter().map(Cow::Owned);
                let roles = roles(job, self.biases);
                self.ready.extend(roles.into_iter().zip(tensors));
                self.journal.record_step(index, &factors.measurements)?;
                self.found.push((index, factors.measurements));
            }
            (WriteStep::PassThrough(tensor), _) if !self.done[index] => {
                let bytes = self.source.bytes(tensor);
                let bytes = bytes.map_err(MakeError::with_source_path(self.source.file()))?;
                self.ready.insert(tensor.role, bytes);
            }
            (_, JobResult::Tensors(tensors)) => {
                let tensors = tensors.into_iter();
                self.ready
                    .extend(tensors.map(|(role, bytes)| (role, Cow::Owned(bytes))));
            }
            _ => {}
        }
        while let Some(role) = self.writer.next_tensor().map(|entry| entry.role) {
            match self.ready.remove(&role) {
                Some(bytes) => self.writer.write_tensor(role, &bytes)?,
                None => break,
            }
            if let Some(entry) = self.writer.written_tensors().last() {
                self.journal.record_tensor(entry.sha256)?;
            }
        }
        // Made again because another tensor of the unit was missing.
        let written = &self.written;
        self.ready.retain(|role, _| !written.contains(role));
        match job {
            WriteStep::Compute(unit) => self.watch.step_done(&unit.label())?,
            WriteStep::PassThrough(tensor) => self.watch.step_done(&tensor.name)?,
            WriteStep::KvBases(layer) => self
                .watch
                .step_done(&format!("bases for the KV cache of layer {layer}"))?,
        }
        Ok(())
    }
}

/// Searches the axiom gauges of all layers that need one, one layer per thread. Units that requested them
/// lazily would wait for each other.
fn search_axioms(
    treatment: &ModelTreatment,
    source: &ModelFile,
    threads: usize,
    is_needed: impl Fn(usize) -> bool,
    watch: Progress,
) -> Result<(), MakeError> {
    if treatment.treatment.gauge != GaugeKind::Axiom {
        return Ok(());
    }
    let layers: Vec<usize> = (0..source.hyper.layers)
        .filter(|&layer| is_needed(layer))
        .collect();
    watch.begin(Task::Gauges, layers.len());
    watch.run_steps(
        threads,
        layers.len(),
        |index| format!("layer {}", layers[index]),
        |index| {
            let found = treatment.axiom(layers[index]).map(|_| ());
            found.map_err(MakeError::with_source_path(source))
        },
    )?;
    Ok(())
}

/// Computes the spectra of all layers from the tensors in the unfinished file. They do not depend
/// on the run that wrote them.
fn stored_spectra(
    writer: &HtzWriter,
    layers: usize,
    threads: usize,
) -> Result<Vec<SpectrumRecord>, MakeError> {
    let map = writer.map_unfinished().map_err(HtzError::from)?;
    let bytes = |entry: &TensorEntry| {
        let start = usize::try_from(entry.offset).ok();
        let end = start.and_then(|start| start.checked_add(usize::try_from(entry.length).ok()?));
        let range = start.zip(end).map(|(start, end)| start..end);
        range.and_then(|range| map.get(range)).unwrap_or(&[])
    };
    let mut spectra = Vec::new();
    for layer in 0..layers {
        spectra.extend(probe::spectra(
            writer.written_tensors(),
            bytes,
            layer,
            threads,
        )?);
    }
    Ok(spectra)
}

fn record_errors(
    record: &mut PlanRecord,
    jobs: &[WriteStep],
    found: &BTreeMap<usize, UnitMeasurements>,
) {
    for (&index, found) in found {
        let Some(WriteStep::Compute(unit)) = jobs.get(index) else {
            continue;
        };
        for (member, error) in unit.members.iter().zip(&found.errors) {
            if let Some(found) = layout::error_field_mut(record, member.matrix) {
                *found = Some(*error);
            }
        }
    }
}

fn roles(job: WriteStep, biases: bool) -> Vec<Role> {
    match job {
        WriteStep::PassThrough(tensor) => vec![tensor.role],
        WriteStep::KvBases(layer) => kv_bases::roles(layer),
        WriteStep::Compute(unit) => {
            let shapes = unit::stored_tensors(unit, biases);
            shapes.into_iter().map(|shape| shape.role).collect()
        }
    }
}

/// Returns the number of results that may wait to be written: those of one layer, or enough to keep
/// the threads busy.
pub fn pending_limit(jobs: &[WriteStep], layers: usize, threads: usize) -> usize {
    let units = jobs.iter().filter(|j| matches!(j, WriteStep::Compute(_)));
    let distance = jobs.len().div_ceil(units.count().max(1));
    jobs.len()
        .div_ceil(layers)
        .max(threads.saturating_mul(distance))
}
