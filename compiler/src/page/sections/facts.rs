//! Time, notes, and what everything was made from.

use super::super::html::{Block, Figure, Legend, Section};
use super::super::number::{bytes, count, number, percent};
use super::super::plot::{Axis, Bars, Colour, Group, Kind, PlotError};
use super::super::subject::{Given, Subject};
use super::super::table::{Cell, Table};
use super::empty;
use crate::report::Report;

/// Seconds by stage.
pub fn time(given: &Given) -> Result<Section, PlotError> {
    let mut section = empty(
        "time",
        "Time by stage",
        "Where the compilation spent its time.",
    );
    for subject in &given.subjects {
        let Some(report) = subject.report else {
            continue;
        };
        let seconds = &report.seconds;
        let stages = [
            ("plan", seconds.plan),
            ("read", seconds.read),
            ("calibrate", seconds.calibrate),
            ("factorise", seconds.factorise),
            ("measure", seconds.measure),
            ("seal", seconds.seal),
            ("total", seconds.total),
        ];
        let bars = Bars {
            title: "Seconds by stage".into(),
            axis: Axis::new("seconds", Kind::FromZero),
            series: vec![("seconds".into(), Colour::Thing(0))],
            groups: stages
                .map(|(name, value)| Group {
                    name: name.into(),
                    values: vec![Some(value)],
                })
                .into(),
        };
        let caption = format!("{}Seconds by stage", given.of(subject));
        section.blocks.push(Block::Figure(Figure {
            plots: vec![bars.draw()?],
            legend: Legend::None,
            table: bars.table(&caption, "stage"),
            caption: format!("{caption}, on {} threads.", report.threads),
        }));
    }
    Ok(section)
}

/// What differs from the request.
pub fn notes(given: &Given) -> Result<Section, PlotError> {
    let mut section = empty(
        "notes",
        "Notes of the plan",
        "What differs from the request, and why.",
    );
    for subject in &given.subjects {
        let notes = match subject.report {
            Some(report) => report.summary.notes.clone(),
            None => {
                let allocation = subject.plan.allocation.as_ref();
                let of_plan = allocation.map_or(&[][..], |a| &a.notes);
                let of_slots = crate::report::notes(subject.plan);
                of_plan.iter().cloned().chain(of_slots).collect()
            }
        };
        if !notes.is_empty() {
            section
                .blocks
                .push(Block::List(subject.name.clone(), notes));
        }
    }
    Ok(section)
}

/// Requests, calibrations, digests.
pub fn origins(given: &Given) -> Result<Section, PlotError> {
    let mut section = empty(
        "origins",
        "Origins",
        "What everything was made from, and by what. Digests are SHA-256.",
    );
    let several = |name: &str| match given.subjects.len() + given.analyses.len() {
        1 => "What is known of it".to_owned(),
        _ => format!("What is known of {name}"),
    };
    for subject in &given.subjects {
        let head = vec!["of".to_owned(), subject.name.clone()];
        let mut table = Table::new(several(&subject.name), head);
        for (name, value) in facts(subject) {
            table.row(vec![Cell::text(name), Cell::text(value)]);
        }
        section.blocks.push(Block::Table(table));
    }
    for (name, analysis) in &given.analyses {
        let head = vec!["of".to_owned(), format!("analysis of {name}")];
        let mut table = Table::new(several(&format!("the analysis of {name}")), head);
        let shape = &analysis.shape;
        let mut facts = vec![
            ("model", analysis.model.clone()),
            ("digest of the model", analysis.source_sha256.to_string()),
            ("architecture", shape.architecture.clone()),
            (
                "shape",
                format!(
                    "{} layers, width {}, feed-forward {}, {} heads of {}, {} for keys and values",
                    shape.layers,
                    shape.width,
                    shape.ffn,
                    shape.heads,
                    shape.head_size,
                    shape.kv_heads
                ),
            ),
        ];
        if let Some(text) = &analysis.calibration {
            facts.push(("calibrated on", text.text.clone()));
            facts.push(("digest of the text", text.text_sha256.to_string()));
            facts.push((
                "tokens",
                format!(
                    "{} in windows of {}",
                    count(text.tokens as u64),
                    text.context
                ),
            ));
        }
        for (name, value) in facts {
            table.row(vec![Cell::text(name), Cell::text(value)]);
        }
        section.blocks.push(Block::Table(table));
    }
    Ok(section)
}

