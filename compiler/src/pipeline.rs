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
mod request;
mod resources;
mod sealed;
mod source;

use std::cell::RefCell;
use std::fs;
use std::path::Path;

use htc_formats::htz::{DepthSinkRecord, Digest};

use crate::calibrate::cache_folder;
use crate::choose::{SelectedArtifact, Selection};
use crate::device::{self, Device};
use crate::estimate::duration::Speed;
use crate::event::{Event, Progress};
use crate::layout;
use crate::make::MakeError;
use crate::make::work::WorkFolder;
use crate::options::CompileOptions;
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
use request::CheckedRequest;
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

    let mut report = with_context(options, &clock, progress, |context, source, elastic| {
        let work = WorkFolder::open(&context.options.output, progress)?;
        let report = compile_in(&work, context, source, elastic);
        keep_work_on_error(work, report, progress)
    })?;
    report.peak_memory = peak.bytes();
    Ok(report)
}

/// Calls `work` with the source, the device and the resolved options of a compilation.
fn with_context<T>(
    options: &CompileOptions,
    clock: &StageClock,
    progress: Progress,
    work: impl FnOnce(
        CompileContext,
        &CheckedSource,
        Option<&ElasticRequest>,
    ) -> Result<T, CompileError>,
) -> Result<T, CompileError> {
    // Before the first long read.
    let source = CheckedSource::open(options)?;
    source.report_omitted_metadata(progress);
    let elastic = ElasticRequest::from_options(options, source.file())?;
    let elastic = elastic.as_ref();
    let options = elastic.map_or(options, |elastic| &elastic.bases);
    let result = executed::with_device(options, source.file(), progress, |device| {
        let context = CompileContext {
            options,
            device,
            clock,
            progress,
        };
        work(context, &source, elastic)
    });
    result.map_err(|error| elastic::scale_bases_error(error, elastic))
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
    let request = CheckedRequest::new(context, source)?;
    let speed = Speed::measure();
    resources::check_before_work(context, source, &request, speed)?;
    let calibrated = CalibratedSource::new(context, source, request)?;
    let planned = PlannedModel::new(context, &calibrated)?;
    let resources = resources::check_planned(context, &planned, speed)?;
    let selection = Selection {
        builder: planned.artifact_builder(context, work, planned.depth_sink(context)?),
        request: planned.request,
        clock,
        reference: &RefCell::default(),
    };
    progress.report(Event::KeptFolder(work.resumable_path()));
    let chosen = match elastic {
        Some(elastic) => elastic.make(&planned.planner, &selection)?,
        None => clock.time(Stage::Factorise, || selection.choose(&planned.planner))?,
    };
    seal(context, &planned, &selection, resources.estimate, chosen)
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
    with_context(options, &StageClock::default(), progress, forecast_on)
}

fn forecast_on(
    context: CompileContext,
    source: &CheckedSource,
    elastic: Option<&ElasticRequest>,
) -> Result<Forecast, CompileError> {
    let request = CheckedRequest::new(context, source)?;
    let speed = Speed::measure();
    resources::check_before_work(context, source, &request, speed)?;
    let calibrated = CalibratedSource::new(context, source, request)?;
    let planned = PlannedModel::new(context, &calibrated)?;
    let resources = resources::check_planned(context, &planned, speed)?;
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
    let limit = (!limit.is_none()).then_some(limit);
    let mut summary = Summary::new(source, &plan, &record, planned.treatment.bias);
    if let Some(limit) = limit {
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

/// A plan, computed or selected by measurement.
#[derive(Debug)]
pub enum MeasuredPlan {
    /// The plan of the requested size.
    Computed(Box<Plan>),
    /// The smallest artifact within the limit.
    Selected(Box<SelectedArtifact>),
}

impl MeasuredPlan {
    /// Returns the plan.
    pub fn plan(&self) -> &Plan {
        match self {
            MeasuredPlan::Computed(plan) => plan,
            MeasuredPlan::Selected(selected) => &selected.plan,
        }
    }

    /// Returns the selected artifact, if any.
    pub fn selected(&self) -> Option<&SelectedArtifact> {
        match self {
            MeasuredPlan::Computed(_) => None,
            MeasuredPlan::Selected(selected) => Some(selected),
        }
    }
}

/// Plans a model on the CPU: at the requested size, or at the smallest that meets the limit.
/// Candidates of the search are made in the cache of the calibration; the output is not used.
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
        let request = CheckedRequest::new(context, source)?;
        let calibrated = CalibratedSource::new(context, source, request)?;
        let text = options.calibration.as_ref();
        let Some(text) = text.filter(|_| !options.limit.is_none()) else {
            let plan = calibrated.plan(context)?.plan().clone();
            return Ok(MeasuredPlan::Computed(Box::new(plan)));
        };
        let planned = PlannedModel::new(context, &calibrated)?;
        let search = format!("search-{}", path_digest(&options.input));
        let work = WorkFolder::open(&cache_folder(text)?.join(search), progress)?;
        let depth_sink = DepthSinkRecord::from_depth(source.file().hyper.layers);
        let selection = Selection {
            builder: planned.artifact_builder(context, &work, depth_sink),
            request: planned.request,
            clock: context.clock,
            reference: &RefCell::default(),
        };
        progress.report(Event::KeptFolder(work.resumable_path()));
        let chosen = selection.choose(&planned.planner);
        let chosen = chosen.map_err(CompileError::from);
        let mut chosen = keep_work_on_error(work, chosen, progress)?;
        chosen.plan.set_treatment(chosen.treatment.into());
        Ok(MeasuredPlan::Selected(Box::new(chosen)))
    })
}

fn path_digest(path: &Path) -> Digest {
    let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    Digest::of_bytes(place.as_os_str().as_encoded_bytes())
}
