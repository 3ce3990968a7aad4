//! Who is measured: a model in this process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use htc_loader::dial::Setting;
use htc_loader::generate::{Generator, Limits};
use htc_loader::kv::KvType;
use htc_loader::sampling::{Sampler, SamplingOptions};
use htc_loader::tokenizer::Tokenizer;
use htc_loader::{Backend, Cpu, Model, Session};

use super::task::Task;
use super::{BenchError, cancelled, positions};
use crate::event::Cancel;

/// What one run took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens written.
    pub tokens: usize,
    /// Reading the prompt and choosing the first token.
    pub prefill: Duration,
    /// From the first to the last token, which are one pass less than there are tokens; zero for a
    /// single one.
    pub decode: Duration,
}

/// What a run calls between prefill and decode.
pub type Mark<'a> = &'a mut dyn FnMut() -> Result<(), BenchError>;

/// Something that reads and writes.
pub trait Runner {
    /// Its name, for messages.
    fn name(&self) -> &str;

    /// Positions that it has; `None` where that is not known.
    fn context(&self) -> Option<usize>;

    /// What is done before the clock runs.
    ///
    /// # Errors
    /// [`BenchError`] where the task cannot be done.
    fn prepare(&mut self, task: Task) -> Result<(), BenchError>;

    /// Whether what the device draws during a run is drawn for its task. It is not where a program is started and
    /// a model loaded in the same time.
    fn is_metered(&self) -> bool {
        true
    }

    /// Does a task that was prepared, and says how long it took. Where its first token is chosen it calls `mark`, whose time is
    /// not the task's.
    ///
    /// # Errors
    /// [`BenchError`] where it or `mark` fails or is to end.
    fn run(&mut self, task: Task, mark: Mark, cancel: &Cancel) -> Result<Timing, BenchError>;
}

/// A model in this process. It writes what `htc run --temp 0 --ignore-eos` would.
pub struct Own<B: Backend = Cpu> {
    name: String,
    tokenizer: Tokenizer,
    session: Session<B>,
    sampler: Sampler,
    prompt: Vec<u32>,
}

impl<B: Backend> Own<B> {
    /// A model, executed by a backend, of whose context so many positions are used at most.
    ///
    /// # Errors
    /// [`BenchError::Exec`] where there is no room for it.
    pub fn new(
        name: String,
        model: &Arc<Model<B>>,
        tokenizer: Tokenizer,
        backend: B,
        (context, kv_type, setting): (usize, KvType, Setting),
    ) -> Result<Self, BenchError> {
        let session = Session::with_kv_type(Arc::clone(model), backend, context, kv_type);
        let mut session = session.map_err(|error| BenchError::Exec {
            model: name.clone(),
            error,
        })?;
        session.set(setting);
        let sampler = Sampler::new(SamplingOptions::default());
        let sampler = sampler.map_err(|error| BenchError::Generate {
            model: name.clone(),
            error: error.into(),
        })?;
        Ok(Own {
            name,
            tokenizer,
            session,
            sampler,
            prompt: Vec::new(),
        })
    }
}

/// Positions that a task takes of a model, which has them.
///
/// # Errors
/// [`BenchError::TooLong`] where it has fewer.
pub fn positions_of(
    task: Task,
    name: &str,
    tokenizer: &Tokenizer,
    context: usize,
) -> Result<usize, BenchError> {
    let needed = positions(task.read(tokenizer).len(), task.tokens());
    match needed > context {
        false => Ok(needed),
        true => Err(BenchError::TooLong {
            model: name.to_owned(),
            task: task.to_string(),
            tokens: task.tokens(),
            needed,
            context,
            option: if task.kind().is_some() {
                "tokens"
            } else {
                "context"
            },
        }),
    }
}

impl<B: Backend> Runner for Own<B> {
    fn name(&self) -> &str {
        &self.name
    }

    fn context(&self) -> Option<usize> {
        Some(self.session.limit())
    }

    fn prepare(&mut self, task: Task) -> Result<(), BenchError> {
        positions_of(task, &self.name, &self.tokenizer, self.session.limit())?;
        self.prompt = task.read(&self.tokenizer);
        self.session.reset();
        Ok(())
    }

    fn run(&mut self, task: Task, mark: Mark, cancel: &Cancel) -> Result<Timing, BenchError> {
        let failed = |error| BenchError::Generate {
            model: self.name.clone(),
            error,
        };
        let mut limits = Limits::tokens(task.tokens());
        limits.ignore_end = true;
        let (session, sampler) = (&mut self.session, &mut self.sampler);
        let generator = Generator::new(session, &self.tokenizer, sampler, &self.prompt, limits);
        let mut generator = generator.map_err(failed)?;
        let mut marking = None;
        while generator.step().map_err(failed)?.is_some() {
            cancelled(cancel)?;
            if marking.is_none() {
                let since = Instant::now();
                mark()?;
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
