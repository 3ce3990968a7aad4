//! Makes one artifact from one plan, resuming after an interruption.

mod error;
mod journal;
mod refined;
mod treatment;
mod tuned;
mod with_source;
pub mod work;

use std::borrow::Cow;
use std::collections::BTreeMap;

use htc_formats::htz::{
    DepthSinkRecord, DialPoint, Digest, HtzError, HtzWriter, Manifest, Origin, PlanRecord,
    QualityRecord, Section, SpectrumRecord, TensorEntry,
};
use htc_formats::model::{Role, Slot};
use htc_formats::source::ModelFile;

use crate::calibrate::Calibration;
use crate::device::Device;
use crate::event::{Event, Measurement, Watch};
use crate::geometry::probe;
use crate::gradient::Gradients;
use crate::layout::{self, Job};
use crate::order::{Order, Ordered};
use crate::plan::{Plan, UnitPlan};
use crate::request::{GaugeKind, Treatment};
use crate::system::ordered;
use crate::unit::ModelTreatment;
use crate::unit::{self, Factors, Found, UnitError, UnitsError, kv_bases};
pub use error::MakeError;
pub use journal::Artifact;
use journal::Journal;
pub use treatment::{
    AxiomSearch, ExemptChannels, MeasuredMatrix, MeasuredSlot, SinkCoverage, TreatmentReport,
};
pub use tuned::Change;
pub use with_source::WithSource;
use work::Work;

/// Version of the arithmetic. It changes whenever the same source and request give other results;
/// work of another version is not resumed.
pub const ARITHMETIC_VERSION: u32 = 8;

/// Inputs shared by all artifacts of a compilation.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The model.
    pub source: &'a ModelFile,
    /// Digest of the model.
    pub digest: Digest,
    /// Statistics of its activations.
    pub calibration: Option<&'a Calibration>,
    /// Costs of errors at the outputs of its matrices, if codes are chosen by them.
    pub gradients: Option<&'a Gradients>,
    /// Channel permutation, if any.
    pub order: Option<&'a Order>,
    /// Layer that the artifact records for probes.
    pub depth_sink: DepthSinkRecord,
    /// Sections after the tensors: the vocabulary, and compiled GPU kernels.
    pub sections: &'a [Section],
    /// Reserves space in the artifact for the quality that is measured on the chosen candidate.
    pub measured: bool,
    /// Reserves space in the artifact for the record of tuning the chosen candidate.
    pub tuned: bool,
    /// Set for bases whose residuals will be coded where that pays per byte.
    pub to_be_refined: bool,
    /// Device that executes models; the threads of its pool factorise.
    pub device: &'a dyn Device,
}

/// A complete artifact in the work folder.
#[derive(Clone, Debug)]
pub struct Built {
    /// Key in the work folder.
    pub key: Digest,
    /// Plan record with the measured errors.
    pub record: PlanRecord,
    /// Measurements of its units.
    pub treated: TreatmentReport,
    /// Size in bytes.
    pub bytes: u64,
}

