//! Where a compilation executes models, whichever backend that is.
//!
//! The loader's backends are types. Stages that execute a model, to calibrate on it or to measure it, are long and have no use for
//! one more parameter: they get a [`Device`] and ask it for a [`Sequence`].

mod algebra;

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use htc_formats::htz::KernelCode;
use htc_kernels::linear::LinearError;
use htc_kernels::{Pool, PoolError};
use htc_loader::backend::Planned;
use htc_loader::device::{ChoiceError, DeviceChoice, Executor, OnCpu, Work};
use htc_loader::dial::Setting;
use htc_loader::exec::Tap;
use htc_loader::kv::KvOptions;
use htc_loader::{Backend, ExecError, Model, Session};

use crate::math::{Algebra, Host};
use algebra::OnDevice;

/// What executes models.
pub trait Device: Sync {
    /// Its name, for people.
    fn name(&self) -> String;

    /// What the last bits of its numbers depend on, as an artifact's provenance says it: instruction sets, and the GPU.
    fn arithmetic(&self) -> String;

    /// Threads of the host.
    fn pool(&self) -> &Arc<Pool>;

    /// Whether weights, keys and values lie in memory of its own, so that the host needs no room for them.
    fn has_own_memory(&self) -> bool;

    /// What multiplies and decomposes on the device itself; none where the host does.
    ///
    /// # Errors
    /// [`LinearError`] where the device could, but its libraries are not there: the host does then, which somebody is to be told.
    fn own_algebra(&self) -> Result<Option<&dyn Algebra>, &LinearError>;

    /// What multiplies and decomposes.
    fn algebra(&self) -> &dyn Algebra {
        self.own_algebra().ok().flatten().unwrap_or(&Host)
    }

    /// A sequence that a model reads, of `context` positions at most.
    ///
    /// # Errors
    /// [`ExecError`] where there is no room for the model, its keys and its values.
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

/// A [`Session`] of whichever backend.
pub trait Sequence {
    /// Tokens of its model's vocabulary.
    fn vocabulary(&self) -> usize;
    /// [`Session::batch`].
    fn batch(&self) -> usize;
    /// [`Session::reset`].
    fn reset(&mut self);
    /// [`Session::set`].
    fn set(&mut self, setting: Setting);
    /// [`Session::forward`].
    ///
    /// # Errors
    /// As there.
    fn forward(&mut self, tokens: &[u32]) -> Result<(), ExecError>;
    /// [`Session::logits`].
    ///
    /// # Errors
    /// As there.
    fn logits(&mut self, start: usize, end: usize) -> Result<&[f32], ExecError>;
    /// [`Session::embed`].
    ///
    /// # Errors
    /// As there.
    fn embed(&mut self, tokens: &[u32], out: &mut [f32]) -> Result<(), ExecError>;
    /// [`Session::block`].
    ///
    /// # Errors
    /// As there.
    fn block(&mut self, layer: usize, x: &mut [f32], tap: &mut dyn Tap) -> Result<(), ExecError>;
    /// [`Session::head_input`].
    ///
    /// # Errors
    /// As there.
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

    fn set(&mut self, setting: Setting) {
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

/// A model, and where a backend reads it.
type Loaded<B> = (Weak<Model>, Arc<Model<B>>);

/// The device of an executor.
pub struct On<'e, E: Executor> {
    executor: &'e E,
    pool: Arc<Pool>,
    /// Models that somebody still has, where the executor reads them: they are brought there once.
    loaded: Mutex<Vec<Loaded<E::Backend>>>,
    /// Of the executor, from when somebody first asks for it: its libraries take memory of a device.
    algebra: OnceLock<Result<Option<OnDevice>, LinearError>>,
}

impl<'e, E: Executor> On<'e, E> {
    /// With the host's threads.
    pub fn new(executor: &'e E, pool: &Arc<Pool>) -> Self {
        On {
            executor,
            pool: Arc::clone(pool),
            loaded: Mutex::default(),
            algebra: OnceLock::new(),
        }
    }

    fn load(&self, model: &Arc<Model>) -> Result<Arc<Model<E::Backend>>, ExecError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        // Room for the next is made first.
        loaded.retain(|(of, _)| of.strong_count() > 0);
        let known = loaded
            .iter()
            .find(|(of, _)| of.as_ptr() == Arc::as_ptr(model));
        if let Some((_, found)) = known {
            return Ok(Arc::clone(found));
        }
        let found = self.executor.load(model);
        let found = found.map_err(|error| ExecError::Load(Box::new(error)))?;
        loaded.push((Arc::downgrade(model), Arc::clone(&found)));
        Ok(found)
    }
}

impl<E: Executor> Device for On<'_, E> {
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

    fn own_algebra(&self) -> Result<Option<&dyn Algebra>, &LinearError> {
        let own = self.algebra.get_or_init(|| {
            let own = self.executor.linear().transpose()?;
            Ok(own.map(OnDevice))
        });
        match own {
            Ok(own) => Ok(own.as_ref().map(|own| own as &dyn Algebra)),
            Err(error) => Err(error),
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

/// Does some work with the processor as the device, on so many threads.
///
/// # Errors
/// Those of the work, and where the system gives no threads.
pub fn on_processor<T, E: From<PoolError>>(
    threads: usize,
    work: impl FnOnce(&dyn Device) -> Result<T, E>,
) -> Result<T, E> {
    let pool = Arc::new(Pool::new(threads)?);
    work(&On::new(&OnCpu(Arc::clone(&pool)), &pool))
}

/// Does some work on the device that was asked for. Of `sessions` of the model there has to be room on it; `told` gets to know why
/// the processor is taken where the choice was left.
///
/// # Errors
/// [`ChoiceError`] where there is no such device, or no room on it.
pub fn on<T>(
    choice: DeviceChoice,
    pool: &Arc<Pool>,
    sessions: Vec<Planned<'_>>,
    told: impl FnOnce(&ChoiceError),
    work: impl FnOnce(&dyn Device) -> T,
) -> Result<T, ChoiceError> {
    let compiling = Compiling {
        pool,
        sessions,
        work,
    };
    choice.execute(pool, told, compiling)
}

struct Compiling<'a, F> {
    pool: &'a Arc<Pool>,
    sessions: Vec<Planned<'a>>,
    work: F,
}

impl<T, F: FnOnce(&dyn Device) -> T> Work for Compiling<'_, F> {
    type Outcome = T;

    fn kernels(&self) -> Option<KernelCode> {
        self.sessions
            .first()
            .and_then(|first| first.model.kernels())
    }

    fn sessions(&self) -> Vec<Planned<'_>> {
        self.sessions.clone()
    }

    fn on<E: Executor>(self, executor: &E) -> T {
        (self.work)(&On::new(executor, self.pool))
    }
}
