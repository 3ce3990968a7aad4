//! Quality against size: what was measured on artifacts, and on the candidates of a choice.

use super::super::html::{Block, Figure, Legend, Section};
use super::super::number::{bytes, number, percent};
use super::super::plot::{Axis, Colour, Kind, Marker, PlotError, Point, Series, Xy};
use super::super::subject::{Given, Subject};
use super::super::table::{Cell, Table};
use super::empty;
use crate::measure::{Evaluation, Interval};
use crate::report::Report;

/// What the source is called in legends.
const ORIGINAL: &str = "the original";

/// Something that was measured.
struct Measurement<'a> {
    name: String,
    bytes: u64,
    scores: &'a Evaluation,
    kind: What,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Artifact,
    Candidate,
    Chosen,
}

/// Measurements that may be compared: on one text, in one protocol, with one reference.
struct Field<'a> {
    about: String,
    reference: Option<Reference>,
    measured: Vec<Measurement<'a>>,
}

/// What measurements are compared with: its name, its bytes, its perplexity.
type Reference = (String, u64, f64);

/// A number, and its interval.
type Value = (f64, Option<Interval>);

/// The section.
pub fn section(given: &Given) -> Result<Section, PlotError> {
    let mut section = empty(
        "quality",
        "Quality against size",
        "Down and to the left is better. Bars are 95 % intervals over windows of text; points on one plot were measured on the same text in the same way.",
    );
    for field in fields(given) {
        section.blocks.extend(figures(&field)?);
    }
    Ok(section)
}

fn fields<'a>(given: &Given<'a>) -> Vec<Field<'a>> {
    let mut fields = Fields::default();
    for of in given.evaluated {
        let scores = &of.evaluation;
        let reference = of.reference.as_ref().zip(scores.reference.as_ref());
        let reference = reference
            .map(|(file, found)| (file.name.clone(), file.bytes, found.reference_perplexity));
        fields.add(
            about(scores, &format!("windows of {}", of.text)),
            reference,
            Measurement {
                name: of.model.name.clone(),
                bytes: of.model.bytes,
                scores,
                kind: What::Artifact,
            },
        );
    }
    for subject in &given.subjects {
        if let Some(report) = subject.report {
            candidates(subject, report, &mut fields);
            artifact(subject, report, &mut fields);
        }
    }
    fields.0
}

/// Measurements by what they may be compared with.
#[derive(Default)]
struct Fields<'a>(Vec<Field<'a>>);

impl<'a> Fields<'a> {
    fn add(&mut self, about: String, reference: Option<Reference>, one: Measurement<'a>) {
        let same = |f: &&mut Field| {
            f.about == about
                && f.reference.as_ref().map(|r| (&r.0, r.1))
                    == reference.as_ref().map(|r| (&r.0, r.1))
        };
        match self.0.iter_mut().find(same) {
            Some(field) => field.measured.push(one),
            None => self.0.push(Field {
                about,
                reference,
                measured: vec![one],
            }),
        }
    }
}

/// The source of a compilation, where a measurement was compared with it.
fn reference(report: &Report, scores: &Evaluation) -> Option<Reference> {
    let perplexity = scores.reference.as_ref()?.reference_perplexity;
    Some((report.source.clone(), report.bytes.before, perplexity))
}

