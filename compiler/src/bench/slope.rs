//! Joules per weight byte read, from records of `htc bench` with a sensor.
//!
//! Each run has `x`, the weight bytes read per token, and `y`, the joules of decode per token. The
//! slope is a regression through the origin on the differences of pairs,
//!
//! `b = Σ Δx Δy / Σ Δx²`, `a = mean(y) - b mean(x)`,
//!
//! with a percentile bootstrap over pairs as its interval.

use std::path::{Path, PathBuf};

use htc_formats::escape::escape;
use htc_formats::htz::{Digest, Hasher};
use serde::Deserialize;

use super::BenchError;
use super::record::SCHEMA;
use super::statistics::SAMPLES;
use crate::options::MeasuredEnergy;
use crate::system::error::FileError;
use crate::system::random::Rng;
use crate::system::text;

const MAX_FILE: u64 = 1 << 24;

const MAX_PAIRS: usize = 1000;

/// Maximum number of records.
pub const MAX_FILES: usize = 16;

const MIN_SIZE_DIFFERENCE: f64 = 0.01;

const MAX_NAME: usize = 120;

#[derive(Deserialize)]
struct Record {
    kind: String,
    schema: String,
    threads: usize,
    kv_type: String,
    #[serde(default)]
    device: String,
    machine: Machine,
    sensor: Option<Sensor>,
    subject: Side,
    baseline: Option<Side>,
    pairs: Vec<Pair>,
}

#[derive(Deserialize)]
struct Machine {
    processor: Option<String>,
    system: String,
}

#[derive(Deserialize)]
struct Sensor {
    name: String,
}

#[derive(Deserialize)]
struct Side {
    engine: String,
    touched_bytes: Option<u64>,
}

#[derive(Deserialize)]
struct Pair {
    subject: Run,
    baseline: Option<Run>,
}

#[derive(Deserialize)]
struct Run {
    tokens: u64,
    decode_joules: Option<f64>,
}

impl Record {
    fn sensor_name(&self) -> &str {
        self.sensor.as_ref().map_or("", |sensor| &sensor.name)
    }
}

impl Run {
    fn joules(&self) -> Option<f64> {
        let joules = self.decode_joules.filter(|&j| j.is_finite() && j > 0.0)?;
        (self.tokens > 1).then(|| joules / (self.tokens - 1) as f64)
    }
}

/// Weight bytes and joules per token.
type EnergyPoint = (f64, f64);

/// Fits the line through these records; `None` without files.
pub fn read(paths: &[PathBuf]) -> Result<Option<MeasuredEnergy>, BenchError> {
    if paths.len() > MAX_FILES {
        return Err(BenchError::TooManyRecords(paths.len()));
    }
    let (mut pairs, mut hasher): (Vec<[EnergyPoint; 2]>, Hasher) = Default::default();
    let mut first: Option<(&Path, Record)> = None;
    let mut digests = Vec::new();
    for path in paths {
        let bytes = text::read_bytes(path, MAX_FILE, limit, "give the `json` of `htc bench`")?;
        let digest = Digest::of_bytes(&bytes);
        if digests.contains(&digest) {
            return Err(BenchError::DuplicateRecord(path.clone()));
        }
        hasher.update(&digest.0);
        digests.push(digest);
        let record = parse(path, &bytes)?;
        pairs.extend(pairs_of(path, &record)?);
        match &first {
            None => first = Some((path, record)),
            Some((other, expected)) => check_same_setup(path, &record, other, expected)?,
        }
    }
    let Some((path, record)) = first else {
        return Ok(None);
    };
    let (joules_per_token, joules_per_byte) = fit_line(&pairs);
    if !(joules_per_byte.is_finite() && joules_per_byte > 0.0) {
        return Err(BenchError::NoSlope {
            path: path.into(),
            slope: joules_per_byte,
            pairs: pairs.len(),
        });
    }
    Ok(Some(MeasuredEnergy {
        joules_per_byte,
        interval: interval(&pairs),
        joules_per_token,
        pairs: pairs.len(),
        sensor: shorten(record.sensor_name()),
        digest: hasher.finish(),
    }))
}

fn shorten(text: &str) -> String {
    let text: String = text.chars().take(MAX_NAME).collect();
    escape(&text).into_owned()
}

fn limit() -> String {
    format!(
        "a record of a benchmark has at most {MAX_FILE} bytes and {MAX_PAIRS} pairs; measure fewer pairs"
    )
}

