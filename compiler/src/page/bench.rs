//! The page of a measurement of speed, which `htc bench -o` writes.

use maud::{Markup, html};

use super::PageError;
use super::chart::{Chart, Point, Series, Xy, optional};
use super::number::{brief, bytes, number, percent, seconds};
use super::scale::{Axis, Kind};
use super::template::{Page, Section, Table, figure, list};
use crate::bench::gates::{Judged, Outcome};
use crate::bench::record::{Pair, PerJoule, Phase, Quantity, Record, Run};
use crate::bench::statistics::Comparison;

/// Anchor, title, explanation and content of a section.
type Spec = (
    &'static str,
    &'static str,
    &'static str,
    fn(&Record) -> Markup,
);

#[rustfmt::skip]
const SECTIONS: [Spec; 7] = [
    ("ratios", "Ratios to the baseline", "Speed of the subject over that of the baseline, pair by pair, in the order of measuring; above 1 the subject is faster.", ratios),
    ("speeds", "Speeds", "Tokens per second of every run. Prefill reads the prompt up to the choice of the first token, decode is from the first token to the last, end to end is the tokens written over the time of both.", speeds),
    ("context", "By length of context", "Speed of reading a context, and of writing after it; means of all pairs.", contexts),
    ("energy", "Energy", "Tokens written per joule: over all energy from the prompt on, over the energy beyond the power of the idle device, and of decode alone. Pauses, warm-up and loading are not counted.", energy),
    ("gates", "Gates", "The required limits, and whether they hold.", gates),
    ("notes", "Notes", "", |record| list("About these numbers", &record.notes)),
    ("conditions", "Conditions", "The machine and the protocol.", conditions),
];

/// Returns the page about a measurement.
///
/// # Errors
/// [`PageError`] where the page would be too large.
pub fn page(record: &Record) -> Result<String, PageError> {
    let (subject, baseline) = (&record.subject.name, record.baseline.as_ref());
    let against = baseline.map(|other| {
        let same = *subject == other.name;
        let other = if same { &other.engine } else { &other.name };
        format!(" against {other}")
    });
    let baseline = baseline.map(|other| format!("The baseline: {other}."));
    let verdict = std::iter::once(format!("{}.", record.subject)).chain(baseline);
    let sections = SECTIONS.iter().map(|(id, title, lead, content)| Section {
        id,
        title,
        lead,
        content: content(record),
    });
    let page = Page {
        title: format!("Speed of {subject}{}", against.unwrap_or_default()),
        verdict: verdict.collect(),
        tiles: tiles(record),
        sections: sections.collect(),
        footer: vec![format!(
            "Made by {} on {}.",
            record.program, record.conditions.date
        )],
        ..Page::default()
    };
    page.render().ok_or(PageError::TooLarge)
}

/// Decode comes first: it is what people wait for.
fn tiles(record: &Record) -> Vec<(String, String)> {
    let tile = |quantity: &Quantity, unit: &str, name: &str| {
        let Some(comparison) = &quantity.comparison else {
            return (
                format!("{} {unit}", brief(quantity.subject.mean)),
                name.to_owned(),
            );
        };
        let interval = comparison.interval;
        let interval =
            interval.map(|(low, high)| format!(" ({} to {})", percent(low), percent(high)));
        let meaning = format!("of the baseline's {name}{}", interval.unwrap_or_default());
        (percent(comparison.ratio), meaning)
    };
    let phases = [Phase::Decode, Phase::Prefill, Phase::EndToEnd].into_iter();
    let speeds = phases.filter_map(|p| Some(tile(record.phases.get(p)?, "tokens/s", p.name())));
    let energy = record.energy.as_ref().and_then(|e| e.get(PerJoule::Run));
    let energy = energy.map(|quantity| tile(quantity, "tokens/J", "tokens per joule"));
    speeds.chain(energy).collect()
}

