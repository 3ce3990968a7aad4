//! The whole flow on one page: from a model file to a sealed artifact.
//!
//! 1. **Read.** The source is mapped and bound to its architecture; its digest names it.
//! 2. **Plan.** From shapes, budget and what the allocator looks at it is decided what becomes of
//!    every slot; or a plan is taken from a file.
//! 3. **Factorise.** Units are decomposed in parallel, one thread each; every unit's error is
//!    measured on what is stored, after rounding.
//! 4. **Seal.** Tensors are written in the order of execution as they become ready; the
//!    artifact takes its name when it is complete and on the disk.
//!
//! Each stage takes what the stage before returned. At most one layer's results are in memory;
//! the order of the arithmetic inside a unit does not depend on the number of threads, so the
//! same source and the same request give the same bytes on the same instruction set.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use htc_formats::DType;
use htc_formats::htz::{Digest, HtzError, HtzWriter, Section};
use htc_formats::model::{Part, Role};
use htc_formats::source::{Container, ModelFile, SourceError};
use htc_formats::vocab::{HuggingFaceFiles, VocabularyError};
use htc_loader::Model;
use thiserror::Error;

use crate::calibrate::{self, CalibrateError, Calibration};
use crate::disk;
use crate::evidence::{Measured, Target, evidence, is_measured};
use crate::factorise::unit::{self, UnitError};
use crate::factorise::{Asked, GaugeKind, Treatment, TreatmentError, Weighting};
use crate::interrupt::RemoveOnInterrupt;
use crate::ordered;
use crate::plan::json::PlanFileError;
use crate::plan::{self, Evidence, Plan, PlanError, Request};
use crate::report::{Calibrated, Report, Treated};
use crate::seal::{self, Job};

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
    /// Threads that factorise.
    pub threads: usize,
    /// Replace an existing output.
    pub overwrite: bool,
}

