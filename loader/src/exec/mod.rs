//! The forward pass on any [`Backend`], for prefill (many positions at once) and decode (one
//! position).

mod adapted;
mod block;
mod experts;
mod follow;
mod logits;
mod project;
mod prompt;
mod tap;
mod verify;

use std::ops::{Index, IndexMut, Range};
use std::sync::Arc;

use htc_formats::model::Register;
use htc_kernels::ShapeError;

use crate::backend::{Backend, Cpu};
use crate::dial::{ActiveFraction, ActiveSetting};
use crate::error::ExecError;
use crate::kv::{Kv, KvBases, KvCachePolicy, KvOptions, KvPlan, KvType};
use crate::linear::RankFraction;
use crate::model::Model;

pub(crate) use adapted::{Adapted, AdaptedLayer, Correction};
pub use tap::{Point, Tap};

/// Largest batch of [`Session::forward`].
pub const BATCH: usize = 512;

/// Largest activation buffer in numbers, unless a single position needs more: a file may claim any
/// width.
const BUFFER: usize = 1 << 24;

/// A sequence that a model reads or generates.
///
/// [`Session::step`] suffices for generation. [`Session::forward`] and [`Session::logits`] are its
/// halves, for logits of more than the last position; [`Session::embed`], [`Session::block`],
/// [`Session::head_input`] and [`Session::forward_from`] execute parts of the model.
///
/// A session may move to another thread.
pub struct Session<B: Backend = Cpu> {
    model: Arc<Model<B>>,
    backend: B,
    kv: B::Kv,
    keeper: KvCachePolicy,
    /// Blocks that the KV cache covers for all positions.
    held: Range<usize>,
    /// Announced positions.
    context: usize,
    setting: ActiveSetting,
    adapted: Option<Box<Adapted<B>>>,
    followed: Option<follow::Followed>,
    buffers: Buffers<B>,
    /// Host buffer for results of a device.
    room: Vec<f32>,
    /// Selected logits of the last row.
    largest: Vec<(u32, f32)>,
    /// Rows of the last batch.
    rows: usize,
}

/// Activations of one batch; memory is reused.
struct Buffers<B: Backend> {
    /// By [`Register`]. After the forward pass, [`Register::Normed`] is the head's input.
    registers: [B::Buffer; Register::ALL.len()],
    /// Scratch space for residuals.
    extra: B::Buffer,
    /// Between the factors of the head.
    inner: B::Buffer,
    rotation: B::Rotation,
    /// Rotation of layers with a window, if different.
    local_rotation: B::Rotation,
    logits: B::Buffer,
}

impl<B: Backend> Session<B> {
    /// Creates an empty session of at most `context` positions. Only LongRoPE models depend on
    /// `context`: they rotate accordingly and refuse more.
    ///
    /// The backend must be on the device that the model was [loaded](Model::load) to.
    ///
    /// # Errors
    /// [`ExecError`] if memory runs out.
    pub fn new(
        model: impl Into<Arc<Model<B>>>,
        backend: B,
        context: usize,
    ) -> Result<Self, ExecError> {
        Session::with_kv_type(model, backend, context, KvType::default())
    }

    /// As [`Session::new`], with keys and values stored as `kv_type`.
    ///
    /// # Errors
    /// [`ExecError`] if memory runs out.
    pub fn with_kv_type(
        model: impl Into<Arc<Model<B>>>,
        backend: B,
        context: usize,
        kv_type: KvType,
    ) -> Result<Self, ExecError> {
        Session::with_kv(model, backend, context, &KvOptions::new(kv_type), None)
    }

    /// As [`Session::new`], with KV cache `options`. Low-rank kinds need the model's `bases`
    /// ([`Model::kv_bases`]), others ignore them.
    ///
    /// # Errors
    /// [`ExecError::Kv`] for options that do not fit the model, and for missing or foreign bases;
    /// [`ExecError`] if memory runs out.
    pub fn with_kv(
        model: impl Into<Arc<Model<B>>>,
        mut backend: B,
        context: usize,
        options: &KvOptions,
        bases: Option<Arc<KvBases>>,
    ) -> Result<Self, ExecError> {
        let model = model.into();
        let plan = KvPlan::new(model.hyper().into(), options, bases.as_deref())?;
        let kv = backend.kv(&plan)?;
        let windows = model.blocks.iter();
        let windows = windows.map(|block| {
            block
                .attention()
                .is_some_and(|step| step.attention.window.is_some())
        });
        let keeper = KvCachePolicy::new(*options, &plan, bases.as_deref(), windows.collect());
        Ok(Session {
            kv,
            keeper,
            model,
            backend,
            held: 0..0,
            context,
            setting: ActiveSetting::FULL,
            adapted: None,
            followed: None,
            buffers: Buffers::new(),
            room: Vec::new(),
            largest: Vec::new(),
            rows: 0,
        })
    }

