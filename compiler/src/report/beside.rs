//! Files in one type, beside the artifact.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::choose::Trial;
use crate::measure::Evaluation;
use crate::request::DenseType;
use crate::system::show::{bytes_for_people, interval};

/// A file with one type for all matrices that was made and measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileBeside {
    /// The type or code.
    #[serde(rename = "type")]
    pub dtype: DenseType,
    /// Bytes of the file.
    pub bytes: u64,
    /// What was measured on it, on the windows that the artifact's quality was.
    pub evaluation: Evaluation,
}

impl FileBeside {
    /// Those that were measured, from the smallest on.
    pub(super) fn of(measured: Vec<Trial>) -> Vec<FileBeside> {
        let files = measured.into_iter().filter_map(|trial| {
            Some(FileBeside {
                dtype: trial.uniform?,
                bytes: trial.bytes,
                evaluation: trial.evaluation,
            })
        });
        let mut files: Vec<FileBeside> = files.collect();
        files.sort_by_key(|file| file.bytes);
        files
    }
}

/// For people, in a line.
impl fmt::Display for FileBeside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dtype, bytes) = (self.dtype, bytes_for_people(self.bytes));
        write!(f, "{dtype} throughout  {bytes:>9}")?;
        match &self.evaluation.reference {
            Some(found) => write!(
                f,
                "  perplexity {:.4} of the source's, KL {:.5}{}",
                found.perplexity_ratio,
                found.kl,
                interval(found.kl_interval, 5),
            ),
            None => Ok(()),
        }
    }
}
