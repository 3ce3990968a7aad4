//! Order and duration of the tasks of a compilation.

use super::{EstimateInputs, StageSeconds, stages, workload};
use crate::choose;
use crate::event::{Task, TaskEstimate};
use crate::options::CompileOptions;

/// Numbers of artifacts that a compilation makes and measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidates {
    /// Candidates to choose from.
    pub candidates: usize,
    /// Files of a single type for comparison.
    pub compared: usize,
    /// Refinements of bases: with every candidate if a limit applies to the whole.
    pub refinements: usize,
    /// Active fractions at which the artifact is measured.
    pub points: usize,
    /// Tunings: of the artifact, or of the bases and then of the whole.
    pub tunings: usize,
}

impl Candidates {
    /// Returns the numbers for a choice among `candidates`, tuned in `tune` steps.
    pub fn new(options: &CompileOptions, candidates: usize, tune: usize) -> Candidates {
        let is_elastic = options.artifact.planes > 1;
        let (refinements, points) = match (is_elastic, options.limit.is_none()) {
            (false, _) => (0, 0),
            (true, true) => (1, choose::ACTIVE_FRACTION_POINTS),
            (true, false) => (candidates, choose::ACTIVE_FRACTION_POINTS),
        };
        Candidates {
            candidates,
            compared: options.max_comparison_files(),
            refinements,
            points,
            tunings: match (tune, is_elastic) {
                (0, _) => 0,
                (_, false) => 1,
                (_, true) => 2,
            },
        }
    }

    /// Returns the number of artifacts that are made without refinements.
    pub fn made(self) -> usize {
        self.candidates + self.compared
    }

    /// Returns true if the validation split decides.
    fn selects(self) -> bool {
        self.candidates > 1 || self.tunings > 0
    }

    /// Returns the number of measurements on all held-out windows. Without a choice the result is
    /// measured on all of them; else candidates and what is tuned are measured on the validation
    /// split, and the result on the test split.
    pub fn measurements(self) -> f64 {
        0.5 * self.measured_splits() as f64
    }

    fn measured_splits(self) -> usize {
        let choice = if self.selects() {
            self.candidates + self.tunings + 1
        } else {
            2
        };
        choice + self.points + self.compared
    }
}

/// Returns all tasks in the order of execution, with the seconds of their stages.
pub(crate) fn tasks_before_planning(
    options: &CompileOptions,
    expected: &EstimateInputs,
    stages: &StageSeconds,
) -> Vec<TaskEstimate> {
    let gradients = stages::gradient_seconds(workload(options, expected), expected.speed);
    let counts = Candidates::new(options, expected.candidates, expected.tune);
    let before = [
        (Task::Calibration, stages.calibrate - gradients),
        (Task::Gradients, gradients),
        (Task::Curves, curve_share(stages, counts)),
    ];
    let before = before.map(|(task, seconds)| TaskEstimate { task, seconds });
    let before = before.into_iter().filter(|task| task.seconds > 0.0);
    before
        .chain(tasks_after_planning(options, expected, stages))
        .collect()
}

/// Returns the tasks after planning in the order of execution, with the seconds of their stages.
pub(crate) fn tasks_after_planning(
    options: &CompileOptions,
    expected: &EstimateInputs,
    stages: &StageSeconds,
) -> Vec<TaskEstimate> {
    let counts = Candidates::new(options, expected.candidates, expected.tune);
    tasks_of_candidates(stages, counts)
}

fn tasks_of_candidates(stages: &StageSeconds, counts: Candidates) -> Vec<TaskEstimate> {
    let estimate = |task, seconds| TaskEstimate { task, seconds };
    let made = (counts.made() + counts.refinements).max(1);
    let encoding = estimate(Task::Encoding, stages.factorise / made as f64);
    let refined = [
        estimate(Task::Curves, curve_share(stages, counts)),
        estimate(Task::Residuals, encoding.seconds),
    ];
    let split = stages.measure / counts.measured_splits() as f64;
    let measuring = estimate(Task::Measuring, split);
    let mut tasks = Vec::new();
    for _ in 0..counts.candidates {
        tasks.push(encoding);
        if counts.refinements > 1 {
            tasks.extend(refined);
        }
        if counts.selects() {
            tasks.push(measuring);
        }
    }
    // The tuning of bases and residuals executes both.
    let parts: f64 = (1..=counts.tunings).sum::<usize>() as f64;
    let tuning = |part: usize| estimate(Task::Tuning, stages.tune * part as f64 / parts);
    if counts.tunings > 0 {
        tasks.extend([tuning(1), measuring]);
    }
    let splits_of_result = if counts.selects() { 1.0 } else { 2.0 };
    tasks.push(estimate(Task::Quality, splits_of_result * split));
    if counts.refinements == 1 {
        tasks.extend(refined);
    }
    if counts.tunings > 1 {
        tasks.extend([tuning(2), measuring]);
    }
    let point = estimate(Task::Quality, split);
    tasks.extend(std::iter::repeat_n(point, counts.points));
    for _ in 0..counts.compared {
        tasks.extend([encoding, measuring]);
    }
    tasks
}

/// Returns the seconds of measuring the losses by type once.
fn curve_share(stages: &StageSeconds, counts: Candidates) -> f64 {
    stages.plan / (1 + counts.refinements) as f64
}

#[cfg(test)]
mod tests;
