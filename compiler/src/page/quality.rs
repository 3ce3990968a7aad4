//! Quality: the verdict, measurements against size, predictions, and elastic artifacts.

use maud::{Markup, html};
use serde_json::{Value, json};

use super::chart::{Point, Series, xy};
use super::data::{ArtifactData, PageData};
use super::json::{num, point, table, text};
use super::number::{brief, bytes, number, percent};
use super::scale::{Axis, Kind};
use super::template::figure;
use crate::measure::{Evaluation, Interval};
use crate::report::{BaselineFile, Report};
use crate::system::show;

/// Returns the results of each artifact, or else of each evaluation.
pub fn verdict(data: &PageData) -> Vec<String> {
    let records = data.evaluated.iter().filter(|_| data.artifacts.is_empty());
    let records = records.map(|record| {
        let size = bytes(record.model.bytes as f64);
        let scores = describe(&record.evaluation, &record.text);
        format!("{} ({size}). {scores}", record.model.name)
    });
    let artifacts = data.artifacts.iter().flat_map(|artifact| {
        let lines = of_artifact(artifact).into_iter().chain(baseline(artifact));
        let named = data.artifacts.len() > 1;
        let name = named.then(|| format!("{}: ", artifact.name));
        lines.map(move |line| name.clone().unwrap_or_default() + &line)
    });
    artifacts.chain(records).collect()
}

fn bits_per_weight(artifact: &ArtifactData) -> Option<f64> {
    let weights = artifact.report?.summary.parameters.before;
    (weights > 0).then(|| show::bits_per_weight(artifact.after, weights))
}

fn share(artifact: &ArtifactData) -> String {
    let share = artifact.after as f64 / artifact.before.max(1) as f64;
    format!("{} of the source's bytes", percent(share))
}

/// Returns the size, and the quality at this size.
fn of_artifact(artifact: &ArtifactData) -> [String; 2] {
    let bits = bits_per_weight(artifact).map(|b| format!("{} bits per weight: ", brief(b)));
    let (name, bits) = (&artifact.name, bits.unwrap_or_default());
    let [after, before] = [artifact.after, artifact.before].map(|b| bytes(b as f64));
    let recorded = artifact.file.and_then(|f| f.manifest.quality.as_ref());
    let scores = match (artifact.scores, recorded) {
        (Some((scores, text)), _) => describe(scores, text),
        (None, Some(recorded)) => format!(
            "{} The artifact records this for {} tokens of the test split.",
            distance(
                (
                    recorded.perplexity_ratio.value,
                    recorded.perplexity_ratio.interval
                ),
                (recorded.kl.value, recorded.kl.interval),
            ),
            number(recorded.tokens as f64),
        ),
        (None, None) => format!(
            "Its quality was not measured: run htc eval {name} --text TEXT --reference {} --json, and pass the result to htc report.",
            artifact.source.as_deref().unwrap_or("MODEL"),
        ),
    };
    let size = format!("{bits}{after} instead of {before} ({}).", share(artifact));
    [size, scores]
}

/// The file in a single type that is nearest to the size of an artifact.
struct Baseline {
    /// The type and, in a parenthesis, the size.
    name: String,
    kl: f64,
    artifact_kl: f64,
}

impl Baseline {
    fn of(artifact: &ArtifactData) -> Option<Baseline> {
        let report = artifact.report?;
        let own = report.quality.as_ref()?.evaluation.reference.as_ref()?;
        let difference = |file: &&BaselineFile| file.bytes.abs_diff(report.bytes.after);
        let nearest = report.beside.iter().min_by_key(difference)?;
        let other = nearest.evaluation.reference.as_ref()?;
        let ratio = nearest.bytes as f64 / report.bytes.after.max(1) as f64;
        let compared = if (ratio - 1.0).abs() < 0.005 {
            "the same size".to_owned()
        } else if ratio > 1.0 {
            format!("{} larger", percent(ratio - 1.0))
        } else {
            format!("{} smaller", percent(1.0 - ratio))
        };
        Some(Baseline {
            name: format!(
                "{} ({}, {compared})",
                nearest.dtype,
                bytes(nearest.bytes as f64)
            ),
            kl: other.kl,
            artifact_kl: own.kl,
        })
    }
}

/// Returns how the artifact compares with the nearest file in a single type.
fn baseline(artifact: &ArtifactData) -> Option<String> {
    let Baseline {
        name,
        kl,
        artifact_kl,
    } = Baseline::of(artifact)?;
    let (kl, own) = (brief(kl), brief(artifact_kl));
    Some(format!(
        "One type for all matrices, {name}: KL divergence {kl}; this artifact: {own}."
    ))
}

