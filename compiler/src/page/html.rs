//! Escaping, and the skeleton of the page.
//!
//! The page needs nothing beside itself, and says so to the browser: its policy forbids every
//! source but its own style sheet. There is no script.

use super::plot::{Colour, Drawing};
use super::table::Table;

/// Everything but the style sheet is forbidden: scripts, pictures, fonts, frames, the network.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

const STYLE: &str = include_str!("style.css");

/// Appends a text such that it is a text in any place of the page: in an element and in an
/// attribute's quotes. Characters that no page may hold are replaced.
pub fn escape(text: &str, to: &mut String) {
    for c in text.chars() {
        match c {
            '&' => to.push_str("&amp;"),
            '<' => to.push_str("&lt;"),
            '>' => to.push_str("&gt;"),
            '"' => to.push_str("&quot;"),
            '\'' => to.push_str("&#39;"),
            '\n' | '\t' => to.push(' '),
            // Marks that turn the direction of writing could show a name as another.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}' => {
                to.push('\u{fffd}');
            }
            c if c.is_control() => to.push('\u{fffd}'),
            c => to.push(c),
        }
    }
}

/// An escaped text.
pub fn escaped(text: &str) -> String {
    let mut to = String::with_capacity(text.len());
    escape(text, &mut to);
    to
}

/// What the colours of a figure mean.
#[derive(Clone, Debug)]
pub enum Legend {
    /// The plots say it themselves.
    None,
    /// One colour for each thing, with a letter that looks like its marker.
    Keys(Vec<(Colour, Option<char>, String)>),
    /// Colours between two ends.
    Ramp {
        /// The colour of a place between the ends.
        colour: fn(f64) -> Colour,
        /// What the first colour means.
        low: String,
        /// What the last colour means.
        high: String,
    },
}

/// Plots with the numbers that they draw.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What is seen, in a sentence or two.
    pub caption: String,
    /// The plots.
    pub plots: Vec<Drawing>,
    /// What their colours mean.
    pub legend: Legend,
    /// The numbers.
    pub table: Table,
}

/// A part of a section.
#[derive(Clone, Debug)]
pub enum Block {
    /// Plots.
    Figure(Figure),
    /// A table that stands open.
    Table(Table),
    /// A heading, and lines under it.
    List(String, Vec<String>),
}

/// A part of the page.
#[derive(Clone, Debug)]
pub struct Section {
    /// Its anchor.
    pub id: &'static str,
    /// Its heading.
    pub title: &'static str,
    /// What it is about, in a sentence or two.
    pub lead: String,
    /// What is in it; a section with nothing in it is left out.
    pub blocks: Vec<Block>,
}

/// A number that stands for the whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// The number.
    pub number: String,
    /// What it is.
    pub about: String,
}

/// Everything on the page.
#[derive(Clone, Debug)]
pub struct Page {
    /// What the page is about.
    pub title: String,
    /// What is to be known, one sentence for each artifact.
    pub summary: Vec<String>,
    /// Numbers that stand for the whole.
    pub tiles: Vec<Tile>,
    /// The parts.
    pub sections: Vec<Section>,
    /// What is not there, and what gives it.
    pub left_out: String,
    /// What made the page.
    pub made_by: String,
}

/// Bytes of a page at most: 32 MiB. That of a model of a hundred layers has one or two.
pub const MAX_PAGE: usize = 1 << 25;

