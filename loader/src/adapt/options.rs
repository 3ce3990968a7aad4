//! What there is to choose about a draft that learns.

use super::AdaptError;

/// When and how far a draft learns.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct AdaptOptions {
    /// Tokens not kept that wait for an update at most; the oldest is dropped and counted.
    pub queue: usize,
    /// Tokens not kept before an update.
    pub gate: usize,
    /// `η₀`: of Oja's rule for the first sample; by gradient the part of the divergence that a step takes away.
    pub rate: f64,
    /// `a` of `η_t = η₀ / t^a`. At .5 the squares of the rates do not sum to a finite number, so that the basis never
    /// comes to rest; above it, up to 1, it does.
    pub exponent: f64,
    /// Rank of the correction by gradient.
    pub rank: usize,
}

impl AdaptOptions {
    /// As the papers say: `η_t = 0.01 / √t`, a queue of 256, updates of 4.
    pub fn oja() -> Self {
        AdaptOptions {
            queue: 256,
            gate: 4,
            rate: 0.01,
            exponent: 0.5,
            rank: 0,
        }
    }

    /// Steps of a constant rate on a correction of rank 16.
    pub fn gradient() -> Self {
        AdaptOptions {
            rate: 0.1,
            exponent: 0.0,
            rank: 16,
            ..AdaptOptions::oja()
        }
    }

    pub(super) fn check(&self) -> Result<(), AdaptError> {
        let refuse = |what, expected, found| {
            Err(AdaptError::Option {
                what,
                expected,
                found,
            })
        };
        if self.queue == 0 || self.gate == 0 || self.gate > self.queue {
            let found = self.gate as f64;
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
