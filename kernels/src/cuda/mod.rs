//! Kernels for NVIDIA GPUs and the [`Device`]s that run them: a GPU, or its emulation
//! (`EmulatedDevice`, feature `emulated`) from the same sources. The functions of [`mod@ops`] check
//! the sizes of all operands and choose the grids.

#[cfg(feature = "cuda")]
mod cache;
pub mod code;
#[cfg(feature = "cuda")]
pub mod compile;
pub mod device;
#[cfg(feature = "cuda")]
pub mod driver;
#[cfg(feature = "emulated")]
mod emulated;
pub mod occupancy;
pub mod ops;
pub mod source;
#[cfg(any(feature = "cuda", feature = "emulated"))]
mod step;
#[cfg(all(test, feature = "emulated"))]
mod tests;
mod which;

pub use device::{
    Device, DeviceError, DeviceMemory, DeviceSpan, Kernel, KernelArguments, MemoryOffset,
};
#[cfg(feature = "cuda")]
pub use driver::{Cuda, CudaLinear, CudaMemory};
#[cfg(feature = "emulated")]
pub use emulated::{EmulatedDevice, EmulatedMemory, StepNode};
#[cfg(any(feature = "cuda", feature = "emulated"))]
pub use step::StepCounts;
pub use which::DeviceSelector;
