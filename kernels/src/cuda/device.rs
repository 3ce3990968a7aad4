//! The interface of a device: memory and kernel launches.

use std::marker::PhantomData;

use crate::error::ShapeError;
use crate::linear::{LinearAlgebra, LinearError};

/// Error of a device operation.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// No usable device.
    #[error("no CUDA device: {0}")]
    Unavailable(DeviceUnavailable),
    /// Not enough device memory for an allocation.
    #[error(
        "the device has no room for {needed} bytes more: {free} of {total} are free; use a smaller model or fewer positions, or the processor"
    )]
    OutOfMemory {
        /// Requested bytes.
        needed: usize,
        /// Free bytes.
        free: usize,
        /// Total bytes of the device.
        total: usize,
    },
    /// A launch failed, or an earlier one did.
    #[error("kernel {kernel}: {message}")]
    Kernel {
        /// Kernel that was launched when the failure was detected.
        kernel: &'static str,
        /// Message of the driver.
        message: String,
    },
    /// Kernel sources do not compile, or code does not load.
    #[error("kernels for {architecture}: {message}")]
    Code {
        /// Architecture, e.g. `sm_90`.
        architecture: String,
        /// Message of the compiler or driver.
        message: String,
    },
    /// Neither precompiled kernels nor a compiler.
    #[error(
        "no kernels for {architecture}: {mismatch}, and {compiler}; install NVRTC (libnvrtc), or execute an artifact that was compiled with --cuda-arch {architecture}"
    )]
    NoCode {
        /// Architecture, e.g. `sm_90`.
        architecture: String,
        /// Reason why the kernels of the artifact do not run here.
        mismatch: String,
        /// Reason why there is no compiler.
        compiler: String,
    },
    /// Access beyond the end of an allocation.
    #[error("{operand}: {needed} bytes from byte {start} on of an allocation of {available}")]
    OutOfBounds {
        /// Name of the accessed operand.
        operand: &'static str,
        /// First byte.
        start: usize,
        /// Requested bytes.
        needed: usize,
        /// Bytes of the allocation.
        available: usize,
    },
    /// Shapes do not match.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// Any other driver error.
    #[error("{operation}: {message}")]
    Driver {
        /// Attempted operation.
        operation: &'static str,
        /// Message of the driver.
        message: String,
    },
}

/// Reason why no device is available.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceUnavailable {
    /// The driver library is missing.
    #[error("the driver's library (libcuda) is not installed")]
    NoLibrary,
    /// The driver does not initialise.
    #[error("the driver does not start: {message}")]
    NoDriver {
        /// Message of the driver.
        message: String,
    },
    /// No device with the requested index.
    #[error("device {requested} asked for, the driver knows {available}")]
    NoDevice {
        /// Requested index.
        requested: usize,
        /// Number of devices.
        available: usize,
    },
    /// No device with the requested identifier.
    #[error("no device is {requested}; there are {available}")]
    UnknownUuid {
        /// Requested identifier.
        requested: String,
        /// Identifiers of the available devices.
        available: String,
    },
    /// The memory of the device is full.
    #[error("{name} has no memory left to begin with")]
    Full {
        /// Device name.
        name: String,
    },
    /// The compute capability is too low.
    #[error("{name} is of compute capability {capability}, kernels need {minimum}")]
    TooOld {
        /// Device name.
        name: String,
        /// Its compute capability, e.g. `6.1`.
        capability: String,
        /// Lowest supported compute capability.
        minimum: &'static str,
    },
}

/// A device allocation, freed on drop in stream order, after all earlier launches.
#[allow(
    clippy::len_without_is_empty,
    reason = "bytes of an allocation, which is never empty"
)]
pub trait DeviceMemory: std::fmt::Debug + Send + Sync {
    /// Returns the device address; only kernels may dereference it.
    fn address(&self) -> u64;

    /// Returns the length in bytes.
    fn len(&self) -> usize;

    /// Returns the span of `bytes` bytes from byte `start`.
    ///
    /// # Errors
    /// [`DeviceError::OutOfBounds`] if it exceeds the allocation.
    fn span(
        &self,
        what: &'static str,
        start: usize,
        bytes: usize,
    ) -> Result<DeviceSpan, DeviceError> {
        let fits = start
            .checked_add(bytes)
            .is_some_and(|end| end <= self.len());
        if !fits {
            return Err(DeviceError::OutOfBounds {
                operand: what,
                start,
                needed: bytes,
                available: self.len(),
            });
        }
        Ok(DeviceSpan {
            address: self.address() + start as u64,
        })
    }
}

/// A device pointer into an allocation, passed to kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct DeviceSpan {
    address: u64,
}

impl DeviceSpan {
    /// Null pointer, for an optional operand that is absent.
    pub const NULL: DeviceSpan = DeviceSpan { address: 0 };
}

/// Kernel arguments: one structure with the layout of the struct of the same name in the kernel
/// source.
///
/// # Safety
/// The type is `repr(C)` without implicit padding and consists of integers, floats and [`DeviceSpan`]s,
/// so its alignment is at most 8.
pub unsafe trait KernelArguments: Copy + 'static {}

/// A kernel and the number of threads per block.
#[derive(Debug)]
pub struct Kernel<A> {
    /// Kernel name in the sources.
    pub name: &'static str,
    /// Threads per block, a multiple of the warp size.
    pub threads: u32,
    arguments: PhantomData<fn(A)>,
}

impl<A: KernelArguments> Kernel<A> {
    /// Returns the kernel with this name.
    pub const fn new(name: &'static str, threads: u32) -> Self {
        Kernel {
            name,
            threads,
            arguments: PhantomData,
        }
    }
}

