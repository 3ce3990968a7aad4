//! What elastic artifacts are at parts of their bytes.

use htc_formats::htz::ActiveFractionPoint;

use super::super::html::{Block, Figure, Legend, Section};
use super::super::number::{bytes, number};
use super::super::plot::{Axis, Colour, Kind, Marker, PlotError, Point, Series, Xy};
use super::super::subject::Given;
use super::super::table::{Cell, Table};
use super::empty;

/// The section.
pub fn section(given: &Given) -> Result<Section, PlotError> {
    let mut section = empty(
        "elastic",
        "Elastic: less bytes touched",
        "What an elastic artifact is where every token touches a part of the weights' bytes: its bases alone at the left, with all that they lack at the right. Measured on the held-out windows that decided nothing.",
    );
    for subject in &given.subjects {
        let dial = subject.report.map_or(&[][..], |report| &report.dial);
        if dial.is_empty() {
            continue;
        }
        let caption = format!(
            "{}KL divergence by the bytes that a token touches",
            given.of(subject)
        );
        section.blocks.push(Block::Figure(Figure {
            plots: vec![curve(dial).draw()?],
            legend: Legend::Keys(Vec::new()),
            table: table(dial, &caption),
            caption: format!("{caption}; a point for each part that was measured."),
        }));
    }
    Ok(section)
}

fn curve(dial: &[ActiveFractionPoint]) -> Xy {
    let mut xy = Xy::new(
        "KL divergence by the bytes that a token touches",
        Axis::new("bytes touched for every token", Kind::Bytes),
        Axis::new("KL divergence, nats", Kind::Log),
    );
    let shown = dial.iter().filter(|point| point.kl > 0.0);
    let points = shown.map(|point| Point {
        name: format!("fraction {:.3}", point.fraction),
        named: true,
        ..Point::new(point.bytes as f64, point.kl)
    });
    xy.series = vec![Series {
        name: "in use".into(),
        colour: Colour::Thing(0),
        marker: Some(Marker::of(0)),
        line: true,
        points: points.collect(),
    }];
    xy
}

fn table(dial: &[ActiveFractionPoint], caption: &str) -> Table {
    let head = [
        "fraction",
        "bytes",
        "refinements",
        "KL, nats",
        "perplexity over the source's",
    ];
    let mut table = Table::new(caption, head.map(str::to_owned).into());
    for point in dial {
        table.row(vec![
            Cell::number(format!("{:.3}", point.fraction)),
            Cell::number(bytes(point.bytes as f64)),
            Cell::number(point.refinements.to_string()),
            Cell::number(number(point.kl)),
            Cell::number(format!("{:.4}", point.perplexity_ratio)),
        ]);
    }
    table
}
