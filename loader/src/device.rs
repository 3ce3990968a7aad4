//! Where a model is executed, as it is asked for.
//!
//! A [`DeviceChoice`] is what somebody asks for; [`DeviceChoice::execute`] finds the device and does some [`Work`] with its
//! [`Executor`], which makes backends of whichever kind it is.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use htc_formats::htz::KernelCode;
use htc_kernels::Pool;
pub use htc_kernels::cuda::Which;
use htc_kernels::cuda::{Device, DeviceError};
use htc_kernels::linear::{Linear, LinearError};

use crate::backend::{Backend, Cpu, Gpu, Need, Planned, Reference};
use crate::error::LoadError;
use crate::model::Model;

/// A device by its name: `auto`, `cpu`, `reference`, `cuda`, `cuda:1`, `cuda:GPU-…`, `emulated`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A GPU where there is one, else the processor.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// The processor in float64, as plainly as it can be written: slow, for comparisons.
    Reference,
    /// This NVIDIA GPU.
    Cuda(Which),
    /// A GPU that the processor emulates: very slow, for tests.
    Emulated,
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || {
            "a device is auto, cpu, cuda, cuda:N, cuda:GPU-IDENTIFIER, reference or emulated"
                .to_owned()
        };
        match text {
            "auto" => Ok(DeviceChoice::Auto),
            "cpu" => Ok(DeviceChoice::Cpu),
            "reference" => Ok(DeviceChoice::Reference),
            "cuda" => Ok(DeviceChoice::Cuda(Which::default())),
            "emulated" => Ok(DeviceChoice::Emulated),
            _ => {
                let which = text.strip_prefix("cuda:").ok_or_else(unknown)?;
                let which: Which = which.parse().map_err(|_| unknown())?;
                Ok(DeviceChoice::Cuda(which))
            }
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::Reference => f.write_str("reference"),
            DeviceChoice::Cuda(which) => write!(f, "cuda:{which}"),
            DeviceChoice::Emulated => f.write_str("emulated"),
        }
    }
}

/// Why there is no such device.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ChoiceError {
    /// The device says why.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The program was built without it.
    #[error("this build has no device {device}; build it with the feature {feature}")]
    NotBuilt {
        /// What was asked for.
        device: DeviceChoice,
        /// What the build lacks.
        feature: &'static str,
    },
}

/// What makes backends on one device.
pub trait Executor: Sync {
    /// Their kind.
    type Backend: Backend;

    /// A backend for a session.
    fn backend(&self) -> Self::Backend;

    /// The model where sessions of these backends read it.
    ///
    /// # Errors
    /// [`LoadError`] where there is no room for it.
    fn load(&self, model: &Arc<Model>) -> Result<Arc<Model<Self::Backend>>, LoadError> {
        let model = Model::load(model.file().clone(), &mut self.backend())?;
        Ok(Arc::new(model))
    }

    /// The device, for people.
    fn name(&self) -> String;

    /// What the last bits of its numbers depend on: an instruction set, a GPU.
    fn arithmetic(&self) -> String {
        self.name()
    }

    /// Bytes of the device's own memory that nobody has; nothing where it has none, or does not say.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// Bytes of the device's own memory that sessions need; none where it has none.
    fn needed_bytes(&self, sessions: &[Planned<'_>]) -> u64 {
        let _ = sessions;
        0
    }

    /// Whether weights, keys and values are in memory of the device, so that the host needs no room for them.
    fn has_own_memory(&self) -> bool {
        false
    }

    /// What users should know of how work goes on it, if there is anything.
    fn remark(&self) -> Option<String> {
        None
    }

    /// A GPU's identifier, by which its management library knows it, too: whose heat and energy its work is.
    fn identifier(&self) -> Option<String> {
        None
    }

    /// What the device has for large matrices in float64, for those who compress models; none where that is the host's.
    fn linear(&self) -> Option<Result<Box<dyn Linear>, LinearError>> {
        None
    }
}

/// Something that is done on a device of whichever kind.
pub trait Work {
    /// What it gives.
    type Outcome;

    /// Kernels that were compiled ahead of time and lie in its model. What is damaged is as if there were none.
    fn kernels(&self) -> Option<KernelCode> {
        None
    }

