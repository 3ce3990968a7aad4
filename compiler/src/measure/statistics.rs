//! Means over positions that are dependent within windows.
//!
//! The positions of a window are easy or hard together, so windows are the observations, by the
//! ratio estimator of cluster sampling (Cochran, Sampling Techniques, 3rd ed., 1977, section 9A;
//! Liang and Zeger 1986): with the sum `s_g` and the count `n_g` of window `g` of `G`,
//!
//! ```text
//! m = Σ s_g / Σ n_g      SE² = G / (G − 1) · Σ (s_g − m n_g)² / (Σ n_g)²
//! ```
//!
//! and intervals are by Student's t for `G − 1` degrees of freedom.

use std::f64::consts::{FRAC_2_PI, FRAC_PI_2, PI};

const CONFIDENCE: f64 = 0.95;

/// Mean of values grouped by window.
#[derive(Clone, Debug, Default)]
pub struct ClusteredMean {
    windows: Vec<(f64, u64)>,
}

impl ClusteredMean {
    /// Begins the next window.
    pub fn begin_window(&mut self) {
        self.windows.push((0.0, 0));
    }

    /// Adds a value to the current window.
    pub fn add(&mut self, value: f64) {
        if self.windows.is_empty() {
            self.begin_window();
        }
        if let Some((sum, count)) = self.windows.last_mut() {
            *sum += value;
            *count += 1;
        }
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.windows.iter().map(|(_, count)| count).sum()
    }

    /// Returns the mean; NaN without values.
    pub fn mean(&self) -> f64 {
        let sum: f64 = self.windows.iter().map(|(sum, _)| sum).sum();
        sum / self.count() as f64
    }

    /// Returns the standard error of the mean; `None` for fewer than two windows.
    pub fn standard_error(&self) -> Option<f64> {
        let (mean, windows) = (self.mean(), self.clusters());
        let off = self.windows.iter();
        let squares: f64 = off
            .map(|(sum, count)| (sum - mean * *count as f64).powi(2))
            .sum();
        let correction = windows as f64 / windows.checked_sub(1).filter(|&n| n > 0)? as f64;
        Some((correction * squares).sqrt() / self.count() as f64)
    }

    /// Returns half the width of the 95 % interval; `None` for fewer than two windows.
    pub fn half_width(&self) -> Option<f64> {
        let degrees = self.clusters().checked_sub(1)?;
        Some(student(degrees)? * self.standard_error()?)
    }

    /// Returns the 95 % interval of the mean; `None` for fewer than two windows.
    pub fn interval(&self) -> Option<(f64, f64)> {
        let (mean, half) = (self.mean(), self.half_width()?);
        Some((mean - half, mean + half))
    }

    fn clusters(&self) -> usize {
        self.windows.iter().filter(|(_, count)| *count > 0).count()
    }
}

/// Two-sided 95 %; `None` for zero degrees of freedom.
pub(super) fn student(degrees: usize) -> Option<f64> {
    student_quantile(degrees, CONFIDENCE)
}

/// Two-sided; `None` for zero degrees of freedom.
pub(crate) fn student_quantile(degrees: usize, probability: f64) -> Option<f64> {
    if degrees == 0 {
        return None;
    }
    let (mut low, mut high) = (0.0, FRAC_PI_2);
    for _ in 0..f64::MANTISSA_DIGITS {
        let middle = 0.5 * (low + high);
        if student_within(middle, degrees) < probability {
            low = middle
        } else {
            high = middle
        }
    }
    Some((0.5 * (low + high)).tan() * (degrees as f64).sqrt())
}

/// Probability of `± √degrees tan angle` (Abramowitz and Stegun, 26.7.3 and 26.7.4).
fn student_within(angle: f64, degrees: usize) -> f64 {
    let (sin, cos) = angle.sin_cos();
    let odd = degrees % 2 == 1;
    let mut power = if odd { 1 } else { 0 };
    let mut term = if odd { cos } else { 1.0 };
    let mut sum = 0.0;
    while power + 2 <= degrees {
        sum += term;
        power += 2;
        term *= cos * cos * (power - 1) as f64 / power as f64;
    }
    if odd {
        FRAC_2_PI * (angle + sin * sum)
    } else {
        sin * sum
    }
}

