//! Reference backend: a plain forward pass in float64.

mod kv;

use std::ops::Range;

use htc_formats::model::{Activation, RopePairs};
use htc_kernels::reference::{self, AttentionShape};

pub use self::kv::ReferenceKv;
use super::{Attention, Backend, Factor, HeadShape, Input, Product, SequenceRows};
use crate::error::Result;
use crate::kv::{Kv, KvPlan};
use crate::tensor::Tensor;

/// Float64 backend on one thread, for comparisons. Weights are decoded; only keys and values stored
/// in float16, and rows that pass experts (to float32), are rounded. It shares no arithmetic with
/// the other backends but the sums of experts.
///
/// It is slow, and stores every weight as float32.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

/// A decoded matrix `[rows, cols]`.
#[derive(Clone, Debug)]
pub struct ReferenceWeight {
    rows: usize,
    cols: usize,
    numbers: Vec<f32>,
}

impl ReferenceWeight {
    fn row(&self, row: usize) -> &[f32] {
        &self.numbers[row * self.cols..][..self.cols]
    }

    fn product(&self, rows: usize, x: &[f64]) -> Vec<f64> {
        let rows = (0..rows).map(|row| &self.row(row)[..x.len()]);
        let dot = |row: &[f32]| row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum();
        rows.map(dot).collect()
    }
}

/// Cosines and sines `[n, rotated pairs]` of the positions of a batch.
#[derive(Clone, Debug, Default)]
pub struct ReferenceRotation {
    pairs: usize,
    cos: Vec<f64>,
    sin: Vec<f64>,
}

impl Backend for Reference {
    type Buffer = Vec<f64>;
    type Weight = ReferenceWeight;
    type Vector = Vec<f32>;
    type Rotation = ReferenceRotation;
    type Kv = ReferenceKv;

    fn weight(&mut self, tensor: &Tensor) -> Result<ReferenceWeight> {
        let (rows, cols) = (tensor.rows(), tensor.cols());
        let mut numbers = vec![0.0; rows * cols];
        let rows_of = numbers.chunks_exact_mut(cols.max(1)).enumerate();
        if let Some(bands) = tensor.column_groups()? {
            bands.check()?;
            for (row, numbers) in rows_of {
                bands.decode_row(row, numbers)?;
            }
        } else {
            let matrix = tensor.matrix()?;
            for (row, numbers) in rows_of {
                reference::embed(matrix, row, numbers)?;
            }
        }
        Ok(ReferenceWeight {
            rows,
            cols,
            numbers,
        })
    }

    fn vector(&mut self, numbers: Vec<f32>) -> Result<Vec<f32>> {
        Ok(numbers)
    }

    fn kv(&mut self, plan: &KvPlan) -> Result<ReferenceKv> {
        Ok(ReferenceKv::new(plan))
    }

    fn resize(&mut self, buffer: &mut Vec<f64>, numbers: usize) -> Result<()> {
        buffer.resize(numbers, 0.0);
        Ok(())
    }

    fn upload(&mut self, from: &[f32], to: &mut Vec<f64>) -> Result<()> {
        for (to, &from) in to[..from.len()].iter_mut().zip(from) {
            *to = from.into();
        }
        Ok(())
    }

