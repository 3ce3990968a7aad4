//! Logits of what was read: of rows of the last batch, and as many as a sampler wants.

use htc_formats::model::Register;

use super::{Session, project};
use crate::backend::Backend;
use crate::error::ExecError;
use crate::sampling::{LogitsRequest, SamplerInput};

impl<B: Backend> Session<B> {
    /// Reads `tokens`, any number of them, after what was read before: the logits `[vocabulary]`
    /// behind the last.
    ///
    /// # Errors
    /// [`ExecError`] for a token outside the vocabulary, no token at all, or more positions than
    /// the session may have; the sequence is then as before.
    pub fn step(&mut self, tokens: &[u32]) -> Result<&[f32], ExecError> {
        self.read_all(tokens)?;
        self.last_logits()
    }

    /// As [`Session::step`], with no more of the logits than a sampler wants ([`Sampler::logits_for_distribution`](crate::sampling::Sampler::logits_for_distribution),
    /// [`wants_one`](crate::sampling::Sampler::logits_for_sample)), where the device can choose them, or the token itself.
    ///
    /// # Errors
    /// As [`Session::step`].
    pub fn step_for(
        &mut self,
        tokens: &[u32],
        wanted: LogitsRequest,
    ) -> Result<SamplerInput<'_>, ExecError> {
        self.read_all(tokens)?;
        self.last_logits_for(wanted)
    }

    /// Reads any number of tokens; none of them where one cannot be read.
    fn read_all(&mut self, tokens: &[u32]) -> Result<(), ExecError> {
        self.check_tokens(tokens)?;
        self.check_context(tokens.len())?;
        self.rows = 0;
        self.read(tokens)
    }

    /// Logits `[end - start, vocabulary]` of rows of the last batch.
    ///
    /// # Errors
    /// [`ExecError::Rows`] where the last batch does not have them.
    pub fn logits(&mut self, start: usize, end: usize) -> Result<&[f32], ExecError> {
        let numbers = self.compute_logits(start, end)?;
        self.backend
            .read(&self.buffers.logits, numbers, &mut self.room)
    }

    /// As [`Session::logits`], which stay where they are: how many numbers they are.
    pub(super) fn compute_logits(&mut self, start: usize, end: usize) -> Result<usize, ExecError> {
        let numbers = self.project_logits(start, end)?;
        self.settle()?;
        Ok(numbers)
    }

    /// The same, without asking whether anything went wrong on the way.
    fn project_logits(&mut self, start: usize, end: usize) -> Result<usize, ExecError> {
        if start > end || end > self.rows {
            return Err(ExecError::Rows {
                start,
                end,
                rows: self.rows,
            });
        }
        let hyper = self.model.hyper();
        let numbers = (end - start) * hyper.vocabulary;
        let (backend, b) = (&mut self.backend, &mut self.buffers);
        backend.resize(&mut b.logits, numbers)?;
        let (head, cap) = (self.model.head(), hyper.forward.logit_softcap);
        let room = [&mut b.inner, &mut b.extra];
        let how = (cap, self.setting);
        project::logits(
            backend,
            head,
            start..end,
            &b.registers[Register::Normed as usize],
            how,
            &mut b.logits,
            room,
        )?;
        Ok(numbers)
    }

    /// Logits `[vocabulary]` after the last token read.
    ///
    /// # Errors
    /// [`ExecError::Rows`] where nothing was read.
    pub fn last_logits(&mut self) -> Result<&[f32], ExecError> {
        match self.rows {
            0 => Err(ExecError::Rows {
                start: 0,
                end: 1,
                rows: 0,
            }),
            rows => self.logits(rows - 1, rows),
        }
    }

    /// As [`Session::last_logits`], with what of them is wanted where the device can choose it, else all of them. Of few enough that are
    /// drawn from it gives these, as what is drawn is then the same everywhere.
    ///
    /// # Errors
    /// As [`Session::last_logits`].
    pub fn last_logits_for(
        &mut self,
        wanted: LogitsRequest,
    ) -> Result<SamplerInput<'_>, ExecError> {
        let Some(row) = self.rows.checked_sub(1) else {
            return self.last_logits().map(SamplerInput::All);
        };
        let numbers = self.project_logits(row, row + 1)?;
        let (backend, logits) = (&mut self.backend, &self.buffers.logits);
        let largest = match wanted {
            LogitsRequest::TopK(most) => most,
            LogitsRequest::Drawn(draw) => draw.top_k,
            LogitsRequest::All => 0,
        };
        let sought = match largest {
            0 => Ok(false),
            most => backend.seek_largest(logits, numbers, most),
        };
        let drawn = match (&sought, wanted) {
            (Ok(false), LogitsRequest::Drawn(draw)) => backend.begin_draw(logits, numbers, &draw),
            _ => Ok(false),
        };
        // What was wrong before comes first.
        self.settle()?;
        if sought? && let Some(found) = self.backend.found_largest()? {
            self.largest = found;
            return Ok(SamplerInput::TopK(&self.largest));
        }
        if drawn? && let Some(token) = self.backend.drawn()? {
            return Ok(SamplerInput::Drawn(token));
        }
        let (logits, room) = (&self.buffers.logits, &mut self.room);
        self.backend
            .read(logits, numbers, room)
            .map(SamplerInput::All)
    }
}
