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

use statrs::distribution::{ContinuousCDF as _, StudentsT};

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

/// Returns the two-sided 95 % quantile of Student's t; `None` for zero degrees of freedom.
fn student(degrees: usize) -> Option<f64> {
    let distribution = StudentsT::new(0.0, 1.0, degrees as f64).ok()?;
    Some(distribution.inverse_cdf(0.5 * (1.0 + CONFIDENCE)))
}

#[cfg(test)]
mod tests;
