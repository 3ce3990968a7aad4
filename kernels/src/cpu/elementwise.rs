//! Norms, activations and the rotary embedding.

use htc_formats::model::RopePairs;

use super::Cpu;
use crate::error::{ShapeError, check_rope, check_rows, check_size};
use crate::pool::Pool;

const NUMBERS_PER_TASK: usize = 16 << 10;

impl Cpu {
    /// Computes `out = x / sqrt(mean(x²) + eps) * weight` for every row of `x [n, width]`, where
    /// `width` is the length of `weight`.
    ///
    /// # Errors
    /// When `x` is not a whole number of rows or `out` is not as long as `x`.
    pub fn rms_norm(
        &self,
        x: &[f32],
        weight: &[f32],
        eps: f32,
        out: &mut [f32],
    ) -> Result<(), ShapeError> {
        let width = weight.len();
        check_rows("x (numbers, a multiple of the width)", width, x.len())?;
        check_size("out (numbers)", x.len(), out.len())?;
        if width == 0 {
            return Ok(());
        }
        let task = (NUMBERS_PER_TASK / width).max(1) * width;
        self.pool.chunks_mut(out, task, |index, out| {
            let x = &x[index * task..][..out.len()];
            for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
                (self.kernels.loops.rms_norm)(x, weight, eps, out);
            }
        });
        Ok(())
    }

    /// Computes `x = x / sqrt(mean(x²) + eps) * weight` for every row of `x [n, width]`, where
    /// `width` is the length of `weight`, e.g. for the heads of queries or keys.
    ///
    /// # Errors
    /// When `x` is not a whole number of rows.
    pub fn rms_norm_in_place(
        &self,
        x: &mut [f32],
        weight: &[f32],
        eps: f32,
    ) -> Result<(), ShapeError> {
        let norm = |row: &mut [f32]| (self.kernels.loops.rms_norm_in_place)(row, weight, eps);
        for_each_row(&self.pool, x, weight.len(), norm)
    }

    /// Computes `x += bias` for every row of `x [n, width]`, where `width` is the length of `bias`.
    ///
    /// # Errors
    /// When `x` is not a whole number of rows.
    pub fn add_bias(&self, x: &mut [f32], bias: &[f32]) -> Result<(), ShapeError> {
        for_each_row(&self.pool, x, bias.len(), |row| {
            (self.kernels.loops.add_assign)(row, bias)
        })
    }

    /// Rotates the pairs of numbers of every head of `x [heads, head_size]` by angles given as
    /// cosines and sines, one per pair; the other numbers are unchanged. Pair `i` is `(2i, 2i + 1)`
    /// or `(i, i + cos.len())`.
    ///
    /// # Errors
    /// When `x` is not a whole number of heads, `sin` is not as long as `cos`, or the pairs do not
    /// fit in a head.
    pub fn rope(
        &self,
        pairs: RopePairs,
        x: &mut [f32],
        head_size: usize,
        cos: &[f32],
        sin: &[f32],
    ) -> Result<(), ShapeError> {
        check_rope(x.len(), head_size, cos.len(), sin.len())?;
        let rotate = match pairs {
            RopePairs::Adjacent => self.kernels.loops.rope_adjacent,
            RopePairs::Halves => self.kernels.loops.rope_halves,
        };
        for head in x.chunks_exact_mut(head_size.max(1)) {
            rotate(head, cos, sin);
        }
        Ok(())
    }

    /// Computes `gate = gate / (1 + exp(-gate)) * up`; relative error of the exponential below
    /// 3e-7.
    ///
    /// # Errors
    /// When the lengths differ.
    pub fn silu_mul(&self, gate: &mut [f32], up: &[f32]) -> Result<(), ShapeError> {
        self.for_each_pair("up (numbers)", gate, up, self.kernels.loops.silu_mul)
    }

    /// Computes `gate = gelu(gate) * up` with the tanh approximation `gelu(x) = x (1 + tanh(sqrt(2
    /// / π) (x + 0.044715 x³))) / 2`, as PyTorch's `tanh`.
    ///
    /// # Errors
    /// When the lengths differ.
    pub fn gelu_mul(&self, gate: &mut [f32], up: &[f32]) -> Result<(), ShapeError> {
        self.for_each_pair("up (numbers)", gate, up, self.kernels.loops.gelu_mul)
    }

    /// Computes `x = cap * tanh(x / cap)` for `cap > 0`; error of the tanh below 3e-7.
    pub fn softcap(&self, x: &mut [f32], cap: f32) {
        self.pool.chunks_mut(x, NUMBERS_PER_TASK, |_, x| {
            (self.kernels.loops.softcap)(x, cap)
        });
    }

    /// Computes `x *= factor`.
    pub fn scale(&self, x: &mut [f32], factor: f32) {
        self.pool.chunks_mut(x, NUMBERS_PER_TASK, |_, x| {
            (self.kernels.loops.scale)(x, factor)
        });
    }

    /// Computes `x += y`.
    ///
    /// # Errors
    /// When the lengths differ.
    pub fn add_assign(&self, x: &mut [f32], y: &[f32]) -> Result<(), ShapeError> {
        self.for_each_pair("y (numbers)", x, y, self.kernels.loops.add_assign)
    }

    /// Calls `f` with parts of `x` and `y`, which must be equally long.
    fn for_each_pair(
        &self,
        what: &'static str,
        x: &mut [f32],
        y: &[f32],
        f: fn(&mut [f32], &[f32]),
    ) -> Result<(), ShapeError> {
        check_size(what, x.len(), y.len())?;
        self.pool.chunks_mut(x, NUMBERS_PER_TASK, |index, x| {
            f(x, &y[index * NUMBERS_PER_TASK..][..x.len()]);
        });
        Ok(())
    }
}

/// Calls `f` with every row of `x [n, width]`.
fn for_each_row(
    pool: &Pool,
    x: &mut [f32],
    width: usize,
    f: impl Fn(&mut [f32]) + Sync,
) -> Result<(), ShapeError> {
    check_rows("x (numbers, a multiple of the width)", width, x.len())?;
    if width == 0 {
        return Ok(());
    }
    pool.chunks_mut(x, (NUMBERS_PER_TASK / width).max(1) * width, |_, x| {
        x.chunks_exact_mut(width).for_each(&f);
    });
    Ok(())
}
