//! State of one sequence: what its earlier positions left behind.

use std::ops::Range;
use std::sync::Arc;

use crate::backend::Backend;
use crate::error::{ExecError, Result};
use crate::kv::{Kv, KvBases, KvCachePolicy, KvOptions, KvPlan};
use crate::model::Model;

/// Positions of a sequence. Recurrent state of future steps belongs here: it is truncated and
/// copied with the KV cache.
pub(super) struct Sequence<B: Backend> {
    pub kv: B::Kv,
    pub policy: KvCachePolicy,
    /// Blocks that the KV cache covers for all positions.
    pub blocks: Range<usize>,
}

/// Consecutive rows of a batch that belong to one sequence.
pub(super) struct Part<'a, B: Backend> {
    pub sequence: &'a mut Sequence<B>,
    pub rows: Range<usize>,
}

/// What sequences of a model begin with.
pub(super) struct SequencePlan {
    options: KvOptions,
    plan: KvPlan,
    bases: Option<Arc<KvBases>>,
    is_sliding_window: Vec<bool>,
}

impl SequencePlan {
    pub fn new<B: Backend>(
        model: &Model<B>,
        options: &KvOptions,
        bases: Option<Arc<KvBases>>,
    ) -> Result<Self> {
        let windows = model.blocks.iter().map(|block| {
            block
                .attention()
                .is_some_and(|step| step.attention.window.is_some())
        });
        Ok(SequencePlan {
            options: *options,
            plan: KvPlan::new(model.hyper().into(), options, bases.as_deref())?,
            bases,
            is_sliding_window: windows.collect(),
        })
    }

    /// As [`SequencePlan::new`], with the bases of the model's file if needed.
    pub fn with_bases_of<B: Backend>(model: &Model<B>, options: &KvOptions) -> Result<Self> {
        let bases = match options.kind.rank() {
            None => None,
            Some(_) => model
                .kv_bases()
                .map_err(|error| ExecError::Load(Box::new(error)))?,
        };
        let bases = bases.map(|bases| KvBases::try_from(&bases)).transpose()?;
        SequencePlan::new(model, options, bases.map(Arc::new))
    }

    /// Returns the largest number of positions of a sequence in one pass.
    pub fn pass_limit(&self) -> usize {
        self.options.max_pass_positions.unwrap_or(usize::MAX)
    }

    /// Creates an empty sequence.
    pub fn sequence<B: Backend>(&self, backend: &mut B) -> Result<Sequence<B>> {
        let (bases, windows) = (self.bases.as_deref(), self.is_sliding_window.clone());
        Ok(Sequence {
            kv: backend.kv(&self.plan)?,
            policy: KvCachePolicy::new(self.options, &self.plan, bases, windows),
            blocks: 0..0,
        })
    }
}

impl<B: Backend> Sequence<B> {
    pub fn position(&self) -> usize {
        self.kv.len()
    }

    /// Returns true if heads get a Hadamard transform before storage.
    pub fn is_rotated(&self) -> bool {
        self.policy.is_rotated()
    }

    /// Returns a copy with the same positions.
    pub fn copied(&self, backend: &mut B) -> Result<Self> {
        Ok(Sequence {
            kv: self.kv.copied(backend)?,
            policy: self.policy.clone(),
            blocks: self.blocks.clone(),
        })
    }

    /// Checks that `blocks` have read all earlier positions.
    pub fn check_blocks(&self, blocks: &Range<usize>) -> Result<()> {
        let read = &self.blocks;
        if self.position() > 0 && (blocks.start < read.start || blocks.end > read.end) {
            return Err(ExecError::Blocks {
                requested: blocks.clone(),
                read: read.clone(),
            });
        }
        Ok(())
    }

    /// Checks that the first `positions` can be kept.
    pub fn check_truncate(&self, positions: usize) -> Result<()> {
        let found = self.position();
        if positions > found {
            let requested = positions;
            return Err(ExecError::Truncate { requested, found });
        }
        self.policy.check_truncate(positions)
    }

    /// Keeps the first `positions`, which were [checked](Sequence::check_truncate).
    pub fn truncate(&mut self, positions: usize) {
        if positions == 0 {
            self.policy.reset();
        }
        self.kv.truncate(positions);
    }

    /// Counts `n` positions that `blocks` have read.
    pub fn advance(&mut self, n: usize, blocks: Range<usize>) {
        self.kv.advance(n);
        self.policy.record_pass(n);
        self.blocks = blocks;
    }

    /// Compresses and evicts positions after a prompt.
    pub fn end_prompt(&mut self, backend: &mut B) -> Result<()> {
        let blocks = self.blocks.clone();
        self.policy.end_prompt(backend, &mut self.kv, blocks)
    }
}
