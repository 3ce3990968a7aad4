//! KV cache in host memory.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use htc_formats::dtype::DType;
use htc_kernels::ShapeError;
use htc_kernels::cpu::{F16Error, KvNumbers, KvView, LowRankShape, LowRankView, SmallMatrix};

use super::bases::LayerBases;
use super::kind::KvType;
use super::layout::{CompressionEnergies, INITIAL_CAPACITY, KeptRows, KvLayout};
use super::options::KvPlan;
use super::rounding;
use super::{Kv, missing, out_of_range};
use crate::backend::Cpu;
use crate::error::{ExecError, Result};

#[derive(Clone, Debug)]
enum RowBuffer {
    F16(Vec<u16>),
    F32(Vec<f32>),
    Blocks(DType, Vec<u8>),
}

impl RowBuffer {
    fn new(kv_type: KvType) -> Self {
        match kv_type {
            KvType::F16 => RowBuffer::F16(Vec::new()),
            KvType::F32 => RowBuffer::F32(Vec::new()),
            KvType::Q8_0 | KvType::Q4_0 => RowBuffer::Blocks(kv_type.dtype(), Vec::new()),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            RowBuffer::F16(numbers) => size_of_val(&numbers[..]),
            RowBuffer::F32(numbers) => size_of_val(&numbers[..]),
            RowBuffer::Blocks(_, bytes) => bytes.len(),
        }
    }

    /// Reallocates to `capacity` rows per head; keeps the first `used`.
    fn resize(&mut self, heads: usize, size: usize, used: usize, capacity: usize) {
        match self {
            RowBuffer::F16(numbers) => {
                *numbers = reallocate_rows(numbers, heads, size, used, capacity)
            }
            RowBuffer::F32(numbers) => {
                *numbers = reallocate_rows(numbers, heads, size, used, capacity)
            }
            RowBuffer::Blocks(dtype, bytes) => {
                let row = row_bytes(*dtype, size);
                *bytes = reallocate_rows(bytes, heads, row, used, capacity);
            }
        }
    }

    /// Moves row `from[i]` of a head to `i + first`, towards the front.
    fn gather(&mut self, size: usize, capacity: usize, head: usize, first: usize, from: &[usize]) {
        match self {
            RowBuffer::F16(numbers) => move_rows(numbers, size, head * capacity, first, from),
            RowBuffer::F32(numbers) => move_rows(numbers, size, head * capacity, first, from),
            RowBuffer::Blocks(dtype, bytes) => {
                let row = row_bytes(*dtype, size);
                move_rows(bytes, row, head * capacity, first, from);
            }
        }
    }

    fn numbers(&self) -> KvNumbers<'_> {
        match self {
            RowBuffer::F16(numbers) => KvNumbers::F16(numbers),
            RowBuffer::F32(numbers) => KvNumbers::F32(numbers),
            RowBuffer::Blocks(DType::Q4_0, bytes) => KvNumbers::Q4_0(bytes),
            RowBuffer::Blocks(_, bytes) => KvNumbers::Q8_0(bytes),
        }
    }

    fn slice(&self, range: Range<usize>) -> KvNumbers<'_> {
        match self {
            RowBuffer::F16(numbers) => KvNumbers::F16(&numbers[range]),
            RowBuffer::F32(numbers) => KvNumbers::F32(&numbers[range]),
            RowBuffer::Blocks(dtype, bytes) => {
                let range = row_bytes(*dtype, range.start)..row_bytes(*dtype, range.end);
                match dtype {
                    DType::Q4_0 => KvNumbers::Q4_0(&bytes[range]),
                    _ => KvNumbers::Q8_0(&bytes[range]),
                }
            }
        }
    }
}

fn row_bytes(dtype: DType, size: usize) -> usize {
    size / dtype.block_len() * dtype.block_bytes()
}

fn reallocate_rows<T: Copy + Default>(
    from: &[T],
    heads: usize,
    row: usize,
    used: usize,
    capacity: usize,
) -> Vec<T> {
    let (old, new, used) = (from.len() / heads.max(1), capacity * row, used * row);
    let mut to = vec![T::default(); heads * new];
    for head in 0..heads {
        to[head * new..][..used].copy_from_slice(&from[head * old..][..used]);
    }
    to
}

fn move_rows<T: Copy>(rows: &mut [T], row: usize, start: usize, first: usize, from: &[usize]) {
    for (to, from) in (first..).zip(from) {
        let at = (start + from) * row;
        rows.copy_within(at..at + row, (start + to) * row);
    }
}

/// Float16 coordinates `[kv_heads, capacity, rank]` of keys and values.
#[derive(Clone, Debug)]
struct LowRankRows {
    stored: [Vec<u16>; 2],
    capacity: usize,
    bases: Option<Arc<LayerBases>>,
}