impl Options {
    /// Whether a path leads to the text or to the plan.
    pub(crate) fn reads(&self, path: &Path) -> bool {
        let text = self.calibration.as_ref().map(|c| &c.text);
        let plan = match &self.planning {
            Planning::File(plan) => Some(plan),
            Planning::Make { .. } => None,
        };
        text.into_iter()
            .chain(plan)
            .any(|file| same_place(file, path))
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
}

/// Why a compilation fails. Each message is one line with the file or option concerned.
#[derive(Debug, Error)]
pub enum CompileError {
    /// The source is missing, damaged or not supported.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The source is an artifact already.
    #[error("{}: an artifact already; compile from the model it was made from", .0.display())]
    AlreadyCompiled(PathBuf),
    /// The source has no usable vocabulary.
    #[error("{}: {error}", path.display())]
    Vocabulary {
        /// The source.
        path: PathBuf,
        /// What is wrong with it.
        error: VocabularyError,
    },
    /// Input and output are the same file.
    #[error("{}: the output is the same file as the input, or one of the input's; give another -o", .0.display())]
    SameFile(PathBuf),
    /// The calibration failed.
    #[error(transparent)]
    Calibrate(#[from] CalibrateError),
    /// No plan satisfies the request.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Weights cannot be treated so.
    #[error(transparent)]
    Treatment(#[from] TreatmentError),
    /// The file with the plan is none for this model.
    #[error(transparent)]
    PlanFile(#[from] PlanFileError),
    /// The artifact cannot fit the file system.
    #[error("{}: no space: the artifact will have {needed} bytes, {free} are free there; free some, give another -o, or compress more", path.display())]
    NoSpace {
        /// The artifact.
        path: PathBuf,
        /// Its bytes.
        needed: u64,
        /// What is free.
        free: u64,
    },
    /// A slot cannot be factorised.
    #[error("{}: {error}", path.display())]
    Unit {
        /// The source.
        path: PathBuf,
        /// What is wrong with the slot.
        error: UnitError,
    },
    /// The system gives no thread to work with.
    #[error("no thread can be started: {0}; end other programs or raise the limit of processes")]
    Thread(#[from] std::io::Error),
    /// The artifact cannot be written.
    #[error(transparent)]
    Seal(#[from] HtzError),
}

/// Compiles a model.
///
/// # Errors
/// [`CompileError`]; nothing is left under the output's name then.
pub fn compile(options: &Options, progress: impl Fn(Event) + Sync) -> Result<Report, CompileError> {
    let started = Instant::now();

    // Read, calibrate and plan. Whatever can be refused is refused before the first long read.
    let Prepared {
        source,
        digest,
        calibration,
        plan,
        treatment,
        tokenizer,
        times: [read, calibrate],
        ..
    } = prepare(options, &progress)?;
    let jobs = seal::jobs(&source, &plan, treatment.bias);
    let planned = started.elapsed();
    let weighting = Weighting::new(treatment, calibration.as_ref()).of_plan(&source, &plan);

    // Factorise and seal.
    let manifest = seal::draft(&source, digest, &plan, calibration.as_ref(), &treatment);
    let mut record = manifest.plan.clone();
    let mut writer = HtzWriter::create(
        &options.output,
        manifest,
        vec![tokenizer],
        options.overwrite,
    )?;
    let unfinished = RemoveOnInterrupt::new(writer.temp_path().to_owned());
    search_axioms(&weighting, &source, options.threads, &progress)?;
    progress(Event::Planned(jobs.len()));
    // Tensors that are made but whose turn to be written has not come.
    let mut ready: BTreeMap<Role, Cow<[u8]>> = BTreeMap::new();
    let mut treated = Treated::default();
    let of_source = |error| CompileError::Unit {
        path: options.input.clone(),
        error,
    };
    ordered::for_each(
        options.threads,
        jobs.len(),
        window(&jobs, source.hyper.layers, options.threads),
        |index| match jobs[index] {
            Job::PassThrough(tensor) => {
                unit::check_finite(&source, tensor).map_err(of_source)?;
                Ok(None)
            }
            Job::Factorise(unit) => unit::factorise(&source, unit, &weighting)
                .map(Some)
                .map_err(of_source),
        },
        |index, factors| {
            match (jobs[index], factors) {
                (Job::Factorise(unit), Some(factors)) => {
                    treated.add(unit, &factors);
                    let stored = unit::stored_tensors(unit, treatment.bias);
                    let roles = stored.into_iter().map(|s| s.role);
                    ready.extend(roles.zip(factors.tensors.into_iter().map(Cow::Owned)));
                    for (member, error) in unit.members.iter().zip(factors.errors) {
                        let slot = seal::record_of(&mut record, unit.layer, member.slot);
                        if let Some(slot) = slot {
                            slot.error = Some(error);
                        }
                    }
                    progress(Event::Done(&unit.label()));
                }
                (Job::PassThrough(tensor), _) => {
                    ready.insert(tensor.role, Cow::Borrowed(source.bytes(tensor)));
                    progress(Event::Done(&tensor.name));
                }
                (Job::Factorise(_), None) => {}
            }
            while let Some(role) = writer.turn().map(|entry| entry.role) {
                match ready.remove(&role) {
                    Some(bytes) => writer.write_tensor(role, &bytes)?,
                    None => break,
                }
            }
            Ok(())
        },
    )?;
    treated.add_axioms(&weighting);
    let factorised = started.elapsed();
    progress(Event::Sealing);
    let artifact_bytes = writer.file_length();
    writer.finish(|plan| plan.clone_from(&record))?;
    drop(unfinished);
    let times = Times {
        plan: planned - read - calibrate,
        read,
        calibrate,
        factorise: factorised - planned,
        seal: started.elapsed() - factorised,
    };
    let calibrated = options.calibration.as_ref().zip(calibration.as_ref());
    let calibrated = calibrated.map(|(asked, found)| {
        Calibrated::new(
            &asked.text,
            found,
            treatment.gauge,
            &treated.output_errors(),
        )
    });
    Ok(Report::new(
        options,
        &source,
        &plan,
        digest,
        calibrated,
        treatment,
        treated,
        record,
        artifact_bytes,
        times,
    ))
}

/// Lets every thread search the axiom gauge of a layer; units that asked for one would wait for each
/// other.
fn search_axioms(
    weighting: &Weighting,
    source: &ModelFile,
    threads: usize,
    progress: impl Fn(Event) + Sync,
) -> Result<(), CompileError> {
    if weighting.treatment().gauge != GaugeKind::Axiom {
        return Ok(());
    }
    let layers = source.hyper.layers;
    progress(Event::Measuring(layers));
    ordered::for_each(
        threads,
        layers,
        // A gauge takes no room.
        layers,
        |layer| {
            let found = weighting.axiom(layer).map(|_| ());
            found.map_err(|error| CompileError::Unit {
                path: source.path.clone(),
                error,
            })
        },
        |layer, ()| {
            progress(Event::Done(&format!("layer {layer}")));
            Ok(())
        },
    )
}

/// A compilation before the first factor.
pub(crate) struct Prepared {
    pub source: ModelFile,
    pub digest: Digest,
    pub calibration: Option<Calibration>,
    pub plan: Plan,
    pub treatment: Treatment,
    pub tokenizer: Section,
    /// Bytes that the artifact will have, exactly.
    pub artifact_bytes: u64,
    /// Bytes free where it will be.
    pub free: Option<u64>,
    /// What the digest and the calibration took.
    pub times: [Duration; 2],
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
    let vocabulary = source
        .vocabulary
        .as_ref()
        .map_err(|error| CompileError::Vocabulary {
            path: options.input.clone(),
            error: error.clone(),
        })?;
    let tokenizer = Section::tokenizer(vocabulary)?;
    HtzWriter::check_destination(&options.output, options.overwrite)?;
    let Planned {
        plan,
        digest,
        calibration,
        calibrated,
    } = plan(
        &source,
        &options.planning,
        options.calibration.as_ref(),
        options.threads,
        &progress,
    )?;
    let treatment = options.weighting.or(plan.request.weighting);
    let treatment = treatment.resolve(calibration.is_some())?;
    treatment.check(&plan)?;
    let record = calibration.as_ref();
    let draft = seal::draft(&source, Digest::default(), &plan, record, &treatment);
    let artifact_bytes = HtzWriter::length_of(draft, std::slice::from_ref(&tokenizer))?;
    let free = disk::free(disk::folder_of(&options.output));
    match free {
        // An artifact that is replaced stays until the new one is complete.
        Some(free) if free < artifact_bytes => Err(CompileError::NoSpace {
            path: options.output.clone(),
            needed: artifact_bytes,
            free,
        }),
        _ => {
            let (digest, read) = digest.unwrap_or_else(|| timed_digest(&source, &progress));
            Ok(Prepared {
                source,
                digest,
                calibration,
                plan,
                treatment,
                tokenizer,
                artifact_bytes,
                free,
                times: [read, calibrated],
            })
        }
    }
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
    let source_type = |layer, slot| {
        let part = Part::Weight;
        let weight = source.tensor(Role::Linear { layer, slot, part });
        weight.map_or(DType::F32, |tensor| tensor.dtype)
    };
    let make = |request: &Request, evidence: &Evidence| {
        plan::make(&source.hyper, request.clone(), evidence, source_type)
    };
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
            match make(request, &target.evidence()) {
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
    let plan = match known {
        Ok(plan) => plan,
        Err((request, target)) => {
            let units = plan::units(&source.hyper, request, source_type)?;
            let measured = Measured {
                source,
                units: &units,
                calibration: calibration.as_ref(),
            };
            let evidence = evidence(measured, request, target, threads, &progress)?;
            make(request, &evidence)?
        }
    };
    Ok(Planned {
        plan,
        digest: read.into_inner(),
        calibration,
        calibrated,
    })
}

/// The digest of the source, and how long it took.
fn timed_digest(source: &ModelFile, progress: impl Fn(Event)) -> (Digest, Duration) {
    progress(Event::Digest);
    let begun = Instant::now();
    (source.digest(), begun.elapsed())
}

/// Results that may wait: those of one layer, or more where so many threads would not find work
/// within one.
pub(crate) fn window(jobs: &[Job], layers: usize, threads: usize) -> usize {
    let units = jobs.iter().filter(|j| matches!(j, Job::Factorise(_)));
    let distance = jobs.len().div_ceil(units.count().max(1));
    jobs.len()
        .div_ceil(layers)
        .max(threads.saturating_mul(distance))
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
    /// Factorising and writing.
    pub factorise: Duration,
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
        &model, digest, options, threads, told,
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

/// Whether two paths lead to one file, which need not exist yet.
pub(crate) fn same_place(a: &Path, b: &Path) -> bool {
    let place = |path: &Path| -> Option<PathBuf> {
        fs::canonicalize(path).ok().or_else(|| {
            let folder = match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            Some(fs::canonicalize(folder).ok()?.join(path.file_name()?))
        })
    };
    a == b || same_inode(a, b) || place(a).is_some_and(|a| Some(a) == place(b))
}

/// Whether two names are hard links of one file.
#[cfg(unix)]
fn same_inode(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    match (fs::metadata(a), fs::metadata(b)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

/// Unknown on this system.
#[cfg(not(unix))]
fn same_inode(_: &Path, _: &Path) -> bool {
    false
}
