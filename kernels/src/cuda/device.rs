//! The interface of a device: memory and kernel launches.

use std::marker::PhantomData;

use crate::error::ShapeError;
use crate::linear::LinearAlgebra;

/// Error of a device operation, or of its linear algebra.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The driver library is missing.
    #[error("no CUDA device: the driver's library (libcuda) is not installed")]
    NoDriverLibrary,
    /// The driver does not initialise.
    #[error("no CUDA device: the driver does not start: {message}")]
    NoDriver {
        /// Message of the driver.
        message: String,
    },
    /// No device with the requested index.
    #[error("no CUDA device: device {requested} asked for, the driver knows {available}")]
    NoDevice {
        /// Requested index.
        requested: usize,
        /// Number of devices.
        available: usize,
    },
    /// No device with the requested identifier.
    #[error("no CUDA device: no device is {requested}; there are {available}")]
    UnknownUuid {
        /// Requested identifier.
        requested: String,
        /// Identifiers of the available devices.
        available: String,
    },
    /// The memory of the device is full.
    #[error("no CUDA device: {name} has no memory left to begin with")]
    DeviceFull {
        /// Device name.
        name: String,
    },
    /// The compute capability is too low.
    #[error("no CUDA device: {name} is of compute capability {capability}, kernels need {minimum}")]
    TooOld {
        /// Device name.
        name: String,
        /// Its compute capability, e.g. `6.1`.
        capability: String,
        /// Lowest supported compute capability.
        minimum: &'static str,
    },
    /// Not enough device memory for an allocation.
    #[error(
        "out of device memory: need {needed} more bytes, {free} of {total} are free; use a smaller model or fewer positions, or the processor"
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
    /// No convergence, e.g. for non-finite numbers.
    #[error("the decomposition of a matrix of order {order} did not converge")]
    NoConvergence {
        /// Number of rows and columns, or of columns of a tall matrix.
        order: usize,
    },
    /// A library is missing, too old, or fails to start.
    #[error(
        "{library} {message}; install cuSOLVER and cuBLAS of the CUDA toolkit (12.2 or newer), or put the libraries of the packages nvidia-cusolver and nvidia-cublas of PyPI, and of those they need, on the library path"
    )]
    NoLibrary {
        /// Name, e.g. `cuSOLVER`.
        library: &'static str,
        /// Problem, e.g. `is not installed`.
        message: String,
    },
    /// Any other error of the driver or of a library.
    #[error("{operation}: {message}")]
    Driver {
        /// Attempted operation.
        operation: &'static str,
        /// Message of the driver or library.
        message: String,
    },
}

impl DeviceError {
    /// Returns true if there is no usable device.
    pub fn is_unavailable(&self) -> bool {
        matches!(
            self,
            DeviceError::NoDriverLibrary
                | DeviceError::NoDriver { .. }
                | DeviceError::NoDevice { .. }
                | DeviceError::UnknownUuid { .. }
                | DeviceError::DeviceFull { .. }
                | DeviceError::TooOld { .. }
        )
    }
}

/// A device allocation, freed on drop after all earlier launches.
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

    /// Returns the byte of this allocation from which a copy reads or to which it writes.
    fn at(&self, offset: usize) -> MemoryOffset<'_, Self>
    where
        Self: Sized,
    {
        MemoryOffset {
            memory: self,
            offset,
        }
    }
}

/// Byte of an allocation.
#[derive(Clone, Copy, Debug)]
pub struct MemoryOffset<'a, M> {
    /// Allocation.
    pub memory: &'a M,
    /// Offset in bytes.
    pub offset: usize,
}

impl<M: DeviceMemory> MemoryOffset<'_, M> {
    /// Returns the address if `bytes` bytes from it on belong to the allocation.
    #[cfg(any(feature = "cuda", feature = "emulated"))]
    pub(super) fn address(&self, bytes: usize) -> Result<u64, DeviceError> {
        self.memory.span("copy", self.offset, bytes)?;
        Ok(self.memory.address() + self.offset as u64)
    }
}

