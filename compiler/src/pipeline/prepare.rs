//! All steps before factorisation, which report every error that can be found early.

use std::cell::OnceCell;
use std::sync::Arc;

use htc_formats::htz::{Digest, HtzError, HtzWriter, Section};
use htc_formats::source::ModelFile;
use htc_loader::Model;

use super::CompileError;
use super::kernels;
use super::order;
use super::sized::{FileParts, PlanInputs, alternatives, has_file_budget, searched_size_note};
use super::source::{digest_of, is_source_file, open};
use crate::calibrate::{self, CalibrateError, Calibration};
use crate::choose::ChoiceRequest;
use crate::device::Device;
use crate::estimate::duration::Speed;
use crate::estimate::{self, Estimate, EstimateInputs};
use crate::event::{Event, Progress};
use crate::gradient::{self, Gradients};
use crate::layout;
use crate::make::work::WorkFolder;
use crate::options::{
    BASE_FRACTION, CalibrationOptions, CompileOptions, OptionError, PlanSource, QualityLimit,
    Switch, TargetMachine, Treatment, TreatmentOptions,
};
use crate::order::ChannelPermutation;
use crate::plan::{self, Method, ModelFileTypes, Plan, PlanError, PlanRequest};
use crate::profile::{self, ProfileInputs, is_measured};
use crate::report::EstimatedLosses;
use crate::system::clock::{Stage, StageClock};
use crate::system::disk;
use crate::system::memory;

/// Projections of all kinds are factorised there, with ranks close to their maximum.
const ESTIMATE_RATIO: f64 = 0.5;

pub(super) struct Prepared {
    pub source: ModelFile,
    pub digest: Digest,
    pub calibration: Option<Calibration>,
    /// Costs of errors at the outputs of matrices, if codes are chosen by them.
    pub gradients: Option<Gradients>,
    pub permutation: Option<ChannelPermutation>,
    pub plan: Plan,
    /// First treatment of the weights; others may be tried.
    pub treatment: Treatment,
    pub choice_request: ChoiceRequest,
    pub measured: bool,
    pub sections: Vec<Section>,
    linear_algebra: String,
    /// Predicted costs; the artifact's bytes are exact.
    pub estimate: Estimate,
    /// Free bytes in the output's folder.
    pub free_bytes: Option<u64>,
    plan_inputs: Option<PlanInputs>,
    /// Maximum number of single-type files for comparison.
    pub max_comparison_files: usize,
    /// Ratio predicted to meet the limit.
    pub start_ratio: Option<f64>,
}

impl Prepared {
    pub fn artifact_bytes(&self, plan: &Plan) -> Result<u64, HtzError> {
        let (source, calibration) = (&self.source, self.calibration.as_ref());
        let (treatment, digest_later) = (&self.treatment, Digest::default());
        let draft = layout::draft_manifest(
            source,
            plan,
            layout::ManifestInputs {
                source_sha256: digest_later,
                calibration,
                linear_algebra: &self.linear_algebra,
                order: self.permutation.as_ref().map(ChannelPermutation::digest),
            },
            treatment,
            self.measured,
        );
        let draft = layout::reserve_tuning(draft, self.choice_request.tune > 0);
        HtzWriter::predict_length(draft, &self.sections)
    }

    pub fn predicted_losses(&self, plan: &Plan) -> Result<Option<EstimatedLosses>, PlanError> {
        let (source, calibration) = (&self.source, self.calibration.as_ref());
        let made_from = self.plan_inputs.as_ref();
        let found =
            made_from.map(|made_from| made_from.predicted_losses(plan, source, calibration));
        Ok(found.transpose()?.flatten())
    }

    /// Returns baseline plans that give every matrix the same GGUF type.
    pub fn baseline_plans(&self, plan: &Plan, bytes: u64) -> Result<Vec<Plan>, PlanError> {
        let (source, calibration) = (&self.source, self.calibration.as_ref());
        let most = self.max_comparison_files;
        let made_from = self.plan_inputs.as_ref().filter(|_| most > 0);
        let plain =
            made_from.map(|found| found.baseline_plans((plan, bytes, most), source, calibration));
        Ok(plain.transpose()?.unwrap_or_default())
    }

    pub fn size_at(&self, ratio: f64) -> Result<u64, PlanError> {
        let (source, calibration) = (&self.source, self.calibration.as_ref());
        match &self.plan_inputs {
            Some(made_from) => made_from.size_at(ratio, source, calibration),
            None => Ok((ratio * source.size() as f64) as u64),
        }
    }

    /// Returns the alternatives to a plan that are also tried.
    pub fn alternatives(&self, plan: &Plan) -> Result<Vec<Plan>, PlanError> {
        let (made_from, calibration) = (self.plan_inputs.as_ref(), self.calibration.as_ref());
        let limit = self.choice_request.limit;
        alternatives(&self.source, plan, made_from, (calibration, limit))
    }

