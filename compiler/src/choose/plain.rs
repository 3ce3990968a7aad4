//! Files of a single type for comparison with the artifact.

use std::cell::RefCell;

use htc_formats::htz::Digest;

use super::bench::CandidateEvaluator;
use super::{Selection, Trial, TrialError};
use crate::calibrate::windows::Windows;
use crate::calibrate::{self, PassError, shipped_text};
use crate::device::{self, Device};
use crate::event::Event;
use crate::make::{ArtifactBuilder, MakeError};
use crate::measure::{Evaluation, ReferenceLogits};
use crate::options::DEFAULT_CONTEXT;
use crate::plan::Plan;

/// Windows of the shipped text that measure what no other text measures.
pub const SHIPPED_WINDOWS: usize = 8;

/// Characters of text for a token of a window.
const MAX_TOKEN_CHARS: usize = 16;

impl Selection<'_> {
    /// Measures an artifact that was made without a calibration on windows of the shipped text, by the
    /// processor: the device of such a compilation has room for decompositions alone.
    pub fn measure_on_shipped_text(&self, key: Digest) -> Result<Evaluation, TrialError> {
        let threads = self.builder.device.pool().threads();
        let measured = device::run_on_cpu(threads, |device| {
            Ok::<_, PassError>(self.measure_on(device, key))
        });
        measured?
    }

    fn measure_on(&self, device: &dyn Device, key: Digest) -> Result<Evaluation, TrialError> {
        let source = self.builder.source;
        let once = RefCell::new(ReferenceLogits::unkept());
        let evaluator = CandidateEvaluator::new(Selection {
            builder: ArtifactBuilder {
                device,
                ..self.builder
            },
            reference: &once,
            ..*self
        })?;
        let tokenizer = calibrate::tokenizer(&evaluator.model)?;
        let context = DEFAULT_CONTEXT.min(source.hyper.context);
        // Enough for the windows in any vocabulary; the rest would only be split.
        let most = SHIPPED_WINDOWS * context * MAX_TOKEN_CHARS;
        let text: String = shipped_text(|_| true).chars().take(most).collect();
        let windows = Windows::new(&tokenizer, &text, context, Some(SHIPPED_WINDOWS))?;
        Ok(evaluator.evaluate(key, &windows)?.0)
    }

    /// Makes and measures the artifacts of single-type plans on the test split.
    pub fn measure_single_type_files(&self, plans: &[Plan]) -> Result<Vec<Trial>, TrialError> {
        let (Some(windows), [_, ..]) = (self.test_windows(), plans) else {
            return Ok(Vec::new());
        };
        let bench = CandidateEvaluator::new(Selection {
            builder: ArtifactBuilder {
                is_base: false,
                ..self.builder
            },
            ..*self
        })?;
        let treatment = self.request.treatment.resolve(self.request.calibrated)?;
        for plan in plans {
            match bench.measure(plan, treatment, &windows) {
                Ok(found) => bench.discard(&found),
                // Skip types that a matrix cannot have.
                Err(TrialError::Make(MakeError::Unit { error, .. })) => {
                    let dtype = plan.uniform_type().map(|dtype| dtype.to_string());
                    let dtype = dtype.unwrap_or_default();
                    let note = format!("not compared with {dtype}: {error}");
                    bench.progress().report(Event::Note(&note));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(bench.into_trials())
    }
}