    /// Returns the model.
    pub fn model(&self) -> &Arc<Model<B>> {
        &self.model
    }

    /// Returns the largest batch of [`Session::forward`]: [`BATCH`], or less for very wide models.
    pub fn batch(&self) -> usize {
        let h = self.model.hyper();
        let widest = h.width.max(h.ffn).max(h.heads * h.head_size);
        let step = self.keeper.options().max_pass_positions.unwrap_or(BATCH);
        (BUFFER / widest.max(1)).clamp(1, BATCH).min(step)
    }

    /// Returns the largest number of positions: the model's context, or the original context if
    /// LongRoPE rotates a short sequence.
    pub fn limit(&self) -> usize {
        let (_, limit) = self.model.rope.global(self.context);
        limit.min(self.model.hyper().context)
    }

    /// Returns the number of positions read.
    pub fn position(&self) -> usize {
        self.kv.len()
    }

    /// Returns the KV cache.
    pub fn kv(&self) -> &B::Kv {
        &self.kv
    }

    /// Uses only the leading share of every factorised projection's rank from now on.
    pub fn set_rank_fraction(&mut self, rank: RankFraction) {
        self.setting.rank = rank;
    }

    /// Limits the active fraction of weight bytes per token from now on; returns the new setting.
    /// Stored keys and values are unchanged.
    ///
    /// # Errors
    /// [`ExecError::FractionBelow`] if below the model's minimum; the setting is then unchanged.
    pub fn set_fraction(&mut self, fraction: ActiveFraction) -> Result<ActiveSetting, ExecError> {
        self.setting = self.model.dial().setting_for(fraction)?;
        Ok(self.setting)
    }

    /// Returns the current setting.
    pub fn setting(&self) -> ActiveSetting {
        self.setting
    }

    /// Applies a setting from now on.
    pub fn set(&mut self, setting: ActiveSetting) {
        self.setting = setting;
    }

    /// Clears the sequence.
    pub fn reset(&mut self) {
        // Errors of the old sequence are obsolete.
        let _ = self.backend.settle();
        self.kv.truncate(0);
        self.keeper.reset();
        self.rows = 0;
    }

    /// Keeps the first `positions` positions, and forgets later ones and the last logits, as if
    /// never read. Compressed positions stay compressed, in the current bases; 0 is
    /// [`Session::reset`].
    ///
    /// # Errors
    /// [`ExecError::Truncate`] if fewer were read, and [`ExecError::Kv`] if earlier positions were
    /// evicted; the sequence is then unchanged.
    pub fn truncate(&mut self, positions: usize) -> Result<(), ExecError> {
        let found = self.kv.len();
        if positions > found {
            let asked = positions;
            return Err(ExecError::Truncate {
                requested: asked,
                found,
            });
        }
        self.keeper.check_truncate(positions)?;
        // Errors of dropped positions are obsolete; those of earlier ones were checked.
        if positions < found {
            let _ = self.backend.settle();
        }
        if positions == 0 {
            self.keeper.reset();
        }
        self.kv.truncate(positions);
        self.rows = 0;
        Ok(())
    }

    /// Reads `tokens` (at most [`Session::batch`]).
    ///
    /// # Errors
    /// [`ExecError`] for a token outside the vocabulary or too many tokens; the sequence is then
    /// unchanged.
    pub fn forward(&mut self, tokens: &[u32]) -> Result<(), ExecError> {
        self.forward_with(tokens, &mut ())
    }

    /// As [`Session::forward`], with a tap on activations.
    ///
    /// # Errors
    /// As [`Session::forward`].
    pub fn forward_with(&mut self, tokens: &[u32], tap: &mut dyn Tap) -> Result<(), ExecError> {
        let n = tokens.len();
        self.check_tokens(tokens)?;
        self.prepare(n, 0..self.model.blocks.len())?;
        if n == 0 {
            return Ok(());
        }
        self.embed_batch(tokens)?;
        self.blocks_and_norm(0, n, tap)
    }

