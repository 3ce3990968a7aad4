//! Sinks: the direction of the first position, what of it a shared basis holds, and massive
//! channels.

use htc_formats::escape::escape;
use htc_formats::model::ProjectionKind;

use super::super::html::{Block, Figure, Legend, Section};
use super::super::number::{count, number, percent};
use super::super::plot::{Axis, Colour, Kind, Marker, PlotError, Point, Series, Xy};
use super::super::subject::{Given, Subject};
use super::super::table::{Cell, Table};
use super::empty;
use crate::analyse::record::{SinkTokens, Sinks};
use crate::make::SinkCoverage;

/// Sets of slots that share factors; there are no more than a slot each and the groups.
const MAX_SETS: usize = 9;

/// The section.
pub fn section(given: &Given) -> Result<Section, PlotError> {
    let mut section = empty(
        "sinks",
        "Sinks and coverage",
        "Attention sinks are positions, mostly the first, whose activations stand far out along one direction. A shared basis that does not cover this direction distorts them.",
    );
    for (name, analysis) in &given.analyses {
        if let Some(sinks) = &analysis.sinks {
            let prefix = given.of_analysis(name);
            section.blocks.extend(analysed(&prefix, sinks)?);
            section.blocks.extend(positions(&prefix, sinks));
        }
    }
    for subject in &given.subjects {
        section.blocks.extend(treated(given, subject)?);
    }
    Ok(section)
}

fn keyed(caption: String, said: &str, plots: &[Xy]) -> Result<Option<Block>, PlotError> {
    let plots: Vec<&Xy> = plots.iter().filter(|xy| !xy.series.is_empty()).collect();
    let Some(first) = plots.first() else {
        return Ok(None);
    };
    let mut all = (*first).clone();
    all.series = plots.iter().flat_map(|xy| xy.series.clone()).collect();
    let key = |s: &Series| (s.colour, s.marker.map(Marker::letter), s.name.clone());
    let drawn: Result<Vec<_>, _> = plots.iter().map(|xy| xy.draw()).collect();
    Ok(Some(Block::Figure(Figure {
        plots: drawn?,
        legend: Legend::Keys(all.series.iter().map(key).collect()),
        table: all.table(&caption, true),
        caption: format!("{caption}. {said}"),
    })))
}

fn by_layer(title: &str, axis: &str, series: Vec<Series>) -> Xy {
    let mut xy = Xy::new(
        title,
        Axis::new("layer", Kind::Whole),
        Axis::new(axis, Kind::FromZero),
    );
    xy.series = series;
    xy.series.retain(|s| !s.points.is_empty());
    xy
}

fn series(name: String, look: usize, points: Vec<Point>) -> Series {
    Series {
        name,
        colour: Colour::Thing(look),
        marker: Some(Marker::of(look)),
        line: true,
        points,
    }
}

fn analysed(prefix: &str, sinks: &Sinks) -> Result<Option<Block>, PlotError> {
    let share = sinks
        .layers
        .iter()
        .map(|l| Point::new(l.layer as f64, l.share));
    let share = series("energy along the sink".into(), 0, share.collect());
    let mut fractions: Vec<f64> = sinks
        .layers
        .iter()
        .flat_map(|l| l.coverage.iter().map(|c| c.fraction))
        .collect();
    fractions.sort_by(f64::total_cmp);
    fractions.dedup();
    let covered = fractions.iter().take(7).enumerate().map(|(i, &fraction)| {
        let points = sinks.layers.iter().flat_map(|l| {
            let own = l.coverage.iter().filter(|c| c.fraction == fraction);
            own.map(|c| Point::new(l.layer as f64, c.norm))
        });
        series(
            format!("basis of {} of the width", percent(fraction)),
            i + 1,
            points.collect(),
        )
    });
    // What holds less than a random basis avoids the direction.
    let random = fractions.iter().take(7).map(|&fraction| {
        let all = sinks.layers.iter().flat_map(|l| &l.coverage);
        let of = all.clone().find(|c| c.fraction == fraction);
        of.map(|c| format!("{} at {}", number(c.random), percent(fraction)))
    });
    let random: Option<Vec<String>> = random.collect();
    let random = random.filter(|random| !random.is_empty());
    let random = random.map_or_else(String::new, |random| {
        format!(" A basis in random directions holds {}.", random.join(", "))
    });
    keyed(
        format!("{prefix}The sink direction by layer"),
        &format!(
            "On the left the part of the first position's energy that lies along it, on the right how much of it the basis shared by q, k and v holds.{random}"
        ),
        &[
            by_layer(
                "Energy along the sink direction",
                "part of the energy",
                vec![share],
            ),
            by_layer("Coverage by a shared basis", "‖V ŝ‖", covered.collect()),
        ],
    )
}

