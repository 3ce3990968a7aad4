//! The KV cache: what attention remembers of earlier positions.

use htc_formats::model::HyperParameters;
use htc_kernels::ShapeError;
use htc_kernels::cpu::{self, F16Error, KvView};

use crate::error::ExecError;

/// Positions there is room for at first; the room doubles when it is used up.
const FIRST_CAPACITY: usize = 256;

/// Keys (after rotation) and values of every position, in full, as float16.
///
/// Per layer and per side one buffer `[kv_heads, capacity, head_size]`, which grows with the
/// sequence: a long context costs memory only when it is used.
pub struct KvCache {
    keys: Vec<Vec<u16>>,
    values: Vec<Vec<u16>>,
    kv_heads: usize,
    head_size: usize,
    capacity: usize,
    length: usize,
}

impl KvCache {
    /// An empty cache for a model's shapes.
    pub fn new(hyper: &HyperParameters) -> Self {
        KvCache {
            keys: vec![Vec::new(); hyper.layers],
            values: vec![Vec::new(); hyper.layers],
            kv_heads: hyper.kv_heads,
            head_size: hyper.head_size,
            capacity: 0,
            length: 0,
        }
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether no position is held.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Forgets every position from `length` on; the memory is kept for what follows.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Makes room for `n` more positions in every layer.
    pub(crate) fn reserve(&mut self, n: usize) {
        let needed = self.length + n;
        if needed <= self.capacity {
            return;
        }
        let capacity = needed.max(2 * self.capacity).max(FIRST_CAPACITY);
        let (old, new) = (self.capacity * self.head_size, capacity * self.head_size);
        let used = self.length * self.head_size;
        for buffer in self.keys.iter_mut().chain(&mut self.values) {
            let mut larger = vec![0; self.kv_heads * new];
            for head in 0..self.kv_heads {
                larger[head * new..][..used].copy_from_slice(&buffer[head * old..][..used]);
            }
            *buffer = larger;
        }
        self.capacity = capacity;
    }

    /// Writes rows `[n, kv_heads, head_size]` of one layer behind the positions held;
    /// [`KvCache::advance`] counts them once all layers have theirs.
    ///
    /// # Errors
    /// [`ExecError::KvRange`] for a number that float16 does not hold; the positions held are as
    /// before.
    pub(crate) fn append(
        &mut self,
        layer: usize,
        keys: &[f32],
        values: &[f32],
    ) -> Result<(), ExecError> {
        let (size, stride) = (self.head_size, self.capacity * self.head_size);
        for (side, rows, buffer) in [
            ("key", keys, &mut self.keys[layer]),
            ("value", values, &mut self.values[layer]),
        ] {
            for (row, heads) in rows.chunks_exact(self.kv_heads * size).enumerate() {
                let position = self.length + row;
                for (head, vector) in heads.chunks_exact(size).enumerate() {
                    let stored = &mut buffer[head * stride + position * size..][..size];
                    cpu::to_f16(vector, stored).map_err(|error| match error {
                        F16Error::Shape(error) => error.into(),
                        F16Error::Range { value, .. } => ExecError::KvRange {
                            layer,
                            side,
                            position,
                            value,
                        },
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Counts `n` positions that every layer has appended.
    pub(crate) fn advance(&mut self, n: usize) {
        self.length += n;
    }

    /// What a layer holds, as attention reads it.
    pub(crate) fn view(&self, layer: usize) -> Result<KvView<'_>, ShapeError> {
        KvView::new(
            &self.keys[layer],
            &self.values[layer],
            self.kv_heads,
            self.head_size,
            self.capacity,
        )
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        let numbers = |buffers: &[Vec<u16>]| buffers.iter().map(Vec::len).sum::<usize>();
        (numbers(&self.keys) + numbers(&self.values)) * size_of::<u16>()
    }
}

#[cfg(test)]
mod tests {
    use htc_formats::DType;

    use super::*;

    fn hyper() -> HyperParameters {
        HyperParameters {
            architecture: "llama".into(),
            name: None,
            vocabulary: 8,
            context: 4096,
            width: 8,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_size: 2,
            ffn: 16,
            norm_epsilon: 1e-5,
            rope_theta: 10000.0,
            rope_dimensions: 2,
            rope_linear_scale: 1.0,
        }
    }

    /// A float16 whose bits name layer, side, position, head and dimension.
    fn number(layer: usize, side: usize, position: usize, head: usize, dimension: usize) -> u16 {
        ((((layer * 2 + side) * 1000 + position) * 2 + head) * 2 + dimension) as u16
    }

    #[test]
    fn what_is_appended_stays_where_it_is_when_the_cache_grows() {
        let mut cache = KvCache::new(&hyper());
        for n in [1, 3, 250, 1, 10, 300] {
            cache.reserve(n);
            let start = cache.len();
            for layer in 0..2 {
                let rows = |side: usize| -> Vec<f32> {
                    let bits: Vec<u8> = (0..n * 4)
                        .map(|i| number(layer, side, start + i / 4, i / 2 % 2, i % 2))
                        .flat_map(u16::to_le_bytes)
                        .collect();
                    let mut numbers = vec![0.0; n * 4];
                    htc_formats::block::decode(DType::F16, &bits, &mut numbers).unwrap();
                    numbers
                };
                cache.append(layer, &rows(0), &rows(1)).unwrap();
            }
            cache.advance(n);
        }
        assert_eq!(cache.len(), 565);
        cache.truncate(500);
        for layer in 0..2 {
            let view = cache.view(layer).unwrap();
            for head in 0..2 {
                let (keys, values) = view.head(head);
                for i in 0..cache.len() * 2 {
                    assert_eq!(keys[i], number(layer, 0, i / 2, head, i % 2));
                    assert_eq!(values[i], number(layer, 1, i / 2, head, i % 2));
                }
            }
        }
        assert!(cache.bytes() >= 2 * 2 * 565 * 4 * 2);
        assert!(cache.bytes() <= 2 * 2 * 2 * 565 * 4 * 2);
    }

    #[test]
    fn a_number_beyond_float16_is_refused_with_its_layer() {
        let mut cache = KvCache::new(&hyper());
        cache.reserve(3);
        let good = [65504.0, -65519.9, 1e-9, 0.0];
        cache.append(0, &good, &good).unwrap();
        cache.advance(1);
        for bad in [65520.0, -1e9, f32::INFINITY, f32::NAN] {
            let rows = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, bad, bad];
            let zeros = [0.0; 8];
            for (side, keys, values) in [("key", rows, zeros), ("value", zeros, rows)] {
                let error = cache.append(1, &keys, &values).unwrap_err();
                let expected = format!(
                    "layer 1: a number of the {side} at position 2 is {bad}, the KV cache holds float16 of \
                     at most 65504; check the file with its author's digest"
                );
                assert_eq!(error.to_string(), expected);
            }
        }
        assert_eq!(cache.len(), 1);
    }
}
