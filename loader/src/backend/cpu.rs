//! CPU backend over [`htc_kernels::cpu`]; weights are used in the mapped file.

use std::ops::Range;
use std::sync::Arc;

use htc_formats::model::{Activation, RopePairs};
use htc_kernels::cpu::{self, KvView, Scratch};
use htc_kernels::{Pool, PoolError};

use super::{Attention, Backend, Factor, HeadShape, Slot};
use crate::error::ExecError;
use crate::kv::{CompressionEnergies, KeptRows, Kv, KvCache, KvPlan, LayerBases};
use crate::tensor::Tensor;

/// CPU backend. Sessions may share one [`Pool`] of threads, but a pool executes one operation at a
/// time: sessions that compute concurrently then have a single thread each.
#[derive(Debug)]
pub struct Cpu {
    cpu: cpu::Cpu,
    /// Reused, so that a step allocates nothing.
    scratch: Scratch,
    /// As [`Backend::keep_apart`].
    apart: bool,
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

    /// Returns the instruction set of the kernels.
    pub fn instruction_set(&self) -> &'static str {
        self.cpu.instruction_set()
    }
}

impl From<cpu::Cpu> for Cpu {
    fn from(cpu: cpu::Cpu) -> Self {
        Cpu {
            cpu,
            scratch: Scratch::new(),
            apart: false,
        }
    }
}

impl Backend for Cpu {
    type Buffer = Vec<f32>;
    type Weight = Tensor;
    type Vector = Vec<f32>;
    type Rotation = CpuRotation;
    type Kv = KvCache;

    fn weight(&mut self, tensor: &Tensor) -> Result<Tensor, ExecError> {
        tensor.validated()
    }

    fn vector(&mut self, numbers: Vec<f32>) -> Result<Vec<f32>, ExecError> {
        Ok(numbers)
    }

    fn kv(&mut self, plan: &KvPlan) -> Result<KvCache, ExecError> {
        Ok(KvCache::new(plan))
    }

    fn reserve(&mut self, kv: &mut KvCache, n: usize) -> Result<(), ExecError> {
        kv.reserve(n);
        Ok(())
    }

    fn resize(&mut self, buffer: &mut Vec<f32>, numbers: usize) -> Result<(), ExecError> {
        buffer.resize(numbers, 0.0);
        Ok(())
    }

