//! `htc plan`.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use htc_formats::escape::escaped;
use htc_formats::htz::Digest;
use htc_formats::source::ModelFile;

use super::progress::Progress;
use super::{Failure, ignore_closed_pipe, interrupted};
use crate::app::cli::{PlanArgs, PlanningArgs};
use crate::app::interrupt::Interrupt;
use crate::app::terminal::Output;
use crate::bench::slope;
use crate::calibrate;
use crate::device;
use crate::event::{Event, Watch};
use crate::layout;
use crate::pipeline::{self, CompileError};
use crate::plan::{Method, Plan, json};
use crate::profile::reads_activations;
use crate::report::{Quality, Summary};
use crate::request::{CalibrationOptions, Goal, Planning, Wishes};
use crate::system::clock::StageClock;
use crate::system::disk;
use crate::system::show::name_of;

pub(super) fn execute(args: &PlanArgs) -> Result<(), Failure> {
    let asked = args.treatment.asked();
    let wishes = args.planning.wishes(&args.size, asked);
    let calibration = args.calibration.options_of(&wishes, &args.cache);
    if calibration.is_none() {
        let option = args.calibration.first_given(&args.cache);
        if let Some(option) = option.or(args.goal.first_given()) {
            return Err(Failure::NeedsText { option });
        }
    }
    let planning = planning(&args.planning, &wishes, calibration.is_some())?;
    let source = pipeline::open(&args.input)?;
    let output = args
        .output
        .as_deref()
        .filter(|path| *path != Path::new("-"));
    if let Some(path) = output {
        check(path, &source, calibration.as_ref(), args.force)?;
        check_energy(path, &args.planning)?;
    }
    let interrupt = Interrupt::install();
    let progress = Progress::new(interrupt.clone());
    let (tell, clock) = (|event: Event| progress.show(event), StageClock::default());
    let watch = Watch::new(&tell, interrupt.cancel());
    let failed = |error| interrupted(error, &interrupt);
    let goal = args.goal.goal(&args.treatment);
    let goal = goal.or_balanced(&wishes);
    let calibration = calibration.filter(|_| looks_at_text(&planning, goal));
    let threads = args.threads.count();
    let planned = device::on_processor(threads, |device| {
        let calibration = calibration.as_ref();
        pipeline::plan(&source, &planning, calibration, device, &clock, watch)
    });
    progress.clear();
    let planned = planned.map_err(failed)?;
    let mut chosen = None;
    let mut quality = None;
    if let Some(options) = calibration.as_ref().filter(|_| !goal.limit.is_none()) {
        let cache = calibrate::cache_folder(options).map_err(CompileError::from)?;
        let scratch = cache.join(format!("search-{}", scratch_name(&args.input)));
        let found = device::on_processor(threads, |device| {
            pipeline::search(&source, &planned, goal, device, &scratch, watch)
        });
        progress.clear();
        let found = found.map_err(failed)?;
        quality = Quality::of(&found, options);
        chosen = Some(found);
    }
    let plan = chosen.as_ref().map_or(&planned.plan, |found| &found.plan);
    // A plan made without calibration may be compiled with one.
    let asked = asked.or(plan.request().treatment);
    let treatment = asked.resolve(true).map_err(CompileError::from)?;
    treatment.check(plan).map_err(CompileError::from)?;
    let record = layout::record(&source, plan);
    let summary = Summary::new(&source, plan, &record, treatment.bias);
    say!("{}", escaped(&name_of(&args.input)));
    say!("{}", summary.to_string().trim_end());
    if let Some(chosen) = &chosen {
        say!("{}", chosen.to_string().trim_end());
        for note in &chosen.notes {
            say!("  note: {note}");
        }
    }
    if let Some(quality) = &quality {
        say!("{quality}");
    }
    deliver(plan, output, args.force)
}

/// Writes a plan. It has no digest of the source, which would require reading every byte; such a
/// plan fits any model of its shapes.
fn deliver(plan: &Plan, output: Option<&Path>, force: bool) -> Result<(), Failure> {
    let text = json::write(plan, None).map_err(io::Error::from);
    match output {
        None => text
            .and_then(|text| Output::new().text(&text))
            .or_else(ignore_closed_pipe)
            .map_err(Failure::Output),
        Some(path) => text
            .and_then(|text| write(path, &text, force))
            .map_err(|source| Failure::Write {
                path: path.into(),
                source,
            }),
    }
}

fn looks_at_text(planning: &Planning, goal: Goal) -> bool {
    let Planning::Make { request, .. } = planning else {
        return true;
    };
    let allocator = request.allocation.allocator;
    let quantises = request.method == Method::Quantise;
    let looks = !goal.limit.is_none() || quantises || reads_activations(allocator);
    if !looks {
        say!(
            "note: --calibration: the allocator {allocator} does not look at activations; the text is not read"
        );
    }
    looks
}

fn scratch_name(input: &Path) -> String {
    let place = fs::canonicalize(input).unwrap_or_else(|_| input.to_owned());
    Digest::of(place.as_os_str().as_encoded_bytes()).to_string()
}

pub(super) fn planning(
    args: &PlanningArgs,
    wishes: &Wishes,
    calibrated: bool,
) -> Result<Planning, Failure> {
    wishes.check().map_err(CompileError::from)?;
    match args.unread() {
        Some((option, reader)) => Err(Failure::Unread {
            option,
            reader,
            chosen: wishes.allocator(calibrated),
        }),
        None => Ok(Planning::Make {
            request: wishes.request(calibrated),
            target: args.target(slope::read(&args.energy)?),
        }),
    }
}

pub(super) fn check(
    path: &Path,
    source: &ModelFile,
    calibration: Option<&CalibrationOptions>,
    force: bool,
) -> Result<(), Failure> {
    let read = calibration.is_some_and(|options| options.reads(path));
    if read || pipeline::is_of_source(source, path) {
        return Err(CompileError::SameFile(path.into()).into());
    }
    if !force && path.symlink_metadata().is_ok() {
        return Err(Failure::PlanExists(path.into()));
    }
    disk::check(path).map_err(|source| Failure::Write {
        path: path.into(),
        source,
    })
}

pub(super) fn check_energy(path: &Path, args: &PlanningArgs) -> Result<(), Failure> {
    if args.energy.iter().any(|read| disk::same_place(read, path)) {
        Err(CompileError::SameFile(path.into()).into())
    } else {
        Ok(())
    }
}

pub(super) fn write(path: &Path, text: &str, force: bool) -> io::Result<()> {
    disk::write(path, force, |to| to.write_all(text.as_bytes()))
}
