//! Statistics of paired measurements: two consecutive measurements of the same task, so that slow
//! changes affect both.
//!
//! The interval of the mean ratio is a percentile bootstrap over pairs (Efron and Tibshirani, An
//! Introduction to the Bootstrap, 1993, section 13.3). Student's test assumes normal differences,
//! Wilcoxon's only symmetric ones.

use schemars::JsonSchema;
use serde::Serialize;
use statrs::distribution::{ContinuousCDF, FisherSnedecor, Normal, StudentsT};

use crate::measure::Interval;
use crate::system::random::Rng;

/// Number of bootstrap samples.
pub const SAMPLES: usize = 10_000;

const MAX_EXACT_RANKS: usize = 25;

/// Probability that two equally steady programs are called contaminated.
pub const FALSE_ALARM_RATE: f64 = 0.01;

/// Natural ratio of relative variances: two programs may differ by 5 times the standard deviation.
/// One in this process and one restarted for every run differed by 3.5 times on an idle machine.
pub const NATURAL_VARIANCE_RATIO: f64 = 25.0;

/// Summary of measurements of one kind.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Spread {
    /// Number of measurements.
    pub count: usize,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub median: f64,
    /// Standard deviation of single measurements (n − 1); absent for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sd: Option<f64>,
    /// Minimum.
    pub smallest: f64,
    /// Maximum.
    pub largest: f64,
}

/// Student's t test of paired differences, two-sided.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct PairedT {
    /// Mean difference over its standard error.
    pub t: f64,
    /// Degrees of freedom: pairs minus one.
    pub degrees: usize,
    /// Two-sided p value.
    pub p: f64,
}

/// Wilcoxon's signed rank test, two-sided (Wilcoxon 1945).
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct SignedRank {
    /// Sum of the ranks of positive differences; ties have their mean rank.
    pub plus: f64,
    /// Sum of the ranks of negative differences.
    pub minus: f64,
    /// Number of nonzero differences; zeros are left out, as in Wilcoxon's paper.
    pub count: usize,
    /// Two-sided p value.
    pub p: f64,
    /// True if `p` is exact, else a normal approximation without continuity correction.
    pub exact: bool,
}

/// Check for other work on the machine during the runs of one program: two steady programs have
/// similar relative variances (squares of standard deviation over mean).
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct VarianceCheck {
    /// Relative variance of the subject's speeds over that of the baseline's.
    pub ratio: f64,
    /// Threshold for the ratio and its inverse: the larger of [`NATURAL_VARIANCE_RATIO`] and the
    /// quantile of F for [`FALSE_ALARM_RATE`].
    pub threshold: f64,
    /// True if the ratio is beyond the threshold.
    pub contaminated: bool,
}

/// Comparison of subject and baseline in one quantity.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Comparison {
    /// Mean of the pairs' ratios, subject over baseline.
    pub ratio: f64,
    /// Median of the ratios.
    pub median_ratio: f64,
    /// Mean of the inverse ratios (ratios of times for speeds).
    pub time_ratio: f64,
    /// 95 % interval of `ratio`; absent for one pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
    /// Mean difference, subject minus baseline.
    pub difference: f64,
    /// Student's test; absent for one pair or equal differences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paired_t: Option<PairedT>,
    /// Wilcoxon's test; absent if all differences are zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wilcoxon: Option<SignedRank>,
    /// Check for contamination; absent for one pair or if one side does not vary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variance: Option<VarianceCheck>,
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn deviation(values: &[f64]) -> Option<f64> {
    let (n, mean) = (values.len(), mean(values));
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    (n > 1).then(|| (squares / (n - 1) as f64).sqrt())
}

