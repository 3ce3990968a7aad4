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

pub use super::which::DeviceSelector;
pub use find::{DeviceProperties, MIN_ARCHITECTURE};
pub use linear::CudaLinear;
pub use memory::CudaMemory;

use super::code::KernelCode;
use super::device::{
    Device, DeviceError, DeviceMemory, Kernel, KernelArguments, MemoryOffset, upload_parts_via_host,
};
use super::step::{Step, StepCounts};
use crate::linear::LinearAlgebra;
use api::check_driver;
use graphs::GraphCache;
use modules::Modules;
use staging::StagingPool;

/// Options for opening a device.
#[derive(Clone, Copy, Debug)]
pub struct CudaOptions<'a> {
    /// Precompiled kernels, if any.
    pub precompiled: Option<&'a KernelCode>,
    /// Cache folder for kernels compiled on this machine; `None` compiles them at each start.
    pub cache: Option<&'a Path>,
    /// Submits each step as one CUDA graph instead of single launches.
    pub use_graphs: bool,
    /// Lets a launch in a graph begin before the previous one has ended (programmatic dependent
    /// launch; compute capability 9.0, CUDA 12.3). Default: on, unless `HTC_NO_OVERLAP=1` is set.
    pub overlap_launches: bool,
    /// Waits after each launch, so that errors are attributed to their kernel.
    pub synchronous_launches: bool,
    /// Uses tensor cores; otherwise warp shuffles, with bit-identical integer results, for
    /// comparison. Default: on, unless `HTC_PLAIN_MMA=1` is set.
    pub tensor_cores: bool,
}