/// Returns an error constructor for a record that does not suit: expected, found and remedy.
fn unsuitable(path: &Path) -> impl Fn(&'static str, String, &'static str) -> FileError {
    |expected, found, remedy| FileError::Unsuitable {
        path: path.into(),
        expected,
        found,
        remedy,
    }
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Record, FileError> {
    let record: Record = serde_json::from_slice(bytes).map_err(|error| {
        let expected = "the JSON of `htc bench`";
        FileError::syntax(path, expected, &error, shorten, "measure again")
    })?;
    let other = unsuitable(path);
    if (&record.kind[..], &record.schema[..]) != ("benchmark", SCHEMA) {
        let found = format!(
            "`{}` of schema {}",
            shorten(&record.kind),
            shorten(&record.schema)
        );
        let remedy = "measure again with this program's `htc bench`";
        let expected = "a benchmark as this program writes it";
        return Err(other(expected, found, remedy));
    }
    if record.sensor.is_none() {
        let remedy = "measure a `fraction` of a model `against` itself with a `sensor`";
        let found = "a record without a sensor".into();
        return Err(other("joules of every run", found, remedy));
    }
    Ok(record)
}

fn pairs_of(path: &Path, record: &Record) -> Result<Vec<[EnergyPoint; 2]>, FileError> {
    let other = unsuitable(path);
    let remedy =
        "measure a `fraction` of a model `against` itself, or an artifact `against` its source";
    let Some(baseline) = &record.baseline else {
        let found = "one model alone".into();
        return Err(other("pairs of two sizes", found, remedy));
    };
    let engines = [&record.subject.engine, &baseline.engine];
    if engines[0] != engines[1] {
        let found = engines.map(|engine| shorten(engine)).join(" and ");
        return Err(other("one program for both of a pair", found, remedy));
    }
    let bytes = record.subject.touched_bytes.zip(baseline.touched_bytes);
    let Some((subject, baseline)) = bytes else {
        let found = "a record that does not say them".into();
        return Err(other("the bytes that a token touches", found, remedy));
    };
    let (x, z) = (subject as f64, baseline as f64);
    if (x - z).abs() <= MIN_SIZE_DIFFERENCE * x.max(z) {
        let found = format!("{subject} and {baseline} bytes for each token");
        return Err(other("sizes that are 1 % apart at least", found, remedy));
    }
    if record.pairs.len() > MAX_PAIRS {
        return Err(FileError::too_large(path, limit()));
    }
    let pair = |pair: &Pair| {
        let baseline = pair.baseline.as_ref()?;
        Some([(x, pair.subject.joules()?), (z, baseline.joules()?)])
    };
    let pairs: Vec<_> = record.pairs.iter().filter_map(pair).collect();
    if pairs.is_empty() {
        let found = format!("{} pairs without", record.pairs.len());
        let remedy = "measure longer outputs, or with a sensor that tells power";
        Err(other(
            "joules of decode in one pair at least",
            found,
            remedy,
        ))
    } else {
        Ok(pairs)
    }
}

fn check_same_setup(
    path: &Path,
    record: &Record,
    first: &Path,
    of: &Record,
) -> Result<(), BenchError> {
    type Property = (&'static str, fn(&Record) -> String);
    let properties: [Property; 7] = [
        ("device", |r| r.device.clone()),
        ("sensor", |r| r.sensor_name().to_owned()),
        ("processor", |r| {
            r.machine.processor.clone().unwrap_or_default()
        }),
        ("system", |r| r.machine.system.clone()),
        ("program", |r| r.subject.engine.clone()),
        ("number of threads", |r| r.threads.to_string()),
        ("KV cache type", |r| r.kv_type.clone()),
    ];
    let mut values = properties
        .iter()
        .map(|(what, value)| (*what, value(record), value(of)));
    match values.find(|(_, found, expected)| found != expected) {
        None => Ok(()),
        Some((what, found, expected)) => Err(BenchError::Differs {
            path: path.into(),
            first: first.into(),
            what,
            found: shorten(&found),
            expected: shorten(&expected),
        }),
    }
}

fn fit_line(pairs: &[[EnergyPoint; 2]]) -> (f64, f64) {
    let (mut products, mut squares, mut sum) = (0.0, 0.0, (0.0, 0.0));
    for [one, other] in pairs {
        let (x, y) = (one.0 - other.0, one.1 - other.1);
        products += x * y;
        squares += x * x;
        sum.0 += one.0 + other.0;
        sum.1 += one.1 + other.1;
    }
    let slope = products / squares;
    let runs = 2.0 * pairs.len() as f64;
    ((sum.1 - slope * sum.0) / runs, slope)
}

fn interval(pairs: &[[EnergyPoint; 2]]) -> Option<(f64, f64)> {
    if pairs.len() < 2 {
        return None;
    }
    let terms: Vec<(f64, f64)> = pairs
        .iter()
        .map(|[one, other]| {
            let (x, y) = (one.0 - other.0, one.1 - other.1);
            (x * y, x * x)
        })
        .collect();
    let mut random = Rng(0);
    let mut sample = || {
        let drawn = (0..terms.len()).map(|_| terms[random.below(terms.len())]);
        let (products, squares) = drawn.fold((0.0, 0.0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
        products / squares
    };
    let mut slopes: Vec<f64> = (0..SAMPLES).map(|_| sample()).collect();
    slopes.sort_by(f64::total_cmp);
    Some((slopes[SAMPLES / 40], slopes[SAMPLES - 1 - SAMPLES / 40]))
}

#[cfg(test)]
mod tests;
