//! Lines and points over two axes.

use maud::{Markup, html};

use super::super::scale::{Axis, Kind, Scale};
use super::super::template::Table;
use super::{Chart, Colour, Key, Legend, WIDTH, optional, range, round, shortened, svg};

const HEIGHT: f64 = 250.0;

const LEFT: f64 = 58.0;
const RIGHT: f64 = WIDTH - 14.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = HEIGHT - 42.0;

/// Approximate.
const CHARACTER: f64 = 6.2;

/// Distance from which on a label needs a line to its point.
const FAR: f64 = 12.0;

/// A similar character, the path around the point, and whether it is filled.
const MARKERS: [(char, &str, bool); 7] = [
    (
        '●',
        "m-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0-7.2 0z",
        true,
    ),
    ('■', "m-3.4-3.4h6.8v6.8h-6.8z", true),
    ('◆', "m0-4.4l4.4 4.4l-4.4 4.4l-4.4-4.4z", true),
    ('▲', "m0-4.4l4.2 8h-8.4z", true),
    (
        '○',
        "m-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0-7.2 0z",
        false,
    ),
    ('✕', "m-3.4-3.4l6.8 6.8m0-6.8l-6.8 6.8", false),
    ('▼', "m0 4.4l4.2-8h-8.4z", true),
];

/// Returns a point for each `x`, at the mean `y` of the points there.
pub fn means(points: impl IntoIterator<Item = Point>) -> Vec<Point> {
    let mut points: Vec<Point> = points.into_iter().collect();
    points.sort_by(|one, other| one.x.total_cmp(&other.x));
    let means = points.chunk_by(|one, other| one.x == other.x).map(|same| {
        let sum: f64 = same.iter().map(|point| point.y).sum();
        Point::new(same[0].x, sum / same.len() as f64)
    });
    means.collect()
}

/// A point with its uncertainty.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    x: f64,
    y: f64,
    interval: Option<(f64, f64)>,
    /// Name of the point; empty if the series names it.
    name: String,
    /// Whether the name is written beside the point, where there is space.
    labelled: bool,
}

impl Point {
    /// Creates a point without a name.
    pub fn new(x: f64, y: f64) -> Point {
        Point {
            x,
            y,
            interval: None,
            name: String::new(),
            labelled: false,
        }
    }

    /// Adds the ends of the interval of `y`.
    #[must_use]
    pub fn within(self, interval: Option<(f64, f64)>) -> Point {
        Point { interval, ..self }
    }

    /// Adds a name, shown in the table and under the pointer.
    #[must_use]
    pub fn named(self, name: impl Into<String>) -> Point {
        let name = name.into();
        Point { name, ..self }
    }

    /// Adds a name that is written beside the point.
    #[must_use]
    pub fn labelled(self, name: impl Into<String>) -> Point {
        Point {
            labelled: true,
            ..self.named(name)
        }
    }
}

/// Points that belong together.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The meaning.
    pub name: String,
    /// The colour.
    pub colour: Colour,
    /// Index of the marker, if any.
    pub marker: Option<usize>,
    /// Whether a line joins the points, in their order.
    pub line: bool,
    /// The points.
    pub points: Vec<Point>,
}

impl Series {
    /// Creates a line with the look of the n-th series.
    pub fn line(name: &str, number: usize, points: impl IntoIterator<Item = Point>) -> Series {
        Series {
            name: name.to_owned(),
            colour: Colour::Thing(number),
            // The eighth series has another marker.
            marker: Some((number + number / 7) % MARKERS.len()),
            line: true,
            points: points.into_iter().collect(),
        }
    }

    /// Creates points with the look of the n-th series.
    pub fn scatter(name: &str, number: usize, points: impl IntoIterator<Item = Point>) -> Series {
        let line = false;
        Series {
            line,
            ..Series::line(name, number, points)
        }
    }

