//! `htc plan`.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use htc_formats::source::ModelFile;

use super::progress::Progress;
use super::{Failure, ignore_closed_pipe};
use crate::cli::{PlanArgs, PlanningArgs};
use crate::disk::{self, folder_of};
use crate::evidence::reads_activations;
use crate::interrupt;
use crate::pipeline::{self, Planning};
use crate::plan::json;
use crate::report::{Summary, name_of};
use crate::seal;

pub(super) fn execute(args: &PlanArgs) -> Result<(), Failure> {
    let planning = planning(&args.planning, args.calibration.is_given())?;
    let source = pipeline::open(&args.input)?;
    let output = args
        .output
        .as_deref()
        .filter(|path| *path != Path::new("-"));
    if let Some(path) = output {
        check(path, &source, args.force)?;
    }
    interrupt::install();
    let progress = Progress::new();
    let mut calibration = args.calibration.options();
    if let Planning::Make { request, .. } = &planning
        && calibration.is_some()
        && !reads_activations(request.allocation.allocator)
    {
        let allocator = request.allocation.allocator;
        say!(
            "note: --calibration: the allocator {allocator} does not look at activations; the text is not read"
        );
        calibration = None;
    }
    let threads = args.threads.count();
    let planned = pipeline::plan(&source, &planning, calibration.as_ref(), threads, |event| {
        progress.show(event);
    });
    progress.clear();
    let plan = planned?.plan;
    let record = seal::record(&source, &plan);
    say!("{}", name_of(&args.input));
    say!(
        "{}",
        Summary::new(&source, &plan, &record).to_string().trim_end()
    );
    // The digest of the source would take a look at every byte of it; without one the plan is taken
    // for any model that it fits.
    let text = json::write(&plan, None).map_err(io::Error::from);
    match output {
        None => text
            .and_then(|text| io::stdout().lock().write_all(text.as_bytes()))
            .or_else(ignore_closed_pipe)
            .map_err(Failure::Output),
        Some(path) => text
            .and_then(|text| write(path, &text, args.force))
            .map_err(|source| Failure::Write {
                path: path.into(),
                source,
            }),
    }
}

/// Where the plan comes from when the options say it.
pub(super) fn planning(args: &PlanningArgs, calibrated: bool) -> Result<Planning, Failure> {
    match args.unread() {
        Some((option, reader)) => Err(Failure::Unread {
            option,
            reader,
            chosen: args.allocator(calibrated),
        }),
        None => Ok(Planning::Make {
            request: args.request(calibrated),
            target: args.target(),
        }),
    }
}

/// What would be lost is found before the work is done.
pub(super) fn check(path: &Path, source: &ModelFile, force: bool) -> Result<(), Failure> {
    if pipeline::is_of_source(source, path) {
        return Err(pipeline::CompileError::SameFile(path.into()).into());
    }
    if !force && path.symlink_metadata().is_ok() {
        return Err(Failure::PlanExists(path.into()));
    }
    match fs::metadata(folder_of(path)) {
        Ok(_) => Ok(()),
        Err(source) => Err(Failure::Write {
            path: path.into(),
            source,
        }),
    }
}

/// Writes a text to a file that is new, or complete in the place of the old one.
pub(super) fn write(path: &Path, text: &str, force: bool) -> io::Result<()> {
    if force {
        return disk::replace(path, |to| to.write_all(text.as_bytes()));
    }
    let mut to = OpenOptions::new().write(true).create_new(true).open(path)?;
    to.write_all(text.as_bytes())
}
