//! What was measured on text that was held out, and what was decided by it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::measure::Evaluation;

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
        let Evaluation {
            perplexity, tokens, ..
        } = evaluation;
        let Some(found) = &evaluation.reference else {
            return write!(
                f,
                "  quality     perplexity {perplexity:.3} on {tokens} held-out tokens of {text}"
            );
        };
        let (ratio, interval) = (found.perplexity_ratio, found.perplexity_ratio_ci95);
        writeln!(
            f,
            "  quality     perplexity {:.3} -> {perplexity:.3}: {ratio:.4} of the source's (95 % interval {:.4} to {:.4})",
            found.reference_perplexity,
            ratio - interval,
            ratio + interval,
        )?;
        write!(
            f,
            "              KL divergence {:.5} ± {:.5} nats, same likeliest token {:.1} %; on {tokens} held-out tokens of {text}",
            found.kl,
            found.kl_stderr,
            100.0 * found.top1,
        )
    }
}
