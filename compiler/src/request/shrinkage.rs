//! How much of a second moment is replaced by what knows no direction.

use std::fmt;
use std::str::FromStr;

use crate::math::DEFAULT_SHRINKAGE;

/// The part `s` of [`Gauge::whiten`](crate::math::Gauge::whiten), which takes the root of
/// `(1 − s) C + s tr(C)/n I`: from 0, all directions count as calibration saw them, to 1, all count the same.
/// Text of another kind excites directions that calibration hardly saw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shrinkage(f64);

/// It is a number.
impl Eq for Shrinkage {}

impl Shrinkage {
    /// Those that are compared where the best is to be found. Below the default nothing changes that could
    /// be measured; text of another kind prefers large ones.
    pub const TRIED: [Shrinkage; 5] = [
        Shrinkage(DEFAULT_SHRINKAGE),
        Shrinkage(0.03),
        Shrinkage(0.1),
        Shrinkage(0.3),
        Shrinkage(0.6),
    ];

    /// A part of a whole; `None` for what is none.
    pub fn new(part: f64) -> Option<Shrinkage> {
        (0.0..=1.0).contains(&part).then_some(Shrinkage(part))
    }

    /// The part.
    pub fn part(self) -> f64 {
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

/// A shrinkage as it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShrinkageArg {
    /// The one that measures best on held-out text.
    Auto,
    /// This one.
    Part(Shrinkage),
}

/// As it is typed.
impl fmt::Display for ShrinkageArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShrinkageArg::Auto => f.write_str("auto"),
            ShrinkageArg::Part(part) => part.fmt(f),
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
                .map(ShrinkageArg::Part)
                .ok_or_else(|| "a shrinkage is auto or a number from 0 to 1".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_is_what_is_shown() {
        for text in ["auto", "0", "1", "0.01", "0.3"] {
            let parsed: ShrinkageArg = text.parse().unwrap();
            assert_eq!(parsed.to_string(), text);
        }
        for text in ["", "none", "-0.1", "1.1", "nan", "inf"] {
            assert!(text.parse::<ShrinkageArg>().is_err(), "{text}");
        }
        assert_eq!(Shrinkage::TRIED[0], Shrinkage::default());
    }
}
