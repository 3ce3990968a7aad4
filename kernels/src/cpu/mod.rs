//! CPU kernels of a forward pass.
//!
//! The kernels are methods of [`Cpu`]: one instruction set on the threads of one pool. [`Cpu::new`]
//! selects the best one of the processor, named by [`instruction_set`]; [`Cpu::each`] returns all
//! of them. Every method checks its shapes before it writes.
//!
//! Activations are `f32`. A product with one vector ([`Cpu::matvec`], [`Cpu::project`]) decodes
//! floating-point weights in registers; for quantised weights it quantises the vector too and adds
//! in integers. A product with several vectors ([`Cpu::matmul`]) decodes rows into the caches and
//! multiplies them there, large batches with the `gemm` crate.
//!
//! Code for instruction set extensions is in a file per instruction set, behind a table of safe
//! functions that is returned only if the processor supports them.

/// A `for` loop over a range, for constant functions.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", test))]
macro_rules! const_for {
    ($i:ident in $start:literal..$end:expr => $body:block) => {
        let mut $i = $start;
        while $i < $end {
            $body
            $i += 1;
        }
    };
}

mod activations;
mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod bands;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod blocks;
mod dot;
mod elementwise;
mod gemm;
mod hadamard;
mod heads;
mod int_gemm;
mod kernels;
mod kv;
mod lanes;
mod low_rank;
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

use std::sync::Arc;

pub use attention::Attention;
pub(crate) use hadamard::check_hadamard;
pub use hadamard::hadamard_block;
pub use kv::{F16Error, KvNumbers, KvView};
pub use low_rank::{LowRankShape, LowRankView, SmallMatrix};
pub use moments::{COLUMN_STEP, MAX_COLUMNS};
pub use project::{Factor, Input, Projection};
pub use scratch::Scratch;

use crate::pool::{Pool, PoolError};
use kernels::Kernels;

/// Kernels of one instruction set on the threads of one pool. Cloning shares the pool.
#[derive(Clone)]
pub struct Cpu {
    kernels: &'static Kernels,
    pool: Arc<Pool>,
}

impl Cpu {
    /// Selects the best kernels of the processor.
    pub fn new(pool: Arc<Pool>) -> Self {
        let kernels = kernels::detected();
        Cpu { kernels, pool }
    }

    /// Same as [`Cpu::new`] on a new pool.
    ///
    /// # Errors
    /// As [`Pool::new`].
    pub fn with_threads(threads: usize) -> Result<Self, PoolError> {
        Ok(Cpu::new(Arc::new(Pool::new(threads)?)))
    }

    /// Returns one instance per supported instruction set, the best first, the portable one last.
    /// For comparisons.
    pub fn each(pool: &Arc<Pool>) -> Vec<Self> {
        let of = |kernels| Cpu {
            kernels,
            pool: Arc::clone(pool),
        };
        kernels::available().into_iter().map(of).collect()
    }

    /// Returns the name of these kernels, see [`instruction_set`].
    pub fn instruction_set(&self) -> &'static str {
        self.kernels.name
    }

    /// Returns the thread pool.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }
}

impl std::fmt::Debug for Cpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cpu")
            .field("instruction_set", &self.kernels.name)
            .field("pool", &self.pool)
            .finish()
    }
}

/// Returns `N` bytes from `at`.
#[inline(always)]
fn subarray<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    let (parts, _) = bytes[at..at + N].as_chunks::<N>();
    &parts[0]
}

/// Returns the six-bit sub-block scales and minima of a q4_k or q5_k block as sixteen bytes `[scale
/// 0..8, minimum 0..8]`, lowest first.
#[inline(always)]
fn six_bit_scales(packed: &[u8; 12]) -> u128 {
    let word = |at: usize| u32::from_le_bytes(*subarray(packed, at));
    let (a, b, c) = (word(0), word(4), word(8));
    let scales_low = a & 0x3f3f_3f3f;
    let mins_low = b & 0x3f3f_3f3f;
    let scales_high = (c & 0x0f0f_0f0f) | ((a >> 2) & 0x3030_3030);
    let mins_high = ((c >> 4) & 0x0f0f_0f0f) | ((b >> 2) & 0x3030_3030);
    u128::from(scales_low)
        | u128::from(scales_high) << 32
        | u128::from(mins_low) << 64
        | u128::from(mins_high) << 96
}

/// Returns the instruction set of [`Cpu::new`]: `x86-64-v4` or `x86-64-v3`, optionally with
/// `-vnni`, the first with `-vbmi` for both extensions; `aarch64-dotprod`, `aarch64-neon` or
/// `baseline`.
pub fn instruction_set() -> &'static str {
    kernels::detected().name
}