    fn read<'a>(
        &mut self,
        from: &'a Vec<f64>,
        numbers: usize,
        host_buffer: &'a mut Vec<f32>,
    ) -> Result<&'a [f32]> {
        host_buffer.clear();
        host_buffer.extend(from[..numbers].iter().map(|&x| x as f32));
        Ok(host_buffer)
    }

    fn copy_rows(
        &mut self,
        width: usize,
        x: &Vec<f64>,
        rows: Range<usize>,
        out: &mut Vec<f64>,
        first: usize,
    ) -> Result<()> {
        let x = &x[rows.start * width..rows.end * width];
        out[first * width..][..x.len()].copy_from_slice(x);
        Ok(())
    }

    fn embed(
        &mut self,
        embedding: &ReferenceWeight,
        tokens: &[u32],
        scale: Option<f32>,
        out: &mut Vec<f64>,
    ) -> Result<()> {
        let scale = f64::from(scale.unwrap_or(1.0));
        for (out, &token) in out.chunks_exact_mut(embedding.cols).zip(tokens) {
            for (out, &number) in out.iter_mut().zip(embedding.row(token as usize)) {
                *out = f64::from(number) * scale;
            }
        }
        Ok(())
    }

    fn rms_norm(
        &mut self,
        n: usize,
        x: &Vec<f64>,
        weight: &Vec<f32>,
        epsilon: f32,
        out: &mut Vec<f64>,
    ) -> Result<()> {
        let numbers = n * weight.len();
        let (x, out) = (&x[..numbers], &mut out[..numbers]);
        Ok(reference::rms_norm(x, weight, epsilon, out)?)
    }

    fn rms_norm_in_place(
        &mut self,
        n: usize,
        x: &mut Vec<f64>,
        weight: &Vec<f32>,
        epsilon: f32,
    ) -> Result<()> {
        let before = x.clone();
        self.rms_norm(n, &before, weight, epsilon, x)
    }

    fn project(
        &mut self,
        n: usize,
        x: &Vec<f64>,
        factors: &[Factor<'_, ReferenceWeight>],
        products: &mut [Product<'_, Self>],
    ) -> Result<()> {
        for t in 0..n {
            let row = |cols: usize| &x[t * cols..][..cols];
            let inner = |factor: &Factor<'_, ReferenceWeight>| {
                let mut inner = factor.weight.product(factor.rank, row(factor.weight.cols));
                inner.resize(factor.rows, 0.0);
                inner
            };
            let inners: Vec<Vec<f64>> = factors.iter().map(inner).collect();
            for product in &mut *products {
                let x = match product.input {
                    Input::Vector => row(product.cols),
                    Input::Inner(index) => &inners[index],
                };
                let y = product.weight.product(product.rows, x);
                product.y[t * product.rows..][..product.rows].copy_from_slice(&y);
            }
        }
        Ok(())
    }

    fn add_bias(&mut self, n: usize, x: &mut Vec<f64>, bias: &Vec<f32>) -> Result<()> {
        for row in x.chunks_exact_mut(bias.len().max(1)).take(n) {
            for (x, &bias) in row.iter_mut().zip(bias) {
                *x += f64::from(bias);
            }
        }
        Ok(())
    }

    fn rotate_to(
        &mut self,
        rotation: &mut ReferenceRotation,
        positions: &[Range<usize>],
        frequencies: &[f64],
        factor: f32,
    ) -> Result<()> {
        let positions = positions.iter().cloned().flatten();
        let angles = positions.flat_map(|p| frequencies.iter().map(move |f| p as f64 * f));
        let factor = f64::from(factor);
        rotation.pairs = frequencies.len();
        rotation.cos = angles.clone().map(|angle| angle.cos() * factor).collect();
        rotation.sin = angles.map(|angle| angle.sin() * factor).collect();
        Ok(())
    }

    fn rope(
        &mut self,
        pairs: RopePairs,
        rotation: &ReferenceRotation,
        shape: HeadShape,
        x: &mut Vec<f64>,
    ) -> Result<()> {
        let row = shape.heads * shape.size;
        for t in 0..shape.rows {
            let angles = t * rotation.pairs..(t + 1) * rotation.pairs;
            let (cos, sin) = (&rotation.cos[angles.clone()], &rotation.sin[angles]);
            reference::rope(pairs, &mut x[t * row..][..row], shape.size, cos, sin)?;
        }
        Ok(())
    }

    fn set_batch_invariant(&mut self, _: bool) {}

    fn attention(
        &mut self,
        shape: HeadShape,
        q: &Vec<f64>,
        batch: &[SequenceRows<'_, ReferenceKv>],
        layer: usize,
        attention: &Attention,
        out: &mut Vec<f64>,
    ) -> Result<()> {
        let (size, row) = (shape.size, shape.heads * shape.size);
        for SequenceRows { rows, kv } in batch {
            let kv_heads = kv.layout().plan().shape().kv_heads;
            let [all_keys, all_values] = kv.all(layer, rows.len());
            let stored = |[head, position, dimension]: [usize; 3]| {
                let at = (position * kv_heads + head) * size + dimension;
                [all_keys[at], all_values[at]]
            };
            let heads = AttentionShape {
                heads: shape.heads,
                kv_heads,
                size,
            };
            let numbers = rows.start * row..rows.end * row;
            reference::attention_with(
                &q[numbers.clone()],
                kv.layout().positions(layer),
                heads,
                attention,
                stored,
                &mut out[numbers],
            );
        }
        Ok(())
    }

    fn hadamard(&mut self, shape: HeadShape, x: &mut Vec<f64>) -> Result<()> {
        let x = &mut x[..shape.rows * shape.heads * shape.size];
        Ok(reference::hadamard(x, shape.size)?)
    }

    fn importance(
        &mut self,
        shape: HeadShape,
        q: &Vec<f64>,
        sequence: SequenceRows<'_, ReferenceKv>,
        layer: usize,
        attention: &Attention,
        window: usize,
    ) -> Result<Vec<f32>> {
        let (HeadShape { heads, size, .. }, kv) = (shape, sequence.kv);
        let (q, rows) = (
            &q[sequence.rows.start * heads * size..],
            sequence.rows.len(),
        );
        let kv_heads = kv.layout().plan().shape().kv_heads;
        let end = kv.layout().positions(layer) + rows;
        let [keys, _] = kv.all(layer, rows);
        let mut out = vec![0.0; kv_heads * end];
        for t in rows - window..rows {
            let position = end - rows + t;
            let first = attention
                .window
                .map_or(0, |w| (position + 1).saturating_sub(w));
            for head in 0..heads {
                let q = &q[(t * heads + head) * size..][..size];
                let kv_head = head / (heads / kv_heads);
                let score = |p: usize| {
                    let key = &keys[(p * kv_heads + kv_head) * size..][..size];
                    let products = q.iter().zip(key).map(|(q, k)| q * k);
                    let score = products.sum::<f64>() * f64::from(attention.scale);
                    match attention.softcap.map(f64::from) {
                        Some(cap) => cap * (score / cap).tanh(),
                        None => score,
                    }
                };
                let scores: Vec<f64> = (first..=position).map(score).collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
                let out = &mut out[kv_head * end..][first..=position];
                for (out, score) in out.iter_mut().zip(scores) {
                    *out += (score - max).exp() / sum;
                }
            }
        }
        Ok(out.into_iter().map(|x| x as f32).collect())
    }

    fn activate(
        &mut self,
        activation: Activation,
        numbers: usize,
        gate: &mut Vec<f64>,
        up: &Vec<f64>,
    ) -> Result<()> {
        let (gate, up) = (&mut gate[..numbers], &up[..numbers]);
        match activation {
            Activation::Silu => reference::silu_mul(gate, up)?,
            Activation::GeluTanh => reference::gelu_mul(gate, up)?,
        }
        Ok(())
    }

    fn add(&mut self, numbers: usize, x: &mut Vec<f64>, y: &Vec<f64>) -> Result<()> {
        Ok(reference::add_assign(&mut x[..numbers], &y[..numbers])?)
    }

    fn softcap(&mut self, numbers: usize, x: &mut Vec<f64>, cap: f32) -> Result<()> {
        reference::softcap(&mut x[..numbers], cap);
        Ok(())
    }

    fn logits(
        &mut self,
        output: &ReferenceWeight,
        rows: Range<usize>,
        x: &Vec<f64>,
        cap: Option<f32>,
        out: &mut Vec<f64>,
    ) -> Result<()> {
        for (out, t) in out.chunks_exact_mut(output.rows).zip(rows) {
            let x = &x[t * output.cols..][..output.cols];
            out.copy_from_slice(&output.product(output.rows, x));
            if let Some(cap) = cap {
                reference::softcap(out, cap);
            }
        }
        Ok(())
    }
}
