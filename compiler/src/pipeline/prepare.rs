//! All steps before factorisation: opens, calibrates and plans the source, and reports every error
//! that can be found early.

use std::cell::OnceCell;
use std::sync::Arc;

use htc_formats::htz::{Digest, HtzError, HtzWriter, Section};
use htc_formats::source::ModelFile;
use htc_loader::Model;

use super::CompileError;
use super::kernels;
use super::order;
use super::sized::{FileParts, MadeFrom, is_of_file, others, sought};
use super::source::{digest_of, is_of_source, open};
use crate::calibrate::{self, CalibrateError, Calibration};
use crate::choose::ChoiceRequest;
use crate::device::Device;
use crate::estimate::duration::Speed;
use crate::estimate::{self, Estimate, Expected};
use crate::event::{Event, Watch};
use crate::gradient::{self, Gradients};
use crate::layout;
use crate::make::work::Work;
use crate::order::Order;
use crate::plan::{self, Method, OfSource, Plan, PlanError, Request};
use crate::profile::{self, Measured, is_measured};
use crate::report::Foreseen;
use crate::request::{
    BASES, CalibrationOptions, CompileOptions, KvBasesArg, Limit, Planning, Target, Treatment,
    TreatmentError, TreatmentRequest,
};
use crate::system::clock::{Stage, StageClock};
use crate::system::disk;
use crate::system::memory;

/// Ratio used to estimate the cost of a search: projections of all kinds are factorised there, with
/// ranks close to their maximum.
const SEARCHED_RATIO: f64 = 0.5;

pub(super) struct Prepared {
    pub source: ModelFile,
    pub digest: Digest,
    pub calibration: Option<Calibration>,
    /// Costs of errors at the outputs of matrices, if codes are chosen by them.
    pub gradients: Option<Gradients>,
    pub order: Option<Order>,
    pub plan: Plan,
    /// First treatment of the weights; others may be tried.
    pub treatment: Treatment,
    pub wanted: ChoiceRequest,
    pub measured: bool,
    pub sections: Vec<Section>,
    linear_algebra: String,
    /// Predicted costs; the artifact's bytes are exact.
    pub estimate: Estimate,
    /// Free bytes in the output's folder.
    pub free: Option<u64>,
    made_from: Option<MadeFrom>,
    /// Ratio predicted to meet the limit.
    pub start: Option<f64>,
}

impl Prepared {
    /// Returns the bytes of the artifact of a plan.
    pub fn bytes(&self, plan: &Plan) -> Result<u64, HtzError> {
        let (source, calibration) = (&self.source, self.calibration.as_ref());
        let (treatment, digest_later) = (&self.treatment, Digest::default());
        let draft = layout::draft(
            source,
            digest_later,
            plan,
            (calibration, &self.linear_algebra),
            self.order.as_ref().map(Order::digest),
            treatment,
            self.measured,
        );
        let draft = layout::reserve_tuning(draft, self.wanted.tune > 0);
        HtzWriter::length_of(draft, &self.sections)
    }

    /// Returns the predicted losses of codes, if types were chosen by them.
    pub fn foreseen(&self, plan: &Plan) -> Result<Option<Foreseen>, PlanError> {
        let (source, calibration) = (&self.source, self.calibration.as_ref());
        let made_from = self.made_from.as_ref();
        let found = made_from.map(|made_from| made_from.foreseen(plan, source, calibration));
        Ok(found.transpose()?.flatten())
    }

    /// Returns baseline plans that give every matrix the same GGUF type.
    pub fn compared(&self, plan: &Plan, bytes: u64) -> Result<Vec<Plan>, PlanError> {
        let (source, calibration) = (&self.source, self.calibration.as_ref());
        let request = plan.request();
        let most = self.wanted.goal.compared(request.method, request.effort);
        let made_from = self.made_from.as_ref().filter(|_| most > 0);
        let plain = made_from.map(|found| found.plain((plan, bytes, most), source, calibration));
        Ok(plain.transpose()?.unwrap_or_default())
    }

    /// Returns the bytes of the file at a ratio.
    pub fn size_at(&self, ratio: f64) -> Result<u64, PlanError> {
        let (source, calibration) = (&self.source, self.calibration.as_ref());
        match &self.made_from {
            Some(made_from) => made_from.size_at(ratio, source, calibration),
            None => Ok((ratio * source.size() as f64) as u64),
        }
    }

    /// Returns the alternatives to a plan that are also tried.
    pub fn others(&self, plan: &Plan) -> Result<Vec<Plan>, PlanError> {
        let (made_from, calibration) = (self.made_from.as_ref(), self.calibration.as_ref());
        let limit = self.wanted.goal.limit;
        others(&self.source, plan, made_from, (calibration, limit))
    }

