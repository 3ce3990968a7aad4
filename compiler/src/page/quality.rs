//! Quality: the verdict, measurements against size, predictions, and elastic artifacts.

use maud::{Markup, html};

use super::chart::{Chart, Point, Series, Xy, optional};
use super::data::{ArtifactData, PageData};
use super::number::{brief, bytes, number, percent};
use super::scale::{Axis, Kind};
use super::template::{Table, figure};
use crate::measure::{Evaluation, Interval};
use crate::report::{FileBeside, Report};

/// Returns the most important results: of each artifact, or else of each evaluation.
pub fn verdict(data: &PageData) -> Vec<String> {
    let records = data.evaluated.iter().filter(|_| data.artifacts.is_empty());
    let records = records.map(|record| {
        let size = bytes(record.model.bytes as f64);
        let scores = describe(&record.evaluation, &record.text);
        format!("{} ({size}). {scores}", record.model.name)
    });
    data.artifacts
        .iter()
        .map(of_artifact)
        .chain(records)
        .collect()
}

/// Returns the bits of an artifact for each weight of its source, where the report tells them.
fn bits_per_weight(artifact: &ArtifactData) -> Option<f64> {
    let weights = artifact.report?.summary.parameters.before;
    (weights > 0).then(|| 8.0 * artifact.after as f64 / weights as f64)
}

fn share(artifact: &ArtifactData) -> String {
    let share = artifact.after as f64 / artifact.before.max(1) as f64;
    format!("{} of the source's bytes", percent(share))
}

fn of_artifact(artifact: &ArtifactData) -> String {
    let bits = bits_per_weight(artifact).map(|b| format!("{} bits per weight, ", brief(b)));
    let (name, bits) = (&artifact.name, bits.unwrap_or_default());
    let [after, before] = [artifact.after, artifact.before].map(|b| bytes(b as f64));
    let recorded = artifact.file.and_then(|f| f.manifest.quality.as_ref());
    let scores = match (artifact.scores, recorded) {
        (Some((scores, text)), _) => describe(scores, text),
        (None, Some(recorded)) => format!(
            "Recorded in the artifact: on {} tokens of the test split its perplexity is {} times the source's{}, its KL divergence {} nats per token.",
            number(recorded.tokens as f64),
            number(recorded.perplexity_ratio.value),
            within(recorded.perplexity_ratio.interval),
            brief(recorded.kl.value),
        ),
        (None, None) => format!(
            "Its quality was not measured: run htc eval {name} --text TEXT --reference {} --json, and pass the result to htc report.",
            artifact.source.as_deref().unwrap_or("MODEL"),
        ),
    };
    let baseline = baseline(artifact).unwrap_or_default();
    format!(
        "{name}: {bits}{after} instead of {before} ({}). {baseline}{scores}",
        share(artifact)
    )
}

/// Compares the artifact with the file in a single type that is nearest to its size.
fn baseline(artifact: &ArtifactData) -> Option<String> {
    let report = artifact.report?;
    let own = report.quality.as_ref()?.evaluation.reference.as_ref()?;
    let distance = |file: &&FileBeside| file.bytes.abs_diff(report.bytes.after);
    let nearest = report.beside.iter().min_by_key(distance)?;
    let other = nearest.evaluation.reference.as_ref()?;
    let (dtype, size) = (nearest.dtype.to_string(), bytes(nearest.bytes as f64));
    let (kl, own) = (brief(other.kl), brief(own.kl));
    Some(format!(
        "{dtype} throughout ({size}): KL divergence {kl}, this artifact: {own}. "
    ))
}

fn within(interval: Option<Interval>) -> String {
    let interval = interval.map(|(low, high)| {
        let (low, high) = (number(low), number(high));
        format!(" (95 % interval {low} to {high})")
    });
    interval.unwrap_or_default()
}