/// Writes a page; `None` where it would have more than [`MAX_PAGE`] bytes.
pub fn write(page: &Page) -> Option<String> {
    let mut to = String::with_capacity(1 << 18);
    let title = escaped(&page.title);
    to.push_str("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    to.push_str("<meta http-equiv=\"Content-Security-Policy\" content=\"");
    escape(POLICY, &mut to);
    to.push_str("\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    to.push_str("<meta name=\"color-scheme\" content=\"light dark\">\n");
    to.push_str("<meta name=\"referrer\" content=\"no-referrer\">\n");
    to.push_str(&format!(
        "<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n"
    ));
    to.push_str("<body>\n<a class=\"skip\" href=\"#main\">Skip to the figures</a>\n<header>\n");
    to.push_str(&format!("<h1>{title}</h1>\n"));
    for sentence in &page.summary {
        to.push_str("<p class=\"summary\">");
        escape(sentence, &mut to);
        to.push_str("</p>\n");
    }
    if !page.tiles.is_empty() {
        to.push_str("<ul class=\"tiles\">\n");
        for tile in &page.tiles {
            let (number, about) = (escaped(&tile.number), escaped(&tile.about));
            to.push_str(&format!("<li><b>{number}</b> <span>{about}</span></li>\n"));
        }
        to.push_str("</ul>\n");
    }
    let sections = || page.sections.iter().filter(|s| !s.blocks.is_empty());
    to.push_str("<nav aria-label=\"Sections\"><ul>\n");
    for section in sections() {
        let title = escaped(section.title);
        to.push_str(&format!(
            "<li><a href=\"#{}\">{title}</a></li>\n",
            section.id
        ));
    }
    to.push_str("</ul></nav>\n</header>\n<main id=\"main\">\n");
    let mut plots = 0;
    for section in sections() {
        write_section(section, &mut plots, &mut to);
        if to.len() > MAX_PAGE {
            return None;
        }
    }
    to.push_str("</main>\n<footer>\n");
    for line in [&page.left_out, &page.made_by] {
        if !line.is_empty() {
            to.push_str("<p>");
            escape(line, &mut to);
            to.push_str("</p>\n");
        }
    }
    to.push_str("</footer>\n</body>\n</html>\n");
    (to.len() <= MAX_PAGE).then_some(to)
}

fn write_section(section: &Section, plots: &mut usize, to: &mut String) {
    let id = section.id;
    to.push_str(&format!(
        "<section id=\"{id}\" aria-labelledby=\"{id}-h\">\n"
    ));
    to.push_str(&format!(
        "<h2 id=\"{id}-h\">{}</h2>\n",
        escaped(section.title)
    ));
    if !section.lead.is_empty() {
        to.push_str("<p>");
        escape(&section.lead, to);
        to.push_str("</p>\n");
    }
    to.push_str("<div class=\"figures\">\n");
    for block in &section.blocks {
        match block {
            Block::Figure(figure) => write_figure(figure, plots, to),
            Block::Table(table) => table.write(to),
            Block::List(heading, lines) => {
                to.push_str(&format!(
                    "<div class=\"full\"><h3>{}</h3>\n<ul>\n",
                    escaped(heading)
                ));
                for line in lines {
                    to.push_str("<li>");
                    escape(line, to);
                    to.push_str("</li>\n");
                }
                to.push_str("</ul></div>\n");
            }
        }
    }
    to.push_str("</div>\n</section>\n");
}

fn write_figure(figure: &Figure, plots: &mut usize, to: &mut String) {
    let class = if figure.plots.len() > 1 {
        " class=\"many\""
    } else {
        ""
    };
    to.push_str(&format!("<figure{class}>\n<div class=\"plots\">\n"));
    for plot in &figure.plots {
        *plots += 1;
        write_plot(plot, *plots, figure.plots.len() > 1, to);
    }
    to.push_str("</div>\n");
    match &figure.legend {
        Legend::None => {}
        Legend::Keys(keys) => {
            to.push_str("<ul class=\"keys\">\n");
            for (colour, letter, name) in keys {
                let letter = letter.unwrap_or('━');
                let colour = colour.variable();
                to.push_str(&format!(
                    "<li><span class=\"key\" style=\"color:var({colour})\" aria-hidden=\"true\">{letter}</span> {}</li>\n",
                    escaped(name)
                ));
            }
            to.push_str("</ul>\n");
        }
        Legend::Ramp { colour, low, high } => {
            to.push_str(&format!(
                "<p class=\"ramp\">{} <span aria-hidden=\"true\">",
                escaped(low)
            ));
            for step in 0..9 {
                let variable = colour(f64::from(step) / 8.0).variable();
                to.push_str(&format!("<i style=\"background:var({variable})\"></i>"));
            }
            to.push_str(&format!("</span> {}</p>\n", escaped(high)));
        }
    }
    to.push_str("<figcaption>");
    escape(&figure.caption, to);
    to.push_str("</figcaption>\n<details><summary>Numbers</summary>\n");
    figure.table.write(to);
    to.push_str("</details>\n</figure>\n");
}

