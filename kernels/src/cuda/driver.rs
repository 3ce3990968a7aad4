//! A GPU of NVIDIA, by its driver, whose library is loaded when a device is asked for: a program that is compiled with
//! this runs where there is none.

mod api;
mod find;
mod graphs;
mod launching;
mod linear;
mod memory;
mod modules;
mod staging;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdeviceptr, CUresult, CUstream};

pub use super::which::Which;
pub use find::{Found, LEAST};
pub use linear::CudaLinear;
pub use memory::CudaMemory;

use super::code::KernelCode;
use super::device::{Arguments, Device, DeviceError, Kernel, Memory, Unavailable, upload_each};
use super::step::{Step, StepCounts};
use crate::linear::{Linear, LinearError};
use api::check;
use graphs::Graphs;
use modules::Modules;
use staging::Staging;

/// How a device is opened.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Kernels that were compiled ahead of time, if there are any.
    pub sealed: Option<&'a KernelCode>,
    /// The user's cache, for kernels that are compiled here; without it they are compiled anew each time.
    pub cache: Option<&'a Path>,
    /// Whether a step is begun as one graph; else launch by launch.
    pub graphs: bool,
    /// Whether a launch of a graph may begin before the one in front of it has ended, where device, driver and kernels can
    /// (compute capability 9.0, CUDA 12.3). They may by default but where the environment has `HTC_NO_OVERLAP=1`, to
    /// measure what that gains.
    pub overlap: bool,
    /// Whether to wait for each launch, so that what goes wrong is told of the kernel that did it. Slow.
    pub waiting: bool,
    /// Whether kernels use tensor cores; else they are compiled here with exchanges of a warp in their place, which
    /// give the same bits of integers, and of floats others within the same bounds: slow, to hold one against the other. They do by default but where the environment has
    /// `HTC_PLAIN_MMA=1`, so that any program and any test can be run both ways.
    pub tensor_cores: bool,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options {
            sealed: None,
            cache: None,
            graphs: true,
            overlap: std::env::var_os("HTC_NO_OVERLAP").is_none_or(|value| value != "1"),
            waiting: false,
            tensor_cores: std::env::var_os("HTC_PLAIN_MMA").is_none_or(|value| value != "1"),
        }
    }
}

/// A GPU of NVIDIA. Everything that is asked of it happens in one order.
#[derive(Clone)]
pub struct Cuda {
    shared: Arc<Shared>,
}

/// What is kept until the step ends.
#[derive(Default)]
struct Record {
    open: bool,
    step: Step,
    /// Allocations that were dropped while launches that are kept may touch them.
    freed: Vec<CUdeviceptr>,
}

struct State {
    record: Record,
    modules: Modules,
    graphs: Graphs,
    /// Whether launches of a graph may begin early: that was asked for, and the driver did not refuse it.
    overlap: bool,
    counts: StepCounts,
    /// The kernel that was launched last.
    last: &'static str,
}

struct Shared {
    found: Found,
    options_graphs: bool,
    waiting: bool,
    code: String,
    device: CUdevice,
    context: CUcontext,
    stream: CUstream,
    state: Mutex<State>,
    staging: Mutex<Staging>,
}

// SAFETY: handles of the driver may be used by any thread in which their context is current, and every use makes it so.
unsafe impl Send for Shared {}
// SAFETY: as above; what changes is behind locks, and the driver has its own.
unsafe impl Sync for Shared {}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cuda")
            .field("found", &self.shared.found)
            .field("code", &self.shared.code)
            .finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cuda {
    /// All devices that the driver knows, those included that are too old.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] without a library, a driver or any device.
    pub fn devices() -> Result<Vec<Found>, DeviceError> {
        find::all()
    }

    /// Opens a device and brings the kernels to it: the sealed ones if they are of the same sources and run on it, else
    /// what the cache has or NVRTC compiles.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] where there is no device; [`DeviceError::NoCode`] without kernels for it, and
    /// [`DeviceError::Code`] where they do not compile or load.
    pub fn open(which: Which, options: Options<'_>) -> Result<Cuda, DeviceError> {
        let found = find::one(which)?;
        let device = find::handle(found.index as i32)?;
        let mut context: CUcontext = std::ptr::null_mut();
        // SAFETY: the driver was started and gave the handle.
        match unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let name = found.name;
                return Err(DeviceError::Unavailable(Unavailable::Full { name }));
            }
            code => check(code, "opening a device")?,
        }
        // From here on dropping it gives back whatever there is.
        let mut shared = Shared {
            options_graphs: options.graphs,
            waiting: options.waiting,
            code: String::new(),
            device,
            context,
            stream: std::ptr::null_mut(),
            state: Mutex::new(State {
                record: Record::default(),
                modules: Modules::default(),
                graphs: Graphs::default(),
                overlap: options.overlap && api::has("cuGraphAddDependencies_v2"),
                counts: StepCounts::default(),
                last: "(none)",
            }),
            staging: Mutex::new(Staging::new()),
            found,
        };
        shared.bind()?;
        shared.begin(options)?;
        Ok(Cuda {
            shared: Arc::new(shared),
        })
    }

    /// The device.
    pub fn found(&self) -> &Found {
        &self.shared.found
    }

    /// Where the kernels come from, as `sealed cubin for sm_90`.
    pub fn code(&self) -> &str {
        &self.shared.code
    }

    /// How steps were begun so far.
    pub fn steps(&self) -> StepCounts {
        locked(&self.shared.state).counts
    }
}

