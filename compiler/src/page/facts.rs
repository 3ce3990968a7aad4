//! Facts about a compilation: time, estimates, notes and origins.

use htc_formats::htz::Budget;
use maud::{Markup, html};

use super::chart::{Colour, bars, optional};
use super::data::{ArtifactData, PageData};
use super::number::{bytes, count, number, percent, seconds};
use super::scale::{Axis, Kind};
use super::template::{Table, figure, list};
use crate::analyse::record::Analysis;
use crate::report::{Report, Seconds};

/// Draws the seconds of every stage.
pub fn time(artifact: &ArtifactData, prefix: &str) -> Markup {
    let Some(report) = artifact.report else {
        return html! {};
    };
    // Named one by one, so that a new stage cannot be forgotten.
    let Seconds {
        plan,
        read,
        calibrate,
        factorise,
        measure,
        tune,
        seal,
        total,
    } = report.seconds;
    let stages = [
        ("read", read),
        ("calibrate", calibrate),
        ("plan", plan),
        ("factorise", factorise),
        ("measure", measure),
        ("tune", tune),
        ("seal", seal),
    ];
    let groups = stages.map(|(name, value)| (name.to_owned(), vec![Some(value)]));
    let axis = Axis::new("seconds", Kind::Linear);
    let chart = bars(
        "Seconds by stage",
        &axis,
        &[("seconds", Colour::Thing(0))],
        &groups,
    );
    let note = format!(
        "{} together, on {} threads.",
        seconds(total),
        report.threads
    );
    figure(&format!("{prefix}Seconds by stage"), &note, [chart])
}

/// Lists estimates of bytes, memory and time beside what was measured.
pub fn estimates(artifact: &ArtifactData, prefix: &str) -> Markup {
    let Some(report) = artifact.report else {
        return html! {};
    };
    let (estimate, spent) = (&report.forecast, &report.seconds);
    let stages = &estimate.stages;
    // With a limit the search decides on the bytes.
    let made = Some(report.bytes.after as f64).filter(|_| report.limit.is_none());
    let memory = report.peak_memory.map(|peak| peak as f64);
    type Row = (&'static str, f64, Option<f64>, fn(f64) -> String);
    let rows: [Row; 8] = [
        ("bytes of the artifact", estimate.bytes as f64, made, bytes),
        (
            "memory beside the source",
            estimate.peak_memory as f64,
            memory,
            bytes,
        ),
        ("seconds", estimate.seconds, Some(spent.total), seconds),
        (
            "seconds to calibrate",
            stages.calibrate,
            Some(spent.calibrate),
            seconds,
        ),
        ("seconds to plan", stages.plan, Some(spent.plan), seconds),
        (
            "seconds to factorise",
            stages.factorise,
            Some(spent.factorise),
            seconds,
        ),
        (
            "seconds to measure",
            stages.measure,
            Some(spent.measure),
            seconds,
        ),
        ("seconds to tune", stages.tune, Some(spent.tune), seconds),
    ];
    let mut table = Table::new(&["quantity", "estimate", "measured", "measured / estimate"]);
    let estimated = rows.into_iter().filter(|(_, estimate, ..)| *estimate > 0.0);
    table
        .rows
        .extend(estimated.map(|(name, estimate, measured, format)| {
            let ratio = measured.map(|m| (m / estimate * 1e4).round() / 1e4);
            let measured = optional(measured, format);
            vec![
                name.to_owned(),
                format(estimate),
                measured,
                optional(ratio, number),
            ]
        }));
    table.render(&format!("{prefix}Estimates and measurements"))
}

/// Lists what differs from the request.
pub fn notes(artifact: &ArtifactData, _prefix: &str) -> Markup {
    let notes = artifact.report.map(|report| report.summary.notes.clone());
    let notes = notes.unwrap_or_else(|| {
        let allocation = artifact.plan.allocation.iter();
        let of_plan = allocation.flat_map(|a| a.notes.iter().cloned());
        of_plan.chain(crate::report::notes(artifact.plan)).collect()
    });
    list(&artifact.name, &notes)
}

/// Names and values of properties.
#[derive(Default)]
struct Facts(Vec<Vec<String>>);

impl Facts {
    fn add(&mut self, name: &str, value: impl ToString) {
        self.0.push(vec![name.to_owned(), value.to_string()]);
    }

    fn add_if(&mut self, name: &str, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.add(name, value);
        }
    }

    fn render(self, name: &str) -> Markup {
        let mut table = Table::new(&["property", name]);
        table.rows = self.0;
        table.render(&format!("Origin of {name}"))
    }
}

/// Lists what each artifact and analysis was made from.
pub fn origins(data: &PageData) -> Markup {
    html! {
        @for artifact in &data.artifacts { (artifact_facts(artifact).render(&artifact.name)) }
        @for (name, analysis) in &data.analyses { (analysis_facts(analysis).render(&format!("analysis of {name}"))) }
    }
}