/// A property and its value.
type Fact = (&'static str, String);

fn facts(subject: &Subject) -> Vec<Fact> {
    let mut facts = of_plan(subject);
    if let Some(report) = subject.report {
        facts.extend(of_report(report));
    }
    if let Some(artifact) = subject.artifact {
        let made = &artifact.manifest.provenance;
        facts.push(("made by", format!("{} {}", made.program, made.version)));
        facts.push(("format of the source", made.source_format.clone()));
        facts.push(("instruction set", made.instruction_set.clone()));
        facts.push(("linear algebra", made.linear_algebra.clone()));
        let calibration = made.calibration.as_ref();
        if let Some(calibration) = calibration.filter(|_| subject.report.is_none()) {
            let (tokens, context) = (count(calibration.tokens), calibration.context);
            facts.extend([
                (
                    "digest of the calibration text",
                    calibration.text_sha256.to_string(),
                ),
                ("tokens", format!("{tokens} in windows of {context}")),
                ("gauge", calibration.gauge.clone()),
            ]);
        }
    }
    facts
}

/// Of the source and of what was decided.
fn of_plan(subject: &Subject) -> Vec<Fact> {
    let plan = subject.plan;
    let mut facts = Vec::new();
    if let Some(source) = subject.source {
        facts.push(("source", source.to_owned()));
    }
    let (after, before) = (count(subject.after), count(subject.before));
    let method = match plan.method.as_str() {
        "gp" => "gp, low rank slot by slot".to_owned(),
        "grc" => "grc, bases shared by slots".to_owned(),
        other => other.to_owned(),
    };
    facts.extend([
        ("digest of the source", subject.source_sha256.to_string()),
        ("bytes", format!("{after} of {before}")),
        ("method", method),
        ("budget", budget(subject)),
        ("factors stored in", plan.factor_type.to_string()),
    ]);
    if let Some(allocation) = &plan.allocation {
        facts.push(("allocator", allocation.allocator.clone()));
        if let Some(floor) = &allocation.rank_floor {
            facts.push(("smallest rank allowed", floor.clone()));
        }
        if let Some(cap) = allocation.rank_cap {
            facts.push(("largest rank allowed", count(cap)));
        }
    }
    facts
}

/// Of the compilation.
fn of_report(report: &Report) -> Vec<Fact> {
    let (parameters, bases) = (report.summary.parameters, report.summary.bases);
    let (after, before) = (count(parameters.after), count(parameters.before));
    let mut facts = vec![
        ("parameters", format!("{after} of {before}")),
        ("treatment", report.treatment.to_string()),
    ];
    if let Some(shrinkage) = report.treatment.applied_shrinkage() {
        facts.push(("shrinkage of the second moment", number(shrinkage.value())));
    }
    if bases.count > 0 {
        let size = bytes(bases.bytes as f64);
        facts.push(("shared bases", format!("{}, {size}", bases.count)));
    }
    if let Some(peak) = report.peak_memory {
        facts.push(("memory at most", bytes(peak as f64)));
    }
    if let Some(calibration) = &report.calibration {
        let tokens = format!(
            "{} in windows of {}; {} of {} layers from the cache",
            count(calibration.tokens as u64),
            calibration.context,
            calibration.found_layers,
            calibration.layers
        );
        facts.extend([
            ("calibrated on", calibration.text.clone()),
            ("digest of the text", calibration.text_sha256.to_string()),
            ("tokens", tokens),
            ("gauge", calibration.gauge.to_string()),
        ]);
        facts.extend(calibration.output_errors.iter().map(|error| {
            let (mean, largest) = (number(error.error), number(error.largest_error));
            let value = format!("{mean} (largest {largest})");
            (output_error(error.slot), value)
        }));
        let head = calibration.head.iter();
        facts.extend(head.map(|head| ("output error of the head", number(head.error))));
    }
    facts
}

const fn output_error(slot: htc_formats::model::ProjectionKind) -> &'static str {
    use htc_formats::model::ProjectionKind;
    match slot {
        ProjectionKind::Q => "output error of q",
        ProjectionKind::K => "output error of k",
        ProjectionKind::V => "output error of v",
        ProjectionKind::O => "output error of o",
        ProjectionKind::Gate => "output error of gate",
        ProjectionKind::Up => "output error of up",
        ProjectionKind::Down => "output error of down",
    }
}

fn budget(subject: &Subject) -> String {
    use htc_formats::htz::Budget;
    let asked = subject
        .plan
        .allocation
        .as_ref()
        .and_then(|a| a.budget.clone());
    let limit = subject.report.and_then(|report| report.limit.clone());
    let asked = limit.or(asked);
    let came_to = match subject.plan.budget {
        Budget::Rank(rank) => format!("rank {rank}"),
        Budget::Full => "full rank".to_owned(),
        Budget::Ratio(ratio) => format!("{} of the parameters", percent(ratio)),
    };
    match asked {
        Some(asked) => format!("{asked}, which is {came_to}"),
        None => came_to,
    }
}