/// Returns a perplexity relative to the source's and a KL divergence, with their intervals.
fn distance(perplexity_ratio: (f64, Option<Interval>), kl: (f64, Option<Interval>)) -> String {
    format!(
        "Perplexity {} times the source's{}; KL divergence {} nats per token{}.",
        ratio(perplexity_ratio.0),
        within(perplexity_ratio.1, ratio),
        brief(kl.0),
        within(kl.1, brief),
    )
}

/// Four decimals, since near 1 the differences are small.
fn ratio(value: f64) -> String {
    if (0.01..100.0).contains(&value) {
        format!("{value:.4}")
    } else {
        number(value)
    }
}

fn within(interval: Option<Interval>, format: fn(f64) -> String) -> String {
    let interval = interval.map(|(low, high)| {
        let (low, high) = (format(low), format(high));
        format!(" (95 % interval {low} to {high})")
    });
    interval.unwrap_or_default()
}

fn describe(scores: &Evaluation, text: &str) -> String {
    let on = format!(
        "Measured on {} tokens of {text}",
        number(scores.tokens as f64)
    );
    let Some(found) = &scores.reference else {
        let perplexity = number(scores.perplexity);
        let interval = within(scores.perplexity_interval, number);
        return format!("Perplexity {perplexity}{interval}. {on}, without a reference.");
    };
    let ratio = (found.perplexity_ratio, found.perplexity_ratio_interval);
    format!("{} {on}.", distance(ratio, (found.kl, found.kl_interval)))
}

/// Returns the main numbers of a single artifact.
pub fn tiles(data: &PageData) -> Vec<(String, String)> {
    let [artifact] = &data.artifacts[..] else {
        return Vec::new();
    };
    let bits = bits_per_weight(artifact).map(|b| (brief(b), "bits per weight".to_owned()));
    let mut tiles: Vec<(String, String)> = bits.into_iter().collect();
    tiles.push((bytes(artifact.after as f64), share(artifact)));
    let parameters = artifact.report.map(|r| r.summary.parameters);
    if let Some(parameters) = parameters.filter(|p| p.before != p.after) {
        let part = parameters.after as f64 / parameters.before.max(1) as f64;
        tiles.push((percent(part), "of the parameters".to_owned()));
    }
    let scores = artifact.scores.map(|(scores, _)| scores);
    match scores.map(|scores| (scores, &scores.reference)) {
        Some((_, Some(distance))) => {
            let interval = within(distance.perplexity_ratio_interval, ratio);
            let times = format!("{} ×", ratio(distance.perplexity_ratio));
            tiles.push((times, format!("the source's perplexity{interval}")));
            let interval = within(distance.kl_interval, brief);
            let kl = format!("nats of KL divergence per token{interval}");
            tiles.push((brief(distance.kl), kl));
            if let Some(Baseline { name, kl, .. }) = Baseline::of(artifact) {
                tiles.push((brief(kl), format!("nats for {name}")));
            }
            tiles.push((percent(distance.top1), "same top token".to_owned()));
        }
        Some((scores, None)) => tiles.push((number(scores.perplexity), "perplexity".to_owned())),
        None => {}
    }
    tiles
}

const COLUMNS: [(&str, &str); 10] = [
    ("model", "model"),
    ("role", "role"),
    ("bytes", "bytes"),
    ("perplexity", "scores/perplexity"),
    ("95 % interval", "scores/perplexity_interval"),
    ("over the source's", "scores/perplexity_ratio"),
    ("95 % interval", "scores/perplexity_ratio_interval"),
    ("KL, nats", "scores/kl"),
    ("95 % interval", "scores/kl_interval"),
    ("same top token", "scores/top1"),
];

/// Measurements that may be compared, by text, protocol and reference. Each has `model`, `role`,
/// `bytes` and `scores`.
#[derive(Default)]
struct Comparisons(Vec<(String, Vec<Value>)>);

impl Comparisons {
    fn add(&mut self, protocol: &str, model: &str, [role, bytes, scores]: [Value; 3]) {
        let measurement = json!({"model": model, "role": role, "bytes": bytes, "scores": scores});
        match self.0.iter_mut().find(|(other, _)| other == protocol) {
            Some((_, measurements)) => measurements.push(measurement),
            None => self.0.push((protocol.to_owned(), vec![measurement])),
        }
    }

