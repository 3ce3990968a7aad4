//! A linear map in any of its stored forms, usable at any rank up to its own.

use htc_formats::DType;

use crate::error::ExecError;

/// A matrix of the model where a backend has it.
#[derive(Clone, Debug)]
pub struct Placed<W> {
    pub(crate) weight: W,
    pub(crate) dtype: DType,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

/// `y = W x` of one slot, or of the head.
#[derive(Clone, Debug)]
pub enum Linear<W> {
    /// `W [out, in]` as it is.
    Dense(Placed<W>),
    /// `W ≈ B A`.
    LowRank {
        /// `A [rank, in]`, components in decreasing order of importance.
        a: Placed<W>,
        /// `B [out, rank]`.
        b: Placed<W>,
    },
    /// `W ≈ W̃ Pᵀ` with the basis `Pᵀ` of the slot's group, applied once for the group.
    SharedBasis {
        /// `W̃ [out, rank]`.
        projected: Placed<W>,
    },
    /// `W ≈ W₀ + B A`: a dense base, and what it lacks.
    Residual {
        /// `W₀ [out, in]`.
        base: Placed<W>,
        /// `A [rank, in]`, components in decreasing order of importance.
        a: Placed<W>,
        /// `B [out, rank]`.
        b: Placed<W>,
    },
    /// `W ≈ W₀ + W₁`: a dense base, and what it lacks, where that is in use.
    Refined {
        /// `W₀ [out, in]`.
        base: Placed<W>,
        /// `W₁ [out, in]`.
        refinement: Placed<W>,
        /// Its place among those of the model.
        place: usize,
    },
}

/// A share of each slot's rank, in (0, 1].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankFraction(f32);

impl RankFraction {
    /// Every slot at its own rank.
    pub const FULL: RankFraction = RankFraction(1.0);

    /// # Errors
    /// [`ExecError::RankFraction`] outside (0, 1].
    pub fn new(fraction: f32) -> Result<Self, ExecError> {
        if fraction > 0.0 && fraction <= 1.0 {
            Ok(RankFraction(fraction))
        } else {
            Err(ExecError::RankFraction(fraction))
        }
    }

    /// The number of leading components used of a slot with `rank` of them: at least one.
    pub fn of(self, rank: usize) -> usize {
        ((self.0 * rank as f32).round() as usize).clamp(1.min(rank), rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_keeps_at_least_one_component_and_never_more_than_there_are() {
        assert_eq!(RankFraction::FULL.of(96), 96);
        let quarter = RankFraction::new(0.25).unwrap();
        assert_eq!(quarter.of(96), 24);
        assert_eq!(quarter.of(1), 1);
        assert_eq!(quarter.of(0), 0);
        for fraction in [0.0, -1.0, 1.01, f32::NAN] {
            assert!(RankFraction::new(fraction).is_err());
        }
    }
}
