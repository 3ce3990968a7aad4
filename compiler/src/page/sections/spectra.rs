//! The spectra of the weights: how much of a slot's energy its first directions hold.

use htc_formats::model::ProjectionKind;

use super::super::html::{Block, Figure, Section};
use super::super::number::percent;
use super::super::plot::{Axis, Colour, Drawing, Kind, PlotError, Point, Series, Xy};
use super::super::subject::Given;
use super::super::table::Table;
use super::{empty, layer_ramp, look, of_layer, slot_keys};
use crate::analyse::record::{Analysis, Spectrum};

/// The section.
pub fn section(given: &Given) -> Result<Section, PlotError> {
    let mut section = empty(
        "spectra",
        "Spectra",
        "The part of a weight's energy Σσ² that its first directions hold. The sooner a curve rises, the better low rank fits.",
    );
    for (name, analysis) in &given.analyses {
        let prefix = given.of_analysis(name);
        section.blocks.extend(curves(analysis, &prefix)?);
        section.blocks.extend(by_layer(
            analysis,
            "Stable rank ‖W‖² / σ₁²",
            "stable rank",
            &prefix,
            |s| Some(s.stable_rank),
        )?);
        // The rank that nearly all of the energy takes, as a part of the full rank.
        let energies = &analysis.spectra.energies;
        if let Some(at) = energies.iter().position(|&e| (e - 0.95).abs() < 1e-9) {
            section.blocks.extend(by_layer(
                analysis,
                &format!(
                    "Rank that holds {} of the energy, as a part of the full rank",
                    percent(energies[at])
                ),
                "rank / full rank",
                &prefix,
                |s| Some(*s.ranks.get(at)? as f64 / s.rows.min(s.cols).max(1) as f64),
            )?);
        }
    }
    Ok(section)
}

fn of_slot(analysis: &Analysis, slot: ProjectionKind) -> Vec<&Spectrum> {
    let own = analysis.spectra.slots.iter().filter(|s| s.slot == slot);
    let mut own: Vec<&Spectrum> = own.collect();
    own.sort_by_key(|s| s.layer);
    own
}

fn curves(analysis: &Analysis, prefix: &str) -> Result<Option<Block>, PlotError> {
    let layers = analysis
        .spectra
        .slots
        .iter()
        .map(|s| s.layer + 1)
        .max()
        .unwrap_or(0);
    let caption = format!("{prefix}Energy kept by rank, one curve for each layer");
    let mut plots: Vec<(ProjectionKind, Xy)> = Vec::new();
    for slot in ProjectionKind::ALL {
        let mut xy = Xy::new(
            slot.name(),
            Axis::new("rank", Kind::FromZero),
            Axis::new("energy kept", Kind::FromZero),
        );
        xy.small = true;
        let own = of_slot(analysis, slot);
        if own.iter().all(|s| s.curve.is_empty()) {
            continue;
        }
        let points = |s: &Spectrum| -> Vec<Point> {
            let curve = s.curve.iter();
            curve
                .map(|&(rank, kept)| Point::new(rank as f64, kept))
                .collect()
        };
        xy.series = own
            .iter()
            .map(|s| Series {
                name: format!("layer {}", s.layer),
                colour: of_layer(s.layer, layers),
                marker: None,
                line: true,
                points: points(s),
            })
            .collect();
        plots.push((slot, xy));
    }
    let Some((_, first)) = plots.first() else {
        return Ok(None);
    };
    // One column for each layer, where the slots have the same layers and the layers' curves the
    // same ranks.
    let names = |xy: &Xy| -> Vec<String> { xy.series.iter().map(|s| s.name.clone()).collect() };
    let columns = names(first);
    let together = plots
        .iter()
        .all(|(_, xy)| xy.shares_places() && names(xy) == columns);
    let mut table: Option<Table> = None;
    for (slot, xy) in &plots {
        let own = xy.table(&caption, together);
        match &mut table {
            Some(table) => table.append(slot.name(), own),
            None => table = Some(own.within("slot", slot.name())),
        }
    }
    let drawn: Result<Vec<Drawing>, PlotError> = plots.iter().map(|(_, xy)| xy.draw()).collect();
    let drawn = drawn?;
    Ok(table.map(|table| {
        Block::Figure(Figure {
            caption: caption + ".",
            plots: drawn,
            legend: layer_ramp(layers),
            table,
        })
    }))
}

/// A number of every spectrum, by layer.
fn by_layer(
    analysis: &Analysis,
    title: &str,
    axis: &str,
    prefix: &str,
    value: impl Fn(&Spectrum) -> Option<f64>,
) -> Result<Option<Block>, PlotError> {
    let mut xy = Xy::new(
        title,
        Axis::new("layer", Kind::Whole),
        Axis::new(axis, Kind::FromZero),
    );
    let mut slots = Vec::new();
    for slot in ProjectionKind::ALL {
        let (colour, marker): (Colour, _) = look(slot);
        let points: Vec<Point> = of_slot(analysis, slot)
            .into_iter()
            .filter_map(|s| Some(Point::new(s.layer as f64, value(s)?)))
            .collect();
        if !points.is_empty() {
            slots.push(slot);
            xy.series.push(Series {
                name: slot.name().into(),
                colour,
                marker: Some(marker),
                line: true,
                points,
            });
        }
    }
    if slots.is_empty() {
        return Ok(None);
    }
    Ok(Some(Block::Figure(Figure {
        caption: format!("{prefix}{title}."),
        plots: vec![xy.draw()?],
        legend: slot_keys(&slots),
        table: xy.table(format!("{prefix}{title}"), true),
    })))
}
