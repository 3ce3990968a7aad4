//! Kernels for NVIDIA GPUs, and what they run on.
//!
//! A [`Device`] has memory and launches kernels: a GPU, or the processor that emulates one
//! (`Emulated`, with the feature `emulated`), which executes the same sources with the same launches. The functions
//! of [`mod@ops`] are generic over it: they check the sizes of everything that a kernel touches, and choose
//! its grid.

pub mod device;
#[cfg(feature = "emulated")]
mod emulated;
pub mod ops;
#[cfg(all(test, feature = "emulated"))]
mod tests;

pub use device::{Arguments, Device, DeviceError, Kernel, Memory, Span};
#[cfg(feature = "emulated")]
pub use emulated::{Emulated, EmulatedMemory};
