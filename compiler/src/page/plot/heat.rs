//! A field of numbers as colours.

use plotters::element::{Rectangle, Text};
use plotters::style::text_anchor::{HPos, VPos};

use super::super::html::escaped;
use super::super::table::{Cell, Table};
use super::scale::{Axis, Scale};
use super::svg::{Canvas, Colour, draw, shortened, text};
use super::{Drawing, FINE, PlotError, WIDTH, extent};

/// Where the field begins, in units of the page.
const LEFT: i32 = 52;

/// Height of a row that a name fits into.
pub const ROW: i32 = 27;

/// Rows that are lower have no names of their own.
const NAMED: i32 = 12;

/// Fields with more columns have no room for numbers.
const NUMBERED: usize = 12;

/// A number for each row and column.
#[derive(Clone, Debug, PartialEq)]
pub struct Heat {
    /// What it shows, in a few words.
    pub title: String,
    /// What the numbers are.
    pub axis: Axis,
    /// What columns are.
    pub across: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Names of the rows, with a number for each column where there is one.
    pub rows: Vec<(String, Vec<Option<f64>>)>,
    /// Height of a row, [`ROW`] mostly.
    pub height: i32,
    /// The numbers of the faintest and the strongest colour, where they are not the smallest and the largest.
    pub range: Option<[f64; 2]>,
}

impl Heat {
    /// All numbers.
    pub fn values(&self) -> impl Iterator<Item = f64> {
        let all = self.rows.iter().flat_map(|(_, row)| row.iter());
        all.flatten().copied()
    }

    /// The smallest and the largest number, as they are told.
    pub fn ends(&self) -> Option<(String, String)> {
        let finite = || self.values().filter(|v| v.is_finite());
        let (low, high) = finite().reduce(f64::min).zip(finite().reduce(f64::max))?;
        Some((self.axis.tell(low), self.axis.tell(high)))
    }

    /// Draws it, with what is said of a cell, by row and column, where it is pointed at.
    ///
    /// # Errors
    /// [`PlotError`] where the library fails.
    pub fn draw_with(
        &self,
        tip: impl Fn(usize, usize) -> Option<String>,
    ) -> Result<Drawing, PlotError> {
        let mut drawing = self.draw()?;
        for row in 0..self.rows.len().min(1000) {
            for column in 0..self.columns.len() {
                let Some(said) = tip(row, column) else {
                    continue;
                };
                let [(left, top), (right, bottom)] = self.cell(row, column);
                drawing.body += &format!(
                    "<rect x=\"{left}\" y=\"{top}\" width=\"{}\" height=\"{}\" fill=\"none\" pointer-events=\"all\"><title>{}</title></rect>\n",
                    right - left,
                    bottom - top,
                    escaped(&said)
                );
            }
        }
        Ok(drawing)
    }

    /// The corners of a cell.
    fn cell(&self, row: usize, column: usize) -> [(i32, i32); 2] {
        let count = self.columns.len().max(1);
        let field = f64::from((WIDTH - LEFT - 6) * FINE);
        let edge =
            |column: usize| LEFT * FINE + (field * column as f64 / count as f64).round() as i32;
        let gap = if count <= 40 { FINE } else { 0 };
        let top = (26 + i32::try_from(row).unwrap_or(0) * self.height) * FINE;
        [
            (edge(column), top),
            (edge(column + 1) - gap, top + (self.height - 1) * FINE),
        ]
    }

    /// Draws it.
    ///
    /// # Errors
    /// [`PlotError`] where the library fails.
    pub fn draw(&self) -> Result<Drawing, PlotError> {
        let description = format!(
            "{}. {} rows, {} columns ({}). Darker or brighter cells stand out from the page as the number grows.",
            extent(self.values(), &self.axis),
            self.rows.len(),
            self.columns.len(),
            self.across,
        );
        let rows = i32::try_from(self.rows.len()).unwrap_or(i32::MAX).min(1000);
        let height = rows * self.height + 48;
        draw(&self.title, description, (WIDTH, height), |canvas| {
            self.on(canvas, height)
        })
    }

