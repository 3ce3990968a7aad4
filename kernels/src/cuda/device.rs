//! What has memory of its own and launches kernels on it.

use std::marker::PhantomData;

use crate::error::ShapeError;
use crate::linear::{Linear, LinearError};

/// Why a device did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no device of this kind here.
    #[error("no CUDA device: {0}")]
    Unavailable(Unavailable),
    /// No room for an allocation.
    #[error(
        "the device has no room for {needed} bytes more: {free} of {total} are free; use a smaller model or fewer positions, or the processor"
    )]
    OutOfMemory {
        /// Bytes that were asked for.
        needed: usize,
        /// Bytes that are free.
        free: usize,
        /// Bytes of the device.
        total: usize,
    },
    /// A launch that failed, or one before it did.
    #[error("kernel {kernel}: {message}")]
    Kernel {
        /// The kernel that was launched when the failure was noticed.
        kernel: &'static str,
        /// What the device says.
        message: String,
    },
    /// Sources that do not compile, or code that does not load.
    #[error("kernels for {architecture}: {message}")]
    Code {
        /// The architecture, as `sm_90`.
        architecture: String,
        /// What the compiler or the driver says.
        message: String,
    },
    /// Neither code that was compiled ahead of time nor a compiler.
    #[error(
        "no kernels for {architecture}: {sealed}, and {compiler}; install NVRTC (libnvrtc), or execute an artifact that was compiled with --cuda-arch {architecture}"
    )]
    NoCode {
        /// The architecture, as `sm_90`.
        architecture: String,
        /// Why what the artifact has does not serve.
        sealed: String,
        /// Why there is no compiler.
        compiler: String,
    },
    /// Numbers beyond an allocation.
    #[error("{what}: {needed} bytes from byte {start} on of an allocation of {found}")]
    Range {
        /// What was asked for.
        what: &'static str,
        /// The first byte.
        start: usize,
        /// Bytes asked for.
        needed: usize,
        /// Bytes there are.
        found: usize,
    },
    /// Sizes that do not fit each other.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// Something else that the driver says.
    #[error("{doing}: {message}")]
    Driver {
        /// What was tried.
        doing: &'static str,
        /// What the driver says.
        message: String,
    },
}

/// Why there is no device.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// No library of the driver.
    #[error("the driver's library (libcuda) is not installed")]
    NoLibrary,
    /// The library is there, but does not come up.
    #[error("the driver does not start: {message}")]
    NoDriver {
        /// What it says.
        message: String,
    },
    /// A driver, but not a device, or not so many.
    #[error("device {asked} asked for, the driver knows {found}")]
    NoDevice {
        /// Index of the device asked for.
        asked: usize,
        /// Devices there are.
        found: usize,
    },
    /// None of this identifier.
    #[error("no device is {asked}; there are {found}")]
    NoSuch {
        /// The identifier asked for.
        asked: String,
        /// Those there are.
        found: String,
    },
    /// A device that others have filled.
    #[error("{name} has no memory left to begin with")]
    Full {
        /// Its name.
        name: String,
    },
    /// A device without what kernels need.
    #[error("{name} is of compute capability {found}, kernels need {least}")]
    TooOld {
        /// Its name.
        name: String,
        /// Its compute capability, as `6.1`.
        found: String,
        /// The least that serves.
        least: &'static str,
    },
}

/// An allocation on a device, given back when it is dropped, behind everything that was launched before.
pub trait Memory: std::fmt::Debug + Send + Sync {
    /// Where it begins, for kernels alone.
    fn address(&self) -> u64;

    /// Its length.
    fn bytes(&self) -> usize;

    /// `bytes` of it from byte `start` on.
    ///
    /// # Errors
    /// [`DeviceError::Range`] where there are fewer.
    fn span(&self, what: &'static str, start: usize, bytes: usize) -> Result<Span, DeviceError> {
        let fits = start
            .checked_add(bytes)
            .is_some_and(|end| end <= self.bytes());
        if !fits {
            return Err(DeviceError::Range {
                what,
                start,
                needed: bytes,
                found: self.bytes(),
            });
        }
        Ok(Span {
            address: self.address() + start as u64,
        })
    }
}

/// A part of an allocation, as kernels are given it: a pointer of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Span {
    address: u64,
}

impl Span {
    /// None: a kernel that gets it does without.
    pub const NONE: Span = Span { address: 0 };
}

/// What a kernel takes: one structure, of the layout that its source declares under the same name.
///
/// # Safety
/// `repr(C)`, without padding that is not a field, made of integers, floats and [`Span`]s; so of an alignment of 8 at most.
pub unsafe trait Arguments: Copy + 'static {}

/// A kernel by name, with the threads of its blocks.
#[derive(Debug)]
pub struct Kernel<A> {
    /// Its name in the sources.
    pub name: &'static str,
    /// Threads of a block, whole warps.
    pub threads: u32,
    arguments: PhantomData<fn(A)>,
}

