//! Facts about a compilation: time, estimates, notes and origins.

use maud::{Markup, html};
use serde_json::Value;

use super::chart::{Colour, bars, optional};
use super::data::{ArtifactData, PageData};
use super::json::properties;
use super::number::{bytes, number, seconds};
use super::scale::Axis;
use super::template::{Table, figure, list};
use crate::system::show::format_count;

/// Paths, separated by spaces.
const REPORT: &str = "source source_sha256 artifact bytes with_source parameters request limit treatment \
    plan/method plan/budget plan/factor_type plan/allocation/allocator \
    plan/allocation/budget plan/allocation/rank_floor plan/allocation/rank_cap bases \
    biases kv_bases calibration tuning/asked tuning/kept tuning/kl_before \
    tuning/kl_after peak_memory";

const MANIFEST: &str = "provenance plan/method plan/budget plan/factor_type plan/allocation";

const ANALYSIS: &str = "model source_sha256 shape calibration";

/// Draws the seconds of every stage.
pub fn time(artifact: &ArtifactData, prefix: &str) -> Markup {
    let Some(report) = artifact.report else {
        return html! {};
    };
    // Stages that were skipped take no time.
    let stages = report.seconds.stages().into_iter();
    let stages = stages.filter(|(_, value)| *value != 0.0);
    let groups: Vec<_> = stages
        .map(|(name, value)| (name.to_owned(), vec![Some(value)]))
        .collect();
    let series = [("seconds", Colour::Thing(0))];
    let title = "Seconds by stage";
    let chart = bars(title, &Axis::linear("seconds"), &series, &groups);
    let threads = format_count(report.threads, "thread");
    let note = format!("{} together, on {threads}.", seconds(report.seconds.total));
    figure(&format!("{prefix}{title}"), &note, [chart])
}

/// Lists estimates beside measurements.
pub fn estimates(artifact: &ArtifactData, prefix: &str) -> Markup {
    let Some(report) = artifact.report else {
        return html! {};
    };
    let (estimate, spent) = (&report.forecast, &report.seconds);
    let stages = &estimate.stages;
    // With a limit the search decides on the bytes.
    let made = Some(report.bytes.after as f64).filter(|_| report.limit.is_none());
    let memory = report.peak_memory.map(|peak| peak as f64);
    let sizes = [
        ("bytes of the artifact", estimate.bytes, made),
        ("memory beside the source", estimate.peak_memory, memory),
    ];
    let times = [
        ("seconds", estimate.seconds, spent.total),
        ("seconds to calibrate", stages.calibrate, spent.calibrate),
        ("seconds to plan", stages.plan, spent.plan),
        ("seconds to factorise", stages.factorise, spent.factorise),
        ("seconds to measure", stages.measure, spent.measure),
        ("seconds to tune", stages.tune, spent.tune),
    ];
    let row = |name: &str, estimate: f64, measured: Option<f64>, format: fn(f64) -> String| {
        let ratio = measured.map(|m| (m / estimate * 1e4).round() / 1e4);
        let [measured, ratio] = [optional(measured, format), optional(ratio, number)];
        (estimate > 0.0).then(|| vec![name.to_owned(), format(estimate), measured, ratio])
    };
    let sizes = sizes.map(|(name, estimate, measured)| row(name, estimate as f64, measured, bytes));
    let times =
        times.map(|(name, estimate, measured)| row(name, estimate, Some(measured), seconds));
    let mut table = Table::new(&["quantity", "estimate", "measured", "measured / estimate"]);
    table.rows.extend(sizes.into_iter().chain(times).flatten());
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

/// Lists what each artifact was made from.
pub fn origins(data: &PageData) -> Markup {
    let of_artifact = |artifact: &ArtifactData| {
        let manifest = artifact.file.map(|f| serde_json::to_value(&f.manifest));
        let manifest = manifest.and_then(Result::ok).unwrap_or_default();
        let report = serde_json::to_value(artifact.report).unwrap_or_default();
        let mut table = properties(&artifact.name, &report, REPORT);
        let paths = artifact.report.map_or(MANIFEST, |_| "provenance");
        table.rows.extend(properties("", &manifest, paths).rows);
        table.render(&format!("Origin of {}", artifact.name))
    };
    html! { @for artifact in &data.artifacts { (of_artifact(artifact)) } }
}

/// Lists what an analysis was made from.
pub fn analysis_origin(analysis: &Value, prefix: &str) -> Markup {
    let table = properties("value", analysis, ANALYSIS);
    table.render(&format!("{prefix}Origin of the analysis"))
}