    /// Creates points of less weight.
    pub fn muted(name: &str, number: usize, points: impl IntoIterator<Item = Point>) -> Series {
        let colour = Colour::Muted;
        Series {
            colour,
            ..Series::scatter(name, number, points)
        }
    }

    /// Creates the line of a layer.
    pub fn layer(layer: usize, layers: usize, points: impl IntoIterator<Item = Point>) -> Series {
        let depth = layer as f64 / layers.saturating_sub(1).max(1) as f64;
        let name = format!("layer {layer}");
        Series::line(&name, 0, points).without_marker(Colour::Depth(depth))
    }

    /// Removes the marker and changes the colour.
    #[must_use]
    pub fn without_marker(self, colour: Colour) -> Series {
        let marker = None;
        Series {
            colour,
            marker,
            ..self
        }
    }
}

/// A shaded part of the horizontal axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Band {
    /// The start.
    pub from: f64,
    /// The end.
    pub to: f64,
    /// The name.
    pub name: String,
    /// Strength of the shade.
    pub shade: f64,
}

/// Series over two axes.
#[derive(Clone, Debug)]
pub struct Xy {
    title: String,
    x: Axis,
    y: Axis,
    series: Vec<Series>,
    /// Whether both axes have one scale, with the line of equal values.
    pub diagonal: bool,
    /// Shaded parts of the background.
    pub bands: Vec<Band>,
    /// A line ends where the next point is farther away.
    pub longest_step: f64,
}

impl Xy {
    /// Creates a chart of the series that have points.
    pub fn new(
        title: impl Into<String>,
        x: Axis,
        y: Axis,
        series: impl IntoIterator<Item = Series>,
    ) -> Xy {
        let drawn = series.into_iter().filter(|s| !s.points.is_empty());
        Xy {
            title: title.into(),
            x,
            y,
            series: drawn.collect(),
            diagonal: false,
            bands: Vec::new(),
            longest_step: f64::INFINITY,
        }
    }

    /// Shades a part of the background; extends the last one if it has the same name.
    pub fn shade(&mut self, from: f64, to: f64, name: &str, shade: f64) {
        match self.bands.last_mut().filter(|band| band.name == name) {
            Some(band) => band.to = to,
            None => self.bands.push(Band {
                from,
                to,
                name: name.to_owned(),
                shade,
            }),
        }
    }

    fn points(&self) -> impl Iterator<Item = &Point> {
        self.series.iter().flat_map(|s| &s.points)
    }

    /// Draws the chart.
    pub fn draw(&self) -> Chart {
        let frame = Frame::new(self);
        let extent = |axis: &Axis, values: &mut dyn Iterator<Item = f64>| {
            let ends = range(values).map(|ends| ends.map(|v| axis.format(v)));
            ends.map_or("no value".to_owned(), |[low, high]| {
                format!("{low} to {high}")
            })
        };
        let x = extent(&self.x, &mut self.points().map(|p| p.x));
        let y = extent(&self.y, &mut self.points().map(|p| p.y));
        let label = format!(
            "{}. {}: {x}; {}: {y}.",
            self.title, self.x.name, self.y.name
        );
        let content = html! {
            (frame.background(self))
            @for series in &self.series { (self.draw_series(series, &frame)) }
            (frame.band_names(&self.bands))
            @for label in self.labels(&frame) {
                @if let Some((x, y)) = label.leader {
                    path d={ "M" (x) " " (y) "L" (round(x.clamp(label.area.left, label.area.right))) " " (round(y.clamp(label.area.top + 2.0, label.area.bottom - 2.0))) } class="leader" {}
                }
                text x=(round(label.area.left)) y=(round(label.area.bottom - 3.0)) class="label over" { (label.name) }
            }
        };
        Chart {
            title: self.title.clone(),
            svg: svg(HEIGHT, &label, &content),
            legend: self.legend(),
            table: self.table(),
        }
    }

