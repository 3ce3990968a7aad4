//! The kernels of a forward pass on the processor.
//!
//! They are methods of [`Cpu`]: the kernels of one instruction set on the threads of one pool.
//! [`Cpu::new`] takes the best that the processor has, which is found once and which
//! [`instruction_set`] names; [`Cpu::each`] gives all of them. Every method checks its shapes
//! before it writes.
//!
//! Activations are `f32`. A product with one vector ([`Cpu::matvec`], [`Cpu::project`]) decodes
//! weights that are floating-point numbers in registers; where they are quantised it quantises the
//! vector too and adds in integers. One with several vectors ([`Cpu::matmul`]) decodes rows into the
//! caches and multiplies them there, many of them with the `gemm` crate.
//!
//! What needs a processor's extra instructions stands in a file per instruction set, behind a
//! table of safe functions that is only handed out where the processor has them.

mod activations;
mod apart;
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
pub use moments::{COLUMN_STEP, MOST_COLUMNS};
pub use project::{Factor, Input, Slot};
pub use scratch::Scratch;

use crate::pool::{Pool, PoolError};
use kernels::Kernels;

/// The kernels of one instruction set on the threads of one pool. Cloning shares the pool.
#[derive(Clone)]
pub struct Cpu {
    kernels: &'static Kernels,
    pool: Arc<Pool>,
}

impl Cpu {
    /// The best kernels that the processor has.
    pub fn new(pool: Arc<Pool>) -> Self {
        let kernels = kernels::detected();
        Cpu { kernels, pool }
    }

    /// As [`Cpu::new`], on a pool of its own.
    ///
    /// # Errors
    /// As [`Pool::new`].
    pub fn with_threads(threads: usize) -> Result<Self, PoolError> {
        Ok(Cpu::new(Arc::new(Pool::new(threads)?)))
    }

    /// One for each instruction set that has kernels of its own and that the processor has, the
    /// best first, the one for any processor last. For comparisons.
    pub fn each(pool: &Arc<Pool>) -> Vec<Self> {
        let of = |kernels| Cpu {
            kernels,
            pool: Arc::clone(pool),
        };
        kernels::available().into_iter().map(of).collect()
    }

    /// As the function [`instruction_set`], of these kernels.
    pub fn instruction_set(&self) -> &'static str {
        self.kernels.name
    }

    /// The threads.
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

/// The instruction set that [`Cpu::new`] chooses: `x86-64-v4` or `x86-64-v3`, both of them
/// perhaps with `-vnni` behind, the first with `-vbmi` where it has both extensions, `aarch64-dotprod`, `aarch64-neon` or `baseline`.
pub fn instruction_set() -> &'static str {
    kernels::detected().name
}
