//! Text generation.
//!
//! The caller drives a [`Generator`] by [`step`](Generator::step) or as an iterator; [`generate`]
//! runs the whole loop.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::backend::{Backend, Cpu};
use crate::error::{ExecError, Result};
use crate::exec::Session;
use crate::sampling::Sampler;
use crate::speculate::Speculator;
use crate::tokenizer::{StreamDecoder, Tokenizer};

/// Limits of a generation.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct GenerateLimits {
    /// Maximum number of tokens.
    pub tokens: Option<usize>,
    /// Maximum number of positions with the prompt, if less than the session's.
    pub positions: Option<usize>,
    /// Continues after an end-of-sequence token.
    pub ignore_end: bool,
    /// Behaviour when the context is full.
    pub context_full: ContextFullPolicy,
}

/// Behaviour when the context is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContextFullPolicy {
    /// [Stops](Stop::Context).
    #[default]
    Stop,
    /// Restarts with the first tokens (attention sinks, Xiao et al. 2024) and the last half of the
    /// sequence, which are read again. Stops if the session had read something before the prompt.
    Slide,
}

const SLIDE_START: usize = 4;

impl GenerateLimits {
    /// Limits the number of tokens.
    pub fn tokens(limit: usize) -> Self {
        GenerateLimits {
            tokens: Some(limit),
            ..GenerateLimits::default()
        }
    }

    fn positions_of<B: Backend>(&self, session: &Session<B>) -> usize {
        let limit = session.limit();
        self.positions.map_or(limit, |most| most.min(limit))
    }
}

/// Reason why generation stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Stop {
    /// The requested number of tokens was reached.
    Limit,
    /// The model generated an end-of-sequence token.
    End,
    /// The context is full.
    Context,
    /// The receiver stopped or did not continue.
    Receiver,
}

/// Summary of a generation.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct GenerateSummary {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Time to the first token.
    pub prefill: Duration,
    /// Generated tokens.
    pub tokens: usize,
    /// Time from the first to the last token.
    pub decode: Duration,
    /// Number of context slides.
    pub slides: usize,
    /// Reason of the stop.
    pub stop: Stop,
}

impl GenerateSummary {
    /// Returns the prompt tokens per second.
    pub fn prefill_speed(&self) -> f64 {
        self.prompt_tokens as f64 / self.prefill.as_secs_f64()
    }

    /// Returns the tokens per second after the first, if any.
    pub fn decode_speed(&self) -> Option<f64> {
        (self.tokens > 1).then(|| (self.tokens - 1) as f64 / self.decode.as_secs_f64())
    }
}

/// Generated token.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GeneratedToken {
    /// The token.
    pub token: u32,
    /// Completed text; empty while a character is incomplete.
    pub text: String,
}

/// Generator of text after a prompt, one token per call; ends after an error.
pub struct Generator<'a, B: Backend = Cpu> {
    session: &'a mut Session<B>,
    tokenizer: &'a Tokenizer,
    sampler: &'a mut Sampler,
    decoder: StreamDecoder<'a>,
    limits: GenerateLimits,
    prompt_tokens: usize,
    started: Instant,
    times: Option<[Instant; 2]>,
    tokens: usize,
    unread: Option<u32>,
    /// Drafter, and accepted tokens not yet returned.
    draft: Option<&'a mut Speculator<B>>,
    ahead: VecDeque<u32>,
    /// All tokens of the sequence; `None` if its beginning is unknown.
    sequence: Option<Vec<u32>>,
    slides: usize,
    stop: Option<Stop>,
    failed: bool,
}

