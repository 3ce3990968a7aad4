//! Which positions of a prompt are kept (SnapKV, Li et al. 2024).

use std::ops::Range;

/// Positions to either side whose importance counts for a position: a kernel of 7, so that what stands
/// around an important position is kept with it.
const REACH: usize = 3;

/// The importance of every position of a range, as the largest of its neighbourhood in the range.
fn pooled(importance: &[f32]) -> Vec<f32> {
    let at = |i: usize| {
        let around = i.saturating_sub(REACH)..importance.len().min(i + REACH + 1);
        importance[around]
            .iter()
            .fold(0.0, |most: f32, &x| most.max(x))
    };
    (0..importance.len()).map(at).collect()
}

/// The indices of the `count` largest numbers, in ascending order; of equal ones those of lower index.
pub(super) fn largest(numbers: &[f32], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..numbers.len()).collect();
    order.sort_by(|&a, &b| numbers[b].total_cmp(&numbers[a]).then(a.cmp(&b)));
    order.truncate(count);
    order.sort_unstable();
    order
}

/// The rows of one head that are kept: of the rows `eligible` of `importance [positions]` the `count`
/// most important by their neighbourhood, counted from `first`, and all behind them up to `end`.
pub(super) fn kept(
    importance: &[f32],
    eligible: Range<usize>,
    count: usize,
    first: usize,
    end: usize,
) -> Vec<usize> {
    let best = largest(&pooled(&importance[eligible.clone()]), count);
    let best = best.into_iter().map(|i| eligible.start + i);
    best.chain(eligible.end..end).map(|i| i - first).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_the_important_are_kept_and_ties_go_to_the_front() {
        let mut importance = [0.0; 40];
        importance[20] = 5.0;
        // All seven around it have its importance.
        let around: Vec<usize> = (17..24).collect();
        assert_eq!(kept(&importance, 0..30, 7, 0, 30), around);
        // Then the first, and what is behind the eligible in any case.
        let expected: Vec<usize> = [0, 1].into_iter().chain(17..24).chain(30..35).collect();
        assert_eq!(kept(&importance, 0..30, 9, 0, 35), expected);
        // Counted from where the rows begin.
        assert_eq!(kept(&importance, 10..30, 3, 10, 32), [7, 8, 9, 20, 21]);
        assert_eq!(largest(&[1.0, 3.0, 2.0, 3.0], 2), [1, 3]);
        assert_eq!(largest(&[f32::NAN, 3.0], 5), [0, 1]);
    }
}
