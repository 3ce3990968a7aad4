//! Logits of a reference, kept for further evaluations on the same windows.

use std::ops::Range;
use std::sync::Arc;

use htc_formats::htz::Digest;
use htc_loader::Model;
use htc_loader::kv::KvOptions;

use crate::calibrate::PassError;
use crate::calibrate::windows::Windows;
use crate::device::{Device, Sequence};

use super::MAX_LOGITS;

/// Largest number of logits that are kept: 256 MiB.
const MAX_KEPT: usize = 1 << 26;

/// Logits of one reference model on the first windows of a text, as many as fit.
///
/// Candidates are measured on the same windows one after another, and half of the work is the
/// reference's. Which windows are kept depends on their number and length alone, and a kept window is
/// read in the reference's own batches, so that the logits do not depend on the candidate that was
/// measured first.
#[derive(Debug)]
pub struct ReferenceLogits {
    key: Option<Key>,
    logits: Vec<f32>,
    /// Logits of a window.
    of_window: usize,
    /// Number of windows that are kept.
    windows: usize,
    /// Largest number of logits.
    most: usize,
}

/// What logits depend on.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Key {
    windows: Digest,
    context: usize,
    kv: KvOptions,
    /// Address of the model, which lives as long as the logits.
    model: usize,
}

impl Default for ReferenceLogits {
    fn default() -> Self {
        ReferenceLogits::with_most(MAX_KEPT)
    }
}

impl ReferenceLogits {
    /// Creates logits that are not kept, for a single evaluation.
    pub fn unkept() -> Self {
        ReferenceLogits::with_most(0)
    }

    fn with_most(most: usize) -> Self {
        ReferenceLogits {
            key: None,
            logits: Vec::new(),
            of_window: 0,
            windows: 0,
            most,
        }
    }

    /// Forgets logits of another key, and prepares for `count` windows with `of_window` logits each.
    fn prepare(&mut self, key: Key, of_window: usize, count: usize) {
        if self.key == Some(key) {
            return;
        }
        *self = ReferenceLogits {
            key: Some(key),
            of_window,
            windows: kept_of(self.most, of_window).min(count),
            ..ReferenceLogits::with_most(self.most)
        };
    }

    fn keeps(&self, window: usize) -> bool {
        window < self.windows
    }

    /// Returns true if the logits of a window are there. Windows are kept in order.
    fn has(&self, window: usize) -> bool {
        self.keeps(window) && self.logits.len() >= (window + 1) * self.of_window
    }
}

/// A reference during an evaluation, executed on the windows whose logits are not kept.
pub(super) struct Reference<'d, 'k> {
    device: &'d dyn Device,
    model: &'k Arc<Model>,
    kv: KvOptions,
    context: usize,
    sequence: Option<Box<dyn Sequence + 'd>>,
    kept: &'k mut ReferenceLogits,
    window: usize,
}

impl<'d, 'k> Reference<'d, 'k> {
    pub fn new(
        device: &'d dyn Device,
        model: &'k Arc<Model>,
        kv: KvOptions,
        windows: &Windows,
        kept: &'k mut ReferenceLogits,
    ) -> Self {
        let context = windows.context();
        let key = Key {
            windows: windows.digest(),
            context,
            kv,
            model: Arc::as_ptr(model).addr(),
        };
        let of_window = context.saturating_sub(1) * model.hyper().vocabulary;
        kept.prepare(key, of_window, windows.count());
        Reference {
            device,
            model,
            kv,
            context,
            sequence: None,
            kept,
            window: 0,
        }
    }

    /// Returns the sequence, which is created when a window is not kept.
    fn sequence(&mut self) -> Result<&mut (dyn Sequence + 'd), PassError> {
        let sequence = match self.sequence.take() {
            Some(sequence) => sequence,
            None => self
                .device
                .sequence(self.model, self.context, &self.kv)
                .map_err(PassError::Reference)?,
        };
        Ok(self.sequence.insert(sequence).as_mut())
    }

    /// Begins a window of these tokens, and computes its logits if they are to be kept.
    pub fn begin(&mut self, window: usize, tokens: &[u32]) -> Result<(), PassError> {
        self.window = window;
        if self.kept.has(window) {
            return Ok(());
        }
        self.sequence()?.reset();
        if self.kept.keeps(window) {
            // What an interrupted window left.
            self.kept.logits.truncate(window * self.kept.of_window);
            self.keep(tokens)?;
        }
        Ok(())
    }

    /// Reads a window in the reference's own batches, and keeps its logits.
    fn keep(&mut self, tokens: &[u32]) -> Result<(), PassError> {
        let Some(sequence) = &mut self.sequence else {
            return Ok(());
        };
        let mut left = self.context.saturating_sub(1);
        for batch in tokens.chunks(sequence.batch()) {
            sequence.forward(batch).map_err(PassError::Reference)?;
            let rows = batch.len().min(left);
            let slab = (MAX_LOGITS / sequence.vocabulary()).max(1);
            for first in (0..rows).step_by(slab) {
                let logits = sequence.logits(first, rows.min(first + slab));
                let logits = logits.map_err(PassError::Reference)?;
                self.kept.logits.extend_from_slice(logits);
            }
            left -= rows;
        }
        Ok(())
    }

    /// Reads the next tokens of the window.
    pub fn forward(&mut self, tokens: &[u32]) -> Result<(), PassError> {
        if self.kept.keeps(self.window) {
            return Ok(());
        }
        let sequence = self.sequence()?;
        sequence.forward(tokens).map_err(PassError::Reference)
    }

    /// Returns the logits of rows of the last tokens read, which begin at position `start`.
    pub fn logits(&mut self, start: usize, rows: Range<usize>) -> Result<&[f32], PassError> {
        if self.kept.keeps(self.window) {
            let vocabulary = self.model.hyper().vocabulary;
            let first = self.window * self.kept.of_window + (start + rows.start) * vocabulary;
            return Ok(&self.kept.logits[first..first + rows.len() * vocabulary]);
        }
        let logits = self.sequence()?.logits(rows.start, rows.end);
        logits.map_err(PassError::Reference)
    }

    /// Returns the largest number of tokens of a call; `None` in a window that is kept.
    pub fn batch(&self) -> Option<usize> {
        let sequence = self.sequence.as_ref()?;
        (!self.kept.keeps(self.window)).then(|| sequence.batch())
    }
}

/// Returns the largest number of windows whose logits are kept.
pub(crate) fn kept_windows(context: usize, vocabulary: usize) -> usize {
    kept_of(
        MAX_KEPT,
        context.saturating_sub(1).saturating_mul(vocabulary),
    )
}

fn kept_of(most: usize, logits_of_window: usize) -> usize {
    most / logits_of_window.max(1)
}

/// Returns the bytes of the logits that are kept of `positions`.
pub(crate) fn kept_bytes(positions: u64, vocabulary: usize) -> u64 {
    4 * positions
        .saturating_mul(vocabulary as u64)
        .min(MAX_KEPT as u64)
}

#[cfg(test)]
mod tests;
