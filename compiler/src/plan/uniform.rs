//! Uniform allocation for an unbounded ratio: the same ratio for every selected projection, the
//! same rank in every layer.
//!
//! It counts parameters, not bytes, so the ratio may be missed; the allocators of
//! [`super::allocate`] avoid this. Kept so that existing requests reproduce their bytes.

use htc_formats::DType;

use super::PlanError;
use super::allocate::{round_up, smallest_step, step};
use super::kind::ProjectionGroup;

/// Every kind starts at one granule. Then the kind with the lowest ratio gets another, while the
/// total permits it, its ratio is below the target, and its parameters stay within its dense form.
pub(super) fn allocate(
    kinds: &[ProjectionGroup],
    ratio: f64,
    factor_type: DType,
) -> Result<Vec<usize>, PlanError> {
    if !(ratio > 0.0 && ratio <= 1.0) {
        return Err(PlanError::RatioRange(ratio));
    }
    let dense: u64 = kinds.iter().map(ProjectionGroup::dense).sum();
    let budget = (ratio * dense as f64).floor() as u64;
    let total = |ranks: &[usize]| -> u64 { kinds.iter().zip(ranks).map(|(k, &r)| k.cost(r)).sum() };
    let mut granules: Vec<usize> = kinds
        .iter()
        .map(|kind| granule(kind, ratio, factor_type))
        .collect();
    if total(&granules) > budget {
        // A whole block may exceed the remainder.
        granules = kinds.iter().map(|kind| smallest_step(kind.limit)).collect();
    }
    let mut ranks = granules.clone();
    let least = total(&ranks);
    if least > budget {
        return Err(PlanError::RatioTooSmall {
            ratio,
            smallest: round_up(least as f64 / dense as f64, 4),
        });
    }
    let mut spent = least;
    loop {
        let next = (0..kinds.len())
            .filter(|&i| {
                let (kind, rank) = (&kinds[i], ranks[i]);
                let step = kind.cost(granules[i]);
                rank + granules[i] <= kind.limit
                    && kind.cost(rank + granules[i]) <= kind.dense()
                    && spent + step <= budget
                    && (kind.cost(rank) as f64) < ratio * kind.dense() as f64
            })
            .min_by(|&i, &j| {
                let own = |i: usize| kinds[i].cost(ranks[i]) as f64 / kinds[i].dense() as f64;
                own(i).total_cmp(&own(j)).then(i.cmp(&j))
            });
        match next {
            Some(i) => {
                ranks[i] += granules[i];
                spent += kinds[i].cost(granules[i]);
            }
            None => return Ok(ranks),
        }
    }
}

fn granule(kind: &ProjectionGroup, ratio: f64, factor_type: DType) -> usize {
    let even = ratio * kind.dense() as f64 / kind.cost(1) as f64;
    step(kind.limit, even as usize, factor_type)
}
