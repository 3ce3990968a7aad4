//! The KV cache: what attention remembers of earlier positions.

use htc_formats::model::HyperParameters;
use htc_kernels::ShapeError;
use htc_kernels::cpu::{Cpu, F16Error, KvView};

use crate::error::ExecError;

/// Positions there is room for at first; the room doubles when it is used up.
const FIRST_CAPACITY: usize = 256;

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KvType {
    /// float16.
    #[default]
    F16,
    /// float32: twice the memory and slower; for comparisons that are to show no rounding, and
    /// for models whose keys float16 does not hold.
    F32,
}

impl KvType {
    /// What it is called, as llama.cpp calls it.
    pub const fn name(self) -> &'static str {
        match self {
            KvType::F16 => "f16",
            KvType::F32 => "f32",
        }
    }
}

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
    /// Bytes of the keys and values of one position, in all layers.
    pub fn position_bytes(self, kv_type: KvType) -> usize {
        let number = match kv_type {
            KvType::F16 => 2,
            KvType::F32 => 4,
        };
        2 * self.layers * self.kv_heads * self.head_size * number
    }
}

/// Keys and values of the positions read so far, wherever a backend has them.
pub trait Kv: Send {
    /// Positions held.
    fn len(&self) -> usize;

    /// Whether no position is held.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes allocated.
    fn bytes(&self) -> usize;

    /// Counts `n` positions that every layer has appended.
    fn advance(&mut self, n: usize);

    /// Forgets every position from `length` on; the memory is kept for what follows.
    fn truncate(&mut self, length: usize);
}

#[derive(Debug)]
enum Buffer {
    F16(Vec<u16>),
    F32(Vec<f32>),
}

impl Buffer {
    fn new(kv_type: KvType) -> Self {
        match kv_type {
            KvType::F16 => Buffer::F16(Vec::new()),
            KvType::F32 => Buffer::F32(Vec::new()),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Buffer::F16(numbers) => size_of_val(&numbers[..]),
            Buffer::F32(numbers) => size_of_val(&numbers[..]),
        }
    }

    fn grow(&mut self, heads: usize, used: usize, old: usize, new: usize) {
        match self {
            Buffer::F16(numbers) => *numbers = grown(numbers, heads, used, old, new),
            Buffer::F32(numbers) => *numbers = grown(numbers, heads, used, old, new),
        }
    }
}

/// `heads` stretches of `new` numbers with the first `used` of those of `old` numbers.
fn grown<T: Copy + Default>(
    numbers: &[T],
    heads: usize,
    used: usize,
    old: usize,
    new: usize,
) -> Vec<T> {
    let mut larger = vec![T::default(); heads * new];
    for head in 0..heads {
        larger[head * new..][..used].copy_from_slice(&numbers[head * old..][..used]);
    }
    larger
}

/// Keys (after rotation) and values of every position, in full, in the memory of the host.
///
/// Per layer and per side one buffer `[kv_heads, capacity, head_size]`, which grows with the
/// sequence: a long context costs memory only when it is used.
#[derive(Debug)]
pub struct KvCache {
    keys: Vec<Buffer>,
    values: Vec<Buffer>,
    kv_heads: usize,
    head_size: usize,
    capacity: usize,
    length: usize,
}

impl KvCache {
    /// An empty cache for a model's shapes.
    pub(crate) fn new(shape: KvShape, kv_type: KvType) -> Self {
        let buffers = || (0..shape.layers).map(|_| Buffer::new(kv_type)).collect();
        KvCache {
            keys: buffers(),
            values: buffers(),
            kv_heads: shape.kv_heads,
            head_size: shape.head_size,
            capacity: 0,
            length: 0,
        }
    }