    pub fn plan_at(&self, ratio: Option<f64>) -> Result<Plan, PlanError> {
        let (source, calibration) = (&self.source, self.calibration.as_ref());
        plan_at(
            source,
            &self.plan,
            self.plan_inputs.as_ref(),
            calibration,
            (ratio, self.choice_request.limit),
        )
    }
}

pub(super) fn start_ratio(
    source: &ModelFile,
    made_from: Option<&PlanInputs>,
    calibration: Option<&Calibration>,
    limit: QualityLimit,
) -> Option<f64> {
    made_from?.predicted_ratio(source, calibration, limit)
}

/// Returns the plan, or the plan of another ratio if it was not read from a file.
pub(super) fn plan_at(
    source: &ModelFile,
    plan: &Plan,
    made_from: Option<&PlanInputs>,
    calibration: Option<&Calibration>,
    (ratio, limit): (Option<f64>, QualityLimit),
) -> Result<Plan, PlanError> {
    match (ratio, made_from) {
        (Some(ratio), Some(made_from)) => {
            let mut made = made_from.plan_at_ratio(ratio, source, calibration)?;
            if made.request().method == Method::Quantise {
                made.add_note(searched_size_note(limit));
            }
            Ok(made)
        }
        _ => Ok(plan.clone()),
    }
}

/// Returns the requested treatment of weights, completed from the plan.
pub(super) fn complete_treatment(
    plan: &Plan,
    asked: TreatmentOptions,
) -> Result<TreatmentOptions, OptionError> {
    let asked = asked.or_else_from(plan.request().treatment);
    match plan.request().method {
        Method::Quantise => asked.check_codes_only(),
        Method::PerProjection | Method::SharedBasis => Ok(asked),
    }
}

pub(super) fn tokenizer_section(source: &ModelFile) -> Result<Section, CompileError> {
    let vocabulary = source.vocabulary.as_ref();
    let vocabulary = vocabulary.map_err(|error| CompileError::Vocabulary {
        path: source.path.clone(),
        error: error.clone(),
    })?;
    Ok(Section::tokenizer(vocabulary)?)
}

/// A source that passed all checks that do not read its weights.
pub(super) struct CheckedSource {
    source: ModelFile,
    sections: Vec<Section>,
}

impl CheckedSource {
    pub fn source(&self) -> &ModelFile {
        &self.source
    }
}

pub(super) fn open_and_check(options: &CompileOptions) -> Result<CheckedSource, CompileError> {
    options.check()?;
    if let PlanSource::Compute { request, .. } = &options.planning {
        check_kv_bases(request, options)?;
    }
    let source = open(&options.input)?;
    if is_source_file(&source, &options.output) || options.is_input(&options.output) {
        return Err(CompileError::SameFile(options.output.clone()));
    }
    let layers = source.hyper.layers;
    if let Some(layer) = options
        .artifact
        .probe_layer
        .filter(|&layer| layer >= layers)
    {
        return Err(CompileError::NoSuchLayer { layer, layers });
    }
    let mut sections = vec![tokenizer_section(&source)?];
    HtzWriter::check_destination(&options.output, options.overwrite)?;
    sections.extend(kernels::section(&options.artifact.kernels)?);
    Ok(CheckedSource { source, sections })
}

fn check_kv_bases(request: &PlanRequest, options: &CompileOptions) -> Result<(), PlanError> {
    match (request.layout.kv_bases, &options.calibration) {
        (Switch::On, None) => Err(PlanError::KvBasesNeedCalibration),
        _ => Ok(()),
    }
}

