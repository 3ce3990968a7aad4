//! How long the stages of a compilation took.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A stage of a compilation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Opening the source and deciding, with what is measured for it.
    #[default]
    Plan,
    /// Reading the source for its digest.
    Read,
    /// Calibrating, or finding that it was done before.
    Calibrate,
    /// Factorising and writing, all candidates.
    Factorise,
    /// Executing candidates on held-out text.
    Measure,
    /// Tuning what was chosen.
    Tune,
    /// Forcing the artifact to the disk.
    Seal,
}

/// Charges every moment to one stage: the innermost that is at work.
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
    /// Charges what `work` takes to a stage, less what stages inside it are charged with.
    pub fn during<T>(&self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let outer = self.switch(stage);
        let done = work();
        self.switch(outer);
        done
    }

    /// What a stage has taken.
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
mod tests {
    use std::thread::sleep;

    use super::*;

    #[test]
    fn every_moment_is_charged_once_to_the_innermost_stage() {
        let (clock, begun) = (StageClock::default(), Instant::now());
        let pause = Duration::from_millis(20);
        clock.during(Stage::Factorise, || {
            sleep(pause);
            clock.during(Stage::Measure, || sleep(3 * pause));
        });
        let spent = |stage| clock.spent(stage);
        assert!(spent(Stage::Measure) >= 3 * pause);
        assert!(spent(Stage::Factorise) >= pause);
        assert!(spent(Stage::Factorise) < spent(Stage::Measure));
        assert_eq!(spent(Stage::Seal), Duration::ZERO);
        let all = [Stage::Plan, Stage::Factorise, Stage::Measure].map(spent);
        assert!(all.iter().sum::<Duration>() <= begun.elapsed() + Duration::from_millis(5));
    }
}
