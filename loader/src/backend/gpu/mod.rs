//! GPU backend: weights, activations and KV cache stay in device memory; only requested results are
//! copied back.

mod attention;
mod buffers;
mod heads;
mod kv;
mod need;
mod pending;
mod projection;

use std::ops::Range;
use std::sync::Arc;

use htc_formats::model::{Activation, RopePairs};
use htc_kernels::Pool;
use htc_kernels::cpu::hadamard_block;
use htc_kernels::cuda::{Device, DeviceMemory, ops};

pub use self::buffers::{GpuBuffer, GpuRotation, GpuVector};
use self::heads::{Step, Turn};
pub use self::kv::GpuKv;
pub use self::need::{GpuMemoryEstimate, PlannedSession};
use self::pending::Pending;
use super::{Attention, Backend, Factor, HeadShape, Product, SequenceRows, refine_one_by_one};
use crate::error::Result;
use crate::kv::{KvPlan, out_of_range};
use crate::sampling::SamplingParameters;
use crate::tensor::Tensor;

/// Largest batch that is recorded as one step.
const STEP: usize = 16;

/// GPU backend. Sessions share a model's weights; each has its own backend on the same device.
#[derive(Debug)]
pub struct Gpu<D: Device> {
    device: D,
    /// Threads that convert weights; without a pool, the caller's thread.
    pool: Option<Arc<Pool>>,
    products: ops::Workspace<D>,
    attention: ops::AttentionScratch<D>,
    largest: ops::TopK<D>,
    drawing: ops::TokenSampler<D>,
    faults: Option<ops::FaultEntries<D>>,
    /// Whether keys or values were written since the last check for faults.
    unchecked: bool,
    /// As [`Backend::set_batch_invariant`].
    batch_invariant: bool,
    pending: Pending<D>,
    /// Whether operations are fused.
    joins: bool,
}

impl<D: Device> Gpu<D> {
    /// Creates a backend on a device.
    pub fn new(device: &D) -> Self {
        Gpu {
            device: device.clone(),
            pool: None,
            products: ops::Workspace::default(),
            attention: ops::AttentionScratch::default(),
            largest: ops::TopK::default(),
            drawing: ops::TokenSampler::default(),
            faults: None,
            unchecked: false,
            batch_invariant: false,
            pending: Pending::None,
            joins: true,
        }
    }

    /// Converts weights on the threads of a pool.
    #[must_use]
    pub fn laid_out_by(mut self, pool: &Arc<Pool>) -> Self {
        self.pool = Some(Arc::clone(pool));
        self
    }

    /// Launches every operation separately, for tests; results are identical.
    #[must_use]
    pub fn one_by_one(mut self) -> Self {
        self.joins = false;
        self.products = ops::Workspace::with_separate_launches();
        self
    }

    /// Fuses both products of low-rank projections into one launch if they fit, for benchmarks;
    /// results are identical. See [`ops::Workspace::with_single_launch`].
    #[must_use]
    pub fn in_one_launch(mut self) -> Self {
        self.products = ops::Workspace::with_single_launch();
        self
    }

    fn grow(&mut self, buffer: &mut GpuBuffer<D>, numbers: usize) -> Result<()> {
        let needed = numbers * size_of::<f32>();
        let has = buffer.memory.as_ref().map_or(0, |memory| memory.len());
        if buffer.memory.is_none() || has < needed {
            // Frees the old buffer first.
            self.finish()?;
            buffer.memory = None;
            let memory = self.device.allocate(needed)?;
            buffer.memory = Some(Arc::new(memory));
        }
        Ok(())
    }

    /// Begins a forward pass, which ends when results are read or residual streams uploaded. Small
    /// batches are recorded as one step, since launch overhead dominates.
    fn begin(&mut self, positions: usize) -> Result<()> {
        if positions <= STEP {
            Ok(self.device.begin_step()?)
        } else {
            Ok(())
        }
    }

