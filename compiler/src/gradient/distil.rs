//! Divergence of a compressed model from its source, and its gradient with respect to the tuned
//! vectors.
//!
//! Both models run in float32 on decoded weights, one layer at a time. The residual streams of all
//! windows are in memory, before every layer if gradients are requested.

use htc_formats::model::{MatrixId, Role};
use htc_kernels::cpu::Cpu;
use htc_loader::Model;

use super::GradientError;
use super::block::{Block, Saved, Work};
use super::head::{Head, HeadWork, Rows, batch};
use super::pass::windows_at_a_time;
use super::scales::{Scale, Scales};
use super::weights::{AnyHead, Stored, block, required};
use crate::calibrate::windows::Windows;
use crate::event::Progress;

/// A source and its compressed model.
pub(crate) struct Distillation<'a> {
    source: &'a Model,
    made: &'a Model,
    cpu: Cpu,
    /// Positions of a window.
    context: usize,
    watch: Progress<'a>,
    saved: Saved<f32>,
    work: Work<f32>,
}

struct Through {
    /// Before every block and after the last; only the last without gradients.
    streams: Vec<Vec<f32>>,
}

impl Through {
    fn last(&self) -> &[f32] {
        self.streams.last().map_or(&[], Vec::as_slice)
    }
}

/// Predictions of the source: the residual stream after its last block.
pub(crate) struct Expected(Vec<f32>);

