//! Linear maps in all storage forms, at any rank up to the stored one.

use htc_formats::DType;

use crate::backend::{Backend, Input, Product};
use crate::error::ExecError;

/// A matrix on a backend.
#[derive(Clone, Debug)]
pub struct Placed<W> {
    pub(crate) weight: W,
    pub(crate) dtype: DType,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

impl<W> Placed<W> {
    /// Returns the product with the first `cols` columns.
    pub(crate) fn product<'a, B: Backend<Weight = W>>(
        &'a self,
        cols: usize,
        input: Input,
        y: &'a mut B::Buffer,
    ) -> Product<'a, B> {
        Product {
            weight: &self.weight,
            rows: self.rows,
            cols,
            input,
            y,
        }
    }
}

/// Linear map `y = W x` of a projection or the head.
#[derive(Clone, Debug)]
pub enum Linear<W> {
    /// `W [out, in]`.
    Dense(Placed<W>),
    /// `W ≈ B A`.
    LowRank {
        /// `A [rank, in]`, components in decreasing order of importance.
        a: Placed<W>,
        /// `B [out, rank]`.
        b: Placed<W>,
    },
    /// `W ≈ W̃ Pᵀ` with the group's basis `Pᵀ`, applied once per group.
    SharedBasis {
        /// `W̃ [out, rank]`.
        projected: Placed<W>,
    },
    /// `W ≈ W₀ + B A`: a dense base and a low-rank residual.
    Residual {
        /// `W₀ [out, in]`.
        base: Placed<W>,
        /// `A [rank, in]`, components in decreasing order of importance.
        a: Placed<W>,
        /// `B [out, rank]`.
        b: Placed<W>,
    },
    /// `W ≈ W₀ + W₁`: a dense base and an optional refinement.
    Refined {
        /// `W₀ [out, in]`.
        base: Placed<W>,
        /// `W₁ [out, in]`.
        refinement: Placed<W>,
        /// Index of the refinement in the model.
        place: usize,
    },
}

/// Share of each projection's rank, in (0, 1].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankFraction(f32);

impl RankFraction {
    /// Full rank.
    pub const FULL: RankFraction = RankFraction(1.0);

    /// Creates a fraction.
    ///
    /// # Errors
    /// [`ExecError::RankFraction`] outside (0, 1].
    pub fn new(fraction: f32) -> Result<Self, ExecError> {
        if fraction > 0.0 && fraction <= 1.0 {
            Ok(RankFraction(fraction))
        } else {
            Err(ExecError::RankFraction(fraction))
        }
    }

    /// Returns the number of leading components out of `rank`, at least one.
    pub fn active_rank(self, rank: usize) -> usize {
        ((self.0 * rank as f32).round() as usize).clamp(1.min(rank), rank)
    }
}

#[cfg(test)]
mod tests;
