//! KV cache of the reference backend: float64, rounded only as the KV type requires.

use std::ops::Range;
use std::sync::Arc;

use htc_formats::block;
use htc_kernels::reference;

use super::Reference;
use crate::error::Result;
use crate::kv::{
    CompressionEnergies, KeptRows, Kv, KvLayout, KvPlan, KvType, LayerBases, missing, out_of_range,
    rounding,
};

/// Keys and values of each layer: full rows `[positions, kv_heads, head_size]`, and coordinates
/// `[positions, kv_heads, rank]`.
#[derive(Clone, Debug)]
pub struct ReferenceKv {
    layout: KvLayout,
    layers: Vec<Layer>,
}

#[derive(Clone, Debug, Default)]
struct Layer {
    full: [Vec<f64>; 2],
    low: [Vec<f64>; 2],
    bases: Option<Arc<LayerBases>>,
}

impl Kv for ReferenceKv {
    type Backend = Reference;

    fn layout(&self) -> &KvLayout {
        &self.layout
    }

    fn layout_mut(&mut self) -> &mut KvLayout {
        &mut self.layout
    }

    fn bytes(&self) -> usize {
        let sides = |layer: &Layer| {
            let sides = layer.full.iter().chain(&layer.low);
            sides.map(|side| size_of_val(&side[..])).sum::<usize>()
        };
        self.layers.iter().map(sides).sum()
    }

    fn reserve(&mut self, _: &mut Reference, _: usize) -> Result<()> {
        Ok(())
    }

    fn copied(&self, _: &mut Reference) -> Result<Self> {
        Ok(self.clone())
    }

    fn append(
        &mut self,
        _: &mut Reference,
        layer: usize,
        rows: Range<usize>,
        keys: &Vec<f64>,
        values: &Vec<f64>,
    ) -> Result<()> {
        let (row, kept, start) = (self.row(), self.layout.full_rows(layer), self.layout.len());
        let kv_type = self.layout.plan().kind().stored_type();
        let numbers = rows.start * row..rows.end * row;
        for (side, x) in [keys, values].into_iter().enumerate() {
            let held = &mut self.layers[layer].full[side];
            // Overwrites positions that were appended but not counted.
            held.truncate(kept * row);
            for (t, numbers) in x[numbers.clone()].chunks_exact(row).enumerate() {
                rounded(kv_type, numbers, held)
                    .map_err(|value| out_of_range(layer, side, start + t, value))?;
            }
        }
        Ok(())
    }

    fn set_bases(
        &mut self,
        _: &mut Reference,
        layer: usize,
        bases: &Arc<LayerBases>,
        turns: Option<&[Vec<f32>; 2]>,
    ) -> Result<()> {
        let heads = bases.kv_heads;
        let position = self.layout.evicted(layer) + self.layout.front_rows(layer);
        let count = self.layout.low_rank_rows(layer) * heads;
        let held = &mut self.layers[layer];
        if let Some(turns) = turns {
            let mut low = [vec![], vec![]];
            for side in 0..2 {
                let rank = bases.ranks[side];
                let vectors = held.low[side][..count * rank].chunks_exact(rank);
                for (index, old) in vectors.enumerate() {
                    let turn = &turns[side][index % heads * rank * rank..][..rank * rank];
                    let new: Vec<f64> = turn.chunks_exact(rank).map(|row| dot(row, old)).collect();
                    rounded(KvType::F16, &new, &mut low[side]).map_err(|value| {
                        out_of_range(layer, side, position + index / heads, value)
                    })?;
                }
            }
            held.low = low;
        }
        held.bases = Some(Arc::clone(bases));
        Ok(())
    }

    fn compress(
        &mut self,
        _: &mut Reference,
        layer: usize,
        front: usize,
        count: usize,
    ) -> Result<CompressionEnergies> {
        let (row, size) = (self.row(), self.layout.plan().shape().head_size);
        let compressed = self.layout.low_rank_rows(layer);
        let position = self.layout.evicted(layer) + front + compressed;
        let held = &mut self.layers[layer];
        let bases = held
            .bases
            .clone()
            .ok_or_else(|| missing("bases of the layer"))?;
        let rows = front * row..(front + count) * row;
        let mut energies = CompressionEnergies::default();
        for side in 0..2 {
            // Overwrites positions that were appended but not counted.
            held.low[side].truncate(compressed * bases.kv_heads * bases.ranks[side]);
            let vectors = held.full[side][rows.clone()].chunks_exact(size).enumerate();
            for (index, vector) in vectors {
                let basis = bases.head(side, index % bases.kv_heads);
                let coordinates: Vec<f64> =
                    basis.chunks_exact(size).map(|u| dot(u, vector)).collect();
                let (before, kept) = (squares(vector), squares(&coordinates));
                energies.before[side] += before;
                energies.residual[side] += (before - kept).max(0.0);
                rounded(KvType::F16, &coordinates, &mut held.low[side]).map_err(|value| {
                    out_of_range(layer, side, position + index / bases.kv_heads, value)
                })?;
            }
        }
        for full in &mut held.full {
            full.drain(rows.clone());
        }
        Ok(energies)
    }