impl Default for CudaOptions<'_> {
    fn default() -> Self {
        CudaOptions {
            precompiled: None,
            cache: None,
            use_graphs: true,
            overlap_launches: std::env::var_os("HTC_NO_OVERLAP").is_none_or(|value| value != "1"),
            synchronous_launches: false,
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
struct StepRecording {
    open: bool,
    step: Step,
    /// Allocations dropped while recorded launches may still access them.
    deferred_frees: Vec<CUdeviceptr>,
}

struct State {
    record: StepRecording,
    modules: Modules,
    graphs: GraphCache,
    /// Off if the driver has rejected it.
    overlap: bool,
    counts: StepCounts,
    last_kernel: &'static str,
}

struct Shared {
    found: DeviceProperties,
    options_graphs: bool,
    waiting: bool,
    code: String,
    device: CUdevice,
    context: CUcontext,
    stream: CUstream,
    state: Mutex<State>,
    staging: Mutex<StagingPool>,
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

fn lock_ignoring_poison<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cuda {
    /// Returns all devices known to the driver, including unsupported ones.
    ///
    /// # Errors
    /// Without a library, a driver or any device.
    pub fn devices() -> Result<Vec<DeviceProperties>, DeviceError> {
        find::list_devices()
    }

    /// Opens a device and loads the kernels: the precompiled ones if they match the sources and the
    /// device, otherwise from the cache or from NVRTC.
    ///
    /// # Errors
    /// Without a usable device, [`DeviceError::NoCode`] without kernels for it,
    /// [`DeviceError::Code`] if they do not compile or load.
    pub fn open(which: DeviceSelector, options: CudaOptions<'_>) -> Result<Cuda, DeviceError> {
        let found = find::select_device(which)?;
        let device = find::device_handle(found.index as i32)?;
        let mut context: CUcontext = std::ptr::null_mut();
        // SAFETY: the driver is initialised and returned the handle.
        match unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let name = found.name;
                return Err(DeviceError::DeviceFull { name });
            }
            code => check_driver(code, "opening a device")?,
        }
        let mut shared = Shared {
            options_graphs: options.use_graphs,
            waiting: options.synchronous_launches,
            code: String::new(),
            device,
            context,
            stream: std::ptr::null_mut(),
            state: Mutex::new(State {
                record: StepRecording::default(),
                modules: Modules::default(),
                graphs: GraphCache::default(),
                overlap: options.overlap_launches && api::has_function("cuGraphAddDependencies_v2"),
                counts: StepCounts::default(),
                last_kernel: "(none)",
            }),
            staging: Mutex::new(StagingPool::new()),
            found,
        };
        shared.make_current()?;
        shared.initialise(options)?;
        Ok(Cuda {
            shared: Arc::new(shared),
        })
    }

    /// Returns the description of the device.
    pub fn properties(&self) -> &DeviceProperties {
        &self.shared.found
    }

    /// Returns the origin of the kernels, e.g. `sealed cubin for sm_90`.
    pub fn code_origin(&self) -> &str {
        &self.shared.code
    }

    /// Returns the counters of steps.
    pub fn step_counts(&self) -> StepCounts {
        lock_ignoring_poison(&self.shared.state).counts
    }
}

impl Shared {
    fn make_current(&self) -> Result<(), DeviceError> {
        // SAFETY: the context lives as long as `self`.
        let code = unsafe { sys::cuCtxSetCurrent(self.context) };
        check_driver(code, "taking a device")
    }

    fn initialise(&mut self, options: CudaOptions<'_>) -> Result<(), DeviceError> {
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current.
        let code = unsafe { sys::cuStreamCreate(&mut self.stream, flags) };
        check_driver(code, "making a stream")?;
        if self.found.has_memory_pools {
            memory::retain_freed_memory(self.device)?;
        }
        let (modules, code) = modules::load_kernels(self.found.architecture, options)?;
        lock_ignoring_poison(&self.state).modules = modules;
        self.code = code;
        Ok(())
    }

    fn check_launch(
        &self,
        last: &'static str,
        code: CUresult,
        doing: &'static str,
    ) -> Result<(), DeviceError> {
        if code != CUresult::CUDA_SUCCESS && api::is_kernel_error(code) {
            let message = format!("{}, noticed when {doing}", api::error_description(code));
            return Err(DeviceError::Kernel {
                kernel: last,
                message,
            });
        }
        check_driver(code, doing)
    }

    fn flush_step(&self, state: &mut State) -> Result<(), DeviceError> {
        if !std::mem::take(&mut state.record.open) {
            return Ok(());
        }
        if !state.record.step.nodes().is_empty() {
            state.counts.interrupted += 1;
        }
        let launched = self.submit_launches(state);
        self.clear_step(state);
        launched
    }

    /// Makes the context current and locks the state, after an open step has been submitted.
    fn lock_without_step(&self) -> Result<MutexGuard<'_, State>, DeviceError> {
        self.make_current()?;
        let mut state = lock_ignoring_poison(&self.state);
        self.flush_step(&mut state)?;
        Ok(state)
    }

    fn clear_step(&self, state: &mut State) {
        state.record.step.clear();
        for address in std::mem::take(&mut state.record.deferred_frees) {
            self.free(address);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.make_current().is_err() {
            return;
        }
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let freed = std::mem::take(&mut state.record.deferred_frees);
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
        let DeviceProperties {
            name, architecture, ..
        } = &self.shared.found;
        format!("{name}, {architecture}")
    }

    fn multiprocessors(&self) -> usize {
        self.shared.found.multiprocessors.max(1)
    }

    fn uuid(&self) -> Option<String> {
        Some(self.shared.found.uuid_string())
    }

    fn launch_note(&self) -> Option<String> {
        let state = lock_ignoring_poison(&self.shared.state);
        let why = state.graphs.disabled_reason()?;
        Some(format!(
            "the driver makes no graph of the launches for a token, which are begun one by one and take longer: {why}"
        ))
    }

    fn max_shared_bytes(&self) -> usize {
        self.shared.found.max_shared_bytes
    }

    fn max_resident_blocks<A: KernelArguments>(
        &self,
        kernel: &Kernel<A>,
        shared_bytes: usize,
    ) -> Result<usize, DeviceError> {
        let shared = &*self.shared;
        shared.make_current()?;
        let of_one = lock_ignoring_poison(&shared.state)
            .modules
            .resident_blocks(kernel.name, kernel.threads, shared_bytes)?;
        Ok(of_one * self.multiprocessors())
    }

    fn allocate(&self, bytes: usize) -> Result<CudaMemory, DeviceError> {
        CudaMemory::new(&self.shared, bytes.max(1))
    }

    fn memory_info(&self) -> Result<[usize; 2], DeviceError> {
        self.shared.make_current()?;
        memory::memory_info(&self.shared)
    }

    fn upload(&self, from: &[u8], to: &CudaMemory, at: usize) -> Result<(), DeviceError> {
        to.span("upload", at, from.len())?;
        let shared = &*self.shared;
        let state = shared.lock_without_step()?;
        let address = to.address() + at as u64;
        // SAFETY: the context is current, and the span check guarantees the number of bytes.
        let copied = unsafe { StagingPool::upload(&shared.staging, from, address, shared.stream) };
        let code = copied.err().unwrap_or(CUresult::CUDA_SUCCESS);
        shared.check_launch(state.last_kernel, code, "copying to the device")
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
        shared.make_current()?;
        // SAFETY: the context is current.
        let taken = || unsafe { StagingPool::take(&shared.staging, staging::MAX_BUFFERS) }.ok();
        let Some(mut taken) = (all <= staging::BUFFER_BYTES).then(taken).flatten() else {
            return upload_parts_via_host(self, to, parts, fill);
        };
        fill(taken.bytes(all))?;
        let state = shared.lock_without_step()?;
        // SAFETY: the context is current, and the span checks guarantee the number of bytes.
        let copied = unsafe { taken.copy(&places, shared.stream) };
        let code = copied.err().unwrap_or(CUresult::CUDA_SUCCESS);
        shared.check_launch(state.last_kernel, code, "copying to the device")
    }

    fn download(&self, from: &CudaMemory, at: usize, to: &mut [u8]) -> Result<(), DeviceError> {
        from.span("download", at, to.len())?;
        let shared = &*self.shared;
        let state = shared.lock_without_step()?;
        let address = from.address() + at as u64;
        // SAFETY: the context is current, and the span check guarantees the number of bytes.
        let copied = unsafe { StagingPool::download(&shared.staging, address, to, shared.stream) };
        let code = copied.err().unwrap_or(CUresult::CUDA_SUCCESS);
        shared.check_launch(state.last_kernel, code, "copying from the device")
    }

    fn copy(
        &self,
        from: MemoryOffset<'_, CudaMemory>,
        to: MemoryOffset<'_, CudaMemory>,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let (from, to) = (from.address(bytes)?, to.address(bytes)?);
        if bytes == 0 {
            return Ok(());
        }
        let shared = &*self.shared;
        let mut state = lock_ignoring_poison(&shared.state);
        state.counts.copies += 1;
        if state.record.open {
            state.record.step.copy(from, to, bytes);
            return Ok(());
        }
        shared.make_current()?;
        // SAFETY: the context is current, and both spans were checked.
        let code = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, shared.stream) };
        shared.check_launch(state.last_kernel, code, "copying on the device")
    }

    unsafe fn launch<A: KernelArguments>(
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
        let mut state = lock_ignoring_poison(&shared.state);
        state.counts.kernels += 1;
        let kept = state.record.open;
        state
            .record
            .step
            .launch(kernel, grid, shared_bytes, arguments);
        if kept {
            return Ok(());
        }
        let launched = shared
            .make_current()
            .and_then(|()| shared.submit_launches(&mut state));
        state.record.step.clear();
        launched
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        let shared = &*self.shared;
        let state = shared.lock_without_step()?;
        // SAFETY: the context is current and owns the stream.
        let code = unsafe { sys::cuStreamSynchronize(shared.stream) };
        shared.check_launch(state.last_kernel, code, "waiting for the device")
    }

    fn begin_step(&self) -> Result<(), DeviceError> {
        lock_ignoring_poison(&self.shared.state).record.open = true;
        Ok(())
    }

    fn end_step(&self) -> Result<(), DeviceError> {
        let shared = &*self.shared;
        let mut state = lock_ignoring_poison(&shared.state);
        if !std::mem::take(&mut state.record.open) || state.record.step.nodes().is_empty() {
            shared.clear_step(&mut state);
            return Ok(());
        }
        let begun = shared.make_current().and_then(|()| {
            if shared.options_graphs && !shared.waiting {
                shared.submit_as_graph(&mut state)
            } else {
                state.counts.launched += 1;
                shared.submit_launches(&mut state)
            }
        });
        shared.clear_step(&mut state);
        begun
    }

    fn linear_algebra(&self) -> Option<Result<Box<dyn LinearAlgebra>, DeviceError>> {
        Some(Cuda::linear(self).map(|linear| Box::new(linear) as Box<dyn LinearAlgebra>))
    }
}
