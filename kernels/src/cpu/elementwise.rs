//! Norms, activations and the rotary embedding.

use htc_formats::model::RopePairs;

use super::kernels::{self, Kernels};
use crate::error::{ShapeError, expect, expect_rope, expect_rows};
use crate::pool::Pool;

/// Numbers in one task of an elementwise kernel; fewer are not worth a fork.
const TASK: usize = 16 << 10;

/// `out = x / sqrt(mean(x²) + eps) * weight` for every row of `x [n, width]`, where `width` is the
/// length of `weight`.
///
/// # Errors
/// When `x` is not a whole number of rows or `out` is not as long as `x`.
pub fn rms_norm(
    pool: &Pool,
    x: &[f32],
    weight: &[f32],
    eps: f32,
    out: &mut [f32],
) -> Result<(), ShapeError> {
    rms_norm_with(kernels::detected(), pool, x, weight, eps, out)
}

pub(super) fn rms_norm_with(
    kernels: &Kernels,
    pool: &Pool,
    x: &[f32],
    weight: &[f32],
    eps: f32,
    out: &mut [f32],
) -> Result<(), ShapeError> {
    let width = weight.len();
    expect_rows("x (numbers, a multiple of the width)", width, x.len())?;
    expect("out (numbers)", x.len(), out.len())?;
    if width == 0 {
        return Ok(());
    }
    let task = (TASK / width).max(1) * width;
    pool.chunks_mut(out, task, |index, out| {
        let x = &x[index * task..][..out.len()];
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            (kernels.loops.rms_norm)(x, weight, eps, out);
        }
    });
    Ok(())
}

/// `x = x / sqrt(mean(x²) + eps) * weight` for every row of `x [n, width]`, where `width` is the
/// length of `weight`: the norm of every head of queries or keys, for one.
///
/// # Errors
/// When `x` is not a whole number of rows.
pub fn rms_norm_in_place(
    pool: &Pool,
    x: &mut [f32],
    weight: &[f32],
    eps: f32,
) -> Result<(), ShapeError> {
    rms_norm_in_place_with(kernels::detected(), pool, x, weight, eps)
}

pub(super) fn rms_norm_in_place_with(
    kernels: &Kernels,
    pool: &Pool,
    x: &mut [f32],
    weight: &[f32],
    eps: f32,
) -> Result<(), ShapeError> {
    let normed = |row: &mut [f32]| (kernels.loops.rms_norm_in_place)(row, weight, eps);
    each_row(pool, x, weight.len(), normed)
}

/// `x += bias` for every row of `x [n, width]`, where `width` is the length of `bias`.
///
/// # Errors
/// When `x` is not a whole number of rows.
pub fn add_bias(pool: &Pool, x: &mut [f32], bias: &[f32]) -> Result<(), ShapeError> {
    add_bias_with(kernels::detected(), pool, x, bias)
}

pub(super) fn add_bias_with(
    kernels: &Kernels,
    pool: &Pool,
    x: &mut [f32],
    bias: &[f32],
) -> Result<(), ShapeError> {
    each_row(pool, x, bias.len(), |row| {
        (kernels.loops.add_assign)(row, bias)
    })
}

/// Calls `f` with every row of `x [n, width]`.
fn each_row(
    pool: &Pool,
    x: &mut [f32],
    width: usize,
    f: impl Fn(&mut [f32]) + Sync,
) -> Result<(), ShapeError> {
    expect_rows("x (numbers, a multiple of the width)", width, x.len())?;
    if width == 0 {
        return Ok(());
    }
    pool.chunks_mut(x, (TASK / width).max(1) * width, |_, x| {
        x.chunks_exact_mut(width).for_each(&f);
    });
    Ok(())
}

/// Turns the pairs of numbers of every head of `x [heads, head_size]` by the angles whose cosines
/// and sines are given, one for each pair; what belongs to no pair stays. Pair `i` is `(2i, 2i + 1)`
/// or `(i, i + cos.len())`.
///
/// # Errors
/// When `x` is not a whole number of heads, `sin` is not as long as `cos`, or the pairs do not
/// fit in a head.
pub fn rope(
    pairs: RopePairs,
    x: &mut [f32],
    head_size: usize,
    cos: &[f32],
    sin: &[f32],
) -> Result<(), ShapeError> {
    rope_with(kernels::detected(), pairs, x, head_size, cos, sin)
}

