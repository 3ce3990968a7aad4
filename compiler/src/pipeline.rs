//! The compilation pipeline, from a model file to a sealed artifact (see the
//! [stages](crate#stages)): checked source, calibrated source, plan, selected artifact, report.
//!
//! At most one layer's results are in memory. The order of the arithmetic inside a unit does not
//! depend on the number of threads, so the same source and the same request give the same bytes on
//! the same instruction set.

mod builder;
mod calibrated;
pub mod clean;
mod elastic;
mod error;
mod executed;
mod kernels;
mod order;
mod planned;
mod sealed;
mod source;

use htc_formats::htz::DepthSinkRecord;

use crate::choose::{SelectedArtifact, Selection};
use crate::device::{self, Device};
use crate::estimate::duration::Speed;
use crate::estimate::stages;
use crate::event::{Event, Progress};
use crate::layout;
use crate::make::MakeError;
use crate::make::work::WorkFolder;
use crate::options::{BiasArg, CompileOptions, ShrinkageArg, TreatmentOptions};
use crate::plan::Plan;
use crate::report::{BeforeAfter, Forecast, Report, Summary};
use crate::system::clock::{Stage, StageClock};
use crate::system::memory::PeakMemory;
use crate::system::show::{file_name, format_bytes};

pub use builder::Compiler;
use calibrated::CalibratedSource;
pub use calibrated::calibrate;
use elastic::ElasticRequest;
pub use error::{CompileError, ErrorKind};
use planned::PlannedModel;
use sealed::seal;
#[cfg(feature = "cli")]
pub(crate) use source::is_source_file;
pub use source::{CheckedSource, open};

/// Options, device and progress of a compilation, shared by its stages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompileContext<'a> {
    pub options: &'a CompileOptions,
    pub device: &'a dyn Device,
    pub clock: &'a StageClock,
    pub progress: Progress<'a>,
}

/// Compiles a model and returns its report; on an error the output's name is unchanged.
pub fn compile(options: &CompileOptions, progress: Progress) -> Result<Report, CompileError> {
    let (clock, peak) = (StageClock::default(), PeakMemory::default());
    let _watched = peak.watch();
    let sink = |event: Event| {
        peak.sample();
        progress.report(event);
    };
    let progress = progress.with_sink(&sink);

    // Before the first long read.
    let source = CheckedSource::open(options)?;
    let elastic = ElasticRequest::from_options(options, source.file())?;
    let options = elastic.as_ref().map_or(options, |elastic| &elastic.bases);
    let report = executed::with_device(options, source.file(), progress, |device| {
        let context = CompileContext {
            options,
            device,
            clock: &clock,
            progress,
        };
        let work = WorkFolder::open(&options.output, progress)?;
        let report = compile_in(&work, context, &source, elastic.as_ref());
        keep_work_on_error(work, report, progress)
    });
    let mut report = report.map_err(|error| elastic::scale_bases_error(error, elastic.as_ref()))?;
    report.peak_memory = peak.bytes();
    Ok(report)
}

fn compile_in(
    work: &WorkFolder,
    context: CompileContext,
    source: &CheckedSource,
    elastic: Option<&ElasticRequest>,
) -> Result<Report, CompileError> {
    let CompileContext {
        clock, progress, ..
    } = context;
    let speed = estimate_time(context, source);
    let calibrated = CalibratedSource::new(context, source)?;
    let planned = PlannedModel::new(context, &calibrated)?;
    let resources = planned.check_resources(context, speed)?;
    let selection = Selection {
        builder: planned.artifact_builder(context, work, planned.depth_sink(context)?),
        request: planned.request,
        clock,
    };
    progress.report(Event::KeptFolder(work.resumable_path()));
    let chosen = match elastic {
        Some(elastic) => elastic.make(&planned.planner, &selection)?,
        None => clock.time(Stage::Factorise, || selection.choose(&planned.planner))?,
    };
    seal(context, &planned, &selection, resources.estimate, chosen)
}

/// Reports the predicted time, and returns the speed of this machine.
fn estimate_time(context: CompileContext, source: &CheckedSource) -> Speed {
    let speed = Speed::measure();
    let stages = stages::estimate_before_work(source.file(), context.options, speed);
    if let Some(stages) = stages {
        let event = Event::EstimatedSeconds(stages.total());
        context.progress.report(event);
    }
    speed
}

/// Keeps finished work when a compilation fails, so that the same compilation can resume. The work
/// is discarded when the source itself is at fault: it is useless for another source.
fn keep_work_on_error<T>(
    work: WorkFolder,
    made: Result<T, CompileError>,
    progress: Progress,
) -> Result<T, CompileError> {
    let kept = match &made {
        Ok(_)
        | Err(CompileError::SourceChanged(_) | CompileError::Make(MakeError::Unit { .. })) => {
            drop(work);
            false
        }
        Err(_) => work.keep(),
    };
    if !kept {
        progress.report(Event::KeptFolder(None));
    }
    made
}

