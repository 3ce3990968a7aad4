//! The template of every page, without scripts. `maud` escapes all text, and the policy forbids to
//! load anything.

use std::ffi::OsStr;

use htc_formats::model::ProjectionKind;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::chart::{Chart, Key, Legend};

const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

const STYLE: &str = include_str!("style.css");

/// Maximum bytes of a page.
pub const MAX_PAGE: usize = 1 << 25;

/// The text of a value that is not there.
pub const ABSENT: &str = "–";

/// Rows under a heading; cells at the end of a row may be missing.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// The heading of each column.
    pub head: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table without rows.
    pub fn new<T: ToString>(head: &[T]) -> Table {
        Table {
            head: head.iter().map(T::to_string).collect(),
            rows: Vec::new(),
        }
    }

    /// Creates a table without rows whose first column names them.
    pub fn of_columns<'a>(first: &'a str, names: impl Iterator<Item = &'a str>) -> Table {
        Table::new(&std::iter::once(first).chain(names).collect::<Vec<_>>())
    }

    /// Adds a row with a name.
    pub fn push(&mut self, name: String, values: impl Iterator<Item = String>) {
        self.rows
            .push(std::iter::once(name).chain(values).collect());
    }

    /// Returns the table; nothing without rows.
    pub fn render(&self, caption: &str) -> Markup {
        let cell = |row: &[String], column: usize| {
            let text = row.get(column).map_or(ABSENT, String::as_str);
            let is_number = text.starts_with(|c: char| c.is_ascii_digit() || c == '-');
            let class = is_number.then_some("n");
            html! {
                @if column == 0 { th scope="row" class=[class] { (text) } }
                @else { td class=[class] { (text) } }
            }
        };
        html! {
            @if !self.rows.is_empty() {
                div.wide role="region" tabindex="0" aria-label=(caption) {
                    table {
                        caption { span { (caption) } }
                        thead { tr { @for name in &self.head { th scope="col" { (name) } } } }
                        tbody {
                            @for row in &self.rows { tr { @for column in 0..self.head.len() { (cell(row, column)) } } }
                        }
                    }
                }
            }
        }
    }
}

/// Returns charts with a caption, a legend and their numbers; nothing if all are empty.
pub fn figure(caption: &str, note: &str, charts: impl IntoIterator<Item = Chart>) -> Markup {
    let charts = charts.into_iter().filter(|c| !c.table.rows.is_empty());
    let charts: Vec<Chart> = charts.collect();
    let several = charts.len() > 1;
    let shared = legends_agree(&charts);
    let table = |chart: &Chart| {
        let title = if several {
            format!(": {}", chart.title)
        } else {
            String::new()
        };
        chart.table.render(&format!("{caption}{title}"))
    };
    html! {
        @if !charts.is_empty() {
            figure class=[several.then_some("many")] {
                div.plots { @for chart in &charts { div.plot {
                    @if several { p.of aria-hidden="true" { (chart.title) } }
                    (chart.svg)
                    @if !shared { (legend(std::slice::from_ref(chart))) }
                } } }
                @if shared { (legend(&charts)) }
                figcaption { (caption) ". " (note) }
                details { summary { "Numbers" } @for chart in &charts { (table(chart)) } }
            }
        }
    }
}

/// Returns what the caption of a figure about projections says about experts.
pub fn experts_note(mut projections: impl Iterator<Item = ProjectionKind>) -> &'static str {
    if projections.any(|projection| projection.expert().is_some()) {
        " Mean of a layer’s experts."
    } else {
        ""
    }
}

/// Returns true if no colour means one thing in one chart and another thing in another.
fn legends_agree(charts: &[Chart]) -> bool {
    let keys: Vec<&Key> = charts
        .iter()
        .flat_map(|chart| chart.legend.keys())
        .collect();
    let differ = |a: &Key, b: &Key| a.colour == b.colour && a.name != b.name;
    !keys.iter().any(|a| keys.iter().any(|b| differ(a, b)))
}