    fn legend(&self) -> Legend {
        let is_layer = |s: &&Series| matches!(s.colour, Colour::Depth(_));
        if let Some(last) = self.series.iter().rfind(is_layer) {
            return Legend::Ramp {
                colour: Colour::Depth,
                low: "layer 0".into(),
                high: last.name.clone(),
            };
        }
        let key = |s: &Series| Key {
            colour: s.colour,
            symbol: s.marker.map_or('━', |marker| MARKERS[marker].0),
            name: s.name.clone(),
        };
        Legend::Keys(self.series.iter().map(key).collect())
    }

    fn draw_series(&self, series: &Series, frame: &Frame) -> Markup {
        let colour = series.colour.css();
        let visible = series
            .points
            .iter()
            .filter_map(|p| Some((p, frame.position(p)?)));
        let visible: Vec<(&Point, (f64, f64))> = visible.collect();
        let near =
            |a: &(&Point, (f64, f64)), b: &(&Point, (f64, f64))| b.0.x - a.0.x <= self.longest_step;
        let runs = visible
            .chunk_by(near)
            .filter(|run| series.line && run.len() > 1);
        let runs = runs.map(|run| {
            let places = run.iter().map(|(_, (x, y))| format!("{x} {y}"));
            format!("M{}", places.collect::<Vec<_>>().join("L"))
        });
        let line: String = runs.collect();
        let marker = series.marker.or((visible.len() == 1).then_some(0));
        html! {
            @if !line.is_empty() { path d=(line) stroke=(colour) class="line" {} }
            @for (point, (x, y)) in &visible {
                @if let Some((low, high)) = frame.interval(point) {
                    path d={ "M" (x) " " (low) "V" (high) } stroke=(colour) class="interval" {}
                }
                @if let Some((_, shape, filled)) = marker.map(|marker| MARKERS[marker]) {
                    @let (fill, stroke) = if filled { (colour.as_str(), None) } else { ("none", Some(&colour)) };
                    path d={ "M" (x) " " (y) (shape) } fill=(fill) stroke=[stroke] {
                        @if !point.name.is_empty() { title { (point.name) } }
                    }
                }
            }
        }
    }

    /// A name without a free place is left out.
    fn labels(&self, frame: &Frame) -> Vec<Label> {
        let visible = self.points().filter_map(|p| Some((p, frame.position(p)?)));
        let visible: Vec<(&Point, (f64, f64))> = visible.collect();
        let mut labels = Vec::new();
        if visible.iter().all(|(p, _)| !p.labelled) {
            return labels;
        }
        let covered = |(p, (x, y)): &(&Point, (f64, f64))| {
            let (low, high) = frame.interval(p).unwrap_or((*y, *y));
            Area::new(x - 5.0, high.min(y - 5.0), x + 5.0, low.max(y + 5.0))
        };
        let mut taken: Vec<Area> = visible.iter().map(covered).collect();
        for (point, (x, y)) in visible.into_iter().filter(|(p, _)| p.labelled) {
            let name = shortened(&point.name, 28);
            let width = name.chars().count() as f64 * CHARACTER;
            let free = |area: &Area| area.is_inside() && !taken.iter().any(|t| t.meets(area));
            if let Some(area) = Area::label_candidates(x, y, width).into_iter().find(free) {
                taken.push(area);
                let is_far = area.top > y + FAR || area.bottom < y - FAR;
                let leader = is_far.then_some((x, y));
                labels.push(Label { area, name, leader });
            }
        }
        labels
    }