    /// Numbers of the keys of one position in one layer, and of its values.
    pub(crate) fn row(&self) -> usize {
        self.kv_heads * self.head_size
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
            buffer.grow(self.kv_heads, used, old, new);
        }
        self.capacity = capacity;
    }

    /// Writes rows `[n, kv_heads, head_size]` of one layer behind the positions held;
    /// [`Kv::advance`] counts them once all layers have theirs.
    ///
    /// # Errors
    /// [`ExecError::KvRange`] for a number that the cache does not hold; the positions held are
    /// as before.
    pub(crate) fn append(
        &mut self,
        cpu: &Cpu,
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
                    let at = head * stride + position * size;
                    let out_of_range = |value| ExecError::KvRange {
                        layer,
                        side,
                        position,
                        value,
                    };
                    match buffer {
                        Buffer::F16(buffer) => {
                            let stored = &mut buffer[at..][..size];
                            cpu.to_f16(vector, stored).map_err(|error| match error {
                                F16Error::Shape(error) => error.into(),
                                F16Error::Range { value, .. } => out_of_range(value),
                            })?;
                        }
                        Buffer::F32(buffer) => {
                            if let Some(bad) = vector.iter().find(|x| !x.is_finite()) {
                                return Err(out_of_range(*bad));
                            }
                            buffer[at..][..size].copy_from_slice(vector);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// What a layer holds, as attention reads it.
    pub(crate) fn view(&self, layer: usize) -> Result<KvView<'_>, ShapeError> {
        let (heads, size, capacity) = (self.kv_heads, self.head_size, self.capacity);
        match (&self.keys[layer], &self.values[layer]) {
            (Buffer::F16(keys), Buffer::F16(values)) => {
                KvView::new(keys, values, heads, size, capacity)
            }
            (Buffer::F32(keys), Buffer::F32(values)) => {
                KvView::new(keys, values, heads, size, capacity)
            }
            // Both sides are made alike.
            _ => KvView::new(&[0.0_f32; 0], &[], heads, size, capacity),
        }
    }
}

impl Kv for KvCache {
    fn len(&self) -> usize {
        self.length
    }

    fn bytes(&self) -> usize {
        let buffers = self.keys.iter().chain(&self.values);
        buffers.map(Buffer::bytes).sum()
    }

    fn advance(&mut self, n: usize) {
        self.length += n;
    }

    fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }
}

#[cfg(test)]
mod tests {
    use htc_formats::DType;
    use htc_kernels::cpu::KvNumbers;

    use super::*;

    const SHAPE: KvShape = KvShape {
        layers: 2,
        kv_heads: 2,
        head_size: 2,
    };

    fn cpu() -> Cpu {
        Cpu::with_threads(1).unwrap()
    }

    /// A float16 whose bits name layer, side, position, head and dimension.
    fn number(layer: usize, side: usize, position: usize, head: usize, dimension: usize) -> u16 {
        ((((layer * 2 + side) * 1000 + position) * 2 + head) * 2 + dimension) as u16
    }

    #[test]
    fn what_is_appended_stays_where_it_is_when_the_cache_grows() {
        let mut cache = KvCache::new(SHAPE, KvType::F16);
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
                cache.append(&cpu(), layer, &rows(0), &rows(1)).unwrap();
            }
            cache.advance(n);
        }
        assert_eq!(cache.len(), 565);
        cache.truncate(500);
        for layer in 0..2 {
            let view = cache.view(layer).unwrap();
            for head in 0..2 {
                let (KvNumbers::F16(keys), KvNumbers::F16(values)) = view.head(head) else {
                    panic!("another type than was asked for");
                };
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
    fn float32_is_kept_as_it_is() {
        let mut cache = KvCache::new(SHAPE, KvType::F32);
        let numbers = [1e9, f32::MIN_POSITIVE, 0.1, -3.0];
        for position in 0..300 {
            cache.reserve(1);
            for layer in 0..2 {
                let keys = numbers.map(|x| x * (position + 1) as f32);
                cache.append(&cpu(), layer, &keys, &numbers).unwrap();
            }
            cache.advance(1);
        }
        let KvNumbers::F32(keys) = cache.view(1).unwrap().head(1).0 else {
            panic!("another type than was asked for");
        };
        assert_eq!(keys[2 * 299..][..2], [0.1_f32 * 300.0, -900.0]);
        assert_eq!(cache.bytes(), 2 * 2 * 512 * 4 * 4);
        let error = cache
            .append(&cpu(), 0, &[f32::NAN; 4], &numbers)
            .unwrap_err();
        assert!(error.to_string().contains("NaN"), "{error}");
    }

    #[test]
    fn a_number_beyond_float16_is_refused_with_its_layer() {
        let mut cache = KvCache::new(SHAPE, KvType::F16);
        cache.reserve(3);
        let good = [65504.0, -65519.9, 1e-9, 0.0];
        cache.append(&cpu(), 0, &good, &good).unwrap();
        cache.advance(1);
        for bad in [65520.0, -1e9, f32::INFINITY, f32::NAN] {
            let rows = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, bad, bad];
            let zeros = [0.0; 8];
            for (side, keys, values) in [("key", rows, zeros), ("value", zeros, rows)] {
                let error = cache.append(&cpu(), 1, &keys, &values).unwrap_err();
                let expected =
                    format!("layer 1: a number of the {side} at position 2 is {bad}, which");
                assert!(error.to_string().starts_with(&expected), "{error}");
            }
        }
        assert_eq!(cache.len(), 1);
    }
}
