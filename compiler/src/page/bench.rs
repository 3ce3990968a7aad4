//! The page of a measurement of speed, which `htc bench -o` writes.

mod energy;

use super::PageError;
use super::html::{self, Block, Figure, Legend, Page, Section, Tile};
use super::number::{brief, bytes, number, percent, seconds};
use super::plot::{Axis, Colour, Drawing, Kind, Marker, PlotError, Point, Series, Xy};
use super::table::{Cell, Table};
use crate::bench::Side;
use crate::bench::gates::Outcome;
use crate::bench::record::{Pair, PerJoule, Phase, Quantity, Record, Run};
use crate::bench::statistics::Comparison;
use crate::measure::Interval;
use crate::system::show::format_bytes;

/// The page about a measurement.
///
/// # Errors
/// [`PageError`] where a plot is not drawn, or the page is out of proportion.
pub fn page(record: &Record) -> Result<String, PageError> {
    let sections = vec![
        ratios(record)?,
        speeds(record)?,
        contexts(record)?,
        energy::section(record)?,
        gates(record),
        notes(record),
        conditions(record),
    ];
    let html = html::write(&Page {
        title: match &record.baseline {
            Some(baseline) => {
                let (subject, other) = (&record.subject, &baseline.name);
                if subject.name == *other {
                    format!("Speed of {} against {}", subject.name, baseline.engine)
                } else {
                    format!("Speed of {} against {other}", subject.name)
                }
            }
            None => format!("Speed of {}", record.subject.name),
        },
        summary: summary(record),
        tiles: tiles(record),
        sections,
        left_out: String::new(),
        made_by: format!("Made by {} on {}.", record.program, record.conditions.date),
    });
    html.ok_or(PageError::TooLarge)
}

fn summary(record: &Record) -> Vec<String> {
    let models = [Some(&record.subject), record.baseline.as_ref()];
    let both = ["", "The baseline: "].into_iter().zip(models);
    both.filter_map(|(lead, model)| Some(format!("{lead}{}.", model?)))
        .collect()
}

/// Decode first: it is what people wait for.
fn tiles(record: &Record) -> Vec<Tile> {
    let phases = [Phase::Decode, Phase::Prefill, Phase::EndToEnd];
    let found = phases
        .iter()
        .filter_map(|&phase| Some((phase, record.phases.get(phase)?)));
    let tile = |(phase, found): (Phase, &Quantity)| match &found.comparison {
        None => Tile {
            number: format!("{} tokens/s", brief(found.subject.mean)),
            about: phase.name().to_owned(),
        },
        Some(comparison) => Tile {
            number: percent(comparison.ratio),
            about: format!("of the baseline's {}{}", phase.name(), within(comparison)),
        },
    };
    let mut tiles: Vec<Tile> = found.map(tile).collect();
    let energy = record.energy.as_ref();
    if let Some(found) = energy.and_then(|energy| energy.get(PerJoule::Run)) {
        tiles.push(match &found.comparison {
            None => Tile {
                number: format!("{} tokens/J", brief(found.subject.mean)),
                about: "with prefill".to_owned(),
            },
            Some(comparison) => Tile {
                number: percent(comparison.ratio),
                about: format!("of the baseline's tokens per joule{}", within(comparison)),
            },
        });
    }
    tiles
}

fn within(comparison: &Comparison) -> String {
    match comparison.interval {
        Some((low, high)) => format!(" ({} to {})", percent(low), percent(high)),
        None => String::new(),
    }
}

fn empty(id: &'static str, title: &'static str, lead: &str) -> Section {
    Section {
        id,
        title,
        lead: lead.into(),
        blocks: Vec::new(),
    }
}

const SUBJECT: (Colour, Marker) = (Colour::Thing(0), Marker::Circle);
const BASELINE: (Colour, Marker) = (Colour::Thing(1), Marker::Square);

/// A quantity of one run.
type Value<'a> = &'a dyn Fn(&Run) -> Option<f64>;

fn of(pair: &Pair, side: Side, value: Value) -> Option<f64> {
    match side {
        Side::Subject => value(&pair.subject),
        Side::Baseline => value(pair.baseline.as_ref()?),
    }
}

/// What a pair was about.
fn about(pair: &Pair) -> String {
    match pair.prompt {
        Some(kind) => format!("{}, {} tokens", kind.name(), pair.tokens),
        None => format!("{} tokens", pair.tokens),
    }
}

