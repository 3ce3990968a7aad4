//! How far a compressed model is from its source, and the gradient of that with respect to the weights of its
//! norms.
//!
//! Both models are executed in float32 on weights as numbers, one layer in memory at a time: the residual streams of
//! all windows of a call are there, in front of every layer where gradients are wanted.

use htc_formats::model::{MatrixId, Role};
use htc_formats::source::ModelFile;
use htc_kernels::cpu::Cpu;
use htc_loader::Model;

use super::GradientError;
use super::block::{Block, Norm, Saved, Work};
use super::head::{Head, HeadWork, Rows, batch};
use super::pass::windows_at_a_time;
use super::weights::{AnyHead, Stored, block, required, vector};
use crate::calibrate::windows::Windows;
use crate::event::Watch;

/// The weights of every norm of a model, in the order of execution: `[width]` each, of queries and keys `[head]`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Norms {
    /// What each does in the model.
    pub roles: Vec<Role>,
    /// Their numbers, or something that there is of each number.
    pub values: Vec<Vec<f32>>,
}

impl Norms {
    /// Those of a model.
    ///
    /// # Errors
    /// [`GradientError::Block`], [`GradientError::Missing`].
    pub fn of(file: &ModelFile) -> Result<Norms, GradientError> {
        let (mut roles, mut values) = (Vec::new(), Vec::new());
        for layer in 0..file.hyper.layers {
            for role in Norm::ALL.map(|norm| norm.role(layer)) {
                if let Some(weight) = vector(file, role)? {
                    roles.push(role);
                    values.push(weight);
                }
            }
        }
        roles.push(Role::OutputNorm);
        values.push(required(file, Role::OutputNorm)?);
        Ok(Norms { roles, values })
    }

    /// Their numbers in all.
    pub fn count(&self) -> usize {
        self.values.iter().map(Vec::len).sum()
    }

    fn index(&self, role: Role) -> Option<usize> {
        self.roles.iter().position(|own| *own == role)
    }

    fn get(&self, role: Role) -> Result<&[f32], GradientError> {
        let found = self.index(role).and_then(|index| self.values.get(index));
        found.map(Vec::as_slice).ok_or(GradientError::Missing(role))
    }

    /// Puts them in the place of those of a block.
    fn put(&self, layer: usize, block: &mut Block<f32>) {
        for norm in Norm::ALL {
            if let (Some(to), Ok(own)) = (block.norm_mut(norm), self.get(norm.role(layer))) {
                to.copy_from_slice(own);
            }
        }
    }
}

/// A source and what was made of it, executed side by side.
pub(crate) struct Distillation<'a> {
    source: &'a Model,
    made: &'a Model,
    cpu: Cpu,
    /// Positions of a window.
    context: usize,
    watch: Watch<'a>,
    saved: Saved<f32>,
    work: Work<f32>,
}

/// What goes through all blocks.
struct Through {
    /// In front of every block and behind the last; that alone where no more is wanted.
    streams: Vec<Vec<f32>>,
}

impl Through {
    fn last(&self) -> &[f32] {
        self.streams.last().map_or(&[], Vec::as_slice)
    }
}

/// What the source thinks of windows: the residual stream behind its last block.
pub(crate) struct Expected(Vec<f32>);