impl Inputs<'_> {
    /// Returns the number of threads that factorise.
    pub fn threads(&self) -> usize {
        self.device.pool().threads()
    }

    fn treated(&self, treatment: Treatment) -> ModelTreatment<'_> {
        ModelTreatment::new(treatment, self.calibration, self.device.algebra())
    }

    /// Returns the artifact's manifest before its first tensor.
    pub fn draft(&self, plan: &Plan, treatment: Treatment) -> Manifest {
        let (source, calibration) = (self.source, self.calibration);
        let mut draft = layout::draft(
            source,
            self.digest,
            plan,
            (calibration, &self.device.algebra().name()),
            self.order.map(Order::digest),
            &treatment,
            self.measured,
        );
        draft = layout::reserve_tuning(draft, self.tuned);
        if let Some(geometry) = &mut draft.geometry {
            geometry.depth_sink = self.depth_sink;
        }
        if self.depth_sink.origin == Origin::Asked {
            draft.requires.push(Manifest::PROBE.to_owned());
        }
        draft
    }

    /// Returns a digest of everything that the bytes of a plan's artifact depend on.
    pub fn key(&self, plan: &Plan, treatment: Treatment) -> Digest {
        self.key_of(&self.draft(plan, treatment), treatment, plan)
    }

    fn key_of(&self, draft: &Manifest, treatment: Treatment, plan: &Plan) -> Digest {
        // Destructured so that added fields must be considered here.
        let Inputs {
            source,
            digest,
            calibration,
            gradients,
            depth_sink,
            sections,
            to_be_refined,
            order: _,
            measured: _,
            tuned: _,
            // Only the name of its linear algebra; the rest is in the calibration's key.
            device,
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
                found: _,
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
        // The manifest has the plan, hyper-parameters and provenance; the tokenizer section has the
        // vocabulary with its chat template.
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
        Digest::of(named.as_bytes())
    }

    /// Makes the artifact of a plan, or returns the complete one.
    ///
    /// # Errors
    /// [`MakeError`]; finished work stays in the work folder.
    pub fn build(
        &self,
        plan: &Plan,
        treatment: Treatment,
        work: &Work,
        watch: Watch,
    ) -> Result<Built, MakeError> {
        let source = self.source;
        let jobs = layout::jobs(source, plan, treatment.bias);
        let draft = self.draft(plan, treatment);
        let key = self.key_of(&draft, treatment, plan);
        let artifact = work.artifact(key);
        let (mut left, mut journal) = artifact.journal::<Found>(watch)?;
        let mut known: BTreeMap<usize, Found> = left.steps.iter().cloned().collect();
        let mut record = draft.plan.clone();
        let sections = self.sections.to_vec();
        let bytes = HtzWriter::length_of(draft.clone(), &sections)?;
        let is_known = |index: usize| made(jobs[index]).is_none() || known.contains_key(&index);
        let all_known = (0..jobs.len()).all(is_known);
        if !(all_known && artifact.is_complete(left.complete)) {
            let (name, partial) = (artifact.complete(), artifact.partial());
            let geometry = draft.geometry.clone();
            let mut writer = HtzWriter::resume(work.folder(), &name, &partial, draft, sections)?;
            let taken = writer.take_over(&left.tensors)?;
            // The journal may list more tensors than the file has, or belong to a lost file.
            if taken < left.tensors.len() {
                left.tensors.truncate(taken);
                journal.rewrite(&left)?;
            }
            let written: Vec<Role> = writer.written().iter().map(|entry| entry.role).collect();
            let has_tensors = |index: usize| {
                let roles = roles(jobs[index], treatment.bias);
                roles.iter().all(|role| written.contains(role))
            };
            let done = |index| has_tensors(index) && is_known(index);
            let writing = Writing {
                jobs: &jobs,
                done: (0..jobs.len()).map(done).collect(),
                biases: treatment.bias,
                source: Ordered::new(source, self.order),
                written,
                writer: &mut writer,
                journal: &mut journal,
                ready: BTreeMap::new(),
                found: Vec::new(),
                watch,
            };
            let found = self.write_missing(plan, treatment, writing)?;
            watch.tell(Event::Sealing);
            known.extend(found);
            fill_in(&mut record, &jobs, &known);
            if let Some(mut geometry) = geometry {
                geometry.spectra = stored_spectra(&writer, source.hyper.layers, self.threads())?;
                writer.describe(geometry);
            }
            writer.finish(|plan| plan.clone_from(&record))?;
            journal.complete(Digest::of(artifact.open()?.head()))?;
        }
        fill_in(&mut record, &jobs, &known);
        let mut treated = TreatmentReport::default();
        for (&index, found) in &known {
            if let Some(unit) = jobs.get(index).and_then(|&job| made(job)) {
                treated.add(unit, found);
            }
        }
        Ok(Built {
            key,
            record,
            treated,
            bytes,
        })
    }

    /// Writes measured quality into the complete artifact of a key, or removes that of an earlier
    /// run. The artifact is then final.
    ///
    /// # Errors
    /// [`HtzError::Quality`] for an invalid quality, and failures of the system.
    pub fn put_quality(
        &self,
        key: Digest,
        quality: Option<QualityRecord>,
        work: &Work,
        watch: Watch,
    ) -> Result<(), HtzError> {
        let artifact = work.artifact(key);
        HtzWriter::put_quality(work.folder(), &artifact.complete(), quality)?;
        let (_, mut journal) = artifact.journal::<Found>(watch)?;
        journal.complete(Digest::of(artifact.open()?.head()))
    }

    /// Writes the points of the active fraction into the complete artifact of a key.
    ///
    /// # Errors
    /// [`HtzError::Dial`] for points that do not match the artifact, and failures of the system.
    pub fn put_dial(
        &self,
        key: Digest,
        dial: Vec<DialPoint>,
        work: &Work,
        watch: Watch,
    ) -> Result<(), HtzError> {
        let artifact = work.artifact(key);
        HtzWriter::put_dial(work.folder(), &artifact.complete(), dial)?;
        let (_, mut journal) = artifact.journal::<Found>(watch)?;
        journal.complete(Digest::of(artifact.open()?.head()))
    }

    /// Makes the missing units on several threads and writes them in order; returns their
    /// measurements.
    fn write_missing(
        &self,
        plan: &Plan,
        treatment: Treatment,
        mut writing: Writing,
    ) -> Result<Vec<(usize, Found)>, MakeError> {
        let (source, jobs, watch) = (self.source, writing.jobs, writing.watch);
        let (done, ordered) = (writing.done.clone(), writing.source);
        self.device.make_room();
        let treatment = self
            .treated(treatment)
            .with_gradients(self.gradients)
            .to_be_refined(self.to_be_refined)
            .of_plan(ordered, plan);
        let open = |layer: usize| {
            let open = (0..jobs.len()).filter(|&index| !done[index]);
            let mut units = open.filter_map(|index| made(jobs[index]));
            units.any(|unit| unit.layer() == Some(layer))
        };
        search_axioms(&treatment, source, self.threads(), open, watch)?;
        watch.tell(Event::Planned(jobs.len()));
        let of_source = |error| MakeError::from(UnitsError::of(source)(error));
        let algebra = self.device.algebra();
        let bases = |layer: usize| {
            let calibration = self.calibration.ok_or(MakeError::KvBasesWithoutText)?;
            let found = &calibration.layers[layer];
            let made = kv_bases::of_layer(found, (&source.hyper, layer), self.order, algebra);
            made.map(Made::Tensors).map_err(of_source)
        };
        ordered::for_each(
            self.threads(),
            jobs.len(),
            window(jobs, source.hyper.layers, self.threads()),
            |index| match jobs[index] {
                _ if done[index] => Ok(Made::Nothing),
                Job::PassThrough(tensor) => {
                    unit::check_finite(source, tensor).map_err(of_source)?;
                    Ok(Made::Nothing)
                }
                Job::Make(unit) => unit::factorise(&ordered, unit, &treatment)
                    .map(Made::Unit)
                    .map_err(of_source),
                Job::KvBases(layer) => bases(layer),
            },
            |index, made| writing.step(index, made),
        )?;
        Ok(writing.found)
    }
}