fn series(
    name: &str,
    (colour, marker): (Colour, Marker),
    line: bool,
    points: Vec<Point>,
) -> Series {
    Series {
        name: name.into(),
        colour,
        marker: Some(marker),
        line,
        points,
    }
}

/// The legend of the series of plots that show the same.
fn keys(plots: &[Xy]) -> Legend {
    let first = plots.first().map_or(&[][..], |plot| &plot.series);
    let key = |s: &Series| (s.colour, s.marker.map(Marker::letter), s.name.clone());
    Legend::Keys(first.iter().map(key).collect())
}

/// Plots of the same kind beside each other, with one table.
fn figure(plots: Vec<Xy>, column: &str, caption: &str) -> Result<Option<Block>, PlotError> {
    let drawn: Result<Vec<Drawing>, PlotError> = plots.iter().map(Xy::draw).collect();
    let mut tables = plots
        .iter()
        .map(|plot| (&plot.title, plot.table(caption, false)));
    let Some((title, table)) = tables.next() else {
        return Ok(None);
    };
    let mut table = table.within(column, title);
    for (title, other) in tables {
        table.append(title, other);
    }
    Ok(Some(Block::Figure(Figure {
        caption: caption.to_owned(),
        plots: drawn?,
        legend: keys(&plots),
        table,
    })))
}

/// Pairs as dots and their mean with its interval.
fn ratios(record: &Record) -> Result<Section, PlotError> {
    let mut section = empty(
        "ratios",
        "Ratios to the baseline",
        "Speed of the subject over that of the baseline, pair by pair, in the order of measuring; above 1 the subject is faster.",
    );
    let plots = Phase::ALL.into_iter().filter_map(|phase| {
        let comparison = record.phases.get(phase)?.comparison?;
        let value = |run: &Run| run.speed(phase);
        Some(ratio_plot(record, phase.name(), comparison, &value))
    });
    let caption = "Ratio of every pair, and the mean of all with its 95 % interval (percentile bootstrap over pairs).";
    section
        .blocks
        .extend(figure(plots.collect(), "phase", caption)?);
    if !section.blocks.is_empty() {
        let quantities =
            Phase::ALL.map(|phase| (phase.name().to_owned(), record.phases.get(phase)));
        section.blocks.push(Block::Table(statistics(
            "Statistics",
            "tokens/s",
            &quantities,
        )));
    }
    Ok(section)
}

/// The ratio of a quantity in every pair, and the mean of all.
fn ratio_plot(record: &Record, title: &str, comparison: Comparison, value: Value) -> Xy {
    let pairs = (1..).zip(&record.pairs);
    let pairs = pairs.filter_map(|(at, pair)| {
        let ratio = of(pair, Side::Subject, value)? / of(pair, Side::Baseline, value)?;
        let name = about(pair);
        Some(Point {
            name,
            ..Point::new(f64::from(at), ratio)
        })
    });
    let mean = Point {
        interval: comparison.interval,
        name: "all pairs".into(),
        ..Point::new((record.pairs.len() + 1) as f64, comparison.ratio)
    };
    let across = Axis::new("pair; the last is the mean", Kind::Whole);
    let mut xy = Xy::new(title, across, Axis::new("subject / baseline", Kind::Linear));
    xy.small = true;
    xy.series = vec![
        series(
            "a pair",
            (Colour::Muted, Marker::Ring),
            false,
            pairs.collect(),
        ),
        series(
            "mean, 95 % interval",
            (Colour::Thing(0), Marker::Diamond),
            false,
            vec![mean],
        ),
    ];
    xy
}

/// A quantity of every run of both.
fn run_plot(record: &Record, title: &str, unit: &str, value: Value) -> Xy {
    let points = |side| -> Vec<Point> {
        let pairs = (1..).zip(&record.pairs);
        let points = pairs.filter_map(|(at, pair)| {
            let name = about(pair);
            Some(Point {
                name,
                ..Point::new(f64::from(at), of(pair, side, value)?)
            })
        });
        points.collect()
    };
    let up = Axis::new(unit, Kind::FromZero);
    let mut xy = Xy::new(title, Axis::new("pair", Kind::Whole), up);
    xy.small = true;
    xy.series = vec![
        series("subject", SUBJECT, false, points(Side::Subject)),
        series("baseline", BASELINE, false, points(Side::Baseline)),
    ];
    xy.series.retain(|series| !series.points.is_empty());
    xy
}