    /// Executes the model from block `layer` on: reads the next `n` positions (at most
    /// [`Session::batch`]) given their residual stream `x [n, width]` before that block. Logits are
    /// then those of [`Session::forward`].
    ///
    /// Earlier blocks do not store these positions, so they cannot be used before
    /// [`Session::reset`].
    ///
    /// # Errors
    /// [`ExecError`] for a block that does not exist or missed earlier positions, a wrong length of
    /// `x`, or too many positions.
    pub fn forward_from(&mut self, layer: usize, x: &[f32]) -> Result<(), ExecError> {
        let n = self.upload(layer..self.model.blocks.len(), x)?;
        match n {
            0 => Ok(()),
            n => self.blocks_and_norm(layer, n, &mut ()),
        }
    }

    /// Computes the initial residual stream `out [n, width]` of `tokens` (at most
    /// [`Session::batch`]) without reading them; forgets the last logits.
    ///
    /// # Errors
    /// [`ExecError`] for a token outside the vocabulary, too many tokens, or a wrong length of
    /// `out`.
    pub fn embed(&mut self, tokens: &[u32], out: &mut [f32]) -> Result<(), ExecError> {
        let numbers = tokens.len() * self.model.hyper().width;
        expect_length(numbers, out.len())?;
        self.check_tokens(tokens)?;
        self.check_batch(tokens.len())?;
        self.rows = 0;
        self.backend
            .resize(&mut self.buffers[Register::Residual], numbers)?;
        self.embed_batch(tokens)?;
        let x = self
            .backend
            .read(&self.buffers[Register::Residual], numbers, &mut self.room)?;
        out.copy_from_slice(x);
        Ok(())
    }

    /// Executes one block on the residual stream `x [n, width]` of the next `n` positions (at most
    /// [`Session::batch`]). Call [`Session::reset`] before passing the same positions through
    /// another block.
    ///
    /// # Errors
    /// [`ExecError`] for a block that does not exist or missed earlier positions, a wrong length of
    /// `x`, or too many positions.
    pub fn block(
        &mut self,
        layer: usize,
        x: &mut [f32],
        tap: &mut dyn Tap,
    ) -> Result<(), ExecError> {
        let n = self.upload(layer..layer.saturating_add(1), x)?;
        if n == 0 {
            return Ok(());
        }
        self.block_of_batch(layer, n, tap)?;
        let stream = &self.buffers[Register::Residual];
        x.copy_from_slice(self.backend.read(stream, x.len(), &mut self.room)?);
        self.kv.advance(n);
        self.keeper.record_pass(n);
        self.held = layer..layer + 1;
        Ok(())
    }

    /// Replaces the residual stream `x [n, width]` after the last block by the head's input:
    /// applies the last norm. Reads no positions; forgets the last logits.
    ///
    /// # Errors
    /// [`ExecError`] for a wrong length of `x`, or too many positions.
    pub fn head_input(&mut self, x: &mut [f32]) -> Result<(), ExecError> {
        let width = self.model.hyper().width;
        let n = x.len() / width.max(1);
        expect_length(n * width, x.len())?;
        self.check_batch(n)?;
        self.rows = 0;
        let (backend, b) = (&mut self.backend, &mut self.buffers);
        backend.resize(&mut b[Register::Residual], x.len())?;
        backend.resize(&mut b[Register::Normed], x.len())?;
        if n == 0 {
            return Ok(());
        }
        backend.upload(x, &mut b[Register::Residual])?;
        self.norm(n)?;
        let normed = &self.buffers[Register::Normed];
        x.copy_from_slice(self.backend.read(normed, x.len(), &mut self.room)?);
        Ok(())
    }

