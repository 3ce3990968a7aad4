//! Where positions are: the same bookkeeping for every backend.

use super::options::KvPlan;

/// Where the positions of a sequence are stored, layer by layer.
///
/// What a layer holds of a sequence stands in the order of its positions: first some in full (the
/// front), then those in low rank, then the others in full. Rows in full lie one behind the other, the
/// front before the rest. Positions that were evicted are in none of them.
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
    /// Rows in full in front of those in low rank; of no meaning where there are none.
    front: usize,
}

/// Rows that a layer keeps: of those in low rank, or of those in full.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// Whether rows in low rank are meant, whose layers keep every row in full.
    pub low_rank: bool,
    /// Rows of every kv head, in ascending order and as many of each.
    pub rows: Vec<Vec<usize>>,
}

/// What was compressed, in sums of squares over vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Energies {
    /// Of keys and of values, before.
    pub before: [f64; 2],
    /// Of what their coordinates do not hold.
    pub residual: [f64; 2],
}

/// Positions there is room for at first; the room doubles when it is used up.
pub(crate) const FIRST_CAPACITY: usize = 256;

/// Room comes and goes in so many positions where what is in full stays short.
const STEP: usize = 64;

impl KvLayout {
    /// Of an empty sequence.
    pub fn new(plan: KvPlan) -> Self {
        let layers = vec![Layer::default(); plan.shape().layers];
        KvLayout {
            plan,
            length: 0,
            layers,
        }
    }

    /// What is stored.
    pub fn plan(&self) -> &KvPlan {
        &self.plan
    }

    /// Positions of the sequence, those that were evicted included.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether no position was read.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Positions that a layer holds.
    pub fn held(&self, layer: usize) -> usize {
        self.length.saturating_sub(self.layers[layer].evicted)
    }

    /// Positions that a layer dropped.
    pub fn evicted(&self, layer: usize) -> usize {
        self.layers[layer].evicted
    }

    /// Positions that a layer holds in low rank.
    pub fn compressed(&self, layer: usize) -> usize {
        self.layers[layer].compressed
    }

    /// Positions that a layer holds in full.
    pub fn full(&self, layer: usize) -> usize {
        self.held(layer)
            .saturating_sub(self.layers[layer].compressed)
    }

    /// Positions in full in front of those in low rank; 0 where there are none.
    pub fn front(&self, layer: usize) -> usize {
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

    /// Rows in full that a layer should have room for in the place of `capacity`, before `n` positions are appended; `None` where
    /// it may stay as it is. What compression and eviction have left is given back.
    pub(crate) fn room(&self, layer: usize, n: usize, capacity: usize) -> Option<usize> {
        let needed = self.full(layer) + n;
        let compresses = self.plan.kind().rank().is_some();
        let shrinks = compresses || self.evicted(layer) > 0;
        let idle = shrinks && capacity > 2 * needed.next_multiple_of(STEP);
        let changes = needed > capacity || idle;
        changes.then(|| match compresses || idle {
            // What is in full stays short.
            true => needed.next_multiple_of(STEP),
            false => needed.max(2 * capacity).max(FIRST_CAPACITY),
        })
    }

    /// The same of rows in low rank, which grow where they are compressed.
    pub(crate) fn low_room(&self, layer: usize, capacity: usize) -> Option<usize> {
        let needed = self.compressed(layer).next_multiple_of(STEP);
        (self.evicted(layer) > 0 && capacity > 2 * needed).then_some(needed)
    }

    /// Forgets every position from `length` on, of those in full and then of those in low rank; all
    /// of them, and what was evicted, for 0.
    pub fn truncate(&mut self, length: usize) {
        let mut gone = self.length.saturating_sub(length);
        if length == 0 {
            self.layers.fill(Layer::default());
        }
        for index in 0..self.layers.len() {
            let tail = self.full(index).saturating_sub(self.front(index));
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

    /// Counts `count` rows in full behind the first `front` as rows in low rank, to which they were
    /// appended.
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