/// Speeds of both as dots.
fn speeds(record: &Record) -> Result<Section, PlotError> {
    let mut section = empty(
        "speeds",
        "Speeds",
        "Tokens per second of every run. Prefill reads the prompt up to the choice of the first token, decode is from the first token to the last, end to end is what is written over the time of both.",
    );
    let plots = Phase::ALL.into_iter().filter_map(|phase| {
        record.phases.get(phase)?;
        let value = |run: &Run| run.speed(phase);
        Some(run_plot(record, phase.name(), "tokens/s", &value))
    });
    let caption = "Speed of every run, in the order of measuring.";
    section
        .blocks
        .extend(figure(plots.collect(), "phase", caption)?);
    if record.baseline.is_none() {
        let quantities =
            Phase::ALL.map(|phase| (phase.name().to_owned(), record.phases.get(phase)));
        section.blocks.push(Block::Table(statistics(
            "Statistics",
            "tokens/s",
            &quantities,
        )));
    }
    Ok(section)
}

/// The sweep as lines.
fn contexts(record: &Record) -> Result<Section, PlotError> {
    let mut section = empty(
        "context",
        "By length of context",
        "Speed of reading a context of so many tokens, and of writing behind it; means of all pairs.",
    );
    let plots = [Phase::Prefill, Phase::Decode]
        .into_iter()
        .filter_map(|phase| {
            let found: Vec<(f64, &Quantity)> = record
                .context
                .iter()
                .filter_map(|swept| Some((swept.length as f64, swept.phases.get(phase)?)))
                .collect();
            if found.is_empty() {
                return None;
            }
            let across = Axis::new("tokens of context (logarithmic)", Kind::Log);
            let title = if phase == Phase::Decode {
                "decode behind it"
            } else {
                "prefill"
            };
            let mut xy = Xy::new(title, across, Axis::new("tokens/s", Kind::FromZero));
            xy.small = true;
            let subject = found.iter().map(|(at, q)| Point::new(*at, q.subject.mean));
            let baseline = found
                .iter()
                .filter_map(|(at, q)| Some(Point::new(*at, q.baseline?.mean)));
            xy.series = vec![
                series("subject", SUBJECT, true, subject.collect()),
                series("baseline", BASELINE, true, baseline.collect()),
            ];
            xy.series.retain(|series| !series.points.is_empty());
            Some(xy)
        });
    let caption = "Mean speed by length of context.";
    section
        .blocks
        .extend(figure(plots.collect(), "phase", caption)?);
    if !section.blocks.is_empty() {
        let quantities: Vec<_> = record
            .context
            .iter()
            .flat_map(|swept| {
                [Phase::Prefill, Phase::Decode].map(|phase| {
                    let name = format!("{} tokens, {}", swept.length, phase.name());
                    (name, swept.phases.get(phase))
                })
            })
            .collect();
        section.blocks.push(Block::Table(statistics(
            "Statistics by length",
            "tokens/s",
            &quantities,
        )));
    }
    Ok(section)
}

/// What is said of quantities, a row for each that was measured.
fn statistics(caption: &str, unit: &str, quantities: &[(String, Option<&Quantity>)]) -> Table {
    let (subject, baseline) = (format!("subject, {unit}"), format!("baseline, {unit}"));
    let head = [
        "what",
        &subject,
        "sd",
        &baseline,
        "sd",
        "ratio",
        "95 % interval",
        "median ratio",
        "t",
        "p",
        "Wilcoxon W",
        "p",
        "variance ratio",
        "threshold",
    ];
    let mut table = Table::new(caption, head.map(str::to_owned).into());
    let cell = |value: Option<f64>| value.map_or_else(Cell::none, |v| Cell::number(number(v)));
    let interval = |of: Option<Interval>| match of {
        Some((low, high)) => Cell::number(format!("{low:.4} to {high:.4}")),
        None => Cell::none(),
    };
    let ratio = |of: Option<f64>| of.map_or_else(Cell::none, |v| Cell::number(format!("{v:.4}")));
    for (name, quantity) in quantities {
        let Some(quantity) = quantity else {
            continue;
        };
        let (subject, baseline) = (quantity.subject, quantity.baseline);
        let found = quantity.comparison;
        let (t, w) = (
            found.and_then(|c| c.paired_t),
            found.and_then(|c| c.wilcoxon),
        );
        let variance = found.and_then(|c| c.variance);
        table.row(vec![
            Cell::text(name),
            cell(Some(subject.mean)),
            cell(subject.sd),
            cell(baseline.map(|b| b.mean)),
            cell(baseline.and_then(|b| b.sd)),
            ratio(found.map(|c| c.ratio)),
            interval(found.and_then(|c| c.interval)),
            ratio(found.map(|c| c.median_ratio)),
            cell(t.map(|t| t.t)),
            cell(t.map(|t| t.p)),
            cell(w.map(|w| w.plus.min(w.minus))),
            cell(w.map(|w| w.p)),
            cell(variance.map(|v| v.ratio)),
            cell(variance.map(|v| v.threshold)),
        ]);
    }
    table
}