    /// Returns the plan, or that of another ratio.
    pub fn plan_at(&self, ratio: Option<f64>) -> Result<Plan, PlanError> {
        let (source, calibration) = (&self.source, self.calibration.as_ref());
        plan_at(
            source,
            &self.plan,
            self.made_from.as_ref(),
            calibration,
            (ratio, self.wanted.goal.limit),
        )
    }
}

/// Returns the ratio at which the search for a file within a limit starts.
pub(super) fn start(
    source: &ModelFile,
    made_from: Option<&MadeFrom>,
    calibration: Option<&Calibration>,
    limit: Limit,
) -> Option<f64> {
    made_from?.expected(source, calibration, limit)
}

/// Returns the plan, or the plan of another ratio if it was not read from a file.
pub(super) fn plan_at(
    source: &ModelFile,
    plan: &Plan,
    made_from: Option<&MadeFrom>,
    calibration: Option<&Calibration>,
    (ratio, limit): (Option<f64>, Limit),
) -> Result<Plan, PlanError> {
    match (ratio, made_from) {
        (Some(ratio), Some(made_from)) => {
            let mut made = made_from.at_ratio(ratio, source, calibration)?;
            if made.request().method == Method::Quantise {
                made.note(sought(limit));
            }
            Ok(made)
        }
        _ => Ok(plan.clone()),
    }
}

/// Returns the requested treatment of weights, completed from the plan.
pub(super) fn treatment_of(
    plan: &Plan,
    asked: TreatmentRequest,
) -> Result<TreatmentRequest, TreatmentError> {
    let asked = asked.or(plan.request().treatment);
    match plan.request().method {
        Method::Quantise => asked.of_codes(),
        Method::PerSlot | Method::SharedBasis => Ok(asked),
    }
}

pub(super) fn tokenizer(source: &ModelFile) -> Result<Section, CompileError> {
    let vocabulary = source.vocabulary.as_ref();
    let vocabulary = vocabulary.map_err(|error| CompileError::Vocabulary {
        path: source.path.clone(),
        error: error.clone(),
    })?;
    Ok(Section::tokenizer(vocabulary)?)
}

/// A source that passed all checks that do not read its weights.
pub(super) struct Admitted {
    source: ModelFile,
    sections: Vec<Section>,
}

impl Admitted {
    pub fn source(&self) -> &ModelFile {
        &self.source
    }
}

pub(super) fn admit(options: &CompileOptions) -> Result<Admitted, CompileError> {
    options.treatment.resolve(options.calibration.is_some())?;
    if let Planning::Make { request, .. } = &options.planning {
        check_kv_bases(request, options)?;
    }
    let source = open(&options.input)?;
    if is_of_source(&source, &options.output) || options.reads(&options.output) {
        return Err(CompileError::SameFile(options.output.clone()));
    }
    let layers = source.hyper.layers;
    if let Some(layer) = options.probe_layer.filter(|&layer| layer >= layers) {
        return Err(CompileError::NoSuchLayer { layer, layers });
    }
    let mut sections = vec![tokenizer(&source)?];
    HtzWriter::check_destination(&options.output, options.overwrite)?;
    sections.extend(kernels::section(&options.kernels)?);
    Ok(Admitted { source, sections })
}

fn check_kv_bases(request: &Request, options: &CompileOptions) -> Result<(), PlanError> {
    match (request.kv_bases, &options.calibration) {
        (KvBasesArg::On, None) => Err(PlanError::KvBasesWithoutText),
        _ => Ok(()),
    }
}

