//! Logits of a reference, kept for further evaluations on the same windows.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use htc_formats::htz::Digest;
use htc_loader::Model;
use htc_loader::kv::KvOptions;

use crate::calibrate::PassError;
use crate::calibrate::windows::Windows;
use crate::device::{Device, Sequence};

/// Largest number of logits that are kept: 256 MiB.
const MAX_KEPT: usize = 1 << 26;

/// Logits of one reference model on the first windows of a text, as many as fit.
///
/// Candidates are measured on the same windows one after another, and half of the work is the
/// reference's.
#[derive(Default)]
pub struct ReferenceLogits {
    /// Digest of the windows, and the batch with which they were read.
    of: Option<(Digest, usize)>,
    logits: Vec<f32>,
    /// Logits of a window.
    of_window: usize,
    capacity: usize,
}

impl fmt::Debug for ReferenceLogits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReferenceLogits")
            .field("of", &self.of)
            .field("logits", &self.logits.len())
            .finish_non_exhaustive()
    }
}

impl ReferenceLogits {
    /// Returns the batch of the reference, if any windows with this digest are kept.
    pub(super) fn batch(&self, windows: Digest) -> Option<usize> {
        let (of, batch) = self.of?;
        (of == windows && !self.logits.is_empty()).then_some(batch)
    }

    /// Forgets other windows, and prepares for `count` windows with `of_window` logits each.
    pub(super) fn prepare(
        &mut self,
        windows: Digest,
        batch: usize,
        of_window: usize,
        count: usize,
    ) {
        if self.of == Some((windows, batch)) {
            return;
        }
        let fit = (MAX_KEPT / of_window.max(1)).min(count);
        *self = ReferenceLogits {
            of: Some((windows, batch)),
            logits: Vec::with_capacity(fit * of_window),
            of_window,
            capacity: fit * of_window,
        };
    }

    /// Returns the logits of a window, if kept.
    pub(super) fn window(&self, index: usize) -> Option<&[f32]> {
        let start = index.checked_mul(self.of_window)?;
        self.logits
            .get(start..start.checked_add(self.of_window)?)
            .filter(|logits| !logits.is_empty())
    }

    /// Keeps the next logits of a window if all of its logits fit and those before it are kept.
    pub(super) fn keep(&mut self, window: usize, first: usize, logits: &[f32]) {
        let at = window * self.of_window + first;
        if at == self.logits.len() && (window + 1) * self.of_window <= self.capacity {
            self.logits.extend_from_slice(logits);
        }
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
    /// Positions of a call.
    pub batch: usize,
}

impl<'d, 'k> Reference<'d, 'k> {
    pub fn new(
        device: &'d dyn Device,
        model: &'k Arc<Model>,
        kv: KvOptions,
        windows: &Windows,
        kept: &'k mut ReferenceLogits,
    ) -> Result<Self, PassError> {
        let (context, digest) = (windows.context(), windows.digest());
        let sequence = || {
            device
                .sequence(model, context, &kv)
                .map_err(PassError::Reference)
        };
        let (sequence, batch) = match kept.batch(digest) {
            Some(batch) => (None, batch),
            None => {
                let made = sequence()?;
                let batch = made.batch();
                (Some(made), batch)
            }
        };
        let of_window = context.saturating_sub(1) * model.hyper().vocabulary;
        kept.prepare(digest, batch, of_window, windows.count());
        Ok(Reference {
            device,
            model,
            kv,
            context,
            sequence,
            kept,
            window: 0,
            batch,
        })
    }

    /// Begins a window.
    pub fn begin(&mut self, window: usize) -> Result<(), PassError> {
        self.window = window;
        if self.kept.window(window).is_some() {
            return Ok(());
        }
        if let Some(sequence) = &mut self.sequence {
            sequence.reset();
            return Ok(());
        }
        let made = self.device.sequence(self.model, self.context, &self.kv);
        self.sequence = Some(made.map_err(PassError::Reference)?);
        Ok(())
    }

    /// Reads the next tokens of the window.
    pub fn forward(&mut self, tokens: &[u32]) -> Result<(), PassError> {
        match &mut self.sequence {
            Some(sequence) if self.kept.window(self.window).is_none() => {
                sequence.forward(tokens).map_err(PassError::Reference)
            }
            _ => Ok(()),
        }
    }

    /// Returns the logits of rows of the last tokens read, which begin at position `start`.
    pub fn logits(&mut self, start: usize, rows: Range<usize>) -> Result<&[f32], PassError> {
        let vocabulary = self.model.hyper().vocabulary;
        let first = (start + rows.start) * vocabulary;
        let numbers = first..first + rows.len() * vocabulary;
        if self.kept.window(self.window).is_none()
            && let Some(sequence) = &mut self.sequence
        {
            let logits = sequence.logits(rows.start, rows.end);
            let logits = logits.map_err(PassError::Reference)?;
            self.kept.keep(self.window, first, logits);
            return Ok(logits);
        }
        let kept = self.kept.window(self.window);
        Ok(kept.and_then(|kept| kept.get(numbers)).unwrap_or_default())
    }
}

/// Returns the bytes of the logits that are kept of `positions`.
pub(crate) fn kept_bytes(positions: u64, vocabulary: usize) -> u64 {
    4 * positions
        .saturating_mul(vocabulary as u64)
        .min(MAX_KEPT as u64)
}

#[cfg(test)]
mod tests;
