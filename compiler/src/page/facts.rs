//! Facts about a compilation: time, estimates, notes and origins.

use maud::{Markup, html};

use super::chart::{Colour, bars, optional};
use super::data::{ArtifactData, PageData};
use super::json::{at, fill, num, properties};
use super::number::{bytes, number, seconds};
use super::scale::Axis;
use super::template::{Table, figure, list};

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
    let spent = at(&artifact.json, "seconds");
    let stages = "read calibrate plan factorise measure tune seal".split(' ');
    let groups = stages.filter_map(|name| Some((name.to_owned(), vec![Some(num(spent, name)?)])));
    let groups: Vec<_> = groups.collect();
    let series = [("seconds", Colour::Thing(0))];
    let title = "Seconds by stage";
    let chart = bars(title, &Axis::linear("seconds"), &series, &groups);
    let total = seconds(num(spent, "total").unwrap_or_default());
    let threads = fill("{threads} threads", &artifact.json);
    let note = format!("{total} together, on {threads}.");
    figure(&format!("{prefix}{title}"), &note, [chart])
}

/// Lists estimates beside measurements.
pub fn estimates(artifact: &ArtifactData, prefix: &str) -> Markup {
    let report = &artifact.json;
    let unlimited = at(report, "limit").is_null();
    let made = if unlimited { "bytes/after" } else { "none" };
    type Row = (&'static str, &'static str, &'static str);
    let rows: [Row; 8] = [
        ("bytes of the artifact", "bytes", made),
        ("memory beside the source", "peak_memory", "peak_memory"),
        ("seconds", "seconds", "seconds/total"),
        (
            "seconds to calibrate",
            "stages/calibrate",
            "seconds/calibrate",
        ),
        ("seconds to plan", "stages/plan", "seconds/plan"),
        (
            "seconds to factorise",
            "stages/factorise",
            "seconds/factorise",
        ),
        ("seconds to measure", "stages/measure", "seconds/measure"),
        ("seconds to tune", "stages/tune", "seconds/tune"),
    ];
    let mut table = Table::new(&["quantity", "estimate", "measured", "measured / estimate"]);
    table
        .rows
        .extend(rows.iter().filter_map(|(name, estimate, measured)| {
            let is_time = name.starts_with("seconds");
            let format = if is_time { seconds } else { bytes };
            let estimate = num(report, &format!("forecast/{estimate}")).filter(|e| *e > 0.0)?;
            let measured = num(report, measured);
            let ratio = measured.map(|m| (m / estimate * 1e4).round() / 1e4);
            let [measured, ratio] = [optional(measured, format), optional(ratio, number)];
            Some(vec![(*name).to_owned(), format(estimate), measured, ratio])
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

/// Lists what each artifact and analysis was made from.
pub fn origins(data: &PageData) -> Markup {
    let of_artifact = |artifact: &ArtifactData| {
        let manifest = artifact.file.map(|f| serde_json::to_value(&f.manifest));
        let manifest = manifest.and_then(Result::ok).unwrap_or_default();
        let mut table = properties(&artifact.name, &artifact.json, REPORT);
        let paths = artifact.report.map_or(MANIFEST, |_| "provenance");
        table.rows.extend(properties("", &manifest, paths).rows);
        table.render(&format!("Origin of {}", artifact.name))
    };
    html! {
        @for artifact in &data.artifacts { (of_artifact(artifact)) }
        @for (name, analysis) in &data.analyses {
            (properties(&format!("analysis of {name}"), analysis, ANALYSIS).render(&format!("Origin of the analysis of {name}")))
        }
    }
}
