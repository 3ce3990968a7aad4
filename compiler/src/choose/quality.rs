//! Quality record of the chosen artifact.

use htc_formats::htz::{self, Digest, HtzError, QualityRecord, Record};

use super::TrialError;
use super::bench::CandidateEvaluator;
use crate::calibrate::Calibration;
use crate::calibrate::windows::Windows;
use crate::measure::{Distance, Evaluation};

impl CandidateEvaluator<'_> {
    /// Returns a note if a value cannot be represented.
    pub(super) fn put_quality(
        &self,
        key: Digest,
        windows: &Windows,
        validation_windows: usize,
        evaluation: &Evaluation,
        distance: &Distance,
    ) -> Result<Option<String>, TrialError> {
        let builder = &self.selection.builder;
        let text = builder.calibration.map(Calibration::held_out_digest);
        let text = text.unwrap_or_default();
        let record = record(text, windows, validation_windows, evaluation, distance);
        match builder.put_quality(key, Some(record)) {
            // Also removes a record of an earlier run.
            Err(HtzError::Property {
                record: Record::Quality,
                property,
                found,
                ..
            }) => {
                builder.put_quality(key, None)?;
                Ok(Some(format!(
                    "the quality is not in the artifact, since {property} is {found}"
                )))
            }
            done => Ok(done.map(|()| None)?),
        }
    }
}

fn record(
    text_sha256: Digest,
    windows: &Windows,
    validation_windows: usize,
    evaluation: &Evaluation,
    distance: &Distance,
) -> QualityRecord {
    QualityRecord {
        text_sha256,
        tokens_sha256: windows.digest(),
        protocol: QualityRecord::SECOND_HALF.to_owned(),
        context: evaluation.context as u64,
        windows: evaluation.chunks as u64,
        tokens: evaluation.tokens,
        choosing_windows: validation_windows as u64,
        kl: htz::Measurement {
            value: distance.kl,
            stderr: distance.kl_stderr,
            interval: distance.kl_interval,
        },
        perplexity_ratio: htz::Measurement {
            value: distance.perplexity_ratio,
            stderr: distance.perplexity_ratio_stderr,
            interval: distance.perplexity_ratio_interval,
        },
    }
}
