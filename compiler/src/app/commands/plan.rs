//! `htc plan`.

use std::io;
use std::path::{Path, PathBuf};

use htc_formats::escape::escape;
use htc_formats::source::ModelFile;

use super::progress::with_progress;
use super::{Failure, answered};
use crate::app::cli::{PlanArgs, TargetArgs};
use crate::app::terminal::StandardOutput;
use crate::bench::slope;
use crate::layout;
use crate::options::{
    ArtifactOptions, CalibrationOptions, CompileOptions, PlanSource, QualityLimit, TreatmentOptions,
};
use crate::pipeline::{self, CheckedSource, CompileError};
use crate::plan::{Method, Plan, json};
use crate::profile::reads_activations;
use crate::report::{Quality, Summary};
use crate::system::disk;
use crate::system::error::FileError;
use crate::system::show::file_name;

pub(super) fn execute(args: &PlanArgs) -> Result<(), Failure> {
    let request = &args.request;
    let target = args.target.machine(slope::read(&args.target.energy)?);
    let planning = request
        .plan_source(None, target)
        .map_err(CompileError::from)?;
    let calibration = request.calibration(None).map_err(CompileError::from)?;
    let source = pipeline::open(&args.input)?;
    let output = args
        .output
        .as_deref()
        .filter(|path| *path != Path::new("-"));
    if let Some(path) = output {
        check_output(path, &source, calibration.as_ref(), args.force)?;
        check_energy(path, &args.target)?;
    }
    let limit = request.limit(None);
    let calibration = calibration.filter(|_| depends_on_calibration(&planning, limit));
    let options = CompileOptions {
        input: args.input.clone(),
        // Nothing is compiled.
        output: PathBuf::new(),
        planning,
        calibration,
        treatment: TreatmentOptions::default(),
        limit,
        artifact: ArtifactOptions {
            tune: Some(0),
            ..ArtifactOptions::default()
        },
        threads: args.threads.count(),
        overwrite: false,
    };
    let source = CheckedSource::for_plan(source, &options)?;
    let planned = with_progress(|watch| pipeline::plan(&source, &options, watch))?;
    let (source, plan, chosen) = (source.file(), planned.plan(), planned.selected());
    // A plan made without calibration may be compiled with one.
    let requested = request
        .plan
        .treatment
        .or_else_from(plan.request().treatment);
    let treatment = requested.resolve(true).map_err(CompileError::from)?;
    treatment.check(plan).map_err(CompileError::from)?;
    let record = layout::plan_record(source, plan);
    let quality = chosen.zip(options.calibration.as_ref());
    let quality = quality.and_then(|(chosen, text)| Quality::from_chosen(chosen, text));
    let summary = Summary::new(source, plan, &record, treatment.bias);
    say!("{}", escape(&file_name(&args.input)));
    say!("{}", summary.to_string().trim_end());
    if let Some(chosen) = chosen {
        say!("{}", chosen.to_string().trim_end());
        for note in &chosen.notes {
            say!("  note: {note}");
        }
    }
    if let Some(quality) = &quality {
        say!("{quality}");
    }
    write_plan(plan, output, args.force)
}

/// A digest of the source would require reading every byte; without one, the plan fits any model of
/// its shapes.
fn write_plan(plan: &Plan, output: Option<&Path>, force: bool) -> Result<(), Failure> {
    let text = json::write(plan, None).map_err(io::Error::from);
    match output {
        None => answered(text.and_then(|text| StandardOutput::new().write_text(&text))),
        Some(path) => {
            let text = text.map_err(FileError::write(path))?;
            Ok(disk::write(path, &text, force)?)
        }
    }
}

fn depends_on_calibration(planning: &PlanSource, limit: QualityLimit) -> bool {
    let PlanSource::Compute { request, .. } = planning else {
        return true;
    };
    let allocator = request.allocation.allocator;
    let quantises = request.method == Method::Quantise;
    let looks = !limit.is_none() || quantises || reads_activations(allocator);
    if !looks {
        say!(
            "note: --calibration: the allocator {allocator} does not look at activations; the text is not read"
        );
    }
    looks
}

pub(super) fn check_output(
    path: &Path,
    source: &ModelFile,
    calibration: Option<&CalibrationOptions>,
    force: bool,
) -> Result<(), Failure> {
    let read = calibration.is_some_and(|options| options.is_text_file(path));
    if read || pipeline::is_source_file(source, path) {
        return Err(CompileError::SameFile(path.into()).into());
    }
    super::check_output(path, force)
}

pub(super) fn check_energy(path: &Path, args: &TargetArgs) -> Result<(), Failure> {
    if args
        .energy
        .iter()
        .any(|read| disk::is_same_file(read, path))
    {
        Err(CompileError::SameFile(path.into()).into())
    } else {
        Ok(())
    }
}
