//! Axioms: principal directions that both halves of the sample have.

use faer::ColRef;

use crate::analyse::dimension::{SEED, components_for};
use crate::analyse::record::{Axioms, rounded};
use crate::analyse::sample::{Sample, shuffled};
use crate::math::FactoriseError;
use crate::system::random::Rng;

pub(super) const ENERGY: f64 = 0.95;

pub(super) const HELD_OUT: f64 = 0.5;

/// Maximum missed share, relative to that of a random subspace, `1 − k/d`.
pub(super) const MAX_MISSED: f64 = 0.5;

const MIN_HALF_SAMPLES: usize = 2;

/// `None` if the sample is too small or the directions fill the space.
pub(super) fn sample_axioms(
    layer: usize,
    sample: &Sample,
) -> Result<Option<Axioms>, FactoriseError> {
    let held_out = (HELD_OUT * sample.count() as f64) as usize;
    if held_out < MIN_HALF_SAMPLES {
        return Ok(None);
    }
    let mut random = Rng(!SEED.wrapping_add(layer as u64));
    let order = shuffled(sample.count(), &mut random);
    let (held_out, first) = order.split_at(held_out);
    let candidates = sample
        .select(first)
        .directions(|variances| components_for(variances, ENERGY))?;
    let k = candidates.ncols();
    let rebuilt = sample.select(held_out).directions(|_| k)?;
    let chance = 1.0 - rebuilt.ncols() as f64 / sample.width().max(1) as f64;
    if k == 0 || chance <= 0.0 {
        return Ok(None);
    }
    let parts = rebuilt.transpose() * &candidates;
    let survives = |parts: &ColRef<'_, f64>| {
        let held: f64 = parts.iter().map(|part| part * part).sum();
        1.0 - held <= MAX_MISSED * chance
    };
    let survived = parts.col_iter().filter(survives).count();
    Ok(Some(Axioms {
        candidates: k,
        survived,
        consistency: rounded(survived as f64 / k as f64),
        samples: (first.len(), held_out.len()),
    }))
}

#[cfg(test)]
mod tests;
