//! Baseline files in a single type, compared with the artifact.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::choose::Trial;
use crate::measure::Evaluation;
use crate::options::DenseType;
use crate::system::show::{format_bytes, format_interval};

/// Measured file with one type for all matrices.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct BaselineFile {
    /// Type or code.
    #[serde(rename = "type")]
    pub dtype: DenseType,
    /// File size in bytes.
    pub bytes: u64,
    /// Evaluation on the same windows as the artifact's quality.
    pub evaluation: Evaluation,
}

impl BaselineFile {
    /// Returns the measured files, smallest first.
    pub(crate) fn from_trials(measured: Vec<Trial>) -> Vec<BaselineFile> {
        let files = measured.into_iter().filter_map(|trial| {
            Some(BaselineFile {
                dtype: trial.uniform?,
                bytes: trial.bytes,
                evaluation: trial.evaluation,
            })
        });
        let mut files: Vec<BaselineFile> = files.collect();
        files.sort_by_key(|file| file.bytes);
        files
    }
}

impl fmt::Display for BaselineFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dtype, bytes) = (self.dtype, format_bytes(self.bytes));
        write!(f, "{dtype} throughout  {bytes:>9}")?;
        match &self.evaluation.reference {
            Some(found) => write!(
                f,
                "  perplexity {:.4} of the source's, KL {:.5}{}",
                found.perplexity_ratio,
                found.kl,
                format_interval(found.kl_interval, 5),
            ),
            None => Ok(()),
        }
    }
}
