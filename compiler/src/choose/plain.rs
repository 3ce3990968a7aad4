//! Files in one type, beside which an artifact is to be seen.

use super::bench::Bench;
use super::request::ChoiceRequest;
use super::{Trial, TrialError};
use crate::event::Watch;
use crate::make::Inputs;
use crate::make::work::Work;
use crate::plan::Plan;
use crate::system::clock::StageClock;

/// Makes the artifacts of plans that give every matrix the same type, and measures each on the windows that what was
/// chosen is measured on. They decide nothing, and none of them stays.
///
/// # Errors
/// [`TrialError`].
pub fn measure_plain(
    inputs: &Inputs,
    plans: &[Plan],
    wanted: ChoiceRequest,
    work: &Work,
    clock: &StageClock,
    watch: Watch,
) -> Result<Vec<Trial>, TrialError> {
    let held_out = inputs.calibration.and_then(|found| found.held_out.as_ref());
    let windows = held_out.and_then(|held_out| wanted.reporting(held_out));
    let (Some(windows), [_, ..]) = (windows, plans) else {
        return Ok(Vec::new());
    };
    let bench = Bench::new(inputs, work, clock, watch)?;
    let treatment = wanted.treatment.resolve(wanted.calibrated)?;
    for plan in plans {
        let found = bench.measure(plan, treatment, &windows)?;
        bench.discard(&found);
    }
    Ok(bench.into_trials())
}
