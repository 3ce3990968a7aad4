//! Statistics of a KV cache.

use std::time::Duration;

use super::Kv;
use super::layout::CompressionEnergies;

/// Statistics since the sequence began.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct KvCounters {
    /// Updates of the bases of all layers.
    pub updates: usize,
    /// Time of the updates, without compression.
    pub update_time: Duration,
    /// Per update, ‖P_t − P_0‖_F of keys and of values, for the projections on the present and
    /// initial bases: mean over heads and layers.
    pub drift: Vec<[f64; 2]>,
    /// Per update, tr(P_t P_0) / r of keys and of values (OjaKV, section 4): mean over heads and
    /// layers.
    pub overlap: Vec<[f64; 2]>,
    /// Sums over all compressed vectors.
    pub energies: CompressionEnergies,
    /// Sliding-window layers exempt from eviction.
    pub sliding_window_layers: usize,
}

impl KvCounters {
    /// Returns Σ‖x − U Uᵀ x‖² / Σ‖x‖² over the compressed keys, and values (OjaKV, section 4), if
    /// any.
    pub fn residual_ratio(&self) -> Option<[f64; 2]> {
        let CompressionEnergies { before, residual } = self.energies;
        let [keys, values] = [0, 1].map(|side| residual[side] / before[side]);
        (before[0] > 0.0 && before[1] > 0.0).then_some([keys, values])
    }

    pub(super) fn add(&mut self, more: CompressionEnergies) {
        for side in 0..2 {
            self.energies.before[side] += more.before[side];
            self.energies.residual[side] += more.residual[side];
        }
    }
}

/// Contents and memory of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KvUsage {
    /// Bytes allocated.
    pub bytes: usize,
    /// Bytes per position in all layers, as its kind stores it.
    pub bytes_per_position: usize,
    /// Bytes of a position that is exempt from compression.
    pub full_bytes_per_position: usize,
    /// Positions read.
    pub positions: usize,
    /// Low-rank positions, counted once per layer.
    pub compressed: usize,
    /// Evicted positions, counted once per layer.
    pub evicted: usize,
    /// Bytes of the present positions.
    pub used: usize,
}

impl KvUsage {
    pub(crate) fn from_cache(kv: &impl Kv) -> Self {
        let layout = kv.layout();
        let plan = layout.plan();
        let shape = plan.shape();
        let full = plan.full_bytes_per_position() / shape.layers.max(1);
        let used = (0..shape.layers).map(|layer| {
            let ranks = plan.ranks(layer).unwrap_or_default();
            let low = 2 * (ranks[0] + ranks[1]) * shape.kv_heads;
            layout.full_rows(layer) * full + layout.low_rank_rows(layer) * low
        });
        KvUsage {
            bytes: kv.bytes(),
            bytes_per_position: plan.bytes_per_position(),
            full_bytes_per_position: plan.full_bytes_per_position(),
            positions: kv.len(),
            compressed: kv.low_rank_rows(),
            evicted: kv.evicted_rows(),
            used: used.sum(),
        }
    }
}
