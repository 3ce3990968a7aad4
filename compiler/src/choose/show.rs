//! Display of candidates.

use std::fmt;

use super::Trial;
use crate::options::{GaugeKind, QualityLimit};
use crate::system::show::{format_bytes, format_count, format_interval};

pub(crate) fn show_trials(
    f: &mut fmt::Formatter<'_>,
    trials: &[Trial],
    limit: Option<QualityLimit>,
) -> fmt::Result {
    let count = format_count(trials.len(), "candidate");
    match limit {
        _ if trials.is_empty() => return Ok(()),
        None => writeln!(
            f,
            "  chosen      of {count}, by the KL divergence on held-out text:"
        )?,
        Some(limit) => writeln!(
            f,
            "  chosen      of {count}, as the smallest that holds {limit} on held-out text with the upper end of its 95 % interval:"
        )?,
    }
    let parts = trials.iter().filter_map(|trial| trial.shrinkage);
    let of_shrinkages = trials.iter().any(|trial| trial.elsewhere)
        || parts.clone().any(|part| Some(part) != parts.clone().next());
    for trial in trials {
        let Some(found) = &trial.evaluation.reference else {
            continue;
        };
        let (ratio, upper) = match limit {
            Some(_) => (
                found.perplexity_ratio_all,
                found.perplexity_ratio_all_interval,
            ),
            None => (found.perplexity_ratio, None),
        };
        let up_to = upper.map_or_else(String::new, |(_, upper)| format!(" (to {upper:.4})"));
        let shrinkage = match (of_shrinkages, trial.shrinkage) {
            (true, Some(part)) => format!("  shrinkage {part:<5}"),
            (true, None) => " ".repeat(17),
            (false, _) => String::new(),
        };
        if trial.codes {
            writeln!(
                f,
                "    {} {:<18}  {:>9}  perplexity {:.4}{} of the source's, KL {:.5}{}",
                if trial.chosen { "*" } else { " " },
                match (trial.tuned, trial.uniform) {
                    (0, Some(code)) => format!("{code} throughout"),
                    // Codes have no gauge.
                    (0, None) if trial.gauge != GaugeKind::None.name() => {
                        "codes and factors".to_owned()
                    }
                    (0, None) => "a type for each".to_owned(),
                    (steps, _) => format!("the same, {}", format_count(steps, "step")),
                },
                format_bytes(trial.bytes),
                ratio,
                up_to,
                found.kl,
                format_interval(found.kl_interval, 5),
            )?;
            continue;
        }
        writeln!(
            f,
            "    {} gauge {:<10}{shrinkage}  bias {:<3}  ratio {:.3}  {:>9}  perplexity {:.4}{} of the source's, KL {:.5}{}{}",
            if trial.chosen { "*" } else { " " },
            trial.gauge,
            if trial.bias { "on" } else { "off" },
            trial.ratio,
            format_bytes(trial.bytes),
            ratio,
            up_to,
            found.kl,
            format_interval(found.kl_interval, 5),
            match (trial.elsewhere, trial.tuned) {
                (true, _) => " on the texts behind the first",
                (false, 0) => "",
                (false, _) => " with its scales tuned",
            },
        )?;
    }
    Ok(())
}
