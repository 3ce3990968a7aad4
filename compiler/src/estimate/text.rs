//! Size of the texts of a calibration.

use std::fs::{self, Metadata};
use std::path::Path;

use htc_formats::model::HyperParameters;

use crate::calibrate::windows::{HeldOut, MAX_HELD_OUT, split_counts};
use crate::calibrate::{Calibration, shipped_text};
use crate::options::CalibrationOptions;

/// Assumed bytes of a token, on average over a text.
const BYTES_PER_TOKEN: u64 = 3;

/// Size of the texts of a calibration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextSize {
    /// Tokens of a window.
    pub context: usize,
    /// Tokens of all texts.
    pub tokens: usize,
    /// Number of held-out windows.
    pub held_out: usize,
}

impl TextSize {
    /// Returns the size of texts that were read.
    pub fn of(calibration: &Calibration) -> TextSize {
        let held_out = calibration.held_out.as_ref();
        TextSize {
            context: calibration.context,
            tokens: calibration.tokens(),
            held_out: held_out.map_or(0, HeldOut::count),
        }
    }

    /// Predicts the size from the lengths of the files.
    pub fn predict(options: &CalibrationOptions, hyper: &HyperParameters) -> TextSize {
        let context = options.window_size(hyper.context).max(1);
        let most = options.max_tokens() / context;
        let (mut windows, mut held_out) = (0, 0);
        for text in &options.texts {
            let count = match text.source.file() {
                Some(path) => windows_of_file(path, context),
                None => windows_of(shipped_text(|_| true).len() as u64, context),
            };
            if options.held_out.is_some() {
                windows += count.min(most);
            } else {
                let (first, held) = split_counts(count, most);
                windows += first;
                held_out += held;
            }
        }
        if let Some(path) = &options.held_out {
            held_out = windows_of_file(path, context).min(MAX_HELD_OUT);
        }
        TextSize {
            context,
            tokens: windows * context,
            held_out,
        }
    }

    /// Returns the tokens of all held-out windows.
    pub fn held_out_tokens(self) -> usize {
        self.held_out * self.context
    }

    /// Returns the number of windows of all texts.
    pub fn windows(self) -> usize {
        self.tokens / self.context.max(1)
    }
}

/// Returns the windows that a file has room for; a pipe may have any number.
fn windows_of_file(path: &Path, context: usize) -> usize {
    let file = fs::metadata(path).ok().filter(Metadata::is_file);
    file.map_or(usize::MAX, |file| windows_of(file.len(), context))
}

fn windows_of(bytes: u64, context: usize) -> usize {
    ((bytes / BYTES_PER_TOKEN) as usize / context).max(1)
}

#[cfg(test)]
mod tests;
