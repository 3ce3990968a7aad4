//! The forward pass on any [`Backend`], for prefill (many positions at once) and decode (one
//! position), of one sequence ([`Session`]) or several ([`Engine`]).

mod adapted;
mod block;
mod engine;
mod experts;
mod follow;
mod logits;
mod project;
mod prompt;
mod runner;
mod sequence;
mod tap;
mod verify;

use std::ops::Range;
use std::sync::Arc;

use htc_formats::model::Register;
use htc_kernels::ShapeError;

use crate::backend::{Backend, Cpu};
use crate::dial::{ActiveFraction, ActiveSetting};
use crate::error::{ExecError, Result};
use crate::kv::{KvBases, KvOptions, KvType};
use crate::linear::RankFraction;
use crate::model::Model;

pub(crate) use adapted::{Adapted, AdaptedLayer, Correction};
pub use engine::{Chunk, Engine, LogitRows, SequenceId};
pub use experts::expert_weights;
use runner::{Buffers, Runner};
use sequence::{Part, Sequence, SequencePlan};
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
    runner: Runner<B>,
    sequence: Sequence<B>,
    /// Largest number of positions of a pass.
    pass_limit: usize,
    followed: Option<follow::Followed>,
    /// Selected logits of the last row.
    largest: Vec<(u32, f32)>,
    /// Rows of the last batch.
    rows: usize,
}

impl<B: Backend> Session<B> {
    /// Creates an empty session of at most `context` positions. Only LongRoPE models depend on
    /// `context`: they rotate accordingly and refuse more.
    ///
    /// The backend must be on the device that the model was [loaded](Model::load) to.
    ///
    /// # Errors
    /// [`ExecError`] if memory runs out.
    pub fn new(model: impl Into<Arc<Model<B>>>, backend: B, context: usize) -> Result<Self> {
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
    ) -> Result<Self> {
        Session::with_kv(model, backend, context, &KvOptions::new(kv_type), None)
    }

    /// As [`Session::new`], with KV cache `options`. Low-rank kinds need the model's `bases`
    /// ([`Model::kv_bases`]), others ignore them.
    ///
    /// # Errors
    /// [`ExecError`] for options that do not fit the model, for missing or foreign bases, and if
    /// memory runs out.
    pub fn with_kv(
        model: impl Into<Arc<Model<B>>>,
        backend: B,
        context: usize,
        options: &KvOptions,
        bases: Option<Arc<KvBases>>,
    ) -> Result<Self> {
        let model = model.into();
        let plan = SequencePlan::new(&model, options, bases)?;
        Session::with_plan(model, backend, context, &plan)
    }

    fn with_plan(
        model: Arc<Model<B>>,
        mut backend: B,
        context: usize,
        plan: &SequencePlan,
    ) -> Result<Self> {
        let sequence = plan.sequence(&mut backend)?;
        Ok(Session {
            runner: Runner::new(model, backend, context),
            sequence,
            pass_limit: plan.pass_limit(),
            followed: None,
            largest: Vec::new(),
            rows: 0,
        })
    }

    /// Returns the model.
    pub fn model(&self) -> &Arc<Model<B>> {
        &self.runner.model
    }

    /// Returns the largest batch of [`Session::forward`]: [`BATCH`], or less for very wide models.
    pub fn batch(&self) -> usize {
        self.runner.batch().min(self.pass_limit)
    }

    /// Returns the largest number of positions: the model's context, or the original context if
    /// LongRoPE rotates a short sequence.
    pub fn limit(&self) -> usize {
        self.runner.limit()
    }

    /// Returns the number of positions read.
    pub fn position(&self) -> usize {
        self.sequence.position()
    }

    /// Returns the KV cache.
    pub fn kv(&self) -> &B::Kv {
        &self.sequence.kv
    }

    /// Uses only the leading share of every factorised projection's rank from now on.
    pub fn set_rank_fraction(&mut self, rank: RankFraction) {
        self.runner.setting.rank = rank;
    }

