//! The whole flow on one page: from a model file to a sealed artifact.
//!
//! 1. **Read.** The source is mapped and bound to its architecture; its digest names it.
//! 2. **Plan.** From shapes, budget and what the allocator looks at it is decided what becomes of
//!    every slot; or a plan is taken from a file.
//! 3. **Factorise.** Units are decomposed in parallel, one thread each; every unit's error is
//!    measured on what is stored, after rounding.
//! 4. **Seal.** Tensors are written in the order of execution as they become ready, into a work
//!    folder from which an interrupted compilation goes on.
//! 5. **Choose.** What has no closed form, such as the gauge, is decided by executing the
//!    candidates on text that was held out. The chosen artifact takes its name.
//!
//! Each stage takes what the stage before returned. At most one layer's results are in memory;
//! the order of the arithmetic inside a unit does not depend on the number of threads, so the
//! same source and the same request give the same bytes on the same instruction set.

mod error;

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use htc_formats::DType;
use htc_formats::htz::{DepthSinkRecord, Digest, HtzWriter, Section};
use htc_formats::model::{Part, Role, Slot};
use htc_formats::source::{Container, ModelFile};
use htc_formats::vocab::HuggingFaceFiles;
use htc_loader::Model;

use crate::calibrate::{self, CalibrateError, Calibration};
use crate::choose::{self, Chosen, Goal, Wanted};
use crate::estimate::{self, Estimate, Expected};
use crate::geometry::probe;
use crate::layout;
use crate::make::Inputs;
use crate::make::work::Work;
use crate::plan::{self, Budget, Evidence, Plan, PlanError, Request};
use crate::profile::{Measured, Target, evidence, is_measured};
use crate::report::{Calibrated, Report};
use crate::request::{Asked, BiasArg, Treatment};
use crate::system::disk::{self, same_place};
use crate::system::memory::Peak;

pub use error::CompileError;

/// A ratio at which slots of all kinds are factorised, with ranks as large as they become: what a
/// search takes is estimated there.
const SEARCHED_RATIO: f64 = 0.5;

/// What to compile.
#[derive(Clone, Debug)]
pub struct Options {
    /// The model.
    pub input: PathBuf,
    /// The artifact.
    pub output: PathBuf,
    /// Where the plan comes from.
    pub planning: Planning,
    /// What to calibrate on, if at all.
    pub calibration: Option<calibrate::Options>,
    /// How weights are to be treated, where that is not left to the plan and to the defaults.
    pub weighting: Asked,
    /// What is to be reached by measuring.
    pub goal: Goal,
    /// Threads that factorise.
    pub threads: usize,
    /// Replace an existing output.
    pub overwrite: bool,
}

impl Options {
    /// Whether a path leads to the text or to the plan.
    pub(crate) fn reads(&self, path: &Path) -> bool {
        let of_plan = match &self.planning {
            Planning::File(plan) => same_place(plan, path),
            Planning::Make { .. } => false,
        };
        let calibration = self.calibration.as_ref();
        of_plan || calibration.is_some_and(|options| options.reads(path))
    }
}

/// Where a plan comes from.
#[derive(Clone, Debug)]
pub enum Planning {
    /// It is made.
    Make {
        /// What is asked for.
        request: Request,
        /// The machine that the artifact is for.
        target: Target,
    },
    /// It is read from a file; see [`plan::json`].
    File(PathBuf),
}

