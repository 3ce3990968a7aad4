//! Measures how fast a model is, alone or in pairs with a baseline: prefill, decode and end to end apart.
//!
//! 1. [`task`]: what is measured, prompts of four kinds and contexts of given lengths.
//! 2. [`runner`]: who is measured, a model in this process; [`llama_cpp`]: llama.cpp's `llama-bench` as a
//!    program of its own.
//! 3. [`run`]: warm-up, then pairs, the two one right behind the other, alternating which comes first.
//! 4. [`energy`]: joules and temperatures of every run, from a sensor; [`slope`]: joules for each byte, from records.
//! 5. [`statistics`]: what the pairs say; [`gates`]: what they are to hold.
//! 6. [`record`]: all of it as JSON, and for people.

pub mod energy;
pub mod gates;
pub mod llama_cpp;
pub mod machine;
pub mod record;
pub mod runner;
mod show;
pub mod slope;
pub mod statistics;
pub mod task;

use std::time::{Duration, Instant};

use htc_loader::ExecError;
use htc_loader::generate::GenerateError;
use htc_loader::live::GovernorError;
use thiserror::Error;

use crate::event::{Cancel, Cancelled};

use llama_cpp::LlamaCppError;
use record::{ContextPoint, Pair, Reading, Run};
use runner::Runner;
use task::{Kind, Task};

/// Pairs where nothing else is asked for: one for each of four kinds of prompts and two lengths.
pub const PAIRS: u32 = 8;

/// Tokens written behind a context of a given length.
pub const BEHIND_CONTEXT: usize = 32;

/// How it is measured.
#[derive(Clone, Debug)]
pub struct Protocol {
    /// Pairs, each of one task; tasks come again when all had their turn.
    pub pairs: usize,
    /// Runs of both before the first pair, and before the first of every length of context.
    pub warm_up: usize,
    /// Pause before every run: on a GPU 30 s in the published protocol.
    pub cool_down: Duration,
    /// Kinds of prompts.
    pub prompts: Vec<Kind>,
    /// Lengths of output.
    pub tokens: Vec<usize>,
    /// Lengths of context of the sweep.
    pub contexts: Vec<usize>,
}

impl Protocol {
    /// What the pairs take in turn: every kind at the first length, then at the next.
    fn cells(&self) -> Vec<(Kind, usize)> {
        let kinds = |&tokens: &usize| self.prompts.iter().map(move |&kind| (kind, tokens));
        self.tokens.iter().flat_map(kinds).collect()
    }

    /// Combinations of a kind and a length that have no turn, because there are fewer pairs.
    pub fn left_out(&self) -> Vec<(Kind, usize)> {
        self.cells().split_off(self.pairs.min(self.cells().len()))
    }
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The model that is looked at.
    Subject,
    /// What it is held against.
    Baseline,
}

/// What is being measured, for a progress display.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// What.
    pub task: Task,
    /// Of whom.
    pub side: Side,
    /// Runs done, warm-up and pairs.
    pub done: usize,
    /// All runs.
    pub all: usize,
}

/// Sensors of the device that is measured: a run is between [`start`](Sensors::start) and
/// [`stop`](Sensors::stop), with a [`mark`](Sensors::mark) where its first token is written.
pub trait Sensors {
    /// Nothing is measured yet: what the device does without any work.
    ///
    /// # Errors
    /// [`BenchError`] where the sensor does not answer, or somebody asks for an end.
    fn idle(&mut self, cancel: &Cancel) -> Result<(), BenchError>;
    /// A run of one of the two begins.
    ///
    /// # Errors
    /// [`BenchError::Sensor`] where the sensor does not answer, as the others have.
    fn start(&mut self, side: Side) -> Result<(), BenchError>;
    /// The prompt is read and the first token chosen.
    ///
    /// # Errors
    /// [`BenchError::Sensor`].
    fn mark(&mut self) -> Result<(), BenchError>;
    /// It has ended: what was read since it began; `None` where there is no sensor.
    ///
    /// # Errors
    /// [`BenchError::Sensor`].
    fn stop(&mut self) -> Result<Option<Reading>, BenchError>;
}

