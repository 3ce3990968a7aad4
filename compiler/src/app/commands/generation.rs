//! What `htc run` and `htc chat` have in common.

use htc_loader::Model;
use htc_loader::sampling::{Sampler, SamplingOptions};

use super::Failure;
use crate::app::cli::{ContextArgs, SamplingArgs};

pub(super) fn sampler(args: &SamplingArgs, seed: u64) -> Result<Sampler, Failure> {
    let mut options = SamplingOptions::default();
    options.temperature = args.temp;
    options.top_k = args.top_k;
    options.top_p = args.top_p;
    options.seed = seed;
    Ok(Sampler::new(options)?)
}

/// Checks that the model was trained for as many positions as are requested.
pub(super) fn check_context(args: ContextArgs, model: &Model) -> Result<(), Failure> {
    let limit = model.hyper().context;
    match args.positions() {
        Some(asked) if asked > limit => Err(Failure::ContextSize { asked, limit }),
        _ => Ok(()),
    }
}

/// Returns the positions of a sequence of unknown length: those that the model was trained for, or up
/// to which a LongRoPE model rotates as a short text.
pub(super) fn default_context(model: &Model) -> usize {
    let full = model.hyper().context;
    let long = model.hyper().forward.long_rope.as_ref();
    long.map_or(full, |long| long.original_context.min(full))
}