fn write_plot(plot: &Drawing, number: usize, headed: bool, to: &mut String) {
    let (width, height) = plot.size;
    let title = escaped(&plot.title);
    to.push_str("<div class=\"plot\">");
    if headed {
        to.push_str(&format!("<p class=\"of\" aria-hidden=\"true\">{title}</p>"));
    }
    to.push_str(&format!(
        "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-labelledby=\"p{number}t p{number}d\">\n\
         <title id=\"p{number}t\">{title}</title>\n<desc id=\"p{number}d\">{}</desc>\n{}</svg></div>\n",
        escaped(&plot.description),
        plot.body.trim_start(),
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_text_in_every_place() {
        assert_eq!(
            escaped("<script>alert(\"&'\")</script>"),
            "&lt;script&gt;alert(&quot;&amp;&#39;&quot;)&lt;/script&gt;"
        );
        assert_eq!(escaped("a\nb\u{0}c\u{202e}d"), "a b\u{fffd}c\u{fffd}d");
        let hostile = "<script>\"'&".to_owned();
        let table = || {
            let mut table = Table::new(&hostile, vec![hostile.clone()]);
            table.row(vec![super::super::table::Cell::text(&hostile)]);
            table
        };
        let drawing = Drawing {
            title: hostile.clone(),
            description: hostile.clone(),
            size: (1, 1),
            body: String::new(),
        };
        let figure = |legend| {
            Block::Figure(Figure {
                caption: hostile.clone(),
                plots: vec![drawing.clone(), drawing.clone()],
                legend,
                table: table(),
            })
        };
        let page = Page {
            title: hostile.clone(),
            summary: vec![hostile.clone()],
            tiles: vec![Tile {
                number: hostile.clone(),
                about: hostile.clone(),
            }],
            sections: vec![Section {
                id: "s",
                title: "t",
                lead: hostile.clone(),
                blocks: vec![
                    figure(Legend::Keys(vec![(Colour::Ink, None, hostile.clone())])),
                    figure(Legend::Ramp {
                        colour: Colour::Amount,
                        low: hostile.clone(),
                        high: hostile.clone(),
                    }),
                    Block::Table(table()),
                    Block::List(hostile.clone(), vec![hostile.clone()]),
                ],
            }],
            left_out: hostile.clone(),
            made_by: hostile.clone(),
        };
        let text = write(&page).unwrap();
        assert!(!text.contains("<script"), "{text}");
        assert!(!text.contains("\"'&"), "{text}");
        assert!(text.matches("&lt;script&gt;").count() >= 20);
    }

    #[test]
    fn a_page_out_of_proportion_is_refused() {
        let page = |notes: usize| Page {
            title: "t".into(),
            summary: Vec::new(),
            tiles: Vec::new(),
            sections: vec![Section {
                id: "s",
                title: "S",
                lead: String::new(),
                blocks: vec![Block::List("l".into(), vec!["<".repeat(1 << 20); notes])],
            }],
            left_out: String::new(),
            made_by: String::new(),
        };
        assert!(write(&page(2)).is_some());
        assert!(write(&page(9)).is_none());
    }

    #[test]
    fn a_section_without_content_is_left_out() {
        let page = Page {
            title: "t".into(),
            summary: Vec::new(),
            tiles: Vec::new(),
            sections: vec![Section {
                id: "empty",
                title: "Empty",
                lead: String::new(),
                blocks: Vec::new(),
            }],
            left_out: String::new(),
            made_by: String::new(),
        };
        assert!(!write(&page).unwrap().contains("Empty"));
    }
}
