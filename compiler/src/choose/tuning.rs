//! Tuning of what was chosen, where it measures better.

use std::fmt;

use htc_formats::htz::TuningRecord;
use htc_formats::source::ModelFile;
use htc_loader::Model;

use super::TrialError;
use super::bench::{Bench, Candidate, Trial};
use super::request::ChoiceRequest;
use crate::calibrate::windows::Windows;
use crate::make::Built;
use crate::measure::{Distance, Evaluation};
use crate::system::clock::Stage;
use crate::tune::{Course, Tuned, Tuning};

impl Bench<'_> {
    /// Tunes the artifact of a candidate: what comes of it where it measures better on the windows that decide, and
    /// holds the limit there, else the artifact as it was. The candidate is its trial then.
    pub(super) fn tuned(
        &self,
        candidate: &mut Candidate,
        built: Built,
        wanted: ChoiceRequest,
        windows: &Windows,
    ) -> Result<(Built, Option<Tuning>), TrialError> {
        let Some(calibration) = self.calibration() else {
            return Ok((built, None));
        };
        let artifact = self.artifact(built.key);
        let file = ModelFile::from_htz(&artifact.open()?)?;
        let path = file.path.clone();
        let made = Model::bind(file).map_err(|error| TrialError::Load { path, error })?;
        let course = Course {
            source: self.source(),
            made: &made,
            calibration,
            held_out: windows,
            steps: wanted.tune,
            threads: self.threads(),
        };
        let tuned = self.during(Stage::Tune, || course.tune(artifact, self.watch()))?;
        let Tuned {
            tensors,
            mut course,
        } = tuned;
        course.kl_before = candidate.distance.kl;
        if tensors.is_empty() {
            return Ok((built, Some(course)));
        }
        let at = |step: usize| course.trace.iter().find(|point| point.step == step);
        let kl = |step| at(step).map_or(0.0, |point| point.kl.max(0.0));
        let record = TuningRecord {
            steps: course.kept as u64,
            kl_before: kl(0),
            kl_after: kl(course.kept),
        };
        let better = self.with_tuned(&built, &tensors, record)?;
        let (evaluation, distance) = self.measure_built(&better, windows)?;
        course.kl_after = Some(distance.kl);
        let limit = wanted.goal.limit;
        let holds = limit.is_none() || limit.holds(&distance);
        let gained = holds && distance.kl < candidate.distance.kl;
        let trial = self.tried(candidate.trial, |trial| Trial {
            tuned: course.kept,
            evaluation,
            ..trial
        });
        match gained {
            true => {
                candidate.distance = distance;
                candidate.trial = trial;
                Ok((better, Some(course)))
            }
            false => {
                course.kept = 0;
                Ok((built, Some(course)))
            }
        }
    }

    /// Measures an artifact on windows, or finds that it was.
    fn measure_built(
        &self,
        built: &Built,
        windows: &Windows,
    ) -> Result<(Evaluation, Distance), TrialError> {
        let (artifact, digest) = (self.artifact(built.key), windows.digest());
        if let Some(found) = artifact.measured(digest) {
            return Ok(found);
        }
        let found = self.evaluate(built.key, windows)?;
        artifact.note(digest, &found)?;
        Ok(found)
    }
}

/// For people, a line.
impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tuning {
            asked,
            taken,
            kept,
            numbers,
            trace: _,
            kl_before,
            kl_after,
        } = self;
        match (kept, kl_after) {
            (0, None) => write!(
                f,
                "norms stay as they were: {taken} of {asked} steps gained nothing (KL {kl_before:.5})"
            ),
            (0, Some(after)) => write!(
                f,
                "norms stay as they were: {taken} of {asked} steps did not gain, or left the limit, where it is executed (KL {kl_before:.5} -> {after:.5})"
            ),
            (kept, after) => write!(
                f,
                "{numbers} numbers of norms, {kept} of {asked} steps: KL {kl_before:.5} -> {:.5} on the held-out windows that decide",
                after.unwrap_or(*kl_before)
            ),
        }
    }
}
