//! Files of a single type for comparison with the artifact.

use super::bench::CandidateEvaluator;
use super::request::ChoiceRequest;
use super::{Trial, TrialError};
use crate::event::{Event, Progress};
use crate::make::work::WorkFolder;
use crate::make::{MakeError, MakeInputs};
use crate::plan::Plan;
use crate::system::clock::StageClock;
use crate::unit::UnitsError;

/// Makes and measures the artifacts of single-type plans on the test split.
pub fn measure_single_type_files(
    inputs: &MakeInputs,
    plans: &[Plan],
    wanted: ChoiceRequest,
    work: &WorkFolder,
    clock: &StageClock,
    watch: Progress,
) -> Result<Vec<Trial>, TrialError> {
    let held_out = inputs.calibration.and_then(|found| found.held_out.as_ref());
    let windows = held_out.and_then(|held_out| wanted.test_windows(held_out));
    let (Some(windows), [_, ..]) = (windows, plans) else {
        return Ok(Vec::new());
    };
    let inputs = &MakeInputs {
        is_base: false,
        ..*inputs
    };
    let bench = CandidateEvaluator::new(inputs, work, clock, watch)?;
    let treatment = wanted.treatment.resolve(wanted.calibrated)?;
    for plan in plans {
        match bench.measure(plan, treatment, &windows) {
            Ok(found) => bench.discard(&found),
            // Skip types that a matrix cannot have.
            Err(TrialError::Make(MakeError::Units(UnitsError::Unit { error, .. }))) => {
                let dtype = plan.uniform_type().map(|dtype| dtype.to_string());
                let dtype = dtype.unwrap_or_default();
                watch.report(Event::Note(&format!("not compared with {dtype}: {error}")));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(bench.into_trials())
}