fn made(job: Job<'_>) -> Option<&UnitPlan> {
    match job {
        Job::Make(unit) => Some(unit),
        Job::PassThrough(_) | Job::KvBases(_) => None,
    }
}

enum Made {
    Nothing,
    Unit(Factors),
    Tensors(Vec<(Role, Vec<u8>)>),
}

struct Writing<'a> {
    jobs: &'a [Job<'a>],
    done: Vec<bool>,
    biases: bool,
    source: Ordered<'a>,
    written: Vec<Role>,
    writer: &'a mut HtzWriter,
    journal: &'a mut Journal,
    /// Finished tensors that wait for their turn.
    ready: BTreeMap<Role, Cow<'a, [u8]>>,
    found: Vec<(usize, Found)>,
    watch: Watch<'a>,
}

impl Writing<'_> {
    fn step(&mut self, index: usize, made: Made) -> Result<(), MakeError> {
        let job = self.jobs[index];
        match (job, made) {
            (Job::Make(_), Made::Unit(factors)) => {
                let tensors = factors.tensors.into_iter().map(Cow::Owned);
                let roles = roles(job, self.biases);
                self.ready.extend(roles.into_iter().zip(tensors));
                self.journal.step(index, &factors.found)?;
                self.found.push((index, factors.found));
            }
            (Job::PassThrough(tensor), _) if !self.done[index] => {
                let bytes = self.source.bytes(tensor).map_err(|error| {
                    let tensor = tensor.name.clone();
                    let source = error;
                    UnitsError::of(self.source.file())(UnitError::Order { tensor, source })
                })?;
                self.ready.insert(tensor.role, bytes);
            }
            (_, Made::Tensors(tensors)) => {
                let tensors = tensors.into_iter();
                self.ready
                    .extend(tensors.map(|(role, bytes)| (role, Cow::Owned(bytes))));
            }
            _ => {}
        }
        while let Some(role) = self.writer.turn().map(|entry| entry.role) {
            match self.ready.remove(&role) {
                Some(bytes) => self.writer.write_tensor(role, &bytes)?,
                None => break,
            }
            if let Some(entry) = self.writer.written().last() {
                self.journal.tensor(entry.sha256)?;
            }
        }
        // Already written, but made again because another tensor of the unit was missing.
        let written = &self.written;
        self.ready.retain(|role, _| !written.contains(role));
        match job {
            Job::Make(unit) => self.watch.done(&unit.label())?,
            Job::PassThrough(tensor) => self.watch.done(&tensor.name)?,
            Job::KvBases(layer) => self
                .watch
                .done(&format!("bases for the KV cache of layer {layer}"))?,
        }
        Ok(())
    }
}