pub(super) fn rope_with(
    kernels: &Kernels,
    pairs: RopePairs,
    x: &mut [f32],
    head_size: usize,
    cos: &[f32],
    sin: &[f32],
) -> Result<(), ShapeError> {
    expect_rope(x.len(), head_size, cos.len(), sin.len())?;
    let turn = match pairs {
        RopePairs::Adjacent => kernels.loops.rope_adjacent,
        RopePairs::Halves => kernels.loops.rope_halves,
    };
    for head in x.chunks_exact_mut(head_size.max(1)) {
        turn(head, cos, sin);
    }
    Ok(())
}

/// `gate = gate / (1 + exp(-gate)) * up`, with the exponential's relative error below 3e-7.
///
/// # Errors
/// When the lengths differ.
pub fn silu_mul(pool: &Pool, gate: &mut [f32], up: &[f32]) -> Result<(), ShapeError> {
    silu_mul_with(kernels::detected(), pool, gate, up)
}

pub(super) fn silu_mul_with(
    kernels: &Kernels,
    pool: &Pool,
    gate: &mut [f32],
    up: &[f32],
) -> Result<(), ShapeError> {
    expect("up (numbers)", gate.len(), up.len())?;
    pool.chunks_mut(gate, TASK, |index, gate| {
        (kernels.loops.silu_mul)(gate, &up[index * TASK..][..gate.len()]);
    });
    Ok(())
}

/// `gate = gelu(gate) * up`, with the tangent approximation
/// `gelu(x) = x (1 + tanh(sqrt(2 / π) (x + 0.044715 x³))) / 2`, which PyTorch calls `tanh`.
///
/// # Errors
/// When the lengths differ.
pub fn gelu_mul(pool: &Pool, gate: &mut [f32], up: &[f32]) -> Result<(), ShapeError> {
    gelu_mul_with(kernels::detected(), pool, gate, up)
}

pub(super) fn gelu_mul_with(
    kernels: &Kernels,
    pool: &Pool,
    gate: &mut [f32],
    up: &[f32],
) -> Result<(), ShapeError> {
    expect("up (numbers)", gate.len(), up.len())?;
    pool.chunks_mut(gate, TASK, |index, gate| {
        (kernels.loops.gelu_mul)(gate, &up[index * TASK..][..gate.len()]);
    });
    Ok(())
}

/// `x = cap * tanh(x / cap)` for a `cap` above 0, with the tangent's error below 3e-7.
pub fn softcap(pool: &Pool, x: &mut [f32], cap: f32) {
    softcap_with(kernels::detected(), pool, x, cap);
}

pub(super) fn softcap_with(kernels: &Kernels, pool: &Pool, x: &mut [f32], cap: f32) {
    pool.chunks_mut(x, TASK, |_, x| (kernels.loops.softcap)(x, cap));
}

/// `x *= factor`.
pub fn scale(pool: &Pool, x: &mut [f32], factor: f32) {
    pool.chunks_mut(x, TASK, |_, x| (kernels::detected().loops.scale)(x, factor));
}

/// `x += y`.
///
/// # Errors
/// When the lengths differ.
pub fn add_assign(pool: &Pool, x: &mut [f32], y: &[f32]) -> Result<(), ShapeError> {
    add_assign_with(kernels::detected(), pool, x, y)
}

pub(super) fn add_assign_with(
    kernels: &Kernels,
    pool: &Pool,
    x: &mut [f32],
    y: &[f32],
) -> Result<(), ShapeError> {
    expect("y (numbers)", x.len(), y.len())?;
    pool.chunks_mut(x, TASK, |index, x| {
        (kernels.loops.add_assign)(x, &y[index * TASK..][..x.len()]);
    });
    Ok(())
}

/// `x = exp(x) / Σ exp(x)`, with the maximum taken out first. An empty slice stays empty.
pub fn softmax_in_place(x: &mut [f32]) {
    softmax_with(kernels::detected(), x);
}

pub(super) fn softmax_with(kernels: &Kernels, x: &mut [f32]) {
    let max = (kernels.loops.max)(x);
    let sum = (kernels.loops.exp_sum)(x, max);
    (kernels.loops.scale)(x, 1.0 / sum);
}
