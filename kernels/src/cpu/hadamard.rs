//! Walsh–Hadamard transform of heads.

use super::Cpu;
use crate::error::{ShapeError, check_rows};

/// Size of a task, so that a single position stays on one thread.
const NUMBERS_PER_TASK: usize = 1 << 14;

/// Returns the block size of [`Cpu::hadamard`] for heads of `size`: the largest power of two that
/// divides it; 1 (no transform) for odd sizes, 0 for 0.
pub fn hadamard_block(size: usize) -> usize {
    match size {
        0 => 0,
        size => 1 << size.trailing_zeros(),
    }
}

impl Cpu {
    /// Applies the normalised Walsh–Hadamard transform to every block of a head, in place: `x [n,
    /// size]`, blocks of [`hadamard_block`] numbers. It is orthogonal and symmetric, so it
    /// preserves inner products and is self-inverse; it spreads outliers over the block, which
    /// reduces quantisation error (QuaRot, Ashkboos et al. 2024).
    ///
    /// # Errors
    /// When `x` is not whole heads or `size` is odd or 0.
    pub fn hadamard(&self, x: &mut [f32], size: usize) -> Result<(), ShapeError> {
        let block = check_hadamard(x.len(), size)?;
        let factor = 1.0 / (block as f32).sqrt();
        self.pool
            .chunks_mut(x, NUMBERS_PER_TASK.next_multiple_of(size), |_, x| {
                for x in x.chunks_exact_mut(block) {
                    let mut half = 1;
                    while half < block {
                        for pair in x.chunks_exact_mut(2 * half) {
                            let (a, b) = pair.split_at_mut(half);
                            for (a, b) in a.iter_mut().zip(b) {
                                (*a, *b) = (*a + *b, *a - *b);
                            }
                        }
                        half *= 2;
                    }
                    for x in x {
                        *x *= factor;
                    }
                }
            });
        Ok(())
    }
}

/// Checks the shape and returns the block size of a transform of `numbers` in heads of `size`.
pub(crate) fn check_hadamard(numbers: usize, size: usize) -> Result<usize, ShapeError> {
    check_rows("x (numbers, a multiple of the head size)", size, numbers)?;
    let what = "head size (numbers of a block that can be mixed, at least)";
    match hadamard_block(size) {
        block @ (0 | 1) => Err(ShapeError::new(what, 2, block)),
        block => Ok(block),
    }
}
