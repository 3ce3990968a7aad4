//! Selection of the device that executes a model.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use htc_formats::htz::KernelCode;
use htc_kernels::Pool;
pub use htc_kernels::cuda::DeviceSelector;
use htc_kernels::cuda::{Device, DeviceError};
use htc_kernels::linear::LinearAlgebra;

use crate::backend::{Backend, Cpu, Gpu, GpuMemoryEstimate, PlannedSession, Reference};
use crate::error::ExecError;
use crate::model::Model;

/// Requested device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A GPU if available, otherwise the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// Float64 implementation on the CPU: slow.
    Reference,
    /// An NVIDIA GPU.
    Cuda(DeviceSelector),
    /// A GPU emulated on the CPU: very slow.
    Emulated,
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || {
            let names = DeviceChoice::names().join(", ");
            format!("unknown device; this build has {names}")
        };
        match text {
            "auto" => Ok(DeviceChoice::Auto),
            "cpu" => Ok(DeviceChoice::Cpu),
            "reference" => Ok(DeviceChoice::Reference),
            "cuda" => Ok(DeviceChoice::Cuda(DeviceSelector::default())),
            "emulated" => Ok(DeviceChoice::Emulated),
            _ => {
                let which = text.strip_prefix("cuda:").ok_or_else(unknown)?;
                let which: DeviceSelector = which.parse().map_err(|_| unknown())?;
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

/// Factory of backends on one device.
pub trait Executor: Sync {
    /// Type of the backends.
    type Backend: Backend;

    /// Creates a backend for a session.
    fn backend(&self) -> Self::Backend;

    /// Loads the model into the memory of these backends.
    ///
    /// # Errors
    /// [`ExecError`] if memory is insufficient.
    fn load(&self, model: &Arc<Model>) -> Result<Arc<Model<Self::Backend>>, ExecError> {
        let model = Model::load(model.file().clone(), &mut self.backend())?;
        Ok(Arc::new(model))
    }

    /// Returns the name of the device for display.
    fn name(&self) -> String;

    /// Returns the instruction set or GPU, which affects the last bits.
    fn arithmetic(&self) -> String {
        self.name()
    }

    /// Returns the free bytes of dedicated device memory, if known.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// Returns the bytes of dedicated device memory that sessions need.
    fn needed_bytes(&self, sessions: &[PlannedSession<'_>]) -> u64 {
        let _ = sessions;
        0
    }

    /// Returns true if weights, keys and values are in dedicated memory.
    fn has_own_memory(&self) -> bool {
        false
    }

    /// Returns a remark for the user, if any.
    fn remark(&self) -> Option<String> {
        None
    }

    /// Returns the GPU's identifier in its management library.
    fn identifier(&self) -> Option<String> {
        None
    }

    /// Returns the device's float64 linear algebra, if any.
    fn linear_algebra(&self) -> Option<Result<Box<dyn LinearAlgebra>, DeviceError>> {
        None
    }
}

/// Computation for any device.
pub trait DeviceWork {
    /// Result type.
    type Outcome;

    /// Returns the model's precompiled kernels, if valid.
    fn kernels(&self) -> Option<KernelCode> {
        None
    }

    /// Returns the planned sessions, whose memory is checked in advance.
    fn sessions(&self) -> Vec<PlannedSession<'_>> {
        Vec::new()
    }

    /// Runs the work.
    fn run<E: Executor>(self, executor: &E) -> Self::Outcome;
}

/// The CPU with a thread pool.
#[derive(Debug)]
pub struct CpuExecutor(pub Arc<Pool>);

impl Executor for CpuExecutor {
    type Backend = Cpu;

    fn backend(&self) -> Cpu {
        Cpu::new(&self.0)
    }

    fn load(&self, model: &Arc<Model>) -> Result<Arc<Model>, ExecError> {
        Ok(Arc::clone(model))
    }

    fn name(&self) -> String {
        format!("the processor ({})", self.backend().instruction_set())
    }

    fn arithmetic(&self) -> String {
        self.backend().instruction_set().to_owned()
    }
}

/// The CPU in float64.
#[derive(Debug)]
pub struct ReferenceExecutor;

impl Executor for ReferenceExecutor {
    type Backend = Reference;

    fn backend(&self) -> Reference {
        Reference
    }

    fn name(&self) -> String {
        "the processor in float64".to_owned()
    }
}

/// A GPU, with CPU threads to upload weights.
#[derive(Debug)]
pub struct GpuExecutor<D: Device>(pub D, pub Arc<Pool>);

impl<D: Device> Executor for GpuExecutor<D> {
    type Backend = Gpu<D>;

    fn backend(&self) -> Gpu<D> {
        Gpu::new(&self.0).laid_out_by(&self.1)
    }

    fn name(&self) -> String {
        self.0.name()
    }

    fn arithmetic(&self) -> String {
        let kernels = htc_kernels::cuda::source::sources_digest().to_string();
        let kernels = kernels.get(..8).unwrap_or_default();
        format!("{}, kernels {kernels}", self.0.name())
    }

    fn free_bytes(&self) -> Option<u64> {
        let [free, _] = self.0.memory_info().ok()?;
        (free < usize::MAX).then_some(free as u64)
    }

    fn needed_bytes(&self, sessions: &[PlannedSession<'_>]) -> u64 {
        GpuMemoryEstimate::for_sessions::<D>(sessions).bytes()
    }

    fn has_own_memory(&self) -> bool {
        true
    }

    fn remark(&self) -> Option<String> {
        self.0.launch_note()
    }

    fn identifier(&self) -> Option<String> {
        self.0.uuid()
    }

    fn linear_algebra(&self) -> Option<Result<Box<dyn LinearAlgebra>, DeviceError>> {
        self.0.linear_algebra()
    }
}

impl DeviceChoice {
    /// Returns the devices that this build has, as they are requested.
    fn names() -> Vec<&'static str> {
        let mut names = vec!["auto", "cpu"];
        if cfg!(feature = "cuda") {
            names.extend(["cuda", "cuda:N", "cuda:GPU-IDENTIFIER"]);
        }
        names.push("reference");
        if cfg!(feature = "emulated") {
            names.push("emulated");
        }
        names
    }

    /// Runs `work` on the device. If [`DeviceChoice::Auto`] falls back to the CPU, `told` gets the
    /// reason, except for a build without GPU support.
    ///
    /// # Errors
    /// [`ExecError`] if the device is not available, or its memory is insufficient.
    pub fn execute<W: DeviceWork>(
        self,
        pool: &Arc<Pool>,
        told: impl FnOnce(&ExecError),
        work: W,
    ) -> Result<W::Outcome, ExecError> {
        match self {
            DeviceChoice::Cpu => Ok(work.run(&CpuExecutor(Arc::clone(pool)))),
            DeviceChoice::Reference => Ok(work.run(&ReferenceExecutor)),
            DeviceChoice::Cuda(which) => run_on_cuda(which, pool, work).map_err(|(error, _)| error),
            DeviceChoice::Emulated => run_on_emulated(pool, work),
            DeviceChoice::Auto => {
                run_on_cuda(DeviceSelector::default(), pool, work).or_else(|(error, work)| {
                    if !matches!(error, ExecError::NotBuilt { .. }) {
                        told(&error);
                    }
                    Ok(work.run(&CpuExecutor(Arc::clone(pool))))
                })
            }
        }
    }
}

/// Opens an NVIDIA GPU with the precompiled kernels of `sealed`, or those of the user's cache,
/// filled by NVRTC.
///
/// # Errors
/// [`DeviceError`] if the GPU or kernels for it are not available.
#[cfg(feature = "cuda")]
pub fn open_cuda(
    which: DeviceSelector,
    sealed: Option<&KernelCode>,
) -> Result<crate::backend::CudaDevice, DeviceError> {
    use htc_kernels::cuda::driver::CudaOptions;

    let cache = htc_formats::folder::user_cache();
    let options = CudaOptions {
        precompiled: sealed,
        cache: cache.as_deref(),
        ..CudaOptions::default()
    };
    crate::backend::CudaDevice::open(which, options)
}

#[cfg(any(feature = "cuda", feature = "emulated"))]
fn run_on_gpu<D: Device, W: DeviceWork>(
    device: D,
    pool: &Arc<Pool>,
    work: W,
) -> Result<W::Outcome, (ExecError, W)> {
    match GpuMemoryEstimate::for_sessions::<D>(&work.sessions()).check(&device) {
        Ok(()) => Ok(work.run(&GpuExecutor(device, Arc::clone(pool)))),
        Err(error) => Err((error.into(), work)),
    }
}

#[cfg(feature = "cuda")]
fn run_on_cuda<W: DeviceWork>(
    which: DeviceSelector,
    pool: &Arc<Pool>,
    work: W,
) -> Result<W::Outcome, (ExecError, W)> {
    match open_cuda(which, work.kernels().as_ref()) {
        Ok(device) => run_on_gpu(device, pool, work),
        Err(error) => Err((error.into(), work)),
    }
}

#[cfg(not(feature = "cuda"))]
fn run_on_cuda<W: DeviceWork>(
    which: DeviceSelector,
    _: &Arc<Pool>,
    work: W,
) -> Result<W::Outcome, (ExecError, W)> {
    let device = DeviceChoice::Cuda(which);
    let feature = "cuda";
    Err((ExecError::NotBuilt { device, feature }, work))
}

#[cfg(feature = "emulated")]
fn run_on_emulated<W: DeviceWork>(pool: &Arc<Pool>, work: W) -> Result<W::Outcome, ExecError> {
    run_on_gpu(crate::backend::EmulatedDevice::new(0), pool, work).map_err(|(error, _)| error)
}

#[cfg(not(feature = "emulated"))]
fn run_on_emulated<W: DeviceWork>(_: &Arc<Pool>, _: W) -> Result<W::Outcome, ExecError> {
    Err(ExecError::NotBuilt {
        device: DeviceChoice::Emulated,
        feature: "emulated",
    })
}

#[cfg(test)]
mod tests;