/// Searches the axiom gauges of all wanted layers, one layer per thread. Units that requested them
/// lazily would wait for each other.
fn search_axioms(
    treatment: &ModelTreatment,
    source: &ModelFile,
    threads: usize,
    wanted: impl Fn(usize) -> bool,
    watch: Watch,
) -> Result<(), MakeError> {
    if treatment.treatment().gauge != GaugeKind::Axiom {
        return Ok(());
    }
    let layers: Vec<usize> = (0..source.hyper.layers)
        .filter(|&layer| wanted(layer))
        .collect();
    watch.tell(Event::Measuring(Measurement::Gauges, layers.len()));
    ordered::for_each(
        threads,
        layers.len(),
        // Gauges need little memory.
        layers.len(),
        |index| {
            let layer = layers[index];
            let found = treatment.axiom(layer).map(|_| ());
            Ok(found.map_err(UnitsError::of(source))?)
        },
        |index, ()| Ok(watch.done(&format!("layer {}", layers[index]))?),
    )
}

/// Computes the spectra of all layers from the tensors in the unfinished file. They do not depend
/// on the run that wrote them.
fn stored_spectra(
    writer: &HtzWriter,
    layers: usize,
    threads: usize,
) -> Result<Vec<SpectrumRecord>, MakeError> {
    let map = writer.mapped().map_err(HtzError::from)?;
    let bytes = |entry: &TensorEntry| {
        let start = usize::try_from(entry.offset).ok();
        let end = start.and_then(|start| start.checked_add(usize::try_from(entry.length).ok()?));
        let range = start.zip(end).map(|(start, end)| start..end);
        range.and_then(|range| map.get(range)).unwrap_or(&[])
    };
    let mut spectra = Vec::with_capacity(layers * Slot::ALL.len());
    for layer in 0..layers {
        spectra.extend(probe::spectra(writer.written(), bytes, layer, threads)?);
    }
    Ok(spectra)
}

fn fill_in(record: &mut PlanRecord, jobs: &[Job], found: &BTreeMap<usize, Found>) {
    for (&index, found) in found {
        let Some(Job::Make(unit)) = jobs.get(index) else {
            continue;
        };
        for (member, error) in unit.members.iter().zip(&found.errors) {
            if let Some(found) = layout::error_of(record, member.matrix) {
                *found = Some(*error);
            }
        }
    }
}

fn roles(job: Job, biases: bool) -> Vec<Role> {
    match job {
        Job::PassThrough(tensor) => vec![tensor.role],
        Job::KvBases(layer) => kv_bases::roles(layer),
        Job::Make(unit) => {
            let shapes = unit::stored_tensors(unit, biases);
            shapes.into_iter().map(|shape| shape.role).collect()
        }
    }
}

/// Returns the number of results that may wait to be written: those of one layer, or more if the
/// threads would not find enough work within one.
pub fn window(jobs: &[Job], layers: usize, threads: usize) -> usize {
    let units = jobs.iter().filter(|j| matches!(j, Job::Make(_)));
    let distance = jobs.len().div_ceil(units.count().max(1));
    jobs.len()
        .div_ceil(layers)
        .max(threads.saturating_mul(distance))
}
