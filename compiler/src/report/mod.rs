//! What a compilation did, for programs (JSON) and for people (a page of text).

use std::fmt;

use htc_formats::htz::{Digest, Form, PlanRecord, SlotRecord};
use htc_formats::model::{Part, Role, Slot};
use htc_formats::source::ModelFile;
use serde::Serialize;

use crate::pipeline::{Options, Times};
use crate::plan::Budget;

/// The result of a compilation.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Name of the source file, without its folder.
    pub source: String,
    /// Digest of the source file.
    pub source_sha256: Digest,
    /// Name of the artifact, without its folder.
    pub artifact: String,
    /// Bytes of the source file and of the artifact.
    pub bytes: BeforeAfter,
    /// Numbers in all tensors.
    pub parameters: BeforeAfter,
    /// Numbers in the slots that were selected.
    pub selected_parameters: BeforeAfter,
    /// Selected parameters after over before.
    pub ratio: f64,
    /// One line per kind of slot.
    pub slots: Vec<SlotSummary>,
    /// What differs from the request, each said once.
    pub notes: Vec<String>,
    /// What was decided and measured for every slot of every layer.
    pub plan: PlanRecord,
    /// Threads used.
    pub threads: usize,
    /// How long it took, in seconds.
    pub seconds: Seconds,
}

/// A quantity of the source and of the artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BeforeAfter {
    /// In the source.
    pub before: u64,
    /// In the artifact.
    pub after: u64,
}

/// All slots of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SlotSummary {
    /// Which of the seven.
    pub slot: Slot,
    /// Layers where it is factorised.
    pub factorised: usize,
    /// Layers where it is dense.
    pub dense: usize,
    /// Smallest and largest rank; absent where it is dense everywhere.
    pub rank: Option<(usize, usize)>,
    /// Bytes, without shared bases.
    pub bytes: BeforeAfter,
    /// Root mean square over the layers of `‖W − Ŵ‖_F / ‖W‖_F`; absent where it is dense
    /// everywhere.
    pub error: Option<f64>,
    /// The largest of them.
    pub largest_error: Option<f64>,
}

/// Durations of the stages, in seconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Seconds {
    /// Opening the source and its digest.
    pub read: f64,
    /// Factorising and writing.
    pub factorise: f64,
    /// Forcing the artifact to the disk.
    pub seal: f64,
    /// Everything.
    pub total: f64,
}

impl Report {
    pub(crate) fn new(
        options: &Options,
        source: &ModelFile,
        source_sha256: Digest,
        plan: PlanRecord,
        artifact_bytes: u64,
        times: Times,
    ) -> Self {
        let name = |path: &std::path::Path| {
            path.file_name()
                .map_or_else(String::new, |n| n.to_string_lossy().into_owned())
        };
        let numbers = |t: &htc_formats::source::ModelTensor| t.rows as u64 * t.cols as u64;
        let others: u64 = source
            .tensors
            .iter()
            .filter(|t| {
                !matches!(
                    t.role,
                    Role::Linear {
                        part: Part::Weight,
                        ..
                    }
                )
            })
            .map(numbers)
            .sum();
        let bases: u64 = plan.bases.iter().map(|b| b.parameters).sum();
        let sum = |of: &dyn Fn(&SlotRecord) -> u64, chosen: &[Slot]| -> u64 {
            let chosen = |s: &&SlotRecord| chosen.contains(&s.slot);
            plan.slots.iter().filter(chosen).map(of).sum()
        };
        let counted = |chosen: &[Slot], others: u64| BeforeAfter {
            before: others + sum(&|s| s.parameters_before, chosen),
            after: others + bases + sum(&|s| s.parameters_after, chosen),
        };
        let selected_parameters = counted(&options.request.slots, 0);
        let ratio = selected_parameters.after as f64 / selected_parameters.before as f64;
        let mut notes = notes(&plan);
        if let Budget::Ratio(asked) = options.request.budget
            && ratio > asked
        {
            notes.push(format!(
                "the ratio is {ratio:.3}, {asked} was asked for: slots were kept dense because their \
                 factors would take more bytes; a smaller --ratio or --factor-type makes them pay"
            ));
        }
        let seconds = |d: std::time::Duration| (d.as_secs_f64() * 1e3).round() / 1e3;
        Report {
            source: name(&options.input),
            source_sha256,
            artifact: name(&options.output),
            bytes: BeforeAfter {
                before: source.size(),
                after: artifact_bytes,
            },
            parameters: counted(&Slot::ALL, others),
            selected_parameters,
            ratio,
            slots: Slot::ALL.iter().map(|&s| summarise(&plan, s)).collect(),
            notes,
            plan,
            threads: options.threads,
            seconds: Seconds {
                read: seconds(times.read),
                factorise: seconds(times.factorise),
                seal: seconds(times.seal),
                total: seconds(times.read + times.factorise + times.seal),
            },
        }
    }
}

