//! Benchmarks: speed of a model, alone or in pairs with a baseline.

pub mod energy;
mod error;
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

use crate::event::{CancellationToken, Cancelled};
pub use error::BenchError;

use record::{ContextPoint, EnergyReading, Pair, Run};
use runner::{RunWatch, Runner};
use task::{PromptKind, Task};

/// Default number of pairs.
pub const DEFAULT_PAIRS: u32 = 8;

/// Tokens written after a context of a given length.
pub const TOKENS_AFTER_CONTEXT: usize = 32;

/// Measurement protocol.
#[derive(Clone, Debug)]
pub struct Protocol {
    /// Number of pairs, each of one task; tasks repeat in turn.
    pub pairs: usize,
    /// Warm-up runs before the first pair and every context length.
    pub warm_up: usize,
    /// Pause before every run: 30 s on a GPU in the published protocol.
    pub cool_down: Duration,
    /// Kinds of prompts.
    pub prompts: Vec<PromptKind>,
    /// Output lengths.
    pub tokens: Vec<usize>,
    /// Context lengths of the sweep.
    pub contexts: Vec<usize>,
}

impl Protocol {
    fn cells(&self) -> Vec<(PromptKind, usize)> {
        let kinds = |&tokens: &usize| self.prompts.iter().map(move |&kind| (kind, tokens));
        self.tokens.iter().flat_map(kinds).collect()
    }

    /// Returns the combinations of kind and length for which there are not enough pairs.
    pub fn left_out(&self) -> Vec<(PromptKind, usize)> {
        self.cells().split_off(self.pairs.min(self.cells().len()))
    }
}

/// Side of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The measured model.
    Subject,
    /// The model it is compared with.
    Baseline,
}

/// Progress of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Task of the run.
    pub task: Task,
    /// Side of the run.
    pub side: Side,
    /// Finished runs, warm-up included.
    pub done: usize,
    /// Total number of runs.
    pub total: usize,
}

/// Device sensors; the provided methods are those of a device without sensors.
pub trait Sensors {
    /// Measures the idle device.
    fn idle(&mut self, _cancel: &CancellationToken) -> Result<(), BenchError> {
        Ok(())
    }
    /// Starts a run of one side.
    fn start(&mut self, _side: Side) -> Result<(), BenchError> {
        Ok(())
    }
    /// Marks the first token.
    ///
    /// # Errors
    /// [`BenchError::Sensor`].
    fn mark(&mut self) -> Result<(), BenchError> {
        Ok(())
    }
    /// Ends the run and returns its readings; `None` without a sensor.
    fn stop(&mut self) -> Result<Option<EnergyReading>, BenchError> {
        Ok(None)
    }
}

/// Implementation of [`Sensors`] without a sensor.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSensors;

impl Sensors for NoSensors {}

/// Raw results of a benchmark.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BenchResults {
    /// Pairs on prompts.
    pub pairs: Vec<Pair>,
    /// Sweep over context lengths.
    pub contexts: Vec<ContextPoint>,
}

/// Reporting and cancellation of a benchmark.
#[derive(Clone, Copy)]
pub struct RunControl<'a> {
    /// Called before each run.
    pub report: &'a dyn Fn(Step),
    /// Stops the benchmark.
    pub cancel: &'a CancellationToken,
}

/// Runs the benchmark; without a baseline a pair is a single run.
pub fn run<'a>(
    subject: &'a mut dyn Runner,
    baseline: Option<&'a mut dyn Runner>,
    protocol: &Protocol,
    control: RunControl<'a>,
    sensors: &'a mut dyn Sensors,
) -> Result<BenchResults, BenchError> {
    let sides = if baseline.is_some() { 2 } else { 1 };
    let cells = protocol.cells();
    let groups = usize::from(!cells.is_empty());
    let mut bench = Bench {
        runners: (subject, baseline),
        cool_down: protocol.cool_down,
        control,
        sensors,
        done: 0,
        all: sides * (protocol.warm_up + protocol.pairs) * (groups + protocol.contexts.len()),
    };
    bench.sensors.idle(bench.control.cancel)?;
    let mut measured = BenchResults::default();
    let longest = cells.iter().max_by_key(|(_, tokens)| *tokens);
    if let Some(&(kind, tokens)) = longest {
        bench.warm_up(Task::prompt(kind, tokens), protocol.warm_up)?;
        for pair in 0..protocol.pairs {
            let (kind, tokens) = cells[pair % cells.len()];
            let subject_first = (pair + pair / cells.len()).is_multiple_of(2);
            let pair = bench.run_pair(Task::prompt(kind, tokens), subject_first)?;
            measured.pairs.push(pair);
        }
    }
    for &length in &protocol.contexts {
        let task = Task::context(length, bench.tokens_after_context(length));
        bench.warm_up(task, protocol.warm_up)?;
        let pairs: Result<Vec<Pair>, BenchError> = (0..protocol.pairs)
            .map(|pair| bench.run_pair(task, pair.is_multiple_of(2)))
            .collect();
        measured.contexts.push(ContextPoint {
            length,
            pairs: pairs?,
        });
    }
    Ok(measured)
}

