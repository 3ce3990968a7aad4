//! The uniform allocator: the same ratio for every selected slot, the same rank in every layer.

use htc_formats::DType;

use super::{Kind, PlanError};

/// Ranks by kind, so that the total meets `ratio` from below to the granularity.
///
/// Every kind starts at one granule; then the kind with the lowest ratio of its own gets one
/// more, as long as the total allows it, its own ratio is below the one asked for, and it does
/// not get more parameters than its dense form has. What rounding leaves over is thus spent
/// again instead of being lost.
pub(super) fn allocate(
    kinds: &[Kind],
    ratio: f64,
    factor_type: DType,
) -> Result<Vec<usize>, PlanError> {
    if !(ratio > 0.0 && ratio <= 1.0) {
        return Err(PlanError::RatioRange(ratio));
    }
    let dense: u64 = kinds.iter().map(Kind::dense).sum();
    let budget = (ratio * dense as f64).floor() as u64;
    let total = |ranks: &[usize]| -> u64 { kinds.iter().zip(ranks).map(|(k, &r)| k.cost(r)).sum() };
    let mut granules: Vec<usize> = kinds
        .iter()
        .map(|kind| granule(kind, ratio, factor_type))
        .collect();
    if total(&granules) > budget {
        // A whole block may be more than the others leave; every plan begins with the finest steps.
        granules = kinds.iter().map(finest).collect();
    }
    let mut ranks = granules.clone();
    let least = total(&ranks);
    if least > budget {
        return Err(PlanError::RatioTooSmall {
            ratio,
            smallest: round_up(least as f64 / dense as f64),
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

/// The step of a kind's rank, as long as its share of the budget holds one: the block of a block
/// format, or where that would leave fewer than four steps, the block of q8_0 (the factor with
/// rows of that length is then stored as q8_0); else the finest (and stored as f16). The plan
/// says where a factor is stored otherwise.
fn granule(kind: &Kind, ratio: f64, factor_type: DType) -> usize {
    let share = (ratio * kind.dense() as f64 / kind.cost(1) as f64) as usize;
    let (block, shorter) = (factor_type.block_len(), DType::Q8_0.block_len());
    let steps = match block {
        1 => [None, None],
        block if block <= shorter => [Some(block), None],
        block => [Some(block).filter(|b| 4 * b <= kind.limit), Some(shorter)],
    };
    let fits = |step: &usize| *step <= share.min(kind.limit);
    steps
        .into_iter()
        .flatten()
        .find(fits)
        .unwrap_or_else(|| finest(kind))
}

/// The smallest step of a kind's rank.
fn finest(kind: &Kind) -> usize {
    if kind.limit >= 8 { 8 } else { 1 }
}

/// Rounded up at the fourth decimal, so that the figure shown can be asked for.
fn round_up(ratio: f64) -> f64 {
    (ratio * 1e4).ceil() / 1e4
}
