//! The compilation pipeline, from a model file to a sealed artifact.
//!
//! 1. **Read.** The source is mapped and bound to its architecture, and its digest computed.
//! 2. **Plan.** The form of every projection is decided from shapes, budget and the allocator's
//! measurements, or the plan is read from a file.
//! 3. **Factorise.** Units are decomposed in parallel, one thread each. The error of every unit is
//! measured on the stored values, after rounding.
//! 4. **Seal.** Tensors are written in the order of execution as they become ready, into a work
//! folder from which an interrupted compilation resumes.
//! 5. **Choose.** Choices without a closed form, such as the gauge, are made by executing the
//! candidates on held-out text. Norms and rows of the best candidate are tuned if that measures
//! better, and it is published under the output's name.
//!
//! Each stage takes the result of the stage before. At most one layer's results are in memory. The
//! order of the arithmetic inside a unit does not depend on the number of threads, so the same
//! source and the same request give the same bytes on the same instruction set.

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

use htc_formats::htz::{DepthSinkRecord, HtzWriter, Origin};
use htc_formats::source::ModelFile;

use crate::analyse;
use crate::calibrate::Calibration;
use crate::choose::{self, ChoiceRequest, Chosen, Plans, Trial};
use crate::device::Device;
use crate::event::{Event, Measurement, Watch};
use crate::layout;
use crate::make::work::Work;
use crate::make::{Inputs, WithSource};
use crate::report::{BeforeAfter, Calibrated, Forecast, Made, Report, Summary};
use crate::request::{
    BiasArg, CompareArg, CompileOptions, Goal, ShrinkageArg, Treatment, TreatmentRequest,
};
use crate::system::clock::{Stage, StageClock};
use crate::system::disk;
use crate::system::memory::Peak;
use crate::system::show::{bytes_for_people, name_of};

pub use builder::Compiler;
pub use error::CompileError;
use planes::Elastic;
use prepare::{Admitted, Prepared, admit, plan_at, prepare, tokenizer};
pub use prepare::{Planned, calibrate, plan};
pub use sized::MadeFrom;
#[cfg(feature = "cli")]
pub(crate) use source::is_of_source;
pub use source::open;

/// Note for a requested comparison that is not possible.
const NOTHING_COMPARED: &str = "nothing is compared: that takes a plan of the method quantise that is made, a type of \
     GGUF for a file of about this size, and held-out windows that decide nothing";

/// A compilation whose artifact has been published under its final name.
struct Named {
    prepared: Prepared,
    chosen: Chosen,
    plain: Vec<Trial>,
    with_source: Option<WithSource>,
    synced: io::Result<()>,
}

/// Compiles a model and returns its report.
///
/// # Errors
/// [`CompileError`]; the output's name is then unchanged.
pub fn compile(options: &CompileOptions, watch: Watch) -> Result<Report, CompileError> {
    let (clock, peak) = (StageClock::default(), Peak::default());
    let _watched = peak.watch();
    let tell = |event: Event| {
        peak.sample();
        watch.tell(event);
    };
    let watch = watch.told_by(&tell);

    // Everything that can be refused, including a concurrent compilation of the same artifact, is
    // refused before the first long read.
    let admitted = admit(options)?;
    let elastic = Elastic::of(options, admitted.source())?;
    let source = admitted.source().clone();
    executed::on_device(options, &source, watch, |device| {
        let admitted = (admitted, elastic.as_ref());
        compile_on(device, admitted, options, (&clock, &peak), watch)
    })
}