    /// Limits the active fraction of weight bytes per token from now on; returns the new setting.
    /// Stored keys and values are unchanged.
    ///
    /// # Errors
    /// [`ExecError::FractionBelow`] if below the model's minimum; the setting is then unchanged.
    pub fn set_fraction(&mut self, fraction: ActiveFraction) -> Result<ActiveSetting> {
        self.runner.setting = self.runner.model.dial().setting_for(fraction)?;
        Ok(self.runner.setting)
    }

    /// Returns the current setting.
    pub fn setting(&self) -> ActiveSetting {
        self.runner.setting
    }

    /// Applies a setting from now on.
    pub fn set(&mut self, setting: ActiveSetting) {
        self.runner.setting = setting;
    }

    /// Clears the sequence.
    pub fn reset(&mut self) {
        // Errors of the old sequence are obsolete.
        let _ = self.runner.backend.settle();
        self.sequence.truncate(0);
        self.rows = 0;
    }

    /// Keeps the first `positions` positions, and forgets later ones and the last logits, as if
    /// never read. Compressed positions stay compressed, in the current bases; 0 is
    /// [`Session::reset`].
    ///
    /// # Errors
    /// [`ExecError::Truncate`] if fewer were read, and [`ExecError::Evicted`] if earlier positions were
    /// evicted; the sequence is then unchanged.
    pub fn truncate(&mut self, positions: usize) -> Result<()> {
        self.sequence.check_truncate(positions)?;
        // Errors of dropped positions are obsolete; those of earlier ones were checked.
        if positions < self.sequence.position() {
            let _ = self.runner.backend.settle();
        }
        self.sequence.truncate(positions);
        self.rows = 0;
        Ok(())
    }

    /// Reads `tokens` (at most [`Session::batch`]).
    ///
    /// # Errors
    /// [`ExecError`] for a token outside the vocabulary or too many tokens; the sequence is then
    /// unchanged.
    pub fn forward(&mut self, tokens: &[u32]) -> Result<()> {
        self.forward_with(tokens, &mut ())
    }

