//! The compilation pipeline, from a model file to a sealed artifact: reads, plans, factorises,
//! seals and chooses (see the [stages](crate#stages)).
//!
//! At most one layer's results are in memory. The order of the arithmetic inside a unit does not
//! depend on the number of threads, so the same source and the same request give the same bytes on
//! the same instruction set.

mod builder;
pub mod clean;
mod error;
mod executed;
mod kernels;
mod order;
mod planes;
mod prepare;
mod sized;
mod source;

use std::io;
use std::path::Path;

use htc_formats::htz::{DepthSinkOrigin, DepthSinkRecord, HtzWriter};
use htc_formats::source::ModelFile;

use crate::analyse;
use crate::calibrate::Calibration;
use crate::choose::{self, ChoiceRequest, PlanProvider, SelectedArtifact, Trial};
use crate::device::Device;
use crate::event::{Event, Measurement, Progress};
use crate::layout;
use crate::make::work::WorkFolder;
use crate::make::{ArtifactWithSource, MakeInputs};
use crate::options::{
    BiasArg, CompileOptions, QualityLimit, ShrinkageArg, Switch, Treatment, TreatmentOptions,
};
use crate::report::{BeforeAfter, CalibrationReport, Forecast, Report, ReportInputs, Summary};
use crate::system::clock::{Stage, StageClock};
use crate::system::disk;
use crate::system::memory::PeakMemory;
use crate::system::show::{file_name, format_bytes};

pub use builder::Compiler;
pub use error::CompileError;
use planes::ElasticRequest;
use prepare::{CheckedSource, Prepared, open_and_check, plan_at, prepare, tokenizer_section};
pub use prepare::{PlanWithEvidence, calibrate, plan};
pub use sized::PlanInputs;
#[cfg(feature = "cli")]
pub(crate) use source::is_source_file;
pub use source::open;

const COMPARISON_IMPOSSIBLE: &str = "nothing is compared: that takes a plan of the method quantise that is made, a type of \
     GGUF for a file of about this size, and held-out windows that decide nothing";

/// A compilation whose artifact has been published under its final name.
struct PublishedArtifact {
    prepared: Prepared,
    chosen: SelectedArtifact,
    plain: Vec<Trial>,
    with_source: Option<ArtifactWithSource>,
    synced: io::Result<()>,
}

/// Compiles a model and returns its report; on an error the output's name is unchanged.
pub fn compile(options: &CompileOptions, watch: Progress) -> Result<Report, CompileError> {
    let (clock, peak) = (StageClock::default(), PeakMemory::default());
    let _watched = peak.watch();
    let tell = |event: Event| {
        peak.sample();
        watch.report(event);
    };
    let watch = watch.with_sink(&tell);

    // Before the first long read.
    let admitted = open_and_check(options)?;
    let elastic = ElasticRequest::from_options(options, admitted.source())?;
    let source = admitted.source().clone();
    executed::with_device(options, &source, watch, |device| {
        let admitted = (admitted, elastic.as_ref());
        compile_on(device, admitted, options, (&clock, &peak), watch)
    })
}

