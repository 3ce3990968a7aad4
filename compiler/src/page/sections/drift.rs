//! How drafts that learn followed a text, beside one that does not.

use super::super::drift::{Drift, DriftPoint};
use super::super::html::{Block, Figure, Legend, Section};
use super::super::plot::{Axis, Band, Colour, Drawing, Kind, Marker, PlotError, Point, Series, Xy};
use super::super::subject::Given;
use super::empty;

/// What is drawn of a point, with its standard error.
type Of = fn(&DriftPoint) -> Option<(f64, f64)>;

/// Every quantity: what it is, the axis, what it is of a point, and what it would be with bases as they began.
const QUANTITIES: [(&str, &str, Kind, Of, Option<Of>); 5] = [
    (
        "Drafted tokens that were kept",
        "part kept",
        Kind::Linear,
        |p| Some((p.acceptance, p.standard_error)),
        None,
    ),
    (
        "Perplexity of the draft on text that it has not seen",
        "over the model's, logarithm",
        Kind::Linear,
        |p| Some((p.log_perplexity_ratio, p.log_perplexity_ratio_error)),
        None,
    ),
    (
        "Energy of differences that the bases do not hold",
        "part of the energy",
        Kind::FromZero,
        |p| Some((p.residual?, 0.0)),
        Some(|p| Some((p.residual_frozen?, 0.0))),
    ),
    (
        "Of the subspaces, what is left of the first ones",
        "tr(P\u{2009}P\u{2080}) / r",
        Kind::Linear,
        |p| Some((p.overlap?, 0.0)),
        None,
    ),
    (
        "How far it went",
        "\u{2016}P \u{2212} P\u{2080}\u{2016}, or of a correction \u{2016}B A\u{2016}",
        Kind::FromZero,
        |p| (p.distance > 0.0).then_some((p.distance, 0.0)),
        None,
    ),
];

/// The section.
pub fn section(given: &Given) -> Result<Section, PlotError> {
    let mut section = empty(
        "drift",
        "Drafts that learn",
        "A draft that takes up what was not kept of what it foresaw, beside the same draft that stays as it was, while the text changes. Lines are means over some windows, with two standard errors.",
    );
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    for drift in given.drifts {
        let pair = (drift.model.as_str(), drift.draft.as_str());
        if !pairs.contains(&pair) {
            pairs.push(pair);
        }
    }
    for (model, draft) in pairs {
        let of = |drift: &&Drift| drift.model == model && drift.draft == draft;
        let drifts: Vec<&Drift> = given.drifts.iter().filter(of).collect();
        for (name, axis, kind, of, began) in QUANTITIES {
            let plot = plot(&drifts, name, Axis::new(axis, kind), (of, began));
            if plot.series.is_empty() {
                continue;
            }
            let key = |s: &Series| (s.colour, s.marker.map(Marker::letter), s.name.clone());
            let caption = format!("{name}: {draft} drafts for {model}");
            let drawn: Drawing = plot.draw()?;
            section.blocks.push(Block::Figure(Figure {
                plots: vec![drawn],
                legend: Legend::Keys(plot.series.iter().map(key).collect()),
                table: plot.table(&caption, true),
                caption: format!("{caption}."),
            }));
        }
    }
    Ok(section)
}

fn plot(drifts: &[&Drift], name: &str, y: Axis, (of, began): (Of, Option<Of>)) -> Xy {
    let mut xy = Xy::new(name, Axis::new("windows", Kind::Linear), y);
    for (number, drift) in drifts.iter().enumerate() {
        let learns = match drift.learns.as_str() {
            "off" => "does not learn",
            how => how,
        };
        xy.series.push(Series {
            name: learns.to_owned(),
            colour: Colour::Thing(number),
            marker: Some(Marker::of(number)),
            line: true,
            points: points(drift, of),
        });
        if let Some(began) = began {
            xy.series.push(Series {
                name: format!("{learns}, by its bases as they began"),
                colour: Colour::Thing(drifts.len() + number),
                marker: None,
                line: true,
                points: points(drift, began),
            });
        }
    }
    xy.series.retain(|series| !series.points.is_empty());
    if let Some(drift) = drifts.first() {
        xy.bands = bands(&drift.points);
    }
    xy
}

/// What is known of a quantity, over windows.
fn points(drift: &Drift, of: Of) -> Vec<Point> {
    let places = places(&drift.points);
    let points = drift.points.iter().zip(&places);
    let points = points.filter_map(|(point, &place)| {
        let (value, error) = of(point)?;
        let within = (value - 2.0 * error, value + 2.0 * error);
        Some(Point {
            name: point.text.clone(),
            interval: (error > 0.0).then_some(within),
            ..Point::new(place, value)
        })
    });
    points.collect()
}

/// Windows of all texts in front of each point and up to it: those of a text begin anew.
fn places(points: &[DriftPoint]) -> Vec<f64> {
    let (mut before, mut last) = (0, None::<&DriftPoint>);
    let place = |point| {
        let point: &DriftPoint = point;
        if let Some(last) = last.filter(|last| last.text != point.text) {
            before += last.windows;
        }
        last = Some(point);
        (before + point.windows) as f64
    };
    points.iter().map(place).collect()
}

/// Where each text lies, every other one shaded.
fn bands(points: &[DriftPoint]) -> Vec<Band> {
    let mut bands: Vec<Band> = Vec::new();
    for (point, place) in points.iter().zip(places(points)) {
        let (from, number) = match bands.last_mut() {
            Some(band) if band.name == point.text => {
                band.to = place;
                continue;
            }
            Some(band) => (band.to, bands.len()),
            None => (0.0, 0),
        };
        bands.push(Band {
            from,
            to: place,
            name: point.text.clone(),
            shade: if number % 2 == 0 { 0.35 } else { 0.0 },
        });
    }
    bands
}
