//! Errors of the selection.

use htc_formats::htz::HtzError;

use crate::calibrate::PassError;
use crate::event::Cancelled;
use crate::make::MakeError;
use crate::measure::Distance;
use crate::options::{GaugeKind, OptionError, QualityLimit};
use crate::plan::PlanError;
use crate::system::show::format_interval;

/// Error returned when no candidate can be chosen.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// The requested gauge measures worse than none.
    #[error(
        "`gauge` {gauge}: it changes the tail energy from {:.4} to {:.4}, but on held-out text it is worse than none (KL divergence {found:.5} against {none:.5} nats, perplexity {found_ratio:.4} against {none_ratio:.4} of the source's); leave it out, or take it all the same with `keep_gauge`", tail.0, tail.1
    )]
    Worse {
        /// Requested gauge.
        gauge: GaugeKind,
        /// Tail energy without and with the gauge, in its coordinates.
        tail: (f64, f64),
        /// KL divergence with the gauge.
        found: f64,
        /// KL divergence without a gauge.
        none: f64,
        /// Perplexity ratio with the gauge.
        found_ratio: f64,
        /// Perplexity ratio without a gauge.
        none_ratio: f64,
    },
    /// No ratio is within the limit.
    #[error(
        "{}: the upper end of the 95 % interval is not within it at any ratio; the closest is {ratio:.2}, with {:.4} times the perplexity{} and a KL divergence of {:.5} nats{}; allow more, measure on more text (`held_out`, `calibration_tokens`), or try `factor_type` f16 or fewer `projections`",
        limit.as_builder_call(),
        found.perplexity_ratio_all,
        format_interval(found.perplexity_ratio_all_interval, 4),
        found.kl,
        format_interval(found.kl_interval, 5)
    )]
    Limit {
        /// Requested limit.
        limit: QualityLimit,
        /// Ratio of the closest candidate.
        ratio: f64,
        /// Measurement of that candidate.
        found: Box<Distance>,
    },
    /// Too few held-out windows.
    #[error(
        "{decision}: {needed} held-out windows are needed to decide it and to report what came of it, the texts hold {found}; give a longer text, another one with `held_out`, or a smaller `context`"
    )]
    TooFewHeldOutWindows {
        /// Name of the decision.
        decision: String,
        /// Number of held-out windows.
        found: usize,
        /// Number of required windows.
        needed: usize,
    },
    /// A model cannot be loaded, evaluated or tuned.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// A candidate has no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The treatment is impossible.
    #[error(transparent)]
    Treatment(#[from] OptionError),
    /// A candidate cannot be made.
    #[error(transparent)]
    Make(#[from] MakeError),
    /// Measurements cannot be written.
    #[error(transparent)]
    WriteRecord(#[from] HtzError),
    /// The work was cancelled.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}
