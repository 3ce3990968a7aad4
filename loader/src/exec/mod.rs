//! The forward pass: one for prefill (many positions at once) and decode (one position).

mod block;
mod project;
mod rotation;
mod tap;

use htc_kernels::{Pool, ShapeError, cpu};

use crate::error::ExecError;
use crate::kv::{KvCache, KvType};
use crate::linear::RankFraction;
use crate::model::Model;
use project::Workspace;
use rotation::Rotation;

pub use tap::{Point, Tap};

/// Positions that one call of [`Session::forward`] takes at most.
pub const BATCH: usize = 512;

/// Numbers in one activation buffer at most, where a single position does not need more: a file
/// may claim any width.
const BUFFER: usize = 1 << 24;

/// A sequence being read or written by a model.
pub struct Session<'m> {
    model: &'m Model,
    pool: &'m Pool,
    kv: KvCache,
    /// Positions that were announced.
    context: usize,
    rank: RankFraction,
    buffers: Buffers,
    /// Rows of the last batch.
    rows: usize,
}

/// Activations of one batch, row by row; their memory is kept from batch to batch.
#[derive(Default)]
struct Buffers {
    /// Residual stream `[n, width]`; after the forward pass, normed for the output.
    x: Vec<f32>,
    normed: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    attended: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    /// What a block adds to the residual stream.
    delta: Vec<f32>,
    rotation: Rotation,
    /// That of layers with a window, where it is another.
    local_rotation: Rotation,
    logits: Vec<f32>,
    workspace: Workspace,
}

impl<'m> Session<'m> {
    /// An empty sequence that will have at most `context` positions. Models with LongRoPE
    /// rotate by it, and refuse more; to others it means nothing.
    pub fn new(model: &'m Model, pool: &'m Pool, context: usize) -> Self {
        Session::with_kv_type(model, pool, context, KvType::default())
    }

    /// An empty sequence whose keys and values are stored as `kv_type`.
    pub fn with_kv_type(model: &'m Model, pool: &'m Pool, context: usize, kv_type: KvType) -> Self {
        Session {
            model,
            pool,
            context,
            kv: KvCache::new(model.hyper(), kv_type),
            rank: RankFraction::FULL,
            buffers: Buffers::default(),
            rows: 0,
        }
    }

