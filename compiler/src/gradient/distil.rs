//! Divergence of a compressed model from its source, and its gradient with respect to the tuned
//! vectors.
//!
//! Both models run in float32 on decoded weights, one layer at a time. The residual streams of all
//! windows are in memory, before every layer if gradients are requested. The last layers keep their
//! weights and values for the backward pass; earlier layers are executed again.

use htc_formats::model::{MatrixId, Role};
use htc_kernels::cpu::Cpu;
use htc_loader::Model;

use super::block::Block;
use super::head::{Head, HeadWork, batch};
use super::memory::kept_layers;
use super::pass::{check_finite, require_finite, windows_at_a_time};
use super::scales::{Scale, Scales};
use super::values::{ValueGradients, Values};
use super::weights::{AnyHead, Blocks, Stored, required};
use crate::calibrate::PassError;
use crate::calibrate::windows::Windows;
use crate::event::Progress;

/// A source and its compressed model.
pub(crate) struct Distillation<'a> {
    source: Blocks<'a, f32>,
    made: Blocks<'a, f32>,
    /// Positions of a window.
    context: usize,
    pub(super) passes: Passes<'a>,
}

/// Predictions of the source: the residual stream after its last block.
pub(crate) struct Expected(Vec<f32>);

/// Memory and settings of the passes.
pub(super) struct Passes<'a> {
    cpu: Cpu,
    watch: Progress<'a>,
    /// Numbers of a residual stream per call of a block.
    portion: usize,
    pub values: Values<f32>,
    pub gradients: ValueGradients<f32>,
    /// Kept layers; index 0 is the last layer.
    pub kept: Vec<KeptLayer>,
}

/// A layer between its forward and its backward pass.
#[derive(Default)]
pub(super) struct KeptLayer {
    block: Option<Block<f32>>,
    pub values: Values<f32>,
}

impl Passes<'_> {
    /// Returns the residual streams before every block and after the last; only the last one unless
    /// `keeps`.
    fn through(
        &mut self,
        blocks: &Blocks<f32>,
        tokens: &[u32],
        scales: Option<&Scales>,
        keeps: bool,
    ) -> Result<Vec<Vec<f32>>, PassError> {
        let model = blocks.model;
        let layers = model.hyper().layers;
        let mut streams = vec![embed(model, tokens)?];
        // What a cancelled pass left.
        self.kept.iter_mut().for_each(|kept| kept.block = None);
        for layer in 0..layers {
            let block = self.block(blocks, layer, scales)?;
            let mut x = if keeps {
                streams.last().cloned().unwrap_or_default()
            } else {
                streams.pop().unwrap_or_default()
            };
            let fits = keeps && !x.is_empty() && x.len() <= self.portion;
            let mut kept = self.kept.get_mut(layers - 1 - layer).filter(|_| fits);
            for x in x.chunks_mut(self.portion) {
                let values = kept
                    .as_mut()
                    .map_or(&mut self.values, |kept| &mut kept.values);
                let out = block.forward(self.cpu.pool(), x, values);
                x.copy_from_slice(out);
                self.watch.check_cancelled()?;
            }
            check_finite(model, &x, format_args!("layer {layer}"))?;
            if let Some(kept) = kept {
                kept.block = Some(block);
            }
            streams.push(x);
        }
        Ok(streams)
    }

    /// Passes the gradient `d` with respect to the stream after a layer back to the stream `x`
    /// before it, and adds the gradients of its norms and rows to those `found`.
    fn back(
        &mut self,
        blocks: &Blocks<f32>,
        layer: usize,
        scales: &Scales,
        x: &[f32],
        d: &mut [f32],
        found: &mut [Vec<f64>],
    ) -> Result<(), PassError> {
        let from_last = blocks.model.hyper().layers - 1 - layer;
        let kept = self.kept.get_mut(from_last).and_then(|kept| {
            let block = kept.block.take()?;
            Some((block, std::mem::take(&mut kept.values)))
        });
        if let Some((block, values)) = kept {
            self.back_through(&block, &values, layer, scales, d, found);
            self.kept[from_last].values = values;
            return Ok(self.watch.check_cancelled()?);
        }
        let block = self.block(blocks, layer, Some(scales))?;
        let mut values = std::mem::take(&mut self.values);
        for (x, d) in x.chunks(self.portion).zip(d.chunks_mut(self.portion)) {
            block.forward(self.cpu.pool(), x, &mut values);
            self.back_through(&block, &values, layer, scales, d, found);
            self.watch.check_cancelled()?;
        }
        self.values = values;
        Ok(())
    }

    /// Passes the gradient `d` back through a block after its forward pass.
    fn back_through(
        &mut self,
        block: &Block<f32>,
        values: &Values<f32>,
        layer: usize,
        scales: &Scales,
        d: &mut [f32],
        found: &mut [Vec<f64>],
    ) {
        let (pool, gradients) = (self.cpu.pool(), &mut self.gradients);
        let before = block.backward(pool, d, values, gradients);
        d.copy_from_slice(before);
        for norm in block.norms() {
            if let Some(index) = scales.index(Scale::Norm(norm.role)) {
                norm.add_weight_gradient(pool, values, gradients, &mut found[index]);
            }
        }
        for projection in block.projections() {
            let rows = Scale::Rows {
                layer,
                projection: projection.kind,
            };
            if let Some(index) = scales.index(rows) {
                projection.add_row_gradients(pool, values, gradients, &mut found[index]);
            }
        }
    }

    fn block(
        &self,
        blocks: &Blocks<f32>,
        layer: usize,
        scales: Option<&Scales>,
    ) -> Result<Block<f32>, PassError> {
        let mut block = blocks.load(layer, self.cpu.pool())?;
        if let Some(scales) = scales {
            scales.put(layer, &mut block);
        }
        Ok(block)
    }
}