/// What an artifact was chosen among.
fn candidates<'a>(subject: &Subject, report: &'a Report, fields: &mut Fields<'a>) {
    // Only what tells candidates apart: a plot has little room for names.
    let first = report.trials.first();
    let of_ratios = report
        .trials
        .iter()
        .any(|trial| Some(trial.ratio) != first.map(|first| first.ratio));
    let parts = report.trials.iter().filter_map(|trial| trial.shrinkage);
    let of_shrinkages = parts.clone().any(|part| Some(part) != parts.clone().next());
    for trial in &report.trials {
        let scores = &trial.evaluation;
        let bias = if trial.bias { ", bias" } else { "" };
        let part = trial.shrinkage.filter(|_| of_shrinkages);
        let part = part.map_or_else(String::new, |part| format!(" {part}"));
        let ratio = of_ratios.then(|| format!(" at {:.2}", trial.ratio));
        let ratio = ratio.unwrap_or_default();
        let elsewhere = if trial.elsewhere {
            " on the shrinkage, of the texts behind the first"
        } else {
            ""
        };
        let about = format!(
            "candidates of {}, {} held-out windows that decided{elsewhere}, {} tokens",
            subject.name,
            scores.chunks,
            number(scores.tokens as f64)
        );
        let one = Measurement {
            name: match (trial.codes, trial.uniform) {
                (false, _) => format!("{}{part}{bias}{ratio}", trial.gauge),
                (true, Some(dtype)) => dtype.to_string(),
                (true, None) => bytes(trial.bytes as f64),
            },
            bytes: trial.bytes,
            scores,
            kind: if trial.chosen {
                What::Chosen
            } else {
                What::Candidate
            },
        };
        fields.add(about, reference(report, scores), one);
    }
}

/// The artifact itself, on text that decided nothing.
fn artifact<'a>(subject: &Subject, report: &'a Report, fields: &mut Fields<'a>) {
    let Some(quality) = &report.quality else {
        return;
    };
    let scores = &quality.evaluation;
    let others = match quality.choosing_windows {
        0 => String::new(),
        chose => format!("; {chose} others decided"),
    };
    let about = about(scores, &format!("held-out windows of {}", quality.text));
    let one = Measurement {
        name: subject.name.clone(),
        bytes: subject.after,
        scores,
        kind: What::Artifact,
    };
    let about = format!("{about} that decided nothing{others}");
    fields.add(about, reference(report, scores), one);
}

/// What an evaluation is of.
fn about(scores: &Evaluation, windows: &str) -> String {
    format!(
        "{} tokens scored, {} {windows} of {} tokens each",
        number(scores.tokens as f64),
        scores.chunks,
        scores.context
    )
}

fn figures(field: &Field) -> Result<Vec<Block>, PlotError> {
    let first = if field.reference.is_some() {
        let ratio = |s: &Evaluation| {
            let found = s.reference.as_ref()?;
            Some((found.perplexity_ratio, found.perplexity_ratio_interval))
        };
        figure(
            field,
            "Perplexity over the original's",
            Axis::new("perplexity / the original's", Kind::Linear),
            series(field, &ratio, Some(1.0)),
        )?
    } else {
        let perplexity = |s: &Evaluation| Some((s.perplexity, s.perplexity_interval));
        figure(
            field,
            "Perplexity",
            Axis::new("perplexity", Kind::Linear),
            series(field, &perplexity, None),
        )?
    };
    let kl = |s: &Evaluation| {
        let found = s.reference.as_ref()?;
        Some((found.kl, found.kl_interval))
    };
    let second = figure(
        field,
        "KL divergence from the original",
        Axis::new("KL divergence, nats (logarithmic)", Kind::Log),
        series(field, &kl, None),
    )?;
    let mut blocks: Vec<Block> = first.into_iter().chain(second).collect();
    if !blocks.is_empty() {
        let several = field.measured.iter().any(|m| m.kind != What::Artifact);
        blocks.push(Block::Table(all(field, several)));
    }
    Ok(blocks)
}

