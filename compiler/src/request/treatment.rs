//! Treatment of weights besides ranks: error metric, exact parts, and bias correction.

use std::fmt;
use std::str::FromStr;

use htc_formats::DType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Method, Shrinkage, ShrinkageArg};

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
    /// All kinds.
    pub const ALL: [GaugeKind; 4] = [
        GaugeKind::None,
        GaugeKind::Axiom,
        GaugeKind::Activation,
        GaugeKind::Whiten,
    ];

    /// Returns the name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            GaugeKind::None => "none",
            GaugeKind::Axiom => "axiom",
            GaugeKind::Activation => "activation",
            GaugeKind::Whiten => "whiten",
        }
    }

    /// Returns true if its objective does not bound the model's output error, so only a measurement
    /// shows its benefit.
    pub const fn needs_measurement(self) -> bool {
        matches!(self, GaugeKind::Axiom)
    }

    const fn is_calibrated(self) -> bool {
        matches!(self, GaugeKind::Activation | GaugeKind::Whiten)
    }
}

impl fmt::Display for GaugeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for GaugeKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = GaugeKind::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| "a gauge is none, axiom, activation or whiten".to_owned())
    }
}

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
                "a sink is append, off, or channels:T with a whole number T of at least 1".into(),
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

impl BiasArg {
    /// All values.
    pub const ALL: [BiasArg; 3] = [BiasArg::Auto, BiasArg::On, BiasArg::Off];

    /// Returns the name on the command line and in plans.
    pub const fn name(self) -> &'static str {
        match self {
            BiasArg::Auto => "auto",
            BiasArg::On => "on",
            BiasArg::Off => "off",
        }
    }
}

impl fmt::Display for BiasArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for BiasArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = BiasArg::ALL.into_iter().find(|arg| arg.name() == text);
        found.ok_or_else(|| "a bias is auto, on or off".to_owned())
    }
}

/// Requested [`Treatment`] from the command line or a plan; the defaults depend on calibration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreatmentRequest {
    /// Error metric; by default `whiten` with a calibration, else `none`.
    pub gauge: Option<GaugeKind>,
    /// Sink protection; by default `append` with a calibration, else off.
    pub sink: Option<SinkProtection>,
    /// Bias correction; by default `auto` with a calibration, else off.
    pub bias: Option<BiasArg>,
    /// Shrinkage of the second moment for `whiten`; by default [`Shrinkage::default`].
    pub shrinkage: Option<ShrinkageArg>,
}

impl TreatmentRequest {
    /// Returns this request with missing values taken from `other`.
    #[must_use]
    pub fn or_else_from(self, other: TreatmentRequest) -> TreatmentRequest {
        TreatmentRequest {
            gauge: self.gauge.or(other.gauge),
            sink: self.sink.or(other.sink),
            bias: self.bias.or(other.bias),
            shrinkage: self.shrinkage.or(other.shrinkage),
        }
    }

    /// Returns the request for a method that stores codes, which have no treatment.
    ///
    /// # Errors
    /// [`TreatmentError::RequiresFactors`] if a treatment was requested.
    pub fn check_codes_only(self) -> Result<TreatmentRequest, TreatmentError> {
        let gauge = self.gauge.filter(|gauge| *gauge != GaugeKind::None);
        let sink = self.sink.filter(|sink| *sink != SinkProtection::Off);
        let options = [
            gauge.map(|gauge| format!("`gauge` {gauge}")),
            sink.map(|sink| format!("`sink` {sink}")),
            (self.bias == Some(BiasArg::On)).then(|| "`bias` on".to_owned()),
            self.shrinkage.map(|part| format!("`shrinkage` {part}")),
        ];
        match options.into_iter().flatten().next() {
            Some(option) => Err(TreatmentError::RequiresFactors { option }),
            None => Ok(TreatmentRequest {
                gauge: Some(GaugeKind::None),
                sink: Some(SinkProtection::Off),
                bias: Some(BiasArg::Off),
                shrinkage: None,
            }),
        }
    }

