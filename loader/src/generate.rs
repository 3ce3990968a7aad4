//! Reads a prompt and writes text, token by token.
//!
//! A [`Generator`] is moved by its caller, one token a [`step`](Generator::step) or as an iterator;
//! [`generate`] is the loop for those who only want the text.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::backend::{Backend, Cpu};
use crate::error::ExecError;
use crate::exec::Session;
use crate::sampling::{Sampler, SamplingError};
use crate::speculate::{SpeculateError, Speculator};
use crate::tokenizer::{StreamDecoder, Tokenizer};

/// When to stop.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Limits {
    /// Tokens to write at most.
    pub tokens: Option<usize>,
    /// Go on after an end-of-sequence token.
    pub ignore_end: bool,
    /// What happens when all positions are used.
    pub on_full: OnFull,
}

/// What happens when the positions that the model was trained for are used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// Writing [stops](Stop::Context).
    #[default]
    Stop,
    /// The sequence begins anew with its first tokens, which attention leans on (Xiao et al. 2024), and its last half, which
    /// are read again at their new positions: that takes as long as a prompt of this length. A session that had read
    /// something in front of the prompt stops, for nobody knows what.
    Slide,
}

/// First tokens that a sequence keeps when it slides.
const SLIDE_START: usize = 4;

impl Limits {
    /// At most so many tokens.
    pub fn tokens(limit: usize) -> Self {
        Limits {
            tokens: Some(limit),
            ..Limits::default()
        }
    }
}

/// Why writing stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Stop {
    /// The number of tokens asked for was reached.
    Limit,
    /// The model wrote an end-of-sequence token.
    End,
    /// The positions the model was trained for are used up.
    Context,
    /// The receiver of the text asked for it, or did not ask for more.
    Receiver,
}

/// What was done and how long it took.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Summary {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Time to read the prompt and choose the first token.
    pub prefill: Duration,
    /// Tokens written.
    pub tokens: usize,
    /// Time from the first to the last token written.
    pub decode: Duration,
    /// How often the sequence slid.
    pub slides: usize,
    /// Why writing stopped.
    pub stop: Stop,
}

impl Summary {
    /// Prompt tokens per second.
    pub fn prefill_speed(&self) -> f64 {
        self.prompt_tokens as f64 / self.prefill.as_secs_f64()
    }

    /// Tokens per second after the first; `None` where fewer than two were written.
    pub fn decode_speed(&self) -> Option<f64> {
        (self.tokens > 1).then(|| (self.tokens - 1) as f64 / self.decode.as_secs_f64())
    }
}

/// Why nothing more can be written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// No token to start from.
    #[error("the prompt is empty and the model has no beginning-of-sequence token; give a prompt")]
    EmptyPrompt,
    /// The prompt does not fit.
    #[error("the prompt has {found} tokens, the sequence may have {limit}; shorten the prompt")]
    PromptTooLong {
        /// Tokens of the prompt.
        found: usize,
        /// [`Session::limit`](crate::Session::limit).
        limit: usize,
    },
    /// The forward pass failed.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// No token could be chosen.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The draft does not fit.
    #[error(transparent)]
    Speculate(#[from] SpeculateError),
}

/// A token that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// The token.
    pub token: u32,
    /// The text that it completes; empty while a character is incomplete.
    pub text: String,
}

/// Writes behind a prompt, one token whenever its caller wants one. As an iterator it ends with the
/// text, or behind an error.
pub struct Generator<'a, B: Backend = Cpu> {
    session: &'a mut Session<B>,
    tokenizer: &'a Tokenizer,
    sampler: &'a mut Sampler,
    decoder: StreamDecoder<'a>,
    limits: Limits,
    prompt_tokens: usize,
    started: Instant,
    /// When the first and the last token were chosen.
    times: Option<[Instant; 2]>,
    tokens: usize,
    /// The last token, which the session has not read.
    unread: Option<u32>,
    /// What drafts, and what was written ahead.
    draft: Option<&'a mut Speculator<B>>,
    ahead: VecDeque<u32>,
    /// All tokens of the sequence, the one that was not read among them; `None` where it is not known how it began.
    sequence: Option<Vec<u32>>,
    slides: usize,
    stop: Option<Stop>,
    failed: bool,
}

