//! Points and lines over two axes.

use plotters::backend::SVGBackend;
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::cartesian::Cartesian2d;
use plotters::element::{Circle, DashedPathElement, PathElement, Polygon, Rectangle, Text};
use plotters::style::text_anchor::{HPos, VPos};

use super::super::table::{Cell, Table};
use super::scale::{Axis, Kind, Scale};
use super::svg::{Canvas, Colour, draw, shortened, text};
use super::{Drawing, FINE, PlotError, WIDTH, extent};

/// Axes on a canvas.
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Scale, Scale>>;

/// How a point looks; shapes tell apart what colours alone may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// Filled.
    Circle,
    /// Filled.
    Square,
    /// Filled.
    Diamond,
    /// Filled, its tip up.
    Triangle,
    /// Not filled.
    Ring,
    /// Two strokes.
    Cross,
    /// Filled, its tip down.
    Wedge,
}

impl Marker {
    const ALL: [Marker; 7] = [
        Marker::Circle,
        Marker::Square,
        Marker::Diamond,
        Marker::Triangle,
        Marker::Ring,
        Marker::Cross,
        Marker::Wedge,
    ];

    /// One for each of several things; they come again.
    pub fn of(number: usize) -> Marker {
        Self::ALL[number % Self::ALL.len()]
    }

    /// A letter that looks alike, for legends.
    pub const fn letter(self) -> char {
        match self {
            Marker::Circle => '●',
            Marker::Square => '■',
            Marker::Diamond => '◆',
            Marker::Triangle => '▲',
            Marker::Ring => '○',
            Marker::Cross => '✕',
            Marker::Wedge => '▼',
        }
    }
}

/// A point, with what is known of its error.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Across.
    pub x: f64,
    /// Up.
    pub y: f64,
    /// The ends of its interval.
    pub interval: Option<(f64, f64)>,
    /// What it is, where the series does not say it.
    pub name: String,
    /// Whether the name is written beside it.
    pub named: bool,
}

impl Point {
    /// A point without a name.
    pub fn new(x: f64, y: f64) -> Point {
        Point {
            x,
            y,
            interval: None,
            name: String::new(),
            named: false,
        }
    }
}

/// Points that belong together.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What they are.
    pub name: String,
    /// Their colour.
    pub colour: Colour,
    /// How a point looks; without a marker there is only the line.
    pub marker: Option<Marker>,
    /// Whether a line joins them, in their order.
    pub line: bool,
    /// The points.
    pub points: Vec<Point>,
}

/// A part of the horizontal axis with a meaning of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Band {
    /// Where it begins and ends.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
    /// What it is.
    pub name: String,
    /// How strongly it is shaded, 0 to 1.
    pub shade: f64,
}

/// A plot over two axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Xy {
    /// What it shows, in a few words.
    pub title: String,
    /// Across.
    pub x: Axis,
    /// Up.
    pub y: Axis,
    /// What is drawn, the last above the others.
    pub series: Vec<Series>,
    /// Whether the line of equal values is drawn.
    pub diagonal: bool,
    /// What lies behind.
    pub bands: Vec<Band>,
    /// Places on the horizontal axis that are in sight, whether a point is there or not.
    pub sight: Vec<f64>,
    /// Whether it is one of many beside each other.
    pub small: bool,
    /// Lines end where the next point is further away than this.
    pub longest_step: f64,
}

impl Xy {
    /// A plot with nothing in it.
    pub fn new(title: impl Into<String>, x: Axis, y: Axis) -> Xy {
        Xy {
            title: title.into(),
            x,
            y,
            series: Vec::new(),
            diagonal: false,
            bands: Vec::new(),
            sight: Vec::new(),
            small: false,
            longest_step: f64::INFINITY,
        }
    }

    /// Width and height in units of the page. Text has one size everywhere.
    fn size(&self) -> (i32, i32) {
        if self.small { (340, 240) } else { (WIDTH, 270) }
    }

    fn points(&self) -> impl Iterator<Item = &Point> {
        self.series.iter().flat_map(|s| &s.points)
    }

    fn ys(&self) -> impl Iterator<Item = f64> {
        self.points().flat_map(|p| {
            let (low, high) = p.interval.unwrap_or((p.y, p.y));
            [p.y, low, high]
        })
    }

    fn description(&self, scales: (&Scale, &Scale)) -> String {
        let names: Vec<&str> = self.series.iter().map(|s| s.name.as_str()).collect();
        let mut text = format!(
            "{}; {}. {} series: {}.",
            extent(self.points().map(|p| p.x), &self.x),
            extent(self.points().map(|p| p.y), &self.y),
            names.len(),
            shortened(&names.join(", "), 400),
        );
        let without = self
            .points()
            .filter(|p| !(scales.0.has_place(p.x) && scales.1.has_place(p.y)));
        match without.count() {
            0 => {}
            n => {
                text += &format!(
                    " {n} points have no place on these axes and stand in the table alone."
                )
            }
        }
        text
    }