    /// Resolves defaults with or without calibration; `auto` is off here, for shrinkage the
    /// default.
    ///
    /// # Errors
    /// [`TreatmentError::NoCalibration`] if activations are required but missing,
    /// [`TreatmentError::Shrinkage`] if the gauge does not use it.
    pub fn resolve(self, calibrated: bool) -> Result<Treatment, TreatmentError> {
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
                return Err(TreatmentError::NoCalibration {
                    option: format!("`shrinkage` {shrinkage}"),
                    alternative: "leave it out",
                });
            }
            if treatment.gauge != GaugeKind::Whiten {
                let gauge = treatment.gauge;
                return Err(TreatmentError::Shrinkage { shrinkage, gauge });
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
            Some(at) if !calibrated => Err(TreatmentError::NoCalibration {
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

impl fmt::Display for TreatmentRequest {
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

as_typed!(GaugeKind, SinkProtection, BiasArg, ShrinkageArg);

#[derive(JsonSchema, Serialize, Deserialize)]
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

/// Error returned when a treatment is impossible. The message is one line.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum TreatmentError {
    /// The treatment requires activations.
    #[error("{option} is made from activations; give a text with `calibration`, or {alternative}")]
    NoCalibration {
        /// Requested option.
        option: String,
        /// Alternative without calibration.
        alternative: &'static str,
    },
    /// An option for factors with a method that makes none.
    #[error(
        "{option}: the method quantise decides on slots and types itself and makes no factors; leave it out, or take `method` gp or grc"
    )]
    RequiresFactors {
        /// Requested option.
        option: String,
    },
    /// An option for codes with a method that does not choose codes.
    #[error(
        "{option}: the method {} makes factors and chooses no codes; leave it out, or take `method` quantise", method.name()
    )]
    RequiresCodes {
        /// Requested option.
        option: String,
        /// Requested method.
        method: Method,
    },
    /// A shrinkage with a gauge that does not use it.
    #[error(
        "`shrinkage` {shrinkage}: gauge {gauge} has no second moment that could be shrunk; leave it out, or take `gauge` whiten"
    )]
    Shrinkage {
        /// Requested shrinkage.
        shrinkage: ShrinkageArg,
        /// Requested gauge.
        gauge: GaugeKind,
    },
    /// More exempt channels than ranks.
    #[error(
        "`sink` channels:{channels}: {unit} has rank {rank}, and every channel takes one; choose at most channels:{rank}, or more rank"
    )]
    Channels {
        /// Requested channels.
        channels: usize,
        /// Smallest rank of a unit that reads the residual stream.
        rank: usize,
        /// Name of that unit.
        unit: String,
    },
    /// The factor type of the plan cannot hold the channels exactly.
    #[error(
        "`sink` channels:{channels}: the plan stores the factors of {unit} in {stored}, which rounds them; exact they are in {exact}: make the plan with the same `sink`, or edit its types"
    )]
    ChannelType {
        /// Requested channels.
        channels: usize,
        /// Name of the unit.
        unit: String,
        /// Type of its factors that hold columns of the source.
        stored: DType,
        /// A type that holds them exactly.
        exact: DType,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_round_trip() {
        for kind in GaugeKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        for bias in BiasArg::ALL {
            assert_eq!(bias.name().parse(), Ok(bias));
        }
        for sink in ["off", "append", "channels:1", "channels:32"] {
            let parsed: SinkProtection = sink.parse().unwrap();
            assert_eq!(parsed.to_string(), sink);
        }
        for sink in [
            "",
            "on",
            "channels",
            "channels:",
            "channels:0",
            "channels:-1",
        ] {
            assert!(sink.parse::<SinkProtection>().is_err(), "{sink}");
        }
    }

    #[test]
    fn defaults_depend_on_the_calibration() {
        assert_eq!(
            TreatmentRequest::default().resolve(false),
            Ok(Treatment::default())
        );
        let calibrated = TreatmentRequest::default().resolve(true).unwrap();
        assert_eq!(
            calibrated.to_string(),
            "gauge whiten, sink append, bias off"
        );
        let asked = TreatmentRequest {
            gauge: Some(GaugeKind::Axiom),
            sink: Some(SinkProtection::Channels(8)),
            bias: Some(BiasArg::Auto),
            shrinkage: None,
        };
        let found = asked.resolve(false).unwrap();
        assert_eq!(found.to_string(), "gauge axiom, sink channels:8, bias off");
        assert_eq!(
            asked.to_string(),
            "--gauge axiom --sink channels:8 --bias auto"
        );
    }

    #[test]
    fn options_that_need_activations_require_calibration() {
        let nothing = TreatmentRequest::default();
        let gauge = |gauge| TreatmentRequest {
            gauge: Some(gauge),
            ..nothing
        };
        for (asked, option) in [
            (gauge(GaugeKind::Whiten), "`gauge` whiten"),
            (gauge(GaugeKind::Activation), "`gauge` activation"),
            (
                TreatmentRequest {
                    sink: Some(SinkProtection::Append),
                    ..nothing
                },
                "`sink` append",
            ),
            (
                TreatmentRequest {
                    bias: Some(BiasArg::On),
                    ..nothing
                },
                "`bias` on",
            ),
        ] {
            let error = asked.resolve(false).unwrap_err().to_string();
            assert!(error.starts_with(option), "{error}");
            assert!(error.contains("`calibration`"), "{error}");
            assert!(asked.resolve(true).is_ok());
        }
        assert!(gauge(GaugeKind::Axiom).resolve(false).is_ok());
    }

    #[test]
    fn shrinkage_requires_whiten() {
        let part = ShrinkageArg::Fixed(Shrinkage::new(0.1).unwrap());
        let shrunk = |gauge| TreatmentRequest {
            gauge,
            shrinkage: Some(part),
            ..TreatmentRequest::default()
        };
        let found = shrunk(None).resolve(true).unwrap();
        assert!(found.to_string().ends_with(", shrinkage 0.1"), "{found}");
        assert_eq!(found.applied_shrinkage(), Shrinkage::new(0.1));
        for gauge in [GaugeKind::None, GaugeKind::Activation] {
            let error = shrunk(Some(gauge)).resolve(true).unwrap_err().to_string();
            assert!(error.contains("`gauge` whiten"), "{error}");
            assert_eq!(Treatment::with_gauge(gauge).applied_shrinkage(), None);
        }
        let error = shrunk(None).resolve(false).unwrap_err().to_string();
        assert!(error.contains("`calibration`"), "{error}");
    }

    #[test]
    fn flags_override_the_plan() {
        let flags = TreatmentRequest {
            gauge: Some(GaugeKind::None),
            ..TreatmentRequest::default()
        };
        let plan = TreatmentRequest {
            gauge: Some(GaugeKind::Axiom),
            bias: Some(BiasArg::Off),
            ..TreatmentRequest::default()
        };
        let both = flags.or_else_from(plan);
        assert_eq!(both.gauge, Some(GaugeKind::None));
        assert_eq!(both.bias, Some(BiasArg::Off));
        assert_eq!(both.sink, None);
    }
}
