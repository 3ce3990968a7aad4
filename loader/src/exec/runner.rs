//! The forward pass over the rows of a batch, whichever sequences they belong to.

use std::ops::{Index, IndexMut, Range};
use std::sync::Arc;

use htc_formats::model::Register;

use super::{Adapted, BATCH, BUFFER, Part, Tap, project};
use crate::backend::Backend;
use crate::dial::ActiveSetting;
use crate::error::{ExecError, Result};
use crate::kv::Kv;
use crate::model::Model;

/// Model, backend and activations.
pub(super) struct Runner<B: Backend> {
    pub model: Arc<Model<B>>,
    pub backend: B,
    /// Announced positions of a sequence.
    pub context: usize,
    pub setting: ActiveSetting,
    pub adapted: Option<Box<Adapted<B>>>,
    pub buffers: Buffers<B>,
    /// Host buffer for results of a device.
    pub host_buffer: Vec<f32>,
}

/// Activations of one batch; memory is reused.
pub(super) struct Buffers<B: Backend> {
    /// By [`Register`]. After the forward pass, [`Register::Normed`] is the head's input.
    pub registers: [B::Buffer; Register::ALL.len()],
    /// Scratch space for residuals.
    pub extra: B::Buffer,
    /// Inner vectors of a factorised head.
    inner: B::Buffer,
    rotation: B::Rotation,
    /// Rotation of layers with a window, if different.
    local_rotation: B::Rotation,
    pub logits: B::Buffer,
}

impl<B: Backend> Runner<B> {
    pub fn new(model: Arc<Model<B>>, backend: B, context: usize) -> Self {
        Runner {
            model,
            backend,
            context,
            setting: ActiveSetting::FULL,
            adapted: None,
            buffers: Buffers::new(),
            host_buffer: Vec::new(),
        }
    }

    /// Returns the largest number of rows of a batch.
    pub fn batch(&self) -> usize {
        let widest = self.model.register_widths.into_iter().max().unwrap_or(0);
        (BUFFER / widest.max(1)).clamp(1, BATCH)
    }

    /// Returns the largest number of positions of a sequence.
    pub fn limit(&self) -> usize {
        let (_, limit) = self.model.rope.global(self.context);
        limit.min(self.model.hyper().context)
    }