fn describe(scores: &Evaluation, text: &str) -> String {
    let on = format!("On {} tokens of {text}", number(scores.tokens as f64));
    let Some(distance) = &scores.reference else {
        let perplexity = number(scores.perplexity);
        let interval = within(scores.perplexity_interval);
        return format!("{on} its perplexity is {perplexity}{interval}; no reference was given.");
    };
    let (ratio, kl) = (number(distance.perplexity_ratio), brief(distance.kl));
    let interval = within(distance.perplexity_ratio_interval);
    format!(
        "{on} its perplexity is {ratio} times the source's{interval}, its KL divergence {kl} nats per token."
    )
}

/// Returns the numbers that are read first, where the page is about one artifact.
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
    match artifact
        .scores
        .map(|(scores, _)| (scores, &scores.reference))
    {
        Some((_, Some(distance))) => {
            let interval = within(distance.perplexity_ratio_interval);
            let ratio = format!("{} ×", number(distance.perplexity_ratio));
            tiles.push((ratio, format!("the source's perplexity{interval}")));
            tiles.push((
                brief(distance.kl),
                "nats of KL divergence per token".to_owned(),
            ));
            tiles.push((percent(distance.top1), "same top token".to_owned()));
        }
        Some((scores, None)) => tiles.push((number(scores.perplexity), "perplexity".to_owned())),
        None => {}
    }
    tiles
}

/// A measured model.
struct Measurement<'a> {
    name: String,
    bytes: u64,
    scores: &'a Evaluation,
    role: Role,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Artifact,
    Baseline,
    Candidate,
    Chosen,
}

/// What makes measurements comparable: text, protocol, and name and bytes of the reference.
type Protocol = (String, Option<(String, u64)>);

/// Measurements that may be compared.
type Comparison<'a> = (Protocol, Vec<Measurement<'a>>);

/// Draws each set of measurements that may be compared.
pub fn against_size(data: &PageData) -> Markup {
    let mut all: Vec<Comparison> = Vec::new();
    let mut add = |protocol: Protocol, measurement| match all
        .iter_mut()
        .find(|(other, _)| *other == protocol)
    {
        Some((_, measurements)) => measurements.push(measurement),
        None => all.push((protocol, vec![measurement])),
    };
    for record in data.evaluated {
        let reference = record.reference.as_ref();
        let reference = reference.map(|file| (file.name.clone(), file.bytes));
        let measurement = Measurement {
            name: record.model.name.clone(),
            bytes: record.model.bytes,
            scores: &record.evaluation,
            role: Role::Artifact,
        };
        add(
            (windows(&record.evaluation, &record.text), reference),
            measurement,
        );
    }
    for artifact in &data.artifacts {
        let Some(report) = artifact.report else {
            continue;
        };
        let measurements = candidates(artifact, report).into_iter();
        for (text, measurement) in measurements.chain(on_test_split(artifact, report)) {
            let source = (report.source.clone(), report.bytes.before);
            let reference = measurement.scores.reference.as_ref().map(|_| source);
            add((text, reference), measurement);
        }
    }
    html! { @for comparison in &all { (compare(comparison)) } }
}

fn windows(scores: &Evaluation, text: &str) -> String {
    let tokens = number(scores.tokens as f64);
    let (windows, context) = (scores.chunks, scores.context);
    format!("{tokens} tokens scored, {windows} windows of {context} tokens of {text}")
}

