//! Bits of every matrix, and what they were expected to cost and did.

use htc_formats::model::{MatrixId, ProjectionKind};

use super::super::html::{Block, Figure, Legend, Section};
use super::super::number::{bytes, number, percent};
use super::super::plot::{Axis, Colour, Heat, Kind, Marker, PlotError, Point, ROW, Series, Xy};
use super::super::subject::{Given, Subject};
use super::{bands, empty};
use crate::measure::Evaluation;
use crate::report::{EstimatedLosses, Report};

/// The section.
pub fn section(given: &Given) -> Result<Section, PlotError> {
    let mut section = empty(
        "bits",
        "Bits, and what they cost",
        "How many bits each weight of a matrix takes in the artifact, and what the codes of all matrices were expected to add to the KL divergence, beside what was measured.",
    );
    for subject in &given.subjects {
        if let Some(figure) = field(given, subject)? {
            section.blocks.push(Block::Figure(figure));
        }
        if let Some(figure) = bands::figure(given, subject)? {
            section.blocks.push(Block::Figure(figure));
        }
        if let Some(figure) = curve(given, subject)? {
            section.blocks.push(Block::Figure(figure));
        }
    }
    Ok(section)
}

/// Bits of a weight.
fn bits(bytes: u64, weights: u64) -> f64 {
    8.0 * bytes as f64 / weights.max(1) as f64
}

/// What was expected of the matrices of an artifact.
fn foreseen<'a>(subject: &Subject<'a>) -> Option<&'a EstimatedLosses> {
    subject.report?.foreseen.as_ref()
}

/// What is said of a matrix where it is pointed at.
fn said(subject: &Subject, matrix: MatrixId, after: u64, weights: u64) -> String {
    let mut said = format!(
        "{matrix}: {}, {} bits",
        bytes(after as f64),
        number(bits(after, weights))
    );
    let Some(all) = foreseen(subject) else {
        return said;
    };
    if let Some(own) = all.matrix(matrix) {
        let part = own.kl / all.kl().max(f64::MIN_POSITIVE);
        said += &format!(
            ", {}, {} of the expected divergence",
            own.form,
            percent(part)
        );
    }
    said
}

/// Layers by slots, a colour for their bits.
fn field(given: &Given, subject: &Subject) -> Result<Option<Figure>, PlotError> {
    let layers = subject.layers();
    let record = |layer: usize, slot: ProjectionKind| {
        let mut own = subject.plan.slots.iter();
        own.find(|of| (of.layer, of.slot) == (layer, slot))
    };
    let row = |slot: ProjectionKind| {
        let of = |layer| record(layer, slot).map(|of| bits(of.bytes_after, of.parameters_before));
        (slot.name().to_owned(), (0..layers).map(of).collect())
    };
    let heat = Heat {
        title: "Bits per weight, by slot and layer".into(),
        axis: Axis::new("bits per weight", Kind::Linear),
        across: "layer".into(),
        columns: (0..layers).map(|layer| layer.to_string()).collect(),
        rows: ProjectionKind::ALL.into_iter().map(row).collect(),
        height: ROW,
        range: None,
    };
    let Some((low, high)) = heat.ends() else {
        return Ok(None);
    };
    let tip = |row: usize, layer: usize| {
        let slot = *ProjectionKind::ALL.get(row)?;
        let of = record(layer, slot)?;
        let matrix = MatrixId::Projection {
            layer,
            projection: slot,
        };
        Some(said(subject, matrix, of.bytes_after, of.parameters_before))
    };
    let others = subject.plan.matrices.iter();
    let others = others.map(|of| said(subject, of.matrix, of.bytes_after, of.parameters_before));
    let others: Vec<String> = others.collect();
    let caption = format!("{}Bits per weight, by slot and layer", given.of(subject));
    let outside = if others.is_empty() {
        String::new()
    } else {
        format!(" Outside of the layers, {}.", others.join("; "))
    };
    Ok(Some(Figure {
        plots: vec![heat.draw_with(tip)?],
        legend: Legend::Ramp {
            colour: Colour::Amount,
            low,
            high,
        },
        table: heat.table(&caption, ""),
        caption: format!(
            "{caption}. Bytes, type and part of the expected divergence are shown where a cell is pointed at.{outside}"
        ),
    }))
}

