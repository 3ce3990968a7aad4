//! Where a compilation executes models, whichever backend that is.
//!
//! The loader's backends are types. Stages that execute a model, to calibrate on it or to measure it, are long and have no use for
//! one more parameter: they get a [`Device`] and ask it for a [`Sequence`].

mod algebra;

pub use algebra::panel_rows;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

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

/// Why the host multiplies and decomposes though a device could.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NoAlgebra {
    /// Its libraries are not there, or do not start.
    #[error(transparent)]
    Libraries(#[from] LinearError),
    /// Matrices do not fit beside the model.
    #[error("that takes {needed} bytes of the device, of which {free} are free")]
    NoRoom {
        /// Bytes of the model with the sums of a layer, or of a decomposition, whichever are more.
        needed: u64,
        /// Bytes that are free, but for what the libraries take.
        free: u64,
    },
}

/// Bytes of a device that matrices of a model will take where it multiplies and decomposes them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Matrices {
    /// Beside the model's sessions.
    pub sums: u64,
    /// Where no session is.
    pub decomposition: u64,
}

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
    fn own_algebra(&self) -> Option<&dyn Algebra>;

    /// Why the host does so though the device could, which somebody is to be told.
    fn no_algebra(&self) -> Option<&NoAlgebra>;

    /// What multiplies and decomposes.
    fn algebra(&self) -> &dyn Algebra {
        self.own_algebra().unwrap_or(&Host)
    }

    /// Models that no sequence reads give way to matrices: they are brought to the device again when they are read.
    fn make_room(&self);

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
    /// Decided once, before anything is computed: the bytes of an artifact depend on it.
    algebra: Result<Option<OnDevice>, NoAlgebra>,
}

impl<'e, E: Executor> On<'e, E> {
    /// With the host's threads.
    pub fn new(executor: &'e E, pool: &Arc<Pool>) -> Self {
        On {
            executor,
            pool: Arc::clone(pool),
            loaded: Mutex::default(),
            algebra: Ok(None),
        }
    }

    /// The same for those who compress: with what multiplies and decomposes on the device itself, where it has that and there is
    /// room for it beside `sessions`.
    fn compressing(
        executor: &'e E,
        pool: &Arc<Pool>,
        sessions: &[Planned<'_>],
        matrices: Matrices,
    ) -> Self {
        let algebra = || {
            let Some(linear) = executor.linear().transpose()? else {
                return Ok(None);
            };
            let sessions = executor.needed_bytes(sessions);
            let needed = sessions.saturating_add(matrices.sums);
            let needed = needed.max(matrices.decomposition);
            match executor.free_bytes() {
                Some(free) if free < needed => Err(NoAlgebra::NoRoom { needed, free }),
                _ => Ok(Some(OnDevice(linear))),
            }
        };
        On {
            algebra: algebra(),
            ..On::new(executor, pool)
        }
    }

    /// What the device holds of models that nobody has any more gives way.
    fn loaded(&self) -> MutexGuard<'_, Vec<Loaded<E::Backend>>> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.retain(|(of, _)| of.strong_count() > 0);
        loaded
    }