/// Two-sided p value, for at least one degree of freedom: the incomplete beta function `I_x(ν/2,
/// 1/2)` of `x = ν / (ν + t²)` (Abramowitz and Stegun, 26.5.4 with 15.1.1).
pub(crate) fn student_beyond(t: f64, degrees: usize) -> f64 {
    let (nu, t) = (degrees as f64, t.abs());
    if t < 1.0 {
        return 1.0 - student_within((t / nu.sqrt()).atan(), degrees);
    }
    let (a, x) = (0.5 * nu, nu / (nu + t * t));
    // B(a, 1/2) from B(1/2, 1/2) or B(1, 1/2), by B(a + 1, b) = B(a, b) · a / (a + b).
    let (mut at, mut beta) = if degrees % 2 == 1 {
        (0.5, PI)
    } else {
        (1.0, 2.0)
    };
    while at + 0.5 < a {
        beta *= at / (at + 0.5);
        at += 1.0;
    }
    let (mut n, mut coefficient, mut sum) = (0.0, 1.0, 0.0);
    loop {
        let term = coefficient / (a + n);
        sum += term;
        if term <= sum * 1e-17 {
            return x.powf(a) * sum / beta;
        }
        coefficient *= x * (n + 0.5) / (n + 1.0);
        n += 1.0;
    }
}