pub(super) fn prepare(
    Admitted { source, sections }: Admitted,
    options: &CompileOptions,
    device: &dyn Device,
    clock: &StageClock,
    watch: Watch,
) -> Result<Prepared, CompileError> {
    let speed = Speed::measure();
    if let Some(stages) = estimate::stages::before(&source, options, speed) {
        watch.tell(Event::Expected(stages.total()));
    }
    let Planned {
        plan,
        digest,
        calibration,
        gradients,
        order,
        made_from,
    } = plan(
        &source,
        &options.planning,
        options.calibration.as_ref(),
        device,
        clock,
        watch,
    )?;
    check_kv_bases(plan.request(), options)?;
    let held_out = calibration.as_ref().is_some_and(|c| c.held_out.is_some());
    let limit = options.goal.limit;
    let known = (calibration.as_ref(), limit);
    let others = others(&source, &plan, made_from.as_ref(), known)?;
    let start = start(&source, made_from.as_ref(), calibration.as_ref(), limit);
    let wanted = ChoiceRequest {
        plans: 1 + others.len(),
        treatment: treatment_of(&plan, options.treatment)?,
        goal: options.goal,
        calibrated: calibration.is_some(),
        held_out,
        tune: if held_out {
            options
                .goal
                .tune_steps(plan.request().method, plan.request().effort)
        } else {
            0
        },
    };
    let treatment = wanted.treatment.resolve(wanted.calibrated)?;
    treatment.check(&plan)?;
    let record = calibration.as_ref();
    let measured = wanted.measures(record);
    let digest_later = Digest::default();
    let linear_algebra = device.algebra().name();
    let draft = layout::draft(
        &source,
        digest_later,
        &plan,
        (record, &linear_algebra),
        order.as_ref().map(Order::digest),
        &treatment,
        measured,
    );
    let draft = layout::reserve_tuning(draft, wanted.tune > 0);
    let artifact_bytes = HtzWriter::length_of(draft, &sections)?;
    let candidates = wanted.candidates();
    let compares = measured && made_from.is_some();
    let at_a_time = (candidates + usize::from(wanted.tune > 0)).min(2);
    let needed = room(options, &plan, artifact_bytes, (at_a_time, compares));
    let needed = if options.with_source {
        needed.saturating_add(whole(options, artifact_bytes) + source.tensor_bytes())
    } else {
        needed
    };
    let needed = needed.saturating_sub(Work::bytes(&options.output));
    let free = disk::free(disk::folder_of(&options.output));
    if let Some(free) = free.filter(|free| *free < needed) {
        return Err(CompileError::NoSpace {
            path: options.output.clone(),
            needed,
            free,
        });
    }
    let searched = (!options.goal.limit.is_none())
        .then(|| {
            plan_at(
                &source,
                &plan,
                made_from.as_ref(),
                calibration.as_ref(),
                (Some(SEARCHED_RATIO), limit),
            )
            .ok()
        })
        .flatten();
    let expected = Expected {
        source: &source,
        plan: searched.as_ref().unwrap_or(&plan),
        treatment,
        calibration: calibration.as_ref(),
        candidates,
        tune: wanted.tune,
        bytes: artifact_bytes,
        vocabulary: sections.first().map_or(0, |of| of.entry().decoded_length),
        speed,
        elsewhere: device.has_own_memory(),
        algebra_elsewhere: device.own_algebra().is_some(),
    };
    let estimate = estimate::estimate(options, expected);
    if let Some(available) = memory::available().filter(|found| *found < estimate.peak_memory) {
        return Err(CompileError::NoMemory {
            needed: estimate.peak_memory,
            available,
        });
    }
    let digest = digest.unwrap_or_else(|| digest_of(&source, clock, watch));
    Ok(Prepared {
        source,
        digest,
        calibration,
        gradients,
        order,
        plan,
        treatment,
        wanted,
        measured,
        sections,
        linear_algebra,
        estimate,
        free,
        made_from,
        start,
    })
}

/// Returns the maximum disk space of concurrent candidates and baseline files. A replaced artifact
/// stays until the new one is complete.
fn room(
    options: &CompileOptions,
    plan: &Plan,
    artifact: u64,
    (at_a_time, compares): (usize, bool),
) -> u64 {
    let request = plan.request();
    let is_elastic = options.planes == 2;
    let whole = whole(options, artifact);
    let wholes = if is_elastic { 2 * whole } else { 0 };
    let compared = options.goal.compared(request.method, request.effort);
    let beside = if compares && compared > 0 {
        2 * whole
    } else {
        0
    };
    at_a_time as u64 * artifact + wholes + beside
}

/// Returns the bytes of the complete artifact. With a requested size, the plan of an elastic
/// artifact covers only the bases.
fn whole(options: &CompileOptions, artifact: u64) -> u64 {
    if options.planes == 2 && options.goal.limit.is_none() {
        (artifact as f64 / BASES) as u64
    } else {
        artifact
    }
}

/// A plan with the measurements made for it.
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// Digest of the source, if it was computed.
    pub digest: Option<Digest>,
    /// The calibration, if any.
    pub calibration: Option<Calibration>,
    /// Costs of errors at the outputs of matrices, if codes are chosen by them.
    pub gradients: Option<Gradients>,
    /// Channel permutation, if any.
    pub order: Option<Order>,
    /// Inputs of the plan; `None` for a plan from a file.
    pub made_from: Option<MadeFrom>,
}