/// What is being done, for a progress display.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// So many units are measured for the plan, or layers for their gauges, each told as [`Event::Done`].
    Measuring(usize),
    /// The source is being read for its digest.
    Digest,
    /// Text flows through the source.
    Calibrate(calibrate::Event<'a>),
    /// So many steps follow.
    Planned(usize),
    /// A step is done: the layer and the slots it was about, or a tensor passed through.
    Done(&'a str),
    /// The artifact is forced to the disk.
    Sealing,
    /// A candidate is made and measured.
    Trial {
        /// How its weights are treated.
        treatment: Treatment,
        /// Parameters after over before, on the selected slots.
        ratio: f64,
    },
    /// So many windows of the text that was held out are measured.
    Evaluate {
        /// Windows done.
        done: usize,
        /// Windows.
        all: usize,
    },
}

/// Compiles a model.
///
/// # Errors
/// [`CompileError`]; nothing is left under the output's name then.
pub fn compile(options: &Options, progress: impl Fn(Event) + Sync) -> Result<Report, CompileError> {
    let started = Instant::now();
    let peak = Peak::default();
    let progress = |event: Event| {
        peak.sample();
        progress(event);
    };

    // Read, calibrate and plan. Whatever can be refused is refused before the first long read.
    let prepared = prepare(options, progress)?;
    let Prepared {
        source,
        digest,
        calibration,
        tokenizer,
        times: [read, calibrate],
        ..
    } = &prepared;
    let planned = started.elapsed();

    // Where to look first when the artifact is probed.
    let calibrated = calibration.as_ref();
    let depth_sink = probe::depth_sink(source, calibrated, options.threads, &progress)?;

    // Factorise, seal and measure, as often as there are candidates.
    let inputs = Inputs {
        source,
        digest: *digest,
        calibration: calibration.as_ref(),
        depth_sink,
        tokenizer,
        threads: options.threads,
    };
    let work = Work::open(&options.output)?;
    let chosen = choose::choose(
        &inputs,
        &|ratio| prepared.plan_at(ratio),
        prepared.wanted,
        &work,
        progress,
    )?;
    let factorised = started.elapsed();

    // Give it its name.
    progress(Event::Sealing);
    let made = work.artifact(chosen.built.key).complete();
    HtzWriter::rename(&made, &options.output, options.overwrite)?;
    drop(work);
    let times = Times {
        plan: planned - *read - *calibrate,
        read: *read,
        calibrate: *calibrate,
        factorise: (factorised - planned).saturating_sub(chosen.measured),
        measure: chosen.measured,
        seal: started.elapsed() - factorised,
    };
    let calibrated = options.calibration.as_ref().zip(calibration.as_ref());
    let calibrated = calibrated.map(|(asked, found)| {
        Calibrated::new(
            &asked.text,
            found,
            chosen.treatment.gauge,
            &chosen.built.treated.output_errors(),
        )
    });
    Ok(Report::new(
        options,
        &prepared,
        calibrated,
        chosen,
        times,
        peak.bytes(),
    ))
}

/// A compilation before the first factor.
pub(crate) struct Prepared {
    pub source: ModelFile,
    pub digest: Digest,
    pub calibration: Option<Calibration>,
    pub plan: Plan,
    /// How weights are treated first; others may be tried.
    pub treatment: Treatment,
    pub wanted: Wanted,
    pub tokenizer: Section,
    /// What is expected; the artifact's bytes are exact.
    pub estimate: Estimate,
    /// Bytes free where it will be.
    pub free: Option<u64>,
    /// What the digest and the calibration took.
    pub times: [Duration; 2],
    /// What the plan was made from; a plan of a file was not made.
    made_from: Option<(Request, Evidence)>,
}

impl Prepared {
    /// The plan, or that of another ratio.
    fn plan_at(&self, ratio: Option<f64>) -> Result<Plan, CompileError> {
        plan_at(&self.source, &self.plan, self.made_from.as_ref(), ratio)
    }
}

/// A plan, or that of another ratio, where it was made and not taken from a file.
fn plan_at(
    source: &ModelFile,
    plan: &Plan,
    made_from: Option<&(Request, Evidence)>,
    ratio: Option<f64>,
) -> Result<Plan, CompileError> {
    match (ratio, made_from) {
        (Some(ratio), Some((request, evidence))) => {
            let mut request = request.clone();
            request.budget = Budget::Ratio(ratio);
            Ok(make(source, request, evidence)?)
        }
        _ => Ok(plan.clone()),
    }
}

/// Finds the smallest plan whose artifact holds a limit. The artifacts that are tried lie in a work
/// folder called after `scratch`.
///
/// # Errors
/// [`CompileError`].
pub fn search(
    source: &ModelFile,
    planned: &Planned,
    goal: Goal,
    threads: usize,
    scratch: &Path,
    progress: impl Fn(Event) + Sync,
) -> Result<Chosen, CompileError> {
    let calibration = planned.calibration.as_ref();
    let inputs = Inputs {
        source,
        digest: planned
            .digest
            .map_or_else(|| source.digest(), |(digest, _)| digest),
        calibration,
        depth_sink: DepthSinkRecord::guess(source.hyper.layers),
        tokenizer: &tokenizer(source)?,
        threads,
    };
    let wanted = Wanted {
        weighting: planned.plan.request.weighting,
        goal,
        calibrated: calibration.is_some(),
        held_out: calibration.is_some_and(|found| found.held_out.is_some()),
    };
    let work = Work::open(scratch)?;
    let planner = |ratio| plan_at(source, &planned.plan, planned.made_from.as_ref(), ratio);
    let mut chosen = choose::choose(&inputs, &planner, wanted, &work, progress)?;
    // Compiled, it is to be what was measured.
    let Treatment { gauge, sink, bias } = chosen.treatment;
    chosen.plan.request.weighting = Asked {
        gauge: Some(gauge),
        sink: Some(sink),
        bias: Some(if bias { BiasArg::On } else { BiasArg::Off }),
    };
    Ok(chosen)
}

/// The vocabulary of a model as a section of an artifact.
fn tokenizer(source: &ModelFile) -> Result<Section, CompileError> {
    let vocabulary = source.vocabulary.as_ref();
    let vocabulary = vocabulary.map_err(|error| CompileError::Vocabulary {
        path: source.path.clone(),
        error: error.clone(),
    })?;
    Ok(Section::tokenizer(vocabulary)?)
}

/// Opens, calibrates and plans, and finds whatever can be wrong before any factor is made.
pub(crate) fn prepare(
    options: &Options,
    progress: impl Fn(Event) + Sync,
) -> Result<Prepared, CompileError> {
    // What the options alone rule out; a plan may ask for more.
    options.weighting.resolve(options.calibration.is_some())?;
    let source = open(&options.input)?;
    if is_of_source(&source, &options.output) || options.reads(&options.output) {
        return Err(CompileError::SameFile(options.output.clone()));
    }
    let tokenizer = tokenizer(&source)?;
    HtzWriter::check_destination(&options.output, options.overwrite)?;
    let Planned {
        plan,
        digest,
        calibration,
        calibrated,
        made_from,
    } = plan(
        &source,
        &options.planning,
        options.calibration.as_ref(),
        options.threads,
        &progress,
    )?;
    let held_out = calibration.as_ref().is_some_and(|c| c.held_out.is_some());
    let wanted = Wanted {
        weighting: options.weighting.or(plan.request.weighting),
        goal: options.goal,
        calibrated: calibration.is_some(),
        held_out,
    };
    let treatment = wanted.weighting.resolve(wanted.calibrated)?;
    treatment.check(&plan)?;
    let record = calibration.as_ref();
    let draft = layout::draft(&source, Digest::default(), &plan, record, &treatment);
    let artifact_bytes = HtzWriter::length_of(draft, std::slice::from_ref(&tokenizer))?;
    let free = disk::free(disk::folder_of(&options.output));
    // The best candidate so far and the next; what an earlier run left is there already. An artifact
    // that is replaced stays until the new one is complete.
    let candidates = wanted.candidates();
    let at_a_time = candidates.min(2) as u64;
    let needed = (at_a_time * artifact_bytes).saturating_sub(Work::bytes(&options.output));
    if let Some(free) = free.filter(|free| *free < needed) {
        return Err(CompileError::NoSpace {
            path: options.output.clone(),
            needed,
            free,
        });
    }
    // A search meets plans of which every unit is factorised.
    let searched = (!options.goal.limit.is_none())
        .then(|| plan_at(&source, &plan, made_from.as_ref(), Some(SEARCHED_RATIO)).ok())
        .flatten();
    let expected = Expected {
        source: &source,
        plan: searched.as_ref().unwrap_or(&plan),
        treatment,
        calibration: calibration.as_ref(),
        candidates,
        bytes: artifact_bytes,
        vocabulary: tokenizer.entry().decoded_length,
    };
    let estimate = estimate::estimate(options, expected);
    if let Some(available) =
        crate::system::memory::available().filter(|found| *found < estimate.peak_memory)
    {
        return Err(CompileError::NoMemory {
            needed: estimate.peak_memory,
            available,
        });
    }
    let (digest, read) = digest.unwrap_or_else(|| timed_digest(&source, &progress));
    Ok(Prepared {
        source,
        digest,
        calibration,
        plan,
        treatment,
        wanted,
        tokenizer,
        estimate,
        free,
        times: [read, calibrated],
        made_from,
    })
}

/// A plan, and what was found out for it.
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// The digest of the source and how long it took, where it was needed.
    pub digest: Option<(Digest, Duration)>,
    /// The calibration, where there is one.
    pub calibration: Option<Calibration>,
    /// How long that took.
    pub calibrated: Duration,
    /// What the plan was made from; `None` where it is from a file.
    pub made_from: Option<(Request, Evidence)>,
}

