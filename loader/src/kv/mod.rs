//! The KV cache: what attention remembers of earlier positions, and in how many bytes.
//!
//! A [`KvKind`] says how positions are stored, [`KvOptions`] all there is to choose. What is stored
//! where is data ([`KvLayout`]) that every backend's [`Kv`] carries; when positions are compressed,
//! bases updated and positions evicted is decided in one place for all backends, in front of a forward
//! pass and behind a prompt, and done by operations of the [`Backend`](crate::Backend).
//!
//! * `f32`, `f16`: every position as it is, or rounded.
//! * `q8_0`, `q4_0`: in blocks of 32 numbers with a scale, the types of GGUF; `-rotated` turns heads by
//!   a Hadamard transform first, which attention does not notice and rounding does (QuaRot, Ashkboos et
//!   al. 2024).
//! * `static`, `static-hybrid`, `oja`: coordinates `U_kᵀ k` and `U_vᵀ v` in a basis of each kv head, in
//!   float16 (OjaKV). The hybrid exempts the first and the last positions, and `oja` has its bases
//!   follow the text.
//!
//! Any of them may drop positions behind the prompt ([`KvOptions::keep`], as SnapKV does).

mod bases;
mod cache;
mod counters;
mod error;
mod evict;
mod keeper;
mod kind;
mod layout;
pub mod oja;
mod options;
pub(crate) mod rounding;
#[cfg(test)]
mod tests;

use htc_formats::model::HyperParameters;

pub use bases::{BasisSide, KvBases, LayerBases};
pub use cache::KvCache;
pub use counters::{KvCounters, KvUsage};
pub use error::KvError;
pub(crate) use keeper::Keeper;
pub use kind::{KvKind, KvRank, KvType};
pub(crate) use layout::FIRST_CAPACITY;
pub use layout::{Energies, Kept, KvLayout};
pub use options::{KvOptions, KvPlan, OjaOptions};

/// The shapes of a model's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Blocks.
    pub layers: usize,
    /// Key and value heads of a block.
    pub kv_heads: usize,
    /// Numbers of a head.
    pub head_size: usize,
}

impl From<&HyperParameters> for KvShape {
    fn from(hyper: &HyperParameters) -> Self {
        KvShape {
            layers: hyper.layers,
            kv_heads: hyper.kv_heads,
            head_size: hyper.head_size,
        }
    }
}

impl KvShape {
    /// Bytes of the keys and values of one position that is stored in full, in all layers. Heads are
    /// whole blocks of the type, for [`KvPlan`] refuses others.
    pub fn position_bytes(self, kv_type: KvType) -> usize {
        let dtype = kv_type.dtype();
        let head = self.head_size.div_ceil(dtype.block_len()) * dtype.block_bytes();
        2 * self.layers * self.kv_heads * head
    }
}

/// Keys and values of the positions read so far, wherever a backend has them.
pub trait Kv: Send {
    /// What is stored, and where.
    fn layout(&self) -> &KvLayout;

    /// The same, for whoever has moved something.
    fn layout_mut(&mut self) -> &mut KvLayout;

    /// Bytes allocated for keys and values.
    fn bytes(&self) -> usize;

    /// Positions of the sequence, those that were evicted included.
    fn len(&self) -> usize {
        self.layout().len()
    }

    /// Whether no position was read.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Counts `n` positions that every layer has appended.
    fn advance(&mut self, n: usize) {
        self.layout_mut().advance(n);
    }

    /// Forgets every position from `length` on; the memory is kept for what follows. Positions that
    /// were compressed stay so.
    fn truncate(&mut self, length: usize) {
        self.layout_mut().truncate(length);
    }

    /// Bytes of the keys and values of one more position in all layers, once it is stored as its kind
    /// says: those that are exempt from compression take more.
    fn bytes_per_position(&self) -> usize {
        self.layout().plan().bytes_per_position()
    }

    /// Positions that were evicted, each counted once for every layer that dropped it.
    fn evicted(&self) -> usize {
        let layout = self.layout();
        let layers = 0..layout.plan().shape().layers;
        layers.map(|layer| layout.evicted(layer)).sum()
    }

    /// Positions in low rank, each counted once for every layer.
    fn compressed(&self) -> usize {
        let layout = self.layout();
        let layers = 0..layout.plan().shape().layers;
        layers.map(|layer| layout.compressed(layer)).sum()
    }
}
