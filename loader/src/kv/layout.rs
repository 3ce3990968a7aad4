//! Bookkeeping of positions.

use super::options::KvPlan;

/// Storage layout of the positions of a sequence, per layer.
///
/// A layer stores positions in order: full rows (the front), low-rank ones, then further full rows.
/// Full rows are contiguous.
#[derive(Clone, Debug, PartialEq)]
pub struct KvLayout {
    plan: KvPlan,
    length: usize,
    layers: Vec<Layer>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Layer {
    evicted: usize,
    compressed: usize,
    /// Full rows before the low-rank ones.
    front: usize,
}

/// Rows to keep.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptRows {
    /// True for low-rank rows, false for full ones.
    pub low_rank: bool,
    /// Rows of every kv head, ascending.
    pub rows: Vec<Vec<usize>>,
}

/// Energies of compressed vectors, as sums of squares.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CompressionEnergies {
    /// Energies of keys and of values before compression.
    pub before: [f64; 2],
    /// Energies of the residuals after projection.
    pub residual: [f64; 2],
}

/// Initial capacity in positions; doubles when full.
pub(crate) const INITIAL_CAPACITY: usize = 256;

/// Granularity of capacity changes in positions.
const CAPACITY_GRANULARITY: usize = 64;

impl KvLayout {
    /// Creates the layout of an empty sequence.
    pub fn new(plan: KvPlan) -> Self {
        let layers = vec![Layer::default(); plan.shape().layers];
        KvLayout {
            plan,
            length: 0,
            layers,
        }
    }

    /// Returns the plan.
    pub fn plan(&self) -> &KvPlan {
        &self.plan
    }

    /// Returns the positions of the sequence, including evicted ones.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns true if no position was read.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the positions in a layer.
    pub fn positions(&self, layer: usize) -> usize {
        self.length.saturating_sub(self.layers[layer].evicted)
    }

    /// Returns the positions that a layer dropped.
    pub fn evicted(&self, layer: usize) -> usize {
        self.layers[layer].evicted
    }

    /// Returns the low-rank positions of a layer.
    pub fn low_rank_rows(&self, layer: usize) -> usize {
        self.layers[layer].compressed
    }

    /// Returns the full positions of a layer.
    pub fn full_rows(&self, layer: usize) -> usize {
        self.positions(layer)
            .saturating_sub(self.layers[layer].compressed)
    }

    /// Returns the full positions before the low-rank ones.
    pub fn front_rows(&self, layer: usize) -> usize {
        let layer = &self.layers[layer];
        match layer.compressed {
            0 => 0,
            _ => layer.front,
        }
    }

    /// Counts `n` positions that every layer has appended.
    pub fn advance(&mut self, n: usize) {
        self.length += n;
    }

    /// Returns the new capacity for full rows before `n` positions are appended, if it changes.
    pub(crate) fn new_full_capacity(
        &self,
        layer: usize,
        n: usize,
        capacity: usize,
    ) -> Option<usize> {
        let needed = self.full_rows(layer) + n;
        let compresses = self.plan.kind().rank().is_some();
        let shrinks = compresses || self.evicted(layer) > 0;
        let idle = shrinks && capacity > 2 * needed.next_multiple_of(CAPACITY_GRANULARITY);
        let changes = needed > capacity || idle;
        changes.then(|| {
            if compresses || idle {
                needed.next_multiple_of(CAPACITY_GRANULARITY)
            } else {
                needed.max(2 * capacity).max(INITIAL_CAPACITY)
            }
        })
    }

    /// Returns the new capacity for low-rank rows after eviction, if it changes.
    pub(crate) fn new_low_rank_capacity(&self, layer: usize, capacity: usize) -> Option<usize> {
        let needed = self
            .low_rank_rows(layer)
            .next_multiple_of(CAPACITY_GRANULARITY);
        (self.evicted(layer) > 0 && capacity > 2 * needed).then_some(needed)
    }

    /// Discards every position from `length` on, full rows first; 0 also resets evictions.
    pub fn truncate(&mut self, length: usize) {
        let mut gone = self.length.saturating_sub(length);
        if length == 0 {
            self.layers.fill(Layer::default());
        }
        for index in 0..self.layers.len() {
            let tail = self.full_rows(index).saturating_sub(self.front_rows(index));
            let layer = &mut self.layers[index];
            let rest = gone.saturating_sub(tail);
            let compressed = layer.compressed.saturating_sub(rest);
            let rest = rest - (layer.compressed - compressed);
            layer.compressed = compressed;
            layer.front = layer.front.saturating_sub(rest);
        }
        gone = gone.min(self.length);
        self.length -= gone;
    }

    /// Counts `count` full rows after the first `front` as compressed.
    pub fn compress(&mut self, layer: usize, front: usize, count: usize) {
        let layer = &mut self.layers[layer];
        layer.front = front;
        layer.compressed += count;
    }

    /// Counts `dropped` rows as evicted.
    pub fn evict(&mut self, layer: usize, low_rank: bool, dropped: usize) {
        let layer = &mut self.layers[layer];
        layer.evicted += dropped;
        if low_rank {
            layer.compressed -= dropped.min(layer.compressed);
        }
    }
}