    fn embed_batch(&mut self, tokens: &[u32]) -> Result<(), ExecError> {
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

    /// Prepares the next positions for some blocks and uploads `x`; returns the number of
    /// positions.
    fn upload(&mut self, blocks: Range<usize>, x: &[f32]) -> Result<usize, ExecError> {
        let (width, layers) = (self.model.hyper().width, self.model.blocks.len());
        let n = x.len() / width.max(1);
        if blocks.start >= layers {
            let layer = blocks.start;
            return Err(ExecError::Layer { layer, layers });
        }
        expect_length(n * width, x.len())?;
        self.prepare(n, blocks)?;
        self.backend
            .upload(x, &mut self.buffers[Register::Residual])?;
        Ok(n)
    }

    /// Executes the blocks from `first` on and the last norm, and counts the positions.
    fn blocks_and_norm(
        &mut self,
        first: usize,
        n: usize,
        tap: &mut dyn Tap,
    ) -> Result<(), ExecError> {
        for layer in first..self.model.blocks.len() {
            self.block_of_batch(layer, n, tap)?;
        }
        self.norm(n)?;
        self.correct(n)?;
        self.kv.advance(n);
        self.keeper.record_pass(n);
        self.held = first..self.model.blocks.len();
        self.rows = n;
        Ok(())
    }

    fn norm(&mut self, n: usize) -> Result<(), ExecError> {
        let (model, b) = (&self.model, &mut self.buffers);
        let epsilon = model.hyper().norm_epsilon;
        let [x, normed] = b.pair(Register::Residual, Register::Normed);
        self.backend
            .rms_norm(n, x, &model.output_norm, epsilon, normed)
    }

    fn check_tokens(&self, tokens: &[u32]) -> Result<(), ExecError> {
        let vocabulary = self.model.hyper().vocabulary;
        let outside = |&&token: &&u32| token as usize >= vocabulary;
        match tokens.iter().find(outside) {
            None => Ok(()),
            Some(&token) => Err(ExecError::Token { token, vocabulary }),
        }
    }

    fn check_batch(&self, n: usize) -> Result<(), ExecError> {
        let limit = self.batch();
        if n > limit {
            Err(ExecError::Batch { found: n, limit })
        } else {
            Ok(())
        }
    }

    /// Checks that `n` more positions are rotated like those before.
    fn check_context(&self, n: usize) -> Result<(), ExecError> {
        let (_, limit) = self.model.rope.global(self.context);
        let found = self.kv.len().saturating_add(n);
        if found > limit {
            Err(ExecError::Context { found, limit })
        } else {
            Ok(())
        }
    }

    /// Reserves memory for `n` more positions in some blocks.
    fn prepare(&mut self, n: usize, blocks: Range<usize>) -> Result<(), ExecError> {
        self.check_batch(n)?;
        self.check_context(n)?;
        self.settle()?;
        let (start, held) = (self.kv.len(), &self.held);
        if start > 0 && (blocks.start < held.start || blocks.end > held.end) {
            let (asked, held) = (blocks, held.clone());
            return Err(ExecError::Blocks {
                requested: asked,
                read: held,
            });
        }
        self.rows = 0;
        let (model, backend, b) = (&self.model, &mut self.backend, &mut self.buffers);
        self.keeper.prepare_pass(backend, &mut self.kv, blocks)?;
        backend.reserve(&mut self.kv, n)?;
        for (register, row) in Register::ALL.into_iter().zip(model.register_widths) {
            backend.resize(&mut b[register], n * row)?;
        }
        let (frequencies, _) = model.rope.global(self.context);
        let factor = model.rope.factor;
        backend.rotate_to(&mut b.rotation, start, n, frequencies, factor)?;
        if let Some(frequencies) = model.rope.local() {
            backend.rotate_to(&mut b.local_rotation, start, n, frequencies, factor)?;
        }
        Ok(())
    }

    /// Returns pending errors of the last batch and removes that batch on failure. Called before
    /// any operation on the batch, so that errors are attributed correctly.
    pub(super) fn settle(&mut self) -> Result<(), ExecError> {
        let settled = self.backend.settle();
        if settled.is_err() {
            let before = self.kv.len().saturating_sub(self.rows);
            // Later compressed or evicted positions make the sequence unusable.
            if self.truncate(before).is_err() {
                self.reset();
            }
        }
        settled
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

    fn pair(&mut self, first: Register, second: Register) -> [&mut B::Buffer; 2] {
        debug_assert_ne!(first, second);
        let (low, high) = (first as usize, second as usize);
        let (before, after) = self.registers.split_at_mut(low.max(high));
        if low < high {
            [&mut before[low], &mut after[0]]
        } else {
            [&mut after[0], &mut before[high]]
        }
    }

    fn with_rotation(&mut self, register: Register, local: bool) -> (&mut B::Buffer, &B::Rotation) {
        let rotation = if local {
            &self.local_rotation
        } else {
            &self.rotation
        };
        (&mut self.registers[register as usize], rotation)
    }

    fn with_extra(&mut self, register: Register) -> (&B::Buffer, &mut B::Buffer) {
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

fn expect_length(expected: usize, found: usize) -> Result<(), ExecError> {
    if expected == found {
        return Ok(());
    }
    Err(ExecError::Shape(ShapeError {
        argument: "x (numbers)",
        expected,
        actual: found,
    }))
}