    /// The model that is executed.
    pub fn model(&self) -> &'m Model {
        self.model
    }

    /// Positions that [`Session::forward`] takes at most: [`BATCH`], or fewer where the model is
    /// so wide that the buffers would be out of proportion.
    pub fn batch(&self) -> usize {
        let h = self.model.hyper();
        let widest = h.width.max(h.ffn).max(h.heads * h.head_size);
        (BUFFER / widest.max(1)).clamp(1, BATCH)
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

    /// The KV cache.
    pub fn kv(&self) -> &KvCache {
        &self.kv
    }

    /// Uses the leading share of every factorised slot's rank from now on.
    pub fn set_rank_fraction(&mut self, rank: RankFraction) {
        self.rank = rank;
    }

    /// Forgets the sequence.
    pub fn reset(&mut self) {
        self.kv.truncate(0);
        self.rows = 0;
    }

    /// Reads `tokens` (at most [`Session::batch`]) after what was read before.
    ///
    /// # Errors
    /// [`ExecError`] for a token outside the vocabulary or too many tokens; the sequence is
    /// then as before.
    pub fn forward(&mut self, tokens: &[u32]) -> Result<(), ExecError> {
        let (model, hyper) = (self.model, self.model.hyper());
        let n = tokens.len();
        self.check_tokens(tokens)?;
        self.prepare(n)?;
        if n == 0 {
            return Ok(());
        }
        let mut x = std::mem::take(&mut self.buffers.x);
        let embedded = self.embed(tokens, &mut x);
        self.buffers.x = x;
        embedded?;
        for layer in 0..model.layers.len() {
            self.block_of_batch(layer, n, &mut ())?;
        }
        let b = &mut self.buffers;
        std::mem::swap(&mut b.x, &mut b.normed);
        let (x, out) = (&b.normed, &mut b.x);
        cpu::rms_norm(self.pool, x, &model.output_norm, hyper.norm_epsilon, out)?;
        self.kv.advance(n);
        self.rows = n;
        Ok(())
    }

    /// The residual stream `out [n, width]` that `tokens` begin with.
    ///
    /// # Errors
    /// [`ExecError`] for a token outside the vocabulary or an `out` of another length.
    pub fn embed(&self, tokens: &[u32], out: &mut [f32]) -> Result<(), ExecError> {
        let hyper = self.model.hyper();
        expect_length(tokens.len() * hyper.width, out.len())?;
        self.check_tokens(tokens)?;
        let embedding = self.model.embedding.matrix()?;
        for (row, &token) in out.chunks_exact_mut(hyper.width).zip(tokens) {
            cpu::embed(embedding, token as usize, row)?;
        }
        if let Some(factor) = hyper.forward.embedding_scale {
            cpu::scale(self.pool, out, factor);
        }
        Ok(())
    }

    /// One block alone, on the residual stream `x [n, width]` of the `n` positions that come
    /// next (at most [`Session::batch`]). [`Session::reset`] before the same positions go
    /// through another block.
    ///
    /// # Errors
    /// [`ExecError`] for a block that does not exist, an `x` of another width, or too many
    /// positions.
    pub fn block(
        &mut self,
        layer: usize,
        x: &mut [f32],
        tap: &mut dyn Tap,
    ) -> Result<(), ExecError> {
        let hyper = self.model.hyper();
        let (n, layers) = (x.len() / hyper.width.max(1), self.model.layers.len());
        if layer >= layers {
            return Err(ExecError::Layer { layer, layers });
        }
        expect_length(n * hyper.width, x.len())?;
        self.prepare(n)?;
        self.buffers.x.copy_from_slice(x);
        self.block_of_batch(layer, n, tap)?;
        x.copy_from_slice(&self.buffers.x);
        self.kv.advance(n);
        Ok(())
    }

    fn check_tokens(&self, tokens: &[u32]) -> Result<(), ExecError> {
        let vocabulary = self.model.hyper().vocabulary;
        let outside = |&&token: &&u32| token as usize >= vocabulary;
        match tokens.iter().find(outside) {
            None => Ok(()),
            Some(&token) => Err(ExecError::Token { token, vocabulary }),
        }
    }

    /// Makes room for `n` positions more.
    fn prepare(&mut self, n: usize) -> Result<(), ExecError> {
        let hyper = self.model.hyper();
        let limit = self.batch();
        if n > limit {
            return Err(ExecError::Batch { found: n, limit });
        }
        let start = self.kv.len();
        let (frequencies, limit) = self.model.rope.global(self.context);
        if start + n > limit {
            let found = start + n;
            return Err(ExecError::Context { found, limit });
        }
        self.rows = 0;
        self.kv.reserve(n);
        let (buffers, factor) = (&mut self.buffers, self.model.rope.factor);
        let q_width = hyper.heads * hyper.head_size;
        let kv_width = hyper.kv_heads * hyper.head_size;
        buffers.resize(n, hyper.width, q_width, kv_width, hyper.ffn);
        buffers.rotation.fill(start, n, frequencies, factor);
        if let Some(frequencies) = self.model.rope.local() {
            buffers.local_rotation.fill(start, n, frequencies, factor);
        }
        Ok(())
    }

    /// Logits `[end - start, vocabulary]` of rows of the last batch.
    ///
    /// # Errors
    /// [`ExecError::Rows`] where the last batch does not have them.
    pub fn logits(&mut self, start: usize, end: usize) -> Result<&[f32], ExecError> {
        let hyper = self.model.hyper();
        if start > end || end > self.rows {
            return Err(ExecError::Rows {
                start,
                end,
                rows: self.rows,
            });
        }
        let n = end - start;
        let Buffers {
            x,
            logits,
            workspace,
            ..
        } = &mut self.buffers;
        logits.resize(n * hyper.vocabulary, 0.0);
        let x = &x[start * hyper.width..end * hyper.width];
        workspace.multiply(self.pool, self.model.output.matrix()?, n, x, logits)?;
        if let Some(cap) = hyper.forward.logit_softcap {
            cpu::softcap(self.pool, logits, cap);
        }
        Ok(logits)
    }

    /// Logits `[vocabulary]` after the last token read.
    ///
    /// # Errors
    /// [`ExecError::Rows`] where nothing was read.
    pub fn last_logits(&mut self) -> Result<&[f32], ExecError> {
        match self.rows {
            0 => Err(ExecError::Rows {
                start: 0,
                end: 1,
                rows: 0,
            }),
            rows => self.logits(rows - 1, rows),
        }
    }
}

impl Buffers {
    fn resize(&mut self, n: usize, width: usize, q_width: usize, kv_width: usize, ffn: usize) {
        for (buffer, row) in [
            (&mut self.x, width),
            (&mut self.normed, width),
            (&mut self.delta, width),
            (&mut self.q, q_width),
            (&mut self.attended, q_width),
            (&mut self.k, kv_width),
            (&mut self.v, kv_width),
            (&mut self.gate, ffn),
            (&mut self.up, ffn),
        ] {
            buffer.resize(n * row, 0.0);
        }
    }
}

fn expect_length(expected: usize, found: usize) -> Result<(), ExecError> {
    if expected == found {
        return Ok(());
    }
    Err(ExecError::Shape(ShapeError {
        what: "x (numbers)",
        expected,
        found,
    }))
}