    /// Adds the model that others are compared with, once, where there is one.
    fn add_reference(&mut self, protocol: &str, model: &str, bytes: u64, scores: &Evaluation) {
        let known = self.0.iter().filter(|(other, _)| other == protocol);
        let mut known = known.flat_map(|(_, measurements)| measurements);
        let is_known = known.any(|m| text(m, "role") == "source" && text(m, "model") == model);
        if let Some(distance) = scores.reference.as_ref().filter(|_| !is_known) {
            let scores = json!({"perplexity": distance.reference_perplexity});
            self.add(protocol, model, ["source".into(), bytes.into(), scores]);
        }
    }

    /// Returns figures and a table of each protocol, the source last.
    fn render(mut self) -> Markup {
        for (_, measurements) in &mut self.0 {
            measurements.sort_by_key(|m| text(m, "role") == "source");
        }
        html! { @for (protocol, measurements) in &self.0 { (compare(protocol, measurements)) } }
    }
}

pub fn against_size(data: &PageData) -> Markup {
    let mut all = Comparisons::default();
    for record in data.evaluated {
        let (scores, reference) = (&record.evaluation, record.reference.as_ref());
        let of = reference
            .map(|file| format!(", against {}", file.name))
            .unwrap_or_default();
        let protocol = windows(scores, &record.text) + &of;
        let values = ["artifact".into(), record.model.bytes.into(), json!(scores)];
        all.add(&protocol, &record.model.name, values);
        if let Some(file) = reference {
            all.add_reference(&protocol, &file.name, file.bytes, scores);
        }
    }
    for artifact in &data.artifacts {
        if let Some(report) = artifact.report {
            add_test_split(artifact, report, &mut all);
        }
    }
    all.render()
}

/// Draws the candidates among which an artifact was chosen.
pub fn candidates(artifact: &ArtifactData, _prefix: &str) -> Markup {
    let mut all = Comparisons::default();
    if let Some(report) = artifact.report {
        add_candidates(artifact, report, &mut all);
    }
    all.render()
}

fn windows(scores: &Evaluation, text: &str) -> String {
    let tokens = number(scores.tokens as f64);
    let (windows, context) = (scores.chunks, scores.context);
    format!("{tokens} tokens scored, {windows} windows of {context} tokens of {text}")
}

/// Adds the candidates among which an artifact was chosen, named by what may tell them apart.
fn add_candidates(artifact: &ArtifactData, report: &Report, all: &mut Comparisons) {
    for trial in &report.trials {
        let shrinkage = trial.shrinkage.map(|part| format!(" {part}"));
        let bias = if trial.bias { ", bias" } else { "" };
        let name = match (trial.codes, trial.uniform) {
            (true, Some(dtype)) => dtype.to_string(),
            (true, None) => bytes(trial.bytes as f64),
            (false, _) => {
                let shrinkage = shrinkage.unwrap_or_default();
                format!("{}{shrinkage}{bias} at {:.2}", trial.gauge, trial.ratio)
            }
        };
        let others = " of the texts after the first, for the shrinkage";
        let of = if trial.elsewhere { others } else { "" };
        let (scores, tokens) = (&trial.evaluation, number(trial.evaluation.tokens as f64));
        let (windows, artifact) = (scores.chunks, &artifact.name);
        let protocol =
            format!("{tokens} tokens, {windows} validation windows{of}, candidates of {artifact}");
        let role = if trial.chosen { "chosen" } else { "candidate" };
        let values = [role.into(), trial.bytes.into(), json!(scores)];
        all.add(&protocol, &name, values);
        all.add_reference(&protocol, &report.source, report.bytes.before, scores);
    }
}

/// Adds the artifact itself and files in a single type, on the test split.
fn add_test_split(artifact: &ArtifactData, report: &Report, all: &mut Comparisons) {
    let Some(quality) = &report.quality else {
        return;
    };
    let scores = &quality.evaluation;
    let mut protocol = windows(scores, &format!("{}, test split", quality.text));
    if quality.choosing_windows > 0 {
        protocol += &format!(
            "; {} more are the validation split",
            quality.choosing_windows
        );
    }
    let values = ["artifact".into(), artifact.after.into(), json!(scores)];
    all.add(&protocol, &artifact.name, values);
    for file in &report.beside {
        let values = [
            "one type throughout".into(),
            file.bytes.into(),
            json!(file.evaluation),
        ];
        all.add(&protocol, &file.dtype.to_string(), values);
    }
    all.add_reference(&protocol, &report.source, report.bytes.before, scores);
}