    /// A row for each point, or for each place that the series share.
    fn table(&self) -> Table {
        let mut places: Vec<f64> = self.points().map(|p| p.x).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        let cells = places.len().saturating_mul(self.series.len());
        let named = self.points().any(|p| !p.name.is_empty());
        // The table must not be far larger than the number of points.
        if named || cells > 8 * self.points().count() + 4096 {
            return self.long_table(named);
        }
        let names = self.series.iter().map(|s| s.name.as_str());
        let mut table = Table::of_columns(&self.x.name, names);
        let mut sorted: Vec<Vec<&Point>> = self
            .series
            .iter()
            .map(|s| s.points.iter().collect())
            .collect();
        for points in &mut sorted {
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
        }
        let show = |p: &&Point| {
            let interval =
                |(low, high)| format!(" ({} to {})", self.y.format(low), self.y.format(high));
            self.y.format(p.y) + &p.interval.map_or_else(String::new, interval)
        };
        for place in places {
            let cells = sorted.iter().map(|points| {
                let first = points.partition_point(|p| p.x.total_cmp(&place).is_lt());
                let here = points[first..].iter().take_while(|p| p.x == place);
                let values: Vec<String> = here.map(show).collect();
                optional((!values.is_empty()).then_some(values), |v| v.join(", "))
            });
            table.push(self.x.format(place), cells);
        }
        table
    }

    fn long_table(&self, named: bool) -> Table {
        let intervals = self.points().any(|p| p.interval.is_some());
        let y = |v: f64| self.y.format(v);
        let columns = |cells: [String; 6]| {
            let shown = [named, true, true, true, intervals, intervals];
            let shown = cells.into_iter().zip(shown).filter(|(_, shown)| *shown);
            shown.map(|(cell, _)| cell).collect::<Vec<_>>()
        };
        let head = ["name", "series", &self.x.name, &self.y.name, "from", "to"].map(str::to_owned);
        let mut table = Table::new(&columns(head));
        for series in &self.series {
            table.rows.extend(series.points.iter().map(|p| {
                let ends = [p.interval.map(|i| i.0), p.interval.map(|i| i.1)];
                let [low, high] = ends.map(|end| optional(end, y));
                let (name, series) = (p.name.clone(), series.name.clone());
                columns([name, series, self.x.format(p.x), y(p.y), low, high])
            }));
        }
        table
    }
}

struct Frame {
    x: Scale,
    y: Scale,
    kinds: [Kind; 2],
}

impl Frame {
    fn new(chart: &Xy) -> Frame {
        let kinds = [chart.x.kind, chart.y.kind];
        let xs = chart.points().map(|p| p.x);
        let ys = chart.points().flat_map(|p| {
            let (low, high) = p.interval.unwrap_or((p.y, p.y));
            [p.y, low, high]
        });
        let edges = chart.bands.iter().flat_map(|b| [b.from, b.to]);
        let edges = edges.filter(|_| kinds[0] != Kind::Whole);
        let (x, y) = if chart.diagonal {
            let both = Scale::covering(kinds[0], xs.chain(ys));
            (both.clone(), both)
        } else {
            (
                Scale::covering(kinds[0], xs.chain(edges)),
                Scale::covering(kinds[1], ys),
            )
        };
        Frame { x, y, kinds }
    }

    fn across(&self, value: f64) -> f64 {
        round(LEFT + self.x.fraction(value) * (RIGHT - LEFT))
    }

    fn up(&self, value: f64) -> f64 {
        round(BOTTOM - self.y.fraction(value) * (BOTTOM - TOP))
    }

    /// Returns the position of a point, where it has one on these axes.
    fn position(&self, point: &Point) -> Option<(f64, f64)> {
        let visible =
            Scale::accepts(self.kinds[0], point.x) && Scale::accepts(self.kinds[1], point.y);
        visible.then(|| (self.across(point.x), self.up(point.y)))
    }

    fn interval(&self, point: &Point) -> Option<(f64, f64)> {
        let accepts = |v: f64| Scale::accepts(self.kinds[1], v);
        let interval = point
            .interval
            .filter(|(low, high)| accepts(*low) && accepts(*high));
        interval.map(|(low, high)| (self.up(low), self.up(high)))
    }

