//! What was measured on text that was held out, and what was decided by it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::bytes_for_people;
use crate::choose::Trial;
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

/// Candidates for people, a line each; nothing where there was no choice.
pub(crate) fn show_trials(
    f: &mut fmt::Formatter<'_>,
    trials: &[Trial],
    limit: Option<&str>,
) -> fmt::Result {
    let count = trials.len();
    match limit {
        _ if trials.is_empty() => return Ok(()),
        None => writeln!(
            f,
            "  chosen      of {count} candidates, by the KL divergence on held-out text:"
        )?,
        Some(limit) => writeln!(
            f,
            "  chosen      of {count} candidates, as the smallest that holds {limit} on held-out text with the upper end of its 95 % interval:"
        )?,
    }
    for trial in trials {
        let Some(found) = &trial.evaluation.reference else {
            continue;
        };
        writeln!(
            f,
            "    {} gauge {:<10}  bias {:<3}  ratio {:.3}  {:>9}  perplexity {:.4} ± {:.4} of the source's, KL {:.5} ± {:.5}",
            if trial.chosen { "*" } else { " " },
            trial.gauge,
            if trial.bias { "on" } else { "off" },
            trial.ratio,
            bytes_for_people(trial.bytes),
            found.perplexity_ratio,
            found.perplexity_ratio_ci95 / 1.96,
            found.kl,
            found.kl_stderr,
        )?;
    }
    Ok(())
}
