//! The forward pass: one for prefill (many positions at once) and decode (one position), on any
//! [`Backend`].

mod adapted;
mod block;
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

/// Positions that one call of [`Session::forward`] takes at most.
pub const BATCH: usize = 512;

/// Numbers in one activation buffer at most, where a single position does not need more: a file
/// may claim any width.
const BUFFER: usize = 1 << 24;

/// A sequence being read or written by a model.
///
/// [`Session::step`] is all that reading and writing need. [`Session::forward`] and
/// [`Session::logits`] are its halves, for whoever wants logits of more than the last position;
/// [`Session::embed`], [`Session::block`], [`Session::head_input`] and [`Session::forward_from`] execute a
/// part of the model.
///
/// A session owns what it needs and may move to another thread.
pub struct Session<B: Backend = Cpu> {
    model: Arc<Model<B>>,
    backend: B,
    kv: B::Kv,
    /// What is done with keys and values between passes.
    keeper: KvCachePolicy,
    /// Blocks whose keys and values of all positions the KV cache holds.
    held: Range<usize>,
    /// Positions that were announced.
    context: usize,
    setting: ActiveSetting,
    /// What a draft uses in the place of parts of the model.
    adapted: Option<Box<Adapted<B>>>,
    /// What decides on the setting.
    followed: Option<follow::Followed>,
    buffers: Buffers<B>,
    /// Where numbers of a device are copied to.
    room: Vec<f32>,
    /// Of the last row, where a device chose them.
    largest: Vec<(u32, f32)>,
    /// Rows of the last batch.
    rows: usize,
}

/// Activations of one batch, row by row; their memory is kept from batch to batch.
struct Buffers<B: Backend> {
    /// By [`Register`]. After the forward pass, [`Register::Normed`] is the input of the head.
    registers: [B::Buffer; Register::ALL.len()],
    /// What a base lacks of a slot's result.
    extra: B::Buffer,
    /// Between the factors of the head.
    inner: B::Buffer,
    rotation: B::Rotation,
    /// That of layers with a window, where it is another.
    local_rotation: B::Rotation,
    logits: B::Buffer,
}

impl<B: Backend> Session<B> {
    /// An empty sequence that will have at most `context` positions. Models with LongRoPE
    /// rotate by it, and refuse more; to others it means nothing.
    ///
    /// The backend is one of the device that the model was [loaded](Model::load) to.
    ///
    /// # Errors
    /// [`ExecError`] where the backend has no room.
    pub fn new(
        model: impl Into<Arc<Model<B>>>,
        backend: B,
        context: usize,
    ) -> Result<Self, ExecError> {
        Session::with_kv_type(model, backend, context, KvType::default())
    }

    /// An empty sequence whose keys and values are stored as `kv_type`.
    ///
    /// # Errors
    /// [`ExecError`] where the backend has no room.
    pub fn with_kv_type(
        model: impl Into<Arc<Model<B>>>,
        backend: B,
        context: usize,
        kv_type: KvType,
    ) -> Result<Self, ExecError> {
        Session::with_kv(model, backend, context, &KvOptions::new(kv_type), None)
    }

    /// An empty sequence whose keys and values are stored as `options` say. Kinds in low rank need the
    /// `bases` of the model, which others ignore: [`KvBases`] can be made of [`Model::kv_bases`].
    ///
    /// # Errors
    /// [`ExecError::Kv`] for options that do not fit the model, or bases that are missing or of another
    /// model; [`ExecError`] where the backend has no room.
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

    /// The model that is executed.
    pub fn model(&self) -> &Arc<Model<B>> {
        &self.model
    }

    /// Positions that [`Session::forward`] takes at most: [`BATCH`], or fewer where the model is
    /// so wide that the buffers would be out of proportion.
    pub fn batch(&self) -> usize {
        let h = self.model.hyper();
        let widest = h.width.max(h.ffn).max(h.heads * h.head_size);
        let step = self.keeper.options().max_pass_positions.unwrap_or(BATCH);
        (BUFFER / widest.max(1)).clamp(1, BATCH).min(step)
    }

    /// Positions that the sequence may have: those the model was trained for, or fewer where the
    /// session was announced as one that LongRoPE rotates as a short one.
    pub fn limit(&self) -> usize {
        let (_, limit) = self.model.rope.global(self.context);
        limit.min(self.model.hyper().context)
    }

    /// Positions read so far.
    pub fn position(&self) -> usize {
        self.kv.len()
    }

    /// The keys and values of the positions read so far.
    pub fn kv(&self) -> &B::Kv {
        &self.kv
    }

    /// Uses the leading share of every factorised slot's rank from now on.
    pub fn set_rank_fraction(&mut self, rank: RankFraction) {
        self.setting.rank = rank;
    }

    /// Touches at most this part of the weights' bytes for every token from now on; gives what is in use then, and
    /// changes nothing where that cannot be. Keys and values of the positions that were read stay as they are.
    ///
    /// # Errors
    /// [`ExecError::FractionBelow`] for less than the model can do with.
    pub fn set_fraction(&mut self, fraction: ActiveFraction) -> Result<ActiveSetting, ExecError> {
        self.setting = self.model.dial().setting_for(fraction)?;
        Ok(self.setting)
    }