pub(super) fn prepare(
    CheckedSource { source, sections }: CheckedSource,
    options: &CompileOptions,
    device: &dyn Device,
    clock: &StageClock,
    watch: Progress,
) -> Result<Prepared, CompileError> {
    let speed = Speed::measure();
    if let Some(stages) = estimate::stages::estimate_before_work(&source, options, speed) {
        watch.report(Event::EstimatedSeconds(stages.total()));
    }
    let PlanWithEvidence {
        plan,
        digest,
        calibration,
        gradients,
        permutation: order,
        plan_inputs: made_from,
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
    let limit = options.limit;
    let known = (calibration.as_ref(), limit);
    let others = alternatives(&source, &plan, made_from.as_ref(), known)?;
    let start = start_ratio(&source, made_from.as_ref(), calibration.as_ref(), limit);
    let wanted = ChoiceRequest {
        plans: 1 + others.len(),
        treatment: complete_treatment(&plan, options.treatment)?,
        limit,
        calibrated: calibration.is_some(),
        held_out,
        tune: if held_out {
            options
                .artifact
                .tune_steps(plan.request().method, plan.request().effort)
        } else {
            0
        },
        tune_is_explicit: options.artifact.tune.is_some_and(|steps| steps > 0),
    };
    let treatment = wanted.treatment.resolve(wanted.calibrated)?;
    treatment.check(&plan)?;
    let record = calibration.as_ref();
    let measured = wanted.measures(record);
    let digest_later = Digest::default();
    let linear_algebra = device.algebra().name();
    let draft = layout::draft_manifest(
        &source,
        &plan,
        layout::ManifestInputs {
            source_sha256: digest_later,
            calibration: record,
            linear_algebra: &linear_algebra,
            order: order.as_ref().map(ChannelPermutation::digest),
        },
        &treatment,
        measured,
    );
    let draft = layout::reserve_tuning(draft, wanted.tune > 0);
    let artifact_bytes = HtzWriter::predict_length(draft, &sections)?;
    let candidates = wanted.candidates();
    let compares = measured && made_from.is_some();
    let at_a_time = (candidates + usize::from(wanted.tune > 0)).min(2);
    let needed = disk_space_needed(options, &plan, artifact_bytes, (at_a_time, compares));
    let needed = if options.artifact.with_source {
        needed.saturating_add(complete_bytes(options, artifact_bytes) + source.tensor_bytes())
    } else {
        needed
    };
    let needed = needed.saturating_sub(WorkFolder::bytes(&options.output));
    let free = disk::free_bytes(disk::folder_of(&options.output));
    if let Some(free) = free.filter(|free| *free < needed) {
        return Err(CompileError::NoSpace {
            path: options.output.clone(),
            needed,
            free,
        });
    }
    let searched = (!options.limit.is_none())
        .then(|| {
            plan_at(
                &source,
                &plan,
                made_from.as_ref(),
                calibration.as_ref(),
                (Some(ESTIMATE_RATIO), limit),
            )
            .ok()
        })
        .flatten();
    let expected = EstimateInputs {
        source: &source,
        plan: searched.as_ref().unwrap_or(&plan),
        treatment,
        calibration: calibration.as_ref(),
        candidates,
        tune: wanted.tune,
        bytes: artifact_bytes,
        vocabulary: sections.first().map_or(0, |of| of.entry().decoded_length),
        speed,
        uses_device_memory: device.has_own_memory(),
        uses_device_algebra: device.device_algebra().is_some(),
    };
    let estimate = estimate::estimate(options, expected);
    if let Some(available) = memory::available().filter(|found| *found < estimate.peak_memory) {
        return Err(CompileError::NoMemory {
            needed: estimate.peak_memory,
            available,
        });
    }
    let digest = digest.unwrap_or_else(|| digest_of(&source, clock, watch));
    let request = plan.request();
    let max_comparison_files = options
        .artifact
        .max_comparison_files(request.method, request.effort);
    Ok(Prepared {
        source,
        digest,
        calibration,
        gradients,
        permutation: order,
        plan,
        treatment,
        choice_request: wanted,
        measured,
        sections,
        linear_algebra,
        estimate,
        free_bytes: free,
        plan_inputs: made_from,
        max_comparison_files,
        start_ratio: start,
    })
}

/// A replaced artifact stays until the new one is complete.
fn disk_space_needed(
    options: &CompileOptions,
    plan: &Plan,
    artifact: u64,
    (at_a_time, compares): (usize, bool),
) -> u64 {
    let request = plan.request();
    let is_elastic = options.artifact.planes == 2;
    let whole = complete_bytes(options, artifact);
    let wholes = if is_elastic { 2 * whole } else { 0 };
    let compared = options
        .artifact
        .max_comparison_files(request.method, request.effort);
    let beside = if compares && compared > 0 {
        2 * whole
    } else {
        0
    };
    at_a_time as u64 * artifact + wholes + beside
}

/// Returns the bytes of the complete artifact. With a requested size, the plan of an elastic
/// artifact covers only the bases.
fn complete_bytes(options: &CompileOptions, artifact: u64) -> u64 {
    if options.artifact.planes == 2 && options.limit.is_none() {
        (artifact as f64 / BASE_FRACTION) as u64
    } else {
        artifact
    }
}

/// A plan with the measurements made for it.
pub struct PlanWithEvidence {
    /// The plan.
    pub plan: Plan,
    /// Digest of the source, if it was computed.
    pub digest: Option<Digest>,
    /// The calibration, if any.
    pub calibration: Option<Calibration>,
    /// Costs of errors at the outputs of matrices, if codes are chosen by them.
    pub gradients: Option<Gradients>,
    /// Channel permutation, if any.
    pub permutation: Option<ChannelPermutation>,
    /// Inputs of the plan; `None` for a plan from a file.
    pub plan_inputs: Option<PlanInputs>,
}

/// Makes the plan for a model, or reads it from its file. The model is executed only after all
/// other checks have passed.
pub fn plan(
    source: &ModelFile,
    planning: &PlanSource,
    calibration: Option<&CalibrationOptions>,
    device: &dyn Device,
    clock: &StageClock,
    watch: Progress,
) -> Result<PlanWithEvidence, CompileError> {
    let threads = device.pool().threads();
    let source_type = ModelFileTypes(source);
    let read = OnceCell::new();
    let digest = || *read.get_or_init(|| digest_of(source, clock, watch));
    // Read only once: the file may be a pipe.
    let known = match planning {
        PlanSource::File(path) => {
            let plan = plan::json::read(path, &source.hyper, digest, source_type)?;
            order::check(source, plan.request().layout.order)?;
            Ok(plan)
        }
        PlanSource::Compute { request, target } => {
            let mut request = request.clone();
            request.layout.order = order::resolve_setting(source, &request, watch)?;
            check_request(source, &request, target, calibration.is_some())?;
            Err((request, target))
        }
    };
    let options = calibration;
    let calibration = match options {
        None => None,
        Some(options) => {
            options.check(&source.hyper)?;
            let digest = digest();
            Some(clock.time(Stage::Calibrate, || {
                calibrate(source, digest, options, device, watch)
            })?)
        }
    };
    let asked = known
        .as_ref()
        .map_or_else(|(asked, _)| asked, Plan::request);
    let order = order::find_permutation(source, asked, calibration.as_ref(), threads, watch)?;
    let by_gradients = match &known {
        Ok(plan) => plan.needs_gradients(),
        Err((request, _)) => request.method == Method::Quantise,
    };
    let gradients = match options.filter(|_| by_gradients) {
        Some(options) => Some(clock.time(Stage::Calibrate, || {
            let tokens = asked.effort.settings().gradient_tokens;
            gradients(source, digest(), (options, tokens), threads, watch)
        })?),
        None => None,
    };
    let (plan, made_from) = match known {
        Ok(plan) => (plan, None),
        Err((request, target)) => {
            let request = &request;
            let units = plan::units(&source.hyper, request, source_type)?;
            let measured = ProfileInputs {
                source,
                units: &units,
                calibration: calibration.as_ref(),
                gradients: gradients.as_ref(),
                order: order.as_ref(),
                device,
            };
            let evidence = profile::measure(measured, request, target, watch)?;
            let made_from = PlanInputs {
                request: request.clone(),
                evidence,
                file: file_parts(source, request, device)?,
            };
            let plan = made_from.plan(source, calibration.as_ref())?;
            if let Some(told) = &made_from.evidence.factor_summary {
                watch.report(Event::Note(told));
            }
            (plan, Some(made_from))
        }
    };
    Ok(PlanWithEvidence {
        plan,
        digest: read.into_inner(),
        calibration,
        gradients,
        permutation: order,
        plan_inputs: made_from,
    })
}

fn file_parts(
    source: &ModelFile,
    request: &PlanRequest,
    device: &dyn Device,
) -> Result<Option<FileParts>, CompileError> {
    let parts = has_file_budget(request).then(|| {
        Ok(FileParts {
            tokenizer: tokenizer_section(source)?,
            source: source.size(),
            linear_algebra: device.algebra().name(),
        })
    });
    parts.transpose()
}

fn check_request(
    source: &ModelFile,
    request: &PlanRequest,
    target: &TargetMachine,
    calibrated: bool,
) -> Result<(), PlanError> {
    let known = target.evidence();
    match plan::compute(
        &source.hyper,
        request.clone(),
        &known,
        ModelFileTypes(source),
    ) {
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
pub fn calibrate(
    source: &ModelFile,
    digest: Digest,
    options: &CalibrationOptions,
    device: &dyn Device,
    watch: Progress,
) -> Result<Calibration, CompileError> {
    let model = Model::bind(source.clone()).map_err(|error| CalibrateError::Load {
        path: source.path.clone(),
        error,
    })?;
    let calibrated = calibrate::calibrate(&Arc::new(model), digest, options, device, watch)?;
    // Must not stay in the cache under this digest.
    if calibrated.is_new && source.digest() != digest {
        calibrate::remove_entry(options, calibrated.key)?;
        return Err(CompileError::SourceChanged(source.path.clone()));
    }
    Ok(calibrated)
}

fn gradients(
    source: &ModelFile,
    digest: Digest,
    (options, tokens): (&CalibrationOptions, usize),
    threads: usize,
    watch: Progress,
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
