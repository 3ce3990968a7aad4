//! Several sequences in one forward pass.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use htc_formats::model::Register;

use super::{Part, Runner, Sequence, SequencePlan};
use crate::backend::{Backend, Cpu};
use crate::dial::ActiveSetting;
use crate::error::{ExecError, Result};
use crate::kv::{KvOptions, KvUsage};
use crate::model::Model;

/// Identifier of a sequence, never used again by the same [`Engine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(u64);

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Rows of a chunk whose logits are returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogitRows {
    /// None, for the beginning of a prompt.
    None,
    /// The last row.
    #[default]
    Last,
    /// All rows.
    All,
}

/// The next tokens of a sequence: one while it is generated, several of a prompt.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// The sequence.
    pub sequence: SequenceId,
    /// Tokens, at least one.
    pub tokens: &'a [u32],
    /// Rows whose logits are returned.
    pub logits: LogitRows,
}

/// Executes a model for several sequences at a time.
///
/// A pass reads chunks of different sequences, each after the sequence's earlier positions, and
/// passes over the weights once. Logits, keys and values are those of single steps, bit for bit:
/// they depend neither on the other sequences nor on the lengths of chunks, unless the KV cache
/// compresses positions after each pass. A [`Session`](super::Session) is faster for one long
/// prompt, because it may add in another order.
///
/// ```
/// # use std::sync::Arc;
/// # use htc_loader::exec::{Chunk, Engine, LogitRows};
/// # use htc_loader::kv::{KvOptions, KvType};
/// # use htc_loader::{Cpu, Model};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo/reference-7m-f16.gguf");
/// let model = Arc::new(Model::open(path)?);
/// let mut engine = Engine::new(model, Cpu::with_threads(2)?, 512, &KvOptions::new(KvType::F16))?;
/// let (first, second) = (engine.add_sequence()?, engine.add_sequence()?);
/// let chunk = |sequence, tokens| Chunk { sequence, tokens, logits: LogitRows::Last };
/// let logits = engine.run(&[chunk(first, &[1, 2, 3]), chunk(second, &[1, 7])])?;
/// assert_eq!(logits.len(), 2);
/// # Ok(()) }
/// ```
pub struct Engine<B: Backend = Cpu> {
    runner: Runner<B>,
    plan: SequencePlan,
    sequences: BTreeMap<SequenceId, Sequence<B>>,
    next: u64,
}

impl<B: Backend> Engine<B> {
    /// Creates an engine for sequences of at most `context` positions, whose keys and values are
    /// stored according to `options`, in the bases of the model's file if needed.
    ///
    /// The backend must be on the device that the model was [loaded](Model::load) to.
    ///
    /// # Errors
    /// [`ExecError`] for options that do not fit the model, [`ExecError::Load`] for unreadable bases.
    pub fn new(
        model: impl Into<Arc<Model<B>>>,
        mut backend: B,
        context: usize,
        options: &KvOptions,
    ) -> Result<Self> {
        let model = model.into();
        let plan = SequencePlan::with_bases_of(&model, options)?;
        backend.set_batch_invariant(true);
        Ok(Engine {
            runner: Runner::new(model, backend, context),
            plan,
            sequences: BTreeMap::new(),
            next: 0,
        })
    }

    /// Returns the model.
    pub fn model(&self) -> &Arc<Model<B>> {
        &self.runner.model
    }

    /// Returns the largest number of tokens of a pass, in all chunks together.
    pub fn batch(&self) -> usize {
        self.runner.batch()
    }

    /// Returns the largest number of tokens of one chunk.
    pub fn chunk_limit(&self) -> usize {
        self.batch().min(self.plan.pass_limit())
    }

    /// Returns the largest number of positions of a sequence.
    pub fn limit(&self) -> usize {
        self.runner.limit().min(self.runner.context)
    }

    /// Returns the current setting of the active fraction.
    pub fn setting(&self) -> ActiveSetting {
        self.runner.setting
    }

    /// Applies a setting to all sequences from now on.
    pub fn set(&mut self, setting: ActiveSetting) {
        self.runner.setting = setting;
    }

    /// Adds an empty sequence.
    ///
    /// # Errors
    /// [`ExecError`] if memory runs out.
    pub fn add_sequence(&mut self) -> Result<SequenceId> {
        let sequence = self.plan.sequence(&mut self.runner.backend)?;
        Ok(self.insert(sequence))
    }