impl Shared {
    /// Makes the context that of this thread.
    fn bind(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is alive as long as this is.
        let code = unsafe { sys::cuCtxSetCurrent(self.context) };
        check(code, "taking a device")
    }

    /// Makes the stream, sets up memory, and loads kernels.
    fn begin(&mut self, options: Options<'_>) -> Result<(), DeviceError> {
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current.
        let code = unsafe { sys::cuStreamCreate(&mut self.stream, flags) };
        check(code, "making a stream")?;
        if self.found.pools {
            memory::keep_what_is_freed(self.device)?;
        }
        let (modules, code) = modules::load(self.found.architecture, options)?;
        locked(&self.state).modules = modules;
        self.code = code;
        Ok(())
    }

    /// What a code of the driver tells, with the kernel it is of.
    fn explain(
        &self,
        last: &'static str,
        code: CUresult,
        doing: &'static str,
    ) -> Result<(), DeviceError> {
        if code != CUresult::CUDA_SUCCESS && api::is_of_a_kernel(code) {
            let message = format!("{}, noticed when {doing}", api::meaning(code));
            return Err(DeviceError::Kernel {
                kernel: last,
                message,
            });
        }
        check(code, doing)
    }

    /// Ends an open step early: what was kept is launched before what comes now.
    fn interrupt(&self, state: &mut State) -> Result<(), DeviceError> {
        if !std::mem::take(&mut state.record.open) {
            return Ok(());
        }
        if !state.record.step.nodes().is_empty() {
            state.counts.interrupted += 1;
        }
        let launched = self.plainly(state);
        self.settle(state);
        launched
    }