    /// Draws it.
    ///
    /// # Errors
    /// [`PlotError`] where the library fails.
    pub fn draw(&self) -> Result<Drawing, PlotError> {
        let (xs, ys) = (self.points().map(|p| p.x), self.ys());
        let (x, y) = if self.diagonal {
            let all: Vec<f64> = xs.chain(ys).collect();
            let both = Scale::over(self.x.kind, all.iter().copied());
            (both.clone(), both)
        } else {
            let bands = self.bands.iter().flat_map(|b| [b.from, b.to]);
            let inner = bands.map(|edge| edge.clamp(f64::MIN, f64::MAX));
            let inner: Vec<f64> = match self.x.kind {
                Kind::Whole => Vec::new(),
                _ => inner.collect(),
            };
            (
                Scale::over(
                    self.x.kind,
                    xs.chain(inner).chain(self.sight.iter().copied()),
                ),
                Scale::over(self.y.kind, ys),
            )
        };
        let description = self.description((&x, &y));
        draw(&self.title, description, self.size(), |canvas| {
            self.on(canvas, x, y)
        })
    }

    fn on(&self, canvas: &Canvas, x: Scale, y: Scale) -> Result<(), PlotError> {
        self.axis_names(canvas)?;
        let mut chart = ChartBuilder::on(canvas)
            .margin_top(28 * FINE)
            .margin_right(26 * FINE)
            .margin_bottom(20 * FINE)
            .x_label_area_size(22 * FINE)
            .y_label_area_size(62 * FINE)
            .build_cartesian_2d(x.clone(), y.clone())
            .map_err(PlotError::of)?;
        self.field(&mut chart, &x, &y)?;
        let here = |p: &&Point| x.has_place(p.x) && y.has_place(p.y);
        for series in &self.series {
            let points: Vec<&Point> = series.points.iter().filter(here).collect();
            self.series(canvas, &mut chart, &y, series, &points)?;
        }
        // Names last: they look for a place that nothing has taken.
        let named: Vec<&Point> = self.points().filter(here).filter(|p| p.named).collect();
        let places = named.iter().map(|p| chart.backend_coord(&(p.x, p.y)));
        let places: Vec<(i32, i32)> = places.collect();
        let mut taken: Vec<Area> = places.iter().map(|&at| Area::around(at)).collect();
        for (point, at) in named.iter().zip(places) {
            let name = shortened(&point.name, 28);
            let (area, anchor, v) = Area::for_name(&name, at, &taken, self.size());
            let style = text(Colour::Ink, NAME, anchor, v);
            let label = Text::new(name, area.anchor(anchor, v), style);
            canvas.draw(&label).map_err(PlotError::of)?;
            taken.push(area);
        }
        Ok(())
    }

    /// The names of the axes, in two corners.
    fn axis_names(&self, canvas: &Canvas) -> Result<(), PlotError> {
        let above = text(Colour::Muted, 0.95, HPos::Left, VPos::Top);
        let name = Text::new(shortened(&self.y.name, 60), (20, 20), above);
        canvas.draw(&name).map_err(PlotError::of)?;
        let below = text(Colour::Muted, 0.95, HPos::Right, VPos::Bottom);
        let (width, height) = self.size();
        let corner = ((width - 8) * FINE, (height - 4) * FINE);
        let name = Text::new(shortened(&self.x.name, 60), corner, below);
        canvas.draw(&name).map_err(PlotError::of)
    }

    /// Bands, mesh, the bands' names and the diagonal: what lies below the points.
    fn field(&self, chart: &mut Chart, x: &Scale, y: &Scale) -> Result<(), PlotError> {
        let of = PlotError::of;
        let (bottom, top) = (y.low(), y.high());
        for band in &self.bands {
            let corners = [(band.from, bottom), (band.to, top)];
            let shade = Colour::Muted.veil(band.shade.clamp(0.0, 1.0) * 0.16);
            let area = std::iter::once(Rectangle::new(corners, shade));
            chart.draw_series(area).map_err(of)?;
        }
        let labels = text(Colour::Muted, 0.9, HPos::Center, VPos::Top);
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(Colour::Grid.line(1.0))
            .light_line_style(Colour::Grid.veil(0.0))
            .axis_style(Colour::Grid.line(1.2))
            .set_all_tick_mark_size(4 * FINE)
            .label_style(labels)
            .x_label_formatter(&|v| self.x.tell(*v))
            .y_label_formatter(&|v| self.y.tell(*v))
            .draw()
            .map_err(of)?;
        for band in self.bands.iter().filter(|b| !b.name.is_empty()) {
            let style = text(Colour::Muted, 0.85, HPos::Center, VPos::Top);
            let at = (band.from / 2.0 + band.to / 2.0, top);
            let label = Text::new(shortened(&band.name, 12), at, style);
            chart.draw_series([label]).map_err(of)?;
        }
        if self.diagonal {
            let ends = [(x.low(), x.low()), (x.high(), x.high())];
            let style = Colour::Muted.line(1.0);
            let dashes = DashedPathElement::new(ends, 5 * FINE, 4 * FINE, style);
            chart.draw_series([dashes]).map_err(of)?;
        }
        Ok(())
    }

