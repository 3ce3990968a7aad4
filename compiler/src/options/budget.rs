//! Size budgets.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};

/// Size budget. All but those of the whole artifact are met from below, within one rank step.
#[derive(Clone, Copy, Debug, PartialEq, schemars::JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Budget {
    /// The same rank for every selected projection.
    Rank(#[serde(deserialize_with = "at_least_one")] usize),
    /// Full rank for every projection, stored as factors even if larger than the dense matrix;
    /// lossless except for rounding.
    #[serde(rename = "full")]
    FullRank,
    /// Parameters after over parameters before, of the selected projections.
    Ratio(#[serde(deserialize_with = "positive")] f64),
    /// Elements stored for the selected projections.
    Parameters(#[serde(deserialize_with = "at_least_one")] u64),
    /// Bytes stored for the selected projections, without alignment between tensors.
    Bytes(#[serde(deserialize_with = "at_least_one")] u64),
    /// Mean rank of all units; a dense unit counts with its full rank.
    MeanRank(#[serde(deserialize_with = "positive")] f64),
    /// Bytes of the whole artifact.
    FileSize(#[serde(deserialize_with = "at_least_one")] u64),
    /// Bytes of the whole artifact over those of the source.
    SourceFraction(#[serde(deserialize_with = "positive")] f64),
    /// Bits of the whole artifact per model parameter.
    Bits(#[serde(deserialize_with = "positive")] f64),
    /// No fixed total: [`Allocator::DiffPlan`](super::Allocator::DiffPlan) weighs energy against
    /// loss.
    Energy,
}

impl Budget {
    /// Returns the bytes of the whole artifact, if those are requested.
    pub fn file_size(self) -> Option<u64> {
        match self {
            Budget::FileSize(bytes) => Some(bytes),
            _ => None,
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Budget::Rank(rank) => write!(f, "--rank {rank}"),
            Budget::FullRank => write!(f, "--rank full"),
            Budget::Ratio(ratio) => write!(f, "--ratio {ratio}"),
            Budget::Parameters(total) => write!(f, "--parameters {total}"),
            Budget::Bytes(total) => write!(f, "--bytes {total}"),
            Budget::MeanRank(mean) => write!(f, "--mean-rank {mean}"),
            Budget::FileSize(total) => write!(f, "--target-size {total}"),
            Budget::SourceFraction(fraction) => {
                write!(f, "--target-size {}%", (1e6 * fraction).round() / 1e4)
            }
            Budget::Bits(bits) => write!(f, "--bpw {bits}"),
            Budget::Energy => f.write_str("(no budget)"),
        }
    }
}

/// Deserialises a whole number of at least 1.
pub(super) fn at_least_one<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    let number = u64::deserialize(deserializer)?;
    let found = Some(number).filter(|number| *number >= 1);
    found
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| de::Error::custom("expected a whole number from 1"))
}

fn positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let number = f64::deserialize(deserializer)?;
    if number > 0.0 && number.is_finite() {
        Ok(number)
    } else {
        Err(de::Error::custom("expected a finite number above 0"))
    }
}