    /// Returns the error of the first key or value out of range since the last check.
    fn check(&mut self) -> Result<()> {
        self.finish()?;
        // Any following operation would end the step; recording begins here.
        self.device.end_step()?;
        let Some(faults) = self.faults.as_ref().filter(|_| self.unchecked) else {
            return Ok(());
        };
        self.unchecked = false;
        match faults.take_first(&self.device)? {
            None => Ok(()),
            Some(fault) => {
                let (layer, side) = (fault.entry / 2, fault.entry % 2);
                Err(out_of_range(layer, side, fault.row, fault.value))
            }
        }
    }
}

impl<D: Device> Backend for Gpu<D> {
    type Buffer = GpuBuffer<D>;
    type Weight = ops::DeviceMatrix<D>;
    type Vector = GpuVector<D>;
    type Rotation = GpuRotation<D>;
    type Kv = GpuKv<D>;

    fn weight(&mut self, tensor: &Tensor) -> Result<ops::DeviceMatrix<D>> {
        let source = match tensor.column_groups()? {
            Some(bands) => {
                bands.check()?;
                ops::MatrixSource::ColumnGroups(bands)
            }
            None => ops::MatrixSource::Blocks(tensor.matrix()?),
        };
        let pool = self.pool.as_deref();
        Ok(ops::DeviceMatrix::new_with_pool(
            pool,
            &self.device,
            source,
        )?)
    }

    fn vector(&mut self, numbers: Vec<f32>) -> Result<GpuVector<D>> {
        let memory = ops::upload_floats(&self.device, &numbers)?;
        let (memory, numbers) = (Arc::new(memory), numbers.len());
        Ok(GpuVector { memory, numbers })
    }

    fn kv(&mut self, plan: &KvPlan) -> Result<GpuKv<D>> {
        let entries = 2 * plan.shape().layers;
        let faults = ops::FaultEntries::new(&self.device, entries)?;
        self.faults = Some(faults);
        GpuKv::new(&self.device, plan)
    }

    fn resize(&mut self, buffer: &mut GpuBuffer<D>, numbers: usize) -> Result<()> {
        self.grow(buffer, numbers)
    }

    fn upload(&mut self, from: &[f32], to: &mut GpuBuffer<D>) -> Result<()> {
        self.finish()?;
        Ok(ops::write_floats(&self.device, from, to.memory()?)?)
    }