/// Expected and measured divergence by bytes: of the candidates, and of files in one type.
fn curve(given: &Given, subject: &Subject) -> Result<Option<Figure>, PlotError> {
    let Some((report, foreseen)) = subject.report.zip(foreseen(subject)) else {
        return Ok(None);
    };
    let plain = foreseen.plain.iter().map(|of| Point {
        name: of.dtype.to_string(),
        named: true,
        ..Point::new(of.bytes as f64, of.kl)
    });
    let mut xy = Xy::new(
        "Expected and measured KL divergence",
        Axis::new("bytes of the file", Kind::Bytes),
        Axis::new("KL divergence, nats (logarithmic)", Kind::Log),
    );
    let series = |name: &str, look: (Colour, Marker), points: Vec<Point>| {
        let mut points = points;
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        Series {
            name: name.into(),
            colour: look.0,
            marker: Some(look.1),
            line: false,
            points,
        }
    };
    xy.series = vec![
        series(
            "one type throughout, expected",
            (Colour::Muted, Marker::Ring),
            plain.collect(),
        ),
        series(
            "one type throughout, measured",
            (Colour::Muted, Marker::Square),
            beside(report),
        ),
        series(
            "the artifact, measured beside them",
            (Colour::Thing(2), Marker::Square),
            artifact(report),
        ),
        series(
            "candidates, expected",
            (Colour::Thing(0), Marker::Triangle),
            expected(report),
        ),
        series(
            "candidates, measured",
            (Colour::Thing(1), Marker::Diamond),
            measured(report),
        ),
    ];
    xy.series.retain(|series| !series.points.is_empty());
    if xy.series.is_empty() {
        return Ok(None);
    }
    let key = |s: &Series| {
        let letter = s.marker.map(|marker| marker.letter());
        (s.colour, letter, s.name.clone())
    };
    let caption = format!(
        "{}Expected and measured KL divergence by the bytes of the file",
        given.of(subject)
    );
    Ok(Some(Figure {
        plots: vec![xy.draw()?],
        legend: Legend::Keys(xy.series.iter().map(key).collect()),
        table: xy.table(&caption, true),
        caption: format!(
            "{caption}. Expected are the losses of all matrices added up, from some rows of each and the gradients at its outputs; measured is with 95 % intervals: candidates on the held-out windows that decided, the artifact and files in one type on those that decided nothing."
        ),
    }))
}

/// What was measured on files in one type.
fn beside(report: &Report) -> Vec<Point> {
    let files = report.beside.iter();
    let found = files.filter_map(|of| found(of.dtype.to_string(), of.bytes, &of.evaluation));
    found.collect()
}

/// What was measured on the artifact, on the same windows.
fn artifact(report: &Report) -> Vec<Point> {
    let quality = report.quality.as_ref();
    let found = quality.and_then(|quality| {
        let name = "the artifact".to_owned();
        found(name, report.bytes.after, &quality.evaluation)
    });
    found.into_iter().collect()
}

fn found(name: String, bytes: u64, evaluation: &Evaluation) -> Option<Point> {
    let distance = evaluation.reference.as_ref()?;
    Some(Point {
        name,
        interval: distance.kl_interval,
        ..Point::new(bytes as f64, distance.kl)
    })
}

/// What candidates were expected to lose.
fn expected(report: &Report) -> Vec<Point> {
    let trials = report.trials.iter().filter(|trial| trial.codes);
    let points = trials.filter_map(|trial| Some(Point::new(trial.bytes as f64, trial.expected?)));
    points.collect()
}

/// What was measured on them.
fn measured(report: &Report) -> Vec<Point> {
    let trials = report.trials.iter().filter(|trial| trial.codes);
    let points = trials.filter_map(|trial| {
        let found = trial.evaluation.reference.as_ref()?;
        Some(Point {
            interval: found.kl_interval,
            ..Point::new(trial.bytes as f64, found.kl)
        })
    });
    points.collect()
}