fn median(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => sorted[half],
        _ => 0.5 * (sorted[half - 1] + sorted[half]),
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Summarises `values`; returns `None` if there are none.
pub fn spread(values: &[f64]) -> Option<Spread> {
    let sorted = sorted(values);
    let (smallest, largest) = (*sorted.first()?, *sorted.last()?);
    Some(Spread {
        count: values.len(),
        mean: mean(values),
        median: median(&sorted),
        sd: deviation(values),
        smallest,
        largest,
    })
}

/// Compares speeds `(subject, baseline)`, all above zero; `None` without pairs. Deterministic for a
/// seed.
pub fn compare(pairs: &[(f64, f64)], seed: u64) -> Option<Comparison> {
    if pairs.is_empty() {
        return None;
    }
    let of = |value: fn(&(f64, f64)) -> f64| -> Vec<f64> { pairs.iter().map(value).collect() };
    let ratios = of(|(a, b)| a / b);
    let differences = of(|(a, b)| a - b);
    Some(Comparison {
        ratio: mean(&ratios),
        median_ratio: median(&sorted(&ratios)),
        time_ratio: mean(&of(|(a, b)| b / a)),
        interval: bootstrap(&ratios, seed),
        difference: mean(&differences),
        paired_t: paired_t(&differences),
        wilcoxon: signed_rank(&differences),
        variance: variance_check(&of(|(a, _)| *a), &of(|(_, b)| *b)),
    })
}

/// Returns the middle 95 % of the means of [`SAMPLES`] bootstrap samples; `None` for fewer than two
/// values.
pub fn bootstrap(values: &[f64], seed: u64) -> Option<Interval> {
    let n = values.len();
    if n < 2 {
        return None;
    }
    let mut random = Rng(seed);
    let mut sample = || (0..n).map(|_| values[random.below(n)]).sum::<f64>() / n as f64;
    let mut means: Vec<f64> = (0..SAMPLES).map(|_| sample()).collect();
    means.sort_by(f64::total_cmp);
    // As in numpy and R.
    let at = |part: f64| {
        let place = part * (SAMPLES - 1) as f64;
        let (below, rest) = (place.floor() as usize, place.fract());
        let above = (below + 1).min(SAMPLES - 1);
        means[below] + rest * (means[above] - means[below])
    };
    Some((at(0.025), at(0.975)))
}

/// Student's test of differences; `None` for fewer than two, or if they are all equal.
pub fn paired_t(differences: &[f64]) -> Option<PairedT> {
    let sd = deviation(differences).filter(|&sd| sd > 0.0)?;
    let t = mean(differences) / (sd / (differences.len() as f64).sqrt());
    let degrees = differences.len() - 1;
    let distribution = StudentsT::new(0.0, 1.0, degrees as f64).ok()?;
    t.is_finite().then(|| PairedT {
        t,
        degrees,
        p: two_sided_p_value(&distribution, t),
    })
}

/// For a distribution that is symmetric around zero.
fn two_sided_p_value(distribution: &impl ContinuousCDF<f64, f64>, statistic: f64) -> f64 {
    2.0 * distribution.sf(statistic.abs())
}

/// Wilcoxon's test of differences; `None` if all of them are zero.
pub fn signed_rank(differences: &[f64]) -> Option<SignedRank> {
    let mut found: Vec<f64> = differences.iter().copied().filter(|&d| d != 0.0).collect();
    if found.is_empty() {
        return None;
    }
    found.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
    // Integers also for ties, which share their mean rank.
    let mut doubled: Vec<usize> = Vec::with_capacity(found.len());
    for tied in found.chunk_by(|a, b| a.abs() == b.abs()) {
        let first = doubled.len() + 1;
        doubled.extend(std::iter::repeat_n(2 * first + tied.len() - 1, tied.len()));
    }
    let signed = || found.iter().zip(&doubled);
    let plus: usize = signed().filter(|(d, _)| **d > 0.0).map(|(_, r)| r).sum();
    let all: usize = doubled.iter().sum();
    let exact = found.len() <= MAX_EXACT_RANKS;
    Some(SignedRank {
        plus: plus as f64 / 2.0,
        minus: (all - plus) as f64 / 2.0,
        count: found.len(),
        p: if exact {
            exact_p_value(&doubled, plus)
        } else {
            // Σ r² / 4 is n (n + 1) (2n + 1) / 24 minus the correction for ties.
            let squares: f64 = doubled.iter().map(|&r| (r * r) as f64 / 4.0).sum();
            let off = (plus as f64 - all as f64 / 2.0) / 2.0;
            two_sided_p_value(&Normal::standard(), off / (squares / 4.0).sqrt())
        },
        exact,
    })
}

fn exact_p_value(ranks: &[usize], plus: usize) -> f64 {
    let all: usize = ranks.iter().sum();
    let mut ways = vec![0_u64; all + 1];
    ways[0] = 1;
    for &rank in ranks {
        for sum in (rank..=all).rev() {
            ways[sum] += ways[sum - rank];
        }
    }
    let low = plus.min(all - plus);
    let tail: u64 = ways[..=low].iter().sum();
    // A sum in the middle would be counted twice.
    (2.0 * tail as f64 / (1_u64 << ranks.len()) as f64).min(1.0)
}

/// Quantile of F for [`FALSE_ALARM_RATE`], on both sides.
fn variance_ratio_quantile(degrees: usize) -> Option<f64> {
    let distribution = FisherSnedecor::new(degrees as f64, degrees as f64).ok()?;
    Some(distribution.inverse_cdf(1.0 - 0.5 * FALSE_ALARM_RATE))
}

/// Compares the variation of both sides; `None` if undefined.
pub fn variance_check(subject: &[f64], baseline: &[f64]) -> Option<VarianceCheck> {
    let relative = |values: &[f64]| {
        let found = (deviation(values)? / mean(values)).powi(2);
        (found.is_finite() && found > 0.0).then_some(found)
    };
    let ratio = relative(subject)? / relative(baseline)?;
    let degrees = subject.len().min(baseline.len()) - 1;
    let threshold = variance_ratio_quantile(degrees)?.max(NATURAL_VARIANCE_RATIO);
    Some(VarianceCheck {
        ratio,
        threshold,
        contaminated: ratio > threshold || ratio < 1.0 / threshold,
    })
}

#[cfg(test)]
mod tests;