#[derive(Clone, Debug)]
struct LayerCache {
    full: [RowBuffer; 2],
    capacity: usize,
    low: LowRankRows,
}

/// Keys (after rotation) and values in host memory.
///
/// Each layer has per side a buffer `[kv_heads, capacity, head_size]` of full rows and `[kv_heads,
/// capacity, rank]` of coordinates, which grow with the sequence.
#[derive(Clone, Debug)]
pub struct KvCache {
    layout: KvLayout,
    layers: Vec<LayerCache>,
    kv_heads: usize,
    head_size: usize,
}

impl KvCache {
    /// Creates an empty cache.
    pub(crate) fn new(plan: &KvPlan) -> Self {
        let shape = plan.shape();
        let layer = |_| LayerCache {
            full: [0, 1].map(|_| RowBuffer::new(plan.kind().stored_type())),
            capacity: 0,
            low: LowRankRows {
                stored: [Vec::new(), Vec::new()],
                capacity: 0,
                bases: None,
            },
        };
        KvCache {
            layout: KvLayout::new(plan.clone()),
            layers: (0..shape.layers).map(layer).collect(),
            kv_heads: shape.kv_heads,
            head_size: shape.head_size,
        }
    }

    /// Returns the contents of a layer for attention.
    pub(crate) fn view(&self, layer: usize) -> Result<KvView<'_>, ShapeError> {
        let stored = &self.layers[layer];
        let [keys, values] = stored.full.each_ref().map(RowBuffer::numbers);
        let (heads, size, capacity) = (self.kv_heads, self.head_size, stored.capacity);
        let full = KvView::from_numbers(keys, values, heads, size, capacity)?;
        let low = &stored.low;
        match (self.layout.low_rank_rows(layer), &low.bases) {
            (1.., Some(bases)) => full.with_low_rank(LowRankView::new(
                low.stored.each_ref().map(|stored| &stored[..]),
                bases.components.each_ref().map(|basis| &basis[..]),
                LowRankShape {
                    kv_heads: heads,
                    head_size: size,
                    ranks: bases.ranks,
                    capacity: low.capacity,
                    positions: self.layout.low_rank_rows(layer),
                    front: self.layout.front_rows(layer),
                },
            )?),
            _ => Ok(full),
        }
    }
}

impl LowRankRows {
    fn grow(&mut self, heads: usize, ranks: [usize; 2], used: usize, needed: usize) {
        if needed <= self.capacity {
            return;
        }
        let capacity = needed.max(2 * self.capacity).max(INITIAL_CAPACITY);
        for (stored, rank) in self.stored.iter_mut().zip(ranks) {
            *stored = reallocate_rows(stored, heads, rank, used, capacity);
        }
        self.capacity = capacity;
    }

    fn resize(&mut self, heads: usize, used: usize, capacity: usize) {
        if let Some(bases) = &self.bases {
            for (stored, rank) in self.stored.iter_mut().zip(bases.ranks) {
                *stored = reallocate_rows(stored, heads, rank, used, capacity);
            }
            self.capacity = capacity;
        }
    }
}

