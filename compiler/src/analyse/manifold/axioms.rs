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
mod tests {
    use super::*;

    fn sample(count: usize, deviations: &[f64]) -> Sample {
        let mut random = Rng(8);
        let mut values = Vec::new();
        for _ in 0..count {
            values.extend(
                deviations
                    .iter()
                    .map(|s| (s * random.normal() + 2.0) as f32),
            );
        }
        let windows = vec![0; values.len() / deviations.len()];
        Sample::new(&values, deviations.len(), &windows)
    }

    #[test]
    fn a_planted_subspace_survives() {
        for width in [40, 600] {
            let mut deviations = vec![1e-3; width];
            deviations[..6].copy_from_slice(&[3.0, 2.0, 2.0, 2.0, 2.0, 2.0]);
            let found = sample_axioms(0, &sample(300, &deviations))
                .unwrap()
                .unwrap();
            assert_eq!((found.candidates, found.survived), (6, 6));
            assert_eq!((found.consistency, found.samples), (1.0, (150, 150)));
        }
    }

    #[test]
    fn isotropic_noise_has_no_axioms() {
        for width in [100, 500] {
            let found = sample_axioms(3, &sample(301, &vec![1.0; width]));
            let found = found.unwrap().unwrap();
            assert!(found.candidates > 20, "{found:?}");
            assert!(found.consistency < 0.1, "{found:?}");
            assert_eq!(found.samples, (151, 150));
        }
    }

    #[test]
    fn small_samples_and_full_subspaces_give_none() {
        assert!(sample_axioms(0, &sample(3, &[1.0; 8])).unwrap().is_none());
        assert!(sample_axioms(0, &sample(40, &[1.0])).unwrap().is_none());
        assert!(
            sample_axioms(0, &Sample::new(&[], 8, &[]))
                .unwrap()
                .is_none()
        );
        assert!(sample_axioms(0, &sample(40, &[1.0; 2])).unwrap().is_none());
    }
}
