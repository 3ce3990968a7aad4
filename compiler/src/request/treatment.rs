//! How weights are treated beyond the choice of ranks: which errors count, what stays exact, and
//! whether a bias puts back what is lost on the mean input.

use std::fmt;
use std::str::FromStr;

use htc_formats::DType;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Shrinkage, ShrinkageArg};

/// A kind of gauge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum GaugeKind {
    /// Every error of the weight counts the same.
    #[default]
    None,
    /// By a factor per channel of the residual stream that lets a layer's slots truncate best; found
    /// from the weights alone, see [`axiom_gauge`](crate::math::axiom_gauge).
    Axiom,
    /// By the root mean square of each input channel.
    Activation,
    /// By the second moment of the input: the error of the output counts.
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

    /// The name used on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            GaugeKind::None => "none",
            GaugeKind::Axiom => "axiom",
            GaugeKind::Activation => "activation",
            GaugeKind::Whiten => "whiten",
        }
    }

    /// Whether what it minimises says nothing of the model's output, so that only measuring shows what
    /// it is worth.
    pub const fn is_unproven(self) -> bool {
        matches!(self, GaugeKind::Axiom)
    }

    /// Whether it is made from activations.
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

/// What the factors of the slots that read the residual stream (Q, K, V, gate, up) must not lose.
/// What O and down read has no sink of its own, and they are left as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SinkProtection {
    /// Nothing in particular.
    #[default]
    Off,
    /// The mean input at the first position of a sequence, where attention sinks: factors that
    /// [cover](crate::math::Coverage) less of it than [random ones](crate::math::random_coverage) of their rank
    /// would give up a component for it, which is their first.
    Append,
    /// So many input channels: those of largest `E[x_i²]` with a calibration, else those whose
    /// columns have the largest norm. They take as many of the ranks.
    Channels(usize),
}

/// As it is typed.
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

/// Whether biases correct what is lost on the mean input, as it is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BiasArg {
    /// Where that is known to help.
    #[default]
    Auto,
    /// In every slot that is factorised.
    On,
    /// Nowhere.
    Off,
}

impl BiasArg {
    /// All of them.
    pub const ALL: [BiasArg; 3] = [BiasArg::Auto, BiasArg::On, BiasArg::Off];

    /// The name used on the command line and in plans.
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

/// What is asked for of a [`Treatment`], on the command line or by a plan; what is not asked for has a
/// default that depends on whether there is a calibration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreatmentRequest {
    /// Which errors count; by default `whiten` with a calibration, else `none`.
    pub gauge: Option<GaugeKind>,
    /// What stays exact; by default `append` with a calibration, else nothing.
    pub sink: Option<SinkProtection>,
    /// Whether biases correct; by default `auto` with a calibration, else not.
    pub bias: Option<BiasArg>,
    /// How far the second moment of `whiten` is shrunk; by default [`Shrinkage::default`].
    pub shrinkage: Option<ShrinkageArg>,
}

impl TreatmentRequest {
    /// This, and what `other` asks for where this is silent.
    #[must_use]
    pub fn or(self, other: TreatmentRequest) -> TreatmentRequest {
        TreatmentRequest {
            gauge: self.gauge.or(other.gauge),
            sink: self.sink.or(other.sink),
            bias: self.bias.or(other.bias),
            shrinkage: self.shrinkage.or(other.shrinkage),
        }
    }

    /// The same for a method that stores codes, which nothing is treated beside; what is asked for otherwise is
    /// refused.
    ///
    /// # Errors
    /// [`TreatmentError::OfFactors`].
    pub fn of_codes(self) -> Result<TreatmentRequest, TreatmentError> {
        let gauge = self.gauge.filter(|gauge| *gauge != GaugeKind::None);
        let sink = self.sink.filter(|sink| *sink != SinkProtection::Off);
        let options = [
            gauge.map(|gauge| format!("`gauge` {gauge}")),
            sink.map(|sink| format!("`sink` {sink}")),
            (self.bias == Some(BiasArg::On)).then(|| "`bias` on".to_owned()),
            self.shrinkage.map(|part| format!("`shrinkage` {part}")),
        ];
        match options.into_iter().flatten().next() {
            Some(option) => Err(TreatmentError::OfFactors { option }),
            None => Ok(TreatmentRequest {
                gauge: Some(GaugeKind::None),
                sink: Some(SinkProtection::Off),
                bias: Some(BiasArg::Off),
                shrinkage: None,
            }),
        }
    }

    /// What that means with a calibration or without; `auto` is off here, and of a shrinkage the default.
    ///
    /// # Errors
    /// [`TreatmentError::NoCalibration`] where what is asked for is made from activations and there
    /// are none, [`TreatmentError::Shrinkage`] where the gauge does not shrink anything.
    pub fn resolve(self, calibrated: bool) -> Result<Treatment, TreatmentError> {
        let by_default = match calibrated {
            true => Treatment {
                gauge: GaugeKind::Whiten,
                sink: SinkProtection::Append,
                ..Treatment::default()
            },
            false => Treatment::default(),
        };
        let treatment = Treatment {
            gauge: self.gauge.unwrap_or(by_default.gauge),
            sink: self.sink.unwrap_or(by_default.sink),
            bias: self.bias == Some(BiasArg::On),
            shrinkage: match self.shrinkage {
                Some(ShrinkageArg::Part(part)) => part,
                Some(ShrinkageArg::Auto) | None => Shrinkage::default(),
            },
        };
        if let Some(shrinkage) = self.shrinkage {
            if !calibrated {
                return Err(TreatmentError::NoCalibration {
                    option: format!("`shrinkage` {shrinkage}"),
                    other: "leave it out",
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
                other: needed[at].1,
            }),
            _ => Ok(treatment),
        }
    }
}

/// As it is typed.
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

/// How weights are treated beyond the choice of ranks. The default changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "TreatmentRecord", into = "TreatmentRecord")]
pub struct Treatment {
    /// Which errors count.
    pub gauge: GaugeKind,
    /// What stays exact.
    pub sink: SinkProtection,
    /// Whether every factorised slot gets a bias `(W − Ŵ) E[x]`, added to its own where it has one.
    pub bias: bool,
    /// How far the second moment of `whiten` is shrunk; other gauges have none.
    pub shrinkage: Shrinkage,
}

impl Treatment {
    /// With this gauge and nothing else.
    pub fn with_gauge(gauge: GaugeKind) -> Treatment {
        Treatment {
            gauge,
            ..Treatment::default()
        }
    }

