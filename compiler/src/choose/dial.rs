//! Quality of an elastic artifact at several active fractions.

use htc_formats::htz::ActiveFractionPoint;
use htc_loader::dial::{ActiveFraction, ActiveSetting, WeightBytes};

use super::bench::CandidateEvaluator;
use super::{SelectedArtifact, Selection, TrialError};
use crate::calibrate::windows::HeldOut;
use crate::event::Task;
use crate::make::BuiltArtifact;
use crate::measure::Distance;

/// Number of measured active fractions: both ends and equidistant points between.
pub const ACTIVE_FRACTION_POINTS: usize = 5;

impl Selection<'_> {
    /// Tunes the scales of an artifact with refinements, within a limit for the whole.
    pub fn tune_elastic(
        &self,
        chosen: &mut SelectedArtifact,
        bases: &BuiltArtifact,
    ) -> Result<(), TrialError> {
        let Some(windows) = self.held_out().and_then(HeldOut::validation) else {
            return Ok(());
        };
        let bench = CandidateEvaluator::new(*self)?;
        let before = chosen.tuning.take();
        let (better, tuning) =
            bench.tune_elastic(&chosen.built, bases, before.as_ref(), &windows)?;
        if let Some(better) = better {
            chosen.built = better;
        }
        chosen.tuning = tuning;
        chosen.tuning_of_bases = before;
        chosen.validation_windows = windows.count();
        Ok(())
    }

    /// Measures a whole artifact with refinements on the validation split, reusing earlier results.
    pub fn measure_whole(&self, built: &BuiltArtifact) -> Result<Distance, TrialError> {
        let windows = self.held_out().and_then(HeldOut::validation);
        let Some(windows) = windows.filter(|windows| windows.count() > 1) else {
            return Err(self.too_few_windows());
        };
        Ok(CandidateEvaluator::new(*self)?
            .measure_built(built, &windows)?
            .1)
    }

    /// Measures the chosen artifact at several active fractions on the test split and records the
    /// results.
    pub fn measure_active_fractions(
        &self,
        chosen: &mut SelectedArtifact,
    ) -> Result<(), TrialError> {
        let Some(windows) = self.test_windows() else {
            chosen.notes.push(
                "what the artifact is at parts of its bytes was not measured: no held-out window is left for that; \
                 a longer text, or --held-out, gives some"
                    .to_owned(),
            );
            return Ok(());
        };
        let bench = CandidateEvaluator::new(*self)?;
        let key = chosen.built.key;
        let model = bench.load_artifact(key)?;
        let dial = model.dial();
        let mut points = Vec::new();
        for setting in measured_settings(dial) {
            let (evaluation, distance) =
                bench.evaluate_at(Task::Quality, &model, setting, &windows)?;
            points.push(ActiveFractionPoint {
                refinements: setting.refinements as u64,
                bytes: dial.active_bytes(setting),
                fraction: dial.fraction(setting),
                kl: distance.kl.max(0.0),
                perplexity_ratio: distance.perplexity_ratio,
            });
            if setting.refinements == dial.refinements() {
                let validation = chosen.validation_windows;
                let note = bench.put_quality(key, &windows, validation, &evaluation, &distance)?;
                chosen.notes.extend(note);
                chosen.quality = Some(evaluation);
            }
        }
        // Perplexity may overflow.
        if points
            .iter()
            .all(|point| point.perplexity_ratio.is_finite())
        {
            self.builder.put_active_fractions(key, points.clone())?;
        }
        chosen.active_fractions = points;
        Ok(())
    }
}

fn measured_settings(dial: &WeightBytes) -> Vec<ActiveSetting> {
    let setting = |refinements| ActiveSetting {
        refinements,
        ..ActiveSetting::FULL
    };
    let (least, all) = (setting(0), dial.refinements());
    let mut found = vec![least];
    let first = dial.fraction(least);
    for step in 1..ACTIVE_FRACTION_POINTS - 1 {
        let part = step as f64 / (ACTIVE_FRACTION_POINTS - 1) as f64;
        let between = ActiveFraction::new(first + (1.0 - first) * part);
        let between = between.and_then(|fraction| dial.setting_for(fraction));
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
