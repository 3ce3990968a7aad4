//! Plots as SVG, each with the data that it draws as a table.
//!
//! `plotters` writes fixed colours and whole pixels. Everything is therefore drawn ten times as
//! large as it is meant to be, in colours that stand for names, which become CSS variables
//! afterwards, so that a page has its colours in one place and may have a dark form.

mod bars;
mod heat;
mod scale;
mod svg;
mod xy;

pub use bars::{Bars, Group};
pub use heat::{Heat, ROW};
pub use scale::{Axis, Kind};
pub use svg::Colour;
pub use xy::{Band, Marker, Point, Series, Xy};

use thiserror::Error;

/// Units of the drawing to one of the page: places finer than a pixel.
const FINE: i32 = 10;

/// Width of every plot in units of the page. A telephone shows it at about three quarters.
const WIDTH: i32 = 400;

/// Size of text in units of the page.
const TEXT: i32 = 13;

/// The library did not draw.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("a plot was not drawn: {0}; report this with the files that were given")]
pub struct PlotError(String);

impl PlotError {
    fn of(error: impl std::fmt::Display) -> PlotError {
        PlotError(error.to_string())
    }
}

/// A plot that is drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawing {
    /// What it shows, in a few words.
    pub title: String,
    /// What is seen in it, for those who do not see it.
    pub description: String,
    /// Width and height of the view box.
    pub size: (i32, i32),
    /// What stands in the `svg` element.
    pub body: String,
}

/// The ends of some numbers, for a description.
fn extent(values: impl Iterator<Item = f64>, axis: &Axis) -> String {
    let finite = values.filter(|v| v.is_finite());
    let ends = finite.fold(None, |ends: Option<(f64, f64)>, v| {
        let (low, high) = ends.unwrap_or((v, v));
        Some((low.min(v), high.max(v)))
    });
    match ends {
        None => format!("{}: no value", axis.name),
        Some((low, high)) if low == high => format!("{}: {}", axis.name, axis.tell(low)),
        Some((low, high)) => format!("{}: {} to {}", axis.name, axis.tell(low), axis.tell(high)),
    }
}

#[cfg(test)]
mod tests;
