//! KV cache: storage of the keys and values of earlier positions.
//!
//! [`KvKind`] is the storage format, [`KvOptions`] has all settings, [`KvLayout`] is the
//! bookkeeping that every backend's [`Kv`] carries. One policy decides for all backends when to
//! compress positions, update bases and evict positions.
//!
//! * `f32`, `f16`: every position, unrounded or rounded.
//! * `q8_0`, `q4_0`: the GGUF types; `-rotated` applies a Hadamard
//!   transform to heads first, which reduces the rounding error (QuaRot, Ashkboos et al. 2024).
//! * `static`, `static-hybrid`, `oja`: coordinates `U_kᵀ k` and `U_vᵀ v` in a basis per kv head, in
//!   float16 (OjaKV). The hybrid exempts the first and the last positions, and `oja` also adapts
//!   its bases.
//!
//! Every kind may drop positions after the prompt ([`KvOptions::max_prompt_positions`], as SnapKV
//! does).

mod bases;
mod cache;
mod counters;
mod evict;
mod kind;
mod layout;
pub mod oja;
mod options;
mod policy;
pub(crate) mod rounding;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use htc_formats::model::{HyperParameters, KvSide};
use htc_kernels::ShapeError;

use crate::backend::Backend;
use crate::error::{ExecError, Result};
pub use bases::{BasisSide, KvBases, LayerBases};
pub use cache::KvCache;
pub use counters::{KvCounters, KvUsage};
pub use kind::{KvKind, KvRank, KvType};
pub(crate) use layout::INITIAL_CAPACITY;
pub use layout::{CompressionEnergies, KeptRows, KvLayout};
pub use options::{KvOptions, KvPlan, OjaOptions};
pub(crate) use policy::{KvCachePolicy, Queries};

/// Shape of a model's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Number of transformer blocks.
    pub layers: usize,
    /// Key and value heads of a block.
    pub kv_heads: usize,
    /// Dimension of a head.
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
    /// Returns the bytes of the keys and values of one uncompressed position in all layers.
    pub fn position_bytes(self, kv_type: KvType) -> usize {
        let dtype = kv_type.dtype();
        let head = self.head_size.div_ceil(dtype.block_len()) * dtype.block_bytes();
        2 * self.layers * self.kv_heads * head
    }
}

/// Keys and values of the positions read so far, in the memory of a backend.
pub trait Kv: Send + Sized {
    /// Backend whose memory it is.
    type Backend: Backend;

    /// Returns the layout.
    fn layout(&self) -> &KvLayout;

    /// Returns the mutable layout.
    fn layout_mut(&mut self) -> &mut KvLayout;

    /// Returns the bytes allocated for keys and values.
    fn bytes(&self) -> usize;

    /// Reserves memory for `n` more positions in every layer of the cache; may release memory left
    /// unused by compression and eviction.
    ///
    /// # Errors
    /// [`ExecError`] if memory runs out.
    fn reserve(&mut self, backend: &mut Self::Backend, n: usize) -> Result<()>;

    /// Returns a copy of the cache with the same positions.
    ///
    /// # Errors
    /// [`ExecError`] if memory runs out.
    fn copied(&self, backend: &mut Self::Backend) -> Result<Self>;

    /// Writes `rows` of keys and values `[n, kv_heads, head_size]` of one layer after the stored
    /// positions, in [reserved](Kv::reserve) memory. [`Kv::advance`] counts them after all
    /// layers are written.
    ///
    /// # Errors
    /// [`ExecError::KvRange`] for a number outside the range of the KV
    /// type; the stored positions are unchanged.
    fn append(
        &mut self,
        backend: &mut Self::Backend,
        layer: usize,
        rows: Range<usize>,
        keys: &<Self::Backend as Backend>::Buffer,
        values: &<Self::Backend as Backend>::Buffer,
    ) -> Result<()>;

    /// Sets the bases that compress a layer from now on. Its low-rank rows are multiplied with
    /// `turns [kv_heads, rank, rank]` of keys and of values; `None` if it has none.
    ///
    /// # Errors
    /// [`ExecError::KvRange`] for a coordinate outside float16's range;
    /// nothing has changed then.
    fn set_bases(
        &mut self,
        backend: &mut Self::Backend,
        layer: usize,
        bases: &Arc<LayerBases>,
        turns: Option<&[Vec<f32>; 2]>,
    ) -> Result<()>;

    /// Converts `count` full rows of a layer, after the first `front`, to low rank: appends their
    /// coordinates and removes the full rows. The caller then updates
    /// [`KvLayout::compress`].
    ///
    /// # Errors
    /// [`ExecError::KvRange`] for a coordinate outside float16's range;
    /// nothing has changed then.
    fn compress(
        &mut self,
        backend: &mut Self::Backend,
        layer: usize,
        front: usize,
        count: usize,
    ) -> Result<CompressionEnergies>;

    /// Returns keys and values of full rows of a layer, `[kv_heads, rows, head_size]` each.
    ///
    /// # Errors
    /// [`ExecError`] of the device.
    fn full_rows(
        &self,
        backend: &mut Self::Backend,
        layer: usize,
        rows: Range<usize>,
    ) -> Result<[Vec<f32>; 2]>;

    /// Drops the rows of a layer that are not in `kept`. The caller then updates
    /// [`KvLayout::evict`].
    ///
    /// # Errors
    /// [`ExecError`] of the device.
    fn keep(&mut self, backend: &mut Self::Backend, layer: usize, kept: &KeptRows) -> Result<()>;

    /// Returns the positions of the sequence, including evicted ones.
    fn len(&self) -> usize {
        self.layout().len()
    }

    /// Returns true if no position was read.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Counts `n` positions that every layer has appended.
    fn advance(&mut self, n: usize) {
        self.layout_mut().advance(n);
    }

    /// Discards every position from `length` on; keeps the memory.
    fn truncate(&mut self, length: usize) {
        self.layout_mut().truncate(length);
    }

    /// Returns the bytes of one more position in all layers, as its kind stores it.
    fn bytes_per_position(&self) -> usize {
        self.layout().plan().bytes_per_position()
    }

    /// Returns the number of evicted positions, counted once per layer.
    fn evicted_rows(&self) -> usize {
        let layout = self.layout();
        let layers = 0..layout.plan().shape().layers;
        layers.map(|layer| layout.evicted(layer)).sum()
    }

    /// Returns the number of low-rank positions, counted once per layer.
    fn low_rank_rows(&self) -> usize {
        let layout = self.layout();
        let layers = 0..layout.plan().shape().layers;
        layers.map(|layer| layout.low_rank_rows(layer)).sum()
    }
}

/// Returns the error of a number of the keys (`side` 0) or values (1) that the type of the KV cache
/// cannot hold.
pub(crate) fn out_of_range(layer: usize, side: usize, position: usize, value: f32) -> ExecError {
    ExecError::KvRange {
        layer,
        side: KvSide::ALL[side].name(),
        position,
        value,
    }
}

/// Returns the error of a part that is absent although a caller relies on it.
pub(crate) fn missing(what: &'static str) -> ExecError {
    ExecError::Shape(ShapeError {
        argument: what,
        expected: 1,
        actual: 0,
    })
}
