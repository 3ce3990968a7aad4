//! Quality of an artifact that was made without a calibration, on the shipped text.

use std::sync::Arc;

use htc_formats::htz::Digest;
use htc_formats::source::ModelFile;
use htc_loader::kv::KvType;

use super::{Selection, TrialError};
use crate::calibrate::windows::Windows;
use crate::calibrate::{self, PassError, shipped_text};
use crate::device;
use crate::event::Task;
use crate::measure::{self, Evaluation, Execution, ReferenceLogits};
use crate::options::DEFAULT_CONTEXT;
use crate::system::clock::Stage;

/// Number of windows.
pub const SHIPPED_WINDOWS: usize = 8;

/// Characters of text for a token of a window.
const MAX_TOKEN_CHARS: usize = 16;

impl Selection<'_> {
    /// Measures an artifact on windows of the shipped text, by the processor: the device of a
    /// compilation without a calibration has room for decompositions alone.
    pub fn measure_on_shipped_text(&self, key: Digest) -> Result<Evaluation, TrialError> {
        self.clock.time(Stage::Measure, || self.measure(key))
    }

    fn measure(&self, key: Digest) -> Result<Evaluation, TrialError> {
        let (builder, progress) = (&self.builder, self.builder.progress);
        let source = Arc::new(calibrate::bind(builder.source)?);
        let artifact = ModelFile::from_htz(&builder.work.artifact(key).open()?)?;
        let artifact = Arc::new(calibrate::bind(&artifact)?);
        let tokenizer = calibrate::tokenizer(&source)?;
        let context = DEFAULT_CONTEXT.min(builder.source.hyper.context);
        // Enough for the windows in any vocabulary; the rest would only be split.
        let most = SHIPPED_WINDOWS * context * MAX_TOKEN_CHARS;
        let text: String = shipped_text(|_| true).chars().take(most).collect();
        let windows = Windows::new(&tokenizer, &text, context, Some(SHIPPED_WINDOWS))?;
        progress.begin(Task::Quality, windows.count());
        let measured = device::run_on_cpu(builder.device.pool().threads(), |device| {
            measure::evaluate_windows(
                device,
                &artifact,
                Some((&source, &mut ReferenceLogits::unkept())),
                &windows,
                Execution::whole(KvType::F16),
                |_, _| progress.step_done(""),
            )
        });
        measured.map_err(PassError::into)
    }
}
