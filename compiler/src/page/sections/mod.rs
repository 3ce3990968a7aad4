//! The sections of the page, each made from what was given, and empty where nothing was given for
//! it.

mod bands;
mod bits;
mod bytes;
mod depth;
mod dial;
mod drift;
mod errors;
mod facts;
mod foreseen;
mod geometry;
mod quality;
mod ranks;
mod sinks;
mod spectra;
mod summary;
mod tails;

use htc_formats::model::ProjectionKind;

use super::html::{Legend, Section};
use super::plot::{Colour, Marker, PlotError};
use super::subject::Given;

pub use summary::{heading, summary, tiles};

/// What makes a section.
type Make = fn(&Given) -> Result<Section, PlotError>;

/// The command whose output is the remedy where a section is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Compile,
    Elastic,
    CompileCalibrated,
    Axiom,
    Analyse,
    AnalyseCalibrated,
    Evaluate,
    Drift,
}

impl Command {
    const fn line(self) -> &'static str {
        match self {
            Command::Compile => "htc compile --report FILE",
            Command::Elastic => "htc compile --file-size SIZE --planes 2 --report FILE",
            Command::CompileCalibrated => "htc compile --calibration TEXT --report FILE",
            Command::Axiom => "htc compile --gauge axiom --calibration TEXT --report FILE",
            Command::Analyse => "htc analyse --json",
            Command::AnalyseCalibrated => "htc analyse --calibration TEXT --json",
            Command::Evaluate => "htc eval --text TEXT --reference MODEL --json",
            Command::Drift => "cargo run --release -p htc-loader --example drift",
        }
    }
}

/// Every section in the order of the page, with what gives its data.
const SECTIONS: [(Make, Command); 21] = [
    (quality::section, Command::Evaluate),
    (bytes::section, Command::Compile),
    (bits::section, Command::Compile),
    (dial::section, Command::Elastic),
    (drift::section, Command::Drift),
    (ranks::section, Command::Compile),
    (errors::section, Command::Compile),
    (foreseen::errors, Command::CompileCalibrated),
    (foreseen::costs, Command::Compile),
    (spectra::section, Command::Analyse),
    (tails::gauges, Command::AnalyseCalibrated),
    (tails::excess, Command::Analyse),
    (tails::axiom, Command::Axiom),
    (depth::phases, Command::AnalyseCalibrated),
    (depth::plateau, Command::AnalyseCalibrated),
    (geometry::dimension, Command::AnalyseCalibrated),
    (geometry::manifold, Command::AnalyseCalibrated),
    (sinks::section, Command::AnalyseCalibrated),
    (facts::time, Command::Compile),
    (facts::notes, Command::Compile),
    (facts::origins, Command::Compile),
];

/// All sections, and one line that says which are empty and what fills them.
///
/// # Errors
/// [`PlotError`] where a plot is not drawn.
pub fn sections(given: &Given) -> Result<(Vec<Section>, String), PlotError> {
    let mut sections = Vec::new();
    let mut absent: Vec<(Command, Vec<String>)> = Vec::new();
    for (make, command) in SECTIONS {
        let section = make(given)?;
        // That there is nothing to note is no want of data.
        if section.blocks.is_empty() && section.id != "notes" {
            let name = section.title.to_lowercase();
            match absent.iter_mut().find(|(of, _)| *of == command) {
                Some((_, names)) => names.push(name),
                None => absent.push((command, vec![name])),
            }
        }
        sections.push(section);
    }
    let absent: Vec<String> = absent
        .into_iter()
        .map(|(command, names)| format!("{} ({})", names.join(", "), command.line()))
        .collect();
    let line = if absent.is_empty() {
        String::new()
    } else {
        format!(
            "Left out, with the command that gives it: {}.",
            absent.join("; ")
        )
    };
    Ok((sections, line))
}

/// The colour and the marker of a slot, the same on the whole page.
fn look(slot: ProjectionKind) -> (Colour, Marker) {
    let number = slot as usize;
    (Colour::Thing(number), Marker::of(number))
}

/// The legend of slots.
fn slot_keys(slots: &[ProjectionKind]) -> Legend {
    let key = |&slot: &ProjectionKind| {
        let (colour, marker) = look(slot);
        (colour, Some(marker.letter()), slot.name().to_owned())
    };
    Legend::Keys(slots.iter().map(key).collect())
}

/// The legend of layers.
fn layer_ramp(layers: usize) -> Legend {
    Legend::Ramp {
        colour: Colour::Depth,
        low: "layer 0".into(),
        high: format!("layer {}", layers.saturating_sub(1)),
    }
}

/// The colour of a layer.
fn of_layer(layer: usize, layers: usize) -> Colour {
    Colour::Depth(layer as f64 / layers.saturating_sub(1).max(1) as f64)
}

/// An empty section.
fn empty(id: &'static str, title: &'static str, lead: &str) -> Section {
    Section {
        id,
        title,
        lead: lead.into(),
        blocks: Vec::new(),
    }
}
