//! KV cache in device memory.

use std::ops::Range;
use std::sync::Arc;

use htc_kernels::cuda::{Device, DeviceError, ops};

use super::heads::Heads;
use super::{Gpu, GpuBuffer};
use crate::error::Result;
use crate::kv::{
    CompressionEnergies, INITIAL_CAPACITY, KeptRows, Kv, KvLayout, KvPlan, KvType, LayerBases,
    missing, out_of_range,
};

/// Returns the largest number of rows reserved for a sequence of `positions`.
pub(super) fn max_capacity(positions: usize) -> usize {
    if positions <= INITIAL_CAPACITY {
        INITIAL_CAPACITY
    } else {
        positions.saturating_mul(2)
    }
}

/// KV cache in device memory, with the same row order as [`KvCache`](crate::kv::KvCache).
#[derive(Debug)]
pub struct GpuKv<D: Device> {
    layout: KvLayout,
    layers: Vec<Layer<D>>,
    /// Range faults of writes, for keys and for values.
    faults: ops::FaultEntries<D>,
}

#[derive(Debug)]
struct Layer<D: Device> {
    full: [ops::KvRows<D>; 2],
    low: Option<Low<D>>,
}

type Low<D> = [ops::DeviceLowRankRows<D>; 2];

fn low_rows<D: Device>(low: &mut Low<D>) -> [&mut ops::KvRows<D>; 2] {
    low.each_mut().map(|side| &mut side.rows)
}

/// Returns larger buffers for both sides, or the old ones if memory runs out.
fn replaced<D: Device>(
    [keys, values]: [&mut ops::KvRows<D>; 2],
    mut with: impl FnMut(&ops::KvRows<D>) -> Result<ops::KvRows<D>, DeviceError>,
) -> Result<()> {
    (*keys, *values) = (with(keys)?, with(values)?);
    Ok(())
}

impl<D: Device> GpuKv<D> {
    pub(super) fn new(device: &D, plan: &KvPlan) -> Result<Self> {
        let numbers = match plan.kind().stored_type() {
            KvType::F32 => ops::KvElement::F32,
            KvType::F16 => ops::KvElement::F16,
            KvType::Q8_0 => ops::KvElement::Q8_0,
            KvType::Q4_0 => ops::KvElement::Q4_0,
        };
        let shape = ops::KvHeads {
            heads: plan.shape().kv_heads,
            size: plan.shape().head_size,
        };
        let rows = || ops::KvRows::new(device, numbers, shape, 0);
        let layer = |_| {
            Ok(Layer {
                full: [rows()?, rows()?],
                low: None,
            })
        };
        let layers: Result<Vec<Layer<D>>> = (0..plan.shape().layers).map(layer).collect();
        Ok(GpuKv {
            layout: KvLayout::new(plan.clone()),
            layers: layers?,
            faults: ops::FaultEntries::new(device, 2)?,
        })
    }

    pub(super) fn heads(&self) -> ops::KvHeads {
        let shape = self.layout.plan().shape();
        ops::KvHeads {
            heads: shape.kv_heads,
            size: shape.head_size,
        }
    }

    /// [`GpuKv::append`] fused into the launch that prepares keys and values.
    pub(super) fn append_heads(
        &self,
        device: &D,
        layer: usize,
        heads: &Heads<D>,
        sides: [&Arc<D::Memory>; 2],
        faults: &ops::FaultEntries<D>,
    ) -> Result<()> {
        let places = [self.layout.full_rows(layer), self.layout.len()];
        let full = &self.layers[layer].full;
        let to = |x: &Arc<D::Memory>| {
            let side = sides.iter().position(|side| Arc::ptr_eq(side, x))?;
            Some(ops::AppendTarget {
                rows: &full[side],
                fault_entry: 2 * layer + side,
            })
        };
        Ok(heads.launch(device, Some((faults, places)), to)?)
    }

    pub(super) fn layer_cache(&self, layer: usize) -> ops::DeviceLayerCache<'_, D> {
        let held = &self.layers[layer];
        let compressed = self.layout.low_rank_rows(layer);
        let low = held.low.as_ref().filter(|_| compressed > 0);
        ops::DeviceLayerCache {
            full: held.full.each_ref(),
            low_rank: low.map(|low| ops::DeviceLowRankCache {
                keys_and_values: low.each_ref(),
                full_before: self.layout.front_rows(layer),
                compressed,
            }),
            start: self.layout.positions(layer),
        }
    }

    /// Returns keys and values of all positions of a layer, including `n` appended ones, as
    /// float32; low-rank rows are reconstructed.
    pub(super) fn whole(&self, device: &D, layer: usize, n: usize) -> Result<[ops::KvRows<D>; 2]> {
        let (held, layout) = (&self.layers[layer], &self.layout);
        let (front, compressed) = (layout.front_rows(layer), layout.low_rank_rows(layer));
        let (full, end) = (layout.full_rows(layer) + n, layout.positions(layer) + n);
        let of_side = |side: usize| {
            let rows = &held.full[side];
            let to = ops::KvRows::new(device, ops::KvElement::F32, rows.shape(), end)?;
            ops::rows_to_f32(device, rows, [0, front], to.memory(), [0, end])?;
            if let Some(low) = &held.low {
                let low = &low[side];
                ops::expand_low_rank(device, low, compressed, to.memory(), [front, end])?;
            }
            let behind = [front + compressed, end];
            ops::rows_to_f32(device, rows, [front, full - front], to.memory(), behind)?;
            Ok::<_, DeviceError>(to)
        };
        Ok([of_side(0)?, of_side(1)?])
    }

    fn refused(&self, device: &D, layer: usize, position: usize) -> Result<()> {
        match self.faults.take_first(device)? {
            None => Ok(()),
            Some(fault) => {
                let at = position + fault.row;
                Err(out_of_range(layer, fault.entry, at, fault.value))
            }
        }
    }
}