impl<'a> Distillation<'a> {
    /// Creates a distillation with windows of `context` positions.
    pub fn new(
        [source, made]: [&'a Model; 2],
        cpu: Cpu,
        context: usize,
        watch: Progress<'a>,
    ) -> Self {
        Distillation {
            source,
            made,
            cpu,
            context,
            watch,
            saved: Saved::default(),
            work: Work::default(),
        }
    }

    fn portion(&self) -> usize {
        let width = self.made.hyper().width.max(1);
        windows_at_a_time(self.made.spec(), self.context) * self.context * width
    }

    fn embed(&self, model: &Model, tokens: &[u32]) -> Result<Vec<f32>, GradientError> {
        let hyper = model.hyper();
        let embedding = Stored::new(model.file(), MatrixId::Embedding.weight())?;
        let mut x = vec![0.0; tokens.len() * hyper.width];
        for (x, &token) in x.chunks_exact_mut(hyper.width.max(1)).zip(tokens) {
            let token = token as usize;
            embedding.rows(token..token + 1, x)?;
            let scale = hyper.forward.embedding_scale.unwrap_or(1.0);
            x.iter_mut().for_each(|x| *x *= scale);
        }
        Ok(x)
    }

    fn through(
        &mut self,
        model: &Model,
        tokens: &[u32],
        scales: Option<&Scales>,
        keeps: bool,
    ) -> Result<Through, GradientError> {
        let portion = self.portion();
        let mut streams = vec![self.embed(model, tokens)?];
        for layer in 0..model.hyper().layers {
            let block = self.block(model, layer, scales)?;
            let mut x = if keeps {
                streams.last().cloned().unwrap_or_default()
            } else {
                streams.pop().unwrap_or_default()
            };
            for x in x.chunks_mut(portion) {
                block.forward(self.cpu.pool(), x, &mut self.saved);
                x.copy_from_slice(self.saved.out(&block));
                self.watch.check_cancelled()?;
            }
            self.check(model, &x, || format!("layer {layer}"))?;
            streams.push(x);
        }
        Ok(Through { streams })
    }

    fn block(
        &self,
        model: &Model,
        layer: usize,
        scales: Option<&Scales>,
    ) -> Result<Block<f32>, GradientError> {
        let mut block = block(model, layer, self.context, self.cpu.pool())?;
        if let Some(scales) = scales {
            scales.put(layer, &mut block);
        }
        Ok(block)
    }

    /// Returns the source's predictions for windows.
    ///
    /// # Errors
    /// [`GradientError`].
    pub fn expected(&mut self, tokens: &[u32]) -> Result<Expected, GradientError> {
        let mut found = self.through(self.source, tokens, None, false)?;
        Ok(Expected(found.streams.pop().unwrap_or_default()))
    }

    /// Returns the mean divergence in nats of the model with these scales, over the second half of
    /// each window without the last position, as evaluations do.
    ///
    /// # Errors
    /// [`GradientError`].
    pub fn divergence(
        &mut self,
        windows: &Windows,
        expected: &Expected,
        scales: &Scales,
    ) -> Result<f64, GradientError> {
        let tokens = windows.tokens_at(0..windows.tokens());
        let found = self.through(self.made, tokens, Some(scales), false)?;
        let width = self.made.hyper().width;
        let counted = |stream: &[f32]| -> Vec<f32> {
            let windows = stream.chunks_exact((self.context * width).max(1));
            let from = self.context / 2 * width;
            let to = self.context.saturating_sub(1).max(self.context / 2) * width;
            windows.flat_map(|w| &w[from..to]).copied().collect()
        };
        let (x, of_source) = (counted(found.last()), counted(&expected.0));
        let (sum, _) = self.head([&x, &of_source], scales, None)?;
        Ok(sum / (x.len() / width.max(1)).max(1) as f64)
    }

    /// Returns the mean divergence in nats over all positions and its gradients with respect to the
    /// scales.
    ///
    /// # Errors
    /// [`GradientError`].
    pub fn gradients(
        &mut self,
        tokens: &[u32],
        scales: &Scales,
    ) -> Result<(f64, Vec<Vec<f64>>), GradientError> {
        let expected = self.expected(tokens)?;
        let mut streams = self.through(self.made, tokens, Some(scales), true)?.streams;
        let mut found: Vec<Vec<f64>> = scales.values.iter().map(|v| vec![0.0; v.len()]).collect();
        let out = streams.pop().unwrap_or_default();
        let mut d = vec![0.0; out.len()];
        let (sum, of_head) = self.head([&out, &expected.0], scales, Some(&mut d))?;
        if let Some(index) = scales.index(Scale::Norm(Role::OutputNorm)) {
            found[index] = of_head;
        }
        let portion = self.portion();
        for (layer, x) in streams.iter().enumerate().rev() {
            let block = self.block(self.made, layer, Some(scales))?;
            self.work.norms = Some(block.zero_norms());
            for (x, d) in x.chunks(portion).zip(d.chunks_mut(portion)) {
                block.forward(self.cpu.pool(), x, &mut self.saved);
                let (saved, work) = (&self.saved, &mut self.work);
                let pool = self.cpu.pool();
                block.back(pool, d, saved, work, &mut |slot, d| {
                    if let Some(index) = scales.index(Scale::Rows { layer, slot }) {
                        block.add_rows_back(pool, slot, saved, d, &mut found[index]);
                    }
                });
                d.copy_from_slice(self.work.stream());
                self.watch.check_cancelled()?;
            }
            self.check(self.made, &d, || format!("layer {layer}"))?;
            for (role, sums) in self.work.norms.take().into_iter().flatten() {
                if let Some(index) = scales.index(Scale::Norm(role)) {
                    found[index] = sums;
                }
            }
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
    ) -> Result<(f64, Vec<f64>), GradientError> {
        let pool = self.cpu.pool();
        let matrices = [
            AnyHead::of(self.made.file(), pool)?,
            AnyHead::of(self.source.file(), pool)?,
        ];
        let of_source = required(self.source.file(), Role::OutputNorm)?;
        let of = |model: &Model, norm, matrix| {
            let hyper = model.hyper();
            Head {
                vocabulary: hyper.vocabulary,
                norm,
                epsilon: hyper.norm_epsilon.into(),
                cap: hyper.forward.logit_softcap,
                matrix,
            }
        };
        let head = of(self.made, scales.norm(Role::OutputNorm)?, &matrices[0]);
        let teacher = of(self.source, &of_source, &matrices[1]);
        let mut work: [HeadWork<f32>; 2] = Default::default();
        work[0].norm = Some(vec![0.0; of_source.len()]);
        let hyper = self.made.hyper();
        let step = (batch(hyper.vocabulary) * hyper.width).max(1);
        let mut sum = 0.0;
        for (index, (x, expected)) in x.chunks(step).zip(expected.chunks(step)).enumerate() {
            let at = index * step..index * step + x.len();
            let d = d.as_deref_mut().and_then(|d| d.get_mut(at));
            let [work, other] = &mut work;
            sum += head.divergence(pool, x, (&teacher, expected), [work, other], d)?;
            self.watch.check_cancelled()?;
        }
        if sum.is_finite() {
            Ok((sum, work[0].norm.take().unwrap_or_default()))
        } else {
            Err(self.not_finite(self.made, "head".to_owned()))
        }
    }

    fn check(
        &self,
        model: &Model,
        x: &[f32],
        place: impl Fn() -> String,
    ) -> Result<(), GradientError> {
        if x.iter().fold(true, |all, x| all & x.is_finite()) {
            Ok(())
        } else {
            Err(self.not_finite(model, place()))
        }
    }

    fn not_finite(&self, model: &Model, place: String) -> GradientError {
        let path = model.file().path.clone();
        GradientError::NotFinite { path, place }
    }
}