/// No sensor: nothing is known.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSensors;

impl Sensors for NoSensors {
    fn idle(&mut self, _: &Cancel) -> Result<(), BenchError> {
        Ok(())
    }

    fn start(&mut self, _: Side) -> Result<(), BenchError> {
        Ok(())
    }

    fn mark(&mut self) -> Result<(), BenchError> {
        Ok(())
    }

    fn stop(&mut self) -> Result<Option<Reading>, BenchError> {
        Ok(None)
    }
}

/// Why a measurement ended. The message of each is one line.
#[derive(Debug, Error)]
pub enum BenchError {
    /// What is asked for does not fit into the model's context.
    #[error(
        "{model}: {task} with {tokens} tokens to write takes {needed} positions, and the model has {context}; give `{option}` fewer"
    )]
    TooLong {
        /// Name of the model.
        model: String,
        /// The task, in words.
        task: String,
        /// Tokens to write.
        tokens: usize,
        /// Positions that it takes.
        needed: usize,
        /// Positions that the model has.
        context: usize,
        /// The option that asks for less.
        option: &'static str,
    },
    /// A model of this process failed.
    #[error("{model}: {error}")]
    Generate {
        /// Name of the model.
        model: String,
        /// What is wrong.
        error: GenerateError,
    },
    /// A model of this process cannot be executed.
    #[error("{model}: {error}")]
    Exec {
        /// Name of the model.
        model: String,
        /// What is wrong.
        error: ExecError,
    },
    /// The clock did not move during a run.
    #[error(
        "{model}: {task} took no time that this system's clock shows; ask for more tokens with `tokens`"
    )]
    NoTime {
        /// Name of the model.
        model: String,
        /// The task, in words.
        task: String,
    },
    /// The sensor does not answer any more.
    #[error(transparent)]
    Sensor(#[from] GovernorError),
    /// llama.cpp failed.
    #[error(transparent)]
    LlamaCpp(#[from] LlamaCppError),
    /// Somebody asked for an end.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Pairs on prompts.
    pub pairs: Vec<Pair>,
    /// The sweep over lengths of context.
    pub contexts: Vec<ContextPoint>,
}

/// Measures. Both are measured on the same tasks; without a baseline a pair is a single run.
///
/// # Errors
/// [`BenchError`] where a run fails or somebody asked for an end.
pub fn run<'a>(
    subject: &'a mut dyn Runner,
    baseline: Option<&'a mut dyn Runner>,
    protocol: &Protocol,
    watch: (&'a dyn Fn(Step), &'a Cancel),
    sensors: &'a mut dyn Sensors,
) -> Result<Measured, BenchError> {
    let sides = if baseline.is_some() { 2 } else { 1 };
    let cells = protocol.cells();
    let groups = usize::from(!cells.is_empty());
    let mut bench = Bench {
        runners: (subject, baseline),
        cool_down: protocol.cool_down,
        watch,
        sensors,
        done: 0,
        all: sides * (protocol.warm_up + protocol.pairs) * (groups + protocol.contexts.len()),
    };
    bench.sensors.idle(bench.watch.1)?;
    let mut measured = Measured::default();
    let longest = cells.iter().max_by_key(|(_, tokens)| *tokens);
    if let Some(&(kind, tokens)) = longest {
        bench.warm_up(Task::prompt(kind, tokens), protocol.warm_up)?;
        for pair in 0..protocol.pairs {
            let (kind, tokens) = cells[pair % cells.len()];
            // Who was first at a task is second when it comes again.
            let subject_first = (pair + pair / cells.len()).is_multiple_of(2);
            let pair = bench.pair(Task::prompt(kind, tokens), subject_first)?;
            measured.pairs.push(pair);
        }
    }
    for &length in &protocol.contexts {
        let task = Task::context(length, bench.behind(length));
        bench.warm_up(task, protocol.warm_up)?;
        let pairs: Result<Vec<Pair>, BenchError> = (0..protocol.pairs)
            .map(|pair| bench.pair(task, pair.is_multiple_of(2)))
            .collect();
        measured.contexts.push(ContextPoint {
            length,
            pairs: pairs?,
        });
    }
    Ok(measured)
}

