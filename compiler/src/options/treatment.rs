//! Treatment of weights besides ranks: error metric, exact parts, and bias correction.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{OptionError, Shrinkage, ShrinkageArg};

/// Error metric of the weights (gauge).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum GaugeKind {
    /// Plain error of the weights.
    #[default]
    None,
    /// Scales residual stream channels such that the projections of a layer truncate best; computed
    /// from the weights alone, see [`axiom_gauge`](crate::math::axiom_gauge).
    Axiom,
    /// Scales by the root mean square of each input channel.
    Activation,
    /// Error of the outputs, by the second moment of the input.
    Whiten,
}

impl GaugeKind {
    /// Returns true if its objective does not bound the model's output error, so only a measurement
    /// shows its benefit.
    pub const fn needs_measurement(self) -> bool {
        matches!(self, GaugeKind::Axiom)
    }

    const fn is_calibrated(self) -> bool {
        matches!(self, GaugeKind::Activation | GaugeKind::Whiten)
    }
}

named!(
    GaugeKind, "none, axiom, activation or whiten",
    None: "none", Axiom: "axiom", Activation: "activation", Whiten: "whiten",
);

/// Protected part of the factors of projections that read the residual stream (Q, K, V, gate, up).
/// Inputs of O and down have no sink; those projections are unaffected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SinkProtection {
    /// No protection.
    #[default]
    Off,
    /// Protects the mean input at the first position, the attention sink: factors that
    /// [cover](crate::math::Coverage) less of it than [random ones](crate::math::random_coverage)
    /// of their rank replace a component with it, their first.
    Append,
    /// Keeps this number of input channels exact: those with the largest `E[x_i²]` with a
    /// calibration, else those with the largest column norms. Each uses one rank.
    Channels(usize),
}

impl fmt::Display for SinkProtection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SinkProtection::Off => f.write_str("off"),
            SinkProtection::Append => f.write_str("append"),
            SinkProtection::Channels(count) => write!(f, "channels:{count}"),
        }
    }
}

impl FromStr for SinkProtection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let count = text.strip_prefix("channels:").map(str::parse);
        match (text, count) {
            ("off", _) => Ok(SinkProtection::Off),
            ("append", _) => Ok(SinkProtection::Append),
            (_, Some(Ok(count))) if count >= 1 => Ok(SinkProtection::Channels(count)),
            _ => Err(
                "expected append, off, or channels:T with a whole number T of at least 1".into(),
            ),
        }
    }
}

/// Requested bias correction of the loss on the mean input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BiasArg {
    /// Used if it is known to help.
    #[default]
    Auto,
    /// In every factorised projection.
    On,
    /// Unused.
    Off,
}

named!(BiasArg, "auto, on or off", Auto: "auto", On: "on", Off: "off");

/// Requested [`Treatment`] of weights; the defaults depend on calibration.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, schemars::JsonSchema, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "cli", derive(clap::Args), command(next_help_heading = super::heading::RESEARCH))]
pub struct TreatmentOptions {
    /// Error metric of factors: none, all weights alike; axiom, in coordinates in which the weights
    /// truncate best; activation, by the magnitude of each input channel; whiten, error of the
    /// outputs [default: with --calibration the one that measures best on held-out text, else none]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, hide_short_help = true, value_name = "G"))]
    pub gauge: Option<GaugeKind>,
    /// Part that the factors of q, k, v, gate and up must preserve: append, the direction of a
    /// sequence's first position; channels:T, the T strongest input channels [default: append with
    /// --calibration, else off]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "cli",
        arg(long, hide_short_help = true, value_name = "append|channels:T|off")
    )]
    pub sink: Option<SinkProtection>,
    /// Compensate the loss of factors on the mean input with biases; auto, where that measures
    /// better on held-out text [default: auto with --calibration, else off]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "cli",
        arg(long, hide_short_help = true, value_name = "auto|on|off")
    )]
    pub bias: Option<BiasArg>,
    /// Shrinkage of the second moment of whiten towards the identity, from 0 to 1; auto, the value
    /// that measures best on held-out text, of the second text if there are several [default: 0.01]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            hide_short_help = true,
            value_name = "auto|S",
            allow_negative_numbers = true
        )
    )]
    pub shrinkage: Option<ShrinkageArg>,
    /// Keep --gauge axiom even if it measures worse than none
    #[serde(skip)]
    #[cfg_attr(feature = "cli", arg(long, hide_short_help = true, requires = "gauge"))]
    pub keep_gauge: bool,
}