    /// The lines, intervals and markers of the points of a series that have a place.
    fn series(
        &self,
        canvas: &Canvas,
        chart: &mut Chart,
        y: &Scale,
        series: &Series,
        points: &[&Point],
    ) -> Result<(), PlotError> {
        let (of, colour) = (PlotError::of, series.colour);
        if series.line {
            let all: Vec<_> = points.iter().map(|p| (p.x, p.y)).collect();
            let near = |a: &(f64, f64), b: &(f64, f64)| b.0 - a.0 <= self.longest_step;
            for line in all.chunk_by(near).filter(|line| line.len() > 1) {
                let path = PathElement::new(line.to_vec(), colour.line(1.8));
                chart.draw_series([path]).map_err(of)?;
            }
        }
        for point in points {
            let ends = point
                .interval
                .filter(|i| y.has_place(i.0) && y.has_place(i.1));
            if let Some((low, high)) = ends {
                let bar = [(point.x, low), (point.x, high)];
                let bar = PathElement::new(bar, colour.line(1.4));
                chart.draw_series([bar]).map_err(of)?;
            }
            // Where no line can be drawn, a point must show.
            let alone = series.line && points.len() == 1;
            let marker = series.marker.or(alone.then_some(Marker::Circle));
            if let Some(marker) = marker {
                let at = chart.backend_coord(&(point.x, point.y));
                mark(canvas, marker, at, colour)?;
            }
        }
        Ok(())
    }

    /// The points, one to a row, or one row to a place where `together` and the series share
    /// their places.
    pub fn table(&self, caption: impl Into<String>, together: bool) -> Table {
        if together && self.shares_places() {
            self.wide(caption.into())
        } else {
            self.long(caption.into())
        }
    }

    /// Whether a table with a column for each series is about as large as its points are many.
    pub fn shares_places(&self) -> bool {
        let cells = self.places().len().saturating_mul(self.series.len());
        cells <= 8 * self.points().count() + 4096
    }

    /// Every place on the horizontal axis, in order.
    fn places(&self) -> Vec<f64> {
        let mut places: Vec<f64> = self.points().map(|p| p.x).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        places
    }

    fn long(&self, caption: String) -> Table {
        let intervals = self.points().any(|p| p.interval.is_some());
        let named = self.points().any(|p| !p.name.is_empty());
        let mut head = vec!["series".to_owned()];
        if named {
            head.insert(0, "what".to_owned());
        }
        head.extend([self.x.name.clone(), self.y.name.clone()]);
        if intervals {
            head.extend(["from".to_owned(), "to".to_owned()]);
        }
        let mut table = Table::new(caption, head);
        for series in &self.series {
            for point in &series.points {
                let mut row = vec![
                    Cell::text(&series.name),
                    Cell::number(self.x.tell(point.x)),
                    Cell::number(self.y.tell(point.y)),
                ];
                if named {
                    row.insert(0, Cell::text(&point.name));
                }
                if intervals {
                    let ends = point.interval.map(|(low, high)| [low, high]);
                    match ends {
                        Some(ends) => row.extend(ends.map(|v| Cell::number(self.y.tell(v)))),
                        None => row.extend([Cell::none(), Cell::none()]),
                    }
                }
                table.row(row);
            }
        }
        table
    }

    fn wide(&self, caption: String) -> Table {
        let mut head = vec![self.x.name.clone()];
        head.extend(self.series.iter().map(|s| s.name.clone()));
        let mut table = Table::new(caption, head);
        // The points of each series in the order of their places.
        let sorted: Vec<Vec<&Point>> = self
            .series
            .iter()
            .map(|series| {
                let mut points: Vec<&Point> = series.points.iter().collect();
                points.sort_by(|a, b| a.x.total_cmp(&b.x));
                points
            })
            .collect();
        for place in self.places() {
            let mut row = vec![Cell::number(self.x.tell(place))];
            row.extend(sorted.iter().map(|points| {
                let first = points.partition_point(|p| p.x.total_cmp(&place).is_lt());
                let here: Vec<String> = points[first..]
                    .iter()
                    .take_while(|p| p.x == place)
                    .map(|p| match p.interval {
                        None => self.y.tell(p.y),
                        Some((low, high)) => format!(
                            "{} ({} to {})",
                            self.y.tell(p.y),
                            self.y.tell(low),
                            self.y.tell(high)
                        ),
                    })
                    .collect();
                if here.is_empty() {
                    Cell::none()
                } else {
                    Cell::number(here.join(", "))
                }
            }));
            table.row(row);
        }
        table
    }
}