/// Returns the candidates among which an artifact was chosen, named by what tells them apart.
fn candidates<'a>(artifact: &ArtifactData, report: &'a Report) -> Vec<(String, Measurement<'a>)> {
    let trials = || report.trials.iter();
    let ratios_differ = trials().any(|t| Some(t.ratio) != trials().next().map(|t| t.ratio));
    let shrinkages = || trials().filter_map(|t| t.shrinkage);
    let shrinkages_differ = shrinkages().any(|s| Some(s) != shrinkages().next());
    let candidate = |trial: &'a crate::choose::Trial| {
        let shrinkage = trial.shrinkage.filter(|_| shrinkages_differ);
        let shrinkage = shrinkage.map(|part| format!(" {part}")).unwrap_or_default();
        let bias = if trial.bias { ", bias" } else { "" };
        let ratio = ratios_differ.then(|| format!(" at {:.2}", trial.ratio));
        let name = match (trial.codes, trial.uniform) {
            (true, Some(dtype)) => dtype.to_string(),
            (true, None) => bytes(trial.bytes as f64),
            (false, _) => format!(
                "{}{shrinkage}{bias}{}",
                trial.gauge,
                ratio.unwrap_or_default()
            ),
        };
        let of = if trial.elsewhere {
            " of the texts after the first, for the shrinkage"
        } else {
            ""
        };
        let (scores, tokens) = (&trial.evaluation, number(trial.evaluation.tokens as f64));
        let role = if trial.chosen {
            Role::Chosen
        } else {
            Role::Candidate
        };
        let text = format!(
            "{tokens} tokens, {} validation windows{of}, candidates of {}",
            scores.chunks, artifact.name
        );
        let bytes = trial.bytes;
        (
            text,
            Measurement {
                name,
                bytes,
                scores,
                role,
            },
        )
    };
    trials().map(candidate).collect()
}

/// Returns the artifact itself and files in a single type, on the test split.
fn on_test_split<'a>(
    artifact: &ArtifactData,
    report: &'a Report,
) -> Vec<(String, Measurement<'a>)> {
    let Some(quality) = &report.quality else {
        return Vec::new();
    };
    let scores = &quality.evaluation;
    let test_split = windows(scores, &format!("{}, test split", quality.text));
    let text = match quality.choosing_windows {
        0 => test_split,
        more => format!("{test_split}; {more} more are the validation split"),
    };
    let (name, bytes, role) = (artifact.name.clone(), artifact.after, Role::Artifact);
    let own = (
        text.clone(),
        Measurement {
            name,
            bytes,
            scores,
            role,
        },
    );
    let baselines = report.beside.iter().map(|file| {
        let (name, bytes, role) = (file.dtype.to_string(), file.bytes, Role::Baseline);
        let scores = &file.evaluation;
        (
            text.clone(),
            Measurement {
                name,
                bytes,
                scores,
                role,
            },
        )
    });
    std::iter::once(own).chain(baselines).collect()
}

/// A measured number with its interval.
type Measured = (f64, Option<Interval>);

fn compare(comparison: &Comparison) -> Markup {
    let ((text, reference), _) = comparison;
    let relative = reference.is_some();
    let (title, quantity) = if relative {
        ("Perplexity over the source's", "perplexity / the source's")
    } else {
        ("Perplexity", "perplexity")
    };
    let perplexity = chart(comparison, Axis::new(quantity, Kind::Linear), |s| {
        let distance = s.reference.as_ref().filter(|_| relative);
        let ratio = distance.map(|d| (d.perplexity_ratio, d.perplexity_ratio_interval));
        ratio.or((!relative).then_some((s.perplexity, s.perplexity_interval)))
    });
    let kl = chart(
        comparison,
        Axis::new("KL divergence, nats (logarithmic)", Kind::Log),
        |s| s.reference.as_ref().map(|d| (d.kl, d.kl_interval)),
    );
    html! {
        (figure(&format!("{title} against bytes: {text}"), "", [perplexity]))
        (figure(&format!("KL divergence from the source against bytes: {text}"), "", [kl]))
        (table(comparison).render(&format!("Measured on {text}")))
    }
}

/// Draws a number against bytes. The source is in the table: its size would squeeze the others together.
fn chart(
    (_, measurements): &Comparison,
    axis: Axis,
    value: impl Fn(&Evaluation) -> Option<Measured>,
) -> Chart {
    let points = |role: Role| {
        let with_role = measurements.iter().filter(|m| m.role == role);
        let points = with_role.filter_map(|m| {
            let (y, interval) = value(m.scores)?;
            let point = Point::new(m.bytes as f64, y).within(interval);
            Some(point.labelled(m.name.clone()))
        });
        points.collect::<Vec<_>>()
    };
    let series = vec![
        Series::scatter("one type throughout", 1, points(Role::Baseline)),
        Series::muted("candidate", 4, points(Role::Candidate)),
        Series::scatter("artifact", 0, points(Role::Artifact)),
        Series::scatter("chosen", 2, points(Role::Chosen)),
    ];
    Xy::new("", Axis::new("bytes", Kind::Bytes), axis, series).draw()
}