    /// Labels do not touch.
    fn horizontal_ticks(&self) -> Vec<(f64, String)> {
        let mut end = f64::NEG_INFINITY;
        let ticks = self.x.ticks().into_iter().filter_map(|(value, label)| {
            let x = self.across(value);
            let half = label.chars().count() as f64 * CHARACTER / 2.0;
            let fits = x - half > end + 6.0 && x + half <= WIDTH;
            end = if fits { x + half } else { end };
            fits.then_some((x, label))
        });
        ticks.collect()
    }

    fn ends(&self, band: &Band) -> (f64, f64) {
        (self.across(band.from), self.across(band.to))
    }

    /// Names of the bands, over grid and data; a name without space is left out.
    fn band_names(&self, bands: &[Band]) -> Markup {
        html! {
            @for band in bands {
                @let (from, to) = self.ends(band);
                @let letters = ((to - from) / CHARACTER).max(0.0) as usize;
                @if letters >= 3 {
                    text x=(round(from / 2.0 + to / 2.0)) y=(TOP + 12.0) text-anchor="middle" class="tick over" { (shortened(&band.name, letters)) }
                }
            }
        }
    }

    fn background(&self, chart: &Xy) -> Markup {
        html! {
            @for band in &chart.bands {
                @let (from, to) = self.ends(band);
                rect x=(from) y=(TOP) width=(round((to - from).max(0.0))) height=(BOTTOM - TOP) class="band"
                    fill-opacity=(band.shade.clamp(0.0, 1.0) * 0.16) {}
            }
            @for (value, label) in self.y.ticks() {
                @let y = self.up(value);
                path d={ "M" (LEFT) " " (y) "H" (RIGHT) } class="grid" {}
                text x=(LEFT - 6.0) y=(round(y + 4.0)) text-anchor="end" class="tick" { (label) }
            }
            @for (x, label) in self.horizontal_ticks() {
                path d={ "M" (x) " " (BOTTOM) "v4" } class="frame" {}
                text x=(x) y=(BOTTOM + 16.0) text-anchor="middle" class="tick" { (label) }
            }
            path d={ "M" (LEFT) " " (TOP) "V" (BOTTOM) "H" (RIGHT) } class="frame" {}
            text x="2" y="13" class="axis" { (shortened(&chart.y.name, 60)) }
            text x=(RIGHT) y=(HEIGHT - 7.0) text-anchor="end" class="axis" { (shortened(&chart.x.name, 60)) }
            @if chart.diagonal {
                path d={ "M" (LEFT) " " (BOTTOM) "L" (RIGHT) " " (TOP) } class="diagonal" {}
            }
        }
    }
}

/// Name of a point beside it.
#[derive(Debug)]
struct Label {
    area: Area,
    name: String,
    /// The point, if it is so far away that a line leads to it.
    leader: Option<(f64, f64)>,
}

#[derive(Clone, Copy, Debug)]
struct Area {
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

impl Area {
    fn new(left: f64, top: f64, right: f64, bottom: f64) -> Area {
        Area {
            left,
            top,
            right,
            bottom,
        }
    }

    fn meets(&self, other: &Area) -> bool {
        let across = self.left < other.right && other.left < self.right;
        across && self.top < other.bottom && other.top < self.bottom
    }

    fn is_inside(&self) -> bool {
        self.left >= LEFT && self.right <= WIDTH && self.top >= TOP && self.bottom <= BOTTOM
    }

    /// Returns areas for a label of a width: right and left of a point, then above and below it.
    fn label_candidates(x: f64, y: f64, width: f64) -> Vec<Area> {
        let area = |left: f64, y: f64| Area::new(left, y - 6.5, left + width, y + 6.5);
        let around = [-14.0, 14.0, -27.0, 27.0].into_iter();
        let around =
            around.flat_map(|by| [x - width / 2.0, x - width, x].map(|left| area(left, y + by)));
        let right_and_left = [area(x + 8.0, y), area(x - 8.0 - width, y)];
        right_and_left.into_iter().chain(around).collect()
    }
}

#[cfg(test)]
pub(super) mod tests;
