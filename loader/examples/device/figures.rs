//! Medians with their intervals.

use serde_json::{Value, json};

/// Median of some figures, and what lies around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Median {
    pub median: f64,
    /// The median of many more figures lies in between with a probability of [`Median::sure`] at least, whatever their
    /// distribution is.
    pub low: f64,
    pub high: f64,
    pub sure: f64,
    pub count: usize,
}

impl Median {
    /// `None` of no figures.
    pub fn of(mut figures: Vec<f64>) -> Option<Median> {
        figures.sort_by(f64::total_cmp);
        let count = figures.len();
        let (last, middle) = (count.checked_sub(1)?, count / 2);
        let median = match count % 2 {
            1 => figures[middle],
            _ => (figures[middle - 1] + figures[middle]) / 2.0,
        };
        let (skipped, sure) = outside(count);
        let (low, high) = (figures[skipped], figures[last - skipped]);
        Some(Median {
            median,
            low,
            high,
            sure,
            count,
        })
    }

    pub fn to_json(self) -> Value {
        json!({
            "median": self.median,
            "low": self.low,
            "high": self.high,
            "sure": self.sure,
            "count": self.count,
        })
    }
}

/// How many of the least and of the greatest figures lie outside of the narrowest interval between two of them that has
/// the median with a probability of 0.95, and that probability; none, and what that is worth, where there are too few.
fn outside(count: usize) -> (usize, f64) {
    // The k-th is above the median where less than k of the figures are below it, each with probability 1/2.
    let mut term = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let (mut below, mut skipped) = (term, 0);
    let mut sure = 1.0 - 2.0 * below;
    while skipped + 1 < count / 2 {
        term *= (count - skipped) as f64 / (skipped + 1) as f64;
        if 1.0 - 2.0 * (below + term) < 0.95 {
            break;
        }
        below += term;
        skipped += 1;
        sure = 1.0 - 2.0 * below;
    }
    (skipped, sure.max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_order_statistics() {
        // From tables of the sign test: of 6 figures the extremes are 96.9 % sure, of 10 the second ones 97.9 %, of 20
        // the sixth ones 95.9 %.
        for (count, skipped, sure) in [
            (5, 0, 0.9375),
            (6, 0, 0.96875),
            (10, 1, 0.97852),
            (20, 5, 0.95861),
        ] {
            let found = outside(count);
            assert_eq!(found.0, skipped, "{count}");
            assert!((found.1 - sure).abs() < 1e-5, "{count}: {}", found.1);
        }
    }

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(Median::of(Vec::new()), None);
        let of = |figures: &[f64]| Median::of(figures.to_vec()).unwrap();
        assert_eq!(of(&[3.0]).median, 3.0);
        let three = of(&[3.0, 1.0, 2.0]);
        assert_eq!((three.median, three.low, three.high), (2.0, 1.0, 3.0));
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        let ten = of(&(0..10).map(f64::from).collect::<Vec<_>>());
        assert_eq!((ten.low, ten.high), (1.0, 8.0));
    }
}