/// Two-sided p value, by the series of the error function (Abramowitz and Stegun, 7.1.6) or the
/// continued fraction of its complement (7.1.14).
pub(crate) fn normal_beyond(z: f64) -> f64 {
    let x = z.abs() / std::f64::consts::SQRT_2;
    let bell = (-x * x).exp() / PI.sqrt();
    if x < 2.5 {
        let (mut n, mut term, mut sum) = (0.0, x, 0.0);
        while term > sum * 1e-17 {
            sum += term;
            n += 1.0;
            term *= 2.0 * x * x / (2.0 * n + 1.0);
        }
        return 1.0 - 2.0 * bell * sum;
    }
    let tail = (1..=80)
        .rev()
        .fold(x, |below, k| x + 0.5 * f64::from(k) / below);
    bell / tail
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::random::Rng;

    fn clustered(windows: &[&[f64]]) -> ClusteredMean {
        let mut found = ClusteredMean::default();
        for window in windows {
            found.begin_window();
            window.iter().for_each(|&value| found.add(value));
        }
        found
    }

    #[test]
    fn single_value_windows_match_independent_values() {
        let values = [1.0, 2.0, 4.0, 8.0];
        let windows: Vec<&[f64]> = values.chunks(1).collect();
        let found = clustered(&windows);
        assert_eq!((found.mean(), found.count()), (3.75, 4));
        let variance = values.iter().map(|v| (v - 3.75_f64).powi(2)).sum::<f64>() / 3.0;
        let error = found.standard_error().unwrap();
        assert!((error - (variance / 4.0).sqrt()).abs() < 1e-15);
        let (low, high) = found.interval().unwrap();
        assert!((high - low - 2.0 * 3.182_446_305 * error).abs() < 1e-8);
        assert!((high + low - 7.5).abs() < 1e-12);
    }

    #[test]
    fn equal_windows_count_by_their_means() {
        let found = clustered(&[&[0.0, 2.0, 4.0], &[5.0, 5.0, 5.0], &[9.0, 0.0, 0.0]]);
        let means = [2.0, 5.0, 3.0];
        let mean = means.iter().sum::<f64>() / 3.0;
        let variance = means.iter().map(|m| (m - mean).powi(2)).sum::<f64>() / 2.0;
        assert!((found.mean() - mean).abs() < 1e-15);
        let error = found.standard_error().unwrap();
        assert!((error - (variance / 3.0).sqrt()).abs() < 1e-15);
    }

    /// m = 7/3, residuals ± 8/3.
    #[test]
    fn unequal_windows_follow_the_ratio_estimator() {
        let found = clustered(&[&[1.0, 1.0], &[3.0, 3.0, 3.0, 3.0]]);
        assert!((found.mean() - 7.0 / 3.0).abs() < 1e-15);
        let expected = (2.0 * 2.0 * (8.0_f64 / 3.0).powi(2)).sqrt() / 6.0;
        assert!((found.standard_error().unwrap() - expected).abs() < 1e-15);
    }

    #[test]
    fn repeating_values_within_windows_keeps_the_error() {
        let windows = [[1.0, 3.0], [2.0, 8.0], [0.0, 5.0]];
        let once = clustered(&windows.each_ref().map(|w| &w[..]));
        let often: Vec<Vec<f64>> = windows.iter().map(|w| w.repeat(100)).collect();
        let often: Vec<&[f64]> = often.iter().map(|w| &w[..]).collect();
        let often = clustered(&often).standard_error().unwrap();
        assert!((often - once.standard_error().unwrap()).abs() < 1e-12);
    }

    #[test]
    fn one_window_has_no_interval() {
        for windows in [&[][..], &[&[1.0, 2.0, 3.0][..]]] {
            let found = clustered(windows);
            assert_eq!((found.standard_error(), found.interval()), (None, None));
        }
        assert_eq!(clustered(&[&[1.0, 2.0, 3.0]]).mean(), 2.0);
        assert_eq!(student(0), None);
    }

    #[test]
    fn quantiles_match_the_tables() {
        for (degrees, expected) in [
            (1, 12.706_204_736),
            (2, 4.302_652_730),
            (3, 3.182_446_305),
            (4, 2.776_445_105),
            (7, 2.364_624_252),
            (10, 2.228_138_852),
            (15, 2.131_449_546),
            (30, 2.042_272_456),
            (120, 1.979_930_405),
            (1000, 1.962_339_081),
            (100_000, 1.959_987_7),
        ] {
            let found = student(degrees).unwrap();
            assert!((found - expected).abs() < 1e-7, "{degrees}: {found}");
        }
    }

    fn simulated(random: &mut Rng, windows: usize) -> Vec<Vec<f64>> {
        let window = |_| {
            let about = random.normal();
            (0..50).map(|_| about + random.normal()).collect()
        };
        (0..windows).map(window).collect()
    }

    fn coverage(windows: usize, half: impl Fn(&[Vec<f64>], &ClusteredMean) -> f64) -> f64 {
        let mut random = Rng(7);
        let holds = (0..2000).filter(|_| {
            let text = simulated(&mut random, windows);
            let of: Vec<&[f64]> = text.iter().map(|w| &w[..]).collect();
            let found = clustered(&of);
            found.mean().abs() <= half(&text, &found)
        });
        holds.count() as f64 / 2000.0
    }

    #[test]
    fn intervals_cover_the_mean_when_windows_differ() {
        let by_window = |_: &[Vec<f64>], found: &ClusteredMean| found.half_width().unwrap();
        let by_token = |text: &[Vec<f64>], found: &ClusteredMean| {
            let (mean, n) = (found.mean(), found.count() as f64);
            let squares = text
                .concat()
                .iter()
                .map(|v| (v - mean).powi(2))
                .sum::<f64>();
            1.96 * (squares / n / (n - 1.0)).sqrt()
        };
        for windows in [3, 8, 40] {
            let held = coverage(windows, by_window);
            assert!((0.935..0.965).contains(&held), "{windows}: {held}");
            let held = coverage(windows, by_token);
            assert!(held < 0.45, "{windows}: {held}");
        }
        let normal = |_: &[Vec<f64>], found: &ClusteredMean| 1.96 * found.standard_error().unwrap();
        assert!(coverage(3, normal) < 0.85);
    }

    #[test]
    fn student_tails_match_closed_forms() {
        for degrees in [1, 2, 3, 7, 8, 30, 999] {
            for probability in [0.3, 0.5, 0.9, 0.95, 0.999] {
                let t = student_quantile(degrees, probability).unwrap();
                let found = student_beyond(t, degrees);
                assert!(
                    (found - (1.0 - probability)).abs() < 1e-12,
                    "{degrees}: {found}"
                );
                assert_eq!(found, student_beyond(-t, degrees));
            }
        }
        for t in [0.0_f64, 0.25, 1.0, 3.0, 1e3, 1e8] {
            let one = if t == 0.0 {
                1.0
            } else {
                FRAC_2_PI * (1.0 / t).atan()
            };
            let root = (2.0 + t * t).sqrt();
            let two = 2.0 / (root * (root + t));
            for (degrees, expected) in [(1, one), (2, two)] {
                let off = (student_beyond(t, degrees) / expected - 1.0).abs();
                assert!(off < 1e-11, "{degrees}, {t}: {off}");
            }
        }
    }

    #[test]
    fn published_t_give_the_published_p() {
        for (t, p) in [
            (53.878_320_479_777_24, 2.0 * 9.944_720_088_335_187e-11),
            (-0.743_424_930_389_223, 0.481_425_906_733_645_05),
        ] {
            let found = student_beyond(t, 7);
            assert!((found / p - 1.0).abs() < 1e-9, "{found} and {p}");
        }
    }

    #[test]
    fn normal_tails_match_the_tables() {
        for (z, p) in [
            (0.0, 1.0),
            (0.674_489_750_196_082, 0.5),
            (1.959_963_984_540_054, 0.05),
            (3.290_526_731_491_893, 1e-3),
            (-4.891_638_475_698_7, 1e-6),
            (6.109_410_204_869_2, 1e-9),
        ] {
            let found = normal_beyond(z);
            assert!((found / p - 1.0).abs() < 1e-9, "{z}: {found}");
        }
        let (below, above) = (normal_beyond(3.535_533_90), normal_beyond(3.535_533_91));
        assert!((below / above - 1.0).abs() < 1e-7, "{below} {above}");
    }
}
