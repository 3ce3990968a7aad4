//! A page about compressions and models: one HTML file that needs nothing beside itself.
//!
//! 1. [`input`] recognises every file by what is in it and bounds what it may ask for.
//! 2. [`subject`] puts together what belongs together: a report, its artifact, what was measured.
//! 3. Each file of [`sections`] makes one part of the page, of plots ([`plot`]) and tables
//!    ([`table`]): what a plot draws stands in the table below it.
//! 4. [`html`] writes it all, every text escaped.
//!
//! The page holds no time and no path: the same files in the same order give the same bytes.

pub mod html;
pub mod input;
mod number;
pub mod plot;
pub mod sections;
pub mod subject;
pub mod table;

use html::Page;
use input::Inputs;
use plot::PlotError;
use subject::Given;

/// The page about what was given.
///
/// # Errors
/// [`PlotError`] where a plot is not drawn.
pub fn page(inputs: &Inputs) -> Result<String, PlotError> {
    let given = Given::new(inputs);
    let (sections, left_out) = sections::sections(&given)?;
    Ok(html::write(&Page {
        title: sections::heading(&given),
        summary: sections::summary(&given),
        tiles: sections::tiles(&given),
        sections,
        left_out,
        made_by: format!("Made by htc {}.", env!("CARGO_PKG_VERSION")),
    }))
}

#[cfg(test)]
mod tests;
