//! The quality record: how far the artifact is from its source, on text that decided nothing of it.

use std::fmt::Display;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::{Digest, HtzError};
use crate::limits::MAX_CONTEXT;

/// No finite number that is not negative has a longer shortest decimal form.
pub(super) const LONGEST_NUMBER: f64 = 2.225_073_858_507_201_4e-308;

/// Most bytes of the name of a protocol.
const MAX_PROTOCOL_BYTES: usize = 64;

/// How far the artifact is from its source, measured by executing both on text that decided nothing of the
/// artifact.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QualityRecord {
    /// Digest of the text: one of its own, or that of the calibration, which it was kept back from.
    pub text_sha256: Digest,
    /// Digest of what was measured on: the ids of the windows' tokens, each as 32-bit little-endian number.
    pub tokens_sha256: Digest,
    /// Which positions count and how; [`SECOND_HALF`](QualityRecord::SECOND_HALF) in this version.
    pub protocol: String,
    /// Tokens of a window.
    pub context: u64,
    /// Windows measured.
    pub windows: u64,
    /// Positions that count.
    pub tokens: u64,
    /// Held-out windows beside these that decided something; 0 where nothing was decided by measuring.
    pub choosing_windows: u64,
    /// Mean Kullback–Leibler divergence of the artifact's distributions from the source's, nats.
    pub kl: Estimate,
    /// Perplexity of the artifact over that of the source.
    pub perplexity_ratio: Estimate,
}

/// A measured number. A single window has neither standard error nor interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Estimate {
    /// The number.
    pub value: f64,
    /// Its standard error over windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<f64>,
    /// Lower and upper end of its 95 % interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<(f64, f64)>,
}

impl QualityRecord {
    /// The protocol in which the positions from half of each window on count; the first token of a window
    /// is replaced by BOS where the model asks for one, and keys and values are float16.
    pub const SECOND_HALF: &'static str = "second_half";

    /// A record for the draft of a manifest, where it reserves room for what will be measured.
    pub fn draft() -> QualityRecord {
        QualityRecord {
            text_sha256: Digest::default(),
            tokens_sha256: Digest::default(),
            protocol: QualityRecord::SECOND_HALF.to_owned(),
            context: 0,
            windows: 0,
            tokens: 0,
            choosing_windows: 0,
            kl: Estimate::default(),
            perplexity_ratio: Estimate::default(),
        }
    }

    /// The record of the same protocol with the longest numbers.
    pub(super) fn longest(self) -> QualityRecord {
        let number = Estimate {
            value: LONGEST_NUMBER,
            stderr: Some(LONGEST_NUMBER),
            // The lower end of a divergence's interval may be negative.
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

/// Checks that a record is one of a measurement.
pub(super) fn check(record: &QualityRecord) -> Result<(), HtzError> {
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
        return Err(fault("length of protocol", expected, protocol.len()));
    }
    for (property, most, found) in [
        ("context", MAX_CONTEXT as u64, *context),
        ("windows", u64::MAX, *windows),
        ("tokens", windows.saturating_mul(*context), *tokens),
    ] {
        if !(1..=most).contains(&found) {
            return Err(fault(property, format!("1 to {most}"), found));
        }
    }
    kl.check("kl", |value| value >= 0.0, "not negative", *windows)?;
    perplexity_ratio.check(
        "perplexity_ratio",
        |value| value > 0.0,
        "above zero",
        *windows,
    )
}

impl Estimate {
    fn check(
        &self,
        name: &str,
        is_possible: impl Fn(f64) -> bool,
        which: &str,
        windows: u64,
    ) -> Result<(), HtzError> {
        let Estimate {
            value,
            stderr,
            interval,
        } = *self;
        if !(value.is_finite() && is_possible(value)) {
            let expected = format!("a finite number, {which}");
            return Err(fault(format!("{name}.value"), expected, value));
        }
        if let Some(error) = stderr.filter(|error| !(error.is_finite() && *error >= 0.0)) {
            let expected = "a finite number, not negative";
            return Err(fault(format!("{name}.stderr"), expected, error));
        }
        if let Some((low, high)) = interval {
            let is_around = low.is_finite() && high.is_finite() && low <= value && value <= high;
            if !is_around {
                let expected = format!("two finite ends around {value}, the lower first");
                let found = format!("{low} to {high}");
                return Err(fault(format!("{name}.interval"), expected, found));
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
            return Err(fault(name, expected, found));
        }
        Ok(())
    }
}

fn fault(property: impl Display, expected: impl Display, found: impl Display) -> HtzError {
    HtzError::Quality {
        property: property.to_string(),
        expected: expected.to_string(),
        found: found.to_string(),
    }
}

/// Field by field, so that a fault is told with the field's name.
impl<'de> Deserialize<'de> for QualityRecord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let named = |error| D::Error::custom(format!("quality: {error}"));
        let json = Map::deserialize(deserializer).map_err(named)?;
        let fields = Fields {
            of: "quality".to_owned(),
            json: &json,
        };
        fields.record().map_err(D::Error::custom)
    }
}

/// The keys of an object.
struct Fields<'a> {
    /// What the object is called.
    of: String,
    json: &'a Map<String, Value>,
}

impl Fields<'_> {
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

    fn estimate(&self, key: &str) -> Result<Estimate, String> {
        let fields = Fields {
            of: format!("{}.{key}", self.of),
            json: &self.field(key)?,
        };
        Ok(Estimate {
            value: fields.field("value")?,
            stderr: fields.field("stderr")?,
            interval: fields.field("interval")?,
        })
    }

    /// A key's value; one that is missing is `null`.
    fn field<T: DeserializeOwned>(&self, key: &str) -> Result<T, String> {
        let value = self.json.get(key).cloned().unwrap_or_default();
        serde_json::from_value(value).map_err(|error| format!("{}.{key}: {error}", self.of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_record_is_longer_than_the_longest() {
        let length = |record: &QualityRecord| serde_json::to_vec(record).map(|text| text.len());
        let most = length(&QualityRecord::draft().longest()).unwrap();
        for number in [LONGEST_NUMBER, f64::MAX, 5e-324, 0.1 + 0.2] {
            let estimate = Estimate {
                value: number,
                stderr: Some(number),
                interval: Some((-number, -number)),
            };
            let record = QualityRecord {
                context: u64::MAX,
                windows: u64::MAX,
                tokens: u64::MAX,
                choosing_windows: u64::MAX,
                kl: estimate,
                perplexity_ratio: estimate,
                ..QualityRecord::draft()
            };
            assert!(length(&record).unwrap() <= most, "{number}");
        }
    }
}