    pub fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
        let vocabulary = self.model.hyper().vocabulary;
        let outside = |&&token: &&u32| token as usize >= vocabulary;
        match tokens.iter().find(outside) {
            None => Ok(()),
            Some(&token) => Err(ExecError::Token { token, vocabulary }),
        }
    }

    /// Reserves memory for the `n` rows of a batch in some blocks.
    pub fn prepare(
        &mut self,
        n: usize,
        parts: &mut [Part<'_, B>],
        blocks: Range<usize>,
    ) -> Result<()> {
        let (model, backend, b) = (&self.model, &mut self.backend, &mut self.buffers);
        let mut positions = Vec::with_capacity(parts.len());
        for Part { sequence, rows } in parts {
            let (policy, kv) = (&mut sequence.policy, &mut sequence.kv);
            policy.prepare_pass(backend, kv, blocks.clone())?;
            kv.reserve(backend, rows.len())?;
            let start = sequence.position();
            positions.push(start..start + rows.len());
        }
        for (register, row) in Register::ALL.into_iter().zip(model.register_widths) {
            backend.resize(&mut b[register], n * row)?;
        }
        let (frequencies, _) = model.rope.global(self.context);
        let factor = model.rope.factor;
        backend.rotate_to(&mut b.rotation, &positions, frequencies, factor)?;
        if let Some(frequencies) = model.rope.local() {
            backend.rotate_to(&mut b.local_rotation, &positions, frequencies, factor)?;
        }
        Ok(())
    }

    /// Computes the initial residual stream.
    pub fn embed(&mut self, tokens: &[u32]) -> Result<()> {
        let scale = self.model.hyper().forward.embedding_scale;
        let (model, b) = (&self.model, &mut self.buffers);
        let embedding = &model.embedding;
        self.backend
            .embed(&embedding.weight, tokens, scale, &mut b[Register::Residual])?;
        match &model.embedding_refinement {
            Some((refinement, place)) if self.setting.is_active(*place) => {
                let numbers = tokens.len() * refinement.cols;
                self.backend.resize(&mut b.extra, numbers)?;
                let weight = &refinement.weight;
                self.backend.embed(weight, tokens, scale, &mut b.extra)?;
                self.backend.add(
                    numbers,
                    &mut b.registers[Register::Residual as usize],
                    &b.extra,
                )
            }
            _ => Ok(()),
        }
    }

    /// Executes the blocks from `first` on and the last norm on the `n` rows of the batch, and
    /// corrects the head's input. The caller counts the positions.
    pub fn blocks_and_norm(
        &mut self,
        first: usize,
        n: usize,
        parts: &mut [Part<'_, B>],
        tap: &mut dyn Tap,
    ) -> Result<()> {
        for layer in first..self.model.blocks.len() {
            self.block(layer, n, parts, tap)?;
        }
        self.norm(n)?;
        self.correct(n)
    }

    pub fn norm(&mut self, n: usize) -> Result<()> {
        let (model, b) = (&self.model, &mut self.buffers);
        let epsilon = model.hyper().norm_epsilon;
        let [x, normed] = b.pair(Register::Residual, Register::Normed);
        self.backend
            .rms_norm(n, x, &model.output_norm, epsilon, normed)
    }

    /// Computes logits of rows of a register with the head's input; returns their count.
    pub fn logits(&mut self, of: Register, rows: Range<usize>) -> Result<usize> {
        let hyper = self.model.hyper();
        let numbers = rows.len() * hyper.vocabulary;
        let (backend, b) = (&mut self.backend, &mut self.buffers);
        backend.resize(&mut b.logits, numbers)?;
        let head = self.model.head();
        let scratch = [&mut b.inner, &mut b.extra];
        let options = project::LogitOptions {
            cap: hyper.forward.logit_softcap,
            setting: self.setting,
        };
        let x = &b.registers[of as usize];
        project::logits(backend, head, rows, x, options, &mut b.logits, scratch)?;
        Ok(numbers)
    }

    /// Returns the first `numbers` of a register.
    pub fn read(&mut self, of: Register, numbers: usize) -> Result<&[f32]> {
        self.backend
            .read(&self.buffers[of], numbers, &mut self.host_buffer)
    }

    /// Returns the first `numbers` of the computed logits.
    pub fn read_logits(&mut self, numbers: usize) -> Result<&[f32]> {
        self.backend
            .read(&self.buffers.logits, numbers, &mut self.host_buffer)
    }
}

impl<B: Backend> Buffers<B> {
    fn new() -> Self {
        Buffers {
            registers: Default::default(),
            extra: Default::default(),
            inner: Default::default(),
            rotation: Default::default(),
            local_rotation: Default::default(),
            logits: Default::default(),
        }
    }

    pub fn pair(&mut self, first: Register, second: Register) -> [&mut B::Buffer; 2] {
        debug_assert_ne!(first, second);
        let (low, high) = (first as usize, second as usize);
        let (before, after) = self.registers.split_at_mut(low.max(high));
        if low < high {
            [&mut before[low], &mut after[0]]
        } else {
            [&mut after[0], &mut before[high]]
        }
    }

    pub fn with_rotation(
        &mut self,
        register: Register,
        local: bool,
    ) -> (&mut B::Buffer, &B::Rotation) {
        let rotation = if local {
            &self.local_rotation
        } else {
            &self.rotation
        };
        (&mut self.registers[register as usize], rotation)
    }

    pub fn with_extra(&mut self, register: Register) -> (&B::Buffer, &mut B::Buffer) {
        (&self.registers[register as usize], &mut self.extra)
    }
}

impl<B: Backend> Index<Register> for Buffers<B> {
    type Output = B::Buffer;

    fn index(&self, register: Register) -> &B::Buffer {
        &self.registers[register as usize]
    }
}

impl<B: Backend> IndexMut<Register> for Buffers<B> {
    fn index_mut(&mut self, register: Register) -> &mut B::Buffer {
        &mut self.registers[register as usize]
    }
}
