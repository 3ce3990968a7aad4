//! `htc compile`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use htc_formats::source::ModelFile;
use indicatif::{ProgressBar, ProgressStyle};

use super::{Failure, bounded, print_json};
use crate::calibrate;
use crate::cli::CompileArgs;
use crate::interrupt;
use crate::pipeline::{self, Event, Options};
use crate::plan::allocate::Allocation;
use crate::plan::{Budget, Method, Request};
use crate::report::Report;

/// Parameters after over before where neither a rank nor a ratio is given.
const DEFAULT_RATIO: f64 = 0.9;

pub(super) fn execute(args: &CompileArgs) -> Result<(), Failure> {
    let method = Method::from(args.method);
    let mut slots = args.slots.clone();
    if slots.is_empty() {
        slots = method.default_slots().to_vec();
    }
    slots.sort();
    slots.dedup();
    let budget = match (args.rank, args.ratio) {
        (Some(rank), _) => Budget::from(rank),
        (None, ratio) => Budget::Ratio(ratio.unwrap_or(DEFAULT_RATIO)),
    };
    let options = Options {
        input: args.input.clone(),
        output: args.output.clone(),
        request: Request {
            method,
            budget,
            allocation: Allocation::default(),
            slots,
            factor_type: args.factor_type,
        },
        calibration: args.calibration.options(),
        gauge: args.calibration.gauge(),
        threads: args.threads.count(),
        overwrite: args.force,
    };
    if let Some(path) = args.report.as_deref().filter(|p| !is_standard_output(p)) {
        check_report_path(path, &options)?;
    }
    interrupt::install();
    let bar = ProgressBar::no_length();
    bar.set_style(style("{spinner} {elapsed_precise} {msg}"));
    if !bar.is_hidden() {
        // A large slot takes a while: the clock shows that work goes on.
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    let report = pipeline::compile(&options, |event| match event {
        Event::Digest => bar.set_message("reading the source"),
        Event::Calibrate(event) => show_calibration(&bar, event),
        Event::Planned(steps) => {
            bar.set_length(steps as u64);
            bar.set_position(0);
            bar.set_style(style("{bar:30} {pos}/{len} {elapsed_precise} {msg}"));
        }
        Event::Done(what) => {
            bar.inc(1);
            bar.set_message(what.to_owned());
        }
        Event::Sealing => bar.set_message("sealing"),
    });
    bar.finish_and_clear();
    let report = report?;
    say!("{report}");
    match &args.report {
        None => Ok(()),
        Some(path) if is_standard_output(path) => print_json(&report),
        Some(path) => write_report(path, &report),
    }
}

fn show_calibration(bar: &ProgressBar, event: calibrate::Event) {
    match event {
        calibrate::Event::Begin {
            windows,
            layers,
            found,
        } => {
            bar.set_length((windows * layers) as u64);
            bar.set_position((windows * found) as u64);
            bar.set_style(style("{bar:30} {percent} % {elapsed_precise} {msg}"));
            bar.set_message("calibrating");
        }
        calibrate::Event::Window => bar.inc(1),
        calibrate::Event::Warning(said) => bar.suspend(|| say!("warning: {}", bounded(said))),
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn is_standard_output(path: &Path) -> bool {
    path == Path::new("json") || path == Path::new("-")
}

/// A slip of the hand must not cost the model.
fn check_report_path(path: &Path, options: &Options) -> Result<(), Failure> {
    // A model that does not open is told of when it is compiled.
    let of_model = match ModelFile::open(&options.input) {
        Ok(source) => pipeline::is_of_source(&source, path),
        Err(_) => pipeline::same_place(&options.input, path),
    };
    let what = if of_model {
        "a file of the model"
    } else if pipeline::same_place(&options.output, path) {
        "the artifact itself"
    } else {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
        return match folder.map(fs::metadata) {
            Some(Err(source)) => Err(Failure::Write {
                path: path.into(),
                source,
            }),
            _ => Ok(()),
        };
    };
    Err(Failure::ReportPath {
        path: path.into(),
        what,
    })
}

fn write_report(path: &Path, report: &Report) -> Result<(), Failure> {
    let write = || -> std::io::Result<()> {
        let json = serde_json::to_string_pretty(report).map_err(std::io::Error::from)?;
        fs::write(path, json + "\n")
    };
    write().map_err(|source| Failure::Write {
        path: path.into(),
        source,
    })
}