fn compile_on(
    device: &dyn Device,
    (admitted, elastic): (Admitted, Option<&Elastic>),
    options: &CompileOptions,
    (clock, peak): (&StageClock, &Peak),
    watch: Watch,
) -> Result<Report, CompileError> {
    let options = elastic.map_or(options, |elastic| &elastic.bases);
    let work = Work::open(&options.output, watch)?;
    let made = || -> Result<Named, CompileError> {
        let prepared = prepare(admitted, options, device, clock, watch);
        let prepared = prepared.map_err(|error| planes::of_whole(error, elastic))?;

        let depth_sink = match options.probe_layer {
            Some(layer) => DepthSinkRecord {
                layer,
                origin: Origin::Asked,
            },
            None => depth_sink(&prepared, device, watch)?,
        };

        let inputs = Inputs {
            source: &prepared.source,
            digest: prepared.digest,
            calibration: prepared.calibration.as_ref(),
            gradients: prepared.gradients.as_ref(),
            order: prepared.order.as_ref(),
            depth_sink,
            sections: &prepared.sections,
            measured: prepared.measured,
            tuned: prepared.wanted.tune > 0,
            to_be_refined: elastic.is_some(),
            device,
        };
        watch.tell(Event::Keeping(work.kept()));
        let mut chosen = match elastic {
            Some(elastic) => elastic.make(&prepared, &inputs, (&work, clock), watch)?,
            None => clock.during(Stage::Factorise, || {
                let plans = Plans {
                    at: &|ratio| prepared.plan_at(ratio),
                    start: prepared.start,
                    others: &|plan| prepared.others(plan),
                };
                choose::choose(&inputs, plans, prepared.wanted, &work, clock, watch)
            })?,
        };
        let plain = prepared.compared(&chosen.plan, chosen.built.bytes)?;
        let plain = clock.during(Stage::Factorise, || {
            choose::measure_plain(&inputs, &plain, prepared.wanted, &work, clock, watch)
        })?;
        if plain.is_empty() && options.goal.compare == Some(CompareArg::On) {
            chosen.notes.push(NOTHING_COMPARED.to_owned());
        }
        let with_source = if options.with_source {
            Some(clock.during(Stage::Seal, || {
                inputs.with_source(&chosen.built, &work, watch)
            })?)
        } else {
            None
        };
        watch.tell(Event::Sealing);
        source::check_unchanged(&prepared.source, prepared.digest, clock)?;
        let key = with_source.map_or(chosen.built.key, |made| made.key);
        let name = work.artifact(key).complete();
        let synced = clock.during(Stage::Seal, || {
            HtzWriter::publish(work.folder(), &name, &options.output, options.overwrite)
        })?;
        Ok(Named {
            prepared,
            chosen,
            plain,
            with_source,
            synced,
        })
    };
    let made = made();
    let Named {
        prepared,
        chosen,
        plain,
        with_source,
        synced,
    } = or_kept(work, made, watch)?;
    if let Err(error) = synced {
        let folder = disk::folder_of(&options.output).display();
        let said = format!(
            "{folder}: cannot be forced to the disk ({error}); the artifact is complete, but its name may be lost if the machine fails now"
        );
        watch.tell(Event::Warning(&said));
    }
    let calibration = prepared.calibration.as_ref();
    let calibration = calibration.map(|found| calibrated(found, &chosen));
    let foreseen = prepared.foreseen(&chosen.plan)?;
    let made = Made {
        digest: prepared.digest,
        calibration,
        chosen,
        plain,
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
fn or_kept<T>(work: Work, made: Result<T, CompileError>, watch: Watch) -> Result<T, CompileError> {
    let kept = match &made {
        Ok(_) | Err(CompileError::SourceChanged(_) | CompileError::Unit { .. }) => {
            drop(work);
            false
        }
        Err(_) => work.keep(),
    };
    if !kept {
        watch.tell(Event::Keeping(None));
    }
    made
}

/// Returns the layer at which the residual stream stops growing dimensionally, for depth probes; a
/// guess without calibration, or if there is no plateau.
fn depth_sink(
    prepared: &Prepared,
    device: &dyn Device,
    watch: Watch,
) -> Result<DepthSinkRecord, CompileError> {
    let layers = prepared.source.hyper.layers;
    let Some(calibration) = &prepared.calibration else {
        return Ok(DepthSinkRecord::guess(layers));
    };
    watch.tell(Event::Measuring(Measurement::Depth, layers));
    device.make_room();
    let of = (device.pool().threads(), device.algebra());
    let found = analyse::depth_sink(&prepared.source, calibration, of, watch)?;
    let measured = found.layer.map(|layer| DepthSinkRecord {
        layer,
        origin: Origin::Measured,
    });
    Ok(measured.unwrap_or_else(|| DepthSinkRecord::guess(layers)))
}

fn calibrated(found: &Calibration, chosen: &Chosen) -> Calibrated {
    let treatment = chosen.plan.treated(chosen.treatment, true);
    Calibrated::new(found, treatment.gauge, &chosen.built.treated)
}

/// Plans a compilation without writing anything, and returns its predicted size and time.
///
/// # Errors
/// Those of [`compile`] that occur before factorisation.
pub fn forecast(options: &CompileOptions, watch: Watch) -> Result<Forecast, CompileError> {
    let admitted = admit(options)?;
    let elastic = Elastic::of(options, admitted.source())?;
    let options = elastic.as_ref().map_or(options, |elastic| &elastic.bases);
    let source = admitted.source().clone();
    let prepared = executed::on_device(options, &source, watch, |device| {
        prepare(admitted, options, device, &StageClock::default(), watch)
    });
    let prepared = prepared.map_err(|error| planes::of_whole(error, elastic.as_ref()))?;
    let source = &prepared.source;
    let ratio = match &elastic {
        Some(elastic) => elastic.bases_at(&prepared),
        None => prepared.start,
    };
    let plan = prepared.plan_at(ratio)?;
    let record = layout::record(source, &plan);
    let limit = options.goal.limit;
    let limit = (!limit.is_none()).then(|| limit.to_string());
    let mut summary = Summary::new(source, &plan, &record, prepared.treatment.bias);
    if let Some(limit) = &limit {
        summary.decided_by(limit, plan.request());
    }
    let mut after = prepared.bytes(&plan)?;
    if let Some(elastic) = &elastic {
        let bases = bytes_for_people(after);
        after = elastic.expected_bytes(&prepared)?;
        summary.notes.push(format!(
            "the plan is of the bases, {bases}; what they lack is planned when they are made"
        ));
    }
    Ok(Forecast {
        source: name_of(&options.input),
        artifact: name_of(&options.output),
        bytes: BeforeAfter {
            before: source.size(),
            after,
        },
        with_source: options.with_source.then(|| source.tensor_bytes()),
        limit,
        free_bytes: prepared.free,
        peak_memory: prepared.estimate.peak_memory,
        seconds: prepared.estimate.seconds,
        stages: prepared.estimate.stages,
        threads: options.threads,
        summary,
    })
}

/// Finds the smallest plan whose artifact meets a limit. Candidates are written to a work folder
/// named after `scratch`.
///
/// # Errors
/// [`CompileError`].
pub fn search(
    source: &ModelFile,
    planned: &Planned,
    goal: Goal,
    device: &dyn Device,
    scratch: &Path,
    watch: Watch,
) -> Result<Chosen, CompileError> {
    let calibration = planned.calibration.as_ref();
    let made_from = planned.made_from.as_ref();
    let others = sized::others(source, &planned.plan, made_from, (calibration, goal.limit))?;
    let wanted = ChoiceRequest {
        plans: 1 + others.len(),
        treatment: prepare::treatment_of(&planned.plan, TreatmentRequest::default())?,
        goal,
        calibrated: calibration.is_some(),
        held_out: calibration.is_some_and(|found| found.held_out.is_some()),
        tune: 0,
    };
    let inputs = Inputs {
        source,
        digest: planned.digest.unwrap_or_else(|| source.digest()),
        calibration,
        gradients: planned.gradients.as_ref(),
        order: planned.order.as_ref(),
        depth_sink: DepthSinkRecord::guess(source.hyper.layers),
        sections: &[tokenizer(source)?],
        measured: wanted.measures(calibration),
        tuned: false,
        to_be_refined: false,
        device,
    };
    let work = Work::open(scratch, watch)?;
    let planner = |ratio| {
        plan_at(
            source,
            &planned.plan,
            planned.made_from.as_ref(),
            calibration,
            (ratio, goal.limit),
        )
    };
    watch.tell(Event::Keeping(work.kept()));
    let clock = StageClock::default();
    let plans = Plans {
        at: &planner,
        start: prepare::start(source, planned.made_from.as_ref(), calibration, goal.limit),
        others: &|plan| sized::others(source, plan, made_from, (calibration, goal.limit)),
    };
    let chosen = choose::choose(&inputs, plans, wanted, &work, &clock, watch);
    let mut chosen = or_kept(work, chosen.map_err(CompileError::from), watch)?;
    // The plan records the treatment that was measured, so that compiling it gives the same result.
    let Treatment {
        gauge,
        sink,
        bias,
        shrinkage: _,
    } = chosen.treatment;
    chosen.plan.set_treatment(TreatmentRequest {
        gauge: Some(gauge),
        sink: Some(sink),
        bias: Some(if bias { BiasArg::On } else { BiasArg::Off }),
        shrinkage: chosen.treatment.shrinks().map(ShrinkageArg::Part),
    });
    Ok(chosen)
}