/// A value of all measurements by what they are of; and the original's, where it has one.
fn series(
    field: &Field,
    value: &dyn Fn(&Evaluation) -> Option<Value>,
    of_reference: Option<f64>,
) -> Vec<Series> {
    let points = |kind: What| -> Vec<Point> {
        let own = field.measured.iter().filter(|m| m.kind == kind);
        own.filter_map(|m| {
            let (y, interval) = value(m.scores)?;
            Some(Point {
                interval,
                name: m.name.clone(),
                named: field.measured.len() <= 12,
                ..Point::new(m.bytes as f64, y)
            })
        })
        .collect()
    };
    let looks = [
        (What::Artifact, "artifact", Colour::Thing(0), Marker::Circle),
        (What::Candidate, "candidate", Colour::Muted, Marker::Ring),
        (What::Chosen, "chosen", Colour::Thing(1), Marker::Diamond),
    ];
    let mut series: Vec<Series> = looks
        .map(|(kind, name, colour, marker)| Series {
            name: name.into(),
            colour,
            marker: Some(marker),
            line: false,
            points: points(kind),
        })
        .into();
    if let Some(((name, bytes, _), of_reference)) = field.reference.as_ref().zip(of_reference) {
        series.push(Series {
            name: ORIGINAL.into(),
            colour: Colour::Thing(2),
            marker: Some(Marker::Square),
            line: false,
            points: vec![Point {
                name: name.clone(),
                // The legend names it.
                named: false,
                ..Point::new(*bytes as f64, of_reference)
            }],
        });
    }
    series.retain(|s| !s.points.is_empty());
    series
}

/// A plot against bytes; none where nothing was measured.
fn figure(
    field: &Field,
    title: &str,
    axis: Axis,
    series: Vec<Series>,
) -> Result<Option<Block>, PlotError> {
    if series.iter().all(|s| s.name == ORIGINAL) {
        return Ok(None);
    }
    let across = Axis::new("bytes", Kind::Bytes);
    let mut xy = Xy::new(format!("{title} against bytes"), across, axis);
    xy.series = series;
    let key = |s: &Series| (s.colour, s.marker.map(Marker::letter), s.name.clone());
    Ok(Some(Block::Figure(Figure {
        caption: format!("{title}: {}.", field.about),
        plots: vec![xy.draw()?],
        legend: Legend::Keys(xy.series.iter().map(key).collect()),
        table: xy.table(format!("{title} against bytes, {}", field.about), false),
    })))
}

fn all(field: &Field, several: bool) -> Table {
    let head = [
        "model",
        "bytes",
        "perplexity",
        "95 % interval",
        "over the original's",
        "95 % interval",
        "KL, nats",
        "95 % interval",
        "same likeliest token",
    ];
    let mut head: Vec<String> = head.map(str::to_owned).into();
    if several {
        head.push("chosen".into());
    }
    let mut table = Table::new(format!("Measured on {}", field.about), head);
    let cell = |value: Option<f64>| match value {
        Some(value) => Cell::number(number(value)),
        None => Cell::none(),
    };
    let interval = |of: Option<Interval>| match of {
        Some((low, high)) => Cell::number(format!("{} to {}", number(low), number(high))),
        None => Cell::none(),
    };
    for one in &field.measured {
        let (s, found) = (one.scores, one.scores.reference.as_ref());
        let mut row = vec![
            Cell::text(&one.name),
            Cell::number(bytes(one.bytes as f64)),
            cell(Some(s.perplexity)),
            interval(s.perplexity_interval),
            cell(found.map(|f| f.perplexity_ratio)),
            interval(found.and_then(|f| f.perplexity_ratio_interval)),
            cell(found.map(|f| f.kl)),
            interval(found.and_then(|f| f.kl_interval)),
            found.map_or_else(Cell::none, |f| Cell::number(percent(f.top1))),
        ];
        if several {
            row.push(Cell::text(if one.kind == What::Chosen {
                "yes"
            } else {
                ""
            }));
        }
        table.row(row);
    }
    if let Some((name, size, perplexity)) = &field.reference {
        let mut row = vec![
            Cell::text(name),
            Cell::number(bytes(*size as f64)),
            cell(Some(*perplexity)),
        ];
        row.resize_with(head_count(several), Cell::none);
        table.row(row);
    }
    table
}

const fn head_count(several: bool) -> usize {
    if several { 10 } else { 9 }
}