impl<'a> Distillation<'a> {
    /// Of windows of `context` positions.
    pub fn new([source, made]: [&'a Model; 2], cpu: Cpu, context: usize, watch: Watch<'a>) -> Self {
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

    /// Numbers of the streams that go through a block together.
    fn portion(&self) -> usize {
        let width = self.made.hyper().width.max(1);
        windows_at_a_time(self.made.hyper(), self.context) * self.context * width
    }

    /// The residual stream that tokens begin with.
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

    /// Tokens of whole windows through all blocks, with these norms where some are given.
    fn through(
        &mut self,
        model: &Model,
        tokens: &[u32],
        norms: Option<&Norms>,
        keeps: bool,
    ) -> Result<Through, GradientError> {
        let portion = self.portion();
        let mut streams = vec![self.embed(model, tokens)?];
        for layer in 0..model.hyper().layers {
            let block = self.block(model, layer, norms)?;
            let mut x = match keeps {
                true => streams.last().cloned().unwrap_or_default(),
                false => streams.pop().unwrap_or_default(),
            };
            for x in x.chunks_mut(portion) {
                block.forward(self.cpu.pool(), x, &mut self.saved);
                x.copy_from_slice(&self.saved.out);
                self.watch.check()?;
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
        norms: Option<&Norms>,
    ) -> Result<Block<f32>, GradientError> {
        let mut block = block(model, layer, self.context, self.cpu.pool())?;
        if let Some(norms) = norms {
            norms.put(layer, &mut block);
        }
        Ok(block)
    }

    /// What the source thinks of windows.
    ///
    /// # Errors
    /// [`GradientError`].
    pub fn expected(&mut self, tokens: &[u32]) -> Result<Expected, GradientError> {
        let mut found = self.through(self.source, tokens, None, false)?;
        Ok(Expected(found.streams.pop().unwrap_or_default()))
    }

    /// The mean divergence of the model with these norms from its source, nats, over the positions that a measurement
    /// counts: from half of each window on, without the last.
    ///
    /// # Errors
    /// [`GradientError`].
    pub fn divergence(
        &mut self,
        windows: &Windows,
        expected: &Expected,
        norms: &Norms,
    ) -> Result<f64, GradientError> {
        let tokens = windows.tokens_at(0..windows.tokens());
        let found = self.through(self.made, tokens, Some(norms), false)?;
        let width = self.made.hyper().width;
        let counted = |stream: &[f32]| -> Vec<f32> {
            let windows = stream.chunks_exact((self.context * width).max(1));
            let from = self.context / 2 * width;
            let to = self.context.saturating_sub(1).max(self.context / 2) * width;
            windows.flat_map(|w| &w[from..to]).copied().collect()
        };
        let (x, of_source) = (counted(found.last()), counted(&expected.0));
        let (sum, _) = self.head([&x, &of_source], norms, None)?;
        Ok(sum / (x.len() / width.max(1)).max(1) as f64)
    }

    /// The mean divergence over all positions of whole windows, nats, and its gradients with respect to the weights
    /// of the norms, in their order.
    ///
    /// # Errors
    /// [`GradientError`].
    pub fn gradients(
        &mut self,
        tokens: &[u32],
        norms: &Norms,
    ) -> Result<(f64, Vec<Vec<f64>>), GradientError> {
        let expected = self.expected(tokens)?;
        let mut streams = self.through(self.made, tokens, Some(norms), true)?.streams;
        let mut found: Vec<Vec<f64>> = norms.values.iter().map(|v| vec![0.0; v.len()]).collect();
        let out = streams.pop().unwrap_or_default();
        let mut d = vec![0.0; out.len()];
        let (sum, of_head) = self.head([&out, &expected.0], norms, Some(&mut d))?;
        if let Some(to) = found.last_mut() {
            *to = of_head;
        }
        let portion = self.portion();
        for (layer, x) in streams.iter().enumerate().rev() {
            let block = self.block(self.made, layer, Some(norms))?;
            self.work.norms = Some(block.no_norms());
            for (x, d) in x.chunks(portion).zip(d.chunks_mut(portion)) {
                block.forward(self.cpu.pool(), x, &mut self.saved);
                let (saved, work) = (&self.saved, &mut self.work);
                block.back(self.cpu.pool(), [x, d], saved, work, &mut |_, _| {});
                d.copy_from_slice(&self.work.stream);
                self.watch.check()?;
            }
            self.check(self.made, &d, || format!("layer {layer}"))?;
            let sums = self.work.norms.take().into_iter().flatten();
            for (sums, norm) in sums.zip(Norm::ALL) {
                if let Some(index) = norms.index(norm.role(layer)) {
                    found[index] = sums;
                }
            }
        }
        let positions = tokens.len().max(1) as f64;
        found.iter_mut().flatten().for_each(|g| *g /= positions);
        Ok((sum / positions, found))
    }

    /// The sum of the divergences over rows of the two streams, and the gradient with respect to the weight of the
    /// last norm; that with respect to the rows is put where it is wanted.
    fn head(
        &self,
        [x, expected]: [&[f32]; 2],
        norms: &Norms,
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
        let head = of(self.made, norms.get(Role::OutputNorm)?, &matrices[0]);
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
            self.watch.check()?;
        }
        match sum.is_finite() {
            true => Ok((sum, work[0].norm.take().unwrap_or_default())),
            false => Err(self.not_finite(self.made, "head".to_owned())),
        }
    }

    fn check(
        &self,
        model: &Model,
        x: &[f32],
        place: impl Fn() -> String,
    ) -> Result<(), GradientError> {
        match x.iter().fold(true, |all, x| all & x.is_finite()) {
            true => Ok(()),
            false => Err(self.not_finite(model, place())),
        }
    }

    fn not_finite(&self, model: &Model, place: String) -> GradientError {
        let path = model.file().path.clone();
        GradientError::NotFinite { path, place }
    }
}
