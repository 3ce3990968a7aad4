//! Shrinkage of second moments towards the identity.

use std::fmt;
use std::str::FromStr;

use crate::math::DEFAULT_SHRINKAGE;

/// Shrinkage `s` of [`Gauge::whiten`](crate::math::Gauge::whiten), which takes the root of `(1 − s)
/// C + s tr(C)/n I`. At 0 directions are weighted as in calibration, at 1 equally. Text of another
/// kind excites directions that are rare in calibration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shrinkage(f64);

/// The value is never NaN.
impl Eq for Shrinkage {}

impl Shrinkage {
    /// Candidates of the search. Smaller values than the default make no measurable difference;
    /// text of another kind prefers large ones.
    pub const CANDIDATES: [Shrinkage; 5] = [
        Shrinkage(DEFAULT_SHRINKAGE),
        Shrinkage(0.03),
        Shrinkage(0.1),
        Shrinkage(0.3),
        Shrinkage(0.6),
    ];

    /// Returns a shrinkage from 0 to 1; `None` outside.
    pub fn new(part: f64) -> Option<Shrinkage> {
        (0.0..=1.0).contains(&part).then_some(Shrinkage(part))
    }

    /// Returns the value.
    pub fn value(self) -> f64 {
        self.0
    }
}

impl Default for Shrinkage {
    fn default() -> Self {
        Shrinkage(DEFAULT_SHRINKAGE)
    }
}

impl fmt::Display for Shrinkage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Requested shrinkage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShrinkageArg {
    /// The value with the best result on held-out text.
    Auto,
    /// A fixed value.
    Fixed(Shrinkage),
}

impl fmt::Display for ShrinkageArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShrinkageArg::Auto => f.write_str("auto"),
            ShrinkageArg::Fixed(part) => part.fmt(f),
        }
    }
}

impl FromStr for ShrinkageArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let part = || text.parse().ok().and_then(Shrinkage::new);
        match text {
            "auto" => Ok(ShrinkageArg::Auto),
            _ => part()
                .map(ShrinkageArg::Fixed)
                .ok_or_else(|| "expected auto or a number from 0 to 1".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests;
