//! Prompt reading, followed by compression and eviction of keys and values.

use std::sync::Arc;

use super::{SequencePlan, Session};
use crate::backend::Backend;
use crate::error::{ExecError, Result};
use crate::kv::{KvCounters, KvOptions, KvUsage};
use crate::model::Model;

impl<B: Backend> Session<B> {
    /// As [`Session::with_kv`], with the bases of the model's artifact if needed.
    ///
    /// # Errors
    /// As [`Session::with_kv`]; [`ExecError::Load`] for unreadable bases.
    pub fn with_kv_of(
        model: impl Into<Arc<Model<B>>>,
        backend: B,
        context: usize,
        options: &KvOptions,
    ) -> Result<Self> {
        let model = model.into();
        let plan = SequencePlan::with_bases_of(&model, options)?;
        Session::with_plan(model, backend, context, &plan)
    }

    /// Returns the size of the next batch of a prompt with `left` tokens left, at most
    /// [`Session::batch`]. If eviction depends on the last queries, the last batch has enough of
    /// them, if the prompt has.
    pub fn next_pass(&self, left: usize) -> usize {
        let (batch, options) = (self.batch(), self.sequence.policy.options());
        let decides = options.max_prompt_positions.is_some() || options.kind.rank().is_some();
        let rest = left.saturating_sub(batch);
        // Batches as short as the window stay as they are.
        let short =
            rest > 0 && rest < options.importance_window && batch > options.importance_window;
        if decides && short {
            left.div_ceil(2).min(batch)
        } else {
            left.min(batch)
        }
    }

    /// Reads a prompt of any length in batches, and [ends](Session::end_prompt) it.
    ///
    /// # Errors
    /// As [`Session::forward`] and [`Session::end_prompt`].
    pub fn read_prompt(&mut self, tokens: &[u32]) -> Result<()> {
        self.sequence.policy.begin_prompt();
        self.read(tokens)?;
        self.end_prompt()
    }

    /// Ends a prompt: compresses positions as before the next batch, and evicts according to
    /// [`KvOptions::max_prompt_positions`]. Logits stay valid.
    ///
    /// # Errors
    /// [`ExecError::KvRange`] for a coordinate outside float16's range; [`ExecError`] of the
    /// backend.
    pub fn end_prompt(&mut self) -> Result<()> {
        self.settle()?;
        self.sequence.end_prompt(&mut self.runner.backend)
    }

    pub(super) fn read(&mut self, tokens: &[u32]) -> Result<()> {
        let mut rest = tokens;
        while !rest.is_empty() {
            let (pass, others) = rest.split_at(self.next_pass(rest.len()));
            self.forward(pass)?;
            rest = others;
        }
        Ok(())
    }

    /// Returns the memory usage of the KV cache.
    pub fn kv_usage(&self) -> KvUsage {
        KvUsage::from_cache(&self.sequence.kv)
    }

    /// Returns counters of compression and eviction.
    pub fn kv_counters(&self) -> &KvCounters {
        self.sequence.policy.counters()
    }

    /// Checks that verified batches are bitwise identical to single steps, as they are not with
    /// kinds that compress between batches.
    pub(crate) fn check_can_verify(&self) -> Result<()> {
        let kind = self.sequence.policy.options().kind;
        match kind.rank() {
            Some(_) => Err(ExecError::VerifyUnsupported {
                kind: kind.to_string(),
            }),
            None => Ok(()),
        }
    }
}