impl<'a, B: Backend> Generator<'a, B> {
    /// Reads `prompt` (token ids, BOS included) behind what the session has read.
    ///
    /// # Errors
    /// [`GenerateError`] where the prompt is empty or too long, or the forward pass fails.
    pub fn new(
        session: &'a mut Session<B>,
        tokenizer: &'a Tokenizer,
        sampler: &'a mut Sampler,
        prompt: &[u32],
        limits: Limits,
    ) -> Result<Self, GenerateError> {
        let limit = session.limit();
        if prompt.is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        let found = session.position().saturating_add(prompt.len());
        if found > limit {
            return Err(GenerateError::PromptTooLong { found, limit });
        }
        let started = Instant::now();
        let sequence = (session.position() == 0).then(|| prompt.to_vec());
        session.follow()?;
        session.read_prompt(prompt)?;
        let mut decoder = tokenizer.decoder();
        for &token in prompt {
            // The decoder only follows: the text of the prompt is the caller's.
            decoder.push(token);
        }
        Ok(Generator {
            session,
            tokenizer,
            sampler,
            decoder,
            limits,
            prompt_tokens: prompt.len(),
            started,
            times: None,
            tokens: 0,
            unread: None,
            draft: None,
            ahead: VecDeque::new(),
            sequence,
            slides: 0,
            stop: None,
            failed: false,
        })
    }

    /// As [`Generator::new`], with tokens that `draft` foresees: what is written is the same, or of the same
    /// distribution where tokens are drawn.
    ///
    /// # Errors
    /// As [`Generator::new`]; [`SpeculateError::Position`] for a session that has read what the draft has not, and
    /// [`ExecError::Kv`] for one that stores keys and values in low rank ([`Session::verify`]). Nothing is read then.
    pub fn with_draft(
        session: &'a mut Session<B>,
        draft: &'a mut Speculator<B>,
        tokenizer: &'a Tokenizer,
        sampler: &'a mut Sampler,
        prompt: &[u32],
        limits: Limits,
    ) -> Result<Self, GenerateError> {
        let (expected, found) = (draft.position(), session.position());
        if expected != found {
            return Err(SpeculateError::Position { expected, found }.into());
        }
        session.check_foreseen().map_err(ExecError::from)?;
        let mut generator = Generator::new(session, tokenizer, sampler, prompt, limits)?;
        draft.read(prompt)?;
        generator.draft = Some(draft);
        Ok(generator)
    }

    /// Writes the next token; `None` once writing has [stopped](Generator::stop).
    ///
    /// # Errors
    /// [`GenerateError`] where the forward pass fails or no token can be chosen.
    pub fn step(&mut self) -> Result<Option<Written>, GenerateError> {
        if self.stop.is_none() {
            self.stop = self.reached();
        }
        if self.stop == Some(Stop::Context) && self.slide()? {
            // What else may have been reached.
            self.stop = self.reached();
        }
        if self.stop.is_some() {
            self.settle()?;
            return Ok(None);
        }
        let token = self.next_token()?;
        if self.tokenizer.is_end(token) && !self.limits.ignore_end {
            self.stop = Some(Stop::End);
            self.settle()?;
            return Ok(None);
        }
        let now = Instant::now();
        let first = self.times.map_or(now, |[first, _]| first);
        self.times = Some([first, now]);
        self.tokens += 1;
        self.unread = Some(token);
        if let Some(sequence) = &mut self.sequence {
            sequence.push(token);
        }
        let text = self.decoder.push(token);
        Ok(Some(Written { token, text }))
    }

    /// The token that comes next, whatever it is.
    fn next_token(&mut self) -> Result<u32, GenerateError> {
        if let Some(token) = self.ahead.pop_front() {
            return Ok(token);
        }
        self.session.follow()?;
        let wanted = self.sampler.wants_one();
        let Some(unread) = self.unread else {
            let logits = self.session.last_logits_for(wanted)?;
            return Ok(self.sampler.sample_from(logits)?);
        };
        let Some(draft) = self.draft.as_deref_mut() else {
            let logits = self.session.step_for(&[unread], wanted)?;
            return Ok(self.sampler.sample_from(logits)?);
        };
        let left = self.limits.tokens.map(|limit| limit - self.tokens);
        let most = left.unwrap_or(usize::MAX);
        draft.round(self.session, self.sampler, unread, most, &mut self.ahead)?;
        // A round writes at least one.
        Ok(self.ahead.pop_front().unwrap_or(unread))
    }