/// Plans a compilation without writing anything, and returns its predicted size and time.
pub fn forecast(options: &CompileOptions, progress: Progress) -> Result<Forecast, CompileError> {
    let source = CheckedSource::open(options)?;
    let elastic = ElasticRequest::from_options(options, source.file())?;
    let options = elastic.as_ref().map_or(options, |elastic| &elastic.bases);
    let forecast = executed::with_device(options, source.file(), progress, |device| {
        let context = CompileContext {
            options,
            device,
            clock: &StageClock::default(),
            progress,
        };
        forecast_on(context, &source, elastic.as_ref())
    });
    forecast.map_err(|error| elastic::scale_bases_error(error, elastic.as_ref()))
}

fn forecast_on(
    context: CompileContext,
    source: &CheckedSource,
    elastic: Option<&ElasticRequest>,
) -> Result<Forecast, CompileError> {
    let speed = estimate_time(context, source);
    let calibrated = CalibratedSource::new(context, source)?;
    let planned = PlannedModel::new(context, &calibrated)?;
    let resources = planned.check_resources(context, speed)?;
    let (source, options, planner) = (source.file(), context.options, &planned.planner);
    let ratio = match elastic {
        Some(elastic) => elastic.bases_ratio(planner),
        None => planner.start_ratio(),
    };
    let plan = match ratio {
        Some(ratio) => planner.plan_at(ratio)?,
        None => planner.plan().clone(),
    };
    let record = layout::plan_record(source, &plan);
    let limit = options.limit;
    let limit = (!limit.is_none()).then(|| limit.to_string());
    let mut summary = Summary::new(source, &plan, &record, planned.treatment.bias);
    if let Some(limit) = &limit {
        summary.show_limit(limit, plan.request());
    }
    let mut after = planned.artifact_bytes(context, &plan)?;
    if let Some(elastic) = elastic {
        let bases = format_bytes(after);
        after = elastic.expected_bytes(planner)?;
        summary.notes.push(format!(
            "the plan is of the bases, {bases}; what they lack is planned when they are made"
        ));
    }
    Ok(Forecast {
        source: file_name(&options.input),
        artifact: file_name(&options.output),
        bytes: BeforeAfter {
            before: source.size(),
            after,
        },
        with_source: options.artifact.with_source.then(|| source.tensor_bytes()),
        limit,
        free_bytes: resources.free_bytes,
        peak_memory: resources.estimate.peak_memory,
        seconds: resources.estimate.seconds,
        stages: resources.estimate.stages,
        threads: options.threads,
        summary,
    })
}

/// A plan, and the artifact in the work folder that was measured for it.
#[derive(Debug)]
pub struct MeasuredPlan {
    /// The plan.
    pub plan: Plan,
    /// The smallest artifact within the limit, if there is one.
    pub selected: Option<SelectedArtifact>,
}

/// Plans a model on the CPU: at the requested size, or at the smallest that meets the limit.
/// Candidates of the search are made next to the output, which is not written.
pub fn plan(
    source: &CheckedSource,
    options: &CompileOptions,
    progress: Progress,
) -> Result<MeasuredPlan, CompileError> {
    device::run_on_cpu(options.threads, |device| {
        let context = CompileContext {
            options,
            device,
            clock: &StageClock::default(),
            progress,
        };
        let calibrated = CalibratedSource::new(context, source)?;
        if options.limit.is_none() || options.calibration.is_none() {
            let plan = calibrated.plan(context)?.plan().clone();
            let selected = None;
            return Ok(MeasuredPlan { plan, selected });
        }
        let planned = PlannedModel::new(context, &calibrated)?;
        let work = WorkFolder::open(&options.output, progress)?;
        let depth_sink = DepthSinkRecord::from_depth(source.file().hyper.layers);
        let selection = Selection {
            builder: planned.artifact_builder(context, &work, depth_sink),
            request: planned.request,
            clock: context.clock,
        };
        progress.report(Event::KeptFolder(work.resumable_path()));
        let chosen = selection.choose(&planned.planner);
        let chosen = chosen.map_err(CompileError::from);
        let mut chosen = keep_work_on_error(work, chosen, progress)?;
        let treatment = chosen.treatment;
        chosen.plan.set_treatment(TreatmentOptions {
            gauge: Some(treatment.gauge),
            sink: Some(treatment.sink),
            bias: Some(if treatment.bias {
                BiasArg::On
            } else {
                BiasArg::Off
            }),
            shrinkage: treatment.applied_shrinkage().map(ShrinkageArg::Fixed),
            ..TreatmentOptions::default()
        });
        Ok(MeasuredPlan {
            plan: chosen.plan.clone(),
            selected: Some(chosen),
        })
    })
}