impl TreatmentOptions {
    /// Returns this request with missing values taken from `other`.
    #[must_use]
    pub fn or_else_from(self, other: TreatmentOptions) -> TreatmentOptions {
        TreatmentOptions {
            gauge: self.gauge.or(other.gauge),
            sink: self.sink.or(other.sink),
            bias: self.bias.or(other.bias),
            shrinkage: self.shrinkage.or(other.shrinkage),
            keep_gauge: self.keep_gauge || other.keep_gauge,
        }
    }

    /// Returns the first option that only factors have, with its value. Options that are off are
    /// valid without factors.
    pub(super) fn first_factor_option(&self) -> Option<(&'static str, String)> {
        let gauge = self.gauge.filter(|gauge| *gauge != GaugeKind::None);
        let sink = self.sink.filter(|sink| *sink != SinkProtection::Off);
        let bias = self.bias.filter(|bias| *bias == BiasArg::On);
        let options = [
            ("gauge", gauge.map(|gauge| gauge.to_string())),
            ("sink", sink.map(|sink| sink.to_string())),
            ("bias", bias.map(|bias| bias.to_string())),
            ("shrinkage", self.shrinkage.map(|part| part.to_string())),
        ];
        let mut options = options.into_iter();
        options.find_map(|(name, value)| Some((name, value?)))
    }

    /// Returns the treatment for a method that stores codes, which has none.
    ///
    /// # Errors
    /// [`OptionError::RequiresFactors`] if a treatment was requested.
    pub fn check_codes_only(self) -> Result<TreatmentOptions, OptionError> {
        match self.first_factor_option() {
            Some((name, value)) => Err(OptionError::RequiresFactors {
                option: format!("`{name}` {value}"),
            }),
            None => Ok(TreatmentOptions {
                gauge: Some(GaugeKind::None),
                sink: Some(SinkProtection::Off),
                bias: Some(BiasArg::Off),
                ..TreatmentOptions::default()
            }),
        }
    }

    /// Resolves defaults with or without calibration; `auto` is off here, for shrinkage the
    /// default.
    ///
    /// # Errors
    /// [`OptionError::NoCalibration`] if activations are required but missing,
    /// [`OptionError::Shrinkage`] if the gauge does not use it.
    pub fn resolve(self, calibrated: bool) -> Result<Treatment, OptionError> {
        let by_default = if calibrated {
            Treatment {
                gauge: GaugeKind::Whiten,
                sink: SinkProtection::Append,
                ..Treatment::default()
            }
        } else {
            Treatment::default()
        };
        let treatment = Treatment {
            gauge: self.gauge.unwrap_or(by_default.gauge),
            sink: self.sink.unwrap_or(by_default.sink),
            bias: self.bias == Some(BiasArg::On),
            shrinkage: match self.shrinkage {
                Some(ShrinkageArg::Fixed(part)) => part,
                Some(ShrinkageArg::Auto) | None => Shrinkage::default(),
            },
        };
        if let Some(shrinkage) = self.shrinkage {
            if !calibrated {
                return Err(OptionError::NoCalibration {
                    option: format!("`shrinkage` {shrinkage}"),
                    alternative: "leave it out",
                });
            }
            if treatment.gauge != GaugeKind::Whiten {
                let gauge = treatment.gauge;
                return Err(OptionError::Shrinkage { shrinkage, gauge });
            }
        }
        let needed = [
            (treatment.gauge.is_calibrated(), "`gauge` none or axiom"),
            (
                treatment.sink == SinkProtection::Append,
                "`sink` off or channels:T",
            ),
            (treatment.bias, "`bias` off"),
        ];
        match needed.into_iter().position(|(needs, _)| needs) {
            Some(at) if !calibrated => Err(OptionError::NoCalibration {
                option: match at {
                    0 => format!("`gauge` {}", treatment.gauge),
                    1 => format!("`sink` {}", treatment.sink),
                    _ => "`bias` on".to_owned(),
                },
                alternative: needed[at].1,
            }),
            _ => Ok(treatment),
        }
    }
}

