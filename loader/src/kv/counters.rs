//! What a KV cache has done and takes.

use std::time::Duration;

use super::Kv;
use super::layout::Energies;

/// What was done to keys and values since the sequence began.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct KvCounters {
    /// Updates of the bases of all layers.
    pub updates: usize,
    /// Time spent on them: with the turning of what was stored, without its compression.
    pub update_time: Duration,
    /// Of every update, ‖P_t − P_0‖_F of keys and of values, where `P` is the projection on a basis now
    /// and as the sequence began: mean over heads and layers.
    pub drift: Vec<[f64; 2]>,
    /// Of every update, tr(P_t P_0) / r of keys and of values, the part of the subspaces that is the one the sequence began with
    /// (OjaKV, section 4): mean over heads and layers.
    pub overlap: Vec<[f64; 2]>,
    /// Sums over all vectors that were compressed.
    pub energies: Energies,
    /// Layers that keep all positions because they have a sliding window, where others dropped some.
    pub windowed_layers: usize,
}

impl KvCounters {
    /// Σ‖x − U Uᵀ x‖² / Σ‖x‖² over the keys, and over the values, that were compressed (OjaKV, section
    /// 4); `None` where nothing was.
    pub fn residual_ratio(&self) -> Option<[f64; 2]> {
        let Energies { before, residual } = self.energies;
        let [keys, values] = [0, 1].map(|side| residual[side] / before[side]);
        (before[0] > 0.0 && before[1] > 0.0).then_some([keys, values])
    }

    pub(super) fn add(&mut self, more: Energies) {
        for side in 0..2 {
            self.energies.before[side] += more.before[side];
            self.energies.residual[side] += more.residual[side];
        }
    }
}

/// What a KV cache holds and takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KvUsage {
    /// Bytes allocated.
    pub bytes: usize,
    /// Bytes of one more position in all layers, once it is stored as its kind says.
    pub bytes_per_position: usize,
    /// Bytes of one that is exempt from compression.
    pub full_bytes_per_position: usize,
    /// Positions read.
    pub positions: usize,
    /// Positions in low rank, each counted once for every layer.
    pub compressed: usize,
    /// Positions dropped, each counted once for every layer.
    pub evicted: usize,
    /// Bytes of the positions held, without the room for more.
    pub used: usize,
}

impl KvUsage {
    pub(crate) fn of(kv: &impl Kv) -> Self {
        let layout = kv.layout();
        let plan = layout.plan();
        let shape = plan.shape();
        let full = plan.full_bytes_per_position() / shape.layers.max(1);
        let used = (0..shape.layers).map(|layer| {
            let ranks = plan.ranks(layer).unwrap_or_default();
            let low = 2 * (ranks[0] + ranks[1]) * shape.kv_heads;
            layout.full(layer) * full + layout.compressed(layer) * low
        });
        KvUsage {
            bytes: kv.bytes(),
            bytes_per_position: plan.bytes_per_position(),
            full_bytes_per_position: plan.full_bytes_per_position(),
            positions: kv.len(),
            compressed: kv.compressed(),
            evicted: kv.evicted(),
            used: used.sum(),
        }
    }
}