/// A measurement at work.
struct Bench<'a> {
    runners: (&'a mut dyn Runner, Option<&'a mut dyn Runner>),
    cool_down: Duration,
    watch: (&'a dyn Fn(Step), &'a Cancel),
    sensors: &'a mut dyn Sensors,
    done: usize,
    all: usize,
}

impl Bench<'_> {
    /// Tokens to write behind a context: one, which comes from reading it, where one of the two has no room
    /// for more.
    fn behind(&self, length: usize) -> usize {
        let contexts = [
            self.runners.0.context(),
            self.runners.1.as_ref().and_then(|r| r.context()),
        ];
        let room = contexts.into_iter().flatten().min();
        match room.is_some_and(|room| positions(length, BEHIND_CONTEXT) > room) {
            true => 1,
            false => BEHIND_CONTEXT,
        }
    }

    fn warm_up(&mut self, task: Task, times: usize) -> Result<(), BenchError> {
        for _ in 0..times {
            self.pair(task, true)?;
        }
        Ok(())
    }

    fn pair(&mut self, task: Task, subject_first: bool) -> Result<Pair, BenchError> {
        let (subject, baseline) = if self.runners.1.is_none() {
            (self.side(task, Side::Subject)?, None)
        } else if subject_first {
            let subject = self.side(task, Side::Subject)?;
            (subject, Some(self.side(task, Side::Baseline)?))
        } else {
            let baseline = self.side(task, Side::Baseline)?;
            (self.side(task, Side::Subject)?, Some(baseline))
        };
        Ok(Pair {
            prompt: task.kind(),
            tokens: task.tokens(),
            subject_first,
            subject,
            baseline,
        })
    }

    /// One run of one of the two.
    fn side(&mut self, task: Task, side: Side) -> Result<Run, BenchError> {
        let (tell, cancel) = self.watch;
        tell(Step {
            task,
            side,
            done: self.done,
            all: self.all,
        });
        pause(self.cool_down, cancel)?;
        let runner: &mut dyn Runner = match (side, &mut self.runners.1) {
            (Side::Baseline, Some(baseline)) => *baseline,
            _ => self.runners.0,
        };
        runner.prepare(task)?;
        let sensors = &mut *self.sensors;
        sensors.start(side)?;
        let timing = runner.run(task, &mut || sensors.mark(), cancel);
        let reading = sensors.stop();
        self.done += 1;
        let timing = timing?;
        cancelled(cancel)?;
        let reading = reading?.map(|reading| match runner.is_metered() {
            true => reading,
            false => reading.without_energy(),
        });
        Run::new(timing, reading).ok_or_else(|| BenchError::NoTime {
            model: runner.name().to_owned(),
            task: task.to_string(),
        })
    }
}

/// Positions that a prompt takes with so many tokens to write, of which the last is not read.
pub fn positions(prompt: usize, tokens: usize) -> usize {
    prompt.saturating_add(tokens.saturating_sub(1))
}

/// # Errors
/// [`Cancelled`] where the work is to end.
fn cancelled(cancel: &Cancel) -> Result<(), Cancelled> {
    match cancel.is_cancelled() {
        true => Err(Cancelled),
        false => Ok(()),
    }
}

/// How often somebody who waits looks whether he is to end.
const LOOKS_APART: Duration = Duration::from_millis(20);

/// Waits, unless somebody asks for an end.
fn pause(time: Duration, cancel: &Cancel) -> Result<(), Cancelled> {
    let started = Instant::now();
    loop {
        cancelled(cancel)?;
        let left = time.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(LOOKS_APART));
    }
}

#[cfg(test)]
mod tests;
