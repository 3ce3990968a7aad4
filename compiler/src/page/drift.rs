//! Drafts that learn while the text changes, beside drafts that do not.

use maud::{Markup, html};

use super::chart::{Band, Colour, Point, Series, Xy, shortened};
use super::data::PageData;
use super::input::{Drift, DriftPoint};
use super::scale::{Axis, Kind};
use super::template::figure;

/// A value of a point with its standard error.
type Value = fn(&DriftPoint) -> Option<(f64, f64)>;

/// Title and axis, value, and value with the initial bases.
#[rustfmt::skip]
const QUANTITIES: [(&str, &str, Value, Option<Value>); 5] = [
    ("Accepted part of the drafted tokens", "part accepted", |p| Some((p.acceptance, p.standard_error)), None),
    ("Perplexity of the draft over the model's, on text that neither has read", "logarithm of the ratio",
        |p| Some((p.log_perplexity_ratio, p.log_perplexity_ratio_error)), None),
    ("Energy of differences that the bases miss", "part of the energy",
        |p| Some((p.residual?, 0.0)), Some(|p| Some((p.residual_frozen?, 0.0)))),
    ("Overlap with the initial subspaces", "tr(P P₀) / r", |p| Some((p.overlap?, 0.0)), None),
    ("Distance from the start", "‖P − P₀‖, or of a correction ‖B A‖",
        |p| (p.distance > 0.0).then_some((p.distance, 0.0)), None),
];

/// Draws each quantity for each pair of model and draft.
pub fn figures(data: &PageData) -> Markup {
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    for drift in data.drifts {
        let pair = (drift.model.as_str(), drift.draft.as_str());
        if !pairs.contains(&pair) {
            pairs.push(pair);
        }
    }
    let of_pair = |(model, draft): (&str, &str)| {
        let drifts = data.drifts.iter();
        let drifts = drifts.filter(|drift| drift.model == model && drift.draft == draft);
        drifts.collect::<Vec<&Drift>>()
    };
    html! {
        @for pair in pairs {
            @let drifts = of_pair(pair);
            @for (title, axis, value, initial) in QUANTITIES {
                @let y = Axis::new(axis, Kind::Linear);
                (figure(&format!("{title}: {} drafts for {}", pair.1, pair.0), "", [chart(&drifts, y, value, initial).draw()]))
            }
        }
    }
}

fn chart(drifts: &[&Drift], y: Axis, value: Value, initial: Option<Value>) -> Xy {
    let mut series = Vec::new();
    for (number, drift) in drifts.iter().enumerate() {
        let off = drift.learns == "off";
        let learns = if off {
            "does not learn"
        } else {
            drift.learns.as_str()
        };
        series.push(Series::line(learns, number, points(drift, value)));
        if let Some(initial) = initial {
            let name = format!("{learns}, with the initial bases");
            let number = drifts.len() + number;
            let line = Series::line(&name, number, points(drift, initial));
            series.push(line.without_marker(Colour::Thing(number)));
        }
    }
    let mut xy = Xy::new("", Axis::new("windows", Kind::Linear), y, series);
    xy.bands = drifts
        .first()
        .map_or_else(Vec::new, |drift| bands(&drift.points));
    xy
}

fn points(drift: &Drift, value: Value) -> Vec<Point> {
    let points = drift.points.iter().zip(places(&drift.points));
    let points = points.filter_map(|(point, place)| {
        let (value, error) = value(point)?;
        let interval = (value - 2.0 * error, value + 2.0 * error);
        let shown = Point::new(place, value).within((error > 0.0).then_some(interval));
        Some(shown.named(shortened(&point.text, 80)))
    });
    points.collect()
}

/// Windows of all texts up to each point.
fn places(points: &[DriftPoint]) -> Vec<f64> {
    let (mut before, mut last): (f64, Option<&DriftPoint>) = (0.0, None);
    let places = points.iter().map(|point| {
        if let Some(last) = last.filter(|last| last.text != point.text) {
            before += last.windows as f64;
        }
        last = Some(point);
        before + point.windows as f64
    });
    places.collect()
}

/// Returns where each text lies, every second one shaded.
fn bands(points: &[DriftPoint]) -> Vec<Band> {
    let mut bands: Vec<Band> = Vec::new();
    for (point, to) in points.iter().zip(places(points)) {
        match bands.last_mut().filter(|band| band.name == point.text) {
            Some(band) => band.to = to,
            None => bands.push(Band {
                from: bands.last().map_or(0.0, |band| band.to),
                to,
                name: point.text.clone(),
                shade: if bands.len().is_multiple_of(2) {
                    0.35
                } else {
                    0.0
                },
            }),
        }
    }
    bands
}
