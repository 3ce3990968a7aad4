//! Text output of the record.

use std::fmt;

use super::gates::Outcome;
use super::record::{EnergyQuantities, ModelRecord, PerJoule, Phase, Quantity, Record};
use super::statistics::{Comparison, Spread};
use crate::system::show::{format_bytes, format_count, format_interval};

impl fmt::Display for ModelRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}, {}",
            self.name,
            format_bytes(self.bytes),
            self.engine
        )?;
        if let Some(fraction) = self.fraction {
            write!(f, ", {:.1} % of its bytes touched", 100.0 * fraction)?;
        }
        f.write_str(")")
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
            "{}, {}, {} warm-up, KV cache {}, {}, on {}",
            format_count(
                self.pairs.len(),
                if self.baseline.is_some() {
                    "pair"
                } else {
                    "run"
                },
            ),
            format_count(conditions.threads, "thread"),
            conditions.warm_up,
            conditions.kv_type,
            conditions
                .machine
                .processor
                .as_deref()
                .unwrap_or(&conditions.machine.system),
            conditions.device,
        )?;
        if let Some(bytes) = conditions.device_bytes {
            writeln!(f, "{} of the device's memory", format_bytes(bytes))?;
        }
        for phase in Phase::ALL {
            if let Some(quantity) = self.phases.get(phase) {
                show_quantity(phase.name(), quantity, "tokens/s", f)?;
            }
        }
        show_energy(self.energy.as_ref(), f)?;
        for swept in &self.context {
            writeln!(f, "context of {} tokens", swept.length)?;
            for (name, quantity) in [
                ("prefill", &swept.phases.prefill),
                ("decode behind it", &swept.phases.decode),
            ] {
                if let Some(quantity) = quantity {
                    show_quantity(name, quantity, "tokens/s", f)?;
                }
            }
            show_energy(swept.energy.as_ref(), f)?;
        }
        if let Some(sensor) = &conditions.sensor {
            write!(f, "sensor: {}", sensor.name)?;
            match sensor.idle_watts {
                Some(watts) => writeln!(f, ", idling at {watts:.1} W")?,
                None => writeln!(f)?,
            }
        }
        if let Some(quality) = &self.quality
            && let Some(found) = &quality.evaluation.reference
        {
            writeln!(
                f,
                "perplexity over the baseline's, all positions of {} of {}: {:.4}{}",
                format_count(quality.evaluation.chunks, "window"),
                quality.text,
                found.perplexity_ratio_all,
                format_interval(found.perplexity_ratio_all_interval, 4)
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

fn show_energy(energy: Option<&EnergyQuantities>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let kinds = PerJoule::ALL.into_iter();
    for (of, quantity) in kinds.filter_map(|of| Some((of, energy?.get(of)?))) {
        show_quantity(of.name(), quantity, "tokens/J", f)?;
    }
    Ok(())
}

fn show_quantity(
    name: &str,
    quantity: &Quantity,
    unit: &str,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    write!(f, "  {name:<17} {} {unit}", speeds(&quantity.subject))?;
    let Some((baseline, comparison)) = quantity.baseline.as_ref().zip(quantity.comparison.as_ref())
    else {
        return writeln!(f);
    };
    writeln!(
        f,
        " against {}: {:.4}{}",
        speeds(baseline),
        comparison.ratio,
        format_interval(comparison.interval, 4)
    )?;
    let tests = tests(comparison);
    if tests.is_empty() {
        Ok(())
    } else {
        writeln!(f, "  {:<17} {}", "", tests.join("; "))
    }
}

fn speeds(spread: &Spread) -> String {
    let digits = if spread.mean < 1.0 { 4 } else { 2 };
    match spread.sd {
        Some(sd) => format!("{:.digits$} ± {sd:.digits$}", spread.mean),
        None => format!("{:.digits$}", spread.mean),
    }
}

fn tests(comparison: &Comparison) -> Vec<String> {
    let t = comparison
        .paired_t
        .map(|t| format!("t({}) {:.2}, p {}", t.degrees, t.t, format_p_value(t.p)));
    let w = comparison.wilcoxon.map(|w| {
        let smaller = w.plus.min(w.minus);
        format!("Wilcoxon W {smaller}, p {}", format_p_value(w.p))
    });
    let v = comparison
        .variance
        .map(|v| format!("variance ratio {:.2}", v.ratio));
    [t, w, v].into_iter().flatten().collect()
}

pub fn format_p_value(p: f64) -> String {
    if p < 1e-3 {
        format!("{p:.1e}")
    } else {
        format!("{p:.3}")
    }
}