    fn upload(&mut self, from: &[f32], to: &mut Vec<f32>) -> Result<(), ExecError> {
        to[..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn read<'a>(
        &mut self,
        from: &'a Vec<f32>,
        numbers: usize,
        _: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], ExecError> {
        Ok(&from[..numbers])
    }

    fn embed(
        &mut self,
        embedding: &Tensor,
        tokens: &[u32],
        scale: Option<f32>,
        out: &mut Vec<f32>,
    ) -> Result<(), ExecError> {
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
    ) -> Result<(), ExecError> {
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
    ) -> Result<(), ExecError> {
        let x = &mut x[..n * weight.len()];
        Ok(self.cpu.rms_norm_in_place(x, weight, epsilon)?)
    }

    fn project(
        &mut self,
        n: usize,
        x: &Vec<f32>,
        factors: &[Factor<'_, Tensor>],
        slots: &mut [Slot<'_, Self>],
    ) -> Result<(), ExecError> {
        let mut width = None;
        let mut first = Vec::with_capacity(factors.len());
        for factor in factors {
            let w = factor.weight.matrix()?.first_rows(factor.rows)?;
            width = Some(w.cols());
            let rank = factor.rank;
            first.push(cpu::Factor { w, rank });
        }
        let mut second = Vec::with_capacity(slots.len());
        for slot in slots {
            if let Some(w) = slot.weight.column_groups()? {
                // A matrix in column groups is dense and reads the input.
                let x = &x[..n * w.cols()];
                let y = &mut slot.y[..n * slot.rows];
                self.cpu
                    .matmul_column_groups(w, n, x, y, &mut self.scratch)?;
                continue;
            }
            let w = slot.weight.matrix()?.first_cols(slot.cols)?;
            if slot.input == cpu::Input::Vector {
                width = Some(w.cols());
            }
            let (input, y) = (slot.input, &mut slot.y[..n * slot.rows]);
            second.push(cpu::Projection { w, input, y });
        }
        let Some(width) = width else {
            return Ok(());
        };
        let x = &x[..n * width];
        let scratch = &mut self.scratch;
        if self.apart && n > 1 {
            let cpu = &self.cpu;
            return Ok(cpu.project_batch_invariant(n, x, &first, &mut second, scratch)?);
        }
        Ok(self.cpu.project(n, x, &first, &mut second, scratch)?)
    }

    fn add_bias(&mut self, n: usize, x: &mut Vec<f32>, bias: &Vec<f32>) -> Result<(), ExecError> {
        let x = &mut x[..n * bias.len()];
        Ok(self.cpu.add_bias(x, bias)?)
    }

    fn rotate_to(
        &mut self,
        rotation: &mut CpuRotation,
        start: usize,
        n: usize,
        frequencies: &[f64],
        factor: f32,
    ) -> Result<(), ExecError> {
        rotation.fill(start, n, frequencies, factor);
        Ok(())
    }

    fn rope(
        &mut self,
        pairs: RopePairs,
        rotation: &CpuRotation,
        shape: HeadShape,
        x: &mut Vec<f32>,
    ) -> Result<(), ExecError> {
        let row = shape.heads * shape.size;
        let rows = x[..shape.rows * row].chunks_exact_mut(row);
        let cos = rotation.cos.chunks_exact(rotation.pairs);
        let sin = rotation.sin.chunks_exact(rotation.pairs);
        for ((row, cos), sin) in rows.zip(cos).zip(sin) {
            self.cpu.rope(pairs, row, shape.size, cos, sin)?;
        }
        Ok(())
    }

    fn keep_apart(&mut self, apart: bool) {
        self.apart = apart;
    }

    fn append(
        &mut self,
        kv: &mut KvCache,
        layer: usize,
        n: usize,
        keys: &Vec<f32>,
        values: &Vec<f32>,
    ) -> Result<(), ExecError> {
        let numbers = n * kv.row_len();
        kv.append(&self.cpu, layer, &keys[..numbers], &values[..numbers])
    }

    fn attention(
        &mut self,
        shape: HeadShape,
        q: &Vec<f32>,
        kv: &KvCache,
        layer: usize,
        attention: &Attention,
        out: &mut Vec<f32>,
    ) -> Result<(), ExecError> {
        let (n, start) = (shape.rows, kv.layout().positions(layer));
        let numbers = n * shape.heads * shape.size;
        let (q, out) = (&q[..numbers], &mut out[..numbers]);
        let reconstructs = kv.layout().plan().reconstructs();
        let (mut kv, scratch) = (kv.view(layer)?, &mut self.scratch);
        let whole;
        if reconstructs && kv.low_rank().is_some() {
            let (heads, size) = (kv.kv_heads(), kv.head_size());
            whole = self.cpu.reconstruct(&kv, start + n)?;
            kv = KvView::new(&whole[0][..], &whole[1], heads, size, start + n)?;
        }
        if n == 1 || self.apart {
            let row = shape.heads * shape.size;
            let rows = q.chunks_exact(row).zip(out.chunks_exact_mut(row));
            for (position, (q, out)) in (start + 1..).zip(rows) {
                self.cpu
                    .attention_decode(q, &kv, position, attention, scratch, out)?;
            }
        } else {
            self.cpu
                .attention_prefill(q, n, start, &kv, attention, scratch, out)?;
        }
        Ok(())
    }

    fn hadamard(&mut self, shape: HeadShape, x: &mut Vec<f32>) -> Result<(), ExecError> {
        let x = &mut x[..shape.rows * shape.heads * shape.size];
        Ok(self.cpu.hadamard(x, shape.size)?)
    }

    fn set_bases(
        &mut self,
        kv: &mut KvCache,
        layer: usize,
        bases: &Arc<LayerBases>,
        turns: Option<&[Vec<f32>; 2]>,
    ) -> Result<(), ExecError> {
        kv.set_bases(&self.cpu, layer, bases, turns)
    }

    fn compress(
        &mut self,
        kv: &mut KvCache,
        layer: usize,
        front: usize,
        count: usize,
    ) -> Result<CompressionEnergies, ExecError> {
        kv.compress(&self.cpu, layer, front, count)
    }

    fn full_rows(
        &mut self,
        kv: &KvCache,
        layer: usize,
        rows: Range<usize>,
    ) -> Result<[Vec<f32>; 2], ExecError> {
        Ok(kv.full_rows(&self.cpu, layer, rows)?)
    }

    fn importance(
        &mut self,
        shape: HeadShape,
        q: &Vec<f32>,
        kv: &KvCache,
        layer: usize,
        attention: &Attention,
        window: usize,
    ) -> Result<Vec<f32>, ExecError> {
        let (row, end) = (
            shape.heads * shape.size,
            kv.layout().positions(layer) + shape.rows,
        );
        let q = &q[(shape.rows - window) * row..shape.rows * row];
        let view = kv.view(layer)?;
        let mut out = vec![0.0; view.kv_heads() * end];
        self.cpu
            .attention_importance(q, window, end - window, &view, attention, &mut out)?;
        Ok(out)
    }

    fn keep(&mut self, kv: &mut KvCache, layer: usize, kept: &KeptRows) -> Result<(), ExecError> {
        kv.keep_rows(layer, kept);
        Ok(())
    }

    fn activate(
        &mut self,
        activation: Activation,
        numbers: usize,
        gate: &mut Vec<f32>,
        up: &Vec<f32>,
    ) -> Result<(), ExecError> {
        let (gate, up) = (&mut gate[..numbers], &up[..numbers]);
        match activation {
            Activation::Silu => self.cpu.silu_mul(gate, up)?,
            Activation::GeluTanh => self.cpu.gelu_mul(gate, up)?,
        }
        Ok(())
    }

    fn add(&mut self, numbers: usize, x: &mut Vec<f32>, y: &Vec<f32>) -> Result<(), ExecError> {
        Ok(self.cpu.add_assign(&mut x[..numbers], &y[..numbers])?)
    }

    fn softcap(&mut self, numbers: usize, x: &mut Vec<f32>, cap: f32) -> Result<(), ExecError> {
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
    ) -> Result<(), ExecError> {
        let (n, width) = (rows.len(), output.cols());
        let x = &x[rows.start * width..rows.end * width];
        let out = &mut out[..n * output.rows()];
        let scratch = &mut self.scratch;
        match output.column_groups()? {
            Some(bands) => self.cpu.matmul_column_groups(bands, n, x, out, scratch)?,
            None if self.apart => {
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
    /// First position.
    start: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl CpuRotation {
    fn fill(&mut self, start: usize, n: usize, frequencies: &[f64], factor: f32) {
        // Executing blocks one by one repeats the same positions.
        let filled = (self.start, self.cos.len(), self.pairs);
        if filled == (start, n * frequencies.len(), frequencies.len()) {
            return;
        }
        (self.start, self.pairs) = (start, frequencies.len());
        self.cos.clear();
        self.sin.clear();
        for position in start..start + n {
            for &frequency in frequencies {
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                self.cos.push(cos as f32 * factor);
                self.sin.push(sin as f32 * factor);
            }
        }
    }
}