    fn load(&self, model: &Arc<Model>) -> Result<Arc<Model<E::Backend>>, ExecError> {
        // Room for the next is made first.
        let mut loaded = self.loaded();
        let known = loaded
            .iter()
            .find(|(of, _)| of.as_ptr() == Arc::as_ptr(model));
        if let Some((_, found)) = known {
            return Ok(Arc::clone(found));
        }
        let found = self.executor.load(model);
        let found = found.map_err(|error| ExecError::Load(Box::new(error)))?;
        // The processor reads the model itself, which would never give way to another.
        if Arc::as_ptr(&found).cast::<()>() != Arc::as_ptr(model).cast() {
            loaded.push((Arc::downgrade(model), Arc::clone(&found)));
        }
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

    fn own_algebra(&self) -> Option<&dyn Algebra> {
        let own = self.algebra.as_ref().ok()?.as_ref()?;
        Some(own)
    }

    fn no_algebra(&self) -> Option<&NoAlgebra> {
        self.algebra.as_ref().err()
    }

    fn make_room(&self) {
        if self.own_algebra().is_some() {
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

/// Does some work on the device that was asked for. Of `sessions` of the model there has to be room on it, else the work is refused, or
/// done by the processor where the choice was left: `told` gets to know why. Where there is none for `matrices`, too, the processor
/// multiplies and decomposes them.
///
/// # Errors
/// [`ChoiceError`] where there is no such device, or no room on it.
pub fn on<T>(
    choice: DeviceChoice,
    pool: &Arc<Pool>,
    (sessions, matrices): (Vec<Planned<'_>>, Matrices),
    told: impl FnOnce(&ChoiceError),
    work: impl FnOnce(&dyn Device) -> T,
) -> Result<T, ChoiceError> {
    let compiling = Compiling {
        pool,
        sessions,
        matrices,
        work,
    };
    choice.execute(pool, told, compiling)
}

struct Compiling<'a, F> {
    pool: &'a Arc<Pool>,
    sessions: Vec<Planned<'a>>,
    matrices: Matrices,
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
        let Compiling {
            pool,
            sessions,
            matrices,
            work,
        } = self;
        work(&On::compressing(executor, pool, &sessions, matrices))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::algebra::tests::Plain;
    use super::*;
    use htc_kernels::linear::Linear;
    use htc_loader::backend::Reference;
    use htc_loader::device::OnReference;
    use htc_loader::kv::KvType;

    fn demo() -> Arc<Model> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo");
        Arc::new(Model::open(folder.join("reference-7m-f16.gguf")).unwrap())
    }

    fn gives_way<E: Executor>(executor: &E, held: usize) {
        let pool = Arc::new(Pool::new(1).unwrap());
        let on = On::new(executor, &pool);
        let model = demo();
        let of = Arc::downgrade(&model);
        let kv = KvOptions::new(KvType::F32);
        for _ in 0..2 {
            drop(on.sequence(&model, 4, &kv).unwrap());
            assert_eq!(on.loaded().len(), held, "{}", on.name());
        }
        drop(model);
        assert_eq!(on.loaded().len(), 0, "{}", on.name());
        assert!(of.upgrade().is_none(), "{}", on.name());
    }

    #[test]
    fn a_model_that_nobody_has_gives_way() {
        gives_way(&OnCpu(Arc::new(Pool::new(1).unwrap())), 0);
        gives_way(&OnReference, 1);
    }

    /// An executor with linear algebra, and so much room.
    struct Decomposes(Option<u64>);

    impl Executor for Decomposes {
        type Backend = Reference;

        fn backend(&self) -> Reference {
            OnReference.backend()
        }

        fn name(&self) -> String {
            "decomposes".to_owned()
        }

        fn free_bytes(&self) -> Option<u64> {
            self.0
        }

        fn needed_bytes(&self, sessions: &[Planned<'_>]) -> u64 {
            100 * sessions.len() as u64
        }

        fn linear(&self) -> Option<Result<Box<dyn Linear>, LinearError>> {
            Some(Ok(Box::new(Plain)))
        }
    }

    #[test]
    fn matrices_have_the_room_of_models_that_nobody_reads() {
        let pool = Arc::new(Pool::new(1).unwrap());
        let on = On::compressing(&Decomposes(None), &pool, &[], Matrices::default());
        let (model, kv) = (demo(), KvOptions::new(KvType::F32));
        let held = || on.loaded.lock().unwrap().len();
        let sequence = on.sequence(&model, 4, &kv).unwrap();
        assert_eq!(on.algebra().name(), "plain");
        assert_eq!(held(), 1);
        on.make_room();
        assert_eq!(held(), 1);
        drop(sequence);
        assert_eq!(held(), 1);
        on.make_room();
        assert_eq!(held(), 0);
    }

    #[test]
    fn it_is_decided_by_room_who_decomposes() {
        let (pool, model) = (Arc::new(Pool::new(1).unwrap()), demo());
        let kind = htc_loader::kv::KvKind::default();
        let session = Planned {
            model: &model,
            positions: 1,
            kind,
        };
        let decided = |free, sums, decomposition| {
            let matrices = Matrices {
                sums,
                decomposition,
            };
            let executor = Decomposes(Some(free));
            let on = On::compressing(&executor, &pool, &[session], matrices);
            match on.no_algebra() {
                None => Ok(on.algebra().name()),
                Some(NoAlgebra::NoRoom { needed, .. }) => Err(*needed),
                Some(error) => panic!("{error}"),
            }
        };
        assert_eq!(decided(120, 20, 50), Ok("plain".to_owned()));
        assert_eq!(decided(119, 20, 50), Err(120));
        // Where no session is.
        assert_eq!(decided(130, 20, 130), Ok("plain".to_owned()));
        assert_eq!(decided(129, 20, 130), Err(130));
        assert_eq!(decided(u64::MAX - 1, u64::MAX, 0), Err(u64::MAX));
    }
}