/// Makes the plan for a model, or takes it from its file. The model is executed and its weights are
/// read only after everything else was found to be in order.
///
/// # Errors
/// [`CompileError::Plan`], [`CompileError::PlanFile`], [`CompileError::Calibrate`],
/// [`CompileError::Unit`].
pub fn plan(
    source: &ModelFile,
    planning: &Planning,
    calibration: Option<&calibrate::Options>,
    threads: usize,
    progress: impl Fn(Event) + Sync,
) -> Result<Planned, CompileError> {
    let source_type = source_type(source);
    // Reads the whole source, which not every plan needs.
    let read = OnceCell::new();
    let digest = || {
        let (digest, _) = *read.get_or_init(|| timed_digest(source, &progress));
        digest
    };
    // Once: a file may be a pipe. A plan that is to be made is tried with what is known already.
    let known = match planning {
        Planning::File(path) => Ok(plan::json::read(path, &source.hyper, digest, source_type)?),
        Planning::Make { request, target } => {
            match make(source, request.clone(), &target.evidence()) {
                Ok(_) => {}
                // What is missing is about to be measured.
                Err(PlanError::NoEvidence { .. })
                    if is_measured(request, target, calibration.is_some()) => {}
                Err(error) => return Err(error.into()),
            }
            Err((request, target))
        }
    };
    let (calibration, calibrated) = match calibration {
        None => (None, Duration::ZERO),
        Some(options) => {
            options.check(&source.hyper)?;
            let digest = digest();
            let begun = Instant::now();
            let found = calibrate(source, digest, options, threads, &progress)?;
            (Some(found), begun.elapsed())
        }
    };
    let (plan, made_from) = match known {
        Ok(plan) => (plan, None),
        Err((request, target)) => {
            let units = plan::units(&source.hyper, request, source_type)?;
            let measured = Measured {
                source,
                units: &units,
                calibration: calibration.as_ref(),
            };
            let evidence = evidence(measured, request, target, threads, &progress)?;
            let plan = make(source, request.clone(), &evidence)?;
            (plan, Some((request.clone(), evidence)))
        }
    };
    Ok(Planned {
        plan,
        digest: read.into_inner(),
        calibration,
        calibrated,
        made_from,
    })
}

