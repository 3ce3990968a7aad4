//! Progress events and cancellation.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;

use crate::options::Treatment;
use crate::system::ordered;
use crate::system::ordered::ThreadError;

/// Progress event.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Start of a measurement with this number of steps.
    Measuring(Measurement, usize),
    /// Estimated seconds of the whole work.
    EstimatedSeconds(f64),
    /// Estimated bytes of memory beside the mapped source, and of disk, of the whole work.
    EstimatedBytes {
        /// Anonymous memory at most.
        memory: u64,
        /// Disk space with the unfinished work.
        disk: u64,
    },
    /// Remaining steps of a backward pass.
    Gradients(usize),
    /// Maximum remaining steps of a tuning.
    Tuning(usize),
    /// Computing the digest of the source.
    Digest,
    /// Start of a calibration; the first `cached_passes` are cached.
    Calibrating {
        /// Number of windows.
        windows: usize,
        /// Number of layers plus one for the head.
        passes: usize,
        /// Number of cached passes.
        cached_passes: usize,
    },
    /// A window has passed a layer or the head.
    Window,
    /// Warning for the user.
    Warning(&'a str),
    /// Note on the work.
    Note(&'a str),
    /// Folder of finished work; `None` if nothing is kept any more.
    KeptFolder(Option<&'a Path>),
    /// Number of tensors to export.
    Exporting(usize),
    /// Number of steps that follow.
    StepCount(usize),
    /// A step is done; the text names the unit or the tensor.
    Done(&'a str),
    /// Flushing the artifact to disk.
    Flushing,
    /// A candidate is made and measured.
    Trial {
        /// Treatment of weights.
        treatment: Treatment,
        /// Parameters after over parameters before, of the selected projections.
        ratio: f64,
    },
    /// Progress of the evaluation on held-out windows.
    Evaluate {
        /// Windows done.
        done: usize,
        /// Total number of windows.
        total: usize,
    },
}

/// Kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Measurement {
    /// Spectra of units, for an allocator.
    Spectra,
    /// Loss of each matrix in each type.
    Curves,
    /// Intrinsic dimension of the residual stream after each layer.
    Depth,
    /// Coordinates of each layer in which its weights truncate best.
    Gauges,
    /// Contributions of inputs, for the channel permutation.
    ChannelPermutation,
    /// Measurements of an analysis.
    Analysis,
}

htc_formats::names!(Measurement {
    Spectra "spectra",
    Curves "losses by type",
    Depth "dimensions",
    Gauges "gauges",
    ChannelPermutation "order",
    Analysis "analysis",
});

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
    /// Returns a watch that reports to `tell` and ends when `cancel` is requested.
    pub fn new(tell: &'a (dyn Fn(Event) + Sync), cancel: &'a CancellationToken) -> Self {
        let cancel = Some(cancel);
        Progress { sink: tell, cancel }
    }

    /// Returns a silent watch without cancellation.
    pub fn silent() -> Progress<'static> {
        Progress {
            sink: &|_| {},
            cancel: None,
        }
    }

    /// Returns a watch with the same cancellation and another sink.
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
        f.debug_struct("Watch")
            .field("cancel", &self.cancel)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
