//! `htc analyse`.

use std::io;
use std::path::Path;

use super::progress::Progress;
use super::{Failure, plan, print_json};
use crate::analyse::{AnalyseError, Subject, analyse};
use crate::app::cli::AnalyseArgs;
use crate::app::interrupt;
use crate::pipeline::{self, CompileError, Event};

pub(super) fn execute(args: &AnalyseArgs) -> Result<(), Failure> {
    let source = pipeline::open(&args.input)?;
    let calibration = args.calibration.options();
    let output = args.output.as_deref();
    let output = output.filter(|path| *path != Path::new("-"));
    if let Some(path) = output {
        plan::check(path, &source, calibration.as_ref(), args.force)?;
    }
    if let Some(options) = &calibration {
        options.check(&source.hyper).map_err(CompileError::from)?;
    }
    interrupt::install();
    let progress = Progress::new();
    let threads = args.threads.count();
    let show = |event: Event| progress.show(event);
    let run = || {
        show(Event::Digest);
        let digest = source.digest();
        let found = calibration
            .as_ref()
            .map(|options| pipeline::calibrate(&source, digest, options, threads, show))
            .transpose()?;
        let texts = calibration.as_ref().map(|options| options.text.as_path());
        let subject = Subject {
            source: &source,
            digest,
            calibration: texts.zip(found.as_ref()),
        };
        analyse(subject, threads, show)
    };
    let analysed = run();
    progress.clear();
    let analysis = analysed.map_err(|error| match error {
        AnalyseError::Weights(error) => Failure::Compile(error),
        error => Failure::Analyse(error),
    })?;
    say!("{}", analysis.to_string().trim_end());
    if let Some(path) = output {
        serde_json::to_string_pretty(&analysis)
            .map_err(io::Error::from)
            .and_then(|text| plan::write(path, &format!("{text}\n"), args.force))
            .map_err(|source| Failure::Write {
                path: path.into(),
                source,
            })?;
    }
    match args.json || (args.output.is_some() && output.is_none()) {
        true => print_json(&analysis),
        false => Ok(()),
    }
}
