//! Quality goals that are reached by measuring.

use std::fmt;
use std::str::FromStr;

use super::{CompareArg, Effort, Method, Wishes};

/// Maximum loss of the artifact.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limit {
    /// Maximum perplexity relative to the source's, minus 1.
    pub perplexity_increase: Option<f64>,
    /// Maximum KL divergence from the source, nats.
    pub kl: Option<f64>,
}

impl Limit {
    /// Returns true if no limit is set.
    pub fn is_none(self) -> bool {
        self == Limit::default()
    }

    /// Formats the limit for errors, as the builder's methods in backticks.
    pub(crate) fn asked(self) -> String {
        let increase = self.perplexity_increase.map(|increase| {
            let percent = 100.0 * increase;
            format!("`max_perplexity_increase` {percent} %")
        });
        let kl = self.kl.map(|kl| format!("`max_kl` {kl}"));
        let asked: Vec<String> = increase.into_iter().chain(kl).collect();
        asked.join(" and ")
    }
}

impl fmt::Display for Limit {
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
pub enum Preset {
    /// A KL divergence of at most 0.001 nats.
    NearLossless,
    /// A perplexity of at most 1 % above the source's.
    #[default]
    Balanced,
    /// A perplexity of at most 5 % above the source's.
    Small,
}

impl Preset {
    /// All presets.
    pub const ALL: [Preset; 3] = [Preset::NearLossless, Preset::Balanced, Preset::Small];

    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Preset::NearLossless => "near-lossless",
            Preset::Balanced => "balanced",
            Preset::Small => "small",
        }
    }

    /// Returns the limit, which applies to the upper end of the 95 % interval.
    pub const fn limit(self) -> Limit {
        let (perplexity_increase, kl) = match self {
            Preset::NearLossless => (None, Some(0.001)),
            Preset::Balanced => (Some(0.01), None),
            Preset::Small => (Some(0.05), None),
        };
        Limit {
            perplexity_increase,
            kl,
        }
    }
}

impl FromStr for Preset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Preset::ALL.into_iter().find(|preset| preset.name() == text);
        known.ok_or_else(|| "a preset is near-lossless, balanced or small".to_owned())
    }
}

pub(super) const NEIGHBOURS: usize = 2;

/// Goals that are reached by measuring.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Goal {
    /// Maximum loss; if set, the smallest artifact within it is chosen.
    pub limit: Limit,
    /// Keeps a requested gauge even if it measures worse than none.
    pub keep_gauge: bool,
    /// Tuning steps for norms and row scales of the whole artifact; see [`Goal::tune_steps`].
    pub tune: Option<usize>,
    /// Comparison with single-type files; see [`Goal::compared`].
    pub compare: Option<CompareArg>,
}

impl Goal {
    /// Returns the tuning steps for norms and row scales: as requested, else those of the effort
    /// with codes and 0 with factors.
    pub fn tune_steps(&self, method: Method, effort: Effort) -> usize {
        self.tune.unwrap_or(match method {
            Method::Quantise => effort.work().tune_steps,
            Method::PerSlot | Method::SharedBasis => 0,
        })
    }

    /// Returns the maximum number of single-type files for comparison: with codes that of the
    /// effort unless switched off, with factors 0.
    pub fn compared(&self, method: Method, effort: Effort) -> usize {
        match (method, self.compare) {
            (Method::PerSlot | Method::SharedBasis, _) | (_, Some(CompareArg::Off)) => 0,
            (Method::Quantise, None) => effort.work().compared,
            (Method::Quantise, Some(CompareArg::On)) => effort.work().compared.max(NEIGHBOURS),
        }
    }

    /// Returns this goal, or the [balanced preset](Preset::Balanced) if the method allocates file
    /// bytes and neither a budget nor a limit is set.
    #[must_use]
    pub fn or_balanced(self, wishes: &Wishes) -> Goal {
        let silent = self.limit.is_none() && wishes.budget.is_none();
        match wishes.method() {
            Method::Quantise if silent => Goal {
                limit: Preset::default().limit(),
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
        let mut limit = Limit {
            perplexity_increase: Some(0.01),
            kl: None,
        };
        assert_eq!(limit.asked(), "`max_perplexity_increase` 1 %");
        limit.kl = Some(0.5);
        assert_eq!(
            limit.asked(),
            "`max_perplexity_increase` 1 % and `max_kl` 0.5"
        );
        assert_eq!(
            limit.to_string(),
            "--max-perplexity-increase 1 --max-kl 0.5"
        );
    }
}
