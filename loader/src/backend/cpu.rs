//! CPU backend over [`htc_kernels::cpu`]; weights are used in the mapped file.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use htc_formats::model::{Activation, RopePairs};
use htc_kernels::cpu::{self, KvView, Scratch};
use htc_kernels::{Pool, PoolError, ShapeError};

use super::{Attention, Backend, Factor, HeadShape, Product, SequenceRows};
use crate::error::Result;
use crate::kv::{Kv, KvCache, KvPlan};
use crate::tensor::Tensor;

/// CPU backend. Sessions may share one [`Pool`] of threads, but a pool executes one operation at a
/// time: sessions that compute concurrently then have a single thread each.
#[derive(Debug)]
pub struct Cpu {
    cpu: cpu::Cpu,
    /// Reused, so that a step allocates nothing.
    scratch: Scratch,
    /// Scratch space of each thread.
    scratches: Vec<Scratch>,
    /// As [`Backend::set_batch_invariant`].
    batch_invariant: bool,
}

impl Cpu {
    /// Creates a backend with the best kernels for the CPU, on the threads of `pool`.
    pub fn new(pool: &Arc<Pool>) -> Self {
        cpu::Cpu::new(Arc::clone(pool)).into()
    }

    /// As [`Cpu::new`], with a new pool of `threads` threads.
    ///
    /// # Errors
    /// [`PoolError`] if the number is 0 or too large, or a thread cannot be started.
    pub fn with_threads(threads: usize) -> Result<Self, PoolError> {
        Ok(cpu::Cpu::with_threads(threads)?.into())
    }
}

impl Cpu {
    /// Returns a backend for each supported instruction set, best first, for comparisons.
    pub fn each(pool: &Arc<Pool>) -> Vec<Self> {
        cpu::Cpu::each(pool).into_iter().map(Cpu::from).collect()
    }

    pub(crate) fn kernels(&self) -> &cpu::Cpu {
        &self.cpu
    }

    /// Returns the instruction set of the kernels.
    pub fn instruction_set(&self) -> &'static str {
        self.cpu.instruction_set()
    }
}

/// Keys and values of all positions of a layer.
type Reconstructed = [Vec<f32>; 2];

/// Returns a layer with `n` appended rows for attention.
fn view<'a>(
    kv: &'a KvCache,
    layer: usize,
    n: usize,
    whole: Option<&'a Reconstructed>,
) -> Result<KvView<'a>, ShapeError> {
    let view = kv.view(layer)?;
    let end = kv.layout().positions(layer) + n;
    match whole {
        Some([keys, values]) => KvView::new(
            &keys[..],
            &values[..],
            view.kv_heads(),
            view.head_size(),
            end,
        ),
        None => Ok(view),
    }
}

impl Cpu {
    /// Returns the layer with `n` appended rows in full, if attention is to read it so.
    fn reconstructed(&self, kv: &KvCache, layer: usize, n: usize) -> Result<Option<Reconstructed>> {
        let layout = kv.layout();
        if !layout.plan().reconstructs() || layout.low_rank_rows(layer) == 0 {
            return Ok(None);
        }
        let end = layout.positions(layer) + n;
        Ok(Some(self.cpu.reconstruct(&kv.view(layer)?, end)?))
    }