fn embed(model: &Model, tokens: &[u32]) -> Result<Vec<f32>, PassError> {
    let embedding = Stored::new(model.file(), MatrixId::Embedding.weight())?;
    let mut x = vec![0.0; tokens.len() * model.hyper().width];
    embedding.look_up(tokens, &mut x)?;
    Ok(x)
}

impl<'a> Distillation<'a> {
    /// Creates a distillation with windows of `context` positions.
    pub fn new(
        [source, made]: [&'a Model; 2],
        cpu: Cpu,
        context: usize,
        watch: Progress<'a>,
    ) -> Self {
        let windows = windows_at_a_time(made.spec(), context);
        Distillation {
            source: Blocks::new(source, context),
            made: Blocks::new(made, context),
            context,
            passes: Passes {
                cpu,
                watch,
                portion: windows * context * made.hyper().width.max(1),
                values: Values::default(),
                gradients: ValueGradients::default(),
                kept: (0..kept_layers(made.spec(), context))
                    .map(|_| KeptLayer::default())
                    .collect(),
            },
        }
    }

    /// Returns the source's predictions for windows.
    ///
    /// # Errors
    /// [`PassError`].
    pub fn expected(&mut self, tokens: &[u32]) -> Result<Expected, PassError> {
        let mut streams = self.passes.through(&self.source, tokens, None, false)?;
        Ok(Expected(streams.pop().unwrap_or_default()))
    }

    /// Returns the mean divergence in nats of the model with these scales, over the second half of
    /// each window without the last position, as evaluations do.
    ///
    /// # Errors
    /// [`PassError`].
    pub fn divergence(
        &mut self,
        windows: &Windows,
        expected: &Expected,
        scales: &Scales,
    ) -> Result<f64, PassError> {
        let tokens = windows.tokens_at(0..windows.tokens());
        let found = self
            .passes
            .through(&self.made, tokens, Some(scales), false)?;
        let found = found.last().map_or(&[][..], Vec::as_slice);
        let width = self.made.model.hyper().width;
        let counted = |stream: &[f32]| -> Vec<f32> {
            let windows = stream.chunks_exact((self.context * width).max(1));
            let from = self.context / 2 * width;
            let to = self.context.saturating_sub(1).max(self.context / 2) * width;
            windows.flat_map(|w| &w[from..to]).copied().collect()
        };
        let (x, of_source) = (counted(found), counted(&expected.0));
        let (sum, _) = self.head([&x, &of_source], scales, None)?;
        Ok(sum / (x.len() / width.max(1)).max(1) as f64)
    }

    /// Returns the mean divergence in nats over all positions and its gradients with respect to the
    /// scales.
    ///
    /// # Errors
    /// [`PassError`].
    pub fn gradients(
        &mut self,
        tokens: &[u32],
        scales: &Scales,
    ) -> Result<(f64, Vec<Vec<f64>>), PassError> {
        let expected = self.expected(tokens)?;
        let streams = self.passes.through(&self.made, tokens, Some(scales), true);
        let mut streams = streams?;
        let mut found: Vec<Vec<f64>> = scales.values.iter().map(|v| vec![0.0; v.len()]).collect();
        let out = streams.pop().unwrap_or_default();
        let mut d = vec![0.0; out.len()];
        let (sum, of_head) = self.head([&out, &expected.0], scales, Some(&mut d))?;
        if let Some(index) = scales.index(Scale::Norm(Role::OutputNorm)) {
            found[index] = of_head;
        }
        for (layer, x) in streams.iter().enumerate().rev() {
            self.passes
                .back(&self.made, layer, scales, x, &mut d, &mut found)?;
            check_finite(self.made.model, &d, format_args!("layer {layer}"))?;
        }
        scales.divide_rows(&mut found);
        let positions = tokens.len().max(1) as f64;
        found.iter_mut().flatten().for_each(|g| *g /= positions);
        Ok((sum / positions, found))
    }

    /// Returns the summed divergence over rows of the two streams and the gradient of the last
    /// norm's weight; stores that of the rows if requested.
    fn head(
        &self,
        [x, expected]: [&[f32]; 2],
        scales: &Scales,
        mut d: Option<&mut [f32]>,
    ) -> Result<(f64, Vec<f64>), PassError> {
        let (made, source) = (self.made.model, self.source.model);
        let pool = self.passes.cpu.pool();
        let matrices = [
            AnyHead::decode(made.file(), pool)?,
            AnyHead::decode(source.file(), pool)?,
        ];
        let of_source = required(source.file(), Role::OutputNorm)?;
        let head = Head::new(made, scales.norm(Role::OutputNorm)?, &matrices[0]);
        let teacher = Head::new(source, &of_source, &matrices[1]);
        let mut work: [HeadWork<f32>; 2] = Default::default();
        work[0].norm = Some(vec![0.0; of_source.len()]);
        let hyper = made.hyper();
        let step = (batch(hyper.vocabulary) * hyper.width).max(1);
        let mut sum = 0.0;
        for (index, (x, expected)) in x.chunks(step).zip(expected.chunks(step)).enumerate() {
            let at = index * step..index * step + x.len();
            let d = d.as_deref_mut().and_then(|d| d.get_mut(at));
            let [work, other] = &mut work;
            sum += head.divergence(pool, x, (&teacher, expected), [work, other], d)?;
            self.passes.watch.check_cancelled()?;
        }
        require_finite(made, sum.is_finite(), "head")?;
        Ok((sum, work[0].norm.take().unwrap_or_default()))
    }
}