struct Bench<'a> {
    runners: (&'a mut dyn Runner, Option<&'a mut dyn Runner>),
    cool_down: Duration,
    control: RunControl<'a>,
    sensors: &'a mut dyn Sensors,
    done: usize,
    all: usize,
}

impl Bench<'_> {
    /// One token, from prefill, if either side has no positions left for more.
    fn tokens_after_context(&self, length: usize) -> usize {
        let baseline = self.runners.1.as_ref().and_then(|r| r.context());
        let context = self.runners.0.context().into_iter().chain(baseline).min();
        if context.is_some_and(|context| positions(length, TOKENS_AFTER_CONTEXT) > context) {
            1
        } else {
            TOKENS_AFTER_CONTEXT
        }
    }

    fn warm_up(&mut self, task: Task, times: usize) -> Result<(), BenchError> {
        for _ in 0..times {
            self.run_pair(task, true)?;
        }
        Ok(())
    }

    fn run_pair(&mut self, task: Task, subject_first: bool) -> Result<Pair, BenchError> {
        let is_compared = self.runners.1.is_some();
        let mut baseline = None;
        if is_compared && !subject_first {
            baseline = Some(self.run_side(task, Side::Baseline)?);
        }
        let subject = self.run_side(task, Side::Subject)?;
        if is_compared && subject_first {
            baseline = Some(self.run_side(task, Side::Baseline)?);
        }
        Ok(Pair {
            prompt: task.kind(),
            tokens: task.tokens(),
            subject_first,
            subject,
            baseline,
        })
    }

    fn run_side(&mut self, task: Task, side: Side) -> Result<Run, BenchError> {
        let RunControl { report, cancel } = self.control;
        report(Step {
            task,
            side,
            done: self.done,
            total: self.all,
        });
        pause(self.cool_down, cancel)?;
        let runner: &mut dyn Runner = match (side, &mut self.runners.1) {
            (Side::Baseline, Some(baseline)) => *baseline,
            _ => self.runners.0,
        };
        runner.prepare(task)?;
        let sensors = &mut *self.sensors;
        sensors.start(side)?;
        let watch = RunWatch {
            first_token: &mut || sensors.mark(),
            cancel,
        };
        let timing = runner.run(task, watch);
        let reading = sensors.stop();
        self.done += 1;
        let timing = timing?;
        check_cancelled(cancel)?;
        let reading = reading?.map(|reading| {
            if runner.is_metered() {
                reading
            } else {
                reading.without_energy()
            }
        });
        Run::new(timing, reading).ok_or_else(|| BenchError::NoTime {
            model: runner.name().to_owned(),
            task: task.to_string(),
        })
    }
}

/// Returns the positions for a prompt and `tokens` written tokens, the last of which is not read.
pub fn positions(prompt: usize, tokens: usize) -> usize {
    prompt.saturating_add(tokens.saturating_sub(1))
}

fn check_cancelled(cancel: &CancellationToken) -> Result<(), Cancelled> {
    if cancel.is_cancelled() {
        Err(Cancelled)
    } else {
        Ok(())
    }
}

const CANCEL_POLL_INTERVAL: Duration = Duration::from_millis(20);

fn pause(time: Duration, cancel: &CancellationToken) -> Result<(), Cancelled> {
    let started = Instant::now();
    loop {
        check_cancelled(cancel)?;
        let left = time.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(CANCEL_POLL_INTERVAL));
    }
}

#[cfg(test)]
mod tests;