fn gates(record: &Record) -> Section {
    let mut section = empty("gates", "Gates", "What was to hold, and what became of it.");
    if !record.gates.is_empty() {
        let head = ["metric", "of rank", "expected", "found", "outcome"];
        let mut table = Table::new("Gates", head.map(str::to_owned).into());
        for judged in &record.gates {
            table.row(vec![
                Cell::text(judged.gate.metric.to_string()),
                judged
                    .gate
                    .rank
                    .map_or_else(Cell::none, |rank| Cell::number(rank.to_string())),
                Cell::text(judged.gate.bound.to_string()),
                judged
                    .found
                    .map_or_else(Cell::none, |v| Cell::number(number(v))),
                Cell::text(match judged.outcome {
                    Outcome::Passed => "passed",
                    Outcome::Failed => "failed",
                    Outcome::OtherRank => "not for this model's rank",
                }),
            ]);
        }
        section.blocks.push(Block::Table(table));
    }
    section
}

fn notes(record: &Record) -> Section {
    let mut section = empty("notes", "Notes", "");
    if !record.notes.is_empty() {
        let heading = "What is to be known of these numbers".to_owned();
        section
            .blocks
            .push(Block::List(heading, record.notes.clone()));
    }
    section
}

/// On what, when and how.
fn conditions(record: &Record) -> Section {
    let mut section = empty(
        "conditions",
        "Conditions",
        "On what it was measured, and how.",
    );
    let (c, machine) = (&record.conditions, &record.conditions.machine);
    let mut table = Table::new("Conditions", vec!["what".into(), "found".into()]);
    let mut row = |name: &str, value: String| table.row(vec![Cell::text(name), Cell::text(value)]);
    row("program", record.program.clone());
    row("began", c.date.clone());
    row("command", c.command.join(" "));
    if let Some(processor) = &machine.processor {
        row("processor", processor.clone());
    }
    row("device of htc", c.device.clone());
    if let Some(bytes) = c.device_bytes {
        row("memory of the device in use", format_bytes(bytes));
    }
    row("instruction set of htc", machine.instruction_set.to_owned());
    row("cores", machine.cores.to_string());
    row("system", machine.system.clone());
    if let Some(load) = c.load {
        row("processor time of other programs", percent(load.others));
        row("processor time of the hypervisor", percent(load.stolen));
    }
    if let Some(sensor) = &c.sensor {
        row("sensor", sensor.name.clone());
        let between = seconds(sensor.seconds_between_readings);
        row(
            "time between its readings, beside those at the ends of a run",
            between,
        );
        if let Some(watts) = sensor.idle_watts {
            row("power of the idle device, W", number(watts));
        }
    }
    row("threads", c.threads.to_string());
    row("KV cache", c.kv_type.to_owned());
    row("warm-up runs", c.warm_up.to_string());
    row("pause before every run", seconds(c.cool_down_seconds));
    row("samples of the bootstrap", c.bootstrap_samples.to_string());
    row("seed", c.seed.to_string());
    for (name, model) in [
        ("bytes of the subject", Some(&record.subject)),
        ("bytes of the baseline", record.baseline.as_ref()),
    ] {
        if let Some(model) = model {
            row(name, bytes(model.bytes as f64));
        }
    }
    if let Some(quality) = &record.quality
        && let Some(found) = &quality.evaluation.reference
    {
        let ratio = format!("{:.4}", found.perplexity_ratio_all);
        row("perplexity over the baseline's, all positions", ratio);
    }
    section.blocks.push(Block::Table(table));
    section
}
