//! The page of a measurement of speed, which `htc bench -o` writes.

use maud::{Markup, html};
use serde_json::Value;

use super::chart::{Point, Series, xy};
use super::json::{at, fill, lines, list, num, points, properties, show, table, text};
use super::number::{brief, percent};
use super::scale::{Axis, Kind};
use super::template::{self, Page, Section, figure};
use crate::bench::record::Record;

/// Name, path in the record or a length of context, and key in a run.
type Quantity = [&'static str; 3];

const SPEEDS: [Quantity; 3] = [
    ["prefill", "prefill", "prefill"],
    ["decode", "decode", "decode"],
    ["end to end", "end_to_end", "end_to_end"],
];

const PER_JOULE: [Quantity; 3] = [
    ["end to end", "energy/tokens_per_joule", "tokens_per_joule"],
    [
        "beyond idling",
        "energy/net_tokens_per_joule",
        "net_tokens_per_joule",
    ],
    [
        "decode",
        "energy/decode_tokens_per_joule",
        "decode_tokens_per_joule",
    ],
];

const SIDES: [&str; 2] = ["subject", "baseline"];

/// Columns of statistics, with their paths in a quantity.
const STATISTICS: [(&str, &str); 14] = [
    ("quantity", "name"),
    ("subject", "subject/mean"),
    ("sd", "subject/sd"),
    ("baseline", "baseline/mean"),
    ("sd", "baseline/sd"),
    ("ratio", "comparison/ratio"),
    ("95 % interval", "comparison/interval"),
    ("median ratio", "comparison/median_ratio"),
    ("t", "comparison/paired_t/t"),
    ("p", "comparison/paired_t/p"),
    ("Wilcoxon W+", "comparison/wilcoxon/plus"),
    ("p", "comparison/wilcoxon/p"),
    ("variance ratio", "comparison/variance/ratio"),
    ("threshold", "comparison/variance/threshold"),
];

/// Columns of what the sensor said, with their paths in a run.
const READINGS: [(&str, &str); 9] = [
    ("task", "name"),
    ("J", "joules"),
    ("J beyond idling", "net_joules"),
    ("J of decode", "decode_joules"),
    ("W", "power_watts"),
    ("seconds without readings", "missed_seconds"),
    ("°C before", "temperature_before_celsius"),
    ("°C after", "temperature_after_celsius"),
    ("highest °C", "temperature_celsius"),
];

const GATES: [(&str, &str); 6] = [
    ("metric", "metric"),
    ("of rank", "rank"),
    ("at least", "at_least"),
    ("at most", "at_most"),
    ("measured", "found"),
    ("outcome", "outcome"),
];

/// Paths in the record, separated by spaces.
const CONDITIONS: &str = "program date command machine device device_bytes load sensor threads kv_type warm_up \
    cool_down_seconds bootstrap_samples seed subject baseline quality/text \
    quality/perplexity quality/perplexity_ratio quality/perplexity_ratio_all quality/kl";

/// Anchor, title, explanation and content.
type Spec = (
    &'static str,
    &'static str,
    &'static str,
    fn(&Value) -> Markup,
);

#[rustfmt::skip]
const SECTIONS: [Spec; 7] = [
    ("ratios", "Ratios to the baseline", "Speed of the subject over that of the baseline, pair by pair, in the order of measuring; above 1 the subject is faster.",
        |record| ratios(record, &SPEEDS)),
    ("speeds", "Speeds", "Tokens per second of every run. Prefill reads the prompt up to the choice of the first token, decode is from the first token to the last, end to end is the tokens written over the time of both.",
        |record| runs(record, &SPEEDS, "Speed of every run, in the order of measuring", "tokens/s")),
    ("context", "By length of context", "Speed of reading a context, and of writing after it; means of all pairs.", contexts),
    ("energy", "Energy", "Tokens written per joule: over all energy from the prompt on, over the energy beyond the power of the idle device, and of decode alone. Pauses, warm-up and loading are not counted.", energy),
    ("gates", "Gates", "The required limits, and whether they hold.",
        |record| table(list(record, "gates"), &GATES).render("Gates")),
    ("notes", "Notes", "", |record| template::list("About these numbers", &strings(record, "notes"))),
    ("conditions", "Conditions", "The machine and the protocol.",
        |record| properties("value", record, CONDITIONS).render("Conditions")),
];

fn strings(record: &Value, path: &str) -> Vec<String> {
    let items = list(record, path).iter();
    items.map(|item| show(item, "")).collect()
}

/// Returns the page about a measurement; `None` above [`template::MAX_PAGE`] bytes.
pub fn page(record: &Record) -> Option<String> {
    let (subject, baseline) = (&record.subject.name, record.baseline.as_ref());
    let against = baseline.map(|other| {
        let same = *subject == other.name;
        let other = if same { &other.engine } else { &other.name };
        format!(" against {other}")
    });
    let baseline = baseline.map(|other| format!("The baseline: {other}."));
    let verdict = std::iter::once(format!("{}.", record.subject)).chain(baseline);
    let document = serde_json::to_value(record).unwrap_or_default();
    let sections = SECTIONS.iter().map(|(id, title, lead, content)| Section {
        id,
        title,
        lead,
        content: content(&document),
    });
    let page = Page {
        title: format!("Speed of {subject}{}", against.unwrap_or_default()),
        verdict: verdict.collect(),
        tiles: tiles(&document),
        sections: sections.collect(),
        footer: vec![format!(
            "Made by {} on {}.",
            record.program, record.conditions.date
        )],
        ..Page::default()
    };
    page.render()
}

fn tiles(record: &Value) -> Vec<(String, String)> {
    let tile = |name: &str, path: &str, unit: &str| {
        let quantity = at(record, path);
        let Some(ratio) = num(quantity, "comparison/ratio") else {
            let mean = brief(num(quantity, "subject/mean")?);
            return Some((format!("{mean} {unit}"), name.to_owned()));
        };
        let interval = match at(quantity, "comparison/interval") {
            Value::Null => String::new(),
            interval => format!(" (95 % interval {})", show(interval, "")),
        };
        let meaning = format!("of the baseline's {name}{interval}");
        Some((percent(ratio), meaning))
    };
    let tiles = [
        tile("decode", "decode", "tokens/s"),
        tile("prefill", "prefill", "tokens/s"),
        tile("end to end", "end_to_end", "tokens/s"),
        tile("tokens per joule", PER_JOULE[0][1], "tokens/J"),
    ];
    tiles.into_iter().flatten().collect()
}

fn task(pair: &Value) -> String {
    let without_prompt = text(pair, "prompt").is_empty();
    let template = if without_prompt {
        "{tokens} tokens"
    } else {
        "{prompt}, {tokens} tokens"
    };
    fill(template, pair)
}

/// Creates the points of the pairs that have a value, in their order.
fn pairs(record: &Value, value: impl Fn(&Value) -> Option<f64>) -> Vec<Point> {
    let pairs = (1..).zip(list(record, "pairs"));
    let points = pairs.filter_map(|(at, pair)| {
        let point = Point::new(f64::from(at), value(pair)?);
        Some(point.named(task(pair)))
    });
    points.collect()
}

fn ratios(record: &Value, quantities: &[Quantity]) -> Markup {
    let charts = quantities.iter().filter_map(|&[name, path, key]| {
        let comparison = at(record, &format!("{path}/comparison"));
        let side = |pair: &Value, side: &str| num(pair, &format!("{side}/{key}"));
        let ratios = pairs(record, |p| Some(side(p, "subject")? / side(p, "baseline")?));
        let mean = Point::new((ratios.len() + 1) as f64, num(comparison, "ratio")?);
        let interval = num(comparison, "interval/0").zip(num(comparison, "interval/1"));
        let mean = mean.within(interval).named("all pairs");
        let series = [
            Series::muted("a pair", 4, ratios),
            Series::scatter("mean, 95 % interval", 2, [mean]),
        ];
        let x = Axis::new("pair; the last is the mean", Kind::Whole);
        Some(xy(name, x, Axis::linear("subject / baseline"), series))
    });
    let named = quantities.iter();
    let named = named.map(|[name, path, _]| with_name(name, at(record, path)));
    let named = named.filter(|quantity| num(quantity, "subject/mean").is_some());
    let named: Vec<Value> = named.collect();
    let note = "The 95 % interval is a percentile bootstrap over pairs.";
    html! {
        (figure("Ratio of every pair, and the mean of all", note, charts))
        (table(&named, &STATISTICS).render("Statistics"))
    }
}

/// Adds a name to a JSON object.
fn with_name(name: &str, value: &Value) -> Value {
    let mut named = value.clone();
    if let Some(entries) = named.as_object_mut() {
        entries.insert("name".into(), name.into());
    }
    named
}

fn runs(record: &Value, quantities: &[Quantity], caption: &str, unit: &str) -> Markup {
    let charts = quantities.iter().map(|[name, _, key]| {
        let series = SIDES.into_iter().enumerate().map(|(number, side)| {
            let points = pairs(record, |pair| num(pair, &format!("{side}/{key}")));
            Series::scatter(side, number, points)
        });
        let x = Axis::new("pair", Kind::Whole);
        xy(name, x, Axis::linear(unit), series)
    });
    figure(caption, "", charts)
}

fn contexts(record: &Value) -> Markup {
    let lengths = list(record, "context");
    let charts = [
        ("prefill", "prefill"),
        ("decode", "decode after the context"),
    ];
    let charts = charts.map(|(phase, title)| {
        let series = lines(SIDES, |side| {
            let mean = format!("{phase}/{side}/mean");
            points(lengths, ["length", &mean, "none"])
        });
        let x = Axis::log("tokens of context");
        xy(title, x, Axis::linear("tokens/s"), series)
    });
    let quantities = lengths.iter().flat_map(|swept| {
        SPEEDS[..2].iter().map(|[name, path, _]| {
            let name = format!("{} tokens, {name}", show(swept, "length"));
            with_name(&name, at(swept, path))
        })
    });
    let quantities: Vec<Value> = quantities.filter(Value::is_object).collect();
    html! {
        (figure("Mean speed by length of context", "", charts))
        (table(&quantities, &STATISTICS).render("Statistics by length, tokens/s"))
    }
}

fn energy(record: &Value) -> Markup {
    let runs_of = |pair: &Value| {
        SIDES.map(|side| with_name(&format!("{}: {side}", task(pair)), at(pair, side)))
    };
    let readings = list(record, "pairs").iter().flat_map(runs_of);
    let readings: Vec<Value> = readings.filter(Value::is_object).collect();
    html! {
        @if at(record, "energy").is_object() {
            (ratios(record, &PER_JOULE))
            (runs(record, &PER_JOULE, "Tokens per joule of every run, in the order of measuring", "tokens/J"))
            (table(&readings, &READINGS).render("Readings"))
        }
    }
}
