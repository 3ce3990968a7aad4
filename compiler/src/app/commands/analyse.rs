//! `htc analyse`.

use std::io;
use std::path::Path;

use super::progress::ProgressDisplay;
use super::{Failure, interrupted, plan, print_json};
use crate::analyse::{Analysis, AnalysisInput, analyse};
use crate::app::cli::AnalyseArgs;
use crate::app::interrupt::Interrupt;
use crate::device;
use crate::event::{Event, Progress};
use crate::options::OptionError;
use crate::pipeline::{self, CompileError};

pub(super) fn execute(args: &AnalyseArgs) -> Result<(), Failure> {
    let source = pipeline::open(&args.input)?;
    let calibration = Some(&args.calibration).filter(|options| !options.texts.is_empty());
    if calibration.is_none()
        && let Some(option) = args.calibration.first_given()
    {
        return Err(CompileError::from(OptionError::RequiresCalibration { option }).into());
    }
    let output = args.output.as_deref();
    let output = output.filter(|path| *path != Path::new("-"));
    if let Some(path) = output {
        plan::check_output(path, &source, calibration, args.force)?;
    }
    if let Some(options) = calibration {
        options.check(&source.hyper).map_err(CompileError::from)?;
    }
    let interrupt = Interrupt::install();
    let progress = ProgressDisplay::new(interrupt.clone());
    let threads = args.threads.count();
    let tell = |event: Event| progress.show(event);
    let watch = Progress::new(&tell, interrupt.cancel());
    let run = || -> Result<Analysis, CompileError> {
        watch.report(Event::Digest);
        let digest = source.digest();
        let found = calibration
            .map(|options| {
                device::run_on_cpu(threads, |device| {
                    pipeline::calibrate(&source, digest, options, device, watch)
                })
            })
            .transpose()?;
        let subject = AnalysisInput {
            source: &source,
            digest,
            calibration: found.as_ref(),
        };
        Ok(analyse(subject, threads, watch)?)
    };
    let analysed = run();
    progress.clear();
    let analysis = analysed.map_err(|error| interrupted(error, &interrupt))?;
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
    if args.json || (args.output.is_some() && output.is_none()) {
        print_json(&analysis)
    } else {
        Ok(())
    }
}
