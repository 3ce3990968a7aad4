//! Predicted time, memory and disk space of a compilation, before its first long stage and after
//! planning.

use super::planned::{PlannedModel, choice_request};
use super::request::CheckedRequest;
use super::source::CheckedSource;
use super::{CompileContext, CompileError};
use crate::choose::ChoiceRequest;
use crate::estimate::duration::Speed;
use crate::estimate::{self, Estimate, EstimateInputs, SEARCH_CANDIDATES, TextSize};
use crate::event::{CostEstimate, Event};
use crate::make::work::WorkFolder;
use crate::options::{BASE_FRACTION, CompileOptions, PlanSource, Treatment};
use crate::plan::{Method, Plan, PlanRequest};
use crate::planner::to_file_budget;
use crate::system::{disk, memory};

/// Ratio of the plan that stands for those of a search. Projections of all kinds are factorised there,
/// with ranks close to their maximum.
const ESTIMATE_RATIO: f64 = 0.5;

/// Predicted costs of a compilation, and the disk space that it has.
pub(super) struct Resources {
    /// Predicted costs; the bytes of the artifact are exact.
    pub estimate: Estimate,
    /// Free bytes in the output's folder.
    pub free_bytes: Option<u64>,
}

/// Reports the predicted costs before the first long stage, as far as they do not depend on
/// measurements, and checks that disk and memory suffice.
///
/// # Errors
/// [`CompileError::NoSpace`], [`CompileError::NoMemory`].
pub(super) fn check_before_work(
    context: CompileContext,
    checked: &CheckedSource,
    request: &CheckedRequest,
    speed: Speed,
) -> Result<(), CompileError> {
    let (options, source) = (context.options, checked.file());
    let Some(plan) = request.representative_plan(source)? else {
        return Ok(());
    };
    let text = match &options.calibration {
        Some(options) => {
            options.check(&source.hyper)?;
            Some(TextSize::predict(options, &source.hyper))
        }
        None => None,
    };
    let request = plan.request();
    let held_out = text.is_some_and(|text| text.held_out > 0);
    // A file of a single type is made as well if it is close; in six compilations none was.
    let choice = choice_request(options, request, text.is_some(), held_out, 1)?;
    let treatment = choice.treatment.resolve(choice.calibrated)?;
    let bytes = predicted_bytes(checked, options, &plan);
    let needed = disk_space_needed(options, checked, &choice, bytes);
    check_disk_space(options, needed)?;
    let inputs = EstimateInputs {
        text,
        treatment,
        candidates: expected_candidates(options, request, &choice),
        tune: choice.tune,
        bytes,
        ..inputs_of_source(context, checked, &plan, speed)
    };
    let estimate = estimate::estimate(options, &inputs);
    check_memory(&estimate)?;
    context.progress.report(Event::Estimated(&CostEstimate {
        tasks: estimate::tasks_before_planning(options, &inputs, &estimate.stages),
        memory: estimate.peak_memory,
        disk: needed.saturating_add(estimate::cache_bytes(options, &inputs)),
    }));
    Ok(())
}

/// Predicts the costs after planning, reports those that are left, and checks that disk and memory
/// suffice.
///
/// # Errors
/// [`CompileError::NoSpace`], [`CompileError::NoMemory`].
pub(super) fn check_planned(
    context: CompileContext,
    planned: &PlannedModel,
    speed: Speed,
) -> Result<Resources, CompileError> {
    let (options, planner) = (context.options, &planned.planner);
    let calibrated = planned.calibrated;
    let checked = calibrated.checked;
    let plan = planner.plan();
    let bytes = planned.artifact_bytes(context, plan)?;
    let (request, choice) = (plan.request(), &planned.request);
    let disk = disk_space_needed(options, checked, choice, bytes);
    let free_bytes = check_disk_space(options, disk)?;
    let searches = !options.limit.is_none();
    let searched = searches.then(|| planner.plan_at(ESTIMATE_RATIO).ok());
    let searched = searched.flatten();
    let inputs = EstimateInputs {
        text: calibrated.calibration.as_ref().map(TextSize::of),
        treatment: planned.treatment,
        candidates: expected_candidates(options, request, choice),
        tune: choice.tune,
        bytes,
        ..inputs_of_source(context, checked, searched.as_ref().unwrap_or(plan), speed)
    };
    let estimate = estimate::estimate(options, &inputs);
    check_memory(&estimate)?;
    context.progress.report(Event::Estimated(&CostEstimate {
        tasks: estimate::tasks_after_planning(options, &inputs, &estimate.stages),
        memory: estimate.peak_memory,
        disk,
    }));
    Ok(Resources {
        estimate,
        free_bytes,
    })
}