fn analysis_facts(analysis: &Analysis) -> Facts {
    let (mut facts, shape) = (Facts::default(), &analysis.shape);
    facts.add("model", &analysis.model);
    facts.add("digest of the model", analysis.source_sha256);
    facts.add("architecture", &shape.architecture);
    facts.add("layers", shape.layers);
    facts.add("width", shape.width);
    facts.add("width of the feed-forward network", shape.ffn);
    facts.add("heads", format!("{} of {}", shape.heads, shape.head_size));
    facts.add("heads of keys and values", shape.kv_heads);
    if let Some(text) = &analysis.calibration {
        facts.add("calibrated on", &text.text);
        facts.add("digest of the text", text.text_sha256);
        facts.add("tokens", windows(text.tokens as u64, text.context as u64));
    }
    facts
}

fn windows(tokens: u64, context: u64) -> String {
    format!("{} in windows of {context}", count(tokens))
}

fn artifact_facts(artifact: &ArtifactData) -> Facts {
    let (mut facts, plan) = (Facts::default(), artifact.plan);
    facts.add_if("source", artifact.source.as_ref());
    facts.add("digest of the source", artifact.source_sha256);
    facts.add(
        "bytes",
        format!("{} of {}", count(artifact.after), count(artifact.before)),
    );
    let method = match plan.method.as_str() {
        "gp" => "gp, low rank of each projection",
        "grc" => "grc, bases shared by projections",
        other => other,
    };
    facts.add("method", method);
    facts.add("budget", budget(artifact));
    facts.add("factors stored in", plan.factor_type);
    if let Some(allocation) = &plan.allocation {
        facts.add("allocator", &allocation.allocator);
        facts.add_if("smallest rank allowed", allocation.rank_floor.as_ref());
        facts.add_if("largest rank allowed", allocation.rank_cap.map(count));
    }
    if let Some(report) = artifact.report {
        add_report(&mut facts, report);
    }
    let Some(made) = artifact.file.map(|f| &f.manifest.provenance) else {
        return facts;
    };
    facts.add("made by", format!("{} {}", made.program, made.version));
    facts.add("format of the source", &made.source_format);
    facts.add("instruction set", &made.instruction_set);
    facts.add("linear algebra", &made.linear_algebra);
    let calibration = made.calibration.as_ref();
    if let Some(calibration) = calibration.filter(|_| artifact.report.is_none()) {
        facts.add("digest of the calibration text", calibration.text_sha256);
        facts.add("tokens", windows(calibration.tokens, calibration.context));
        facts.add("gauge", &calibration.gauge);
    }
    facts
}

fn add_report(facts: &mut Facts, report: &Report) {
    let (parameters, bases) = (report.summary.parameters, report.summary.bases);
    let [after, before] = [parameters.after, parameters.before].map(count);
    facts.add("parameters", format!("{after} of {before}"));
    facts.add("treatment", report.treatment);
    let shrinkage = report.treatment.shrinks();
    facts.add_if(
        "shrinkage of the second moment",
        shrinkage.map(|s| number(s.part())),
    );
    if bases.count > 0 {
        let size = bytes(bases.bytes as f64);
        facts.add("shared bases", format!("{}, {size}", bases.count));
    }
    let source = report.with_source.as_ref();
    facts.add_if(
        "the source's weights in the file",
        source.map(|s| bytes(s.source as f64)),
    );
    facts.add_if("tuning of the bases", report.tuning_of_bases.as_ref());
    facts.add_if("tuning", report.tuning.as_ref());
    facts.add_if(
        "peak memory",
        report.peak_memory.map(|peak| bytes(peak as f64)),
    );
    let Some(calibration) = &report.calibration else {
        return;
    };
    facts.add("calibrated on", &calibration.text);
    facts.add("digest of the text", calibration.text_sha256);
    facts.add(
        "tokens",
        windows(calibration.tokens as u64, calibration.context as u64),
    );
    let layers = format!("{} of {}", calibration.found_layers, calibration.layers);
    facts.add("layers from the cache", layers);
    facts.add("gauge", &calibration.gauge);
    for error in &calibration.output_errors {
        let (mean, largest) = (number(error.error), number(error.largest_error));
        let name = format!("output error of {}", error.slot);
        facts.add(&name, format!("{mean} (largest {largest})"));
    }
    let head = calibration.head.as_ref();
    facts.add_if(
        "output error of the head",
        head.map(|head| number(head.error)),
    );
}

fn budget(artifact: &ArtifactData) -> String {
    let result = match artifact.plan.budget {
        Budget::Rank(rank) => format!("rank {rank}"),
        Budget::Full => "full rank".to_owned(),
        Budget::Ratio(ratio) => format!("{} of the parameters", percent(ratio)),
    };
    let allocation = artifact.plan.allocation.as_ref();
    let limit = artifact.report.and_then(|report| report.limit.clone());
    match limit.or(allocation.and_then(|a| a.budget.clone())) {
        Some(requested) => format!("{requested}, which is {result}"),
        None => result,
    }
}
