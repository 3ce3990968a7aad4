//! Charts as inline SVG, with colours from the style sheet.

mod xy;

use maud::{Markup, html};

pub use xy::{Band, Point, Series, Xy, means};

use super::number;
use super::scale::{Axis, Kind};
use super::template::{ABSENT, Table};

/// A page scales it.
const WIDTH: f64 = 400.0;

/// The table has all.
const MAX_ROWS: usize = 1000;

/// A colour by its purpose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Colour {
    /// Data of less weight.
    Muted,
    /// One of several kinds; seven colours repeat.
    Thing(usize),
    /// A layer, from 0 (the first) to 1 (the last).
    Depth(f64),
    /// An amount, from 0 (little) to 1 (much).
    Amount(f64),
}

impl Colour {
    /// Returns the colour as a value of CSS.
    pub fn css(self) -> String {
        let step = |part: f64| (part.clamp(0.0, 1.0) * 8.0).round();
        match self {
            Colour::Muted => "var(--muted)".into(),
            Colour::Thing(n) => format!("var(--c{})", n % 7),
            Colour::Depth(part) => format!("var(--s{})", step(part)),
            Colour::Amount(part) => format!("var(--h{})", step(part)),
        }
    }
}

/// An entry of a legend; the symbol looks like the marker.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// The colour.
    pub colour: Colour,
    /// A character that looks like the marker.
    pub symbol: char,
    /// The meaning.
    pub name: String,
}

/// The meaning of the colours of a chart.
#[derive(Clone, Debug)]
pub enum Legend {
    /// A name for each colour.
    Keys(Vec<Key>),
    /// Colours between two ends.
    Ramp {
        /// The colour of a part of the way.
        colour: fn(f64) -> Colour,
        /// The meaning of the first colour.
        low: String,
        /// The meaning of the last colour.
        high: String,
    },
}

impl Legend {
    /// Returns the entries for single colours.
    pub fn keys(&self) -> &[Key] {
        match self {
            Legend::Keys(keys) => keys,
            Legend::Ramp { .. } => &[],
        }
    }
}

/// A chart with its numbers.
#[derive(Clone, Debug)]
pub struct Chart {
    /// The title.
    pub title: String,
    /// The drawing.
    pub svg: Markup,
    /// The meaning of the colours.
    pub legend: Legend,
    /// The numbers; a chart without any is left out.
    pub table: Table,
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// `label` is for readers who cannot see it.
fn svg(height: f64, label: &str, content: &Markup) -> Markup {
    html! {
        svg viewBox={ "0 0 " (WIDTH) " " (round(height)) } role="img" aria-label=(label) { (content) }
    }
}

/// Cuts a text to a number of characters.
pub fn shortened(text: &str, characters: usize) -> String {
    if text.chars().count() <= characters {
        return text.to_owned();
    }
    let head: String = text.chars().take(characters.saturating_sub(1)).collect();
    head + "…"
}

fn range(values: impl Iterator<Item = f64>) -> Option<[f64; 2]> {
    let finite: Vec<f64> = values.filter(|v| v.is_finite()).collect();
    let low = finite.iter().copied().reduce(f64::min)?;
    Some([low, finite.into_iter().fold(low, f64::max)])
}

/// A bar or group of bars: its name, and a value for each series.
pub type Group = (String, Vec<Option<f64>>);

/// Draws horizontal bars from zero on.
pub fn bars(title: &str, axis: &Axis, series: &[(&str, Colour)], groups: &[Group]) -> Chart {
    const LEFT: f64 = 118.0;
    const LONGEST: f64 = WIDTH - LEFT - 72.0;
    const BAR: f64 = 13.0;
    let values = groups.iter().flat_map(|(_, values)| values).flatten();
    let [_, largest] = range(values.copied()).unwrap_or_default();
    let each = BAR * series.len() as f64 + 8.0;
    let height = groups.len().min(MAX_ROWS) as f64 * each + 32.0;
    let content = html! {
        text x="2" y="13" class="axis" { (axis.name) }
        @for (row, (name, values)) in groups.iter().take(MAX_ROWS).enumerate() {
            @let top = 24.0 + row as f64 * each;
            text x=(LEFT - 8.0) y=(round(top + each / 2.0)) text-anchor="end" { (shortened(name, 18)) }
            @for (at, (value, (_, colour))) in values.iter().zip(series).enumerate() {
                @if let Some(value) = value.filter(|v| v.is_finite()) {
                    @let y = round(top + at as f64 * BAR);
                    @let length = LONGEST * (value / largest.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0);
                    rect x=(LEFT) y=(y) width=(round(length)) height=(BAR - 1.0) fill=(colour.css()) {}
                    text x=(round(LEFT + length + 5.0)) y=(round(y + 10.0)) class="small" { (axis.format(value)) }
                }
            }
        }
        path d={ "M" (LEFT) " 20V" (height - 8.0) } class="frame" {}
    };
    let key = |&(name, colour): &(&str, Colour)| Key {
        colour,
        symbol: '■',
        name: name.to_owned(),
    };
    let keys = series.iter().filter(|_| series.len() > 1).map(key);
    let mut table = Table::of_columns("", series.iter().map(|(name, _)| *name));
    for (name, values) in groups {
        let values = values.iter().map(|v| optional(*v, |v| axis.format(v)));
        table.push(name.clone(), values);
    }
    let label = format!("{title}. {}: up to {}.", axis.name, axis.format(largest));
    Chart {
        title: title.to_owned(),
        svg: svg(height, &label, &content),
        legend: Legend::Keys(keys.collect()),
        table,
    }
}

/// Formats a value that may be absent.
pub fn optional<T>(value: Option<T>, format: impl Fn(T) -> String) -> String {
    value.map_or_else(|| ABSENT.to_owned(), format)
}

/// A colour for each row and column.
#[derive(Clone, Debug, Default)]
pub struct Heat {
    /// The title.
    pub title: String,
    /// The quantity with its unit.
    pub quantity: String,
    /// The kind of the columns.
    pub columns_are: &'static str,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Names of the rows, and a value for each column.
    pub rows: Vec<Group>,
    /// A tooltip for each cell, or none.
    pub tips: Vec<Vec<String>>,
    /// Values of the faintest and the strongest colour.
    pub shared_range: Option<[f64; 2]>,
}

impl Heat {
    const LEFT: f64 = 52.0;
    const TOP: f64 = 22.0;

