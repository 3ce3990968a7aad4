//! What was expected against what came out.

use htc_formats::model::ProjectionKind;

use super::super::html::{Block, Figure, Legend, Section};
use super::super::number::{bytes, number, percent, seconds};
use super::super::plot::{Axis, Kind, PlotError, Point, Series, Xy};
use super::super::subject::Given;
use super::super::table::{Cell, Table};
use super::{empty, look};
use crate::make::MeasuredProjection;
use crate::unit::Norm;

/// Errors of single slots.
pub fn errors(given: &Given) -> Result<Section, PlotError> {
    let mut section = empty(
        "predicted",
        "Predicted and measured error",
        "Predicted is the smallest error that a matrix of that rank can have, before anything is rounded (Eckart and Young). Points on the line reach it; above it lies what storing costs.",
    );
    for subject in &given.subjects {
        let measured = subject.report.map_or(&[][..], |r| &r.treated.measured);
        for norm in Norm::ALL {
            if !matches!(norm, Norm::Frobenius | Norm::Output) {
                section
                    .blocks
                    .extend(beside(measured, norm, &given.of(subject)));
                continue;
            }
            let xy = scatter(measured, norm);
            if xy.series.is_empty() {
                continue;
            }
            let caption = format!(
                "{}Predicted and measured error in the norm “{norm}”",
                given.of(subject)
            );
            let key = |s: &Series| {
                let letter = s.marker.map(|m| m.letter());
                (s.colour, letter, s.name.clone())
            };
            section.blocks.push(Block::Figure(Figure {
                plots: vec![xy.draw()?],
                legend: Legend::Keys(xy.series.iter().map(key).collect()),
                table: xy.table(&caption, false),
                caption: format!("{caption}; one point for each slot and layer."),
            }));
        }
    }
    Ok(section)
}

/// Numbers without a plot: what is predicted in such a norm is measured in others.
fn beside(measured: &[MeasuredProjection], norm: Norm, prefix: &str) -> Option<Block> {
    let head = [
        "layer",
        "slot",
        "predicted",
        "measured, weights",
        "measured, outputs",
    ];
    let caption = format!(
        "{prefix}Predicted in the coordinates of the gauge “{norm}”, measured in others: no line joins them"
    );
    let mut table = Table::new(caption, head.map(str::to_owned).into());
    let told = |value: Option<f64>| value.map_or_else(Cell::none, |v| Cell::number(number(v)));
    for one in measured.iter().filter(|m| m.norm == norm) {
        table.row(vec![
            Cell::number(one.layer.to_string()),
            Cell::text(one.slot.name()),
            told(one.predicted),
            told(Some(one.error)),
            told(one.output_error),
        ]);
    }
    (!table.is_empty()).then_some(Block::Table(table))
}

fn scatter(measured: &[MeasuredProjection], norm: Norm) -> Xy {
    let of_outputs = norm == Norm::Output;
    let mut xy = Xy::new(
        format!("Measured against predicted error, norm {norm}"),
        Axis::new("predicted", Kind::Linear),
        Axis::new(
            if of_outputs {
                "measured, outputs"
            } else {
                "measured, weights"
            },
            Kind::Linear,
        ),
    );
    xy.diagonal = true;
    let own = |slot: ProjectionKind| -> Vec<Point> {
        let own = measured.iter().filter(|m| m.slot == slot && m.norm == norm);
        own.filter_map(|m| {
            let found = if of_outputs {
                m.output_error
            } else {
                Some(m.error)
            };
            Some(Point {
                name: format!("layer {}", m.layer),
                ..Point::new(m.predicted?, found?)
            })
        })
        .collect()
    };
    xy.series = ProjectionKind::ALL
        .into_iter()
        .map(|slot| {
            let (colour, marker) = look(slot);
            Series {
                name: slot.name().into(),
                colour,
                marker: Some(marker),
                line: false,
                points: own(slot),
            }
        })
        .collect();
    xy.series.retain(|s| !s.points.is_empty());
    xy
}

/// A quantity, what was foreseen, what came out, and how it is told.
type Row = (&'static str, f64, Option<f64>, fn(f64) -> String);

/// Bytes, memory and time.
pub fn costs(given: &Given) -> Result<Section, PlotError> {
    let mut section = empty(
        "forecast",
        "Forecast",
        "What was foreseen before the work, and what came out. Memory is the process's own, as it was seen at every step; mapped files are left out.",
    );
    let head = [
        "artifact",
        "quantity",
        "foreseen",
        "came out",
        "came out / foreseen",
    ];
    let mut table = Table::new("Foreseen and found", head.map(str::to_owned).into());
    for subject in &given.subjects {
        let Some(report) = subject.report else {
            continue;
        };
        let forecast = &report.forecast;
        let beside = report.peak_memory.map(|peak| peak as f64);
        let work = report.seconds.factorise + report.seconds.measure + report.seconds.seal;
        let rows: [Row; 3] = [
            (
                "bytes of the artifact",
                forecast.bytes as f64,
                // A search changes what was foreseen for the ratio it began with.
                Some(report.bytes.after as f64).filter(|_| report.limit.is_none()),
                bytes,
            ),
            (
                "memory beside the source",
                forecast.peak_memory as f64,
                beside,
                bytes,
            ),
            (
                "seconds to factorise, measure and seal",
                forecast.seconds,
                Some(work),
                seconds,
            ),
        ];
        for (name, expected, found, tell) in rows {
            let part = found
                .filter(|_| expected > 0.0)
                .map(|found| found / expected);
            let exact = part.filter(|p| (p - 1.0).abs() < 5e-4);
            table.row(vec![
                Cell::text(&subject.name),
                Cell::text(name),
                Cell::number(tell(expected)),
                found.map_or_else(Cell::none, |f| Cell::number(tell(f))),
                match (exact, part) {
                    (Some(part), _) => Cell::number(number((part * 1e6).round() / 1e6)),
                    (None, Some(part)) => Cell::number(percent(part)),
                    (None, None) => Cell::none(),
                },
            ]);
        }
    }
    if !table.is_empty() {
        section.blocks.push(Block::Table(table));
    }
    Ok(section)
}