impl fmt::Display for TreatmentOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.gauge.map(|gauge| format!("--gauge {gauge}")),
            self.sink.map(|sink| format!("--sink {sink}")),
            self.bias.map(|bias| format!("--bias {bias}")),
            self.shrinkage.map(|part| format!("--shrinkage {part}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        f.write_str(&parts.join(" "))
    }
}

/// Resolved treatment of weights. The default changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(try_from = "TreatmentRecord", into = "TreatmentRecord")]
pub struct Treatment {
    /// Error metric.
    pub gauge: GaugeKind,
    /// Sink protection.
    pub sink: SinkProtection,
    /// Adds a bias `(W − Ŵ) E[x]` to every factorised projection, on top of any existing one.
    pub bias: bool,
    /// Shrinkage of the second moment for `whiten`; unused by other gauges.
    pub shrinkage: Shrinkage,
}

impl Treatment {
    /// Returns a treatment with this gauge alone.
    pub fn with_gauge(gauge: GaugeKind) -> Treatment {
        Treatment {
            gauge,
            ..Treatment::default()
        }
    }

    /// Returns the shrinkage if the gauge uses it.
    pub fn applied_shrinkage(self) -> Option<Shrinkage> {
        (self.gauge == GaugeKind::Whiten).then_some(self.shrinkage)
    }
}

/// The options that resolve to a treatment.
impl From<Treatment> for TreatmentOptions {
    fn from(treatment: Treatment) -> Self {
        TreatmentOptions {
            gauge: Some(treatment.gauge),
            sink: Some(treatment.sink),
            bias: Some(if treatment.bias {
                BiasArg::On
            } else {
                BiasArg::Off
            }),
            shrinkage: treatment.applied_shrinkage().map(ShrinkageArg::Fixed),
            ..TreatmentOptions::default()
        }
    }
}

impl fmt::Display for Treatment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bias = if self.bias { "on" } else { "off" };
        write!(f, "gauge {}, sink {}, bias {bias}", self.gauge, self.sink)?;
        match self.applied_shrinkage() {
            Some(part) if part != Shrinkage::default() => write!(f, ", shrinkage {part}"),
            _ => Ok(()),
        }
    }
}

serde_as_text!(SinkProtection, ShrinkageArg);

#[derive(JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TreatmentRecord {
    gauge: GaugeKind,
    sink: SinkProtection,
    bias: bool,
    /// Absent if the gauge does not use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shrinkage: Option<f64>,
}

impl From<Treatment> for TreatmentRecord {
    fn from(treatment: Treatment) -> Self {
        TreatmentRecord {
            gauge: treatment.gauge,
            sink: treatment.sink,
            bias: treatment.bias,
            shrinkage: treatment.applied_shrinkage().map(Shrinkage::value),
        }
    }
}

impl TryFrom<TreatmentRecord> for Treatment {
    type Error = &'static str;

    fn try_from(record: TreatmentRecord) -> Result<Self, Self::Error> {
        let shrinkage = match record.shrinkage {
            Some(part) => Shrinkage::new(part).ok_or("a shrinkage is a number from 0 to 1")?,
            None => Shrinkage::default(),
        };
        Ok(Treatment {
            gauge: record.gauge,
            sink: record.sink,
            bias: record.bias,
            shrinkage,
        })
    }
}

#[cfg(test)]
mod tests;