impl<'a, B: Backend> Generator<'a, B> {
    /// Reads `prompt` (token ids, BOS included) after the session's earlier positions.
    ///
    /// # Errors
    /// [`ExecError`] if the prompt is empty or too long, or the forward pass fails.
    pub fn new(
        session: &'a mut Session<B>,
        tokenizer: &'a Tokenizer,
        sampler: &'a mut Sampler,
        prompt: &[u32],
        limits: GenerateLimits,
    ) -> Result<Self> {
        let limit = limits.positions_of(session);
        if prompt.is_empty() {
            return Err(ExecError::EmptyPrompt);
        }
        let found = session.position().saturating_add(prompt.len());
        if found > limit {
            return Err(ExecError::PromptTooLong { found, limit });
        }
        let started = Instant::now();
        let sequence = (session.position() == 0).then(|| prompt.to_vec());
        session.follow()?;
        session.read_prompt(prompt)?;
        let mut decoder = tokenizer.decoder();
        for &token in prompt {
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

    /// Creates a generator with speculative decoding, of the same output distribution.
    ///
    /// # Errors
    /// As [`Generator::new`]; [`ExecError::DraftPosition`] if the draft has not read the session's
    /// positions, and [`ExecError::VerifyUnsupported`] for a low-rank KV cache ([`Session::verify`]).
    pub fn with_draft(
        session: &'a mut Session<B>,
        draft: &'a mut Speculator<B>,
        tokenizer: &'a Tokenizer,
        sampler: &'a mut Sampler,
        prompt: &[u32],
        limits: GenerateLimits,
    ) -> Result<Self> {
        let (expected, found) = (draft.position(), session.position());
        if expected != found {
            return Err(ExecError::DraftPosition { expected, found });
        }
        session.check_can_verify()?;
        let mut generator = Generator::new(session, tokenizer, sampler, prompt, limits)?;
        draft.read_prompt(prompt)?;
        generator.draft = Some(draft);
        Ok(generator)
    }

    /// Generates the next token; `None` after a [stop](Generator::stop_reason).
    ///
    /// # Errors
    /// [`ExecError`] if the forward pass fails or no token can be sampled.
    pub fn step(&mut self) -> Result<Option<GeneratedToken>> {
        if self.stop.is_none() {
            self.stop = self.reached_limit();
        }
        if self.stop == Some(Stop::Context) && self.slide()? {
            self.stop = self.reached_limit();
        }
        if self.stop.is_some() {
            self.discard_ahead()?;
            return Ok(None);
        }
        let token = self.next_token()?;
        if self.tokenizer.is_end_token(token) && !self.limits.ignore_end {
            self.stop = Some(Stop::End);
            self.discard_ahead()?;
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
        Ok(Some(GeneratedToken { token, text }))
    }

    fn next_token(&mut self) -> Result<u32> {
        if let Some(token) = self.ahead.pop_front() {
            return Ok(token);
        }
        self.session.follow()?;
        let wanted = self.sampler.logits_for_sample();
        let Some(unread) = self.unread else {
            let logits = self.session.last_logits_for(wanted)?;
            return self.sampler.sample_from(logits);
        };
        let Some(draft) = self.draft.as_deref_mut() else {
            let logits = self.session.step_for(&[unread], wanted)?;
            return self.sampler.sample_from(logits);
        };
        let left = self.limits.tokens.map(|limit| limit - self.tokens);
        let limit = self.limits.positions_of(self.session);
        let free = limit.saturating_sub(self.session.position());
        let most = left.unwrap_or(usize::MAX).min(free);
        draft.round(self.session, self.sampler, unread, most, &mut self.ahead)?;
        Ok(self.ahead.pop_front().unwrap_or(unread))
    }

    /// Slides the context if enabled and possible.
    fn slide(&mut self) -> Result<bool> {
        let (Some(sequence), ContextFullPolicy::Slide) =
            (&mut self.sequence, self.limits.context_full)
        else {
            return Ok(false);
        };
        let read = sequence.len().saturating_sub(1);
        let kept = self.limits.positions_of(self.session) / 2;
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
            draft.read_prompt(again)?;
        }
        self.slides += 1;
        Ok(true)
    }

    /// Discards positions read ahead of the last returned token.
    fn discard_ahead(&mut self) -> Result<(), ExecError> {
        let ahead = std::mem::take(&mut self.ahead).len();
        if let Some(draft) = self.draft.as_deref_mut() {
            let position = self.session.position() - ahead;
            self.session.truncate(position)?;
            draft.truncate(position)?;
        }
        Ok(())
    }

    fn reached_limit(&self) -> Option<Stop> {
        let limit = self.limits.positions_of(self.session);
        let full = self.ahead.is_empty() && self.session.position() >= limit;
        let limit = self.limits.tokens;
        match (self.unread, limit) {
            // The token limit takes precedence over a full context.
            (_, Some(limit)) if self.tokens >= limit => Some(Stop::Limit),
            (Some(_), _) if full => Some(Stop::Context),
            _ => None,
        }
    }

    /// Returns the reason of the stop, if any.
    pub fn stop_reason(&self) -> Option<Stop> {
        self.stop
    }

    /// Returns the text of an incomplete last character and the summary. The session has not read
    /// the last token.
    pub fn finish(mut self) -> (String, GenerateSummary) {
        // Truncation to a shorter length cannot fail.
        let _ = self.discard_ahead();
        let [first, last] = self.times.unwrap_or_else(|| [Instant::now(); 2]);
        let summary = GenerateSummary {
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
    /// Generates to the end; `receive` gets the text and returns true to continue.
    ///
    /// # Errors
    /// As [`Generator::step`].
    pub fn run(mut self, mut receive: impl FnMut(&str) -> bool) -> Result<GenerateSummary> {
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
    type Item = Result<GeneratedToken>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = self.step().transpose();
        self.failed = matches!(next, Some(Err(_)));
        next
    }
}

/// Continues `prompt` (token ids, BOS included) after the session's earlier positions; `receive`
/// gets the text and returns true to continue.
///
/// # Errors
/// [`ExecError`] if the prompt is empty or too long, or the forward pass fails.
pub fn generate<B: Backend>(
    session: &mut Session<B>,
    tokenizer: &Tokenizer,
    sampler: &mut Sampler,
    prompt: &[u32],
    limits: GenerateLimits,
    receive: impl FnMut(&str) -> bool,
) -> Result<GenerateSummary> {
    Generator::new(session, tokenizer, sampler, prompt, limits)?.run(receive)
}
