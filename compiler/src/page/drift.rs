//! Drafts that learn while the text changes, beside drafts that do not.

use maud::{Markup, html};

use super::chart::{Chart, Colour, Point, Series, Xy, shortened};
use super::data::PageData;
use super::input::{Drift, DriftPoint};
use super::json::group_by_key;
use super::scale::Axis;
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
    let drifts = data.drifts.iter();
    let pairs = group_by_key(drifts.map(|drift| ((&*drift.model, &*drift.draft), drift)));
    html! {
        @for ((model, draft), drifts) in pairs {
            @for (title, axis, value, initial) in QUANTITIES {
                (figure(&format!("{title}: {draft} drafts for {model}"), "", [chart(&drifts, Axis::linear(axis), value, initial)]))
            }
        }
    }
}

fn chart(drifts: &[&Drift], y: Axis, value: Value, initial: Option<Value>) -> Chart {
    let mut series = Vec::new();
    for (number, drift) in drifts.iter().enumerate() {
        let learns = match drift.learns.as_str() {
            "off" => "does not learn",
            learns => learns,
        };
        series.push(Series::line(learns, number, points(drift, value)));
        if let Some(initial) = initial {
            let name = format!("{learns}, with the initial bases");
            let number = drifts.len() + number;
            let line = Series::line(&name, number, points(drift, initial));
            series.push(line.without_marker(Colour::Thing(number)));
        }
    }
    let mut xy = Xy::new("", Axis::linear("windows"), y, series);
    // Where each text lies, every second one shaded.
    for (point, to) in drifts.iter().take(1).flat_map(|drift| places(drift)) {
        let from = xy.bands.last().map_or(0.0, |band| band.to);
        let is_even = xy.bands.len().is_multiple_of(2);
        xy.shade(from, to, &point.text, if is_even { 0.35 } else { 0.0 });
    }
    xy.draw()
}

fn points(drift: &Drift, value: Value) -> Vec<Point> {
    let points = places(drift).filter_map(|(point, place)| {
        let (value, error) = value(point)?;
        let interval = (value - 2.0 * error, value + 2.0 * error);
        let shown = Point::new(place, value).within((error > 0.0).then_some(interval));
        Some(shown.named(shortened(&point.text, 80)))
    });
    points.collect()
}

/// Returns each point with the windows of all texts up to it.
fn places(drift: &Drift) -> impl Iterator<Item = (&DriftPoint, f64)> {
    let (mut before, mut last): (f64, Option<&DriftPoint>) = (0.0, None);
    drift.points.iter().map(move |point| {
        if let Some(last) = last.filter(|last| last.text != point.text) {
            before += last.windows as f64;
        }
        last = Some(point);
        (point, before + point.windows as f64)
    })
}