/// A quantity of one run.
type Value<'a> = &'a dyn Fn(&Run) -> Option<f64>;

/// Returns the task of a pair.
fn task(pair: &Pair) -> String {
    let kind = pair.prompt.map(|kind| format!("{}, ", kind.name()));
    format!("{}{} tokens", kind.unwrap_or_default(), pair.tokens)
}

/// Creates the points of the pairs that have a value, in their order.
fn points(record: &Record, value: impl Fn(&Pair) -> Option<f64>) -> Vec<Point> {
    let pairs = (1..).zip(&record.pairs);
    let points = pairs.filter_map(|(at, pair)| {
        let point = Point::new(f64::from(at), value(pair)?);
        Some(point.named(task(pair)))
    });
    points.collect()
}

/// Draws the ratio of a quantity in every pair, and the mean of all.
fn ratio_chart(record: &Record, title: &str, comparison: Comparison, value: Value) -> Chart {
    let ratios = points(record, |p| {
        Some(value(&p.subject)? / value(p.baseline.as_ref()?)?)
    });
    let mean = Point::new((record.pairs.len() + 1) as f64, comparison.ratio);
    let mean = mean.within(comparison.interval).named("all pairs");
    let series = vec![
        Series::muted("a pair", 4, ratios),
        Series::scatter("mean, 95 % interval", 2, [mean]),
    ];
    let x = Axis::new("pair; the last is the mean", Kind::Whole);
    let y = Axis::new("subject / baseline", Kind::Linear);
    Xy::new(title, x, y, series).draw()
}

/// Draws a quantity of every run of both sides.
fn run_chart(record: &Record, title: &str, unit: &str, value: Value) -> Chart {
    let series = vec![
        Series::scatter("subject", 0, points(record, |p| value(&p.subject))),
        Series::scatter(
            "baseline",
            1,
            points(record, |p| value(p.baseline.as_ref()?)),
        ),
    ];
    let (x, y) = (
        Axis::new("pair", Kind::Whole),
        Axis::new(unit, Kind::Linear),
    );
    Xy::new(title, x, y, series).draw()
}

/// A quantity that was measured, with its name.
type Named<'a> = (String, &'a Quantity);

fn measured_phases(record: &Record) -> Vec<Named<'_>> {
    let phases = Phase::ALL.into_iter();
    let phases = phases.filter_map(|p| Some((p.name().to_owned(), record.phases.get(p)?)));
    phases.collect()
}

fn ratios(record: &Record) -> Markup {
    let charts = Phase::ALL.into_iter().filter_map(|phase| {
        let comparison = record.phases.get(phase)?.comparison?;
        Some(ratio_chart(record, phase.name(), comparison, &|run| {
            run.speed(phase)
        }))
    });
    html! {
        (figure("Ratio of every pair, and the mean of all", "The 95 % interval is a percentile bootstrap over pairs.", charts))
        @if record.baseline.is_some() { (statistics("Statistics", "tokens/s", &measured_phases(record))) }
    }
}

fn speeds(record: &Record) -> Markup {
    let phases = Phase::ALL
        .into_iter()
        .filter(|&p| record.phases.get(p).is_some());
    let charts = phases.map(|p| run_chart(record, p.name(), "tokens/s", &|run| run.speed(p)));
    html! {
        (figure("Speed of every run, in the order of measuring", "", charts))
        // With a baseline, the statistics are below the ratios.
        @if record.baseline.is_none() { (statistics("Statistics", "tokens/s", &measured_phases(record))) }
    }
}