    /// Forgets the step that was begun, and frees what waited for it.
    fn settle(&self, state: &mut State) {
        state.record.step.clear();
        for address in std::mem::take(&mut state.record.freed) {
            self.free(address);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.bind().is_err() {
            return;
        }
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let freed = std::mem::take(&mut state.record.freed);
        freed.into_iter().for_each(|address| self.free(address));
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let staging = self
            .staging
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the context is current, nothing runs behind the wait, and nobody has any of this any more. What fails
        // cannot be helped when everything is given back.
        unsafe {
            if !self.stream.is_null() {
                let _ = sys::cuStreamSynchronize(self.stream);
            }
            state.graphs.free();
            staging.free();
            state.modules.free();
            if !self.stream.is_null() {
                let _ = sys::cuStreamDestroy_v2(self.stream);
            }
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

impl Device for Cuda {
    type Memory = CudaMemory;

    fn name(&self) -> String {
        let Found {
            name, architecture, ..
        } = &self.shared.found;
        format!("{name}, {architecture}")
    }

    fn multiprocessors(&self) -> usize {
        self.shared.found.multiprocessors.max(1)
    }

    fn identifier(&self) -> Option<String> {
        Some(self.shared.found.identifier())
    }

    fn remark(&self) -> Option<String> {
        let state = locked(&self.shared.state);
        let why = state.graphs.given_up()?;
        Some(format!(
            "the driver makes no graph of the launches for a token, which are begun one by one and take longer: {why}"
        ))
    }

    fn shared_of_block(&self) -> usize {
        self.shared.found.shared_bytes
    }

    fn resident<A: Arguments>(
        &self,
        kernel: &Kernel<A>,
        shared_bytes: usize,
    ) -> Result<usize, DeviceError> {
        let shared = &*self.shared;
        shared.bind()?;
        let of_one =
            locked(&shared.state)
                .modules
                .resident(kernel.name, kernel.threads, shared_bytes)?;
        Ok(of_one * self.multiprocessors())
    }

    fn allocate(&self, bytes: usize) -> Result<CudaMemory, DeviceError> {
        CudaMemory::new(&self.shared, bytes.max(1))
    }

    fn room(&self) -> Result<[usize; 2], DeviceError> {
        self.shared.bind()?;
        memory::room(&self.shared)
    }

    fn upload(&self, from: &[u8], to: &CudaMemory, at: usize) -> Result<(), DeviceError> {
        to.span("upload", at, from.len())?;
        let shared = &*self.shared;
        shared.bind()?;
        let mut state = locked(&shared.state);
        shared.interrupt(&mut state)?;
        let address = to.address() + at as u64;
        // SAFETY: the context is current, and the span check says that so many bytes are there.
        let copied = unsafe { Staging::upload(&shared.staging, from, address, shared.stream) };
        let code = copied.err().unwrap_or(CUresult::CUDA_SUCCESS);
        shared.explain(state.last, code, "copying to the device")
    }

    /// They are written to memory that the device reads itself, where they fit and some is free.
    fn upload_parts(
        &self,
        to: &CudaMemory,
        parts: &[(usize, usize)],
        fill: &mut dyn FnMut(&mut [u8]) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut places = Vec::with_capacity(parts.len());
        let mut all = 0;
        for &(at, bytes) in parts {
            to.span("upload", at, bytes)?;
            all += bytes;
            if bytes > 0 {
                places.push((to.address() + at as u64, bytes));
            }
        }
        let shared = &*self.shared;
        shared.bind()?;
        // SAFETY: the context is current.
        let taken = || unsafe { Staging::take(&shared.staging, staging::MOST) }.ok();
        let Some(mut taken) = (all <= staging::BYTES).then(taken).flatten() else {
            return upload_each(self, to, parts, fill);
        };
        fill(taken.bytes(all))?;
        let mut state = locked(&shared.state);
        shared.interrupt(&mut state)?;
        // SAFETY: the context is current, and the span checks say that so many bytes are there.
        let copied = unsafe { taken.copy(&places, shared.stream) };
        let code = copied.err().unwrap_or(CUresult::CUDA_SUCCESS);
        shared.explain(state.last, code, "copying to the device")
    }

    fn download(&self, from: &CudaMemory, at: usize, to: &mut [u8]) -> Result<(), DeviceError> {
        from.span("download", at, to.len())?;
        let shared = &*self.shared;
        shared.bind()?;
        let mut state = locked(&shared.state);
        shared.interrupt(&mut state)?;
        let address = from.address() + at as u64;
        // SAFETY: the context is current, and the span check says that so many bytes are there.
        let copied = unsafe { Staging::download(&shared.staging, address, to, shared.stream) };
        let code = copied.err().unwrap_or(CUresult::CUDA_SUCCESS);
        shared.explain(state.last, code, "copying from the device")
    }

    fn copy(
        &self,
        (from, from_at): (&CudaMemory, usize),
        (to, to_at): (&CudaMemory, usize),
        bytes: usize,
    ) -> Result<(), DeviceError> {
        from.span("copy", from_at, bytes)?;
        to.span("copy", to_at, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let [from, to] = [(from, from_at), (to, to_at)].map(|(m, at)| m.address() + at as u64);
        let shared = &*self.shared;
        let mut state = locked(&shared.state);
        if state.record.open {
            state.record.step.copy(from, to, bytes);
            return Ok(());
        }
        shared.bind()?;
        // SAFETY: the context is current, and both span checks say that so many bytes are there.
        let code = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, shared.stream) };
        shared.explain(state.last, code, "copying on the device")
    }

    unsafe fn launch<A: Arguments>(
        &self,
        kernel: &Kernel<A>,
        grid: [u32; 3],
        shared_bytes: usize,
        arguments: &A,
    ) -> Result<(), DeviceError> {
        const {
            assert!(align_of::<A>() <= align_of::<u64>());
        }
        if grid.contains(&0) {
            return Ok(());
        }
        let shared = &*self.shared;
        let mut state = locked(&shared.state);
        let kept = state.record.open;
        state
            .record
            .step
            .launch(kernel, grid, shared_bytes, arguments);
        if kept {
            return Ok(());
        }
        let launched = shared.bind().and_then(|()| shared.plainly(&mut state));
        state.record.step.clear();
        launched
    }

    fn wait(&self) -> Result<(), DeviceError> {
        let shared = &*self.shared;
        shared.bind()?;
        let mut state = locked(&shared.state);
        shared.interrupt(&mut state)?;
        // SAFETY: the context is current and the stream is its.
        let code = unsafe { sys::cuStreamSynchronize(shared.stream) };
        shared.explain(state.last, code, "waiting for the device")
    }

    fn begin_step(&self) -> Result<(), DeviceError> {
        locked(&self.shared.state).record.open = true;
        Ok(())
    }

    fn end_step(&self) -> Result<(), DeviceError> {
        let shared = &*self.shared;
        let mut state = locked(&shared.state);
        if !std::mem::take(&mut state.record.open) || state.record.step.nodes().is_empty() {
            shared.settle(&mut state);
            return Ok(());
        }
        let begun = shared.bind().and_then(|()| {
            if shared.options_graphs && !shared.waiting {
                shared.as_one(&mut state)
            } else {
                state.counts.plain += 1;
                shared.plainly(&mut state)
            }
        });
        shared.settle(&mut state);
        begun
    }

    fn linear(&self) -> Option<Result<Box<dyn Linear>, LinearError>> {
        Some(Cuda::linear(self).map(|linear| Box::new(linear) as Box<dyn Linear>))
    }
}