/// Returns the inputs of an estimate that only source and device decide, for an artifact of one
/// candidate without a calibration.
fn inputs_of_source<'a>(
    context: CompileContext,
    checked: &'a CheckedSource,
    plan: &'a Plan,
    speed: Speed,
) -> EstimateInputs<'a> {
    let vocabulary = checked.model_sections().first();
    EstimateInputs {
        source: checked.file(),
        plan,
        treatment: Treatment::default(),
        text: None,
        candidates: 1,
        tune: 0,
        bytes: 0,
        vocabulary: vocabulary.map_or(0, |of| of.entry().decoded_length),
        speed,
        uses_device_memory: context.device.has_own_memory(),
        uses_device_algebra: context.device.device_algebra().is_some(),
    }
}

fn expected_candidates(
    options: &CompileOptions,
    request: &PlanRequest,
    choice: &ChoiceRequest,
) -> usize {
    match request.method {
        Method::Quantise if !options.limit.is_none() => {
            let others = choice.plans.saturating_sub(1);
            choice.candidates().min(SEARCH_CANDIDATES + others)
        }
        _ => choice.candidates(),
    }
}

/// Returns the bytes of the artifact that a representative plan stands for: the requested ones,
/// within a limit those of the source, or those of the plan.
fn predicted_bytes(checked: &CheckedSource, options: &CompileOptions, plan: &Plan) -> u64 {
    let source = checked.file();
    let request = plan.request();
    let is_computed = matches!(options.planning, PlanSource::Compute { .. });
    let requested = to_file_budget(request.budget, source).file_size();
    match (request.method, requested) {
        (Method::Quantise, _) if !options.limit.is_none() => source.size(),
        (Method::Quantise, Some(bytes)) if is_computed => bytes.min(source.size()),
        _ => {
            let units = plan.units().iter();
            let saved = units.map(|unit| unit.bytes_before().saturating_sub(unit.bytes_after()));
            source.size().saturating_sub(saved.sum())
        }
    }
}

/// Returns the bytes of disk space needed beside the cache. A replaced artifact stays until the new
/// one is complete.
fn disk_space_needed(
    options: &CompileOptions,
    checked: &CheckedSource,
    choice: &ChoiceRequest,
    bytes: u64,
) -> u64 {
    let is_elastic = options.artifact.planes == 2;
    // With a requested size, the plan of an elastic artifact covers only the bases.
    let whole = if is_elastic && options.limit.is_none() {
        (bytes as f64 / BASE_FRACTION) as u64
    } else {
        bytes
    };
    let candidates = choice.candidates() + usize::from(choice.tune > 0);
    let compares = choice.held_out && options.max_comparison_files() > 0;
    let mut needed = candidates.min(2) as u64 * bytes;
    needed += 2 * whole * (u64::from(is_elastic) + u64::from(compares));
    if options.artifact.with_source {
        let source = checked.file().tensor_bytes();
        needed = needed.saturating_add(whole + source);
    }
    needed.saturating_sub(WorkFolder::bytes(&options.output))
}

/// Returns the free bytes in the output's folder, if known.
fn check_disk_space(options: &CompileOptions, needed: u64) -> Result<Option<u64>, CompileError> {
    let free = disk::free_bytes(disk::folder_of(&options.output));
    match free.filter(|free| *free < needed) {
        Some(free) => Err(CompileError::NoSpace {
            path: options.output.clone(),
            needed,
            free,
        }),
        None => Ok(free),
    }
}

fn check_memory(estimate: &Estimate) -> Result<(), CompileError> {
    let needed = estimate.peak_memory;
    match memory::available() {
        Some(available) if available < needed => Err(CompileError::NoMemory { needed, available }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
