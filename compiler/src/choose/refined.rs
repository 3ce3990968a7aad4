//! Tuning of an artifact with refinements, as a whole.

use super::bench::Bench;
use super::request::ChoiceRequest;
use super::{Chosen, TrialError};
use crate::event::Watch;
use crate::make::Inputs;
use crate::make::work::Work;
use crate::system::clock::{Stage, StageClock};
use crate::tune::{Course, Tuned};
use htc_formats::htz::TuningRecord;
use htc_loader::dial::Setting;

/// Tunes the norms of an artifact for all of it.
///
/// # Errors
/// [`TrialError`].
pub fn tune_refined(
    inputs: &Inputs,
    chosen: &mut Chosen,
    wanted: ChoiceRequest,
    work: &Work,
    clock: &StageClock,
    watch: Watch,
) -> Result<(), TrialError> {
    let Some(calibration) = inputs.calibration else {
        return Ok(());
    };
    let Some(windows) = calibration.held_out.as_ref().and_then(|h| h.choosing()) else {
        return Ok(());
    };
    let bench = Bench::new(inputs, work, clock, watch)?;
    let made = bench.made(chosen.built.key)?;
    let base = Setting {
        refinements: 0,
        ..Setting::FULL
    };
    let before = [Setting::FULL, base].map(|s| bench.evaluate_at(&made, s, &windows));
    let course = Course {
        source: bench.source(),
        made: &made,
        calibration,
        held_out: &windows,
        steps: std::env::var("HTC_FULL")
            .ok()
            .and_then(|s| s.parse().ok())
            .unwrap_or(wanted.tune),
        threads: inputs.threads,
    };
    let artifact = bench.artifact(chosen.built.key);
    let Tuned { tensors, course } = bench.during(Stage::Tune, || course.tune(artifact, watch))?;
    if tensors.is_empty() {
        return Ok(());
    }
    let at = |step: usize| course.trace.iter().find(|point| point.step == step);
    let kl = |step| at(step).map_or(0.0, |point| point.kl.max(0.0));
    let record = TuningRecord {
        steps: course.kept as u64,
        kl_before: kl(0),
        kl_after: kl(course.kept),
    };
    let better = bench.with_tuned(&chosen.built, &tensors, record)?;
    let made = bench.made(better.key)?;
    let after = [Setting::FULL, base].map(|s| bench.evaluate_at(&made, s, &windows));
    for (b, a) in before.into_iter().zip(after) {
        eprintln!("HTC_FULL {:.5} -> {:.5}", b?.1.kl, a?.1.kl);
    }
    chosen.built = better;
    Ok(())
}
