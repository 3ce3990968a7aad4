//! `htc compile`.

use std::fs;
use std::path::Path;

use htc_formats::source::ModelFile;
use serde::Serialize;

use super::plan::check_energy;
use super::progress::show_progress;
use super::{Failure, print_json, write_json};
use crate::app::cli::{CompileArgs, Document, VerbosityArgs};
use crate::app::terminal;
use crate::bench::slope;
use crate::options::{CompileOptions, Method};
use crate::pipeline::{self, CompileError};
use crate::report::Report;
use crate::system::disk;

pub(super) fn execute(args: &CompileArgs) -> Result<(), Failure> {
    let target = args.target.machine(slope::read(&args.target.energy)?);
    let options = args.options(target).map_err(CompileError::from)?;
    if let Some(option) = args.request.limits.first_given()
        && args.dry_run
        && args.request.plan.method() != Method::Quantise
    {
        return Err(Failure::DrySearch { option });
    }
    check_energy(&options.output, &args.target)?;
    if let Some(path) = args.report.as_deref().filter(|p| !is_standard_output(p)) {
        check_report_path(path, &options)?;
        check_energy(path, &args.target)?;
    }
    if args.dry_run {
        let forecast = show_progress(args.verbosity.quiet, |watch| {
            pipeline::forecast(&options, watch)
        })?;
        if !args.verbosity.quiet {
            say!("{forecast}");
        }
        return write_record(args, Document::Forecast, &forecast);
    }
    let report = show_progress(args.verbosity.quiet, |watch| {
        pipeline::compile(&options, watch)
    })?;
    print_result(args.verbosity, &report, &options.output);
    write_record(args, Document::Report, &report)
}

fn print_result(verbosity: VerbosityArgs, report: &Report, output: &Path) {
    if verbosity.verbose {
        say!("{report}");
    } else if !verbosity.quiet {
        say!("{}", report.brief());
    }
    match report.warning() {
        Some(warning) => say!("htc: warning: {warning}"),
        _ if verbosity.quiet => {}
        _ => say!(
            "  next           htc run {} -p TEXT",
            terminal::display_path(output)
        ),
    }
}

fn write_record<R: Serialize>(
    args: &CompileArgs,
    document: Document,
    report: &R,
) -> Result<(), Failure> {
    match &args.report {
        None if args.json => print_json(document, report),
        None => Ok(()),
        Some(path) if is_standard_output(path) => print_json(document, report),
        Some(path) => write_report(path, document, report, args.force),
    }
}

fn is_standard_output(path: &Path) -> bool {
    path == Path::new("json") || path == Path::new("-")
}

fn check_report_path(path: &Path, options: &CompileOptions) -> Result<(), Failure> {
    // Errors of the model are reported by the compilation.
    let of_model = match ModelFile::open(&options.input) {
        Ok(source) => pipeline::is_source_file(&source, path),
        Err(_) => disk::is_same_file(&options.input, path),
    };
    let what = if of_model {
        "a file of the model"
    } else if disk::is_same_file(&options.output, path) {
        "the artifact itself"
    } else if options.is_input(path) {
        "the plan or the text that is read"
    } else {
        if path.is_dir() {
            return Err(Failure::ReportPath {
                path: path.into(),
                what: "a folder",
            });
        }
        if path.is_file() && !options.overwrite {
            return Err(Failure::ReportExists(path.into()));
        }
        return Ok(disk::check_writable(path)?);
    };
    Err(Failure::ReportPath {
        path: path.into(),
        what,
    })
}

fn write_report(
    path: &Path,
    document: Document,
    report: &impl Serialize,
    force: bool,
) -> Result<(), Failure> {
    // Special files such as devices are written to, not replaced.
    let replace = force || fs::metadata(path).is_ok_and(|found| !found.is_file());
    write_json(path, document, report, replace)
}