    fn on(&self, canvas: &Canvas, height: i32) -> Result<(), PlotError> {
        let of = PlotError::of;
        let range = self.range.into_iter().flatten();
        let scale = Scale::over(self.axis.kind, self.values().chain(range));
        let finite = || self.values().filter(|v| v.is_finite());
        let low = finite().fold(f64::INFINITY, f64::min);
        let high = finite().fold(f64::NEG_INFINITY, f64::max);
        let [low, high] = self.range.unwrap_or([low, high]);
        let part = |value: f64| {
            let (from, to) = (scale.fraction(low), scale.fraction(high));
            if to > from {
                (scale.fraction(value) - from) / (to - from)
            } else {
                0.5
            }
        };
        let above = text(Colour::Muted, 0.95, HPos::Left, VPos::Top);
        let name = Text::new(shortened(&self.axis.name, 60), (20, 20), above);
        canvas.draw(&name).map_err(of)?;
        let count = self.columns.len().max(1);
        for (row, (name, values)) in self.rows.iter().take(1000).enumerate() {
            let [(_, top), _] = self.cell(row, 0);
            let middle = top + self.height * FINE / 2;
            let style = text(Colour::Ink, 0.95, HPos::Right, VPos::Center);
            // Of low rows one in several has its name.
            if row % usize::try_from((NAMED + self.height - 1) / self.height).unwrap_or(1) == 0 {
                let label = Text::new(shortened(name, 8), ((LEFT - 7) * FINE, middle), style);
                canvas.draw(&label).map_err(of)?;
            }
            for (column, value) in values.iter().enumerate().take(count) {
                let corners @ [(left, _), (right, _)] = self.cell(row, column);
                let Some(value) = value.filter(|v| v.is_finite()) else {
                    let none = Rectangle::new(corners, Colour::Grid.veil(0.35));
                    canvas.draw(&none).map_err(of)?;
                    continue;
                };
                let amount = part(value);
                let cell = Rectangle::new(corners, Colour::Amount(amount).fill());
                canvas.draw(&cell).map_err(of)?;
                if count <= NUMBERED && self.height >= ROW {
                    let colour = if amount < 0.55 {
                        Colour::Ink
                    } else {
                        Colour::Paper
                    };
                    let style = text(colour, 0.75, HPos::Center, VPos::Center);
                    let told = brief(&self.axis.tell(value));
                    let at = ((left + right) / 2, middle - FINE / 2);
                    canvas.draw(&Text::new(told, at, style)).map_err(of)?;
                }
            }
        }
        let every = count.div_ceil(12);
        let under = (height - 18) * FINE;
        for (column, name) in self.columns.iter().enumerate().step_by(every) {
            let style = text(Colour::Muted, 0.85, HPos::Center, VPos::Top);
            let [(left, _), (right, _)] = self.cell(0, column);
            let at = ((left + right) / 2, under);
            canvas
                .draw(&Text::new(shortened(name, 7), at, style))
                .map_err(of)?;
        }
        let style = text(Colour::Muted, 0.85, HPos::Right, VPos::Top);
        let across = Text::new(
            shortened(&self.across, 12),
            ((LEFT - 7) * FINE, under),
            style,
        );
        canvas.draw(&across).map_err(of)
    }

    /// The numbers; `across` and `down` name columns and rows.
    pub fn table(&self, caption: impl Into<String>, down: &str) -> Table {
        // Columns of the field are many, so they are the rows of the table.
        let mut head = vec![self.across.clone()];
        head.extend(self.rows.iter().map(|(name, _)| format!("{down}{name}")));
        let mut table = Table::new(caption, head);
        for (column, name) in self.columns.iter().enumerate() {
            let mut row = vec![Cell::number(name.clone())];
            row.extend(self.rows.iter().map(|(_, values)| {
                match values.get(column).copied().flatten() {
                    Some(value) => Cell::number(self.axis.tell(value)),
                    None => Cell::none(),
                }
            }));
            table.row(row);
        }
        table
    }
}

/// A number for a small place: `0.1234` becomes `.123`.
fn brief(told: &str) -> String {
    let short: String = match told.strip_prefix("0.") {
        Some(rest) => format!(".{}", rest.chars().take(2).collect::<String>()),
        None => told.chars().take(6).collect(),
    };
    short
}