    /// Adds a copy of a sequence with the same positions.
    ///
    /// # Errors
    /// [`ExecError::Sequence`] for an unknown sequence; [`ExecError`] if memory runs out.
    pub fn fork(&mut self, id: SequenceId) -> Result<SequenceId> {
        let sequence = self.sequences.get(&id).ok_or(unknown(id))?;
        let copy = sequence.copied(&mut self.runner.backend)?;
        Ok(self.insert(copy))
    }

    /// Removes a sequence and frees its memory.
    ///
    /// # Errors
    /// [`ExecError::Sequence`] for an unknown sequence.
    pub fn remove_sequence(&mut self, id: SequenceId) -> Result<()> {
        self.sequences.remove(&id).map(drop).ok_or(unknown(id))
    }

    /// Returns the sequences in the order in which they were added.
    pub fn sequences(&self) -> impl Iterator<Item = SequenceId> {
        self.sequences.keys().copied()
    }

    /// Returns the number of positions that a sequence has read.
    ///
    /// # Errors
    /// [`ExecError::Sequence`] for an unknown sequence.
    pub fn position(&self, id: SequenceId) -> Result<usize> {
        Ok(self.sequence(id)?.position())
    }

    /// Returns the memory usage of a sequence's KV cache.
    ///
    /// # Errors
    /// [`ExecError::Sequence`] for an unknown sequence.
    pub fn kv_usage(&self, id: SequenceId) -> Result<KvUsage> {
        Ok(KvUsage::from_cache(&self.sequence(id)?.kv))
    }

    /// Keeps the first `positions` of a sequence and forgets later ones, as
    /// [`Session::truncate`](super::Session::truncate).
    ///
    /// # Errors
    /// [`ExecError::Sequence`] for an unknown sequence, [`ExecError::Truncate`] if it has fewer
    /// positions, and [`ExecError::Evicted`] if earlier positions were evicted; the sequence is then
    /// unchanged.
    pub fn truncate(&mut self, id: SequenceId, positions: usize) -> Result<()> {
        let sequence = self.sequence_mut(id)?;
        sequence.check_truncate(positions)?;
        sequence.truncate(positions);
        Ok(())
    }

    /// Ends the prompt of a sequence, as [`Session::end_prompt`](super::Session::end_prompt). Needed
    /// only for KV options that compress or evict positions.
    ///
    /// # Errors
    /// [`ExecError::Sequence`] for an unknown sequence; else as `Session::end_prompt`.
    pub fn end_prompt(&mut self, id: SequenceId) -> Result<()> {
        let sequence = self.sequences.get_mut(&id).ok_or(unknown(id))?;
        sequence.end_prompt(&mut self.runner.backend)
    }

    /// Reads all chunks in one pass; returns the logits `[rows, vocabulary]` of each, empty for
    /// [`LogitRows::None`].
    ///
    /// # Errors
    /// Before any work: [`ExecError::Sequence`] for an unknown sequence,
    /// [`ExecError::RepeatedSequence`] for two chunks of one, [`ExecError::EmptyChunk`],
    /// [`ExecError::Token`] for a token outside the vocabulary, [`ExecError::Batch`] for too many
    /// tokens, and [`ExecError::SequenceFull`] beyond the context. [`ExecError`] of the backend
    /// during the pass, as for keys out of range. No sequence has read any token in either case.
    pub fn run(&mut self, chunks: &[Chunk<'_>]) -> Result<Vec<&[f32]>> {
        let rows = self.check(chunks)?;
        let n = rows.values().map(|rows| rows.end).max().unwrap_or(0);
        if n == 0 {
            return Ok(Vec::new());
        }
        let tokens: Vec<u32> = chunks
            .iter()
            .flat_map(|chunk| chunk.tokens)
            .copied()
            .collect();
        let sequences = self.sequences.iter_mut();
        let mut parts: Vec<Part<'_, B>> = sequences
            .filter_map(|(id, sequence)| {
                let rows = rows.get(id)?.clone();
                Some(Part { sequence, rows })
            })
            .collect();
        parts.sort_by_key(|part| part.rows.start);
        let computed = pass(&mut self.runner, &tokens, &mut parts, &wanted_rows(chunks));
        // Also returns errors of operations that were begun before a failure.
        let settled = self.runner.backend.settle();
        let numbers = computed.and_then(|numbers| settled.map(|()| numbers))?;
        let (blocks, vocabulary) = (
            self.runner.model.blocks.len(),
            self.runner.model.hyper().vocabulary,
        );
        // No buffer exists before the first logits.
        let mut logits = match numbers {
            0 => &[],
            _ => self.runner.read_logits(numbers)?,
        };
        for Part { sequence, rows } in parts {
            sequence.advance(rows.len(), 0..blocks);
        }
        let of_chunk = |chunk: &Chunk<'_>| {
            let count = chunk.logit_rows(0).len() * vocabulary;
            let (own, rest) = logits.split_at(count);
            logits = rest;
            own
        };
        Ok(chunks.iter().map(of_chunk).collect())
    }

