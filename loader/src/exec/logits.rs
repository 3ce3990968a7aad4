//! Logits of the last batch, complete or selected by the device.

use htc_formats::model::Register;

use super::Session;
use crate::backend::Backend;
use crate::error::{ExecError, Result};
use crate::sampling::{LogitsRequest, SamplerInput};

impl<B: Backend> Session<B> {
    /// Reads `tokens` after those before; returns the logits `[vocabulary]` after the last.
    ///
    /// # Errors
    /// [`ExecError`] for a token outside the vocabulary, no tokens, or too many positions; the
    /// sequence is then unchanged.
    pub fn step(&mut self, tokens: &[u32]) -> Result<&[f32]> {
        self.read_all(tokens)?;
        self.last_logits()
    }

    /// As [`Session::step`], but returns only the logits or the token that a sampler requests
    /// ([`Sampler::logits_for_distribution`](crate::sampling::Sampler::logits_for_distribution),
    /// [`logits_for_sample`](crate::sampling::Sampler::logits_for_sample)), if the device can
    /// select them.
    ///
    /// # Errors
    /// As [`Session::step`].
    pub fn step_for(&mut self, tokens: &[u32], wanted: LogitsRequest) -> Result<SamplerInput<'_>> {
        self.read_all(tokens)?;
        self.last_logits_for(wanted)
    }

    fn read_all(&mut self, tokens: &[u32]) -> Result<()> {
        self.runner.check_tokens(tokens)?;
        self.check_context(tokens.len())?;
        self.rows = 0;
        self.read(tokens)
    }

    /// Returns logits `[end - start, vocabulary]` of rows of the last batch.
    ///
    /// # Errors
    /// [`ExecError::Rows`] if the last batch has no such rows.
    pub fn logits(&mut self, start: usize, end: usize) -> Result<&[f32]> {
        let numbers = self.compute_logits(start, end)?;
        self.runner.read_logits(numbers)
    }

    /// Computes [`Session::logits`] on the backend; returns their count.
    pub(super) fn compute_logits(&mut self, start: usize, end: usize) -> Result<usize> {
        let numbers = self.project_logits(start, end)?;
        self.settle()?;
        Ok(numbers)
    }

    fn project_logits(&mut self, start: usize, end: usize) -> Result<usize> {
        if start > end || end > self.rows {
            return Err(ExecError::Rows {
                start,
                end,
                rows: self.rows,
            });
        }
        self.runner.logits(Register::Normed, start..end)
    }

    /// Returns the logits `[vocabulary]` after the last token.
    ///
    /// # Errors
    /// [`ExecError::Rows`] if nothing was read.
    pub fn last_logits(&mut self) -> Result<&[f32]> {
        match self.rows {
            0 => Err(ExecError::Rows {
                start: 0,
                end: 1,
                rows: 0,
            }),
            rows => self.logits(rows - 1, rows),
        }
    }

    /// Returns the requested part of [`Session::last_logits`] if the device can select it, else all
    /// of them. For a small top-k, returns the candidates instead of a token, so that draws agree
    /// on all devices.
    ///
    /// # Errors
    /// As [`Session::last_logits`].
    pub fn last_logits_for(&mut self, wanted: LogitsRequest) -> Result<SamplerInput<'_>> {
        let Some(row) = self.rows.checked_sub(1) else {
            return self.last_logits().map(SamplerInput::All);
        };
        let numbers = self.project_logits(row, row + 1)?;
        let runner = &mut self.runner;
        let (backend, logits) = (&mut runner.backend, &runner.buffers.logits);
        let largest = match wanted {
            LogitsRequest::TopK(most) => most,
            LogitsRequest::Drawn(draw) => draw.top_k,
            LogitsRequest::All => 0,
        };
        let sought = match largest {
            0 => Ok(false),
            most => backend.begin_top_k(logits, numbers, most),
        };
        let drawn = match (&sought, wanted) {
            (Ok(false), LogitsRequest::Drawn(draw)) => backend.begin_draw(logits, numbers, &draw),
            _ => Ok(false),
        };
        // Earlier errors come first.
        self.settle()?;
        if sought? && let Some(found) = self.runner.backend.take_top_k()? {
            self.largest = found;
            return Ok(SamplerInput::TopK(&self.largest));
        }
        if drawn? && let Some(token) = self.runner.backend.drawn()? {
            return Ok(SamplerInput::Drawn(token));
        }
        self.runner.read_logits(numbers).map(SamplerInput::All)
    }
}
