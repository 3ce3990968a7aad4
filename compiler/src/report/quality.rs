//! Quality on held-out text.

use std::fmt;

use htc_formats::escape::escaped;
use serde::{Deserialize, Serialize};

use crate::choose::Chosen;
use crate::measure::Evaluation;
use crate::request::CalibrationOptions;
use crate::system::show::{interval, name_of};

/// Quality of the artifact on the test split.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Quality {
    /// File names of the texts.
    pub text: String,
    /// Number of windows of the validation split; 0 if nothing was chosen by them.
    pub choosing_windows: usize,
    /// Evaluation on the other held-out windows.
    pub evaluation: Evaluation,
}

impl Quality {
    /// Returns the quality of the chosen artifact, if measured.
    pub fn of(chosen: &Chosen, asked: &CalibrationOptions) -> Option<Quality> {
        let text = match &asked.held_out {
            Some(other) => name_of(other),
            None => {
                let names: Vec<String> = asked.texts.iter().map(|t| t.source.name()).collect();
                names.join(", ")
            }
        };
        Some(Quality {
            text,
            choosing_windows: chosen.choosing,
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
                interval(evaluation.perplexity_interval, 3)
            )?,
            Some(found) => write!(
                f,
                "  quality     perplexity {:.3} -> {perplexity:.3}: {:.4} of the source's{}\n              \
                 KL divergence {:.5} nats{}, same likeliest token {:.1} %",
                found.reference_perplexity,
                found.perplexity_ratio,
                interval(found.perplexity_ratio_interval, 4),
                found.kl,
                interval(found.kl_interval, 5),
                100.0 * found.top1,
            )?,
        }
        write!(
            f,
            "\n              on {chunks} held-out windows of {} that decided nothing, {tokens} tokens",
            escaped(text)
        )?;
        match chose {
            0 => Ok(()),
            _ => write!(f, "; {chose} others decided"),
        }
    }
}