fn summarise(plan: &PlanRecord, slot: Slot) -> SlotSummary {
    let records: Vec<_> = plan.slots.iter().filter(|s| s.slot == slot).collect();
    let ranks = || records.iter().filter_map(|s| s.rank);
    let errors: Vec<f64> = records.iter().filter_map(|s| s.error).collect();
    let squares: f64 = errors.iter().map(|e| e * e).sum();
    let dense = records.iter().filter(|s| s.form == Form::Dense).count();
    SlotSummary {
        slot,
        factorised: records.len() - dense,
        dense,
        rank: ranks().min().zip(ranks().max()),
        bytes: BeforeAfter {
            before: records.iter().map(|s| s.bytes_before).sum(),
            after: records.iter().map(|s| s.bytes_after).sum(),
        },
        error: (!errors.is_empty()).then(|| (squares / errors.len() as f64).sqrt()),
        largest_error: errors.iter().copied().reduce(f64::max),
    }
}

/// The notes of all slots, each said once with the slots it is about.
pub fn notes(plan: &PlanRecord) -> Vec<String> {
    let mut said: Vec<(&str, Vec<Slot>, usize)> = Vec::new();
    for record in &plan.slots {
        if let Some(note) = &record.note {
            let (_, slots, count) = match said.iter().position(|(text, ..)| text == note) {
                Some(known) => &mut said[known],
                None => {
                    said.push((note, Vec::new(), 0));
                    let last = said.len() - 1;
                    &mut said[last]
                }
            };
            *count += 1;
            if !slots.contains(&record.slot) {
                slots.push(record.slot);
            }
        }
    }
    said.into_iter()
        .map(|(note, slots, count)| {
            let names: Vec<_> = slots.iter().map(|s| s.name()).collect();
            format!("{} ({count} slots): {note}", names.join(", "))
        })
        .collect()
}

/// `12.3 MB`: decimal units, three digits.
pub fn bytes_for_people(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "kB", "MB", "GB"] {
        if value < 1000.0 {
            let digits = if unit == "B" || value >= 100.0 { 0 } else { 1 };
            return format!("{value:.digits$} {unit}");
        }
        value /= 1000.0;
    }
    format!("{value:.1} TB")
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / (whole.max(1)) as f64
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} -> {}", self.source, self.artifact)?;
        writeln!(
            f,
            "  bytes       {:>12} -> {:>12}  ({:.1} %)",
            bytes_for_people(self.bytes.before),
            bytes_for_people(self.bytes.after),
            percent(self.bytes.after, self.bytes.before),
        )?;
        writeln!(
            f,
            "  parameters  {:>12} -> {:>12}  ({:.1} %; {:.1} % of the selected slots)",
            self.parameters.before,
            self.parameters.after,
            percent(self.parameters.after, self.parameters.before),
            100.0 * self.ratio,
        )?;
        writeln!(f)?;
        writeln!(
            f,
            "  slot   layers  rank       bytes                     error (rms)  error (max)"
        )?;
        for slot in self.slots.iter().filter(|s| s.factorised > 0) {
            let rank = match slot.rank {
                Some((low, high)) if low == high => low.to_string(),
                Some((low, high)) => format!("{low}..{high}"),
                None => String::new(),
            };
            let number = |e: Option<f64>| e.map_or_else(String::new, |e| format!("{e:.5}"));
            writeln!(
                f,
                "  {:<5}  {:>6}  {:<9}  {:>9} -> {:>9}  {:>14}  {:>11}",
                slot.slot.name(),
                slot.factorised,
                rank,
                bytes_for_people(slot.bytes.before),
                bytes_for_people(slot.bytes.after),
                number(slot.error),
                number(slot.largest_error),
            )?;
        }
        let bases: u64 = self.plan.bases.iter().map(|b| b.bytes).sum();
        if bases > 0 {
            writeln!(
                f,
                "  bases  {:>6}  {:>34}",
                self.plan.bases.len(),
                bytes_for_people(bases)
            )?;
        }
        let factorised: usize = self.slots.iter().map(|s| s.factorised).sum();
        if factorised == 0 {
            writeln!(f, "  no slot was factorised")?;
        }
        for note in &self.notes {
            writeln!(f, "  note: {note}")?;
        }
        write!(
            f,
            "\n  {:.2} s on {} thread{} (read {:.2}, factorise {:.2}, seal {:.2})",
            self.seconds.total,
            self.threads,
            if self.threads == 1 { "" } else { "s" },
            self.seconds.read,
            self.seconds.factorise,
            self.seconds.seal,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::bytes_for_people;

    #[test]
    fn bytes_have_three_digits_and_a_unit() {
        assert_eq!(bytes_for_people(0), "0 B");
        assert_eq!(bytes_for_people(999), "999 B");
        assert_eq!(bytes_for_people(14_792_928), "14.8 MB");
        assert_eq!(bytes_for_people(2_500_000_000), "2.5 GB");
    }
}