    /// What it will need of a device with memory of its own, which is looked at before any of it is asked for.
    fn sessions(&self) -> Vec<Planned<'_>> {
        Vec::new()
    }

    /// Does it.
    fn on<E: Executor>(self, executor: &E) -> Self::Outcome;
}

/// The processor, on some threads.
#[derive(Debug)]
pub struct OnCpu(pub Arc<Pool>);

impl Executor for OnCpu {
    type Backend = Cpu;

    fn backend(&self) -> Cpu {
        Cpu::new(&self.0)
    }

    fn load(&self, model: &Arc<Model>) -> Result<Arc<Model>, LoadError> {
        Ok(Arc::clone(model))
    }

    fn name(&self) -> String {
        format!("the processor ({})", self.backend().instruction_set())
    }

    fn arithmetic(&self) -> String {
        self.backend().instruction_set().to_owned()
    }
}

/// The processor in float64.
#[derive(Debug)]
pub struct OnReference;

impl Executor for OnReference {
    type Backend = Reference;

    fn backend(&self) -> Reference {
        Reference
    }

    fn name(&self) -> String {
        "the processor in float64".to_owned()
    }
}

/// A GPU, and the processor's threads that bring weights to it.
#[derive(Debug)]
pub struct OnGpu<D: Device>(pub D, pub Arc<Pool>);

impl<D: Device> Executor for OnGpu<D> {
    type Backend = Gpu<D>;

    fn backend(&self) -> Gpu<D> {
        Gpu::new(&self.0).laid_out_by(&self.1)
    }

    fn name(&self) -> String {
        self.0.name()
    }

    fn arithmetic(&self) -> String {
        let kernels = htc_kernels::cuda::source::digest().to_string();
        let kernels = kernels.get(..8).unwrap_or_default();
        format!("{}, kernels {kernels}", self.0.name())
    }

    fn free_bytes(&self) -> Option<u64> {
        let [free, _] = self.0.room().ok()?;
        // The emulation's is that of the host.
        (free < usize::MAX).then_some(free as u64)
    }

