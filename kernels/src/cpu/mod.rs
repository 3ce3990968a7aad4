//! The kernels of a forward pass on the processor.
//!
//! The instruction set is found once, at the first call; [`instruction_set`] names it. Every
//! function checks its shapes before it writes.
//!
//! Activations are `f32`. A product with one vector ([`matvec()`], [`project()`]) decodes weights that
//! are floating-point numbers in registers; where they are quantised it quantises the vector too and
//! adds in integers. One with several vectors ([`matmul()`]) decodes rows into the caches and
//! multiplies them there, many of them with the `gemm` crate.
//!
//! What needs a processor's extra instructions stands in a file per instruction set, behind a
//! table of safe functions that is only handed out where the processor has them.

mod activations;
mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod blocks;
mod dot;
mod elementwise;
mod gemm;
mod heads;
mod int_gemm;
mod kernels;
mod kv;
mod lanes;
mod matmul;
mod matvec;
mod moments;
#[cfg(target_arch = "aarch64")]
mod neon;
mod plain;
mod plain_heads;
mod project;
mod scratch;
#[cfg(test)]
mod tests;

pub use attention::{Attention, attention_decode, attention_prefill};
pub use elementwise::{
    add_assign, add_bias, gelu_mul, rms_norm, rms_norm_in_place, rope, scale, silu_mul, softcap,
    softmax_in_place,
};
pub use kv::{F16Error, KvNumbers, KvView, to_f16};
pub use matmul::matmul;
pub use matvec::{embed, matvec};
pub use moments::{COLUMN_STEP, MOST_COLUMNS, add_cross_products, add_rows};
pub use project::{Factor, Input, Slot, project};
pub use scratch::Scratch;

/// The instruction set the kernels were chosen for: `x86-64-v4` or `x86-64-v3`, both of them
/// perhaps with `-vnni` behind, `aarch64-dotprod`, `aarch64-neon` or `baseline`.
pub fn instruction_set() -> &'static str {
    kernels::detected().name
}
