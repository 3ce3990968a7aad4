//! Tables: the numbers behind a plot.

use super::html::escape;

/// A cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    text: String,
    number: bool,
}

impl Cell {
    /// A text.
    pub fn text(text: impl Into<String>) -> Cell {
        Cell {
            text: text.into(),
            number: false,
        }
    }

    /// A number, as it is told.
    pub fn number(text: impl Into<String>) -> Cell {
        Cell {
            text: text.into(),
            number: true,
        }
    }

    /// Nothing was measured.
    pub fn none() -> Cell {
        Cell::text("–")
    }
}

/// Rows under a heading; the first cell of a row says what the row is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    caption: String,
    head: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A table without rows.
    pub fn new(caption: impl Into<String>, head: Vec<String>) -> Table {
        Table {
            caption: caption.into(),
            head,
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// The same table with a first column, which holds `which` in every row.
    #[must_use]
    pub fn within(mut self, name: &str, which: &str) -> Table {
        self.head.insert(0, name.to_owned());
        for row in &mut self.rows {
            row.insert(0, Cell::text(which));
        }
        self
    }

    /// Adds the rows of a table with the same columns to one that is [`within`](Table::within)
    /// something.
    pub fn append(&mut self, which: &str, other: Table) {
        for row in other.rows {
            let mut cells = vec![Cell::text(which)];
            cells.extend(row);
            self.rows.push(cells);
        }
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Writes the element.
    pub fn write(&self, to: &mut String) {
        to.push_str("<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"");
        escape(&self.caption, to);
        to.push_str("\"><table><caption>");
        escape(&self.caption, to);
        to.push_str("</caption><thead><tr>");
        for name in &self.head {
            to.push_str("<th scope=\"col\">");
            escape(name, to);
            to.push_str("</th>");
        }
        to.push_str("</tr></thead><tbody>\n");
        for row in &self.rows {
            to.push_str("<tr>");
            for (column, cell) in row.iter().enumerate() {
                let class = if cell.number { " class=\"n\"" } else { "" };
                let tag = if column == 0 { "th" } else { "td" };
                let scope = if column == 0 { " scope=\"row\"" } else { "" };
                to.push_str(&format!("<{tag}{scope}{class}>"));
                escape(&cell.text, to);
                to.push_str(&format!("</{tag}>"));
            }
            to.push_str("</tr>\n");
        }
        to.push_str("</tbody></table></div>\n");
    }
}