    fn needed_bytes(&self, sessions: &[Planned<'_>]) -> u64 {
        Need::of::<D>(sessions).bytes()
    }

    fn has_own_memory(&self) -> bool {
        true
    }

    fn remark(&self) -> Option<String> {
        self.0.remark()
    }

    fn identifier(&self) -> Option<String> {
        self.0.identifier()
    }

    fn linear(&self) -> Option<Result<Box<dyn Linear>, LinearError>> {
        self.0.linear()
    }
}

impl DeviceChoice {
    /// Does `work` on the device; the processor has the threads of `pool`. Where [`DeviceChoice::Auto`] finds no GPU, or one
    /// that has no room for it, `told` gets to know why, but for a build that knows no GPU.
    ///
    /// # Errors
    /// [`ChoiceError`] where there is no such device, or no room on it.
    pub fn execute<W: Work>(
        self,
        pool: &Arc<Pool>,
        told: impl FnOnce(&ChoiceError),
        work: W,
    ) -> Result<W::Outcome, ChoiceError> {
        match self {
            DeviceChoice::Cpu => Ok(work.on(&OnCpu(Arc::clone(pool)))),
            DeviceChoice::Reference => Ok(work.on(&OnReference)),
            DeviceChoice::Cuda(which) => on_cuda(which, pool, work).map_err(|(error, _)| error),
            DeviceChoice::Emulated => on_emulated(pool, work),
            DeviceChoice::Auto => on_cuda(Which::default(), pool, work).or_else(|(error, work)| {
                // Of a build that knows no GPU nobody expects one.
                if !matches!(error, ChoiceError::NotBuilt { .. }) {
                    told(&error);
                }
                Ok(work.on(&OnCpu(Arc::clone(pool))))
            }),
        }
    }
}

/// This NVIDIA GPU, with the kernels that `sealed` has for it, else those of the user's cache, which NVRTC fills.
///
/// # Errors
/// [`DeviceError`] where there is none, or there are no kernels for it.
#[cfg(feature = "cuda")]
pub fn open_cuda(
    which: Which,
    sealed: Option<&KernelCode>,
) -> Result<crate::backend::CudaDevice, DeviceError> {
    use htc_kernels::cuda::driver::Options;

    let cache = htc_formats::folder::user_cache();
    let options = Options {
        sealed,
        cache: cache.as_deref(),
        ..Options::default()
    };
    crate::backend::CudaDevice::open(which, options)
}

/// The work comes back where there is no room for it.
#[cfg(any(feature = "cuda", feature = "emulated"))]
fn on_gpu<D: Device, W: Work>(
    device: D,
    pool: &Arc<Pool>,
    work: W,
) -> Result<W::Outcome, (ChoiceError, W)> {
    match Need::of::<D>(&work.sessions()).check(&device) {
        Ok(()) => Ok(work.on(&OnGpu(device, Arc::clone(pool)))),
        Err(error) => Err((error.into(), work)),
    }
}

/// The work comes back where there is no device for it.
#[cfg(feature = "cuda")]
fn on_cuda<W: Work>(
    which: Which,
    pool: &Arc<Pool>,
    work: W,
) -> Result<W::Outcome, (ChoiceError, W)> {
    match open_cuda(which, work.kernels().as_ref()) {
        Ok(device) => on_gpu(device, pool, work),
        Err(error) => Err((error.into(), work)),
    }
}

#[cfg(not(feature = "cuda"))]
fn on_cuda<W: Work>(which: Which, _: &Arc<Pool>, work: W) -> Result<W::Outcome, (ChoiceError, W)> {
    let device = DeviceChoice::Cuda(which);
    let feature = "cuda";
    Err((ChoiceError::NotBuilt { device, feature }, work))
}

#[cfg(feature = "emulated")]
fn on_emulated<W: Work>(pool: &Arc<Pool>, work: W) -> Result<W::Outcome, ChoiceError> {
    on_gpu(crate::backend::EmulatedDevice::new(0), pool, work).map_err(|(error, _)| error)
}

#[cfg(not(feature = "emulated"))]
fn on_emulated<W: Work>(_: &Arc<Pool>, _: W) -> Result<W::Outcome, ChoiceError> {
    Err(ChoiceError::NotBuilt {
        device: DeviceChoice::Emulated,
        feature: "emulated",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in [
            "auto",
            "cpu",
            "reference",
            "cuda:0",
            "cuda:3",
            "cuda:GPU-00112233-4455-6677-8899-aabbccddeeff",
            "emulated",
        ] {
            assert_eq!(name.parse::<DeviceChoice>().unwrap().to_string(), name);
        }
        assert_eq!("cuda".parse(), Ok(DeviceChoice::Cuda(Which::Index(0))));
        for name in [
            "",
            "gpu",
            "cuda:",
            "cuda:-1",
            "CPU",
            "cuda0",
            "cuda:GPU-00",
            "cuda:GPU-",
        ] {
            let error = name.parse::<DeviceChoice>().unwrap_err();
            assert!(error.starts_with("a device is auto"), "{error}");
        }
    }

    struct Name;

    impl Work for Name {
        type Outcome = (String, bool);

        fn on<E: Executor>(self, executor: &E) -> (String, bool) {
            (executor.name(), executor.has_own_memory())
        }
    }

    #[test]
    fn work_is_done_where_it_was_asked_for() {
        let pool = Arc::new(Pool::new(1).unwrap());
        let on = |choice: DeviceChoice| choice.execute(&pool, |_| (), Name);
        assert!(
            on(DeviceChoice::Cpu)
                .unwrap()
                .0
                .starts_with("the processor (")
        );
        let float64 = ("the processor in float64".to_owned(), false);
        assert_eq!(on(DeviceChoice::Reference).unwrap(), float64);
        match cfg!(feature = "emulated") {
            true => assert_eq!(on(DeviceChoice::Emulated).unwrap().0, "emulated"),
            false => {
                let error = on(DeviceChoice::Emulated).unwrap_err().to_string();
                assert!(error.contains("feature emulated"), "{error}");
            }
        }
        // A machine has no such device, and says so; whoever leaves the choice gets the processor.
        assert!(on(DeviceChoice::Cuda(Which::Index(4096))).is_err());
    }
}
