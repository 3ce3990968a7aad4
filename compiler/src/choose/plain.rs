//! Files of a single type for comparison with the artifact.

use super::bench::CandidateEvaluator;
use super::{Selection, Trial, TrialError};
use crate::event::Event;
use crate::make::{ArtifactBuilder, MakeError};
use crate::plan::Plan;

impl Selection<'_> {
    /// Makes and measures the artifacts of single-type plans on the test split.
    pub fn measure_single_type_files(&self, plans: &[Plan]) -> Result<Vec<Trial>, TrialError> {
        let (Some(windows), [_, ..]) = (self.test_windows(), plans) else {
            return Ok(Vec::new());
        };
        let bench = CandidateEvaluator::new(Selection {
            builder: ArtifactBuilder {
                is_base: false,
                ..self.builder
            },
            ..*self
        })?;
        let treatment = self.request.treatment.resolve(self.request.calibrated)?;
        for plan in plans {
            match bench.measure(plan, treatment, &windows) {
                Ok(found) => bench.discard(&found),
                // Skip types that a matrix cannot have.
                Err(TrialError::Make(MakeError::Unit { error, .. })) => {
                    let dtype = plan.uniform_type().map(|dtype| dtype.to_string());
                    let dtype = dtype.unwrap_or_default();
                    let note = format!("not compared with {dtype}: {error}");
                    bench.progress().report(Event::Note(&note));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(bench.into_trials())
    }
}