    /// The shrinkage, where the gauge has one.
    pub fn shrinks(self) -> Option<Shrinkage> {
        (self.gauge == GaugeKind::Whiten).then_some(self.shrinkage)
    }
}

/// One line for reports.
impl fmt::Display for Treatment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bias = if self.bias { "on" } else { "off" };
        write!(f, "gauge {}, sink {}, bias {bias}", self.gauge, self.sink)?;
        match self.shrinks() {
            Some(part) if part != Shrinkage::default() => write!(f, ", shrinkage {part}"),
            _ => Ok(()),
        }
    }
}

as_typed!(GaugeKind, SinkProtection, BiasArg, ShrinkageArg);

/// A [`Treatment`] as it stands in reports.
#[derive(Serialize, Deserialize)]
struct TreatmentRecord {
    gauge: GaugeKind,
    sink: SinkProtection,
    bias: bool,
    /// Absent where the gauge shrinks nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shrinkage: Option<f64>,
}

impl From<Treatment> for TreatmentRecord {
    fn from(treatment: Treatment) -> Self {
        TreatmentRecord {
            gauge: treatment.gauge,
            sink: treatment.sink,
            bias: treatment.bias,
            shrinkage: treatment.shrinks().map(Shrinkage::part),
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

/// Why weights cannot be treated so. The message is one line.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum TreatmentError {
    /// It is made from activations, and there are none.
    #[error("{option} is made from activations; give a text with `calibration`, or {other}")]
    NoCalibration {
        /// What was asked for.
        option: String,
        /// What can be asked for without.
        other: &'static str,
    },
    /// It is about factors, or about what the method decides itself.
    #[error(
        "{option}: the method quantise decides on slots and types itself and makes no factors; leave it out, or take `method` gp or grc"
    )]
    OfFactors {
        /// What was asked for.
        option: String,
    },
    /// The gauge has nothing to shrink.
    #[error(
        "`shrinkage` {shrinkage}: gauge {gauge} has no second moment that could be shrunk; leave it out, or take `gauge` whiten"
    )]
    Shrinkage {
        /// What was asked for.
        shrinkage: ShrinkageArg,
        /// The gauge.
        gauge: GaugeKind,
    },
    /// The exact channels need more ranks than there are.
    #[error(
        "`sink` channels:{channels}: {unit} has rank {rank}, and every channel takes one; choose at most channels:{rank}, or more rank"
    )]
    Channels {
        /// Channels asked for.
        channels: usize,
        /// The smallest rank of a unit that reads the residual stream.
        rank: usize,
        /// That unit.
        unit: String,
    },
    /// The exact channels would not be exact in the type of a plan's factors.
    #[error(
        "`sink` channels:{channels}: the plan stores the factors of {unit} in {stored}, which rounds them; exact they are in {exact}: make the plan with the same `sink`, or edit its types"
    )]
    ChannelType {
        /// Channels asked for.
        channels: usize,
        /// The unit.
        unit: String,
        /// The type of its factors that hold columns of the source.
        stored: DType,
        /// One in which those are exact.
        exact: DType,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_is_what_is_shown() {
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
    fn what_needs_activations_is_refused_without() {
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
    fn a_shrinkage_belongs_to_whiten() {
        let part = ShrinkageArg::Part(Shrinkage::new(0.1).unwrap());
        let shrunk = |gauge| TreatmentRequest {
            gauge,
            shrinkage: Some(part),
            ..TreatmentRequest::default()
        };
        let found = shrunk(None).resolve(true).unwrap();
        assert!(found.to_string().ends_with(", shrinkage 0.1"), "{found}");
        assert_eq!(found.shrinks(), Shrinkage::new(0.1));
        for gauge in [GaugeKind::None, GaugeKind::Activation] {
            let error = shrunk(Some(gauge)).resolve(true).unwrap_err().to_string();
            assert!(error.contains("`gauge` whiten"), "{error}");
            assert_eq!(Treatment::with_gauge(gauge).shrinks(), None);
        }
        let error = shrunk(None).resolve(false).unwrap_err().to_string();
        assert!(error.contains("`calibration`"), "{error}");
    }

    #[test]
    fn flags_go_before_the_plan() {
        let flags = TreatmentRequest {
            gauge: Some(GaugeKind::None),
            ..TreatmentRequest::default()
        };
        let plan = TreatmentRequest {
            gauge: Some(GaugeKind::Axiom),
            bias: Some(BiasArg::Off),
            ..TreatmentRequest::default()
        };
        let both = flags.or(plan);
        assert_eq!(both.gauge, Some(GaugeKind::None));
        assert_eq!(both.bias, Some(BiasArg::Off));
        assert_eq!(both.sink, None);
    }
}