    fn full_rows(
        &self,
        _: &mut Reference,
        layer: usize,
        rows: Range<usize>,
    ) -> Result<[Vec<f32>; 2]> {
        let (row, shape) = (self.row(), self.layout.plan().shape());
        let size = shape.head_size;
        Ok(self.layers[layer].full.each_ref().map(|full| {
            let of_head = |head: usize| {
                let vectors = rows.clone().map(move |r| r * row + head * size);
                vectors.flat_map(|at| full[at..at + size].iter().map(|&x| x as f32))
            };
            (0..shape.kv_heads).flat_map(of_head).collect()
        }))
    }

    fn keep(&mut self, _: &mut Reference, layer: usize, kept: &KeptRows) -> Result<()> {
        let (heads, size) = (kept.rows.len(), self.layout.plan().shape().head_size);
        let held = &mut self.layers[layer];
        let count = kept.rows.first().map_or(0, Vec::len);
        for side in 0..2 {
            let (from, size) = match (kept.low_rank, &held.bases) {
                (true, Some(bases)) => (&mut held.low[side], bases.ranks[side]),
                _ => (&mut held.full[side], size),
            };
            let mut to = Vec::with_capacity(count * heads * size);
            for index in 0..count {
                for (head, rows) in kept.rows.iter().enumerate() {
                    to.extend_from_slice(&from[(rows[index] * heads + head) * size..][..size]);
                }
            }
            *from = to;
        }
        Ok(())
    }
}

impl ReferenceKv {
    pub(super) fn new(plan: &KvPlan) -> Self {
        ReferenceKv {
            layout: KvLayout::new(plan.clone()),
            layers: vec![Layer::default(); plan.shape().layers],
        }
    }

    fn row(&self) -> usize {
        let shape = self.layout.plan().shape();
        shape.kv_heads * shape.head_size
    }

    /// Returns keys and values of all positions of a layer, including `n` appended ones,
    /// `[positions, kv_heads, head_size]`; low-rank rows are reconstructed.
    pub(super) fn all(&self, layer: usize, n: usize) -> [Vec<f64>; 2] {
        let (row, shape) = (self.row(), self.layout.plan().shape());
        let (full, front) = (
            self.layout.full_rows(layer) + n,
            self.layout.front_rows(layer),
        );
        let held = &self.layers[layer];
        [0, 1].map(|side| {
            let rows = &held.full[side][..full * row];
            let mut all = rows[..front * row].to_vec();
            if let Some(bases) = &held.bases {
                let rank = bases.ranks[side];
                let count = self.layout.low_rank_rows(layer) * shape.kv_heads;
                let heads = held.low[side][..count * rank].chunks_exact(rank);
                for (index, coordinates) in heads.enumerate() {
                    let basis = bases.head(side, index % shape.kv_heads);
                    all.extend((0..shape.head_size).map(|d| {
                        let column = basis[d..].iter().step_by(shape.head_size);
                        let terms = coordinates.iter().zip(column);
                        terms.map(|(y, &u)| y * f64::from(u)).sum::<f64>()
                    }));
                }
            }
            all.extend(&rows[front * row..]);
            all
        })
    }
}

/// Appends a row of whole blocks, rounded to `kv_type`; fails with the first number outside its
/// range.
fn rounded(kv_type: KvType, numbers: &[f64], to: &mut Vec<f64>) -> Result<(), f32> {
    match kv_type {
        KvType::F16 | KvType::F32 => {
            for &number in numbers {
                let stored = match kv_type {
                    KvType::F16 => reference::nearest_f16(number),
                    _ => number,
                };
                if !stored.is_finite() {
                    return Err(number as f32);
                }
                to.push(stored);
            }
        }
        KvType::Q8_0 | KvType::Q4_0 => {
            let dtype = kv_type.dtype();
            let mut row: Vec<f32> = numbers.iter().map(|&x| x as f32).collect();
            let mut bytes = vec![0; dtype.row_bytes(row.len()).unwrap_or(0)];
            rounding::encode(dtype, &row, &mut bytes)?;
            block::decode(dtype, &bytes, &mut row).map_err(|_| f32::NAN)?;
            to.extend(row.into_iter().map(f64::from));
        }
    }
    Ok(())
}

fn dot(a: &[f32], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(&a, b)| f64::from(a) * b).sum()
}

fn squares(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum()
}