fn compare(protocol: &str, measurements: &[Value]) -> Markup {
    let chart = |quantity: Axis, path: &str| {
        let paths = [
            "bytes",
            &format!("scores/{path}"),
            &format!("scores/{path}_interval"),
        ];
        let with_role = |role: &str| {
            let points = measurements.iter().filter(|m| text(m, "role") == role);
            let points = points.filter_map(|m| Some(point(m, paths)?.labelled(text(m, "model"))));
            points.collect::<Vec<Point>>()
        };
        let series = [
            Series::scatter("one type throughout", 1, with_role("one type throughout")),
            Series::muted("candidate", 4, with_role("candidate")),
            Series::scatter("artifact", 0, with_role("artifact")),
            Series::scatter("chosen", 2, with_role("chosen")),
        ];
        xy("", Axis::new("bytes", Kind::Bytes), quantity, series)
    };
    let relative = measurements.iter().any(|m| num(m, "scores/kl").is_some());
    html! {
        @if relative {
            (figure(&format!("Perplexity over the source's against bytes: {protocol}"), "",
                [chart(Axis::linear("perplexity / the source's"), "perplexity_ratio")]))
            (figure(&format!("KL divergence from the source against bytes: {protocol}"), "",
                [chart(Axis::log("KL divergence, nats"), "kl")]))
        } @else {
            (figure(&format!("Perplexity against bytes: {protocol}"), "", [chart(Axis::linear("perplexity"), "perplexity")]))
        }
        (table(measurements, &COLUMNS).render(&format!("Measured on {protocol}")))
    }
}

/// Draws predicted and measured divergence by bytes.
pub fn predictions(artifact: &ArtifactData, prefix: &str) -> Markup {
    let Some((report, predicted)) = artifact
        .report
        .and_then(|r| Some((r, r.foreseen.as_ref()?)))
    else {
        return html! {};
    };
    let measured = |bytes: u64, scores: &Evaluation| {
        let distance = scores.reference.as_ref()?;
        Some(Point::new(bytes as f64, distance.kl).within(distance.kl_interval))
    };
    let types = predicted.plain.iter();
    let types = types.map(|f| Point::new(f.bytes as f64, f.kl).labelled(f.dtype.to_string()));
    let baselines = report.beside.iter().filter_map(|f| {
        let point = measured(f.bytes, &f.evaluation)?;
        Some(point.named(f.dtype.to_string()))
    });
    let own = report.quality.iter();
    let own = own.filter_map(|q| measured(report.bytes.after, &q.evaluation));
    let trials = || report.trials.iter().filter(|trial| trial.codes);
    let expected = trials().filter_map(|t| Some(Point::new(t.bytes as f64, t.expected?)));
    let found = trials().filter_map(|t| measured(t.bytes, &t.evaluation));
    let series = [
        Series::muted("one type throughout, predicted", 4, types),
        Series::muted("one type throughout, measured", 1, baselines),
        Series::scatter("candidates, predicted", 3, expected),
        Series::scatter("candidates, measured", 2, found),
        Series::scatter("the artifact, measured", 1, own),
    ];
    let x = Axis::new("bytes of the file", Kind::Bytes);
    let chart = xy("", x, Axis::log("KL divergence, nats"), series);
    let note = "Predictions add up the losses of all matrices, from some rows of each and the gradients at its outputs. Measurements have 95 % intervals: candidates on the validation split, the artifact and files in one type on the test split.";
    let caption = format!("{prefix}Predicted and measured KL divergence by the bytes of the file");
    figure(&caption, note, [chart])
}

/// Draws the divergence of an elastic artifact by bytes.
pub fn elastic(artifact: &ArtifactData, prefix: &str) -> Markup {
    let dial = artifact.report.map_or(&[][..], |r| &r.dial);
    let points = dial.iter().map(|p| {
        let (fraction, refinements, ratio) = (p.fraction, p.refinements, p.perplexity_ratio);
        let point = Point::new(p.bytes as f64, p.kl);
        point.named(format!("fraction {fraction:.3}, {refinements} refinements, perplexity {ratio:.4} of the source's"))
    });
    let x = Axis::new("bytes read for every token", Kind::Bytes);
    let series = [Series::line("active fraction", 0, points)];
    let chart = xy("", x, Axis::log("KL divergence, nats"), series);
    let caption = format!("{prefix}KL divergence by the bytes that are read for a token");
    let note = "One point for each fraction that was measured.";
    figure(&caption, note, [chart])
}