    /// What of the model is in use.
    pub fn setting(&self) -> ActiveSetting {
        self.setting
    }

    /// Uses as much of the model as a setting says from now on.
    pub fn set(&mut self, setting: ActiveSetting) {
        self.setting = setting;
    }

    /// Forgets the sequence.
    pub fn reset(&mut self) {
        // What was wrong with it is of no meaning now.
        let _ = self.backend.settle();
        self.kv.truncate(0);
        self.keeper.reset();
        self.rows = 0;
    }

    /// Keeps the first `positions` positions and forgets those behind them, logits of the last
    /// batch included: what is read next follows there, as if nothing else had ever been read. Where
    /// keys and values are compressed, those that were stay so, in the bases as they are; for no
    /// positions that is [`Session::reset`].
    ///
    /// # Errors
    /// [`ExecError::Truncate`] where fewer were read, and [`ExecError::Kv`] for positions in front of
    /// which others were evicted; the sequence is then as before.
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
        // What was wrong with the positions behind, too, is forgotten; those before were asked for.
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

    /// Reads `tokens` (at most [`Session::batch`]) after what was read before.
    ///
    /// # Errors
    /// [`ExecError`] for a token outside the vocabulary or too many tokens; the sequence is
    /// then as before.
    pub fn forward(&mut self, tokens: &[u32]) -> Result<(), ExecError> {
        self.forward_with(tokens, &mut ())
    }

    /// [`Session::forward`], with a look at what happens inside of blocks.
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

    /// The rest of a forward pass: reads the `n` positions that come next (at most
    /// [`Session::batch`]) as what they are in front of block `layer`, the residual stream
    /// `x [n, width]`, through that block and all behind it. Logits are then those that
    /// [`Session::forward`] gives.
    ///
    /// The blocks in front of `layer` know nothing of these positions, so that they cannot be used
    /// before [`Session::reset`].
    ///
    /// # Errors
    /// [`ExecError`] for a block that does not exist or was not used for the positions before, an
    /// `x` of another width, or too many positions.
    pub fn forward_from(&mut self, layer: usize, x: &[f32]) -> Result<(), ExecError> {
        let n = self.upload(layer..self.model.blocks.len(), x)?;
        match n {
            0 => Ok(()),
            n => self.blocks_and_norm(layer, n, &mut ()),
        }
    }

    /// The residual stream `out [n, width]` that `tokens` (at most [`Session::batch`]) begin with.
    /// Nothing is read; logits of the last batch are forgotten.
    ///
    /// # Errors
    /// [`ExecError`] for a token outside the vocabulary, too many tokens, or an `out` of another
    /// length.
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

    /// One block alone, on the residual stream `x [n, width]` of the `n` positions that come
    /// next (at most [`Session::batch`]). [`Session::reset`] before the same positions go
    /// through another block.
    ///
    /// # Errors
    /// [`ExecError`] for a block that does not exist or was not used for the positions before, an
    /// `x` of another width, or too many positions.
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

    /// What the head reads of positions (at most [`Session::batch`]), in the place of the residual stream
    /// `x [n, width]` behind the last block: the norm alone. No position is read; logits of the last
    /// batch are forgotten.
    ///
    /// # Errors
    /// [`ExecError`] for an `x` of another width, or too many positions.
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

    /// Embeds the tokens of a batch, for which there is room.
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

    /// Makes room for the next positions in front of some blocks and puts `x` there; the number of
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

    /// The blocks from `first` on, the norm behind the last, and the count of the positions.
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

    /// The norm behind the last block, of the `n` rows of the residual stream.
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

    /// Whether `n` positions more are rotated as those before.
    fn check_context(&self, n: usize) -> Result<(), ExecError> {
        let (_, limit) = self.model.rope.global(self.context);
        let found = self.kv.len().saturating_add(n);
        if found > limit {
            Err(ExecError::Context { found, limit })
        } else {
            Ok(())
        }
    }

    /// Makes room for `n` positions more, to be read by some blocks.
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

    /// What operations of the last batch have yet to say. Where one of them failed, the batch is taken back. It is asked in front of
    /// whatever builds on that batch, so that no other is to blame.
    pub(super) fn settle(&mut self) -> Result<(), ExecError> {
        let settled = self.backend.settle();
        if settled.is_err() {
            let before = self.kv.len().saturating_sub(self.rows);
            // Where positions are compressed or gone that came after it, nothing can be kept.
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

    /// Borrows two different registers.
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

    /// Borrows a register and the rotation of layers with or without a window.
    fn with_rotation(&mut self, register: Register, local: bool) -> (&mut B::Buffer, &B::Rotation) {
        let rotation = if local {
            &self.local_rotation
        } else {
            &self.rotation
        };
        (&mut self.registers[register as usize], rotation)
    }

    /// Borrows a register and the scratch space of projections.
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
