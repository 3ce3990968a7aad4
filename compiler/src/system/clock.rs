//! Durations of the stages of a compilation.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Stage of a compilation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Opening the source and planning, with its measurements.
    #[default]
    Plan,
    /// Reading the source for its digest.
    Read,
    /// Calibration, or loading it from the cache.
    Calibrate,
    /// Factorising and writing, for all candidates.
    Factorise,
    /// Evaluating candidates on held-out text.
    Measure,
    /// Tuning the chosen candidate.
    Tune,
    /// Syncing the artifact to the disk.
    Seal,
}

/// Clock that charges time to the innermost active stage.
#[derive(Debug)]
pub struct StageClock {
    stage: Cell<Stage>,
    since: Cell<Instant>,
    spent: RefCell<BTreeMap<Stage, Duration>>,
}

impl Default for StageClock {
    fn default() -> Self {
        StageClock {
            stage: Cell::default(),
            since: Cell::new(Instant::now()),
            spent: RefCell::default(),
        }
    }
}

impl StageClock {
    /// Runs `work` and charges its time to `stage`, without that of nested stages.
    pub fn time<T>(&self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let outer = self.switch(stage);
        let done = work();
        self.switch(outer);
        done
    }

    /// Returns the time charged to a stage.
    pub fn spent(&self, stage: Stage) -> Duration {
        self.switch(self.stage.get());
        self.spent.borrow().get(&stage).copied().unwrap_or_default()
    }

    fn switch(&self, to: Stage) -> Stage {
        let now = Instant::now();
        let from = self.stage.replace(to);
        let passed = now - self.since.replace(now);
        *self.spent.borrow_mut().entry(from).or_default() += passed;
        from
    }
}

#[cfg(test)]
mod tests;
