//! The rotary embedding of a batch.

use htc_formats::model::RopePairs;
use htc_kernels::cpu;

use crate::error::ExecError;

/// Cosines and sines `[n, rotated pairs]` of the positions of a batch.
#[derive(Default)]
pub(super) struct Rotation {
    pairs: usize,
    /// The first position.
    start: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Rotation {
    /// The positions from `start` on; always with the same frequencies and the same factor. The
    /// angles are float64: at position 100,000 a float32 angle is off by 0.004 radians.
    pub fn fill(&mut self, start: usize, n: usize, frequencies: &[f64], factor: f32) {
        // Where blocks are executed one by one, the same positions come again.
        let filled = (self.start, self.cos.len(), self.pairs);
        if filled == (start, n * frequencies.len(), frequencies.len()) {
            return;
        }
        (self.start, self.pairs) = (start, frequencies.len());
        self.cos.clear();
        self.sin.clear();
        for position in start..start + n {
            for &frequency in frequencies {
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                self.cos.push(cos as f32 * factor);
                self.sin.push(sin as f32 * factor);
            }
        }
    }

    /// Rotates every head of rows of `width` numbers.
    pub fn apply(
        &self,
        pairs: RopePairs,
        x: &mut [f32],
        width: usize,
        head_size: usize,
    ) -> Result<(), ExecError> {
        let (cos, sin) = (
            self.cos.chunks_exact(self.pairs),
            self.sin.chunks_exact(self.pairs),
        );
        for ((row, cos), sin) in x.chunks_exact_mut(width).zip(cos).zip(sin) {
            cpu::rope(pairs, row, head_size, cos, sin)?;
        }
        Ok(())
    }
}
