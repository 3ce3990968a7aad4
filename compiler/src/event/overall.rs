//! Progress of the whole work, from its estimated tasks and from the steps that are done.

use std::time::Duration;

use super::{CostEstimate, Event, Task, TaskEstimate};

/// Part of the estimated work that counts as done at the estimated speed, so that the first steps
/// do not decide the predicted speed alone.
const PRIOR_SHARE: f64 = 0.1;

/// Largest displayed fraction of work that is not over.
const MAX_FRACTION: f64 = 0.99;

/// Progress of the whole work.
///
/// A task that begins is taken to be the next of its kind among the estimated ones; those before it
/// were in a cache or are not needed. Tasks that were not estimated have the duration of an earlier
/// one of their kind, or none.
#[derive(Clone, Debug, Default)]
pub struct OverallProgress {
    /// Estimated tasks that have not begun.
    remaining: Vec<TaskEstimate>,
    /// All estimated tasks.
    estimated: Vec<TaskEstimate>,
    current: Option<CurrentTask>,
    /// Estimated seconds of the tasks that are over.
    done: f64,
    /// Largest finished fraction until now: work that was not expected does not take it back.
    reached: f64,
    /// Time of the first estimate.
    start: Duration,
    /// Candidates that were begun.
    candidates: usize,
    /// The last candidate is not encoded yet: its estimated tasks are still ahead.
    is_encoding_ahead: bool,
}

#[derive(Clone, Copy, Debug)]
struct CurrentTask {
    task: Task,
    /// Estimated seconds of the steps that this run does.
    seconds: f64,
    steps: usize,
    done: usize,
    /// Steps that an earlier run has done.
    before: usize,
}

impl CurrentTask {
    fn fraction(&self) -> f64 {
        let own = self.steps.saturating_sub(self.before);
        match own {
            0 => 0.0,
            _ => (self.done - self.before).min(own) as f64 / own as f64,
        }
    }
}

impl OverallProgress {
    /// Takes account of an event at a time since the start of the work.
    pub fn update(&mut self, event: &Event, now: Duration) {
        match event {
            Event::Estimated(estimate) => self.set_estimate(estimate, now),
            Event::Begin { task, steps, done } => self.begin(*task, *steps, *done),
            Event::Done(_) => {
                if let Some(current) = &mut self.current {
                    current.done += 1;
                }
            }
            Event::Trial { .. } => self.begin_candidate(),
            _ => {}
        }
        let fraction = self
            .seconds()
            .map_or(0.0, |(done, left)| done / (done + left));
        self.reached = self.reached.max(fraction);
    }

    fn set_estimate(&mut self, estimate: &CostEstimate, now: Duration) {
        if self.estimated.is_empty() {
            self.start = now;
        }
        self.remaining.clone_from(&estimate.tasks);
        self.estimated.extend_from_slice(&estimate.tasks);
    }

    /// Removes the estimated tasks of the candidate before if it was complete.
    fn begin_candidate(&mut self) {
        let is_encoding = |estimate: &TaskEstimate| estimate.task == Task::Encoding;
        if self.is_encoding_ahead
            && let Some(encoding) = self.remaining.iter().position(is_encoding)
        {
            self.remaining.drain(..=encoding);
            if self
                .remaining
                .first()
                .is_some_and(|of| of.task == Task::Measuring)
            {
                self.remaining.remove(0);
            }
        }
        self.candidates += 1;
        self.is_encoding_ahead = true;
    }

    fn begin(&mut self, task: Task, steps: usize, before: usize) {
        self.done += self.current.map_or(0.0, |current| current.seconds);
        let is_own = |other: &TaskEstimate| other.task == task;
        let estimated = match self.remaining.iter().position(is_own) {
            Some(next) => self.remaining.drain(..=next).next_back(),
            None => self.estimated.iter().copied().find(is_own),
        };
        self.is_encoding_ahead &= task != Task::Encoding;
        let share = 1.0 - before.min(steps) as f64 / steps.max(1) as f64;
        self.current = Some(CurrentTask {
            task,
            seconds: share * estimated.map_or(0.0, |estimated| estimated.seconds),
            steps,
            done: before,
            before,
        });
    }

    /// Returns the task in progress with its steps done and all of them; 0 if unknown.
    pub fn current(&self) -> Option<(Task, usize, usize)> {
        let current = self.current?;
        Some((current.task, current.done.min(current.steps), current.steps))
    }

    /// Returns the number of the candidate in progress, and how many are expected.
    pub fn candidate(&self) -> Option<(usize, usize)> {
        let is_encoding = |estimate: &&TaskEstimate| estimate.task == Task::Encoding;
        let left = self.remaining.iter().filter(is_encoding).count();
        let left = left.saturating_sub(usize::from(self.is_encoding_ahead));
        (self.candidates > 0).then_some((self.candidates, self.candidates + left))
    }

    /// Returns the finished fraction of the estimated work, below 1; `None` without an estimate.
    pub fn fraction(&self) -> Option<f64> {
        self.seconds()?;
        Some(self.reached.min(MAX_FRACTION))
    }

    /// Predicts the remaining time from the estimate and from the speed until now; `None` without an
    /// estimate.
    pub fn remaining(&self, now: Duration) -> Option<Duration> {
        let (done, left) = self.seconds()?;
        let prior = PRIOR_SHARE * (done + left);
        let passed = now.saturating_sub(self.start).as_secs_f64();
        let seconds = left * (passed + prior) / (done + prior);
        Duration::try_from_secs_f64(seconds).ok()
    }

    /// Returns the estimated seconds that are done and that are left.
    fn seconds(&self) -> Option<(f64, f64)> {
        let current = self.current;
        let (seconds, fraction) = current.map_or((0.0, 0.0), |c| (c.seconds, c.fraction()));
        let later: f64 = self.remaining.iter().map(|task| task.seconds).sum();
        let done = self.done + fraction * seconds;
        let left = (1.0 - fraction) * seconds + later;
        (done + left > 0.0).then_some((done, left))
    }
}

#[cfg(test)]
mod tests;