fn compile_on(
    device: &dyn Device,
    (admitted, elastic): (CheckedSource, Option<&ElasticRequest>),
    options: &CompileOptions,
    (clock, peak): (&StageClock, &PeakMemory),
    watch: Progress,
) -> Result<Report, CompileError> {
    let options = elastic.map_or(options, |elastic| &elastic.bases);
    let work = WorkFolder::open(&options.output, watch)?;
    let made = || -> Result<PublishedArtifact, CompileError> {
        let prepared = prepare(admitted, options, device, clock, watch);
        let prepared = prepared.map_err(|error| planes::scale_bases_error(error, elastic))?;

        let depth_sink = match options.artifact.probe_layer {
            Some(layer) => DepthSinkRecord {
                layer,
                origin: DepthSinkOrigin::Asked,
            },
            None => depth_sink(&prepared, device, watch)?,
        };

        let inputs = MakeInputs {
            source: &prepared.source,
            digest: prepared.digest,
            calibration: prepared.calibration.as_ref(),
            gradients: prepared.gradients.as_ref(),
            permutation: prepared.permutation.as_ref(),
            depth_sink,
            sections: &prepared.sections,
            reserve_quality: prepared.measured,
            reserve_tuning: prepared.choice_request.tune > 0,
            is_base: elastic.is_some(),
            device,
        };
        watch.report(Event::KeptFolder(work.resumable_path()));
        let mut chosen = match elastic {
            Some(elastic) => elastic.make(&prepared, &inputs, (&work, clock), watch)?,
            None => clock.time(Stage::Factorise, || {
                let plans = PlanProvider {
                    at_ratio: &|ratio| prepared.plan_at(ratio),
                    start_ratio: prepared.start_ratio,
                    alternatives: &|plan| prepared.alternatives(plan),
                };
                choose::choose(&inputs, plans, prepared.choice_request, &work, clock, watch)
            })?,
        };
        let plain = prepared.baseline_plans(&chosen.plan, chosen.built.bytes)?;
        let plain = clock.time(Stage::Factorise, || {
            choose::measure_single_type_files(
                &inputs,
                &plain,
                prepared.choice_request,
                &work,
                clock,
                watch,
            )
        })?;
        if plain.is_empty() && options.artifact.compare == Some(Switch::On) {
            chosen.notes.push(COMPARISON_IMPOSSIBLE.to_owned());
        }
        let with_source = if options.artifact.with_source {
            Some(clock.time(Stage::Seal, || {
                inputs.with_source(&chosen.built, &work, watch)
            })?)
        } else {
            None
        };
        watch.report(Event::Flushing);
        source::check_unchanged(&prepared.source, prepared.digest, clock)?;
        let key = with_source.map_or(chosen.built.key, |made| made.key);
        let name = work.artifact(key).complete_name();
        let synced = clock.time(Stage::Seal, || {
            HtzWriter::publish(work.folder(), &name, &options.output, options.overwrite)
        })?;
        Ok(PublishedArtifact {
            prepared,
            chosen,
            plain,
            with_source,
            synced,
        })
    };
    let made = made();
    let PublishedArtifact {
        prepared,
        chosen,
        plain,
        with_source,
        synced,
    } = keep_work_on_error(work, made, watch)?;
    if let Err(error) = synced {
        let folder = disk::folder_of(&options.output).display();
        let said = format!(
            "{folder}: cannot be forced to the disk ({error}); the artifact is complete, but its name may be lost if the machine fails now"
        );
        watch.report(Event::Warning(&said));
    }
    let calibration = prepared.calibration.as_ref();
    let calibration = calibration.map(|found| calibration_report(found, &chosen));
    let foreseen = prepared.predicted_losses(&chosen.plan)?;
    let made = ReportInputs {
        digest: prepared.digest,
        calibration,
        chosen,
        uniform_files: plain,
        with_source,
        estimate: prepared.estimate,
        foreseen,
        clock,
        peak_memory: peak.bytes(),
    };
    Ok(Report::new(options, &prepared.source, made))
}

/// Keeps finished work when a compilation fails, so that the same compilation can resume. The work
/// is discarded when the source itself is at fault: it is useless for another source.
fn keep_work_on_error<T>(
    work: WorkFolder,
    made: Result<T, CompileError>,
    watch: Progress,
) -> Result<T, CompileError> {
    let kept = match &made {
        Ok(_) | Err(CompileError::SourceChanged(_) | CompileError::Unit { .. }) => {
            drop(work);
            false
        }
        Err(_) => work.keep(),
    };
    if !kept {
        watch.report(Event::KeptFolder(None));
    }
    made
}

/// Returns the layer at which the residual stream stops growing dimensionally, for depth probes; a
/// guess without calibration, or if there is no plateau.
fn depth_sink(
    prepared: &Prepared,
    device: &dyn Device,
    watch: Progress,
) -> Result<DepthSinkRecord, CompileError> {
    let layers = prepared.source.hyper.layers;
    let Some(calibration) = &prepared.calibration else {
        return Ok(DepthSinkRecord::from_depth(layers));
    };
    watch.report(Event::Measuring(Measurement::Depth, layers));
    device.unload_idle_models();
    let (threads, algebra) = (device.pool().threads(), device.algebra());
    let found = analyse::depth_sink(&prepared.source, calibration, threads, algebra, watch)?;
    let measured = found.layer.map(|layer| DepthSinkRecord {
        layer,
        origin: DepthSinkOrigin::Measured,
    });
    Ok(measured.unwrap_or_else(|| DepthSinkRecord::from_depth(layers)))
}

fn calibration_report(found: &Calibration, chosen: &SelectedArtifact) -> CalibrationReport {
    let treatment = chosen.plan.treatment_of_factors(chosen.treatment, true);
    CalibrationReport::new(found, treatment.gauge, &chosen.built.treatment_report)
}

