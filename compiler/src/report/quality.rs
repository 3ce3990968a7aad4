//! What was measured on text that was held out, and what was decided by it.

use std::fmt;

use htc_formats::escape::escaped;
use serde::{Deserialize, Serialize};

use crate::measure::Evaluation;
use crate::system::show::interval;

/// The quality of the artifact on text that nothing was decided on but which of the
/// [`Trial`]s it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quality {
    /// Name of the text, without its folder.
    pub text: String,
    /// What was measured.
    pub evaluation: Evaluation,
}

impl fmt::Display for Quality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Quality { text, evaluation } = self;
        let text = escaped(text);
        let Evaluation {
            perplexity, tokens, ..
        } = evaluation;
        let Some(found) = &evaluation.reference else {
            return write!(
                f,
                "  quality     perplexity {perplexity:.3} on {tokens} held-out tokens of {text}"
            );
        };
        writeln!(
            f,
            "  quality     perplexity {:.3} -> {perplexity:.3}: {:.4} of the source's{}",
            found.reference_perplexity,
            found.perplexity_ratio,
            interval(found.perplexity_ratio_interval, 4),
        )?;
        write!(
            f,
            "              KL divergence {:.5} nats{}, same likeliest token {:.1} %; on {tokens} held-out tokens of {text}",
            found.kl,
            interval(found.kl_interval, 5),
            100.0 * found.top1,
        )
    }
}
