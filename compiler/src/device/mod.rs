//! Execution of models during a compilation, with trait objects instead of backend types.

mod algebra;

pub use algebra::panel_rows;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use htc_formats::htz::KernelCode;
use htc_kernels::cuda::device::DeviceError;
use htc_kernels::{Pool, PoolError};
use htc_loader::backend::PlannedSession;
use htc_loader::device::{CpuExecutor, DeviceChoice, DeviceWork, Executor};
use htc_loader::dial::ActiveSetting;
use htc_loader::exec::Tap;
use htc_loader::kv::KvOptions;
use htc_loader::{Backend, ExecError, Model, Session};

use crate::math::{Algebra, Host};
use algebra::DeviceAlgebra;

/// Reason why the host does the linear algebra.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HostAlgebraReason {
    /// The libraries are missing or do not start.
    #[error(transparent)]
    Libraries(#[from] DeviceError),
    /// Device memory is insufficient for the matrices.
    #[error("that takes {needed} bytes of the device, of which {free} are free")]
    OutOfMemory {
        /// Required bytes.
        needed: u64,
        /// Free bytes, without those of the libraries.
        free: u64,
    },
}

/// Device memory for the linear algebra of a model, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct AlgebraMemory {
    /// Memory of the sums of a calibration, in addition to that of the sessions.
    pub sums: u64,
    /// Memory of a decomposition, while there is no session.
    pub decomposition: u64,
}

/// Device that executes models.
pub trait Device: Sync {
    /// Returns the display name.
    fn name(&self) -> String;

    /// Returns instruction set and GPU, for the provenance.
    fn arithmetic(&self) -> String;

    /// Returns the host's threads.
    fn pool(&self) -> &Arc<Pool>;

    /// Returns true if weights and KV cache are not in host memory.
    fn has_own_memory(&self) -> bool;

    /// Returns the device's linear algebra, if used.
    fn device_algebra(&self) -> Option<&dyn Algebra>;

    /// Returns the reason why the host does the linear algebra.
    fn host_algebra_reason(&self) -> Option<&HostAlgebraReason>;

    /// Returns the linear algebra: the device's, or the host's.
    fn algebra(&self) -> &dyn Algebra {
        self.device_algebra().unwrap_or(&Host)
    }

    /// Unloads models without a sequence, to free device memory.
    fn unload_idle_models(&self);

    /// Creates a sequence of at most `context` positions.
    fn sequence<'d>(
        &'d self,
        model: &Arc<Model>,
        context: usize,
        kv: &KvOptions,
    ) -> Result<Box<dyn Sequence + 'd>, ExecError>;
}

impl fmt::Debug for dyn Device + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// [`Session`] of any backend.
pub trait Sequence {
    /// Returns the vocabulary size of the model.
    fn vocabulary(&self) -> usize;
    /// [`Session::batch`].
    fn batch(&self) -> usize;
    /// [`Session::reset`].
    fn reset(&mut self);
    /// [`Session::set`].
    fn set(&mut self, setting: ActiveSetting);
    /// [`Session::forward`].
    fn forward(&mut self, tokens: &[u32]) -> Result<(), ExecError>;
    /// [`Session::logits`].
    fn logits(&mut self, start: usize, end: usize) -> Result<&[f32], ExecError>;
    /// [`Session::embed`].
    fn embed(&mut self, tokens: &[u32], out: &mut [f32]) -> Result<(), ExecError>;
    /// [`Session::block`].
    fn block(&mut self, layer: usize, x: &mut [f32], tap: &mut dyn Tap) -> Result<(), ExecError>;
    /// [`Session::head_input`].
    fn head_input(&mut self, x: &mut [f32]) -> Result<(), ExecError>;
}

impl<B: Backend> Sequence for Session<B> {
    fn vocabulary(&self) -> usize {
        self.model().hyper().vocabulary
    }

    fn batch(&self) -> usize {
        Session::batch(self)
    }

    fn reset(&mut self) {
        Session::reset(self);
    }

    fn set(&mut self, setting: ActiveSetting) {
        Session::set(self, setting);
    }

    fn forward(&mut self, tokens: &[u32]) -> Result<(), ExecError> {
        Session::forward(self, tokens)
    }

    fn logits(&mut self, start: usize, end: usize) -> Result<&[f32], ExecError> {
        Session::logits(self, start, end)
    }

    fn embed(&mut self, tokens: &[u32], out: &mut [f32]) -> Result<(), ExecError> {
        Session::embed(self, tokens, out)
    }

    fn block(&mut self, layer: usize, x: &mut [f32], tap: &mut dyn Tap) -> Result<(), ExecError> {
        Session::block(self, layer, x, tap)
    }

    fn head_input(&mut self, x: &mut [f32]) -> Result<(), ExecError> {
        Session::head_input(self, x)
    }
}

type LoadedModel<B> = (Weak<Model>, Arc<Model<B>>);

/// Device of an executor.
pub struct ExecutorDevice<'e, E: Executor> {
    executor: &'e E,
    pool: Arc<Pool>,
    /// Models on the device, each loaded once.
    loaded: Mutex<Vec<LoadedModel<E::Backend>>>,
    /// The bytes of an artifact depend on it.
    algebra: Result<Option<DeviceAlgebra>, HostAlgebraReason>,
}

