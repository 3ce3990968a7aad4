//! Horizontal bars, in groups.

use plotters::element::{PathElement, Rectangle, Text};
use plotters::style::text_anchor::{HPos, VPos};

use super::super::table::{Cell, Table};
use super::scale::{Axis, Scale};
use super::svg::{Canvas, Colour, draw, shortened, text};
use super::{Drawing, FINE, PlotError, WIDTH, extent};

/// Where bars begin, in units of the page.
const LEFT: i32 = 118;

/// Room for the number behind the longest bar.
const RIGHT: i32 = 72;

/// Bars under each other, one for each series.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// What they are of.
    pub name: String,
    /// One for each series; absent where there is none.
    pub values: Vec<Option<f64>>,
}

/// Groups of bars from zero on. Values below zero have no bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// What it shows, in a few words.
    pub title: String,
    /// What the bars measure.
    pub axis: Axis,
    /// Name and colour of each series.
    pub series: Vec<(String, Colour)>,
    /// The bars.
    pub groups: Vec<Group>,
}

impl Bars {
    fn values(&self) -> impl Iterator<Item = f64> {
        self.groups
            .iter()
            .flat_map(|g| g.values.iter().flatten().copied())
    }

    /// Draws them.
    ///
    /// # Errors
    /// [`PlotError`] where the library fails.
    pub fn draw(&self) -> Result<Drawing, PlotError> {
        let names: Vec<&str> = self.groups.iter().map(|g| g.name.as_str()).collect();
        let description = format!(
            "{}. {} groups of bars: {}.",
            extent(self.values(), &self.axis),
            names.len(),
            shortened(&names.join(", "), 400),
        );
        let (bar, gap) = if self.series.len() > 1 {
            (12, 8)
        } else {
            (14, 8)
        };
        let rows = i32::try_from(self.groups.len())
            .unwrap_or(i32::MAX)
            .min(1000);
        let each = bar * self.series.len().clamp(1, 8) as i32 + gap;
        let height = rows * each + 36;
        draw(&self.title, description, (WIDTH, height), |canvas| {
            self.on(canvas, bar, each, height)
        })
    }

    fn on(&self, canvas: &Canvas, bar: i32, each: i32, height: i32) -> Result<(), PlotError> {
        let of = PlotError::of;
        let scale = Scale::over(self.axis.kind, self.values().chain([0.0]));
        let longest = self.values().filter(|v| v.is_finite()).fold(0.0, f64::max);
        let whole = scale.fraction(longest);
        let length = |value: f64| {
            let room = f64::from((WIDTH - LEFT - RIGHT) * FINE);
            let (value, zero) = (scale.fraction(value), scale.fraction(0.0));
            if whole > zero {
                ((value - zero) / (whole - zero) * room).round() as i32
            } else {
                0
            }
        };
        let above = text(Colour::Muted, 0.95, HPos::Left, VPos::Top);
        let name = Text::new(shortened(&self.axis.name, 60), (20, 20), above);
        canvas.draw(&name).map_err(of)?;
        for (row, group) in (0..).zip(self.groups.iter().take(1000)) {
            let top = 28 + row * each;
            let middle = top + bar * self.series.len().clamp(1, 8) as i32 / 2;
            let style = text(Colour::Ink, 0.95, HPos::Right, VPos::Center);
            let at = ((LEFT - 8) * FINE, middle * FINE);
            let label = Text::new(shortened(&group.name, 17), at, style);
            canvas.draw(&label).map_err(of)?;
            for (n, ((_, colour), value)) in (0..).zip(self.series.iter().zip(&group.values)) {
                let Some(value) = value.filter(|v| v.is_finite()) else {
                    continue;
                };
                let (y, end) = (top + n * bar, LEFT * FINE + length(value).max(0));
                let corners = [(LEFT * FINE, y * FINE), (end, (y + bar - 1) * FINE)];
                canvas
                    .draw(&Rectangle::new(corners, colour.fill()))
                    .map_err(of)?;
                let style = text(Colour::Muted, 0.78, HPos::Left, VPos::Center);
                let at = (end + 5 * FINE, y * FINE + (bar - 1) * FINE / 2);
                let told = Text::new(self.axis.tell(value), at, style);
                canvas.draw(&told).map_err(of)?;
            }
        }
        let line = [(LEFT * FINE, 24 * FINE), (LEFT * FINE, (height - 8) * FINE)];
        canvas
            .draw(&PathElement::new(line, Colour::Grid.line(1.2)))
            .map_err(of)
    }

    /// The bars' lengths.
    pub fn table(&self, caption: impl Into<String>, first: &str) -> Table {
        let mut head = vec![first.to_owned()];
        head.extend(self.series.iter().map(|(name, _)| name.clone()));
        let mut table = Table::new(caption, head);
        for group in &self.groups {
            let mut row = vec![Cell::text(&group.name)];
            row.extend(group.values.iter().map(|value| match value {
                Some(value) => Cell::number(self.axis.tell(*value)),
                None => Cell::none(),
            }));
            table.row(row);
        }
        table
    }
}