fn mark(
    canvas: &Canvas,
    marker: Marker,
    (x, y): (i32, i32),
    colour: Colour,
) -> Result<(), PlotError> {
    let r = 4 * FINE;
    let polygon = |corners: &[(i32, i32)]| {
        let corners = corners.iter().map(|(dx, dy)| (x + dx, y + dy));
        canvas.draw(&Polygon::new(corners.collect::<Vec<_>>(), colour.fill()))
    };
    let stroke = |from: (i32, i32), to: (i32, i32)| {
        let ends = [(x + from.0, y + from.1), (x + to.0, y + to.1)];
        canvas.draw(&PathElement::new(ends, colour.line(1.8)))
    };
    let drawn = match marker {
        Marker::Circle => canvas.draw(&Circle::new((x, y), r - 4, colour.fill())),
        Marker::Ring => canvas.draw(&Circle::new((x, y), r - 4, colour.line(1.6))),
        Marker::Square => {
            let d = r - 6;
            polygon(&[(-d, -d), (d, -d), (d, d), (-d, d)])
        }
        Marker::Diamond => polygon(&[(0, -r - 4), (r + 4, 0), (0, r + 4), (-r - 4, 0)]),
        Marker::Triangle => polygon(&[(0, -r - 4), (r + 2, r - 4), (-r - 2, r - 4)]),
        Marker::Wedge => polygon(&[(0, r + 4), (r + 2, 4 - r), (-r - 2, 4 - r)]),
        Marker::Cross => {
            let d = r - 6;
            stroke((-d, -d), (d, d)).and_then(|()| stroke((-d, d), (d, -d)))
        }
    };
    drawn.map_err(PlotError::of)
}

/// Size of a point's name beside usual text.
const NAME: f64 = 0.85;

/// A part of the canvas that is taken.
#[derive(Clone, Copy, Debug)]
struct Area {
    left: i32,
    top: i32,
    right: i32,
    bottom: i32,
}

impl Area {
    fn around((x, y): (i32, i32)) -> Area {
        let r = 5 * FINE;
        Area {
            left: x - r,
            top: y - r,
            right: x + r,
            bottom: y + r,
        }
    }

    fn meets(&self, other: &Area) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }

    fn anchor(&self, h: HPos, v: VPos) -> (i32, i32) {
        let x = match h {
            HPos::Left => self.left,
            HPos::Center => (self.left + self.right) / 2,
            HPos::Right => self.right,
        };
        let y = match v {
            VPos::Top => self.top,
            VPos::Center => (self.top + self.bottom) / 2,
            VPos::Bottom => self.bottom,
        };
        (x, y)
    }

    /// Where the name of a point is written: the first place beside, above or below it that is on
    /// the canvas and free; the last one tried where none is.
    fn for_name(
        name: &str,
        (x, y): (i32, i32),
        taken: &[Area],
        (width_of, height_of): (i32, i32),
    ) -> (Area, HPos, VPos) {
        // About the width of letters of a usual font.
        let width = name.chars().count() as i32 * 62 * FINE / 10;
        let (height, away) = (14 * FINE, 8 * FINE);
        let centred = |by: i32| (x - width / 2, y + by - height / 2);
        let mut tries = vec![
            ((x + away, y - height / 2), HPos::Left),
            ((x - away - width, y - height / 2), HPos::Right),
        ];
        for step in 1..=3 {
            for by in [-15 * step * FINE, 15 * step * FINE] {
                let (left, top) = centred(by);
                tries.push(((left, top), HPos::Center));
                tries.push(((x - width, top), HPos::Right));
                tries.push(((x, top), HPos::Left));
            }
        }
        let areas = tries.into_iter().map(|((left, top), h)| {
            let area = Area {
                left,
                top,
                right: left + width,
                bottom: top + height,
            };
            (area, h, VPos::Center)
        });
        let field = |a: &Area| {
            a.left >= 60 * FINE
                && a.right <= (width_of - 4) * FINE
                && a.top >= 26 * FINE
                && a.bottom <= (height_of - 42) * FINE
        };
        let free = |a: &Area| field(a) && !taken.iter().any(|t| t.meets(a));
        let areas: Vec<_> = areas.collect();
        let found = areas.iter().find(|(a, ..)| free(a));
        let found = found.or_else(|| areas.iter().find(|(a, ..)| field(a)));
        match (found, areas.first()) {
            (Some(found), _) | (None, Some(found)) => *found,
            (None, None) => (Area::around((x, y)), HPos::Left, VPos::Center),
        }
    }
}
