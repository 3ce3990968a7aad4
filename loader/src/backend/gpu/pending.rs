//! Operations deferred to be fused with the next one.
//!
//! | deferred | next operation | in one launch |
//! |---|---|---|
//! | `add` | `rms_norm` of the sum | sum and norm, deferred further |
//! | `rms_norm`, of a sum or not | `project`, `logits` of all its rows | sum, norm and quantisation |
//! | `activate` | `project` of its output | gate and quantisation |
//! | `add_bias`, `rms_norm_in_place`, `rope` of heads | the same operations, three buffers in all | all of them, deferred further ([`heads`](super::heads)) |
//! | these, or nothing | `append` | these, and the keys and values |
//! | the last part of `attention` | `project` of its output | joining of splits and quantisation |
//!
//! Any other operation first launches the deferred one, so at most one operation or chain of the
//! table is deferred and its effect is never missed. Its memory is kept alive. Results are bitwise
//! identical to separate launches.

use std::sync::Arc;

use htc_kernels::cuda::{Device, ops};

use super::heads::{Heads, Step};
use super::{Gpu, GpuVector, rows};
use crate::error::Result;

#[derive(Debug)]
pub(super) enum Pending<D: Device> {
    None,
    Add {
        numbers: usize,
        x: Arc<D::Memory>,
        y: Arc<D::Memory>,
    },
    /// `x += added`, if any, and `out` the norm of `x`.
    Norm {
        shape: ops::RowsShape,
        x: Arc<D::Memory>,
        added: Option<Arc<D::Memory>>,
        weight: Arc<D::Memory>,
        epsilon: f32,
        out: Arc<D::Memory>,
    },
    Gated {
        function: ops::GateActivation,
        numbers: usize,
        gate: Arc<D::Memory>,
        up: Arc<D::Memory>,
    },
    /// The last part of attention, and its output.
    Joined(ops::PartialAttention<D>, Arc<D::Memory>),
    /// Operations between projection and attention.
    Heads(Heads<D>),
}

impl<D: Device> Pending<D> {
    /// Returns the operation that a product reading its output can fuse.
    pub(super) fn producer(&self) -> Option<ops::PendingOperation<'_, D>> {
        match self {
            Pending::None | Pending::Add { .. } | Pending::Heads(_) => None,
            Pending::Norm {
                shape,
                x,
                added,
                weight,
                epsilon,
                out,
            } => Some(ops::PendingOperation::Norm(ops::PendingNorm {
                shape: *shape,
                x,
                residual: added.as_deref(),
                weight,
                epsilon: *epsilon,
                out,
            })),
            Pending::Gated {
                function,
                numbers,
                gate,
                up,
            } => Some(ops::PendingOperation::Gated(ops::PendingGate {
                function: *function,
                numbers: *numbers,
                gate,
                up,
            })),
            Pending::Joined(joined, out) => Some(ops::PendingOperation::AttentionJoin(joined, out)),
        }
    }

    fn out(&self) -> Option<&Arc<D::Memory>> {
        match self {
            Pending::None | Pending::Add { .. } | Pending::Heads(_) => None,
            Pending::Norm { out, .. }
            | Pending::Gated { gate: out, .. }
            | Pending::Joined(_, out) => Some(out),
        }
    }

    fn finish(&self, device: &D) -> Result<()> {
        Ok(match (self, self.producer()) {
            (Pending::Add { numbers, x, y }, _) => ops::add(device, *numbers, x, y),
            (Pending::Heads(heads), _) => heads.finish(device),
            (_, Some(producer)) => producer.finish(device),
            (_, None) => Ok(()),
        }?)
    }
}

impl<D: Device> Gpu<D> {
    fn take(&mut self) -> Pending<D> {
        std::mem::replace(&mut self.pending, Pending::None)
    }

    pub(super) fn finish(&mut self) -> Result<()> {
        self.take().finish(&self.device)
    }

    /// Takes the deferred operation if its output is `x`, else launches it.
    pub(super) fn finish_but(&mut self, x: &Arc<D::Memory>) -> Result<Pending<D>> {
        let pending = self.take();
        if pending.out().is_some_and(|out| Arc::ptr_eq(out, x)) {
            return Ok(pending);
        }
        pending.finish(&self.device)?;
        Ok(Pending::None)
    }

    /// Defers an operation; none is deferred before.
    pub(super) fn pend(&mut self, pending: Pending<D>) -> Result<()> {
        if !self.joins {
            return pending.finish(&self.device);
        }
        self.pending = pending;
        Ok(())
    }

    /// Takes the deferred operations on heads; launches others.
    pub(super) fn take_heads(&mut self) -> Result<Heads<D>> {
        match self.take() {
            Pending::Heads(heads) => Ok(heads),
            other => other.finish(&self.device).map(|()| Heads::default()),
        }
    }

    pub(super) fn pend_heads(&mut self, x: &Arc<D::Memory>, step: Step<D>) -> Result<()> {
        let mut heads = self.take_heads()?;
        if !heads.join(x, &step) {
            heads.finish(&self.device)?;
            heads = Heads::default();
            if !heads.join(x, &step) {
                return Ok(step.launch(&self.device, x)?);
            }
        }
        self.pend(Pending::Heads(heads))
    }

    /// Defers the norm of `n` rows of `x`, fused with a deferred sum.
    pub(super) fn pend_norm(
        &mut self,
        n: usize,
        x: &Arc<D::Memory>,
        weight: &GpuVector<D>,
        epsilon: f32,
        out: &Arc<D::Memory>,
    ) -> Result<()> {
        let shape = rows(n, weight);
        let added = match self.take() {
            Pending::Add { numbers, x: of, y }
                if Arc::ptr_eq(&of, x)
                    && numbers == n * weight.numbers
                    && !Arc::ptr_eq(&y, out) =>
            {
                Some(y)
            }
            other => {
                other.finish(&self.device)?;
                None
            }
        };
        let pending = Pending::Norm {
            shape,
            x: Arc::clone(x),
            added,
            weight: Arc::clone(&weight.memory),
            epsilon,
            out: Arc::clone(out),
        };
        self.pend(pending)
    }
}
