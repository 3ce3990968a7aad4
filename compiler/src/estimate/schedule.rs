//! Order and duration of the tasks of a compilation.

use super::{EstimateInputs, StageSeconds, stages, workload};
use crate::choose;
use crate::event::{Task, TaskEstimate};
use crate::options::{CompileOptions, PlanSource};

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
}

impl Candidates {
    /// Returns the numbers for a choice among `candidates`.
    pub fn new(options: &CompileOptions, candidates: usize) -> Candidates {
        let compared = match &options.planning {
            PlanSource::Compute { request, .. } => options
                .artifact
                .max_comparison_files(request.method, request.effort),
            PlanSource::File(_) => 0,
        };
        let is_elastic = options.artifact.planes > 1;
        let (refinements, points) = match (is_elastic, options.limit.is_none()) {
            (false, _) => (0, 0),
            (true, true) => (1, choose::ACTIVE_FRACTION_POINTS),
            (true, false) => (candidates, choose::ACTIVE_FRACTION_POINTS),
        };
        Candidates {
            candidates,
            compared,
            refinements,
            points,
        }
    }

    /// Returns the number of artifacts that are made without refinements.
    pub fn made(self) -> usize {
        self.candidates + self.compared
    }

    /// Returns the number of measurements on all held-out windows. A single candidate is measured on
    /// all of them; several are on the validation split, and the chosen one on the test split.
    pub fn measurements(self) -> f64 {
        0.5 * self.measured_splits() as f64
    }

    fn measured_splits(self) -> usize {
        let choice = match self.candidates {
            0 | 1 => 2,
            many => many + 1,
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
    let counts = Candidates::new(options, expected.candidates);
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
    tasks_of_candidates(stages, Candidates::new(options, expected.candidates))
}

fn tasks_of_candidates(stages: &StageSeconds, counts: Candidates) -> Vec<TaskEstimate> {
    let Candidates {
        candidates,
        compared,
        refinements,
        points,
    } = counts;
    let estimate = |task, seconds| TaskEstimate { task, seconds };
    let made = (counts.made() + refinements).max(1);
    let encoding = estimate(Task::Encoding, stages.factorise / made as f64);
    let residuals = estimate(Task::Residuals, encoding.seconds);
    let splits = counts.measured_splits();
    let measuring = estimate(Task::Measuring, stages.measure / splits as f64);
    let curves = estimate(Task::Curves, curve_share(stages, counts));
    let searches_refined = refinements > 1;
    let mut tasks = Vec::new();
    for _ in 0..candidates {
        tasks.push(encoding);
        if searches_refined {
            tasks.extend([curves, residuals]);
        }
        if candidates > 1 {
            tasks.push(measuring);
        }
    }
    if refinements == 1 {
        tasks.extend([curves, residuals]);
    }
    if stages.tune > 0.0 {
        tasks.push(estimate(Task::Tuning, stages.tune));
    }
    // On the test split, or on all windows.
    let whole = if candidates > 1 { 1.0 } else { 2.0 };
    tasks.push(estimate(Task::Measuring, whole * measuring.seconds));
    tasks.extend(std::iter::repeat_n(measuring, points));
    for _ in 0..compared {
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
