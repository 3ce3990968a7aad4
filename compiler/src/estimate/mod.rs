//! Estimates of the time, memory, disk space and size of a compilation.

pub mod duration;
pub(crate) mod matrices;
mod memory;
mod schedule;
pub(crate) mod stages;
mod text;

use htc_formats::source::ModelFile;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::calibrate::{self, TextExtent};
use crate::choose;
use crate::estimate::duration::{Speed, forward_seconds};
use crate::estimate::schedule::Candidates;
use crate::estimate::stages::Workload;
pub use crate::estimate::stages::{StageSeconds, coding_cost};
use crate::gradient;
use crate::options::{CompileOptions, DEFAULT_CONTEXT, PlanSource, Treatment};
use crate::plan::{Method, Plan};
use crate::unit::input_of_unit;
pub(crate) use schedule::{tasks_after_planning, tasks_before_planning};
pub(crate) use stages::SEARCH_CANDIDATES;
pub(crate) use text::TextSize;

/// Estimated resources and result of a compilation.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Estimate {
    /// Bytes of the artifact.
    pub bytes: u64,
    /// Upper bound of the memory in bytes, without the mapped source.
    pub peak_memory: u64,
    /// Total seconds of the estimated stages.
    pub seconds: f64,
    /// Seconds of the stages, without cached results.
    #[serde(default)]
    pub stages: StageSeconds,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct EstimateInputs<'a> {
    pub source: &'a ModelFile,
    pub plan: &'a Plan,
    pub treatment: Treatment,
    /// Texts of the calibration, if any.
    pub text: Option<TextSize>,
    pub candidates: usize,
    /// Tuning steps for norms and rows.
    pub tune: usize,
    /// Bytes of an artifact.
    pub bytes: u64,
    /// Bytes as stored.
    pub vocabulary: u64,
    pub speed: Speed,
    pub uses_device_memory: bool,
    /// Matrix algebra runs on a device, with copies to it.
    pub uses_device_algebra: bool,
}

/// Estimates a compilation of a plan.
pub(crate) fn estimate(options: &CompileOptions, expected: &EstimateInputs) -> Estimate {
    let stages = stage_seconds(options, expected);
    Estimate {
        bytes: expected.bytes,
        peak_memory: memory::peak_bytes(options, expected),
        seconds: stages.total(),
        stages,
    }
}

fn stage_seconds(options: &CompileOptions, expected: &EstimateInputs) -> StageSeconds {
    let EstimateInputs {
        source,
        plan,
        text,
        speed,
        ..
    } = *expected;
    let (threads, request) = (options.threads, plan.request());
    let effort = request.effort.settings();
    let candidates = Candidates::new(options, expected.candidates, expected.tune);
    let work = workload(options, expected);
    let units = plan.units().iter().map(|unit| {
        let reads = input_of_unit(source, unit).is_some();
        (unit, reads && text.is_some())
    });
    let made = candidates.made() as f64;
    let refinements = candidates.refinements as f64;
    let context = text.map_or(DEFAULT_CONTEXT.min(source.hyper.context), |text| {
        text.context
    });
    let held_out = text.map_or(choose::SHIPPED_WINDOWS, |text| text.held_out) * context;
    let times = candidates.measurements();
    let passes = stages::passes_of_measurements(&source.hyper, held_out, context, times);
    let measured = (passes * held_out as f64) as usize;
    StageSeconds {
        calibrate: stages::calibration_seconds(work, speed) + stages::gradient_seconds(work, speed),
        plan: if planning_needs_gradients(options) {
            let codes = request.codes.kinds();
            let rotates = stages::evaluates_rotation(request);
            let once = stages::curve_seconds(source, effort, codes, rotates, speed, threads);
            (1.0 + refinements) * once
        } else {
            0.0
        },
        factorise: (made + refinements) * speed.unit_seconds(units, threads)
            + made * stages::kv_bases_seconds(source, request, speed, threads),
        measure: forward_seconds(source, measured, threads, true).unwrap_or(0.0),
        tune: stages::tuning_factor(options)
            * stages::tuning_seconds(source, expected.tune, speed, threads),
    }
}

fn workload<'a>(options: &CompileOptions, expected: &EstimateInputs<'a>) -> Workload<'a> {
    let tokens = expected.text.map_or(0, |text| text.tokens);
    let goes_back = planning_needs_gradients(options) || expected.plan.needs_gradients();
    let effort = expected.plan.request().effort.settings();
    Workload {
        source: expected.source,
        tokens,
        gradient_tokens: if goes_back {
            effort.gradient_tokens.min(tokens)
        } else {
            0
        },
        threads: options.threads,
    }
}

/// Returns the disk space that the cache of a calibration takes at most.
pub(crate) fn cache_bytes(options: &CompileOptions, expected: &EstimateInputs) -> u64 {
    let (source, Some(text)) = (expected.source, expected.text) else {
        return 0;
    };
    let extent = TextExtent {
        context: text.context,
        windows: text.windows(),
    };
    let (statistics, streams) = calibrate::cache_bytes(&source.hyper, extent);
    let gradients = match workload(options, expected).gradient_tokens {
        0 => 0,
        tokens => gradient::cache_bytes(&source.hyper, &source.spec(), tokens),
    };
    statistics.saturating_add(streams.max(gradients))
}

/// Returns true if the plan is computed from gradients.
fn planning_needs_gradients(options: &CompileOptions) -> bool {
    match &options.planning {
        PlanSource::Compute { request, .. } => request.method == Method::Quantise,
        PlanSource::File(_) => false,
    }
}