/// A device pointer into an allocation, passed to kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct DeviceSpan {
    address: u64,
}

impl DeviceSpan {
    /// Null pointer, for an optional operand that is absent.
    pub const NULL: DeviceSpan = DeviceSpan { address: 0 };
}

/// Kernel arguments, with the layout of a struct in the kernel source.
///
/// # Safety
/// The type is an integer, a float or a [`DeviceSpan`], or consists of such types without padding.
pub unsafe trait KernelArguments: Copy + 'static {}

macro_rules! plain_arguments {
    ($($kind:ty),*) => {
        $(
            // SAFETY: of the listed types.
            unsafe impl KernelArguments for $kind {}
        )*
    };
}
plain_arguments!(u32, i32, u64, f32, f64, DeviceSpan);

// SAFETY: arrays have no padding.
unsafe impl<T: KernelArguments, const N: usize> KernelArguments for [T; N] {}

/// Defines [`KernelArguments`] of such arguments; checks that there is no padding.
macro_rules! kernel_arguments {
    ($($(#[$attribute:meta])* $visibility:vis struct $name:ident {
        $($(#[$field_attribute:meta])* $field_visibility:vis $field:ident: $kind:ty,)*
    })*) => {
        $(
            $(#[$attribute])*
            #[derive(Clone, Copy)]
            #[repr(C)]
            $visibility struct $name {
                $($(#[$field_attribute])* $field_visibility $field: $kind,)*
            }

            const _: () = {
                const fn check<T: crate::cuda::device::KernelArguments>() {}
                $(check::<$kind>();)*
                assert!(size_of::<$name>() == 0 $(+ size_of::<$kind>())*, "padding");
            };

            // SAFETY: all fields are such arguments, and there is no padding, as checked above.
            unsafe impl crate::cuda::device::KernelArguments for $name {}
        )*
    };
}
pub(super) use kernel_arguments;

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

/// [`Device::upload_parts`] through host memory.
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

    /// Returns a note for users about launches, e.g. that the driver does not support graphs.
    fn launch_note(&self) -> Option<String> {
        None
    }

    /// Returns the maximum dynamic shared memory per block in bytes.
    fn max_shared_bytes(&self) -> usize;

    /// Returns the maximum number of co-resident blocks of a kernel with `shared` bytes of dynamic
    /// shared memory on the idle device. A grid whose blocks wait for one another must not be
    /// larger. Zero if unknown.
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
    fn memory_info(&self) -> Result<[usize; 2], DeviceError>;

    /// Copies host bytes to byte offset `at`.
    fn upload(&self, from: &[u8], to: &Self::Memory, at: usize) -> Result<(), DeviceError>;

    /// Copies host bytes to several ranges of `to`. `fill` must write every byte of its buffer, the
    /// parts one after the other; copies nothing if it fails.
    fn upload_parts(
        &self,
        to: &Self::Memory,
        parts: &[(usize, usize)],
        fill: &mut dyn FnMut(&mut [u8]) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        upload_parts_via_host(self, to, parts, fill)
    }

    /// Copies bytes from offset `at` to the host after all earlier operations.
    fn download(&self, from: &Self::Memory, at: usize, to: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies bytes between allocations.
    fn copy(
        &self,
        from: MemoryOffset<'_, Self::Memory>,
        to: MemoryOffset<'_, Self::Memory>,
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
    fn synchronize(&self) -> Result<(), DeviceError>;

    /// Begins to record launches and copies until [`Device::end_step`], which may submit them as
    /// one graph. An upload, download or wait submits the recorded operations early. Steps do not
    /// nest and are shared by all clones of the device.
    fn begin_step(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Submits the operations recorded since [`Device::begin_step`], if any.
    fn end_step(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Returns double-precision linear algebra on this device, or `None` if the host implementation
    /// is to be used.
    fn linear_algebra(&self) -> Option<Result<Box<dyn LinearAlgebra>, DeviceError>> {
        None
    }
}
