//! What truncation loses: under each gauge, and step by step under the axiom.

use htc_formats::model::ProjectionKind;

use super::super::html::{Block, Figure, Legend, Section};
use super::super::plot::{Axis, Colour, Drawing, Kind, Marker, PlotError, Point, Series, Xy};
use super::super::subject::Given;
use super::super::table::Table;
use super::{empty, layer_ramp, look, of_layer, slot_keys};
use crate::analyse::record::{Analysis, SharedMember, Tails};

/// A gauge's numbers in a record.
type Of = fn(&Tails) -> Option<&Vec<f64>>;

const GAUGES: [(&str, Of, Colour, Marker); 3] = [
    ("none", |t| Some(&t.none), Colour::Thing(6), Marker::Circle),
    (
        "activation",
        |t| t.activation.as_ref(),
        Colour::Thing(1),
        Marker::Square,
    ),
    (
        "whiten",
        |t| t.whiten.as_ref(),
        Colour::Thing(0),
        Marker::Diamond,
    ),
];

/// Tail energies by gauge.
pub fn gauges(given: &Given) -> Result<Section, PlotError> {
    let mut section = empty(
        "gauges",
        "Tail energy by gauge",
        "The smallest relative error that a rank can have, the square root of the part of the energy in the tail, in the norm of each gauge: the weights alone, the weights by how much each input is excited, the outputs. Points are root mean squares over the layers, bars go from the best layer to the worst.",
    );
    for (name, analysis) in &given.analyses {
        let prefix = given.of_analysis(name);
        let caption = format!("{prefix}Tail energy by rank and gauge");
        let mut table: Option<Table> = None;
        let mut plots: Vec<Drawing> = Vec::new();
        let mut compared = false;
        for slot in ProjectionKind::ALL {
            let mut xy = Xy::new(
                slot.name(),
                Axis::new("part of the full rank", Kind::FromZero),
                Axis::new("relative error", Kind::FromZero),
            );
            xy.small = true;
            for (gauge, of, colour, marker) in GAUGES {
                let points = over_layers(analysis, slot, of);
                compared |= gauge != "none" && !points.is_empty();
                xy.series.push(Series {
                    name: gauge.into(),
                    colour,
                    marker: Some(marker),
                    line: true,
                    points,
                });
            }
            if xy.series.iter().all(|s| s.points.is_empty()) {
                continue;
            }
            plots.push(xy.draw()?);
            let own = xy.table(&caption, true);
            match &mut table {
                Some(table) => table.append(slot.name(), own),
                None => table = Some(own.within("slot", slot.name())),
            }
        }
        // Without another gauge there is nothing that the spectra do not show.
        if let Some(table) = table.filter(|_| compared) {
            let key = |&(gauge, _, colour, marker): &(&str, Of, Colour, Marker)| {
                (colour, Some(marker.letter()), gauge.to_owned())
            };
            section.blocks.push(Block::Figure(Figure {
                caption: caption + ".",
                plots,
                legend: Legend::Keys(GAUGES.iter().map(key).collect()),
                table,
            }));
        }
    }
    Ok(section)
}

/// What a basis that slots share loses beyond one of a slot's own.
pub fn excess(given: &Given) -> Result<Section, PlotError> {
    let mut section = empty(
        "excess",
        "Excess of a shared basis",
        "The energy that a basis shared by q, k and v, or by gate and up, loses of a slot, over what a basis of the slot's own would lose at the same rank: 1 is no worse. Points are root mean squares over the layers, bars go from the best layer to the worst.",
    );
    for (name, analysis) in &given.analyses {
        let caption = format!("{}Excess by rank and slot", given.of_analysis(name));
        let spectra = &analysis.spectra;
        let mut xy = Xy::new(
            "Excess of the shared basis",
            Axis::new("rank of the basis, part of the width", Kind::FromZero),
            Axis::new("energy lost / of its own basis (logarithmic)", Kind::Log),
        );
        for slot in ProjectionKind::ALL {
            let members = spectra.groups.iter().flat_map(|group| &group.members);
            let own: Vec<&SharedMember> = members.filter(|member| member.slot == slot).collect();
            let (colour, marker) = look(slot);
            xy.series.push(Series {
                name: slot.name().into(),
                colour,
                marker: Some(marker),
                line: true,
                points: by_fraction(analysis, |i| {
                    let values = own.iter().filter_map(|member| *member.excess.get(i)?);
                    values.collect()
                }),
            });
        }
        xy.series.retain(|series| !series.points.is_empty());
        if xy.series.is_empty() {
            continue;
        }
        let slots = xy
            .series
            .iter()
            .filter_map(|series| series.name.parse().ok());
        let slots: Vec<ProjectionKind> = slots.collect();
        section.blocks.push(Block::Figure(Figure {
            plots: vec![xy.draw()?],
            legend: slot_keys(&slots),
            table: xy.table(&caption, true),
            caption: caption + ".",
        }));
    }
    Ok(section)
}

fn over_layers(analysis: &Analysis, slot: ProjectionKind, of: Of) -> Vec<Point> {
    by_fraction(analysis, |i| {
        let own = analysis.spectra.slots.iter().filter(|s| s.slot == slot);
        own.filter_map(|s| of(&s.tails)?.get(i).copied()).collect()
    })
}

/// Of the values at each fraction of the rank their root mean square, from the least to the largest.
fn by_fraction(analysis: &Analysis, of: impl Fn(usize) -> Vec<f64>) -> Vec<Point> {
    let spectra = &analysis.spectra;
    let of_rank = |(i, &fraction): (usize, &f64)| {
        let values = of(i);
        let count = values.len() as f64;
        let low = values.iter().copied().reduce(f64::min)?;
        let high = values.iter().copied().reduce(f64::max)?;
        let mean = (values.iter().map(|v| v * v / count).sum::<f64>()).sqrt();
        Some(Point {
            interval: Some((low, high)),
            ..Point::new(fraction, mean)
        })
    };
    spectra
        .fractions
        .iter()
        .enumerate()
        .filter_map(of_rank)
        .collect()
}

/// Tail energy by iteration of the axiom.
pub fn axiom(given: &Given) -> Result<Section, PlotError> {
    let mut section = empty(
        "axiom",
        "Tail energy under the axiom",
        "Tail energy of each layer by iteration; it is to fall.",
    );
    for subject in &given.subjects {
        let traces = subject.report.map_or(&[][..], |r| &r.treated.axiom);
        let layers = traces.iter().map(|t| t.layer + 1).max().unwrap_or(0);
        let mut xy = Xy::new(
            "Tail energy by iteration",
            Axis::new("iteration", Kind::Whole),
            Axis::new("tail energy", Kind::Linear),
        );
        xy.series = traces
            .iter()
            .map(|trace| {
                let points = (0..).zip(&trace.trace);
                Series {
                    name: format!("layer {}", trace.layer),
                    colour: of_layer(trace.layer, layers),
                    marker: None,
                    line: true,
                    points: points
                        .map(|(i, v): (u32, _)| Point::new(f64::from(i), *v))
                        .collect(),
                }
            })
            .collect();
        xy.series.retain(|s| !s.points.is_empty());
        if xy.series.is_empty() {
            continue;
        }
        let caption = format!("{}Tail energy by iteration of the axiom", given.of(subject));
        section.blocks.push(Block::Figure(Figure {
            plots: vec![xy.draw()?],
            legend: layer_ramp(layers),
            table: xy.table(&caption, true),
            caption: format!("{caption}, one curve for each layer."),
        }));
    }
    Ok(section)
}