fn contexts(record: &Record) -> Markup {
    let phases = [
        (Phase::Prefill, "prefill"),
        (Phase::Decode, "decode after the context"),
    ];
    let charts = phases.map(|(phase, title)| {
        let swept = || record.context.iter();
        let quantities = || swept().filter_map(|s| Some((s.length as f64, s.phases.get(phase)?)));
        let subject = quantities().map(|(at, q)| Point::new(at, q.subject.mean));
        let baseline = quantities().filter_map(|(at, q)| Some(Point::new(at, q.baseline?.mean)));
        let series = vec![
            Series::line("subject", 0, subject),
            Series::line("baseline", 1, baseline),
        ];
        let x = Axis::new("tokens of context (logarithmic)", Kind::Log);
        Xy::new(title, x, Axis::new("tokens/s", Kind::Linear), series).draw()
    });
    let named = record.context.iter().flat_map(|swept| {
        phases.into_iter().filter_map(|(phase, _)| {
            let name = format!("{} tokens, {}", swept.length, phase.name());
            Some((name, swept.phases.get(phase)?))
        })
    });
    html! {
        (figure("Mean speed by length of context", "", charts))
        (statistics("Statistics by length", "tokens/s", &named.collect::<Vec<_>>()))
    }
}

/// Returns a table with a row for each quantity.
fn statistics(caption: &str, unit: &str, quantities: &[Named]) -> Markup {
    let (subject, baseline) = (format!("subject, {unit}"), format!("baseline, {unit}"));
    let mut table = Table::new(&[
        "quantity",
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
    ]);
    let value = |value: Option<f64>| optional(value, number);
    let ratio = |ratio: Option<f64>| optional(ratio, |v| format!("{v:.4}"));
    let interval = |(low, high): (f64, f64)| format!("{low:.4} to {high:.4}");
    table.rows.extend(quantities.iter().map(|(name, quantity)| {
        let (subject, baseline) = (quantity.subject, quantity.baseline);
        let comparison = quantity.comparison;
        let t = comparison.and_then(|c| c.paired_t);
        let wilcoxon = comparison.and_then(|c| c.wilcoxon);
        let variance = comparison.and_then(|c| c.variance);
        vec![
            name.clone(),
            number(subject.mean),
            value(subject.sd),
            value(baseline.map(|b| b.mean)),
            value(baseline.and_then(|b| b.sd)),
            ratio(comparison.map(|c| c.ratio)),
            optional(comparison.and_then(|c| c.interval), interval),
            ratio(comparison.map(|c| c.median_ratio)),
            value(t.map(|t| t.t)),
            value(t.map(|t| t.p)),
            value(wilcoxon.map(|w| w.plus.min(w.minus))),
            value(wilcoxon.map(|w| w.p)),
            value(variance.map(|v| v.ratio)),
            value(variance.map(|v| v.threshold)),
        ]
    }));
    table.render(caption)
}

fn energy(record: &Record) -> Markup {
    let Some(energy) = &record.energy else {
        return html! {};
    };
    let measured = || {
        PerJoule::ALL
            .into_iter()
            .filter_map(|of| Some((of, energy.get(of)?)))
    };
    let ratios = measured().filter_map(|(of, quantity)| {
        let comparison = quantity.comparison?;
        Some(ratio_chart(record, of.name(), comparison, &|run| {
            run.per_joule(of)
        }))
    });
    let runs = measured()
        .map(|(of, _)| run_chart(record, of.name(), "tokens/J", &|run| run.per_joule(of)));
    let named = measured().map(|(of, quantity)| (of.name().to_owned(), quantity));
    let note = "Above 1 the subject needs less energy. The 95 % interval is a percentile bootstrap over pairs.";
    html! {
        (figure("Ratio of tokens per joule in every pair, and the mean of all", note, ratios))
        (figure("Tokens per joule of every run, in the order of measuring", "", runs))
        (statistics("Statistics of tokens per joule", "tokens/J", &named.collect::<Vec<_>>()))
        (readings(record).render("Readings"))
    }
}

