//! Why no candidate is chosen.

use std::path::PathBuf;

use htc_formats::htz::HtzError;
use htc_loader::LoadError;

use crate::event::Cancelled;
use crate::make::MakeError;
use crate::measure::{Distance, EvaluateError};
use crate::plan::PlanError;
use crate::request::{GaugeKind, Limit, TreatmentError};
use crate::system::show::interval;
use crate::tune::TuneError;

/// Why no candidate is chosen.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// A gauge makes the model worse.
    #[error(
        "`gauge` {gauge}: it changes the tail energy from {:.4} to {:.4}, but on held-out text it is worse than none (KL divergence {found:.5} against {none:.5} nats, perplexity {found_ratio:.4} against {none_ratio:.4} of the source's); leave it out, or take it all the same with `keep_gauge`", tail.0, tail.1
    )]
    Worse {
        /// The gauge.
        gauge: GaugeKind,
        /// The tail energy without it and with it, in its coordinates.
        tail: (f64, f64),
        /// Its KL divergence.
        found: f64,
        /// That of none.
        none: f64,
        /// Its perplexity over the source's.
        found_ratio: f64,
        /// That of none.
        none_ratio: f64,
    },
    /// No ratio holds the limit.
    #[error(
        "{}: the upper end of the 95 % interval is not within it at any ratio; the closest is {ratio:.2}, with {:.4} times the perplexity{} and a KL divergence of {:.5} nats{}; allow more, measure on more text (`held_out`, `calibration_tokens`), or try `factor_type` f16 or fewer `slots`",
        limit.asked(),
        found.perplexity_ratio_all,
        interval(found.perplexity_ratio_all_interval, 4),
        found.kl,
        interval(found.kl_interval, 5)
    )]
    Limit {
        /// The limit.
        limit: Limit,
        /// The closest ratio.
        ratio: f64,
        /// What was measured there.
        found: Box<Distance>,
    },
    /// There is too little to measure on.
    #[error(
        "{what}: {needed} held-out windows are needed to decide it and to report what came of it, the texts hold {found}; give a longer text, another one with `held_out`, or a smaller `context`"
    )]
    FewHeldOut {
        /// What was to be decided.
        what: String,
        /// Windows held out.
        found: usize,
        /// Windows that are needed.
        needed: usize,
    },
    /// A model does not execute.
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
    /// A model does not open.
    #[error("{}: {error}", path.display())]
    Load {
        /// The model.
        path: PathBuf,
        /// Why.
        error: LoadError,
    },
    /// A candidate has no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Weights cannot be treated so.
    #[error(transparent)]
    Treatment(#[from] TreatmentError),
    /// A candidate cannot be made.
    #[error(transparent)]
    Make(#[from] MakeError),
    /// Scales cannot be tuned.
    #[error(transparent)]
    Tune(#[from] TuneError),
    /// What was measured cannot be noted down.
    #[error(transparent)]
    Note(#[from] HtzError),
    /// Somebody asked for an end.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}