    fn read<'a>(
        &mut self,
        from: &'a GpuBuffer<D>,
        numbers: usize,
        host_buffer: &'a mut Vec<f32>,
    ) -> Result<&'a [f32]> {
        self.check()?;
        host_buffer.resize(numbers, 0.0);
        ops::read_floats(&self.device, from.memory()?, host_buffer)?;
        Ok(host_buffer)
    }

    fn settle(&mut self) -> Result<()> {
        self.check()
    }

    fn begin_top_k(&mut self, of: &GpuBuffer<D>, numbers: usize, most: usize) -> Result<bool> {
        if most > ops::MAX_TOP_K {
            return Ok(false);
        }
        self.finish()?;
        self.largest
            .begin(&self.device, of.memory()?, numbers, most)?;
        Ok(true)
    }

    fn take_top_k(&mut self) -> Result<Option<Vec<(u32, f32)>>> {
        Ok(self.largest.take(&self.device)?)
    }

    fn begin_draw(
        &mut self,
        of: &GpuBuffer<D>,
        numbers: usize,
        draw: &SamplingParameters,
    ) -> Result<bool> {
        if numbers > ops::MAX_SAMPLED_LOGITS {
            return Ok(false);
        }
        self.finish()?;
        let begun = self
            .drawing
            .begin(&self.device, of.memory()?, numbers, draw);
        begun?;
        Ok(true)
    }

    fn drawn(&mut self) -> Result<Option<u32>> {
        Ok(self.drawing.take(&self.device)?)
    }

    fn copy_rows(
        &mut self,
        width: usize,
        x: &GpuBuffer<D>,
        rows: Range<usize>,
        out: &mut GpuBuffer<D>,
        first: usize,
    ) -> Result<()> {
        self.finish()?;
        let bytes = |rows: usize| rows * width * size_of::<f32>();
        let from = x.memory()?.at(bytes(rows.start));
        let to = out.memory()?.at(bytes(first));
        self.device.copy(from, to, bytes(rows.len()))?;
        Ok(())
    }

    fn embed(
        &mut self,
        embedding: &ops::DeviceMatrix<D>,
        tokens: &[u32],
        scale: Option<f32>,
        out: &mut GpuBuffer<D>,
    ) -> Result<()> {
        self.finish()?;
        self.begin(tokens.len())?;
        Ok(ops::dequantise_rows(
            &self.device,
            embedding,
            tokens,
            scale,
            out.memory()?,
        )?)
    }

    fn rms_norm(
        &mut self,
        n: usize,
        x: &GpuBuffer<D>,
        weight: &GpuVector<D>,
        epsilon: f32,
        out: &mut GpuBuffer<D>,
    ) -> Result<()> {
        self.pend_norm(n, x.memory()?, weight, epsilon, out.memory()?)
    }

    fn rms_norm_in_place(
        &mut self,
        n: usize,
        x: &mut GpuBuffer<D>,
        weight: &GpuVector<D>,
        epsilon: f32,
    ) -> Result<()> {
        let step = Step::Norm {
            heads: n,
            weight: Arc::clone(&weight.memory),
            size: weight.numbers,
            epsilon,
        };
        self.pend_heads(x.memory()?, step)
    }

    fn project(
        &mut self,
        n: usize,
        x: &GpuBuffer<D>,
        factors: &[Factor<'_, ops::DeviceMatrix<D>>],
        products: &mut [Product<'_, Self>],
    ) -> Result<()> {
        self.project_to(n, x, factors, products, false)
    }

    fn refine(
        &mut self,
        n: usize,
        x: &GpuBuffer<D>,
        products: &mut [Product<'_, Self>],
        extra: &mut GpuBuffer<D>,
    ) -> Result<()> {
        if self.joins {
            self.project_to(n, x, &[], products, true)
        } else {
            refine_one_by_one(self, n, x, products, extra)
        }
    }

    fn add_bias(&mut self, n: usize, x: &mut GpuBuffer<D>, bias: &GpuVector<D>) -> Result<()> {
        let step = Step::Bias {
            rows: n,
            bias: Arc::clone(&bias.memory),
            width: bias.numbers,
        };
        self.pend_heads(x.memory()?, step)
    }

    fn rotate_to(
        &mut self,
        rotation: &mut GpuRotation<D>,
        positions: &[Range<usize>],
        frequencies: &[f64],
        factor: f32,
    ) -> Result<()> {
        // Executing blocks one by one repeats the same positions.
        if rotation.positions == positions && rotation.pairs == frequencies.len() {
            return Ok(());
        }
        self.finish()?;
        // Empty until it is filled.
        rotation.positions.clear();
        let (n, pairs) = (positions.iter().map(Range::len).sum(), frequencies.len());
        if rotation.frequencies.is_some() && rotation.pairs == pairs {
            self.begin(n)?;
        } else {
            let bytes: Vec<u8> = frequencies.iter().flat_map(|f| f.to_le_bytes()).collect();
            let memory = self.device.allocate(bytes.len())?;
            self.device.upload(&bytes, &memory, 0)?;
            rotation.frequencies = Some(memory);
        }
        for side in &mut rotation.sides {
            self.grow(side, n * pairs)?;
        }
        rotation.pairs = pairs;
        let [cosines, sines] = &rotation.sides;
        let sides = [cosines.memory()?, sines.memory()?].map(|side| &**side);
        let Some(frequencies) = &rotation.frequencies else {
            return Ok(());
        };
        let device = &self.device;
        let mut first = 0;
        for range in positions {
            let span = range.clone();
            ops::rope_tables(device, span, frequencies, pairs, factor, sides, first)?;
            first += range.len();
        }
        rotation.positions.extend_from_slice(positions);
        Ok(())
    }

    fn rope(
        &mut self,
        pairs: RopePairs,
        rotation: &GpuRotation<D>,
        shape: HeadShape,
        x: &mut GpuBuffer<D>,
    ) -> Result<()> {
        let HeadShape { rows, heads, size } = shape;
        let shape = ops::RopeShape {
            rows,
            heads,
            size,
            pairs: rotation.pairs,
        };
        let [cosines, sines] = &rotation.sides;
        let turn = Turn {
            which: pairs,
            pairs: rotation.pairs,
            sides: [cosines.memory()?, sines.memory()?].map(Arc::clone),
        };
        self.pend_heads(x.memory()?, Step::Turn { shape, turn })
    }

    fn set_batch_invariant(&mut self, batch_invariant: bool) {
        self.batch_invariant = batch_invariant;
        self.products.set_batch_invariant(batch_invariant);
    }

    fn attention(
        &mut self,
        shape: HeadShape,
        q: &GpuBuffer<D>,
        batch: &[SequenceRows<'_, GpuKv<D>>],
        layer: usize,
        attention: &Attention,
        out: &mut GpuBuffer<D>,
    ) -> Result<()> {
        self.finish()?;
        let places = [q.memory()?, out.memory()?];
        self.attend(shape, places, batch, layer, attention)
    }

    fn hadamard(&mut self, shape: HeadShape, x: &mut GpuBuffer<D>) -> Result<()> {
        self.finish()?;
        let numbers = shape.rows * shape.heads * shape.size;
        let block = hadamard_block(shape.size);
        Ok(ops::hadamard(&self.device, numbers, block, x.memory()?)?)
    }

    fn importance(
        &mut self,
        shape: HeadShape,
        q: &GpuBuffer<D>,
        sequence: SequenceRows<'_, GpuKv<D>>,
        layer: usize,
        attention: &Attention,
        window: usize,
    ) -> Result<Vec<f32>> {
        self.finish()?;
        self.weights(shape, q.memory()?, sequence, layer, attention, window)
    }

    fn activate(
        &mut self,
        activation: Activation,
        numbers: usize,
        gate: &mut GpuBuffer<D>,
        up: &GpuBuffer<D>,
    ) -> Result<()> {
        let function = match activation {
            Activation::Silu => ops::GateActivation::Silu,
            Activation::GeluTanh => ops::GateActivation::GeluTanh,
        };
        let [gate, up] = [gate.memory()?, up.memory()?].map(Arc::clone);
        self.finish()?;
        self.pend(Pending::Gated {
            function,
            numbers,
            gate,
            up,
        })
    }

    fn add(&mut self, numbers: usize, x: &mut GpuBuffer<D>, y: &GpuBuffer<D>) -> Result<()> {
        let [x, y] = [x.memory()?, y.memory()?].map(Arc::clone);
        self.finish()?;
        self.pend(Pending::Add { numbers, x, y })
    }

    fn softcap(&mut self, numbers: usize, x: &mut GpuBuffer<D>, cap: f32) -> Result<()> {
        self.finish()?;
        Ok(ops::softcap(&self.device, numbers, x.memory()?, cap)?)
    }

    fn logits(
        &mut self,
        output: &ops::DeviceMatrix<D>,
        rows: Range<usize>,
        x: &GpuBuffer<D>,
        cap: Option<f32>,
        out: &mut GpuBuffer<D>,
    ) -> Result<()> {
        let numbers = rows.len() * output.rows();
        let (x, out) = (x.memory()?, out.memory()?);
        let before = self.finish_but(x)?;
        let (before, device) = (before.producer(), &self.device);
        let workspace = &mut self.products;
        ops::product_after(device, before, rows, output, [x, out], workspace)?;
        match cap {
            Some(cap) => Ok(ops::softcap(device, numbers, out, cap)?),
            None => Ok(()),
        }
    }
}

fn rows<D: Device>(n: usize, vector: &GpuVector<D>) -> ops::RowsShape {
    ops::RowsShape {
        rows: n,
        cols: vector.numbers,
    }
}