impl<D: Device> Kv for GpuKv<D> {
    type Backend = Gpu<D>;

    fn layout(&self) -> &KvLayout {
        &self.layout
    }

    fn layout_mut(&mut self) -> &mut KvLayout {
        &mut self.layout
    }

    fn bytes(&self) -> usize {
        let layers = self.layers.iter().map(|layer| {
            let full: usize = layer.full.iter().map(ops::KvRows::bytes).sum();
            let low = layer.low.as_ref().map_or(0, |low| {
                let sides = low.iter().map(|side| side.rows.bytes());
                sides.sum::<usize>()
            });
            full + low
        });
        layers.sum()
    }

    fn reserve(&mut self, backend: &mut Gpu<D>, n: usize) -> Result<()> {
        backend.finish()?;
        let device = &backend.device;
        for (index, layer) in self.layers.iter_mut().enumerate() {
            let capacity = layer.full[0].capacity();
            if let Some(capacity) = self.layout.new_full_capacity(index, n, capacity) {
                let used = self.layout.full_rows(index);
                replaced(layer.full.each_mut(), |rows| {
                    rows.with_capacity(device, None, used, capacity)
                })?;
            }
            if let Some(low) = &mut layer.low
                && let Some(capacity) = self
                    .layout
                    .new_low_rank_capacity(index, low[0].rows.capacity())
            {
                let used = self.layout.low_rank_rows(index);
                replaced(low_rows(low), |rows| {
                    rows.with_capacity(device, None, used, capacity)
                })?;
            }
        }
        Ok(())
    }

    fn copied(&self, backend: &mut Gpu<D>) -> Result<Self> {
        backend.finish()?;
        let device = &backend.device;
        let layer = |(index, held): (usize, &Layer<D>)| {
            let (used, compressed) = (
                self.layout.full_rows(index),
                self.layout.low_rank_rows(index),
            );
            let [keys, values] = &held.full;
            let full =
                |rows: &ops::KvRows<D>| rows.with_capacity(device, None, used, rows.capacity());
            let low = match &held.low {
                None => None,
                Some([keys, values]) => Some([
                    keys.copied(device, compressed)?,
                    values.copied(device, compressed)?,
                ]),
            };
            let full = [full(keys)?, full(values)?];
            Ok(Layer { full, low })
        };
        let layers: Result<Vec<Layer<D>>, DeviceError> =
            self.layers.iter().enumerate().map(layer).collect();
        Ok(GpuKv {
            layout: self.layout.clone(),
            layers: layers?,
            faults: ops::FaultEntries::new(device, 2)?,
        })
    }

    fn append(
        &mut self,
        backend: &mut Gpu<D>,
        layer: usize,
        rows: Range<usize>,
        keys: &GpuBuffer<D>,
        values: &GpuBuffer<D>,
    ) -> Result<()> {
        let sides = [keys.memory()?, values.memory()?];
        let mut heads = backend.take_heads()?;
        let (device, joins) = (&backend.device, backend.joins);
        let Some(faults) = &backend.faults else {
            return Err(missing("buffer for the faults"));
        };
        backend.unchecked = true;
        let begins = rows.start == 0;
        if joins && begins && heads.appends(rows.len(), self.heads(), sides) {
            return self.append_heads(device, layer, &heads, sides, faults);
        }
        heads.finish(device)?;
        let appended = ops::AppendedRows {
            from: rows.start,
            count: rows.len(),
            to: self.layout.full_rows(layer),
            position: self.layout.len(),
        };
        for (side, x) in sides.into_iter().enumerate() {
            let rows = &self.layers[layer].full[side];
            let entry = 2 * layer + side;
            ops::append_rows(device, rows, appended, x, faults, entry)?;
        }
        Ok(())
    }

