//! Reads a prompt and writes text, token by token.

use std::time::{Duration, Instant};

use thiserror::Error;

use crate::error::ExecError;
use crate::exec::Session;
use crate::sampling::{Sampler, SamplingError};
use crate::tokenizer::Tokenizer;

/// When to stop.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Tokens to write at most.
    pub tokens: Option<usize>,
    /// Go on after an end-of-sequence token.
    pub ignore_end: bool,
}

/// Why writing stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The number of tokens asked for was reached.
    Limit,
    /// The model wrote an end-of-sequence token.
    End,
    /// The positions the model was trained for are used up.
    Context,
    /// The receiver of the text asked for it.
    Receiver,
}

/// What was done and how long it took.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Time to read the prompt and choose the first token.
    pub prefill: Duration,
    /// Tokens written.
    pub tokens: usize,
    /// Time from the first to the last token written.
    pub decode: Duration,
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
}

/// Continues `prompt` (token ids, BOS included) in an empty session; `receive` gets the text as
/// it becomes complete characters and returns whether to go on.
///
/// # Errors
/// [`GenerateError`] where the prompt is empty or too long, or the forward pass fails.
pub fn generate(
    session: &mut Session,
    tokenizer: &Tokenizer,
    sampler: &mut Sampler,
    prompt: &[u32],
    limits: Limits,
    mut receive: impl FnMut(&str) -> bool,
) -> Result<Summary, GenerateError> {
    let context = session.limit();
    if prompt.is_empty() {
        return Err(GenerateError::EmptyPrompt);
    }
    if prompt.len() > context {
        return Err(GenerateError::PromptTooLong {
            found: prompt.len(),
            limit: context,
        });
    }
    let started = Instant::now();
    for batch in prompt.chunks(session.batch()) {
        session.forward(batch)?;
    }
    let mut decoder = tokenizer.decoder();
    for &token in prompt {
        // The decoder only follows: the text of the prompt is the caller's.
        decoder.push(token);
    }
    let mut tokens = 0;
    let mut first = None;
    let mut last = started;
    let stop = loop {
        if limits.tokens.is_some_and(|limit| tokens >= limit) {
            break Stop::Limit;
        }
        let token = sampler.sample(session.last_logits()?)?;
        if tokenizer.is_end(token) && !limits.ignore_end {
            break Stop::End;
        }
        tokens += 1;
        last = Instant::now();
        first.get_or_insert(last);
        let text = decoder.push(token);
        if !text.is_empty() && !receive(&text) {
            break Stop::Receiver;
        }
        if session.position() >= context {
            break Stop::Context;
        }
        if limits.tokens.is_none_or(|limit| tokens < limit) {
            session.forward(&[token])?;
        }
    };
    if stop != Stop::Receiver {
        let rest = decoder.finish();
        if !rest.is_empty() {
            receive(&rest);
        }
    }
    let first = first.unwrap_or_else(Instant::now);
    Ok(Summary {
        prompt_tokens: prompt.len(),
        prefill: first - started,
        tokens,
        decode: last.saturating_duration_since(first),
        stop,
    })
}