    /// Computes attention of each row as of a batch of one, rows on all threads.
    fn attention_batch_invariant(
        &mut self,
        row: usize,
        q: &[f32],
        batch: &[SequenceRows<'_, KvCache>],
        layer: usize,
        attention: &Attention,
        out: &mut [f32],
    ) -> Result<()> {
        let whole = batch
            .iter()
            .map(|part| self.reconstructed(part.kv, layer, part.rows.len()));
        let whole = whole.collect::<Result<Vec<_>, _>>()?;
        let mut rows = Vec::with_capacity(q.len() / row.max(1));
        for (SequenceRows { rows: own, kv }, whole) in batch.iter().zip(&whole) {
            let view = view(kv, layer, own.len(), whole.as_ref())?;
            let start = kv.layout().positions(layer);
            rows.extend(
                (start + 1..)
                    .take(own.len())
                    .map(|positions| (view, positions)),
            );
        }
        let operands = q.chunks_exact(row).zip(out.chunks_exact_mut(row));
        let tasks = Mutex::new(rows.into_iter().zip(operands));
        let take = || lock(&tasks).next();
        let outcome = Mutex::new(Ok(()));
        let (cpu, pool) = (&self.cpu, self.cpu.pool());
        self.scratches.resize_with(pool.threads(), Scratch::new);
        // An operation within one of the pool stays on its thread.
        pool.chunks_mut(&mut self.scratches, 1, |_, scratch| {
            while let Some(((kv, positions), (q, out))) = take() {
                let scratch = &mut scratch[0];
                let done = cpu.attention_decode(q, &kv, positions, attention, scratch, out);
                if done.is_err() {
                    *lock(&outcome) = done;
                }
            }
        });
        Ok(outcome
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)?)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl From<cpu::Cpu> for Cpu {
    fn from(cpu: cpu::Cpu) -> Self {
        Cpu {
            cpu,
            scratch: Scratch::new(),
            scratches: Vec::new(),
            batch_invariant: false,
        }
    }
}

impl Backend for Cpu {
    type Buffer = Vec<f32>;
    type Weight = Tensor;
    type Vector = Vec<f32>;
    type Rotation = CpuRotation;
    type Kv = KvCache;

    fn weight(&mut self, tensor: &Tensor) -> Result<Tensor> {
        tensor.validated()
    }

    fn vector(&mut self, numbers: Vec<f32>) -> Result<Vec<f32>> {
        Ok(numbers)
    }

    fn kv(&mut self, plan: &KvPlan) -> Result<KvCache> {
        Ok(KvCache::new(plan))
    }

    fn resize(&mut self, buffer: &mut Vec<f32>, numbers: usize) -> Result<()> {
        buffer.resize(numbers, 0.0);
        Ok(())
    }

    fn upload(&mut self, from: &[f32], to: &mut Vec<f32>) -> Result<()> {
        to[..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn read<'a>(
        &mut self,
        from: &'a Vec<f32>,
        numbers: usize,
        _: &'a mut Vec<f32>,
    ) -> Result<&'a [f32]> {
        Ok(&from[..numbers])
    }

    fn copy_rows(
        &mut self,
        width: usize,
        x: &Vec<f32>,
        rows: Range<usize>,
        out: &mut Vec<f32>,
        first: usize,
    ) -> Result<()> {
        let x = &x[rows.start * width..rows.end * width];
        out[first * width..][..x.len()].copy_from_slice(x);
        Ok(())
    }

    fn embed(
        &mut self,
        embedding: &Tensor,
        tokens: &[u32],
        scale: Option<f32>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let width = embedding.cols();
        let out = &mut out[..tokens.len() * width];
        let rows = out.chunks_exact_mut(width).zip(tokens);
        if let Some(bands) = embedding.column_groups()? {
            for (row, &token) in rows {
                self.cpu.embed_column_groups(bands, token as usize, row)?;
            }
        } else {
            let matrix = embedding.matrix()?;
            for (row, &token) in rows {
                self.cpu.embed(matrix, token as usize, row)?;
            }
        }
        if let Some(factor) = scale {
            self.cpu.scale(out, factor);
        }
        Ok(())
    }

    fn rms_norm(
        &mut self,
        n: usize,
        x: &Vec<f32>,
        weight: &Vec<f32>,
        epsilon: f32,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let numbers = n * weight.len();
        let (x, out) = (&x[..numbers], &mut out[..numbers]);
        Ok(self.cpu.rms_norm(x, weight, epsilon, out)?)
    }

    fn rms_norm_in_place(
        &mut self,
        n: usize,
        x: &mut Vec<f32>,
        weight: &Vec<f32>,
        epsilon: f32,
    ) -> Result<()> {
        let x = &mut x[..n * weight.len()];
        Ok(self.cpu.rms_norm_in_place(x, weight, epsilon)?)
    }

    fn project(
        &mut self,
        n: usize,
        x: &Vec<f32>,
        factors: &[Factor<'_, Tensor>],
        products: &mut [Product<'_, Self>],
    ) -> Result<()> {
        let mut width = None;
        let mut first = Vec::with_capacity(factors.len());
        for factor in factors {
            let w = factor.weight.matrix()?.first_rows(factor.rows)?;
            width = Some(w.cols());
            let rank = factor.rank;
            first.push(cpu::Factor { w, rank });
        }
        let mut second = Vec::with_capacity(products.len());
        for product in products {
            if let Some(w) = product.weight.column_groups()? {
                // A matrix in column groups is dense and reads the input.
                let x = &x[..n * w.cols()];
                let y = &mut product.y[..n * product.rows];
                self.cpu
                    .matmul_column_groups(w, n, x, y, &mut self.scratch)?;
                continue;
            }
            let w = product.weight.matrix()?.first_cols(product.cols)?;
            if product.input == cpu::Input::Vector {
                width = Some(w.cols());
            }
            let (input, y) = (product.input, &mut product.y[..n * product.rows]);
            second.push(cpu::Projection { w, input, y });
        }
        let Some(width) = width else {
            return Ok(());
        };
        let x = &x[..n * width];
        let scratch = &mut self.scratch;
        if self.batch_invariant && n > 1 {
            let cpu = &self.cpu;
            return Ok(cpu.project_batch_invariant(n, x, &first, &mut second, scratch)?);
        }
        Ok(self.cpu.project(n, x, &first, &mut second, scratch)?)
    }

    fn add_bias(&mut self, n: usize, x: &mut Vec<f32>, bias: &Vec<f32>) -> Result<()> {
        let x = &mut x[..n * bias.len()];
        Ok(self.cpu.add_bias(x, bias)?)
    }

    fn rotate_to(
        &mut self,
        rotation: &mut CpuRotation,
        positions: &[Range<usize>],
        frequencies: &[f64],
        factor: f32,
    ) -> Result<()> {
        rotation.fill(positions, frequencies, factor);
        Ok(())
    }

    fn rope(
        &mut self,
        pairs: RopePairs,
        rotation: &CpuRotation,
        shape: HeadShape,
        x: &mut Vec<f32>,
    ) -> Result<()> {
        let row = shape.heads * shape.size;
        let rows = x[..shape.rows * row].chunks_exact_mut(row);
        let cos = rotation.cos.chunks_exact(rotation.pairs);
        let sin = rotation.sin.chunks_exact(rotation.pairs);
        for ((row, cos), sin) in rows.zip(cos).zip(sin) {
            self.cpu.rope(pairs, row, shape.size, cos, sin)?;
        }
        Ok(())
    }

    fn set_batch_invariant(&mut self, batch_invariant: bool) {
        self.batch_invariant = batch_invariant;
    }

    fn attention(
        &mut self,
        shape: HeadShape,
        q: &Vec<f32>,
        batch: &[SequenceRows<'_, KvCache>],
        layer: usize,
        attention: &Attention,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let row = shape.heads * shape.size;
        let (q, out) = (&q[..shape.rows * row], &mut out[..shape.rows * row]);
        if self.batch_invariant && shape.rows > 1 {
            return self.attention_batch_invariant(row, q, batch, layer, attention, out);
        }
        for SequenceRows { rows, kv } in batch {
            let (n, start) = (rows.len(), kv.layout().positions(layer));
            let numbers = rows.start * row..rows.end * row;
            let (q, out) = (&q[numbers.clone()], &mut out[numbers]);
            let whole = self.reconstructed(kv, layer, n)?;
            let kv = view(kv, layer, n, whole.as_ref())?;
            let scratch = &mut self.scratch;
            if n == 1 {
                self.cpu
                    .attention_decode(q, &kv, start + 1, attention, scratch, out)?;
            } else {
                self.cpu
                    .attention_prefill(q, n, start, &kv, attention, scratch, out)?;
            }
        }
        Ok(())
    }

    fn hadamard(&mut self, shape: HeadShape, x: &mut Vec<f32>) -> Result<()> {
        let x = &mut x[..shape.rows * shape.heads * shape.size];
        Ok(self.cpu.hadamard(x, shape.size)?)
    }

    fn importance(
        &mut self,
        shape: HeadShape,
        q: &Vec<f32>,
        sequence: SequenceRows<'_, KvCache>,
        layer: usize,
        attention: &Attention,
        window: usize,
    ) -> Result<Vec<f32>> {
        let SequenceRows { rows, kv } = sequence;
        let row = shape.heads * shape.size;
        let end = kv.layout().positions(layer) + rows.len();
        let q = &q[(rows.end - window) * row..rows.end * row];
        let view = kv.view(layer)?;
        let mut out = vec![0.0; view.kv_heads() * end];
        self.cpu
            .attention_importance(q, window, end - window, &view, attention, &mut out)?;
        Ok(out)
    }

    fn activate(
        &mut self,
        activation: Activation,
        numbers: usize,
        gate: &mut Vec<f32>,
        up: &Vec<f32>,
    ) -> Result<()> {
        let (gate, up) = (&mut gate[..numbers], &up[..numbers]);
        match activation {
            Activation::Silu => self.cpu.silu_mul(gate, up)?,
            Activation::GeluTanh => self.cpu.gelu_mul(gate, up)?,
        }
        Ok(())
    }

    fn add(&mut self, numbers: usize, x: &mut Vec<f32>, y: &Vec<f32>) -> Result<()> {
        Ok(self.cpu.add_assign(&mut x[..numbers], &y[..numbers])?)
    }

    fn softcap(&mut self, numbers: usize, x: &mut Vec<f32>, cap: f32) -> Result<()> {
        self.cpu.softcap(&mut x[..numbers], cap);
        Ok(())
    }

    fn logits(
        &mut self,
        output: &Tensor,
        rows: Range<usize>,
        x: &Vec<f32>,
        cap: Option<f32>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let (n, width) = (rows.len(), output.cols());
        let x = &x[rows.start * width..rows.end * width];
        let out = &mut out[..n * output.rows()];
        let scratch = &mut self.scratch;
        match output.column_groups()? {
            Some(bands) => self.cpu.matmul_column_groups(bands, n, x, out, scratch)?,
            None if self.batch_invariant => {
                let matrix = output.matrix()?;
                self.cpu
                    .matmul_batch_invariant(matrix, n, x, out, scratch)?;
            }
            None => self.cpu.matmul(output.matrix()?, n, x, out, scratch)?,
        }
        if let Some(cap) = cap {
            self.cpu.softcap(out, cap);
        }
        Ok(())
    }
}

/// Cosines and sines `[n, rotated pairs]` of the positions of a batch.
#[derive(Debug, Default)]
pub struct CpuRotation {
    pairs: usize,
    positions: Vec<Range<usize>>,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl CpuRotation {
    fn fill(&mut self, positions: &[Range<usize>], frequencies: &[f64], factor: f32) {
        // Executing blocks one by one repeats the same positions.
        if self.positions == positions && self.pairs == frequencies.len() {
            return;
        }
        self.positions.clear();
        self.positions.extend_from_slice(positions);
        self.pairs = frequencies.len();
        self.cos.clear();
        self.sin.clear();
        for position in positions.iter().cloned().flatten() {
            for &frequency in frequencies {
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                self.cos.push(cos as f32 * factor);
                self.sin.push(sin as f32 * factor);
            }
        }
    }
}