/// Makes the plan for a model, or reads it from its file. The model is executed and its weights are
/// read only after all other checks have passed.
///
/// # Errors
/// [`CompileError::Plan`], [`CompileError::PlanFile`], [`CompileError::Calibrate`],
/// [`CompileError::Unit`].
pub fn plan(
    source: &ModelFile,
    planning: &Planning,
    calibration: Option<&CalibrationOptions>,
    device: &dyn Device,
    clock: &StageClock,
    watch: Watch,
) -> Result<Planned, CompileError> {
    let threads = device.pool().threads();
    let source_type = OfSource(source);
    let read = OnceCell::new();
    let digest = || *read.get_or_init(|| digest_of(source, clock, watch));
    // Read only once: the file may be a pipe. A plan that will be made is checked first with the
    // evidence known already.
    let known = match planning {
        Planning::File(path) => {
            let plan = plan::json::read(path, &source.hyper, digest, source_type)?;
            order::check(source, plan.request().order)?;
            Ok(plan)
        }
        Planning::Make { request, target } => {
            let request = Request {
                order: order::asked(source, request, watch)?,
                ..request.clone()
            };
            attempt(source, &request, target, calibration.is_some())?;
            Err((request, target))
        }
    };
    let options = calibration;
    let calibration = match options {
        None => None,
        Some(options) => {
            options.check(&source.hyper)?;
            let digest = digest();
            Some(clock.during(Stage::Calibrate, || {
                calibrate(source, digest, options, device, watch)
            })?)
        }
    };
    let asked = known
        .as_ref()
        .map_or_else(|(asked, _)| asked, Plan::request);
    let order = order::found(source, asked, calibration.as_ref(), threads, watch)?;
    let by_gradients = match &known {
        Ok(plan) => plan.reads_gradients(),
        Err((request, _)) => request.method == Method::Quantise,
    };
    let gradients = match options.filter(|_| by_gradients) {
        Some(options) => Some(clock.during(Stage::Calibrate, || {
            let tokens = asked.effort.work().gradient_tokens;
            gradients(source, digest(), (options, tokens), threads, watch)
        })?),
        None => None,
    };
    let (plan, made_from) = match known {
        Ok(plan) => (plan, None),
        Err((request, target)) => {
            let request = &request;
            let units = plan::units(&source.hyper, request, source_type)?;
            let measured = Measured {
                source,
                units: &units,
                calibration: calibration.as_ref(),
                gradients: gradients.as_ref(),
                order: order.as_ref(),
                device,
            };
            let evidence = profile::measure(measured, request, target, watch)?;
            let made_from = MadeFrom {
                request: request.clone(),
                evidence,
                file: file_parts(source, request, device)?,
            };
            let plan = made_from.plan(source, calibration.as_ref())?;
            if let Some(told) = &made_from.evidence.factors {
                watch.tell(Event::Note(told));
            }
            (plan, Some(made_from))
        }
    };
    Ok(Planned {
        plan,
        digest: read.into_inner(),
        calibration,
        gradients,
        order,
        made_from,
    })
}

fn file_parts(
    source: &ModelFile,
    request: &Request,
    device: &dyn Device,
) -> Result<Option<FileParts>, CompileError> {
    let parts = is_of_file(request).then(|| {
        Ok(FileParts {
            tokenizer: tokenizer(source)?,
            source: source.size(),
            linear_algebra: device.algebra().name(),
        })
    });
    parts.transpose()
}

fn attempt(
    source: &ModelFile,
    request: &Request,
    target: &Target,
    calibrated: bool,
) -> Result<(), PlanError> {
    let known = target.evidence();
    match plan::make(&source.hyper, request.clone(), &known, OfSource(source)) {
        Ok(_) => Ok(()),
        Err(PlanError::NoEvidence { .. } | PlanError::NoMeasurement { .. })
            if is_measured(request, target, calibrated) =>
        {
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Calibrates a source on the text of `options`.
///
/// # Errors
/// [`CompileError::Calibrate`].
pub fn calibrate(
    source: &ModelFile,
    digest: Digest,
    options: &CalibrationOptions,
    device: &dyn Device,
    watch: Watch,
) -> Result<Calibration, CompileError> {
    let model = Model::bind(source.clone()).map_err(|error| CalibrateError::Load {
        path: source.path.clone(),
        error,
    })?;
    let calibrated = calibrate::calibrate(&Arc::new(model), digest, options, device, watch)?;
    // Statistics of a changed source must not stay in the cache under this digest.
    if calibrated.is_new && source.digest() != digest {
        calibrate::forget(options, calibrated.key)?;
        return Err(CompileError::SourceChanged(source.path.clone()));
    }
    Ok(calibrated)
}

fn gradients(
    source: &ModelFile,
    digest: Digest,
    (options, tokens): (&CalibrationOptions, usize),
    threads: usize,
    watch: Watch,
) -> Result<Gradients, CompileError> {
    let model = Model::bind(source.clone()).map_err(|error| CalibrateError::Load {
        path: source.path.clone(),
        error,
    })?;
    let found = gradient::gradients(&model, digest, options, tokens, threads, watch)?;
    if found.is_new && source.digest() != digest {
        gradient::forget(options, found.key)?;
        return Err(CompileError::SourceChanged(source.path.clone()));
    }
    Ok(found)
}
