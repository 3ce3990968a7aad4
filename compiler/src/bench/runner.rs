//! Runners of a benchmark: the trait and the model in this process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use htc_loader::dial::ActiveSetting;
use htc_loader::generate::{GenerateLimits, Generator};
use htc_loader::kv::KvType;
use htc_loader::sampling::{Sampler, SamplingOptions};
use htc_loader::tokenizer::Tokenizer;
use htc_loader::{Backend, Cpu, Model, Session};

use super::task::Task;
use super::{BenchError, check_cancelled, positions};
use crate::event::CancellationToken;

/// Timing of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Prompt tokens.
    pub prompt_tokens: usize,
    /// Tokens written.
    pub tokens: usize,
    /// Time for reading the prompt and choosing the first token.
    pub prefill: Duration,
    /// Time of the `tokens - 1` passes after the first token.
    pub decode: Duration,
}

/// Callback and cancellation of a run.
pub struct RunWatch<'a> {
    /// Called between prefill and decode.
    pub first_token: &'a mut dyn FnMut() -> Result<(), BenchError>,
    /// Stops the run.
    pub cancel: &'a CancellationToken,
}

/// Program under measurement.
pub trait Runner {
    /// Returns the name for messages.
    fn name(&self) -> &str;

    /// Returns the context length, if known.
    fn context(&self) -> Option<usize>;

    /// Prepares a task before the clock starts.
    fn prepare(&mut self, task: Task) -> Result<(), BenchError>;

    /// Returns true if the energy of a run is for its task alone.
    fn is_metered(&self) -> bool {
        true
    }

    /// Runs a prepared task and returns its timing, without the time of the callback after the
    /// first token.
    ///
    /// # Errors
    /// [`BenchError`] if the run or the callback fails or is cancelled.
    fn run(&mut self, task: Task, watch: RunWatch) -> Result<Timing, BenchError>;
}

/// Model in this process. Its output equals that of `htc run --temp 0 --ignore-eos`.
pub struct InProcessRunner<B: Backend = Cpu> {
    name: String,
    tokenizer: Tokenizer,
    session: Session<B>,
    sampler: Sampler,
    prompt: Vec<u32>,
}

impl<B: Backend> InProcessRunner<B> {
    /// Creates a session of at most `context` positions.
    pub fn new(
        name: String,
        model: &Arc<Model<B>>,
        tokenizer: Tokenizer,
        backend: B,
        context: usize,
        kv_type: KvType,
        setting: ActiveSetting,
    ) -> Result<Self, BenchError> {
        let session = Session::with_kv_type(Arc::clone(model), backend, context, kv_type);
        let failed = |error| BenchError::Generate {
            model: name.clone(),
            error,
        };
        let mut session = session.map_err(failed)?;
        session.set(setting);
        let sampler = Sampler::new(SamplingOptions::default()).map_err(failed)?;
        Ok(InProcessRunner {
            name,
            tokenizer,
            session,
            sampler,
            prompt: Vec::new(),
        })
    }
}

/// Returns the positions that a task needs.
pub fn required_positions(
    task: Task,
    name: &str,
    tokenizer: &Tokenizer,
    context: usize,
) -> Result<usize, BenchError> {
    let needed = positions(task.prompt_tokens(tokenizer).len(), task.tokens());
    if needed > context {
        Err(BenchError::TooLong {
            model: name.to_owned(),
            task: task.to_string(),
            tokens: task.tokens(),
            needed,
            context,
            option: if task.kind().is_some() {
                "tokens"
            } else {
                "contexts"
            },
        })
    } else {
        Ok(needed)
    }
}

impl<B: Backend> Runner for InProcessRunner<B> {
    fn name(&self) -> &str {
        &self.name
    }

    fn context(&self) -> Option<usize> {
        Some(self.session.limit())
    }

    fn prepare(&mut self, task: Task) -> Result<(), BenchError> {
        required_positions(task, &self.name, &self.tokenizer, self.session.limit())?;
        self.prompt = task.prompt_tokens(&self.tokenizer);
        self.session.reset();
        Ok(())
    }

    fn run(&mut self, task: Task, watch: RunWatch) -> Result<Timing, BenchError> {
        let failed = |error| BenchError::Generate {
            model: self.name.clone(),
            error,
        };
        let mut limits = GenerateLimits::tokens(task.tokens());
        limits.ignore_end = true;
        let (session, sampler) = (&mut self.session, &mut self.sampler);
        let generator = Generator::new(session, &self.tokenizer, sampler, &self.prompt, limits);
        let mut generator = generator.map_err(failed)?;
        let mut marking = None;
        while generator.step().map_err(failed)?.is_some() {
            check_cancelled(watch.cancel)?;
            if marking.is_none() {
                let since = Instant::now();
                (watch.first_token)()?;
                marking = Some(since.elapsed());
            }
        }
        let (_, summary) = generator.finish();
        Ok(Timing {
            prompt_tokens: summary.prompt_tokens,
            tokens: summary.tokens,
            prefill: summary.prefill,
            decode: summary.decode.saturating_sub(marking.unwrap_or_default()),
        })
    }
}
