//! Quality of an elastic artifact at several active fractions.

use htc_formats::htz::DialPoint;
use htc_loader::dial::{Dial, Fraction, Setting};

use super::bench::Bench;
use super::request::ChoiceRequest;
use super::{Chosen, TrialError, too_few};
use crate::calibrate::windows::HeldOut;
use crate::event::Watch;
use crate::make::work::Work;
use crate::make::{Built, Inputs};
use crate::measure::Distance;
use crate::request::Limit;
use crate::system::clock::StageClock;

/// Number of measured active fractions: both ends and equidistant points between.
pub const DIAL_POINTS: usize = 5;

/// Tunes the scales of an artifact with refinements on the validation split, within a limit for the
/// whole.
///
/// # Errors
/// [`TrialError`].
pub fn tune_whole(
    inputs: &Inputs,
    chosen: &mut Chosen,
    bases: &Built,
    wanted: (usize, Limit),
    work: &Work,
    clock: &StageClock,
    watch: Watch,
) -> Result<(), TrialError> {
    let held_out = inputs.calibration.and_then(|found| found.held_out.as_ref());
    let Some(windows) = held_out.and_then(HeldOut::choosing) else {
        return Ok(());
    };
    let bench = Bench::new(inputs, work, clock, watch)?;
    let before = chosen.tuning.take();
    let found = bench.tuned_whole((&chosen.built, bases, before.as_ref()), wanted, &windows)?;
    let (better, tuning) = found;
    if let Some(better) = better {
        chosen.built = better;
    }
    chosen.tuning = tuning;
    chosen.tuning_of_bases = before;
    chosen.choosing = windows.count();
    Ok(())
}

/// Measures a whole artifact with refinements on the validation split, reusing earlier results.
///
/// # Errors
/// [`TrialError`], also with too few windows for a limit.
pub fn measure_whole(
    inputs: &Inputs,
    built: &Built,
    wanted: ChoiceRequest,
    work: &Work,
    clock: &StageClock,
    watch: Watch,
) -> Result<Distance, TrialError> {
    let held_out = inputs.calibration.and_then(|found| found.held_out.as_ref());
    let windows = held_out.and_then(HeldOut::choosing);
    let Some(windows) = windows.filter(|windows| windows.count() > 1) else {
        return Err(too_few(wanted, held_out.map_or(0, HeldOut::count)));
    };
    let bench = Bench::new(inputs, work, clock, watch)?;
    Ok(bench.measure_built(built, &windows)?.1)
}

/// Measures the chosen artifact at several active fractions on the test split and records the
/// results in it.
///
/// # Errors
/// [`TrialError`].
pub fn measure_dial(
    inputs: &Inputs,
    chosen: &mut Chosen,
    wanted: ChoiceRequest,
    work: &Work,
    clock: &StageClock,
    watch: Watch,
) -> Result<(), TrialError> {
    let held_out = inputs.calibration.and_then(|found| found.held_out.as_ref());
    let Some(windows) = held_out.and_then(|held_out| wanted.reporting(held_out)) else {
        chosen.notes.push(
            "what the artifact is at parts of its bytes was not measured: no held-out window is left for that; \
             a longer text, or --held-out, gives some"
                .to_owned(),
        );
        return Ok(());
    };
    let bench = Bench::new(inputs, work, clock, watch)?;
    let key = chosen.built.key;
    let model = bench.made(key)?;
    let dial = model.dial();
    let mut points = Vec::new();
    for setting in settings(dial) {
        let (evaluation, distance) = bench.evaluate_at(&model, setting, &windows)?;
        points.push(DialPoint {
            refinements: setting.refinements as u64,
            bytes: dial.bytes(setting),
            fraction: dial.fraction(setting),
            kl: distance.kl.max(0.0),
            perplexity_ratio: distance.perplexity_ratio,
        });
        if setting.refinements == dial.refinements() {
            let found = (evaluation, distance);
            let note = bench.put_quality(key, &windows, chosen.choosing, &found)?;
            chosen.notes.extend(note);
            chosen.quality = Some(found.0);
        }
    }
    // Perplexity may overflow.
    if points
        .iter()
        .all(|point| point.perplexity_ratio.is_finite())
    {
        bench.put_dial(key, points.clone())?;
    }
    chosen.dial = points;
    Ok(())
}

fn settings(dial: &Dial) -> Vec<Setting> {
    let setting = |refinements| Setting {
        refinements,
        ..Setting::FULL
    };
    let (least, all) = (setting(0), dial.refinements());
    let mut found = vec![least];
    let first = dial.fraction(least);
    for step in 1..DIAL_POINTS - 1 {
        let part = step as f64 / (DIAL_POINTS - 1) as f64;
        let between = Fraction::new(first + (1.0 - first) * part);
        let between = between.and_then(|fraction| dial.at(fraction));
        // Large matrices may leave no setting between two points.
        if let Ok(between) = between
            && between.refinements < all
            && found
                .last()
                .is_some_and(|last| between.refinements > last.refinements)
        {
            found.push(between);
        }
    }
    found.push(setting(all));
    found
}
