//! One artifact from one plan: factorised and sealed, from where an earlier run was interrupted.

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

/// Changes with every change of what is computed from the same source and request: what was made with
/// another arithmetic is not gone on with.
pub const ARITHMETIC_VERSION: u32 = 8;

/// What every artifact of a compilation is made from.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The model.
    pub source: &'a ModelFile,
    /// Its digest.
    pub digest: Digest,
    /// Its activations.
    pub calibration: Option<&'a Calibration>,
    /// What errors at the outputs of its matrices cost, where codes are chosen by that.
    pub gradients: Option<&'a Gradients>,
    /// The order in which it is stored, where that is another.
    pub order: Option<&'a Order>,
    /// The layer that the artifact names for a probe.
    pub depth_sink: DepthSinkRecord,
    /// What lies behind its tensors: its vocabulary, and kernels that were compiled for GPUs.
    pub sections: &'a [Section],
    /// Whether the quality of the one that is chosen will be measured and written into it, for which all
    /// have room.
    pub measured: bool,
    /// Whether the one that is chosen will be tuned, which all have room to say.
    pub tuned: bool,
    /// Whether what its matrices lose is to be coded beside them, where a byte gains enough by that.
    pub to_be_refined: bool,
    /// What executes models; its host's threads factorise.
    pub device: &'a dyn Device,
}

/// An artifact that lies complete in the work folder.
#[derive(Clone, Debug)]
pub struct Built {
    /// What distinguishes it.
    pub key: Digest,
    /// What it says of its plan, with the errors.
    pub record: PlanRecord,
    /// What was found of its units.
    pub treated: TreatmentReport,
    /// Its bytes.
    pub bytes: u64,
}

impl Inputs<'_> {
    /// Threads that factorise.
    pub fn threads(&self) -> usize {
        self.device.pool().threads()
    }

    fn treated(&self, treatment: Treatment) -> ModelTreatment<'_> {
        ModelTreatment::new(treatment, self.calibration, self.device.algebra())
    }

    /// The artifact's manifest before its first tensor.
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

    /// A digest of everything that the bytes of the artifact of a plan depend on.
    pub fn key(&self, plan: &Plan, treatment: Treatment) -> Digest {
        self.key_of(&self.draft(plan, treatment), treatment, plan)
    }

    fn key_of(&self, draft: &Manifest, treatment: Treatment, plan: &Plan) -> Digest {
        // Every field is named: one that is added must be thought of here.
        let Inputs {
            source,
            digest,
            calibration,
            gradients,
            depth_sink,
            sections,
            to_be_refined,
            // In the manifest.
            order: _,
            measured: _,
            tuned: _,
            // Of what executes, its linear algebra; the rest is in the key of the calibration.
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
                // In the manifest.
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
        // Plan, hyper-parameters and provenance are in the manifest, and the vocabulary with its chat
        // template is in the section of the tokenizer.
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

    /// Makes the artifact of a plan, or finds it complete.
    ///
    /// # Errors
    /// [`MakeError`]; what is finished stays in the work folder.
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
            // The journal may say more than the file holds, or be of a file that is gone.
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

    /// Writes what was measured on the complete artifact of a key into it, or takes out what an earlier run
    /// has written; the whole of it is complete then.
    ///
    /// # Errors
    /// [`HtzError::Quality`] where it is no quality that an artifact can say, and failures of the system.
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

    /// Writes what the complete artifact of a key is at parts of its bytes into it.
    ///
    /// # Errors
    /// [`HtzError::Dial`] where the points are none of it, and failures of the system.
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

    /// Makes what is not done, units on several threads, and writes it in order; gives what was found of
    /// the units.
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

/// The unit that a step makes.
fn made(job: Job<'_>) -> Option<&UnitPlan> {
    match job {
        Job::Make(unit) => Some(unit),
        Job::PassThrough(_) | Job::KvBases(_) => None,
    }
}

/// What a step made.
enum Made {
    /// What passes through, and what is done already.
    Nothing,
    /// A unit's tensors, and what was found of it.
    Unit(Factors),
    /// Tensors of which nothing is to be said.
    Tensors(Vec<(Role, Vec<u8>)>),
}

/// The steps on their way into the file.
struct Writing<'a> {
    jobs: &'a [Job<'a>],
    /// The steps that an earlier run did.
    done: Vec<bool>,
    /// Whether units have biases that correct them.
    biases: bool,
    source: Ordered<'a>,
    /// The tensors that an earlier run wrote.
    written: Vec<Role>,
    writer: &'a mut HtzWriter,
    journal: &'a mut Journal,
    /// Tensors that are made but whose turn to be written has not come.
    ready: BTreeMap<Role, Cow<'a, [u8]>>,
    /// What was found of the units that were made.
    found: Vec<(usize, Found)>,
    watch: Watch<'a>,
}

impl Writing<'_> {
    /// Takes the next step's tensors and writes those whose turn has come.
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
        // Made once more because another of the unit's tensors was missing.
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

/// Lets every thread search the axiom gauge of a layer, of those that are wanted; units that asked for one would wait for each
/// other.
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
        // A gauge takes no room.
        layers.len(),
        |index| {
            let layer = layers[index];
            let found = treatment.axiom(layer).map(|_| ());
            Ok(found.map_err(UnitsError::of(source))?)
        },
        |index, ()| Ok(watch.done(&format!("layer {}", layers[index]))?),
    )
}

/// The spectra of all layers, from the tensors that lie in the unfinished file: whichever run wrote
/// them, they are the same.
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

/// Enters the errors of the units' members.
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

/// The tensors that a step makes.
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

/// Results that may wait: those of one layer, or more where so many threads would not find work
/// within one.
pub fn window(jobs: &[Job], layers: usize, threads: usize) -> usize {
    let units = jobs.iter().filter(|j| matches!(j, Job::Make(_)));
    let distance = jobs.len().div_ceil(units.count().max(1));
    jobs.len()
        .div_ceil(layers)
        .max(threads.saturating_mul(distance))
}
