//! The record for people.

use std::fmt;

use super::gates::Outcome;
use super::record::{Measuree, Phase, Quantity, Record};
use super::statistics::{Comparison, Spread};
use crate::system::show::{bytes_for_people, interval};

impl fmt::Display for Measuree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}, {}",
            self.name,
            bytes_for_people(self.bytes),
            self.engine
        )?;
        match self.fraction {
            Some(fraction) => write!(f, ", {:.1} % of its bytes touched)", 100.0 * fraction),
            None => f.write_str(")"),
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let conditions = &self.conditions;
        writeln!(f, "{}", self.subject)?;
        if let Some(baseline) = &self.baseline {
            writeln!(f, "against {baseline}")?;
        }
        writeln!(
            f,
            "{} {}, {} threads, {} warm-up, KV cache {}, {}",
            self.pairs.len(),
            if self.baseline.is_some() {
                "pairs"
            } else {
                "runs"
            },
            conditions.threads,
            conditions.warm_up,
            conditions.kv_type,
            conditions
                .machine
                .processor
                .as_deref()
                .unwrap_or(&conditions.machine.system),
        )?;
        for phase in Phase::ALL {
            if let Some(quantity) = self.phases.get(phase) {
                show_quantity(phase.name(), quantity, f)?;
            }
        }
        for swept in &self.context {
            writeln!(f, "context of {} tokens", swept.length)?;
            for (name, quantity) in [
                ("prefill", &swept.phases.prefill),
                ("decode behind it", &swept.phases.decode),
            ] {
                if let Some(quantity) = quantity {
                    show_quantity(name, quantity, f)?;
                }
            }
        }
        if let Some(quality) = &self.quality
            && let Some(found) = &quality.evaluation.reference
        {
            writeln!(
                f,
                "perplexity over the baseline's, all positions of {} windows of {}: {:.4}{}",
                quality.evaluation.chunks,
                quality.text,
                found.perplexity_ratio_all,
                interval(found.perplexity_ratio_all_interval, 4)
            )?;
        }
        for gate in &self.gates {
            let outcome = match gate.outcome {
                Outcome::Passed => "passed",
                Outcome::Failed => "FAILED",
                Outcome::OtherRank => "not for this rank",
            };
            writeln!(f, "gate {gate}: {outcome}")?;
        }
        if let Some(load) = conditions.load {
            writeln!(
                f,
                "of the processors' time other programs had {:.1} %, a hypervisor {:.1} %",
                100.0 * load.others,
                100.0 * load.stolen
            )?;
        }
        Ok(())
    }
}

fn show_quantity(name: &str, quantity: &Quantity, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "  {name:<17} {} tokens/s", speeds(&quantity.subject))?;
    let Some((baseline, comparison)) = quantity.baseline.as_ref().zip(quantity.comparison.as_ref())
    else {
        return writeln!(f);
    };
    writeln!(
        f,
        " against {}: {:.4}{}",
        speeds(baseline),
        comparison.ratio,
        interval(comparison.interval, 4)
    )?;
    let tests = tests(comparison);
    match tests.is_empty() {
        true => Ok(()),
        false => writeln!(f, "  {:<17} {}", "", tests.join("; ")),
    }
}

fn speeds(spread: &Spread) -> String {
    match spread.sd {
        Some(sd) => format!("{:.2} ± {:.2}", spread.mean, sd),
        None => format!("{:.2}", spread.mean),
    }
}

/// What the tests say, those that there are.
fn tests(comparison: &Comparison) -> Vec<String> {
    let t = comparison
        .paired_t
        .map(|t| format!("t({}) {:.2}, p {}", t.degrees, t.t, p(t.p)));
    let w = comparison.wilcoxon.map(|w| {
        let smaller = w.plus.min(w.minus);
        format!("Wilcoxon W {smaller}, p {}", p(w.p))
    });
    let v = comparison
        .variance
        .map(|v| format!("variance ratio {:.2}", v.ratio));
    [t, w, v].into_iter().flatten().collect()
}

/// A probability.
pub fn p(p: f64) -> String {
    match p < 1e-3 {
        true => format!("{p:.1e}"),
        false => format!("{p:.3}"),
    }
}
