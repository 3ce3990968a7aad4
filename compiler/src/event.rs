//! Progress events and cancellation.

mod overall;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;

use crate::options::Treatment;
use crate::system::ordered;
use crate::system::ordered::ThreadError;
pub use overall::OverallProgress;

/// Progress event.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Estimated cost of the work that is left.
    Estimated(&'a CostEstimate),
    /// Start of a task.
    Begin {
        /// Kind of task.
        task: Task,
        /// Number of steps; 0 if unknown.
        steps: usize,
        /// Steps at the start that an earlier run has finished.
        done: usize,
    },
    /// A step of the task is done; the text names the unit or the tensor, or is empty.
    Done(&'a str),
    /// Warning for the user.
    Warning(&'a str),
    /// Note on the work.
    Note(&'a str),
    /// Folder of finished work; `None` if nothing is kept any more.
    KeptFolder(Option<&'a Path>),
    /// A candidate is made and measured, or an interrupted run has measured it.
    Trial {
        /// Treatment of weights.
        treatment: Treatment,
        /// Parameters after over parameters before, of the selected projections.
        ratio: f64,
    },
}

/// Kind of task of a compilation, an analysis or an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Task {
    /// Computing the digest of the source.
    Digest,
    /// Forward passes over the calibration text; each window is a step of each layer and of the
    /// head.
    Calibration,
    /// Contributions of inputs, for the channel permutation.
    ChannelPermutation,
    /// A backward pass.
    Gradients,
    /// Spectra of units, for an allocator.
    Spectra,
    /// Loss of each matrix in each type.
    Curves,
    /// Intrinsic dimension of the residual stream after each layer.
    Depth,
    /// Coordinates of each layer in which its weights truncate best.
    Gauges,
    /// Factorising or coding the units of a candidate.
    Encoding,
    /// Encoding what the bases of an elastic artifact lack.
    Residuals,
    /// Adding the tensors of the source to an artifact.
    SourceTensors,
    /// Flushing a file to disk.
    Sealing,
    /// Evaluating a candidate on windows of a text.
    Measuring,
    /// Evaluating the chosen artifact.
    Quality,
    /// Tuning norms and rows; it may end before its last step.
    Tuning,
    /// Measurements of an analysis.
    Analysis,
    /// Writing the tensors of an export.
    Exporting,
}

htc_formats::names!(Task {
    Digest "reading the source",
    Calibration "calibration",
    ChannelPermutation "channel order",
    Gradients "gradients",
    Spectra "spectra",
    Curves "losses by type",
    Depth "dimensions",
    Gauges "gauges",
    Encoding "encoding",
    Residuals "encoding residuals",
    SourceTensors "adding the source",
    Sealing "sealing",
    Measuring "measuring",
    Quality "measuring the result",
    Tuning "tuning",
    Analysis "analysis",
    Exporting "exporting",
});

/// Estimated cost of the work that is left, from shapes and a short benchmark.
#[derive(Clone, Debug, PartialEq)]
pub struct CostEstimate {
    /// Tasks in the order of execution, one for each candidate.
    pub tasks: Vec<TaskEstimate>,
    /// Bytes of memory at most, beside the mapped source.
    pub memory: u64,
    /// Bytes of disk space at most that are still to be written: the artifact, unfinished candidates,
    /// and before a calibration its cache.
    pub disk: u64,
}

/// Estimated duration of a task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TaskEstimate {
    /// Kind of task.
    pub task: Task,
    /// Seconds.
    pub seconds: f64,
}

impl CostEstimate {
    /// Returns the seconds of all tasks.
    pub fn seconds(&self) -> f64 {
        self.tasks.iter().map(|task| task.seconds).sum()
    }
}

/// Cancellation token; clones share the same state.
#[derive(Clone, Debug, Default)]
pub struct CancellationToken(Arc<AtomicBool>);

impl CancellationToken {
    /// Requests cancellation; stages check it between steps.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns true if cancellation was requested.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Error returned when the work was cancelled; finished parts are kept.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("interrupted")]
pub struct Cancelled;

/// Sink of progress events, with cancellation.
#[derive(Clone, Copy)]
pub struct Progress<'a> {
    sink: &'a (dyn Fn(Event) + Sync),
    cancel: Option<&'a CancellationToken>,
}

impl<'a> Progress<'a> {
    /// Returns progress that reports to `tell` and ends when `cancel` is requested.
    pub fn new(tell: &'a (dyn Fn(Event) + Sync), cancel: &'a CancellationToken) -> Self {
        let cancel = Some(cancel);
        Progress { sink: tell, cancel }
    }

    /// Returns silent progress without cancellation.
    pub fn silent() -> Progress<'static> {
        Progress {
            sink: &|_| {},
            cancel: None,
        }
    }

    /// Returns progress with the same cancellation and another sink.
    #[must_use]
    pub fn with_sink<'b>(self, tell: &'b (dyn Fn(Event) + Sync)) -> Progress<'b>
    where
        'a: 'b,
    {
        let cancel = self.cancel;
        Progress { sink: tell, cancel }
    }

    /// Reports an event.
    pub fn report(&self, event: Event) {
        (self.sink)(event);
    }

    /// Reports the start of a task.
    pub fn begin(&self, task: Task, steps: usize) {
        let done = 0;
        self.report(Event::Begin { task, steps, done });
    }

    /// Reports a finished step.
    pub fn step_done(&self, what: &str) -> Result<(), Cancelled> {
        self.report(Event::Done(what));
        self.check_cancelled()
    }

    /// Runs `work` on `0..jobs` with `threads` threads and returns the results in order. Each is
    /// reported as done, in order, under its `label`.
    ///
    /// # Errors
    /// That of the first failed job, or [`Cancelled`].
    pub(crate) fn run_steps<T: Send, E: Send + From<ThreadError> + From<Cancelled>>(
        &self,
        threads: usize,
        jobs: usize,
        label: impl Fn(usize) -> String,
        work: impl Fn(usize) -> Result<T, E> + Sync,
    ) -> Result<Vec<T>, E> {
        let mut all = Vec::with_capacity(jobs);
        ordered::for_each(threads, jobs, jobs, work, |index, found| {
            self.step_done(&label(index))?;
            all.push(found);
            Ok(())
        })?;
        Ok(all)
    }

    /// Checks for cancellation.
    ///
    /// # Errors
    /// [`Cancelled`] if cancellation was requested.
    pub fn check_cancelled(&self) -> Result<(), Cancelled> {
        match self.cancel {
            Some(cancel) if cancel.is_cancelled() => Err(Cancelled),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Progress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress")
            .field("cancel", &self.cancel)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