fn make(source: &ModelFile, request: Request, evidence: &Evidence) -> Result<Plan, PlanError> {
    plan::make(&source.hyper, request, evidence, source_type(source))
}

/// How the source stores a slot of a layer.
fn source_type(source: &ModelFile) -> impl Fn(usize, Slot) -> DType + Copy + '_ {
    |layer, slot| {
        let part = Part::Weight;
        let weight = source.tensor(Role::Linear { layer, slot, part });
        weight.map_or(DType::F32, |tensor| tensor.dtype)
    }
}

/// The digest of the source, and how long it took.
fn timed_digest(source: &ModelFile, progress: impl Fn(Event)) -> (Digest, Duration) {
    progress(Event::Digest);
    let begun = Instant::now();
    (source.digest(), begun.elapsed())
}

/// How long the stages took; factorising includes writing what is ready.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Opening the source and deciding, with what is measured for it.
    pub plan: Duration,
    /// Reading the source for its digest.
    pub read: Duration,
    /// Calibrating, or finding that it was done before.
    pub calibrate: Duration,
    /// Factorising and writing, all candidates.
    pub factorise: Duration,
    /// Executing candidates on held-out text.
    pub measure: Duration,
    /// Forcing the artifact to the disk.
    pub seal: Duration,
}

/// Lets the text of `options` flow through a source.
///
/// # Errors
/// [`CompileError::Calibrate`].
pub fn calibrate(
    source: &ModelFile,
    digest: Digest,
    options: &calibrate::Options,
    threads: usize,
    progress: impl Fn(Event) + Sync,
) -> Result<Calibration, CompileError> {
    let model = Model::bind(source.clone()).map_err(|error| CalibrateError::Load {
        path: source.path.clone(),
        error,
    })?;
    let told = |event: calibrate::Event| progress(Event::Calibrate(event));
    Ok(calibrate::calibrate(
        &Arc::new(model),
        digest,
        options,
        threads,
        told,
    )?)
}

/// Opens a model that may be compiled.
///
/// # Errors
/// [`CompileError::Source`], [`CompileError::AlreadyCompiled`].
pub fn open(input: &Path) -> Result<ModelFile, CompileError> {
    let source = ModelFile::open(input)?;
    match source.container {
        Container::Htz { .. } => Err(CompileError::AlreadyCompiled(input.to_owned())),
        _ => Ok(source),
    }
}

/// Whether a path leads to the source, to one of the files it consists of, or to one in its folder
/// that its vocabulary may be read from.
pub(crate) fn is_of_source(source: &ModelFile, path: &Path) -> bool {
    let vocabulary = HuggingFaceFiles::NAMES.map(|name| source.path.join(name));
    let files = source.files.iter().map(|file| file.path());
    files
        .chain([source.path.as_path()])
        .chain(vocabulary.iter().map(PathBuf::as_path))
        .any(|file| same_place(file, path))
}
