//! Quality on held-out text.

use std::fmt;

use htc_formats::escape::escape;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::choose::SelectedArtifact;
use crate::measure::Evaluation;
use crate::options::CalibrationOptions;
use crate::system::show::{file_name, format_count, format_interval};

/// Quality of the artifact on the test split, or on the shipped text.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Quality {
    /// File names of the texts.
    pub text: String,
    /// Number of windows of the validation split.
    pub choosing_windows: usize,
    /// Evaluation on the other held-out windows.
    pub evaluation: Evaluation,
}

impl Quality {
    /// Returns the quality of the chosen artifact, if measured.
    pub fn from_chosen(chosen: &SelectedArtifact, options: &CalibrationOptions) -> Option<Quality> {
        let text = match &options.held_out {
            Some(other) => file_name(other),
            None => {
                let names: Vec<String> = options.texts.iter().map(|t| t.source.name()).collect();
                names.join(", ")
            }
        };
        Some(Quality {
            text,
            choosing_windows: chosen.validation_windows,
            evaluation: chosen.quality.clone()?,
        })
    }
}

impl fmt::Display for Quality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Quality {
            text,
            choosing_windows: chose,
            evaluation,
        } = self;
        let Evaluation {
            perplexity,
            tokens,
            chunks,
            ..
        } = evaluation;
        match &evaluation.reference {
            None => write!(
                f,
                "  quality     perplexity {perplexity:.3}{}",
                format_interval(evaluation.perplexity_interval, 3)
            )?,
            Some(found) => write!(
                f,
                "  quality     perplexity {:.3} -> {perplexity:.3}: {:.4} of the source's{}\n              \
                 KL divergence {:.5} nats{}, same likeliest token {:.1} %",
                found.reference_perplexity,
                found.perplexity_ratio,
                format_interval(found.perplexity_ratio_interval, 4),
                found.kl,
                format_interval(found.kl_interval, 5),
                100.0 * found.top1,
            )?,
        }
        write!(
            f,
            "\n              on {} of {} that decided nothing, {}",
            format_count(*chunks, "held-out window"),
            escape(text),
            format_count(*tokens, "token")
        )?;
        match chose {
            0 => Ok(()),
            1 => write!(f, "; 1 other decided"),
            _ => write!(f, "; {chose} others decided"),
        }
    }
}
