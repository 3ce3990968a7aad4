//! Reading prompts, behind which keys and values are compressed and evicted.

use std::sync::Arc;

use super::Session;
use crate::backend::Backend;
use crate::error::ExecError;
use crate::kv::{KvBases, KvCounters, KvError, KvOptions, KvUsage};
use crate::model::Model;

impl<B: Backend> Session<B> {
    /// [`Session::with_kv`], with the bases that lie in the model's artifact where the kind needs any.
    ///
    /// # Errors
    /// As [`Session::with_kv`], [`ExecError::Load`] for bases that are unreadable.
    pub fn with_kv_of(
        model: impl Into<Arc<Model<B>>>,
        backend: B,
        context: usize,
        options: &KvOptions,
    ) -> Result<Self, ExecError> {
        let model = model.into();
        let bases = match options.kind.rank() {
            None => None,
            Some(_) => model
                .kv_bases()
                .map_err(|error| ExecError::Load(Box::new(error)))?,
        };
        let bases = bases.map(|bases| KvBases::try_from(&bases)).transpose()?;
        Session::with_kv(model, backend, context, options, bases.map(Arc::new))
    }

    /// Positions that the next pass of a prompt should take where `left` of it are left: at most
    /// [`Session::batch`]. Where the last queries of a pass decide what is kept, its last pass has
    /// enough of them, if the prompt has.
    pub fn next_pass(&self, left: usize) -> usize {
        let (batch, options) = (self.batch(), self.keeper.options());
        let decides = options.max_prompt_positions.is_some() || options.kind.rank().is_some();
        let rest = left.saturating_sub(batch);
        // Passes that were asked to be as short as the window stay as they are.
        let short =
            rest > 0 && rest < options.importance_window && batch > options.importance_window;
        if decides && short {
            left.div_ceil(2).min(batch)
        } else {
            left.min(batch)
        }
    }

    /// Reads a prompt, any number of tokens, pass after pass, and [ends](Session::end_prompt) it.
    ///
    /// # Errors
    /// [`ExecError`] as [`Session::forward`] and [`Session::end_prompt`].
    pub fn read_prompt(&mut self, tokens: &[u32]) -> Result<(), ExecError> {
        self.keeper.begin_prompt();
        self.read(tokens)?;
        self.end_prompt()
    }

    /// Says that a prompt was read to its end: positions are compressed as they are in front of the
    /// next pass, and evicted where [`KvOptions::max_prompt_positions`](crate::kv::KvOptions::max_prompt_positions) asks for that. Logits stay.
    ///
    /// # Errors
    /// [`ExecError::KvRange`] for a coordinate that float16 does not hold; [`ExecError`] of the
    /// backend.
    pub fn end_prompt(&mut self) -> Result<(), ExecError> {
        self.settle()?;
        let layers = self.held.clone();
        self.keeper
            .end_prompt(&mut self.backend, &mut self.kv, layers)
    }

    /// Reads `tokens`, any number of them, pass after pass.
    pub(super) fn read(&mut self, tokens: &[u32]) -> Result<(), ExecError> {
        let mut rest = tokens;
        while !rest.is_empty() {
            let (pass, others) = rest.split_at(self.next_pass(rest.len()));
            self.forward(pass)?;
            rest = others;
        }
        Ok(())
    }

    /// What the keys and values hold and take.
    pub fn kv_usage(&self) -> KvUsage {
        KvUsage::from_cache(&self.kv)
    }

    /// What was done to keys and values since the sequence began.
    pub fn kv_counters(&self) -> &KvCounters {
        self.keeper.counters()
    }

    /// Whether positions that were foreseen have the bits of single steps here, as they have but for kinds that compress
    /// in front of a pass what earlier ones have read.
    pub(crate) fn check_foreseen(&self) -> Result<(), KvError> {
        let kind = self.keeper.options().kind;
        match kind.rank() {
            Some(_) => Err(KvError::VerifyUnsupported {
                kind: kind.to_string(),
            }),
            None => Ok(()),
        }
    }
}