/// Implements [`Device::upload_parts`] with a buffer in ordinary host memory.
pub(super) fn upload_parts_via_host<D: Device>(
    device: &D,
    to: &D::Memory,
    parts: &[(usize, usize)],
    fill: &mut dyn FnMut(&mut [u8]) -> Result<(), DeviceError>,
) -> Result<(), DeviceError> {
    for &(at, bytes) in parts {
        to.span("upload", at, bytes)?;
    }
    let mut bytes = vec![0; parts.iter().map(|&(_, bytes)| bytes).sum()];
    fill(&mut bytes)?;
    let mut rest = bytes.as_slice();
    for &(at, count) in parts {
        let (part, behind) = rest.split_at(count);
        device.upload(part, to, at)?;
        rest = behind;
    }
    Ok(())
}

/// Device memory and kernel launches with stream order: each operation sees the results of all
/// earlier ones.
///
/// Cloning shares the device.
pub trait Device: std::fmt::Debug + Clone + Send + Sync + 'static {
    /// Allocation type.
    type Memory: DeviceMemory;

    /// Returns the device name, e.g. `NVIDIA H100, sm_90`.
    fn name(&self) -> String;

    /// Returns the number of multiprocessors.
    fn multiprocessors(&self) -> usize;

    /// Returns the UUID of a GPU, as used by NVML.
    fn uuid(&self) -> Option<String> {
        None
    }

    /// Returns a note for users about launches on this device, e.g. that the driver does not
    /// support graphs.
    fn launch_note(&self) -> Option<String> {
        None
    }

    /// Returns the maximum dynamic shared memory per block in bytes.
    fn max_shared_bytes(&self) -> usize;

    /// Returns the maximum number of co-resident blocks of a kernel with `shared` bytes of dynamic
    /// shared memory on the idle device. A grid whose blocks wait for one another must not be
    /// larger. Zero if unknown.
    ///
    /// # Errors
    /// [`DeviceError`] of the driver.
    fn max_resident_blocks<A: KernelArguments>(
        &self,
        _kernel: &Kernel<A>,
        _shared: usize,
    ) -> Result<usize, DeviceError> {
        Ok(0)
    }

    /// Allocates `bytes` bytes of unspecified value, aligned to 256; at least one byte.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn allocate(&self, bytes: usize) -> Result<Self::Memory, DeviceError>;

    /// Returns the free and total bytes.
    ///
    /// # Errors
    /// [`DeviceError`] of the driver.
    fn memory_info(&self) -> Result<[usize; 2], DeviceError>;

    /// Copies host bytes to byte offset `at`.
    ///
    /// # Errors
    /// [`DeviceError::OutOfBounds`], or a driver error.
    fn upload(&self, from: &[u8], to: &Self::Memory, at: usize) -> Result<(), DeviceError>;

    /// Copies host bytes to several ranges of `to`. `fill` must write every byte of its buffer, the
    /// parts one after the other; the previous content is unspecified. Copies nothing if `fill`
    /// fails.
    ///
    /// # Errors
    /// The error of `fill`, [`DeviceError::OutOfBounds`], or a driver error.
    fn upload_parts(
        &self,
        to: &Self::Memory,
        parts: &[(usize, usize)],
        fill: &mut dyn FnMut(&mut [u8]) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        upload_parts_via_host(self, to, parts, fill)
    }

    /// Copies bytes from offset `at` to the host after all earlier operations.
    ///
    /// # Errors
    /// [`DeviceError::OutOfBounds`], or the error of an earlier operation.
    fn download(&self, from: &Self::Memory, at: usize, to: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies `bytes` bytes between allocations, each from a byte offset on.
    ///
    /// # Errors
    /// [`DeviceError::OutOfBounds`], or a driver error.
    fn copy(
        &self,
        from: &Self::Memory,
        from_at: usize,
        to: &Self::Memory,
        to_at: usize,
        bytes: usize,
    ) -> Result<(), DeviceError>;

    /// Launches a kernel with `grid` blocks and `shared` bytes of dynamic shared memory. An empty
    /// grid is a no-op.
    ///
    /// # Errors
    /// [`DeviceError::Kernel`], of this or an earlier launch.
    ///
    /// # Safety
    /// All memory that the kernel accesses with these arguments and this grid lies in live
    /// allocations, and nothing else reads the memory it writes at the same time.
    unsafe fn launch<A: KernelArguments>(
        &self,
        kernel: &Kernel<A>,
        grid: [u32; 3],
        shared: usize,
        arguments: &A,
    ) -> Result<(), DeviceError>;

    /// Waits for all earlier operations.
    ///
    /// # Errors
    /// The error of an earlier operation.
    fn synchronize(&self) -> Result<(), DeviceError>;

    /// Begins to record launches and copies until [`Device::end_step`], which may submit them as
    /// one graph. Replaying a graph costs a fraction of its launches. An upload, download or wait
    /// ends the step early and submits the recorded operations first. Steps do not nest and are
    /// shared by all clones of the device.
    ///
    /// # Errors
    /// [`DeviceError`] of the driver.
    fn begin_step(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Submits the operations recorded since [`Device::begin_step`], if any.
    ///
    /// # Errors
    /// The errors of the launches and copies of the step.
    fn end_step(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Returns double-precision linear algebra on this device, or `None` if the host implementation
    /// is to be used.
    fn linear_algebra(&self) -> Option<Result<Box<dyn LinearAlgebra>, LinearError>> {
        None
    }
}