/// What stands out, as text.
fn positions(prefix: &str, sinks: &Sinks) -> Option<Block> {
    let head = [
        "layer",
        "positions that stand out",
        "largest norm / mean",
        "other tokens that stand out",
        "the largest",
        "channels by energy",
    ];
    let caption = format!(
        "{prefix}Positions whose norm is more than {} standard deviations above the mean, in the mean of all windows and as single tokens behind the first position, and the channels that attention reads most from",
        number(sinks.deviations)
    );
    let mut table = Table::new(caption, head.map(str::to_owned).into());
    for layer in &sinks.layers {
        let mut places: Vec<String> = layer
            .positions
            .iter()
            .map(|p| match &p.text {
                Some(text) => format!("{} {}", p.position, quoted(text)),
                None => p.position.to_string(),
            })
            .collect();
        let more = layer.positions_found.saturating_sub(places.len());
        if more > 0 {
            places.push(format!("and {more} more"));
        }
        let largest = layer.positions.iter().map(|p| p.norm).reduce(f64::max);
        let channels = layer.channels.iter().take(4);
        let channels: Vec<String> = channels
            .map(|c| format!("{} ({})", c.channel, percent(c.share)))
            .collect();
        table.row(vec![
            Cell::number(layer.layer.to_string()),
            Cell::text(if places.is_empty() {
                "none".into()
            } else {
                places.join(", ")
            }),
            match largest.filter(|_| layer.norm_mean > 0.0) {
                Some(norm) => Cell::number(number(norm / layer.norm_mean)),
                None => Cell::none(),
            },
            match &layer.tokens {
                Some(tokens) => Cell::number(count(tokens.found as u64)),
                None => Cell::none(),
            },
            Cell::text(largest_token(layer.tokens.as_ref())),
            Cell::text(channels.join(", ")),
        ]);
    }
    (!table.is_empty()).then_some(Block::Table(table))
}

/// A token of a model's vocabulary, which may hold anything, as people may see it.
fn quoted(text: &str) -> String {
    format!("“{}”", escape(text))
}

/// Which the token with the largest norm is, where, and how far out.
fn largest_token(tokens: Option<&SinkTokens>) -> String {
    let of = |tokens: &SinkTokens| {
        let token = tokens.largest.first()?;
        let ratio = token.norm / tokens.norm_mean;
        let (window, position) = (token.window, token.position);
        let text = token.text.as_deref();
        let text = text.map_or_else(String::new, |text| format!("{}, ", quoted(text)));
        Some(format!(
            "{text}window {window}, position {position}: {} times the mean",
            number(ratio)
        ))
    };
    tokens.and_then(of).unwrap_or_default()
}

/// What a compilation did about them.
fn treated(given: &Given, subject: &Subject) -> Result<Vec<Block>, PlotError> {
    let Some(report) = subject.report else {
        return Ok(Vec::new());
    };
    // One pair of curves for each set of slots that share factors.
    let mut sets: Vec<&[ProjectionKind]> =
        report.treated.sinks.iter().map(|s| &s.slots[..]).collect();
    sets.sort_unstable();
    sets.dedup();
    let mut curves = Vec::new();
    for slots in sets.into_iter().take(MAX_SETS) {
        let names: Vec<&str> = slots.iter().map(|s| s.name()).collect();
        let own = || report.treated.sinks.iter().filter(|s| s.slots == slots);
        let point = |s: &SinkCoverage, of: f64| Point::new(s.layer as f64, of);
        for (what, points) in [
            (
                "norm of the projection",
                own().map(|s| point(s, s.coverage)).collect(),
            ),
            (
                "largest component",
                own().map(|s| point(s, s.largest)).collect(),
            ),
        ] {
            let name = format!("{}: {what}", names.join(" "));
            curves.push(series(name, curves.len(), points));
        }
    }
    let appended = report.treated.sinks.iter().filter(|s| s.appended).count();
    let caption = format!("{}The sink direction in the factors", given.of(subject));
    let [least, most] = report.treated.sink_thresholds();
    let said = format!(
        "It was appended to {appended} of {} of them, which hold less of it than random ones of their ranks would ({} to {}); coverage is what they hold without help.",
        report.treated.sinks.len(),
        number(least),
        number(most)
    );
    let xy = by_layer("Coverage of the sink direction", "coverage", curves);
    let mut blocks: Vec<Block> = keyed(caption, &said, &[xy])?.into_iter().collect();
    if !report.treated.exempt.is_empty() {
        let head = ["layer", "slots", "channels"].map(str::to_owned);
        let caption = format!("{}Channels that are kept as they are", given.of(subject));
        let mut table = Table::new(caption, head.into());
        for exempt in &report.treated.exempt {
            let slots: Vec<&str> = exempt.slots.iter().map(|s| s.name()).collect();
            let channels: Vec<String> = exempt.channels.iter().map(usize::to_string).collect();
            table.row(vec![
                Cell::number(exempt.layer.to_string()),
                Cell::text(slots.join(", ")),
                Cell::text(channels.join(", ")),
            ]);
        }
        blocks.push(Block::Table(table));
    }
    Ok(blocks)
}
