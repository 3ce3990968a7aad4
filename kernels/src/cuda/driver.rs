//! NVIDIA GPUs through the CUDA driver API. The library is loaded on first use, so the program also
//! runs without a GPU.

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

/// Options for opening a device.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Precompiled kernels, if any.
    pub sealed: Option<&'a KernelCode>,
    /// Cache folder for kernels compiled on this machine; `None` compiles them at each start.
    pub cache: Option<&'a Path>,
    /// Submits each step as one CUDA graph instead of single launches.
    pub graphs: bool,
    /// Lets a launch in a graph begin before the previous one has ended (programmatic dependent
    /// launch; requires compute capability 9.0 and CUDA 12.3). Default: on, unless
    /// `HTC_NO_OVERLAP=1` is set.
    pub overlap: bool,
    /// Waits after each launch, so that errors are attributed to their kernel. Slow.
    pub waiting: bool,
    /// Uses tensor cores. Otherwise the kernels are compiled with warp shuffles instead: integer
    /// results are bit-identical, float results stay within the same error bounds. Slow, for
    /// comparison. Default: on, unless `HTC_PLAIN_MMA=1` is set.
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

/// An NVIDIA GPU. All operations run in one stream.
#[derive(Clone)]
pub struct Cuda {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Record {
    open: bool,
    step: Step,
    /// Allocations dropped while recorded launches may still access them.
    freed: Vec<CUdeviceptr>,
}

struct State {
    record: Record,
    modules: Modules,
    graphs: Graphs,
    /// Programmatic dependent launch is enabled and the driver has not rejected it.
    overlap: bool,
    counts: StepCounts,
    /// Kernel that was launched last.
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

// SAFETY: driver handles may be used by any thread in which their context is current; each use
// makes it current.
unsafe impl Send for Shared {}
// SAFETY: as above; mutable state is behind locks, and the driver is thread-safe.
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
    /// Returns all devices known to the driver, including unsupported ones.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] without a library, a driver or any device.
    pub fn devices() -> Result<Vec<Found>, DeviceError> {
        find::all()
    }

    /// Opens a device and loads the kernels: the precompiled ones if they match the sources and the
    /// device, otherwise from the cache or from NVRTC.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] without a usable device, [`DeviceError::NoCode`] without
    /// kernels for it, [`DeviceError::Code`] if they do not compile or load.
    pub fn open(which: Which, options: Options<'_>) -> Result<Cuda, DeviceError> {
        let found = find::one(which)?;
        let device = find::handle(found.index as i32)?;
        let mut context: CUcontext = std::ptr::null_mut();
        // SAFETY: the driver is initialised and returned the handle.
        match unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let name = found.name;
                return Err(DeviceError::Unavailable(Unavailable::Full { name }));
            }
            code => check(code, "opening a device")?,
        }
        // From here on, dropping it releases all resources.
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

    /// Returns the description of the device.
    pub fn found(&self) -> &Found {
        &self.shared.found
    }

    /// Returns the origin of the kernels, e.g. `sealed cubin for sm_90`.
    pub fn code(&self) -> &str {
        &self.shared.code
    }

    /// Returns the counters of steps.
    pub fn steps(&self) -> StepCounts {
        locked(&self.shared.state).counts
    }
}

impl Shared {
    fn bind(&self) -> Result<(), DeviceError> {
        // SAFETY: the context lives as long as `self`.
        let code = unsafe { sys::cuCtxSetCurrent(self.context) };
        check(code, "taking a device")
    }

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

    /// Ends an open step early: launches the recorded operations.
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

    /// Discards the recorded step and frees the allocations that waited for it.
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
        // SAFETY: the context is current, nothing runs after the synchronisation, and no other
        // references exist. Errors are ignored during teardown.
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
        // SAFETY: the context is current, and the span check guarantees the number of bytes.
        let copied = unsafe { Staging::upload(&shared.staging, from, address, shared.stream) };
        let code = copied.err().unwrap_or(CUresult::CUDA_SUCCESS);
        shared.explain(state.last, code, "copying to the device")
    }

    /// Uses a pinned buffer if the parts fit in one and one is free.
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
        // SAFETY: the context is current, and the span checks guarantee the number of bytes.
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
        // SAFETY: the context is current, and the span check guarantees the number of bytes.
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
        // SAFETY: the context is current, and both spans were checked.
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
        // SAFETY: the context is current and owns the stream.
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