    /// As [`Session::forward`], with a tap on activations.
    ///
    /// # Errors
    /// As [`Session::forward`].
    pub fn forward_with(&mut self, tokens: &[u32], tap: &mut dyn Tap) -> Result<()> {
        let n = tokens.len();
        self.runner.check_tokens(tokens)?;
        self.prepare(n, 0..self.runner.model.blocks.len())?;
        if n == 0 {
            return Ok(());
        }
        self.runner.embed(tokens)?;
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
    pub fn forward_from(&mut self, layer: usize, x: &[f32]) -> Result<()> {
        let n = self.upload(layer..self.runner.model.blocks.len(), x)?;
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
    pub fn embed(&mut self, tokens: &[u32], out: &mut [f32]) -> Result<()> {
        let numbers = tokens.len() * self.runner.model.hyper().width;
        expect_length(numbers, out.len())?;
        self.runner.check_tokens(tokens)?;
        self.check_batch(tokens.len())?;
        self.rows = 0;
        self.runner
            .backend
            .resize(&mut self.runner.buffers[Register::Residual], numbers)?;
        self.runner.embed(tokens)?;
        out.copy_from_slice(self.runner.read(Register::Residual, numbers)?);
        Ok(())
    }

    /// Executes one block on the residual stream `x [n, width]` of the next `n` positions (at most
    /// [`Session::batch`]). Call [`Session::reset`] before passing the same positions through
    /// another block.
    ///
    /// # Errors
    /// [`ExecError`] for a block that does not exist or missed earlier positions, a wrong length of
    /// `x`, or too many positions.
    pub fn block(&mut self, layer: usize, x: &mut [f32], tap: &mut dyn Tap) -> Result<()> {
        let n = self.upload(layer..layer.saturating_add(1), x)?;
        if n == 0 {
            return Ok(());
        }
        let parts = &mut [part(&mut self.sequence, n)];
        self.runner.block(layer, n, parts, tap)?;
        x.copy_from_slice(self.runner.read(Register::Residual, x.len())?);
        self.sequence.advance(n, layer..layer + 1);
        Ok(())
    }

    /// Replaces the residual stream `x [n, width]` after the last block by the head's input:
    /// applies the last norm. Reads no positions; forgets the last logits.
    ///
    /// # Errors
    /// [`ExecError`] for a wrong length of `x`, or too many positions.
    pub fn head_input(&mut self, x: &mut [f32]) -> Result<()> {
        let width = self.runner.model.hyper().width;
        let n = x.len() / width.max(1);
        expect_length(n * width, x.len())?;
        self.check_batch(n)?;
        self.rows = 0;
        let runner = &mut self.runner;
        let (backend, b) = (&mut runner.backend, &mut runner.buffers);
        backend.resize(&mut b[Register::Residual], x.len())?;
        backend.resize(&mut b[Register::Normed], x.len())?;
        if n == 0 {
            return Ok(());
        }
        backend.upload(x, &mut b[Register::Residual])?;
        self.runner.norm(n)?;
        x.copy_from_slice(self.runner.read(Register::Normed, x.len())?);
        Ok(())
    }

    /// Prepares the next positions for some blocks and uploads `x`; returns the number of
    /// positions.
    fn upload(&mut self, blocks: Range<usize>, x: &[f32]) -> Result<usize> {
        let (width, layers) = (
            self.runner.model.hyper().width,
            self.runner.model.blocks.len(),
        );
        let n = x.len() / width.max(1);
        if blocks.start >= layers {
            let layer = blocks.start;
            return Err(ExecError::Layer { layer, layers });
        }
        expect_length(n * width, x.len())?;
        self.prepare(n, blocks)?;
        self.runner
            .backend
            .upload(x, &mut self.runner.buffers[Register::Residual])?;
        Ok(n)
    }

    /// Executes the blocks from `first` on and the last norm, and counts the positions.
    fn blocks_and_norm(&mut self, first: usize, n: usize, tap: &mut dyn Tap) -> Result<()> {
        let parts = &mut [part(&mut self.sequence, n)];
        self.runner.blocks_and_norm(first, n, parts, tap)?;
        self.sequence
            .advance(n, first..self.runner.model.blocks.len());
        self.rows = n;
        Ok(())
    }

    fn check_batch(&self, n: usize) -> Result<()> {
        let limit = self.batch();
        if n > limit {
            Err(ExecError::Batch { found: n, limit })
        } else {
            Ok(())
        }
    }

    /// Checks that `n` more positions are rotated like those before.
    fn check_context(&self, n: usize) -> Result<()> {
        let (_, limit) = self.runner.model.rope.global(self.runner.context);
        let found = self.sequence.position().saturating_add(n);
        if found > limit {
            Err(ExecError::Context { found, limit })
        } else {
            Ok(())
        }
    }

    /// Reserves memory for `n` more positions in some blocks.
    fn prepare(&mut self, n: usize, blocks: Range<usize>) -> Result<()> {
        self.check_batch(n)?;
        self.check_context(n)?;
        self.settle()?;
        self.sequence.check_blocks(&blocks)?;
        self.rows = 0;
        let parts = &mut [part(&mut self.sequence, n)];
        self.runner.prepare(n, parts, blocks)
    }

    /// Returns pending errors of the last batch and removes that batch on failure. Called before
    /// any operation on the batch, so that errors are attributed correctly.
    pub(super) fn settle(&mut self) -> Result<()> {
        let settled = self.runner.backend.settle();
        if settled.is_err() {
            let before = self.sequence.position().saturating_sub(self.rows);
            // Later compressed or evicted positions make the sequence unusable.
            if self.truncate(before).is_err() {
                self.reset();
            }
        }
        settled
    }
}

/// Returns a batch of `n` rows of one sequence.
fn part<B: Backend>(sequence: &mut Sequence<B>, n: usize) -> Part<'_, B> {
    Part {
        sequence,
        rows: 0..n,
    }
}

fn expect_length(expected: usize, found: usize) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(ExecError::Shape(ShapeError {
        argument: "x (numbers)",
        expected,
        actual: found,
    }))
}
