//! The error of every slot, by layer.

use htc_formats::model::ProjectionKind;

use super::super::html::{Block, Figure, Legend, Section};
use super::super::plot::{Axis, Colour, Heat, Kind, PlotError, ROW};
use super::super::subject::{Given, Subject};
use super::empty;

/// The section.
pub fn section(given: &Given) -> Result<Section, PlotError> {
    let mut section = empty(
        "errors",
        "Error by slot",
        "What is stored, after rounding, against the original: 0 is exact, 1 is as far away as nothing at all. Cells without colour are dense, or were not measured.",
    );
    for subject in &given.subjects {
        let weights = field(subject, "‖W − Ŵ‖ / ‖W‖", |layer, slot| {
            let own = subject.plan.slots.iter();
            let mut own = own.filter(|s| (s.layer, s.slot) == (layer, slot));
            own.find_map(|s| s.error)
        });
        let outputs = field(subject, "error of the outputs", |layer, slot| {
            let measured = &subject.report?.treated.measured;
            let mut own = measured
                .iter()
                .filter(|m| (m.layer, m.slot) == (layer, slot));
            own.find_map(|m| m.output_error)
        });
        for (heat, what) in [
            (weights, "Relative error of the weights"),
            (outputs, "Relative error of the outputs on the calibration"),
        ] {
            let Some((low, high)) = heat.ends() else {
                continue;
            };
            let caption = format!("{}{what}, by slot and layer", given.of(subject));
            section.blocks.push(Block::Figure(Figure {
                plots: vec![heat.draw()?],
                legend: Legend::Ramp {
                    colour: Colour::Amount,
                    low,
                    high,
                },
                table: heat.table(&caption, ""),
                caption: caption + ".",
            }));
        }
    }
    Ok(section)
}

fn field(
    subject: &Subject,
    name: &str,
    value: impl Fn(usize, ProjectionKind) -> Option<f64>,
) -> Heat {
    let layers = subject.layers();
    let row = |slot: ProjectionKind| {
        let values = (0..layers).map(|layer| value(layer, slot)).collect();
        (slot.name().to_owned(), values)
    };
    Heat {
        title: name.into(),
        axis: Axis::new(name, Kind::Linear),
        across: "layer".into(),
        columns: (0..layers).map(|layer| layer.to_string()).collect(),
        rows: ProjectionKind::ALL.into_iter().map(row).collect(),
        height: ROW,
        range: None,
    }
}
