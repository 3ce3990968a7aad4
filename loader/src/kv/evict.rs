//! Selection of prompt positions to keep (SnapKV, Li et al. 2024).

use std::ops::Range;

/// Half width of the pooling kernel.
const POOLING_RADIUS: usize = 3;

fn max_pool(importance: &[f32]) -> Vec<f32> {
    let at = |i: usize| {
        let around = i.saturating_sub(POOLING_RADIUS)..importance.len().min(i + POOLING_RADIUS + 1);
        importance[around]
            .iter()
            .fold(0.0, |most: f32, &x| most.max(x))
    };
    (0..importance.len()).map(at).collect()
}

/// Returns the indices of the `count` largest numbers, ascending; ties go to the lower index.
pub(super) fn indices_of_largest(numbers: &[f32], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..numbers.len()).collect();
    order.sort_by(|&a, &b| numbers[b].total_cmp(&numbers[a]).then(a.cmp(&b)));
    order.truncate(count);
    order.sort_unstable();
    order
}

/// Returns the rows of one head to keep, counted from `first`: the `count` most important of
/// `eligible` after pooling, and all after them up to `end`.
pub(super) fn rows_to_keep(
    importance: &[f32],
    eligible: Range<usize>,
    count: usize,
    first: usize,
    end: usize,
) -> Vec<usize> {
    let best = indices_of_largest(&max_pool(&importance[eligible.clone()]), count);
    let best = best.into_iter().map(|i| eligible.start + i);
    best.chain(eligible.end..end).map(|i| i - first).collect()
}

#[cfg(test)]
mod tests;
