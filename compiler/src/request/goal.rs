//! Quality goals that are reached by measuring.

use std::fmt;
use std::str::FromStr;

use super::{CompareArg, Effort, Method, PlanOptions};

/// Maximum loss of the artifact.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QualityLimit {
    /// Maximum perplexity relative to the source's, minus 1.
    pub perplexity_increase: Option<f64>,
    /// Maximum KL divergence from the source, nats.
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
    /// All presets.
    pub const ALL: [QualityPreset; 3] = [
        QualityPreset::NearLossless,
        QualityPreset::Balanced,
        QualityPreset::Small,
    ];

    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            QualityPreset::NearLossless => "near-lossless",
            QualityPreset::Balanced => "balanced",
            QualityPreset::Small => "small",
        }
    }

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

impl FromStr for QualityPreset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = QualityPreset::ALL
            .into_iter()
            .find(|preset| preset.name() == text);
        known.ok_or_else(|| "a preset is near-lossless, balanced or small".to_owned())
    }
}

pub(super) const COMPARISON_FILES: usize = 2;

/// Goals that are reached by measuring.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct QualityGoal {
    /// Maximum loss; if set, the smallest artifact within it is chosen.
    pub limit: QualityLimit,
    /// Keeps a requested gauge even if it measures worse than none.
    pub keep_gauge: bool,
    /// Tuning steps for norms and row scales of the whole artifact; see [`QualityGoal::tune_steps`].
    pub tune: Option<usize>,
    /// Comparison with single-type files; see [`QualityGoal::max_comparison_files`].
    pub compare: Option<CompareArg>,
}

impl QualityGoal {
    /// Returns the tuning steps for norms and row scales: as requested, else those of the effort
    /// with codes and 0 with factors.
    pub fn tune_steps(&self, method: Method, effort: Effort) -> usize {
        self.tune.unwrap_or(match method {
            Method::Quantise => effort.settings().tune_steps,
            Method::PerProjection | Method::SharedBasis => 0,
        })
    }

    /// Returns the maximum number of single-type files for comparison: with codes that of the
    /// effort unless switched off, with factors 0.
    pub fn max_comparison_files(&self, method: Method, effort: Effort) -> usize {
        match (method, self.compare) {
            (Method::PerProjection | Method::SharedBasis, _) | (_, Some(CompareArg::Off)) => 0,
            (Method::Quantise, None) => effort.settings().max_comparison_files,
            (Method::Quantise, Some(CompareArg::On)) => {
                effort.settings().max_comparison_files.max(COMPARISON_FILES)
            }
        }
    }

    /// Returns this goal, or the [balanced preset](QualityPreset::Balanced) if the method allocates file
    /// bytes and neither a budget nor a limit is set.
    #[must_use]
    pub fn with_default_preset(self, wishes: &PlanOptions) -> QualityGoal {
        let silent = self.limit.is_none() && wishes.budget.is_none();
        match wishes.method() {
            Method::Quantise if silent => QualityGoal {
                limit: QualityPreset::default().limit(),
                ..self
            },
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_limits_by_builder_method() {
        let mut limit = QualityLimit {
            perplexity_increase: Some(0.01),
            kl: None,
        };
        assert_eq!(limit.as_builder_call(), "`max_perplexity_increase` 1 %");
        limit.kl = Some(0.5);
        assert_eq!(
            limit.as_builder_call(),
            "`max_perplexity_increase` 1 % and `max_kl` 0.5"
        );
        assert_eq!(
            limit.to_string(),
            "--max-perplexity-increase 1 --max-kl 0.5"
        );
    }
}
