//! Options of online adaptation.

use crate::error::ExecError;

/// Options of online adaptation.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct AdaptOptions {
    /// Capacity of the queue of rejected tokens.
    pub queue_capacity: usize,
    /// Rejected tokens before an update.
    pub rejections_per_update: usize,
    /// `η₀`: initial rate of Oja's rule, or the fraction of the divergence that a gradient step
    /// removes.
    pub rate: f64,
    /// `a` of `η_t = η₀ / t^a`. Above .5 the basis settles, at .5 it does not.
    pub exponent: f64,
    /// Rank of the gradient correction.
    pub rank: usize,
}

impl AdaptOptions {
    /// Returns the options of the papers.
    pub fn oja() -> Self {
        AdaptOptions {
            queue_capacity: 256,
            rejections_per_update: 4,
            rate: 0.01,
            exponent: 0.5,
            rank: 0,
        }
    }

    /// Returns options for gradients: constant rate, rank 16.
    pub fn gradient() -> Self {
        AdaptOptions {
            rate: 0.1,
            exponent: 0.0,
            rank: 16,
            ..AdaptOptions::oja()
        }
    }

    pub(super) fn check(&self) -> Result<(), ExecError> {
        let refuse = |what, expected, found| {
            Err(ExecError::OptionRange {
                what,
                expected,
                found,
            })
        };
        if self.queue_capacity == 0
            || self.rejections_per_update == 0
            || self.rejections_per_update > self.queue_capacity
        {
            let found = self.rejections_per_update as f64;
            return refuse("the gate", "1 to as many as the queue holds", found);
        }
        if !(self.rate > 0.0 && self.rate <= 1.0) {
            return refuse("the rate", "a number above 0 and at most 1", self.rate);
        }
        if !(0.0..=1.0).contains(&self.exponent) {
            return refuse("the exponent of the rate", "0 to 1", self.exponent);
        }
        Ok(())
    }
}
