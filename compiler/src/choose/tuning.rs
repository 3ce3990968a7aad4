//! Tuning of the chosen candidate, kept if it measures better.

use std::fmt;

use htc_formats::htz::TuningRecord;
use htc_loader::dial::ActiveSetting;

use super::bench::{Candidate, CandidateEvaluator, Trial};
use super::{ACTIVE_FRACTION_POINTS, TrialError};
use crate::calibrate::windows::Windows;
use crate::event::Task;
use crate::make::BuiltArtifact;
use crate::measure::{Distance, Evaluation};
use crate::system::clock::Stage;
use crate::tune::{Tuning, TuningInputs, TuningResult};

/// Maximum loss of bases with scales tuned for the whole artifact, relative to the loss with
/// separately tuned scales.
const MAX_BASE_LOSS_RATIO: f64 = 1.05;

/// The bases of an artifact with residuals, and the steps with which they were tuned.
#[derive(Clone, Copy)]
struct TunedBases<'a> {
    built: &'a BuiltArtifact,
    steps: usize,
}

impl CandidateEvaluator<'_> {
    /// Returns the tuned artifact if it measures better on the validation split within the limit,
    /// else the artifact unchanged.
    pub(super) fn tune_candidate(
        &self,
        candidate: &mut Candidate,
        built: BuiltArtifact,
        windows: &Windows,
    ) -> Result<(BuiltArtifact, Option<Tuning>), TrialError> {
        let Some((mut course, better)) = self.run_tuning(&built, None, windows)? else {
            return Ok((built, None));
        };
        course.kl_before = candidate.distance.kl;
        let Some(better) = better else {
            return Ok((built, Some(course)));
        };
        let (evaluation, distance) = self.measure_built(&better, windows)?;
        course.kl_after = Some(distance.kl);
        let limit = self.selection.request.limit;
        let holds = limit.is_none() || limit.holds(&distance);
        let gained = holds && distance.kl < candidate.distance.kl;
        let trial = self.derive_trial(candidate.trial, |trial| Trial {
            tuned: course.kept,
            evaluation,
            ..trial
        });
        if gained {
            self.record_tuning(&better, course.kept, &course)?;
            candidate.distance = distance;
            candidate.trial = trial;
            Ok((better, Some(course)))
        } else {
            course.kept = 0;
            Ok((built, Some(course)))
        }
    }

    /// Keeps the result if the whole measures better and the bases alone lose at most
    /// [`MAX_BASE_LOSS_RATIO`].
    pub(super) fn tune_elastic(
        &self,
        built: &BuiltArtifact,
        of_bases: &BuiltArtifact,
        before: Option<&Tuning>,
        windows: &Windows,
    ) -> Result<(Option<BuiltArtifact>, Option<Tuning>), TrialError> {
        let limit = self.selection.request.limit;
        let steps_before = before.map_or(0, |course| course.kept);
        let bases = TunedBases {
            built: of_bases,
            steps: steps_before,
        };
        let found = self.run_tuning(built, Some(bases), windows)?;
        let Some((mut course, better)) = found else {
            return Ok((None, None));
        };
        let whole = |of: &BuiltArtifact| Ok::<_, TrialError>(self.measure_built(of, windows)?.1);
        course.kl_before = whole(built)?.kl;
        let Some(better) = better else {
            return Ok((None, Some(course)));
        };
        let after = whole(&better)?;
        course.kl_after = Some(after.kl);
        let holds = limit.is_none() || limit.holds(&after);
        let bases = |of: &BuiltArtifact| {
            let setting = ActiveSetting {
                refinements: 0,
                ..ActiveSetting::FULL
            };
            let found = self.evaluate_at(
                Task::Measuring,
                &self.load_artifact(of.key)?,
                setting,
                windows,
            )?;
            Ok::<_, TrialError>(found.1.kl)
        };
        if holds
            && after.kl < course.kl_before
            && bases(&better)? <= MAX_BASE_LOSS_RATIO * bases(built)?
        {
            self.record_tuning(&better, steps_before + course.kept, &course)?;
            return Ok((Some(better), Some(course)));
        }
        course.kept = 0;
        Ok((None, Some(course)))
    }

    /// Returns the course and the tuned artifact if any step gained. With refinements, the bases
    /// count too.
    fn run_tuning(
        &self,
        built: &BuiltArtifact,
        bases: Option<TunedBases<'_>>,
        windows: &Windows,
    ) -> Result<Option<(Tuning, Option<BuiltArtifact>)>, TrialError> {
        let Some(calibration) = self.selection.builder.calibration else {
            return Ok(None);
        };
        let made = self.load_artifact(built.key)?;
        let steps_before = bases.map_or(0, |bases| bases.steps);
        let bases = bases
            .map(|bases| self.load_artifact(bases.built.key))
            .transpose()?;
        let course = TuningInputs {
            source: &self.model,
            compiled: &made,
            bases: bases.as_deref(),
            calibration,
            held_out: windows,
            steps: self.selection.request.tune,
            threads: self.selection.builder.threads(),
        };
        let artifact = self.artifact(built.key);
        let tuned = self.time_stage(Stage::Tune, || course.tune(artifact, self.progress()))?;
        let TuningResult {
            changes,
            mut course,
        } = tuned;
        if changes.is_empty() {
            return Ok(Some((course, None)));
        }
        let at = |step: usize| course.trace.iter().find(|point| point.step == step);
        let kl = |step| at(step).map_or(0.0, |point| point.kl.max(0.0));
        let record = TuningRecord {
            steps: (steps_before + course.kept) as u64,
            kl_before: kl(0),
            kl_after: kl(course.kept),
        };
        let builder = &self.selection.builder;
        match builder.with_tuned(built, &changes, record, ACTIVE_FRACTION_POINTS) {
            Err(error) if error.has_no_code() => {
                course.discard(&error);
                Ok(Some((course, None)))
            }
            better => Ok(Some((course, Some(better?)))),
        }
    }

    /// Writes what was measured by executing the artifact in place of what the descent measured.
    fn record_tuning(
        &self,
        built: &BuiltArtifact,
        steps: usize,
        course: &Tuning,
    ) -> Result<(), TrialError> {
        let record = TuningRecord {
            steps: steps as u64,
            kl_before: course.kl_before.max(0.0),
            kl_after: course.kl_after.unwrap_or(course.kl_before).max(0.0),
        };
        Ok(self.selection.builder.put_tuning(built.key, record)?)
    }

    pub(super) fn measure_built(
        &self,
        built: &BuiltArtifact,
        windows: &Windows,
    ) -> Result<(Evaluation, Distance), TrialError> {
        let (artifact, digest) = (self.artifact(built.key), windows.digest());
        if let Some(found) = artifact.measurements(digest) {
            return Ok(found);
        }
        let found = self.evaluate(Task::Measuring, built.key, windows)?;
        artifact.store_measurements(digest, &found)?;
        Ok(found)
    }
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (asked, taken, kl_before) = (self.asked, self.taken, self.kl_before);
        if let Some(why) = &self.without_code {
            return write!(
                f,
                "scales stay as they were: what {taken} of {asked} steps found cannot be stored (KL {kl_before:.5}; {why})"
            );
        }
        match (self.kept, self.kl_after) {
            (0, None) => write!(
                f,
                "scales stay as they were: {taken} of {asked} steps gained nothing (KL {kl_before:.5})"
            ),
            (0, Some(after)) => write!(
                f,
                "scales stay as they were: {taken} of {asked} steps did not gain, or left the limit, where it is executed (KL {kl_before:.5} -> {after:.5})"
            ),
            (kept, after) => write!(
                f,
                "{} scales of norms and rows, {kept} of {asked} steps: KL {kl_before:.5} -> {:.5} on the held-out windows that decide",
                self.numbers,
                after.unwrap_or(kl_before)
            ),
        }
    }
}