    /// Returns the smallest and the largest finite value.
    pub fn range(&self) -> Option<[f64; 2]> {
        let values = self.rows.iter().flat_map(|(_, values)| values).flatten();
        range(values.copied())
    }

    /// Draws the map.
    pub fn draw(&self) -> Chart {
        let [low, high] = self.shared_range.or(self.range()).unwrap_or_default();
        let shown = self.rows.len().min(MAX_ROWS);
        let height = (220.0 / shown.max(1) as f64).clamp(4.0, 27.0);
        let named = (12.0 / height).ceil() as usize;
        let bottom = round(Self::TOP + shown as f64 * height + 14.0);
        let every = self.columns.len().div_ceil(12).max(1);
        let content = html! {
            text x="2" y="13" class="axis" { (shortened(&self.quantity, 60)) }
            @for (row, (name, values)) in self.rows.iter().take(MAX_ROWS).enumerate() {
                @let top = Self::TOP + row as f64 * height;
                @if row.is_multiple_of(named) {
                    text x=(Self::LEFT - 7.0) y=(round(top + height / 2.0 + 4.0)) text-anchor="end" { (shortened(name, 8)) }
                }
                @for (column, value) in values.iter().take(self.columns.len()).enumerate() {
                    @let value = value.filter(|v| v.is_finite());
                    @let tip = self.tips.get(row).and_then(|tips| tips.get(column)).map_or("", String::as_str);
                    (self.cell(column, [top, height], value.map(|v| (amount(v, low, high), v)), tip))
                }
            }
            @for (column, name) in self.columns.iter().enumerate().step_by(every) {
                text x=(self.middle(column)) y=(bottom) text-anchor="middle" class="tick" { (shortened(name, 7)) }
            }
            text x=(Self::LEFT - 7.0) y=(bottom) text-anchor="end" class="tick" { (self.columns_are) }
        };
        let [low, high] = [low, high].map(number::number);
        let label = format!("{}. {}: {low} to {high}.", self.title, self.quantity);
        Chart {
            title: self.title.clone(),
            svg: svg(bottom + 6.0, &label, &content),
            legend: Legend::Ramp {
                colour: Colour::Amount,
                low,
                high,
            },
            table: self.table(),
        }
    }

    fn edge(&self, column: usize) -> f64 {
        let part = column as f64 / self.columns.len().max(1) as f64;
        Self::LEFT + (WIDTH - Self::LEFT - 6.0) * part
    }

    fn middle(&self, column: usize) -> f64 {
        round((self.edge(column) + self.edge(column + 1)) / 2.0)
    }

    /// `value` is its part of the range and the value itself.
    fn cell(
        &self,
        column: usize,
        [top, height]: [f64; 2],
        value: Option<(f64, f64)>,
        tip: &str,
    ) -> Markup {
        let colour = value.map_or("var(--none)".to_owned(), |(part, _)| {
            Colour::Amount(part).css()
        });
        let gap = if self.columns.len() <= 40 { 1.0 } else { 0.0 };
        let width = round(self.edge(column + 1) - self.edge(column) - gap);
        let numbered = self.columns.len() <= 12 && height >= 27.0;
        html! {
            rect x=(round(self.edge(column))) y=(round(top)) width=(width) height=(round(height - 1.0)) fill=(colour) {
                @if !tip.is_empty() { title { (tip) } }
            }
            @if let Some((part, value)) = value.filter(|_| numbered) {
                text x=(self.middle(column)) y=(round(top + height / 2.0 + 3.0)) text-anchor="middle"
                    class=(if part < 0.55 { "value" } else { "value strong" }) { (number::tiny(value)) }
            }
        }
    }

    /// Layers are many, so columns become rows.
    fn table(&self) -> Table {
        if self.range().is_none() {
            return Table::default();
        }
        let names = self.rows.iter().map(|(name, _)| name.as_str());
        let mut table = Table::of_columns(self.columns_are, names);
        for (column, name) in self.columns.iter().enumerate() {
            let values = self.rows.iter().map(|(_, values)| *values.get(column)?);
            let values = values.map(|v| optional(v, number::number));
            table.push(name.clone(), values);
        }
        table
    }
}

/// Returns the place of a value between two others, from 0 to 1.
fn amount(value: f64, low: f64, high: f64) -> f64 {
    // Halves, so that the difference is finite.
    let part = (value / 2.0 - low / 2.0) / (high / 2.0 - low / 2.0);
    if part.is_nan() {
        0.5
    } else {
        part.clamp(0.0, 1.0)
    }
}

/// Draws series over two axes.
pub fn xy(title: &str, x: Axis, y: Axis, series: impl IntoIterator<Item = Series>) -> Chart {
    Xy::new(title, x, y, series).draw()
}

/// Draws series over layers.
pub fn over_layers(title: &str, y: Axis, series: impl IntoIterator<Item = Series>) -> Chart {
    xy(title, Axis::new("layer", Kind::Whole), y, series)
}

#[cfg(test)]
mod tests;
