//! Options for the smallest artifact within a limit, shared by `htc plan` and `htc compile`.

use std::str::FromStr as _;

use clap::Args;

use super::planning::parse_positive;
use super::{TreatmentArgs, heading};
use crate::request::{QualityGoal, QualityLimit, QualityPreset};

/// Options that conflict with a search.
const BUDGETS: [&str; 7] = [
    "file_size",
    "bits",
    "rank",
    "ratio",
    "parameters",
    "bytes",
    "mean_rank",
];

/// What is decided by measuring on held-out text.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = heading::SIZE)]
pub struct GoalArgs {
    /// Find the smallest artifact within a named limit: near-lossless, a KL divergence of 0.001 nats; balanced,
    /// 1 % of perplexity; small, 5 % [default for quantise: balanced]
    #[arg(long, value_name = "NAME", value_parser = QualityPreset::from_str, conflicts_with_all = BUDGETS, conflicts_with_all = ["max_perplexity_increase", "max_kl"])]
    pub preset: Option<QualityPreset>,
    /// Find the smallest artifact whose perplexity is at most PERCENT above the source's
    ///
    /// Measured over all positions of the held-out windows that decide, the upper end of the 95 % interval included.
    /// Text that the source itself would write counts as well, where the increase is the exponential of the KL
    /// divergence.
    #[arg(long, value_name = "PERCENT", hide_short_help = true, value_parser = parse_positive, allow_negative_numbers = true, conflicts_with_all = BUDGETS)]
    pub max_perplexity_increase: Option<f64>,
    /// Find the smallest artifact whose KL divergence from the source on held-out text is at most so
    /// many nats
    #[arg(long, value_name = "NATS", hide_short_help = true, value_parser = parse_positive, allow_negative_numbers = true, conflicts_with_all = BUDGETS)]
    pub max_kl: Option<f64>,
}

impl GoalArgs {
    /// Limits by their clap ids.
    pub(super) const LIMITS: [&str; 3] = ["preset", "max_perplexity_increase", "max_kl"];

    /// Returns the first limit that was given.
    pub fn first_given(&self) -> Option<&'static str> {
        let given = [
            ("--preset", self.preset.is_some()),
            (
                "--max-perplexity-increase",
                self.max_perplexity_increase.is_some(),
            ),
            ("--max-kl", self.max_kl.is_some()),
        ];
        let found = given.into_iter().find(|(_, given)| *given);
        found.map(|(option, _)| option)
    }

    /// Returns the quality goal.
    pub fn goal(&self, treatment: &TreatmentArgs) -> QualityGoal {
        QualityGoal {
            limit: match self.preset {
                Some(preset) => preset.limit(),
                None => QualityLimit {
                    perplexity_increase: self
                        .max_perplexity_increase
                        .map(|percent| percent / 100.0),
                    kl: self.max_kl,
                },
            },
            keep_gauge: treatment.keep_gauge,
            tune: None,
            compare: None,
        }
    }
}
