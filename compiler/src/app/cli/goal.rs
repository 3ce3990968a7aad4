//! The options that ask for the smallest artifact which holds a limit, shared by `htc plan` and
//! `htc compile`.

use clap::Args;

use super::planning::parse_positive;
use crate::request::{Goal, Limit};

/// What a search decides.
const BUDGETS: [&str; 5] = ["rank", "ratio", "parameters", "bytes", "mean_rank"];

/// What is decided by measuring on held-out text.
#[derive(Clone, Copy, Debug, Args)]
pub struct GoalArgs {
    /// Find the smallest artifact whose perplexity on held-out text is at most so many percent above
    /// the source's, the upper end of the 95 % interval included
    #[arg(long, value_name = "PERCENT", requires = "calibration", value_parser = parse_positive, allow_negative_numbers = true, conflicts_with_all = BUDGETS)]
    pub max_perplexity_increase: Option<f64>,
    /// Find the smallest artifact whose KL divergence from the source on held-out text is at most so
    /// many nats
    #[arg(long, value_name = "NATS", requires = "calibration", value_parser = parse_positive, allow_negative_numbers = true, conflicts_with_all = BUDGETS)]
    pub max_kl: Option<f64>,
    /// Take --gauge axiom even where it measures worse than none
    #[arg(long, requires = "gauge")]
    pub keep_gauge: bool,
}

impl GoalArgs {
    /// The limits, as clap calls them.
    pub(super) const LIMITS: [&str; 2] = ["max_perplexity_increase", "max_kl"];

    /// What is to be reached.
    pub fn goal(&self) -> Goal {
        Goal {
            limit: Limit {
                perplexity_increase: self.max_perplexity_increase.map(|percent| percent / 100.0),
                kl: self.max_kl,
            },
            keep_gauge: self.keep_gauge,
        }
    }
}
