//! Quality record: distance of the artifact from its source on a test split.

use std::fmt::Display;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::{Digest, HtzError, Record};
use crate::bounded_json;
use crate::limits::{MAX_CONTEXT, MAX_VALUES_OF_QUALITY};

/// Has the longest decimal form of all finite non-negative numbers.
pub(super) const LONGEST_NUMBER: f64 = 2.225_073_858_507_201_4e-308;

const MAX_PROTOCOL_BYTES: usize = 64;

/// Distance of the artifact from its source, measured on a test split.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct QualityRecord {
    /// Digest of the text.
    pub text_sha256: Digest,
    /// Digest of the token ids of the windows, as 32-bit little-endian numbers.
    pub tokens_sha256: Digest,
    /// Positions that are counted: [`SECOND_HALF`](QualityRecord::SECOND_HALF).
    pub protocol: String,
    /// Tokens per window.
    pub context: u64,
    /// Number of windows.
    pub windows: u64,
    /// Number of counted positions.
    pub tokens: u64,
    /// Number of windows of the validation split.
    pub choosing_windows: u64,
    /// Mean Kullback–Leibler divergence, in nats.
    pub kl: Measurement,
    /// Perplexity relative to the source's.
    pub perplexity_ratio: Measurement,
}

/// A measurement; a single window has no standard error and no interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Measurement {
    /// Measured value.
    pub value: f64,
    /// Standard error over windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<f64>,
    /// Bounds of the 95 % interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<(f64, f64)>,
}

impl QualityRecord {
    /// Protocol that counts the positions in the second half of each window; keys and values are
    /// f16.
    pub const SECOND_HALF: &'static str = "second_half";

    /// Returns a record for a draft, which reserves space.
    pub fn draft() -> QualityRecord {
        QualityRecord {
            text_sha256: Digest::default(),
            tokens_sha256: Digest::default(),
            protocol: QualityRecord::SECOND_HALF.to_owned(),
            context: 0,
            windows: 0,
            tokens: 0,
            choosing_windows: 0,
            kl: Measurement::default(),
            perplexity_ratio: Measurement::default(),
        }
    }

    pub(super) fn with_longest_numbers(self) -> QualityRecord {
        let number = Measurement {
            value: LONGEST_NUMBER,
            stderr: Some(LONGEST_NUMBER),
            // A lower bound may be negative.
            interval: Some((-LONGEST_NUMBER, -LONGEST_NUMBER)),
        };
        QualityRecord {
            context: u64::MAX,
            windows: u64::MAX,
            tokens: u64::MAX,
            choosing_windows: u64::MAX,
            kl: number,
            perplexity_ratio: number,
            ..self
        }
    }
}

/// Names of a measurement and its properties in errors.
const KL: [&str; 4] = ["kl", "kl.value", "kl.stderr", "kl.interval"];
const PERPLEXITY_RATIO: [&str; 4] = [
    "perplexity_ratio",
    "perplexity_ratio.value",
    "perplexity_ratio.stderr",
    "perplexity_ratio.interval",
];

pub(super) fn check_record(record: &QualityRecord) -> Result<(), HtzError> {
    let QualityRecord {
        text_sha256: _,
        tokens_sha256: _,
        protocol,
        context,
        windows,
        tokens,
        choosing_windows: _,
        kl,
        perplexity_ratio,
    } = record;
    if protocol.is_empty() || protocol.len() > MAX_PROTOCOL_BYTES {
        let expected = format!("1 to {MAX_PROTOCOL_BYTES} bytes");
        return Err(Record::Quality.error("length of protocol", expected, protocol.len()));
    }
    for (property, most, found) in [
        ("context", MAX_CONTEXT as u64, *context),
        ("windows", u64::MAX, *windows),
        ("tokens", windows.saturating_mul(*context), *tokens),
    ] {
        if !(1..=most).contains(&found) {
            return Err(Record::Quality.error(property, format!("1 to {most}"), found));
        }
    }
    kl.check(KL, |value| value >= 0.0, "not negative", *windows)?;
    perplexity_ratio.check(
        PERPLEXITY_RATIO,
        |value| value > 0.0,
        "above zero",
        *windows,
    )
}

impl Measurement {
    fn check(
        &self,
        [name, value_name, stderr_name, interval_name]: [&'static str; 4],
        is_possible: impl Fn(f64) -> bool,
        which: &str,
        windows: u64,
    ) -> Result<(), HtzError> {
        let Measurement {
            value,
            stderr,
            interval,
        } = *self;
        if !(value.is_finite() && is_possible(value)) {
            let expected = format!("a finite number, {which}");
            return Err(Record::Quality.error(value_name, expected, value));
        }
        if let Some(error) = stderr.filter(|error| !(error.is_finite() && *error >= 0.0)) {
            let expected = "a finite number, not negative";
            return Err(Record::Quality.error(stderr_name, expected, error));
        }
        if let Some((low, high)) = interval {
            let is_around = low.is_finite() && high.is_finite() && low <= value && value <= high;
            if !is_around {
                let expected = format!("two finite ends around {value}, the lower first");
                let found = format!("{low} to {high}");
                return Err(Record::Quality.error(interval_name, expected, found));
            }
        }
        let (is_told, is_known) = (stderr.is_some(), interval.is_some());
        if is_told != is_known || (is_told && windows == 1) {
            let expected = "a standard error and an interval, or neither, as of a single window";
            let found = match (is_told, is_known) {
                (true, false) => "a standard error alone".to_owned(),
                (false, true) => "an interval alone".to_owned(),
                _ => format!("both, of {windows} window"),
            };
            return Err(Record::Quality.error(name, expected, found));
        }
        Ok(())
    }
}

/// Field by field, so that errors name the field.
impl<'de> Deserialize<'de> for QualityRecord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let named = |error: &dyn Display| D::Error::custom(format!("quality: {error}"));
        let json = bounded_json::deserialize(deserializer, MAX_VALUES_OF_QUALITY)
            .map_err(|error| named(&error))?;
        let json = Map::deserialize(json).map_err(|error| named(&error))?;
        let fields = JsonFields {
            name: "quality".to_owned(),
            json: &json,
        };
        fields.record().map_err(D::Error::custom)
    }
}

struct JsonFields<'a> {
    name: String,
    json: &'a Map<String, Value>,
}

impl JsonFields<'_> {
    fn record(&self) -> Result<QualityRecord, String> {
        Ok(QualityRecord {
            text_sha256: self.field("text_sha256")?,
            tokens_sha256: self.field("tokens_sha256")?,
            protocol: self.field("protocol")?,
            context: self.field("context")?,
            windows: self.field("windows")?,
            tokens: self.field("tokens")?,
            choosing_windows: self.field("choosing_windows")?,
            kl: self.estimate("kl")?,
            perplexity_ratio: self.estimate("perplexity_ratio")?,
        })
    }

    fn estimate(&self, key: &str) -> Result<Measurement, String> {
        let fields = JsonFields {
            name: format!("{}.{key}", self.name),
            json: &self.field(key)?,
        };
        Ok(Measurement {
            value: fields.field("value")?,
            stderr: fields.field("stderr")?,
            interval: fields.field("interval")?,
        })
    }

    fn field<T: DeserializeOwned>(&self, key: &str) -> Result<T, String> {
        let value = self.json.get(key).cloned().unwrap_or_default();
        serde_json::from_value(value).map_err(|error| format!("{}.{key}: {error}", self.name))
    }
}

#[cfg(test)]
mod tests;
