//! What the residual stream does from layer to layer: its phases, and where it stops to grow.

use super::super::html::{Block, Figure, Legend, Section};
use super::super::number::{count, number, percent};
use super::super::plot::{Axis, Band, Colour, Kind, Marker, PlotError, Point, Series, Xy};
use super::super::subject::Given;
use super::empty;
use crate::analyse::record::Profile;

/// The phases.
pub fn phases(given: &Given) -> Result<Section, PlotError> {
    let mut section = empty(
        "phases",
        "Phases",
        "Variance of the residual stream behind each layer. A valley in it divides the depth into layers that mix, that compress and that refine.",
    );
    for (name, analysis) in &given.analyses {
        let Some(profiles) = &analysis.phases else {
            continue;
        };
        for (profile, which) in [
            (
                &profiles.without_first,
                "without the first position of each window",
            ),
            (&profiles.with_first, "at all positions"),
        ] {
            let caption = format!("{}Variance {which}", given.of_analysis(name));
            let xy = profile_plot(profile, which);
            let said = match (&profile.phases, &profile.reason) {
                (Some(_), _) => String::new(),
                (None, Some(reason)) => format!(" There are no phases: {reason}."),
                (None, None) => " There are no phases.".into(),
            };
            let key = |s: &Series| (s.colour, s.marker.map(Marker::letter), s.name.clone());
            section.blocks.push(Block::Figure(Figure {
                plots: vec![xy.draw()?],
                legend: Legend::Keys(xy.series.iter().map(key).collect()),
                table: xy.table(&caption, true),
                caption: format!("{caption}.{said}"),
            }));
        }
    }
    Ok(section)
}

fn profile_plot(profile: &Profile, which: &str) -> Xy {
    let mut xy = Xy::new(
        format!("Variance of the residual stream, {which}"),
        Axis::new("layer", Kind::Whole),
        Axis::new("variance (logarithmic)", Kind::Log),
    );
    let series = |name: &str, values: &[f64], colour, marker, line| Series {
        name: name.into(),
        colour,
        marker,
        line,
        points: by_layer(values),
    };
    xy.series = vec![
        series(
            "variance",
            &profile.variance,
            Colour::Muted,
            Some(Marker::Ring),
            false,
        ),
        series(
            "mean over three layers",
            &profile.smoothed,
            Colour::Thing(0),
            None,
            true,
        ),
    ];
    // Neighbours of one phase are one band.
    let names = profile.phases.as_deref().unwrap_or(&[]);
    for (layer, phase) in names.iter().enumerate() {
        let (from, to) = (layer as f64 - 0.5, layer as f64 + 0.5);
        match xy.bands.last_mut().filter(|band| band.name == *phase) {
            Some(band) => band.to = to,
            None => xy.bands.push(Band {
                from,
                to,
                name: phase.clone(),
                shade: match phase.as_str() {
                    "mix" => 0.35,
                    "compress" => 1.0,
                    _ => 0.0,
                },
            }),
        }
    }
    xy
}

fn by_layer(values: &[f64]) -> Vec<Point> {
    let values = values.iter().enumerate();
    values
        .map(|(layer, &v)| Point::new(layer as f64, v))
        .collect()
}

/// The depth sink.
pub fn plateau(given: &Given) -> Result<Section, PlotError> {
    let mut section = empty(
        "depth",
        "Depth sink",
        "The part of the variance of all layers that the leading directions of the layers so far explain. Where the curve stands still, later layers use directions again that earlier ones made.",
    );
    for (name, analysis) in &given.analyses {
        let Some(depth) = &analysis.depth else {
            continue;
        };
        let mut xy = Xy::new(
            "Variance explained by the layers so far",
            Axis::new("layer", Kind::Whole),
            Axis::new("part explained", Kind::Linear),
        );
        xy.series = vec![Series {
            name: "part explained".into(),
            colour: Colour::Thing(0),
            marker: Some(Marker::Circle),
            line: true,
            points: by_layer(&depth.curve),
        }];
        if let Some((layer, value)) = depth.layer.and_then(|l| Some((l, *depth.curve.get(l)?))) {
            xy.series.push(Series {
                name: "plateau begins".into(),
                colour: Colour::Thing(1),
                marker: Some(Marker::Diamond),
                line: false,
                points: vec![Point::new(layer as f64, value)],
            });
        }
        let found = match (depth.layer, depth.relative) {
            (Some(layer), relative) => format!(
                "The plateau begins at layer {layer}{}; the two-thirds rule says layer {}{}.",
                relative.map_or_else(String::new, |r| format!(", {} of the depth", percent(r))),
                depth.two_thirds,
                match depth.agrees {
                    Some(true) => ", which agrees to one layer",
                    Some(false) => ", which does not agree",
                    None => "",
                }
            ),
            (None, _) => match &depth.reason {
                Some(reason) => format!("The analysis found {reason}."),
                None => "There is no plateau.".to_owned(),
            },
        };
        let caption = format!(
            "{}Variance explained by the layers so far",
            given.of_analysis(name)
        );
        let mut plots = vec![xy.draw()?];
        if !depth.weights.is_empty() {
            let mut weights = Xy::new(
                "Weight of a layer's covariance, one over its trace",
                Axis::new("layer", Kind::Whole),
                Axis::new("weight (logarithmic)", Kind::Log),
            );
            weights.series = vec![Series {
                name: "weight".into(),
                colour: Colour::Thing(2),
                marker: Some(Marker::Ring),
                line: true,
                points: by_layer(&depth.weights),
            }];
            plots.push(weights.draw()?);
            xy.series.extend(weights.series);
        }
        let key = |s: &Series| (s.colour, s.marker.map(Marker::letter), s.name.clone());
        section.blocks.push(Block::Figure(Figure {
            plots,
            legend: Legend::Keys(xy.series.iter().map(key).collect()),
            table: xy.table(&caption, true),
            caption: format!(
                "{caption}, in as many directions as hold 95 % of that of all layers: {}. {found} A value counts as the plateau's within {} of the last; every layer's covariance is weighted so that it counts the same.",
                count(depth.rank as u64),
                number(depth.tolerance)
            ),
        }));
    }
    Ok(section)
}
