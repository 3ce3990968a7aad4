//! A page about compressions and models: one HTML file that needs nothing beside itself.
//!
//! 1. [`input`] recognises every file by what is in it and bounds what it may ask for.
//! 2. [`subject`] puts together what belongs together: a report, its artifact, what was measured.
//! 3. Each file of [`sections`] makes one part of the page, of plots ([`plot`]) and tables
//!    ([`table`]): what a plot draws stands in the table below it.
//! 4. [`html`] writes it all, every text escaped.
//!
//! The page holds no time and no path: the same files in the same order give the same bytes. That of a measurement of
//! speed ([`mod@bench`]) says when and on what it was made.

pub mod bench;
pub mod drift;
pub mod html;
pub mod input;
mod number;
pub mod plot;
pub mod sections;
pub mod subject;
pub mod table;

use html::{MAX_PAGE, Page};
use input::Inputs;
use plot::PlotError;
use subject::Given;
use thiserror::Error;

/// Why there is no page. The message of each is one line.
#[derive(Debug, Error)]
pub enum PageError {
    /// A plot is not drawn.
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// Browsers would not show it.
    #[error(
        "the page would have more than {MAX_PAGE} bytes, which no browser shows well; give fewer files at a time"
    )]
    TooLarge,
}

/// The page about what was given.
///
/// # Errors
/// [`PageError`] where a plot is not drawn, or the page is out of proportion.
pub fn page(inputs: &Inputs) -> Result<String, PageError> {
    let given = Given::new(inputs);
    let (sections, left_out) = sections::sections(&given)?;
    let html = html::write(&Page {
        title: sections::heading(&given),
        summary: sections::summary(&given),
        tiles: sections::tiles(&given),
        sections,
        left_out,
        made_by: format!("Made by htc {}.", env!("CARGO_PKG_VERSION")),
    });
    html.ok_or(PageError::TooLarge)
}

#[cfg(test)]
mod tests;
