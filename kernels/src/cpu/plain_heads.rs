//! Portable kernels of attention; registers are arrays.

use half::f16;

use super::heads::{AttentionKernels, ColumnOperands, attention_kernels, decode_kernels};

/// Portable kernels.
pub(super) const KERNELS: AttentionKernels = AttentionKernels {
    lanes: LANES,
    f16_to_f32: f16_to_f32_slice,
    f32_to_f16: f32_to_f16_slice,
    scores: f16_heads::scores,
    weighted_sum: f16_heads::weighted_sum,
    scores_f32: f32_heads::scores,
    weighted_sum_f32: f32_heads::weighted_sum,
    gemm_columns,
};

attention_kernels!([inline], Register);

const LANES: usize = 4;
const REGISTERS: usize = 2;
const COLUMN_ROWS: usize = 6;
const VALUE_PARTS: usize = 2;

type Register = [f32; LANES];

#[inline(always)]
fn zero() -> Register {
    [0.0; LANES]
}

#[inline(always)]
fn add(a: Register, b: Register) -> Register {
    std::array::from_fn(|i| a[i] + b[i])
}

#[inline(always)]
fn mul(a: Register, b: Register) -> Register {
    std::array::from_fn(|i| a[i] * b[i])
}

#[inline(always)]
fn fma(a: Register, b: Register, c: Register) -> Register {
    std::array::from_fn(|i| a[i] * b[i] + c[i])
}

#[inline(always)]
fn broadcast(x: f32) -> Register {
    [x; LANES]
}

#[inline(always)]
fn horizontal_sums(a: [Register; 4]) -> [f32; 4] {
    a.map(|[a, b, c, d]| (a + b) + (c + d))
}

#[inline(always)]
fn load(x: &[f32; LANES]) -> Register {
    *x
}

#[inline(always)]
fn load_first(x: &[f32]) -> Register {
    let mut first = zero();
    for (first, x) in first.iter_mut().zip(x) {
        *first = *x;
    }
    first
}

#[inline(always)]
fn store(x: &mut [f32; LANES], value: Register) {
    *x = value;
}

#[inline(always)]
fn load_halves(halves: &[u16; LANES]) -> Register {
    halves.map(|half| f16::from_bits(half).to_f32())
}

#[inline(always)]
fn store_halves(halves: &mut [u16; LANES], numbers: Register) {
    *halves = numbers.map(|number| f16::from_f32(number).to_bits());
}
