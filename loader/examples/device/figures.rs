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
mod tests {
    use super::*;

    #[test]
    fn intervals_match_tables_of_the_sign_test() {
        // From tables of the sign test: 96.9 % for the extremes of 6 values, 97.9 % for the second
        // ones of 10, 95.9 % for the sixth ones of 20.
        for (count, skipped, sure) in [
            (5, 0, 0.9375),
            (6, 0, 0.96875),
            (10, 1, 0.97852),
            (20, 5, 0.95861),
        ] {
            let found = dropped_order_statistics(count);
            assert_eq!(found.0, skipped, "{count}");
            assert!((found.1 - sure).abs() < 1e-5, "{count}: {}", found.1);
        }
    }

    #[test]
    fn median_of_even_and_odd_counts() {
        assert_eq!(Median::from_values(Vec::new()), None);
        let of = |figures: &[f64]| Median::from_values(figures.to_vec()).unwrap();
        assert_eq!(of(&[3.0]).median, 3.0);
        let three = of(&[3.0, 1.0, 2.0]);
        assert_eq!((three.median, three.low, three.high), (2.0, 1.0, 3.0));
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        let ten = of(&(0..10).map(f64::from).collect::<Vec<_>>());
        assert_eq!((ten.low, ten.high), (1.0, 8.0));
    }
}
