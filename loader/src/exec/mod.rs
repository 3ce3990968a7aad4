//! The forward pass: one for prefill (many positions at once) and decode (one position).

mod project;

use htc_formats::model::{Activation, RopePairs, Slot};
use htc_kernels::{Pool, cpu};

use crate::error::ExecError;
use crate::kv::{KvCache, KvType};
use crate::linear::RankFraction;
use crate::model::Model;
use project::{Output, Workspace, project};

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

/// Cosines and sines `[n, rotated pairs]` of the positions of a batch.
#[derive(Default)]
struct Rotation {
    pairs: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
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
        let hyper = self.model.hyper();
        let limit = self.batch();
        if tokens.len() > limit {
            let found = tokens.len();
            return Err(ExecError::Batch { found, limit });
        }
        if tokens.is_empty() {
            self.rows = 0;
            return Ok(());
        }
        if let Some(&token) = tokens
            .iter()
            .find(|&&token| token as usize >= hyper.vocabulary)
        {
            return Err(ExecError::Token {
                token,
                vocabulary: hyper.vocabulary,
            });
        }
        let found = self.kv.len() + tokens.len();
        let (_, limit) = self.model.rope.global(self.context);
        if found > limit {
            return Err(ExecError::Context { found, limit });
        }
        self.kv.reserve(tokens.len());
        self.blocks(tokens)?;
        self.kv.advance(tokens.len());
        self.rows = tokens.len();
        Ok(())
    }

    fn blocks(&mut self, tokens: &[u32]) -> Result<(), ExecError> {
        let (model, pool, hyper) = (self.model, self.pool, self.model.hyper());
        let (n, width, start) = (tokens.len(), hyper.width, self.kv.len());
        let q_width = hyper.heads * hyper.head_size;
        let kv_width = hyper.kv_heads * hyper.head_size;
        let buffers = &mut self.buffers;
        buffers.resize(n, width, q_width, kv_width, hyper.ffn);
        let (frequencies, _) = model.rope.global(self.context);
        let factor = model.rope.factor;
        buffers.rotation.fill(start, n, frequencies, factor);
        if let Some(frequencies) = model.rope.local() {
            buffers.local_rotation.fill(start, n, frequencies, factor);
        }

        let embedding = model.embedding.matrix()?;
        for (row, &token) in buffers.x.chunks_exact_mut(width).zip(tokens) {
            cpu::embed(embedding, token as usize, row)?;
        }
        if let Some(factor) = hyper.forward.embedding_scale {
            cpu::scale(pool, &mut buffers.x, factor);
        }
        for (index, layer) in model.layers.iter().enumerate() {
            let b = &mut *buffers;
            let norm = |x: &[f32], weight: &[f32], out: &mut [f32]| {
                cpu::rms_norm(pool, x, weight, hyper.norm_epsilon, out)
            };
            let norm_in_place = |x: &mut [f32], weight: Option<&Vec<f32>>| match weight {
                Some(weight) => cpu::rms_norm_in_place(pool, x, weight, hyper.norm_epsilon),
                None => Ok(()),
            };
            let add_bias = |slot: Slot, y: &mut [f32]| match layer.bias(slot) {
                Some(bias) => cpu::add_bias(pool, y, bias),
                None => Ok(()),
            };
            norm(&b.x, &layer.attention_norm, &mut b.normed)?;
            project(
                pool,
                n,
                &b.normed,
                layer.qkv_basis.as_ref(),
                self.rank,
                &mut [
                    Output::new(&layer.q, &mut b.q),
                    Output::new(&layer.k, &mut b.k),
                    Output::new(&layer.v, &mut b.v),
                ],
                &mut b.workspace,
            )?;
            add_bias(Slot::Q, &mut b.q)?;
            add_bias(Slot::K, &mut b.k)?;
            add_bias(Slot::V, &mut b.v)?;
            norm_in_place(&mut b.q, layer.query_norm.as_ref())?;
            norm_in_place(&mut b.k, layer.key_norm.as_ref())?;
            let rotation = match layer.local_rope {
                true => &b.local_rotation,
                false => &b.rotation,
            };
            let pairs = hyper.forward.rope_pairs;
            rotation.apply(pairs, &mut b.q, q_width, hyper.head_size)?;
            rotation.apply(pairs, &mut b.k, kv_width, hyper.head_size)?;
            self.kv.append(index, &b.k, &b.v)?;
            let (kv, scratch) = (self.kv.view(index)?, &mut b.workspace.scratch);
            let (attention, out) = (&layer.attention, &mut b.attended);
            if n == 1 {
                cpu::attention_decode(pool, &b.q, &kv, start + 1, attention, scratch, out)?;
            } else {
                cpu::attention_prefill(pool, &b.q, n, start, &kv, attention, scratch, out)?;
            }
            project(
                pool,
                n,
                &b.attended,
                None,
                self.rank,
                &mut [Output::new(&layer.o, &mut b.delta)],
                &mut b.workspace,
            )?;
            add_bias(Slot::O, &mut b.delta)?;
            norm_in_place(&mut b.delta, layer.post_attention_norm.as_ref())?;
            cpu::add_assign(pool, &mut b.x, &b.delta)?;

            norm(&b.x, &layer.ffn_norm, &mut b.normed)?;
            project(
                pool,
                n,
                &b.normed,
                layer.gate_up_basis.as_ref(),
                self.rank,
                &mut [
                    Output::new(&layer.gate, &mut b.gate),
                    Output::new(&layer.up, &mut b.up),
                ],
                &mut b.workspace,
            )?;
            add_bias(Slot::Gate, &mut b.gate)?;
            add_bias(Slot::Up, &mut b.up)?;
            match hyper.forward.activation {
                Activation::Silu => cpu::silu_mul(pool, &mut b.gate, &b.up)?,
                Activation::GeluTanh => cpu::gelu_mul(pool, &mut b.gate, &b.up)?,
            }
            project(
                pool,
                n,
                &b.gate,
                None,
                self.rank,
                &mut [Output::new(&layer.down, &mut b.delta)],
                &mut b.workspace,
            )?;
            add_bias(Slot::Down, &mut b.delta)?;
            norm_in_place(&mut b.delta, layer.post_ffn_norm.as_ref())?;
            cpu::add_assign(pool, &mut b.x, &b.delta)?;
        }
        std::mem::swap(&mut buffers.x, &mut buffers.normed);
        cpu::rms_norm(
            pool,
            &buffers.normed,
            &model.output_norm,
            hyper.norm_epsilon,
            &mut buffers.x,
        )
        .map_err(ExecError::from)
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

impl Rotation {
    /// The positions from `start` on. The angles are float64: at position 100,000 a float32
    /// angle is off by 0.004 radians.
    fn fill(&mut self, start: usize, n: usize, frequencies: &[f64], factor: f32) {
        self.pairs = frequencies.len();
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

    /// Rotates every head of rows of `width` numbers.
    fn apply(
        &self,
        pairs: RopePairs,
        x: &mut [f32],
        width: usize,
        head_size: usize,
    ) -> Result<(), ExecError> {
        let rotate = match pairs {
            RopePairs::Adjacent => cpu::rope_adjacent,
            RopePairs::Halves => cpu::rope_halves,
        };
        let (cos, sin) = (
            self.cos.chunks_exact(self.pairs),
            self.sin.chunks_exact(self.pairs),
        );
        for ((row, cos), sin) in x.chunks_exact_mut(width).zip(cos).zip(sin) {
            rotate(row, head_size, cos, sin)?;
        }
        Ok(())
    }
}
