//! Medians with confidence intervals.

use serde::Serialize;
use statrs::distribution::{Binomial, DiscreteCDF as _};

/// Median of a sample with a distribution-free confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Median {
    pub median: f64,
    /// The interval contains the population median with a probability of at least [`Median::sure`].
    pub low: f64,
    pub high: f64,
    pub sure: f64,
    pub count: usize,
}

impl Median {
    /// Returns `None` for an empty sample.
    pub fn from_values(mut figures: Vec<f64>) -> Option<Median> {
        figures.sort_by(f64::total_cmp);
        let count = figures.len();
        let (last, middle) = (count.checked_sub(1)?, count / 2);
        let median = match count % 2 {
            1 => figures[middle],
            _ => (figures[middle - 1] + figures[middle]) / 2.0,
        };
        let (skipped, sure) = dropped_order_statistics(count);
        let (low, high) = (figures[skipped], figures[last - skipped]);
        Some(Median {
            median,
            low,
            high,
            sure,
            count,
        })
    }
}

/// Returns the number of order statistics to drop at each end for the narrowest 95 % confidence
/// interval of the median, and its exact coverage; zero and the coverage of the full range for
/// small samples.
fn dropped_order_statistics(count: usize) -> (usize, f64) {
    // The k-th order statistic is above the median if fewer than k values are below it, each with
    // probability 1/2.
    let below = Binomial::new(0.5, count as u64);
    let sure = |skipped: usize| {
        let below = below
            .as_ref()
            .map_or(0.5, |below| below.cdf(skipped as u64));
        (1.0 - 2.0 * below).max(0.0)
    };
    let enough = |&skipped: &usize| sure(skipped) >= 0.95;
    let skipped = (1..count / 2).take_while(enough).last().unwrap_or(0);
    (skipped, sure(skipped))
}

#[cfg(test)]
mod tests;