fn table(((_, reference), measurements): &Comparison) -> Table {
    let mut table = Table::new(&[
        "model",
        "bytes",
        "perplexity",
        "95 % interval",
        "over the source's",
        "95 % interval",
        "KL, nats",
        "95 % interval",
        "same top token",
        "role",
    ]);
    let value = |value: Option<f64>| optional(value, number);
    let interval = |interval: Option<Interval>| {
        optional(interval, |(low, high)| {
            format!("{} to {}", number(low), number(high))
        })
    };
    for one in measurements {
        let (scores, distance) = (one.scores, one.scores.reference.as_ref());
        let role = match one.role {
            Role::Artifact => "artifact",
            Role::Baseline => "one type throughout",
            Role::Candidate => "candidate",
            Role::Chosen => "chosen",
        };
        table.rows.push(vec![
            one.name.clone(),
            bytes(one.bytes as f64),
            number(scores.perplexity),
            interval(scores.perplexity_interval),
            value(distance.map(|d| d.perplexity_ratio)),
            interval(distance.and_then(|d| d.perplexity_ratio_interval)),
            value(distance.map(|d| d.kl)),
            interval(distance.and_then(|d| d.kl_interval)),
            optional(distance.map(|d| d.top1), percent),
            role.to_owned(),
        ]);
    }
    let distances = measurements
        .iter()
        .filter_map(|m| m.scores.reference.as_ref());
    let perplexity = distances.map(|d| d.reference_perplexity).next();
    table.rows.extend(reference.as_ref().map(|(name, size)| {
        let source = format!("{name} (source)");
        vec![source, bytes(*size as f64), value(perplexity)]
    }));
    table
}

/// Draws predicted and measured divergence by the bytes of the file.
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
    let series = vec![
        Series::muted("one type throughout, predicted", 4, types),
        Series::muted("one type throughout, measured", 1, baselines),
        Series::scatter("candidates, predicted", 3, expected),
        Series::scatter("candidates, measured", 2, found),
        Series::scatter("the artifact, measured", 1, own),
    ];
    let x = Axis::new("bytes of the file", Kind::Bytes);
    let y = Axis::new("KL divergence, nats (logarithmic)", Kind::Log);
    let note = "Predictions add up the losses of all matrices, from some rows of each and the gradients at its outputs. Measurements have 95 % intervals: candidates on the validation split, the artifact and files in one type on the test split.";
    let caption = format!("{prefix}Predicted and measured KL divergence by the bytes of the file");
    figure(&caption, note, [Xy::new("", x, y, series).draw()])
}

/// Draws the divergence of an elastic artifact at parts of its bytes.
pub fn elastic(artifact: &ArtifactData, prefix: &str) -> Markup {
    let dial = artifact.report.map_or(&[][..], |r| &r.dial);
    let points = dial.iter().map(|p| {
        let (fraction, refinements, ratio) = (p.fraction, p.refinements, p.perplexity_ratio);
        let point = Point::new(p.bytes as f64, p.kl);
        point.named(format!("fraction {fraction:.3}, {refinements} refinements, perplexity {ratio:.4} of the source's"))
    });
    let x = Axis::new("bytes read for every token", Kind::Bytes);
    let y = Axis::new("KL divergence, nats (logarithmic)", Kind::Log);
    let chart = Xy::new("", x, y, vec![Series::line("active fraction", 0, points)]).draw();
    let caption = format!("{prefix}KL divergence by the bytes that are read for a token");
    figure(
        &caption,
        "One point for each fraction that was measured.",
        [chart],
    )
}