    fn set_bases(
        &mut self,
        backend: &mut Gpu<D>,
        layer: usize,
        bases: &Arc<LayerBases>,
        turns: Option<&[Vec<f32>; 2]>,
    ) -> Result<()> {
        backend.check()?;
        let device = &backend.device;
        let held = self.layout.low_rank_rows(layer);
        let position = self.layout.evicted(layer) + self.layout.front_rows(layer);
        let capacity = self.layers[layer]
            .low
            .as_ref()
            .map_or(0, |low| low[0].rows.capacity());
        let mut sides = Vec::with_capacity(2);
        for side in 0..2 {
            let shape = ops::KvHeads {
                heads: bases.kv_heads,
                size: bases.ranks[side],
            };
            let basis = ops::upload_floats(device, &bases.components[side])?;
            let rows = ops::KvRows::new(device, ops::KvElement::F16, shape, capacity);
            let to = ops::DeviceLowRankRows {
                rows: rows?,
                basis: Arc::new(basis),
                size: bases.head_size,
            };
            sides.push(to);
        }
        if let (Some(low), 1..) = (&self.layers[layer].low, held) {
            for (side, to) in sides.iter_mut().enumerate() {
                let from = &low[side].rows;
                match turns {
                    Some(turns) => {
                        let turn = ops::upload_floats(device, &turns[side])?;
                        let [from, to] =
                            [from, &to.rows].map(|rows| ops::KvRowsFrom { rows, first: 0 });
                        ops::map_rows(device, held, from, &turn, to, &self.faults, side)?;
                    }
                    None => {
                        let kept = from.with_capacity(device, None, held, capacity);
                        to.rows = kept?;
                    }
                }
            }
            self.refused(device, layer, position)?;
        }
        let Ok(sides) = <[ops::DeviceLowRankRows<D>; 2]>::try_from(sides) else {
            return Ok(());
        };
        self.layers[layer].low = Some(sides);
        Ok(())
    }

    fn compress(
        &mut self,
        backend: &mut Gpu<D>,
        layer: usize,
        front: usize,
        count: usize,
    ) -> Result<CompressionEnergies> {
        backend.check()?;
        let device = &backend.device;
        let (full, held) = (
            self.layout.full_rows(layer),
            self.layout.low_rank_rows(layer),
        );
        let position = self.layout.evicted(layer) + front + held;
        let of_layer = &mut self.layers[layer];
        let Some(low) = &mut of_layer.low else {
            return Err(missing("bases of the layer"));
        };
        if held + count > low[0].rows.capacity() {
            let capacity = (held + count)
                .max(2 * low[0].rows.capacity())
                .max(INITIAL_CAPACITY);
            replaced(low_rows(low), |rows| {
                rows.with_capacity(device, None, held, capacity)
            })?;
        }
        let mut energies = CompressionEnergies::default();
        for (side, low) in low.iter().enumerate() {
            let from = ops::KvRowsFrom {
                rows: &of_layer.full[side],
                first: front,
            };
            let basis = &low.basis;
            let to = ops::KvRowsFrom {
                rows: &low.rows,
                first: held,
            };
            let squares = ops::map_rows(device, count, from, basis, to, &self.faults, side);
            // Sums per head, as on the CPU.
            for of_head in squares?.chunks(count.max(1)) {
                let sum = |which: usize| of_head.iter().map(|s| f64::from(s[which])).sum::<f64>();
                let (before, kept) = (sum(0), sum(1));
                energies.before[side] += before;
                energies.residual[side] += (before - kept).max(0.0);
            }
        }
        self.refused(device, layer, position)?;
        replaced(self.layers[layer].full.each_mut(), |side| {
            side.without_rows(device, front, count, full)
        })?;
        Ok(energies)
    }

    fn full_rows(
        &self,
        backend: &mut Gpu<D>,
        layer: usize,
        rows: Range<usize>,
    ) -> Result<[Vec<f32>; 2]> {
        backend.check()?;
        let device = &backend.device;
        let of_side = |side: &ops::KvRows<D>| -> Result<_, DeviceError> {
            let (shape, n) = (side.shape(), rows.len());
            let numbers = shape.heads * n * shape.size;
            let to = device.allocate(numbers * size_of::<f32>())?;
            ops::rows_to_f32(device, side, [rows.start, n], &to, [0, n])?;
            ops::download_floats(device, &to, numbers)
        };
        let [keys, values] = &self.layers[layer].full;
        Ok([of_side(keys)?, of_side(values)?])
    }

    fn keep(&mut self, backend: &mut Gpu<D>, layer: usize, kept: &KeptRows) -> Result<()> {
        backend.finish()?;
        let device = &backend.device;
        let used = kept.rows.first().map_or(0, Vec::len);
        let rows: Vec<u32> = kept.rows.iter().flatten().map(|&row| row as u32).collect();
        let of_layer = &mut self.layers[layer];
        match (&mut of_layer.low, kept.low_rank) {
            (Some(low), true) => replaced(low_rows(low), |side| {
                side.with_capacity(device, Some(&rows), used, side.capacity())
            }),
            _ => replaced(of_layer.full.each_mut(), |side| {
                side.with_capacity(device, Some(&rows), used, side.capacity())
            }),
        }
    }
}
