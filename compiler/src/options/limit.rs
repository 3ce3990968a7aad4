//! Limits on the quality, which are reached by measuring.

use std::fmt;

#[cfg(feature = "cli")]
use super::Budget;
#[cfg(feature = "cli")]
use super::flags::{self, heading};

/// Maximum loss of the artifact.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    schemars::JsonSchema,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(deny_unknown_fields)]
pub struct QualityLimit {
    /// Maximum perplexity relative to the source's, minus 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perplexity_increase: Option<f64>,
    /// Maximum KL divergence from the source, nats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl: Option<f64>,
}

impl QualityLimit {
    /// Returns true if no limit is set.
    pub fn is_none(self) -> bool {
        self == QualityLimit::default()
    }

    /// Formats the limit for errors, as the builder's methods in backticks.
    pub(crate) fn as_builder_call(self) -> String {
        let increase = self.perplexity_increase.map(|increase| {
            let percent = 100.0 * increase;
            format!("`max_perplexity_increase` {percent} %")
        });
        let kl = self.kl.map(|kl| format!("`max_kl` {kl}"));
        let asked: Vec<String> = increase.into_iter().chain(kl).collect();
        asked.join(" and ")
    }
}

impl fmt::Display for QualityLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut space = "";
        if let Some(increase) = self.perplexity_increase {
            write!(f, "--max-perplexity-increase {}", 100.0 * increase)?;
            space = " ";
        }
        match self.kl {
            Some(kl) => write!(f, "{space}--max-kl {kl}"),
            None => Ok(()),
        }
    }
}

/// Named limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QualityPreset {
    /// A KL divergence of at most 0.001 nats.
    NearLossless,
    /// A perplexity of at most 1 % above the source's.
    #[default]
    Balanced,
    /// A perplexity of at most 5 % above the source's.
    Small,
}

impl QualityPreset {
    /// Returns the limit, which applies to the upper end of the 95 % interval.
    pub const fn limit(self) -> QualityLimit {
        let (perplexity_increase, kl) = match self {
            QualityPreset::NearLossless => (None, Some(0.001)),
            QualityPreset::Balanced => (Some(0.01), None),
            QualityPreset::Small => (Some(0.05), None),
        };
        QualityLimit {
            perplexity_increase,
            kl,
        }
    }
}

named!(
    QualityPreset, "near-lossless, balanced or small",
    NearLossless: "near-lossless", Balanced: "balanced", Small: "small",
);

/// Limits on the loss of the artifact. If one is set, the smallest artifact within it is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "cli", derive(clap::Args), command(next_help_heading = heading::SIZE))]
pub struct LimitOptions {
    /// The smallest within a limit: near-lossless, balanced, small [default: balanced]
    ///
    /// near-lossless: a KL divergence of 0.001 nats; balanced: 1 % of perplexity; small: 5 %. The
    /// upper end of the 95 % interval counts.
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            value_name = "NAME",
            conflicts_with_all = Budget::IDS,
            conflicts_with_all = ["max_perplexity_increase", "max_kl"]
        )
    )]
    pub preset: Option<QualityPreset>,
    /// Find the smallest artifact whose perplexity exceeds the source's by at most PERCENT
    ///
    /// Measured over all positions of the validation split; the upper end of the 95 % interval
    /// counts. Text that the source itself would write counts as well: there the increase is the
    /// exponential of the KL divergence.
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            value_name = "PERCENT",
            hide_short_help = true,
            value_parser = flags::parse_percent,
            allow_negative_numbers = true,
            conflicts_with_all = Budget::IDS
        )
    )]
    pub max_perplexity_increase: Option<f64>,
    /// Find the smallest artifact whose KL divergence from the source on held-out text is at most
    /// NATS
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            value_name = "NATS",
            hide_short_help = true,
            value_parser = flags::parse_positive,
            allow_negative_numbers = true,
            conflicts_with_all = Budget::IDS
        )
    )]
    pub max_kl: Option<f64>,
}

impl LimitOptions {
    /// Returns the limit: that of the preset, with values that are set in its place.
    pub fn limit(&self) -> QualityLimit {
        let preset = self
            .preset
            .map_or(QualityLimit::default(), QualityPreset::limit);
        QualityLimit {
            perplexity_increase: self.max_perplexity_increase.or(preset.perplexity_increase),
            kl: self.max_kl.or(preset.kl),
        }
    }

    /// Returns the first option that is set.
    pub fn first_given(&self) -> Option<&'static str> {
        super::first_given([
            ("`preset`", self.preset.is_some()),
            (
                "`max_perplexity_increase`",
                self.max_perplexity_increase.is_some(),
            ),
            ("`max_kl`", self.max_kl.is_some()),
        ])
    }
}

#[cfg(test)]
mod tests;
