//! `htc analyse`.

use std::path::Path;

use super::progress::with_progress;
use super::{Failure, plan, print_json, write_json};
use crate::analyse::{Analysis, AnalysisInput, analyse};
use crate::app::cli::{AnalyseArgs, Document};
use crate::device;
use crate::event::Task;
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
    let threads = args.threads.count();
    let analysis = with_progress(|watch| -> Result<Analysis, CompileError> {
        watch.begin(Task::Digest, 0);
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
    })?;
    say!("{}", analysis.to_string().trim_end());
    if let Some(path) = output {
        write_json(path, Document::Analysis, &analysis, args.force)?;
    }
    if args.json || (args.output.is_some() && output.is_none()) {
        print_json(Document::Analysis, &analysis)
    } else {
        Ok(())
    }
}