impl<A: Arguments> Kernel<A> {
    /// The kernel of this name.
    pub const fn new(name: &'static str, threads: u32) -> Self {
        Kernel {
            name,
            threads,
            arguments: PhantomData,
        }
    }
}

/// [`Device::upload_parts`] by way of memory that is nothing but the host's.
pub(super) fn upload_each<D: Device>(
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

/// Memory and launches, in one order: whatever is asked for sees the results of all that was asked for before.
///
/// Cloning shares the device.
pub trait Device: std::fmt::Debug + Clone + Send + Sync + 'static {
    /// An allocation.
    type Memory: Memory;

    /// What it is called, as in `NVIDIA H100, sm_90`.
    fn name(&self) -> String;

    /// Multiprocessors: blocks that run side by side, at the least.
    fn multiprocessors(&self) -> usize;

    /// A GPU's identifier, by which its management library knows it, too.
    fn identifier(&self) -> Option<String> {
        None
    }

    /// What users should know of how launches go on it, as that the driver makes no graphs of them.
    fn remark(&self) -> Option<String> {
        None
    }

    /// Bytes of shared memory that a block may ask for at most.
    fn shared_of_block(&self) -> usize;

    /// Blocks of a kernel, with so much dynamic shared memory each, that are on the device at a time where nothing else is: a
    /// grid whose blocks wait for one another has no more. Zero where the device does not say.
    ///
    /// # Errors
    /// [`DeviceError`] of the driver.
    fn resident<A: Arguments>(
        &self,
        _kernel: &Kernel<A>,
        _shared: usize,
    ) -> Result<usize, DeviceError> {
        Ok(0)
    }

    /// So many bytes, of unspecified value, at an address that is a multiple of 256; one for none.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn allocate(&self, bytes: usize) -> Result<Self::Memory, DeviceError>;

    /// Bytes that are free, and all there are.
    ///
    /// # Errors
    /// [`DeviceError`] of the driver.
    fn room(&self) -> Result<[usize; 2], DeviceError>;

    /// Copies bytes of the host to byte `at` and those behind it.
    ///
    /// # Errors
    /// [`DeviceError::Range`], or of the driver.
    fn upload(&self, from: &[u8], to: &Self::Memory, at: usize) -> Result<(), DeviceError>;

    /// Copies bytes to several places, each the first of so many: those that `fill` writes to all bytes that it is given, which may
    /// be anything before, one part behind the other. Nothing is copied where it fails.
    ///
    /// # Errors
    /// That of `fill`; [`DeviceError::Range`], or of the driver.
    fn upload_parts(
        &self,
        to: &Self::Memory,
        parts: &[(usize, usize)],
        fill: &mut dyn FnMut(&mut [u8]) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        upload_each(self, to, parts, fill)
    }

    /// Copies byte `at` and those behind it to the host, once all before is done.
    ///
    /// # Errors
    /// [`DeviceError::Range`], or of anything before.
    fn download(&self, from: &Self::Memory, at: usize, to: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies bytes from one allocation to another.
    ///
    /// # Errors
    /// [`DeviceError::Range`], or of the driver.
    fn copy(
        &self,
        from: (&Self::Memory, usize),
        to: (&Self::Memory, usize),
        bytes: usize,
    ) -> Result<(), DeviceError>;

    /// Launches a kernel on `grid` blocks with `shared` bytes of dynamic shared memory. A grid without blocks does nothing.
    ///
    /// # Errors
    /// [`DeviceError::Kernel`], of this launch or of one before.
    ///
    /// # Safety
    /// Whatever the kernel touches with these arguments and this grid lies in allocations that are alive, and what it
    /// writes is read by nobody else meanwhile.
    unsafe fn launch<A: Arguments>(
        &self,
        kernel: &Kernel<A>,
        grid: [u32; 3],
        shared: usize,
        arguments: &A,
    ) -> Result<(), DeviceError>;

    /// Waits until everything is done.
    ///
    /// # Errors
    /// Of anything before.
    fn wait(&self) -> Result<(), DeviceError>;

    /// From here on launches and copies may be kept until [`Device::end_step`], to be begun as one: a device that does
    /// so begins a step like one before at a fraction of the cost of its launches. An upload, a download or a wait ends
    /// the step: what was kept is begun before it. Steps do not nest; they are the device's, whoever has it.
    ///
    /// # Errors
    /// [`DeviceError`] of the driver.
    fn begin_step(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Begins what was kept since [`Device::begin_step`]; nothing without one.
    ///
    /// # Errors
    /// Those of the launches and copies of the step.
    fn end_step(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Linear algebra in double precision on this device; none where it has none of its own and the host's serves.
    fn linear(&self) -> Option<Result<Box<dyn Linear>, LinearError>> {
        None
    }
}