/// Plans a compilation without writing anything, and returns its predicted size and time.
pub fn forecast(options: &CompileOptions, watch: Progress) -> Result<Forecast, CompileError> {
    let admitted = open_and_check(options)?;
    let elastic = ElasticRequest::from_options(options, admitted.source())?;
    let options = elastic.as_ref().map_or(options, |elastic| &elastic.bases);
    let source = admitted.source().clone();
    let prepared = executed::with_device(options, &source, watch, |device| {
        prepare(admitted, options, device, &StageClock::default(), watch)
    });
    let prepared = prepared.map_err(|error| planes::scale_bases_error(error, elastic.as_ref()))?;
    let source = &prepared.source;
    let ratio = match &elastic {
        Some(elastic) => elastic.bases_ratio(&prepared),
        None => prepared.start_ratio,
    };
    let plan = prepared.plan_at(ratio)?;
    let record = layout::plan_record(source, &plan);
    let limit = options.limit;
    let limit = (!limit.is_none()).then(|| limit.to_string());
    let mut summary = Summary::new(source, &plan, &record, prepared.treatment.bias);
    if let Some(limit) = &limit {
        summary.show_limit(limit, plan.request());
    }
    let mut after = prepared.artifact_bytes(&plan)?;
    if let Some(elastic) = &elastic {
        let bases = format_bytes(after);
        after = elastic.expected_bytes(&prepared)?;
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
        free_bytes: prepared.free_bytes,
        peak_memory: prepared.estimate.peak_memory,
        seconds: prepared.estimate.seconds,
        stages: prepared.estimate.stages,
        threads: options.threads,
        summary,
    })
}

/// Finds the smallest plan whose artifact meets a limit, with candidates in a work folder named
/// after `scratch`.
pub fn search(
    source: &ModelFile,
    planned: &PlanWithEvidence,
    limit: QualityLimit,
    device: &dyn Device,
    scratch: &Path,
    watch: Progress,
) -> Result<SelectedArtifact, CompileError> {
    let calibration = planned.calibration.as_ref();
    let made_from = planned.plan_inputs.as_ref();
    let others = sized::alternatives(source, &planned.plan, made_from, (calibration, limit))?;
    let wanted = ChoiceRequest {
        plans: 1 + others.len(),
        treatment: prepare::complete_treatment(&planned.plan, TreatmentOptions::default())?,
        limit,
        calibrated: calibration.is_some(),
        held_out: calibration.is_some_and(|found| found.held_out.is_some()),
        tune: 0,
        tune_is_explicit: false,
    };
    let inputs = MakeInputs {
        source,
        digest: planned.digest.unwrap_or_else(|| source.digest()),
        calibration,
        gradients: planned.gradients.as_ref(),
        permutation: planned.permutation.as_ref(),
        depth_sink: DepthSinkRecord::from_depth(source.hyper.layers),
        sections: &[tokenizer_section(source)?],
        reserve_quality: wanted.measures(calibration),
        reserve_tuning: false,
        is_base: false,
        device,
    };
    let work = WorkFolder::open(scratch, watch)?;
    let planner = |ratio| {
        plan_at(
            source,
            &planned.plan,
            planned.plan_inputs.as_ref(),
            calibration,
            (ratio, limit),
        )
    };
    watch.report(Event::KeptFolder(work.resumable_path()));
    let clock = StageClock::default();
    let plans = PlanProvider {
        at_ratio: &planner,
        start_ratio: prepare::start_ratio(source, planned.plan_inputs.as_ref(), calibration, limit),
        alternatives: &|plan| sized::alternatives(source, plan, made_from, (calibration, limit)),
    };
    let chosen = choose::choose(&inputs, plans, wanted, &work, &clock, watch);
    let mut chosen = keep_work_on_error(work, chosen.map_err(CompileError::from), watch)?;
    let Treatment {
        gauge,
        sink,
        bias,
        shrinkage: _,
    } = chosen.treatment;
    chosen.plan.set_treatment(TreatmentOptions {
        gauge: Some(gauge),
        sink: Some(sink),
        bias: Some(if bias { BiasArg::On } else { BiasArg::Off }),
        shrinkage: chosen
            .treatment
            .applied_shrinkage()
            .map(ShrinkageArg::Fixed),
        ..TreatmentOptions::default()
    });
    Ok(chosen)
}