/// Returns what the sensor said, a row for each run.
fn readings(record: &Record) -> Table {
    let mut table = Table::new(&[
        "pair",
        "task",
        "side",
        "J",
        "J beyond idling",
        "J of decode",
        "W",
        "°C before",
        "°C after",
        "highest °C",
    ]);
    for (at, pair) in (1..).zip(&record.pairs) {
        let sides = [
            ("subject", Some(&pair.subject)),
            ("baseline", pair.baseline.as_ref()),
        ];
        let sides = sides
            .into_iter()
            .filter_map(|(side, run)| Some((side, run?.energy?.reading)));
        table.rows.extend(sides.map(|(side, reading)| {
            let values = [
                reading.joules,
                reading.net_joules,
                reading.decode_joules,
                reading.power_watts,
                reading.temperature_before_celsius,
                reading.temperature_after_celsius,
                reading.temperature_celsius,
            ];
            let names: [String; 3] = [at.to_string(), task(pair), side.to_owned()];
            names
                .into_iter()
                .chain(values.map(|v| optional(v, number)))
                .collect()
        }));
    }
    table
}

fn gates(record: &Record) -> Markup {
    let mut table = Table::new(&["metric", "of rank", "required", "measured", "outcome"]);
    let row = |judged: &Judged| {
        let outcome = match judged.outcome {
            Outcome::Passed => "passed",
            Outcome::Failed => "failed",
            Outcome::OtherRank => "not for this model's rank",
        };
        let gate = &judged.gate;
        vec![
            gate.metric.to_string(),
            optional(gate.rank, |rank| rank.to_string()),
            gate.bound.to_string(),
            optional(judged.found, number),
            outcome.to_owned(),
        ]
    };
    table.rows = record.gates.iter().map(row).collect();
    table.render("Gates")
}

fn conditions(record: &Record) -> Markup {
    let (c, machine) = (&record.conditions, &record.conditions.machine);
    let size = |size: u64| bytes(size as f64);
    let sensor = c.sensor.as_ref();
    let evaluation = record.quality.as_ref().map(|q| &q.evaluation);
    let ratio = evaluation.and_then(|e| Some(e.reference.as_ref()?.perplexity_ratio_all));
    let rows = [
        ("program", Some(record.program.clone())),
        ("start", Some(c.date.clone())),
        ("command", Some(c.command.join(" "))),
        ("processor", machine.processor.clone()),
        ("device of htc", Some(c.device.clone())),
        ("memory of the device in use", c.device_bytes.map(size)),
        (
            "instruction set of htc",
            Some(machine.instruction_set.to_string()),
        ),
        ("cores", Some(machine.cores.to_string())),
        ("system", Some(machine.system.clone())),
        (
            "processor time of other programs",
            c.load.map(|l| percent(l.others)),
        ),
        (
            "processor time of the hypervisor",
            c.load.map(|l| percent(l.stolen)),
        ),
        ("sensor", sensor.map(|s| s.name.clone())),
        (
            "time between readings of the sensor",
            sensor.map(|s| seconds(s.seconds_between_readings)),
        ),
        (
            "power of the idle device, W",
            sensor.and_then(|s| s.idle_watts).map(number),
        ),
        ("threads", Some(c.threads.to_string())),
        ("KV cache", Some(c.kv_type.to_owned())),
        ("warm-up runs", Some(c.warm_up.to_string())),
        ("pause before every run", Some(seconds(c.cool_down_seconds))),
        (
            "samples of the bootstrap",
            Some(c.bootstrap_samples.to_string()),
        ),
        ("seed", Some(c.seed.to_string())),
        ("bytes of the subject", Some(size(record.subject.bytes))),
        (
            "bytes of the baseline",
            record.baseline.as_ref().map(|b| size(b.bytes)),
        ),
        (
            "perplexity over the baseline's, all positions",
            ratio.map(|ratio| format!("{ratio:.4}")),
        ),
    ];
    let mut table = Table::new(&["condition", "value"]);
    let rows = rows.into_iter();
    table.rows = rows
        .filter_map(|(name, value)| Some(vec![name.to_owned(), value?]))
        .collect();
    table.render("Conditions")
}