    /// Makes room by beginning anew, where that was asked for; whether it did.
    fn slide(&mut self) -> Result<bool, GenerateError> {
        let (Some(sequence), OnFull::Slide) = (&mut self.sequence, self.limits.on_full) else {
            return Ok(false);
        };
        // All but the last was read.
        let read = sequence.len().saturating_sub(1);
        let kept = self.session.limit() / 2;
        let start = SLIDE_START.min(kept / 2);
        if start + kept >= read {
            return Ok(false);
        }
        sequence.drain(start..read - kept);
        let again = &sequence[..sequence.len() - 1];
        self.session.reset();
        self.session.read_prompt(again)?;
        if let Some(draft) = self.draft.as_deref_mut() {
            draft.reset();
            draft.read(again)?;
        }
        self.slides += 1;
        Ok(true)
    }

    /// Takes back what was read ahead of the last token written.
    fn settle(&mut self) -> Result<(), ExecError> {
        let ahead = std::mem::take(&mut self.ahead).len();
        if let Some(draft) = self.draft.as_deref_mut() {
            let position = self.session.position() - ahead;
            self.session.truncate(position)?;
            draft.truncate(position)?;
        }
        Ok(())
    }

    /// Why no token follows, before one is computed.
    fn reached(&self) -> Option<Stop> {
        let full = self.ahead.is_empty() && self.session.position() >= self.session.limit();
        let limit = self.limits.tokens;
        match (self.unread, limit) {
            // What was asked for is there, whether there would be room for more or not.
            (_, Some(limit)) if self.tokens >= limit => Some(Stop::Limit),
            (Some(_), _) if full => Some(Stop::Context),
            _ => None,
        }
    }

    /// Why writing stopped, if it has.
    pub fn stop(&self) -> Option<Stop> {
        self.stop
    }

    /// What an incomplete character at the end leaves as text, and what was done. The session has
    /// read everything but the last token.
    pub fn finish(mut self) -> (String, Summary) {
        // What was read is longer than what is kept of it: that cannot fail.
        let _ = self.settle();
        let [first, last] = self.times.unwrap_or_else(|| [Instant::now(); 2]);
        let summary = Summary {
            prompt_tokens: self.prompt_tokens,
            prefill: first - self.started,
            tokens: self.tokens,
            decode: last - first,
            slides: self.slides,
            stop: self.stop.unwrap_or(Stop::Receiver),
        };
        (self.decoder.finish(), summary)
    }
}

impl<B: Backend> Generator<'_, B> {
    /// Writes to the end; `receive` gets the text as it becomes complete characters and returns whether to go on.
    ///
    /// # Errors
    /// As [`Generator::step`].
    pub fn run(mut self, mut receive: impl FnMut(&str) -> bool) -> Result<Summary, GenerateError> {
        let mut wanted = true;
        while wanted && let Some(written) = self.step()? {
            wanted = written.text.is_empty() || receive(&written.text);
        }
        let (rest, summary) = self.finish();
        if wanted && !rest.is_empty() {
            receive(&rest);
        }
        Ok(summary)
    }
}

impl<B: Backend> Iterator for Generator<'_, B> {
    type Item = Result<Written, GenerateError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = self.step().transpose();
        self.failed = matches!(next, Some(Err(_)));
        next
    }
}

/// Continues `prompt` (token ids, BOS included) behind what the session has read; `receive` gets
/// the text as it becomes complete characters and returns whether to go on.
///
/// # Errors
/// [`GenerateError`] where the prompt is empty or too long, or the forward pass fails.
pub fn generate<B: Backend>(
    session: &mut Session<B>,
    tokenizer: &Tokenizer,
    sampler: &mut Sampler,
    prompt: &[u32],
    limits: Limits,
    receive: impl FnMut(&str) -> bool,
) -> Result<Summary, GenerateError> {
    Generator::new(session, tokenizer, sampler, prompt, limits)?.run(receive)
}