/// Returns the meaning of the colours of some charts, each colour once.
fn legend(charts: &[Chart]) -> Markup {
    let mut keys = Vec::new();
    for key in charts.iter().flat_map(|chart| chart.legend.keys()) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let ramp = charts.iter().find_map(|chart| match &chart.legend {
        Legend::Ramp { colour, low, high } => Some((colour, low, high)),
        Legend::Keys(_) => None,
    });
    html! {
        @if let Some((colour, low, high)) = ramp {
            p.ramp {
                (low) " "
                span aria-hidden="true" {
                    @for step in 0..9 { i style={ "background:" (colour(f64::from(step) / 8.0).css()) } {} }
                }
                " " (high)
            }
        }
        @if !keys.is_empty() {
            ul.keys { @for key in keys {
                li { span.key style={ "color:" (key.colour.css()) } aria-hidden="true" { (key.symbol) } " " (key.name) }
            } }
        }
    }
}

/// Returns a heading with lines below it; nothing without lines.
pub fn list(heading: &str, lines: &[String]) -> Markup {
    html! {
        @if !lines.is_empty() { div.full { h3 { (heading) } ul { @for line in lines { li { (line) } } } } }
    }
}

/// A part of a page.
#[derive(Clone, Debug)]
pub struct Section {
    /// The anchor.
    pub id: &'static str,
    /// The heading.
    pub title: &'static str,
    /// An explanation in a sentence or two.
    pub lead: &'static str,
    /// Figures, tables and lists.
    pub content: Markup,
}

impl Section {
    fn render(&self) -> Markup {
        html! {
            section id=(self.id) {
                h2 { (self.title) }
                @if !self.lead.is_empty() { p { (self.lead) } }
                div.figures { (self.content) }
            }
        }
    }
}

/// A link to a page in the same folder.
#[derive(Clone, Debug)]
pub struct Link {
    /// What is found there.
    pub text: String,
    /// The relative address.
    pub address: String,
}

impl Link {
    /// Creates a link to a file in the same folder.
    pub fn new(text: &str, file_name: &OsStr) -> Link {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        let bytes = file_name.as_encoded_bytes().iter();
        let address = bytes.map(|&byte| {
            if is_plain(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        });
        Link {
            text: text.to_owned(),
            address: address.collect(),
        }
    }
}

/// A page.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The heading.
    pub title: String,
    /// The most important results.
    pub verdict: Vec<String>,
    /// Numbers that are read first, each with its meaning.
    pub tiles: Vec<(String, String)>,
    /// The sections.
    pub sections: Vec<Section>,
    /// Pages that belong to this one.
    pub links: Vec<Link>,
    /// Lines at the end.
    pub footer: Vec<String>,
}

impl Page {
    /// Returns the page as HTML; `None` above [`MAX_PAGE`] bytes.
    pub fn render(&self) -> Option<String> {
        let sections = self.sections.iter();
        let sections: Vec<_> = sections.filter(|s| !s.content.0.is_empty()).collect();
        let body = html! {
            a.skip href="#main" { "Skip to the figures" }
            header {
                h1 { (self.title) }
                @for sentence in &self.verdict { p.verdict { (sentence) } }
                @if !self.tiles.is_empty() {
                    ul.tiles { @for (number, meaning) in &self.tiles { li { b { (number) } " " span { (meaning) } } } }
                }
                nav aria-label="Sections" { ul {
                    @for section in &sections { li { a href={ "#" (section.id) } { (section.title) } } }
                    @for link in &self.links { li { a.other href=(link.address) { (link.text) } } }
                } }
            }
            main id="main" {
                @for section in &sections { (section.render()) }
            }
            footer { @for line in self.footer.iter().filter(|l| !l.is_empty()) { p { (line) } } }
        };
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta http-equiv="Content-Security-Policy" content=(POLICY);
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta name="referrer" content="no-referrer";
                    title { (self.title) }
                    style { (PreEscaped(STYLE)) }
                }
                body { (body) }
            }
        };
        let html = page.into_string() + "\n";
        (html.len() <= MAX_PAGE).then(|| html.replace(is_unsafe, "\u{fffd}"))
    }
}

/// Returns whether a character is a control character, no character at all, or a mark that turns
/// the direction of writing and could show a name as another.
fn is_unsafe(c: char) -> bool {
    let direction = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    direction || matches!(c, '\u{fffe}' | '\u{ffff}') || (c.is_control() && c != '\n' && c != '\t')
}

#[cfg(test)]
mod tests;
