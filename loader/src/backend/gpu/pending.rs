//! Operations that wait for the next one, to be launched with it.
//!
//! | waits | comes next | in one launch |
//! |---|---|---|
//! | `add` | `rms_norm` of the sum | sum and norm, which wait on |
//! | `rms_norm`, of a sum or not | `project`, `logits` of all its rows | sum, norm, and the integers that are multiplied |
//! | `activate` | `project` of what it gives | the gate, and the integers |
//! | `add_bias`, `rms_norm_in_place`, `rope` of heads | the same of them or of others, three buffers in all | all of them, which wait on ([`heads`](super::heads)) |
//! | these, or nothing | `append` | these, and the keys and values |
//! | the last part of `attention` | `project` of what it gives | what joins the splits, and the integers |
//!
//! Whatever else comes next finishes first what waits: so one operation waits at most, or one chain of the table, and nobody
//! sees a buffer without it. Memory that it touches is kept alive. Every number has the bits that it has without this.

use std::sync::Arc;

use htc_kernels::cuda::{Device, ops};

use super::heads::{Heads, Step};
use super::{Gpu, GpuVector, device_error, rows};
use crate::error::ExecError;

/// What waits.
#[derive(Debug)]
pub(super) enum Pending<D: Device> {
    None,
    /// `x += y`.
    Add {
        numbers: usize,
        x: Arc<D::Memory>,
        y: Arc<D::Memory>,
    },
    /// `x += added`, where there is something to add, and `out` the norm of `x`.
    Norm {
        shape: ops::RowsShape,
        x: Arc<D::Memory>,
        added: Option<Arc<D::Memory>>,
        weight: Arc<D::Memory>,
        epsilon: f32,
        out: Arc<D::Memory>,
    },
    /// `gate = f(gate) * up`.
    Gated {
        function: ops::GateActivation,
        numbers: usize,
        gate: Arc<D::Memory>,
        up: Arc<D::Memory>,
    },
    /// The last part of attention, and where it goes.
    Joined(ops::PartialAttention<D>, Arc<D::Memory>),
    /// On the way from products to attention.
    Heads(Heads<D>),
}

impl<D: Device> Pending<D> {
    /// What a product can take along, if it reads it.
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

    /// Where it leaves what a product can read.
    fn out(&self) -> Option<&Arc<D::Memory>> {
        match self {
            Pending::None | Pending::Add { .. } | Pending::Heads(_) => None,
            Pending::Norm { out, .. }
            | Pending::Gated { gate: out, .. }
            | Pending::Joined(_, out) => Some(out),
        }
    }

    fn finish(&self, device: &D) -> Result<(), ExecError> {
        let done = match (self, self.producer()) {
            (Pending::Add { numbers, x, y }, _) => ops::add(device, *numbers, x, y),
            (Pending::Heads(heads), _) => heads.finish(device),
            (_, Some(producer)) => producer.finish(device),
            (_, None) => Ok(()),
        };
        done.map_err(device_error)
    }
}

impl<D: Device> Gpu<D> {
    fn take(&mut self) -> Pending<D> {
        std::mem::replace(&mut self.pending, Pending::None)
    }

    /// Launches what waits: whatever comes next is not joined with it.
    pub(super) fn finish(&mut self) -> Result<(), ExecError> {
        self.take().finish(&self.device)
    }

    /// What waits to leave numbers at `x`; launches it if it is something else.
    pub(super) fn finish_but(&mut self, x: &Arc<D::Memory>) -> Result<Pending<D>, ExecError> {
        let pending = self.take();
        if pending.out().is_some_and(|out| Arc::ptr_eq(out, x)) {
            return Ok(pending);
        }
        pending.finish(&self.device)?;
        Ok(Pending::None)
    }

    /// Lets something wait, behind which nothing does.
    pub(super) fn pend(&mut self, pending: Pending<D>) -> Result<(), ExecError> {
        if !self.joins {
            return pending.finish(&self.device);
        }
        self.pending = pending;
        Ok(())
    }

    /// What waits of operations on heads; launches it if it is something else.
    pub(super) fn take_heads(&mut self) -> Result<Heads<D>, ExecError> {
        match self.take() {
            Pending::Heads(heads) => Ok(heads),
            other => other.finish(&self.device).map(|()| Heads::default()),
        }
    }

    /// An operation on heads, which waits, joined with those before it.
    pub(super) fn pend_heads(
        &mut self,
        x: &Arc<D::Memory>,
        step: Step<D>,
    ) -> Result<(), ExecError> {
        let mut heads = self.take_heads()?;
        if let Err(step) = heads.join(x, step) {
            heads.finish(&self.device).map_err(device_error)?;
            heads = Heads::default();
            if let Err(step) = heads.join(x, step) {
                return step.launch(&self.device, x).map_err(device_error);
            }
        }
        self.pend(Pending::Heads(heads))
    }

    /// The norm of `n` rows of `x`, which waits, joined with a sum that it is of.
    pub(super) fn pend_norm(
        &mut self,
        n: usize,
        x: &Arc<D::Memory>,
        weight: &GpuVector<D>,
        epsilon: f32,
        out: &Arc<D::Memory>,
    ) -> Result<(), ExecError> {
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