/// Calls `f` with every head, on all threads; returns the first error.
fn for_each_head(
    cpu: &htc_kernels::cpu::Cpu,
    heads: usize,
    stored: &mut [u16],
    f: impl Fn(usize, &mut [u16]) -> Result<(), F16Error> + Sync,
) -> Result<(), F16Error> {
    let failed: Mutex<Option<(usize, F16Error)>> = Mutex::new(None);
    let of_head = stored.len() / heads.max(1);
    cpu.pool().chunks_mut(stored, of_head, |head, stored| {
        if let Err(error) = f(head, stored) {
            let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
            if failed.as_ref().is_none_or(|(first, _)| head < *first) {
                *failed = Some((head, error));
            }
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.map_or(Ok(()), |(_, error)| Err(error))
}

fn range_error(
    error: F16Error,
    layer: usize,
    side: usize,
    position: usize,
    rank: usize,
) -> ExecError {
    match error {
        F16Error::Shape(error) => error.into(),
        F16Error::Range { index, value } => {
            out_of_range(layer, side, position + index / rank.max(1), value)
        }
    }
}

/// Encodes rows `[n, heads, size]` from row `first` on, on all threads; returns the first row with
/// a number that cannot be encoded.
fn encode(
    cpu: &htc_kernels::cpu::Cpu,
    dtype: DType,
    rows: &[f32],
    [heads, size, first, capacity]: [usize; 4],
    bytes: &mut [u8],
) -> Option<(usize, f32)> {
    let row_bytes = row_bytes(dtype, size);
    let failed: Mutex<Option<(usize, f32)>> = Mutex::new(None);
    cpu.pool()
        .chunks_mut(bytes, capacity * row_bytes, |head, bytes| {
            let vectors = rows.chunks_exact(heads * size);
            let stored = bytes[first * row_bytes..].chunks_exact_mut(row_bytes.max(1));
            for (row, (vectors, stored)) in vectors.zip(stored).enumerate() {
                let vector = &vectors[head * size..][..size];
                if let Err(value) = rounding::encode(dtype, vector, stored) {
                    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                    if failed.is_none_or(|(first, _)| row < first) {
                        *failed = Some((row, value));
                    }
                    break;
                }
            }
        });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn squares(x: &[f32]) -> f64 {
    x.iter().map(|&x| f64::from(x) * f64::from(x)).sum()
}

impl Kv for KvCache {
    type Backend = Cpu;

    fn layout(&self) -> &KvLayout {
        &self.layout
    }

    fn layout_mut(&mut self) -> &mut KvLayout {
        &mut self.layout
    }

    fn bytes(&self) -> usize {
        let layers = self.layers.iter().map(|layer| {
            let full: usize = layer.full.iter().map(RowBuffer::bytes).sum();
            let low: usize = layer
                .low
                .stored
                .iter()
                .map(|low| size_of_val(&low[..]))
                .sum();
            full + low
        });
        layers.sum()
    }

    fn reserve(&mut self, _: &mut Cpu, n: usize) -> Result<()> {
        for (index, layer) in self.layers.iter_mut().enumerate() {
            if let Some(capacity) = self.layout.new_full_capacity(index, n, layer.capacity) {
                let used = self.layout.full_rows(index);
                for buffer in &mut layer.full {
                    buffer.resize(self.kv_heads, self.head_size, used, capacity);
                }
                layer.capacity = capacity;
            }
            if let Some(capacity) = self.layout.new_low_rank_capacity(index, layer.low.capacity) {
                let used = self.layout.low_rank_rows(index);
                layer.low.resize(self.kv_heads, used, capacity);
            }
        }
        Ok(())
    }

    fn copied(&self, _: &mut Cpu) -> Result<Self> {
        Ok(self.clone())
    }

    fn append(
        &mut self,
        backend: &mut Cpu,
        layer: usize,
        rows: Range<usize>,
        keys: &Vec<f32>,
        values: &Vec<f32>,
    ) -> Result<()> {
        let (heads, size) = (self.kv_heads, self.head_size);
        let numbers = rows.start * heads * size..rows.end * heads * size;
        let (cpu, sides) = (
            backend.kernels(),
            [keys, values].map(|x| &x[numbers.clone()]),
        );
        let (first, start) = (self.layout.full_rows(layer), self.layout.len());
        let LayerCache { full, capacity, .. } = &mut self.layers[layer];
        for (side, (rows, buffer)) in sides.into_iter().zip(full).enumerate() {
            let refused = |row, value| out_of_range(layer, side, start + row, value);
            if let RowBuffer::Blocks(dtype, bytes) = buffer {
                let bad = encode(cpu, *dtype, rows, [heads, size, first, *capacity], bytes);
                match bad {
                    Some((row, value)) => return Err(refused(row, value)),
                    None => continue,
                }
            }
            for (row, of_heads) in rows.chunks_exact(heads * size).enumerate() {
                for (head, vector) in of_heads.chunks_exact(size).enumerate() {
                    let at = (head * *capacity + first + row) * size;
                    match buffer {
                        RowBuffer::F16(buffer) => {
                            let stored = &mut buffer[at..][..size];
                            cpu.to_f16(vector, stored).map_err(|error| match error {
                                F16Error::Shape(error) => error.into(),
                                F16Error::Range { value, .. } => refused(row, value),
                            })?;
                        }
                        RowBuffer::F32(buffer) => {
                            if let Some(bad) = vector.iter().find(|x| !x.is_finite()) {
                                return Err(refused(row, *bad));
                            }
                            buffer[at..][..size].copy_from_slice(vector);
                        }
                        RowBuffer::Blocks(..) => {}
                    }
                }
            }
        }
        Ok(())
    }

    fn set_bases(
        &mut self,
        backend: &mut Cpu,
        layer: usize,
        bases: &Arc<LayerBases>,
        turns: Option<&[Vec<f32>; 2]>,
    ) -> Result<()> {
        let cpu = backend.kernels();
        let (heads, held) = (self.kv_heads, self.layout.low_rank_rows(layer));
        let position = self.layout.evicted(layer) + self.layout.front_rows(layer);
        let low = &mut self.layers[layer].low;
        if let (Some(turns), 1..) = (turns, held) {
            // On a copy, so that an error changes nothing.
            let mut turned = low.stored.clone();
            for (side, turns) in turns.iter().enumerate() {
                let rank = bases.ranks[side];
                let stored = &mut turned[side];
                let turn = |head: usize, coordinates: &mut [u16]| {
                    let a = SmallMatrix {
                        numbers: &turns[head * rank * rank..][..rank * rank],
                        rows: rank,
                        cols: rank,
                        transposed: false,
                    };
                    let rows = &mut coordinates[..held * rank];
                    let mut turned = vec![0.0; rows.len()];
                    cpu.map_rows(a, KvNumbers::F16(rows), &mut turned)?;
                    cpu.to_f16(&turned, rows)
                };
                for_each_head(cpu, heads, stored, turn)
                    .map_err(|error| range_error(error, layer, side, position, rank))?;
            }
            low.stored = turned;
        }
        low.bases = Some(Arc::clone(bases));
        Ok(())
    }

    fn compress(
        &mut self,
        backend: &mut Cpu,
        layer: usize,
        front: usize,
        count: usize,
    ) -> Result<CompressionEnergies> {
        let cpu = backend.kernels();
        let (heads, size) = (self.kv_heads, self.head_size);
        let (full, held) = (
            self.layout.full_rows(layer),
            self.layout.low_rank_rows(layer),
        );
        let LayerCache {
            full: buffers,
            capacity,
            low,
        } = &mut self.layers[layer];
        let Some(bases) = low.bases.clone() else {
            return Err(missing("bases of the layer"));
        };
        low.grow(heads, bases.ranks, held, held + count);
        let mut energies = CompressionEnergies::default();
        for (side, buffer) in buffers.iter().enumerate() {
            let rank = bases.ranks[side];
            let RowBuffer::F16(rows) = buffer else {
                continue;
            };
            let sums = Mutex::new(vec![[0.0; 2]; heads]);
            let project = |head: usize, coordinates: &mut [u16]| {
                let rows = &rows[(head * *capacity + front) * size..][..count * size];
                let a = SmallMatrix {
                    numbers: bases.head(side, head),
                    rows: rank,
                    cols: size,
                    transposed: false,
                };
                let mut projected = vec![0.0; count * rank];
                cpu.map_rows(a, KvNumbers::F16(rows), &mut projected)?;
                cpu.to_f16(&projected, &mut coordinates[held * rank..][..count * rank])?;
                let mut wide = vec![0.0; rows.len()];
                cpu.to_f32(KvNumbers::F16(rows), &mut wide)?;
                let of_head = [squares(&wide), squares(&projected)];
                sums.lock().unwrap_or_else(PoisonError::into_inner)[head] = of_head;
                Ok(())
            };
            let position = self.layout.evicted(layer) + front + held;
            for_each_head(cpu, heads, &mut low.stored[side], project)
                .map_err(|error| range_error(error, layer, side, position, rank))?;
            for [before, kept] in sums.into_inner().unwrap_or_else(PoisonError::into_inner) {
                energies.before[side] += before;
                energies.residual[side] += (before - kept).max(0.0);
            }
        }
        let rest: Vec<usize> = (front + count..full).collect();
        for buffer in buffers {
            for head in 0..heads {
                buffer.gather(size, *capacity, head, front, &rest);
            }
        }
        Ok(energies)
    }

    fn full_rows(
        &self,
        backend: &mut Cpu,
        layer: usize,
        rows: Range<usize>,
    ) -> Result<[Vec<f32>; 2]> {
        let (size, stored) = (self.head_size, &self.layers[layer]);
        let mut sides = [0, 1].map(|_| vec![0.0; self.kv_heads * rows.len() * size]);
        for (buffer, out) in stored.full.iter().zip(&mut sides) {
            let heads = out.chunks_exact_mut((rows.len() * size).max(1));
            for (head, out) in heads.enumerate() {
                let at = (head * stored.capacity + rows.start) * size;
                backend
                    .kernels()
                    .to_f32(buffer.slice(at..at + out.len()), out)?;
            }
        }
        Ok(sides)
    }

    fn keep(&mut self, _: &mut Cpu, layer: usize, kept: &KeptRows) -> Result<()> {
        let size = self.head_size;
        let LayerCache {
            full,
            capacity,
            low,
        } = &mut self.layers[layer];
        for (head, rows) in kept.rows.iter().enumerate() {
            match (kept.low_rank, &low.bases) {
                (true, Some(bases)) => {
                    for (stored, rank) in low.stored.iter_mut().zip(bases.ranks) {
                        move_rows(stored, rank, head * low.capacity, 0, rows);
                    }
                }
                _ => {
                    for buffer in &mut *full {
                        buffer.gather(size, *capacity, head, 0, rows);
                    }
                }
            }
        }
        Ok(())
    }
}