    fn insert(&mut self, sequence: Sequence<B>) -> SequenceId {
        let id = SequenceId(self.next);
        self.next += 1;
        self.sequences.insert(id, sequence);
        id
    }

    fn sequence(&self, id: SequenceId) -> Result<&Sequence<B>> {
        self.sequences.get(&id).ok_or(unknown(id))
    }

    fn sequence_mut(&mut self, id: SequenceId) -> Result<&mut Sequence<B>> {
        self.sequences.get_mut(&id).ok_or(unknown(id))
    }

    /// Checks a pass; returns the rows of each sequence.
    fn check(&self, chunks: &[Chunk<'_>]) -> Result<BTreeMap<SequenceId, Range<usize>>> {
        let mut all = BTreeMap::new();
        let mut n = 0_usize;
        for &Chunk {
            sequence: id,
            tokens,
            ..
        } in chunks
        {
            let sequence = self.sequence(id)?;
            if tokens.is_empty() {
                return Err(ExecError::EmptyChunk { sequence: id });
            }
            self.runner.check_tokens(tokens)?;
            let rows = n..n.saturating_add(tokens.len());
            for (found, limit) in [(tokens.len(), self.chunk_limit()), (rows.end, self.batch())] {
                if found > limit {
                    return Err(ExecError::Batch { found, limit });
                }
            }
            let (found, limit) = (sequence.position() + tokens.len(), self.limit());
            if found > limit {
                let sequence = id;
                return Err(ExecError::SequenceFull {
                    sequence,
                    found,
                    limit,
                });
            }
            n = rows.end;
            if all.insert(id, rows).is_some() {
                return Err(ExecError::RepeatedSequence { sequence: id });
            }
        }
        Ok(all)
    }
}

impl Chunk<'_> {
    /// Returns the rows whose logits are wanted, if the chunk begins at row `first` of the batch.
    fn logit_rows(&self, first: usize) -> Range<usize> {
        let end = first + self.tokens.len();
        match self.logits {
            LogitRows::None => end..end,
            LogitRows::Last => end - 1..end,
            LogitRows::All => first..end,
        }
    }
}

/// Returns the rows of a batch whose logits are wanted, as few ranges as possible.
fn wanted_rows(chunks: &[Chunk<'_>]) -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = Vec::new();
    let mut first = 0;
    for chunk in chunks {
        let rows = chunk.logit_rows(first);
        first += chunk.tokens.len();
        match all.last_mut() {
            _ if rows.is_empty() => {}
            Some(last) if last.end == rows.start => last.end = rows.end,
            _ => all.push(rows),
        }
    }
    all
}

/// Computes the logits of the `wanted` rows of a batch; returns their count.
fn pass<B: Backend>(
    runner: &mut Runner<B>,
    tokens: &[u32],
    parts: &mut [Part<'_, B>],
    wanted: &[Range<usize>],
) -> Result<usize> {
    let n = tokens.len();
    runner.prepare(n, parts, 0..runner.model.blocks.len())?;
    runner.embed(tokens)?;
    runner.blocks_and_norm(0, n, parts, &mut ())?;
    match wanted {
        [] => Ok(0),
        [rows] => runner.logits(Register::Normed, rows.clone()),
        _ => {
            let width = runner.model.hyper().width;
            let [normed, gathered] = runner.buffers.pair(Register::Normed, Register::Delta);
            let mut count = 0;
            for rows in wanted {
                let copied = runner
                    .backend
                    .copy_rows(width, normed, rows.clone(), gathered, count);
                copied?;
                count += rows.len();
            }
            runner.logits(Register::Delta, 0..count)
        }
    }
}

fn unknown(sequence: SequenceId) -> ExecError {
    ExecError::Sequence { sequence }
}
