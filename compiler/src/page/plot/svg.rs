//! The canvas, and colours that are names.

use plotters::backend::SVGBackend;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontFamily, RGBColor, ShapeStyle, TextStyle};

use super::{Drawing, FINE, PlotError, TEXT};

/// Number of colours for different things.
const THINGS: u8 = 7;

/// Steps of each of the two ramps.
const STEPS: u8 = 9;

/// A colour by what it is for; the style sheet says how it looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Colour {
    /// Text.
    Ink,
    /// Text of less weight.
    Muted,
    /// Lines that guide the eye.
    Grid,
    /// What lies behind everything.
    Paper,
    /// One of the colours for different things; they come again after `THINGS`.
    Thing(usize),
    /// From 0 (the first layer) to 1 (the last).
    Depth(f64),
    /// From 0 (little) to 1 (much).
    Amount(f64),
}

fn step(part: f64) -> u8 {
    let last = f64::from(STEPS - 1);
    (part.clamp(0.0, 1.0) * last).round() as u8
}

impl Colour {
    /// The CSS variable.
    pub fn variable(self) -> String {
        match self {
            Colour::Ink => "--ink".into(),
            Colour::Muted => "--muted".into(),
            Colour::Grid => "--grid".into(),
            Colour::Paper => "--card".into(),
            Colour::Thing(n) => format!("--c{}", n % usize::from(THINGS)),
            Colour::Depth(part) => format!("--s{}", step(part)),
            Colour::Amount(part) => format!("--h{}", step(part)),
        }
    }

    /// What the library is told to draw with.
    pub(super) fn sentinel(self) -> RGBColor {
        let number = match self {
            Colour::Ink => 0,
            Colour::Muted => 1,
            Colour::Grid => 2,
            Colour::Paper => 3,
            Colour::Thing(n) => 0x10 + (n % usize::from(THINGS)) as u8,
            Colour::Depth(part) => 0x20 + step(part),
            Colour::Amount(part) => 0x30 + step(part),
        };
        RGBColor(0xfe, 0xdc, number)
    }

    fn all() -> impl Iterator<Item = Colour> {
        let part = |n: u8| f64::from(n) / f64::from(STEPS - 1);
        [Colour::Ink, Colour::Muted, Colour::Grid, Colour::Paper]
            .into_iter()
            .chain((0..THINGS).map(|n| Colour::Thing(usize::from(n))))
            .chain((0..STEPS).map(move |n| Colour::Depth(part(n))))
            .chain((0..STEPS).map(move |n| Colour::Amount(part(n))))
    }

    /// A line of a width in units of the page.
    pub(super) fn line(self, width: f64) -> ShapeStyle {
        self.sentinel()
            .stroke_width((width * f64::from(FINE)).round() as u32)
    }

    /// A filled shape.
    pub(super) fn fill(self) -> ShapeStyle {
        self.sentinel().filled()
    }

    /// A filled shape that lets something through.
    pub(super) fn veil(self, opacity: f64) -> ShapeStyle {
        self.sentinel().mix(opacity).filled()
    }
}

/// Text of the usual size, or a part of it.
pub(super) fn text<'a>(colour: Colour, size: f64, at: HPos, v: VPos) -> TextStyle<'a> {
    // The library takes a size for 1.24 times the letters' em.
    let size = f64::from(TEXT * FINE) * size * 1.24;
    TextStyle {
        font: (FontFamily::SansSerif, size).into(),
        color: colour.sentinel().to_backend_color(),
        pos: Pos::new(at, v),
    }
}

/// The area that is drawn on, in fine units.
pub(super) type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws on a canvas of a size in units of the page.
pub(super) fn draw(
    title: &str,
    description: String,
    size: (i32, i32),
    with: impl FnOnce(&Canvas) -> Result<(), PlotError>,
) -> Result<Drawing, PlotError> {
    let fine = (size.0 * FINE, size.1 * FINE);
    let mut text = String::new();
    {
        let pixels = (fine.0.unsigned_abs(), fine.1.unsigned_abs());
        let canvas = SVGBackend::with_string(&mut text, pixels).into_drawing_area();
        with(&canvas)?;
        canvas.present().map_err(PlotError::of)?;
    }
    let (Some(begin), Some(end)) = (text.find('>'), text.rfind("</svg>")) else {
        return Err(PlotError("the library wrote no svg element".into()));
    };
    let inner = text.get(begin + 1..end).unwrap_or_default();
    Ok(Drawing {
        title: title.to_owned(),
        description,
        size: fine,
        body: named(inner),
    })
}

/// Puts variables in the place of colours, and leaves out what the style sheet says. Quotes stand
/// around attributes alone: the library escapes those of texts.
fn named(svg: &str) -> String {
    let mut named = svg
        .replace(" font-family=\"sans-serif\"", "")
        .replace(" opacity=\"1\"", "")
        .replace(" stroke=\"none\"", "")
        .replace(" \"/>", "\"/>");
    for colour in Colour::all() {
        let RGBColor(r, g, b) = colour.sentinel();
        let fixed = format!("\"#{r:02X}{g:02X}{b:02X}\"");
        if named.contains(&fixed) {
            named = named.replace(&fixed, &format!("\"var({})\"", colour.variable()));
        }
    }
    named
}

/// Text that fits a place of so many letters, without what is no letter.
pub(super) fn shortened(text: &str, letters: usize) -> String {
    let text: String = text
        .chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect();
    if text.chars().count() <= letters {
        return text;
    }
    let kept: String = text.chars().take(letters.saturating_sub(1)).collect();
    kept + "…"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_become_variables_and_texts_stay() {
        let svg = "<text font-family=\"sans-serif\" opacity=\"1\" fill=\"#FEDC00\">\n&quot;#FEDC00&quot;</text>";
        let named = named(svg);
        assert_eq!(
            named,
            "<text fill=\"var(--ink)\">\n&quot;#FEDC00&quot;</text>"
        );
        let mut names: Vec<String> = Colour::all().map(Colour::variable).collect();
        let mut sentinels: Vec<RGBColor> = Colour::all().map(Colour::sentinel).collect();
        names.dedup();
        sentinels.dedup();
        assert_eq!(names.len(), sentinels.len());
        assert_eq!(names.len(), 4 + 7 + 9 + 9);
    }

    #[test]
    fn long_texts_are_shortened_by_letters() {
        assert_eq!(shortened("häuser", 6), "häuser");
        assert_eq!(shortened("häuser", 4), "häu…");
        assert_eq!(shortened("a\nb", 4), "a\u{fffd}b");
    }
}