impl<'e, E: Executor> ExecutorDevice<'e, E> {
    /// Creates a device without linear algebra.
    pub fn new(executor: &'e E, pool: &Arc<Pool>) -> Self {
        ExecutorDevice {
            executor,
            pool: Arc::clone(pool),
            loaded: Mutex::default(),
            algebra: Ok(None),
        }
    }

    fn with_algebra(
        executor: &'e E,
        pool: &Arc<Pool>,
        sessions: &[PlannedSession<'_>],
        matrices: AlgebraMemory,
    ) -> Self {
        let algebra = || {
            let Some(linear) = executor.linear_algebra().transpose()? else {
                return Ok(None);
            };
            let sessions = executor.needed_bytes(sessions);
            let needed = sessions.saturating_add(matrices.sums);
            let needed = needed.max(matrices.decomposition);
            match executor.free_bytes() {
                Some(free) if free < needed => Err(HostAlgebraReason::OutOfMemory { needed, free }),
                _ => Ok(Some(DeviceAlgebra(linear))),
            }
        };
        ExecutorDevice {
            algebra: algebra(),
            ..ExecutorDevice::new(executor, pool)
        }
    }

    fn loaded(&self) -> MutexGuard<'_, Vec<LoadedModel<E::Backend>>> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.retain(|(of, _)| of.strong_count() > 0);
        loaded
    }

    fn load(&self, model: &Arc<Model>) -> Result<Arc<Model<E::Backend>>, ExecError> {
        let mut loaded = self.loaded();
        let known = loaded
            .iter()
            .find(|(of, _)| of.as_ptr() == Arc::as_ptr(model));
        if let Some((_, found)) = known {
            return Ok(Arc::clone(found));
        }
        let found = self.executor.load(model);
        let found = found.map_err(|error| ExecError::Load(Box::new(error)))?;
        // On the CPU an entry would keep the model alive.
        if Arc::as_ptr(&found).cast::<()>() != Arc::as_ptr(model).cast() {
            loaded.push((Arc::downgrade(model), Arc::clone(&found)));
        }
        Ok(found)
    }
}

impl<E: Executor> Device for ExecutorDevice<'_, E> {
    fn name(&self) -> String {
        self.executor.name()
    }

    fn arithmetic(&self) -> String {
        let host = htc_kernels::cpu::instruction_set();
        match self.executor.arithmetic() {
            own if own == host => own,
            own => format!("{host}; models on {own}"),
        }
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    fn has_own_memory(&self) -> bool {
        self.executor.has_own_memory()
    }

    fn device_algebra(&self) -> Option<&dyn Algebra> {
        let own = self.algebra.as_ref().ok()?.as_ref()?;
        Some(own)
    }

    fn host_algebra_reason(&self) -> Option<&HostAlgebraReason> {
        self.algebra.as_ref().err()
    }

    fn unload_idle_models(&self) {
        if self.device_algebra().is_some() {
            self.loaded()
                .retain(|(_, held)| Arc::strong_count(held) > 1);
        }
    }

    fn sequence<'d>(
        &'d self,
        model: &Arc<Model>,
        context: usize,
        kv: &KvOptions,
    ) -> Result<Box<dyn Sequence + 'd>, ExecError> {
        let (model, backend) = (self.load(model)?, self.executor.backend());
        Ok(Box::new(Session::with_kv_of(model, backend, context, kv)?))
    }
}

/// Runs `work` with the CPU as the device.
///
/// # Errors
/// Those of `work`, and if threads cannot be started.
pub fn run_on_cpu<T, E: From<PoolError>>(
    threads: usize,
    work: impl FnOnce(&dyn Device) -> Result<T, E>,
) -> Result<T, E> {
    let pool = Arc::new(Pool::new(threads)?);
    work(&ExecutorDevice::new(&CpuExecutor(Arc::clone(&pool)), &pool))
}

/// Runs `work` on the chosen device. If `sessions` do not fit the choice fails, or falls back to
/// the CPU if automatic; `told` receives the reason. If `matrices` do not fit, the host does the
/// linear algebra.
pub fn run_on_device<T>(
    choice: DeviceChoice,
    pool: &Arc<Pool>,
    sessions: Vec<PlannedSession<'_>>,
    matrices: AlgebraMemory,
    told: impl FnOnce(&ExecError),
    work: impl FnOnce(&dyn Device) -> T,
) -> Result<T, ExecError> {
    let compiling = DeviceJob {
        pool,
        sessions,
        matrices,
        work,
    };
    choice.execute(pool, told, compiling)
}

struct DeviceJob<'a, F> {
    pool: &'a Arc<Pool>,
    sessions: Vec<PlannedSession<'a>>,
    matrices: AlgebraMemory,
    work: F,
}

impl<T, F: FnOnce(&dyn Device) -> T> DeviceWork for DeviceJob<'_, F> {
    type Outcome = T;

    fn kernels(&self) -> Option<KernelCode> {
        self.sessions
            .first()
            .and_then(|first| first.model.kernels())
    }

    fn sessions(&self) -> Vec<PlannedSession<'_>> {
        self.sessions.clone()
    }

    fn run<E: Executor>(self, executor: &E) -> T {
        let DeviceJob {
            pool,
            sessions,
            matrices,
            work,
        } = self;
        work(&ExecutorDevice::with_algebra(
            executor, pool, &sessions, matrices,
        ))
    }
}

#[cfg(test)]
mod tests;
