//! Executors under measurement, with properties of their device.

use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use htc_formats::htz::KernelCode;
use htc_kernels::Pool;
use htc_kernels::cuda::{Device, DeviceError, Kernel, KernelArguments};
use htc_loader::Model;
use htc_loader::backend::{GpuMemoryEstimate, PlannedSession};
use htc_loader::device::{
    CpuExecutor, DeviceChoice, DeviceSelector, Executor, GpuExecutor, ReferenceExecutor,
};
use htc_loader::kv::KvKind;
use serde_json::{Value, json};

pub type Outcome<T> = Result<T, Box<dyn Error>>;

const COPIES: usize = 4;

const TIMES: usize = 5;

/// An executor with measurable properties.
pub trait BenchmarkExecutor: Executor {
    fn device(&self) -> Value;

    /// Measures the copy bandwidth in bytes per second, reads plus writes, for copies of `bytes`;
    /// `None` if not supported.
    fn copy_rate(&self, bytes: usize) -> Outcome<Option<f64>>;

    fn check_memory(&self, model: &Model, positions: usize) -> Outcome<()> {
        let _ = (model, positions);
        Ok(())
    }

    fn single_launch_backend(&self) -> Option<Self::Backend> {
        None
    }

    fn launches(&self) -> Option<[u64; 2]> {
        None
    }

    fn steps(&self) -> Value {
        Value::Null
    }

    fn cache_evictor(&self, bytes: usize) -> Outcome<CopyFn>;

    fn background_copy(&self, bytes: usize) -> Outcome<CopyFn>;

    fn begin(&self) -> Outcome<()> {
        Ok(())
    }

    fn end(&self) -> Outcome<()> {
        Ok(())
    }
}

/// Copies memory and waits for it.
pub type CopyFn = Box<dyn FnMut() -> Result<(), DeviceError> + Send>;

/// Background thread that repeats a function until stopped.
pub struct BackgroundLoad {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64, DeviceError>>,
}

impl BackgroundLoad {
    /// Returns after the first repetition has completed.
    pub fn start(mut work: CopyFn) -> Outcome<BackgroundLoad> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (began, first) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            work()?;
            let mut count = 1;
            // The receiver may be gone.
            began.send(()).ok();
            while !stopped.load(Ordering::Relaxed) {
                work()?;
                count += 1;
            }
            Ok(count)
        });
        let beside = BackgroundLoad { stop, thread };
        match first.recv() {
            Ok(()) => Ok(beside),
            Err(_) => (beside.stop()).and(Err("what is done beside ended by itself".into())),
        }
    }

    /// Stops the thread and returns the number of repetitions.
    pub fn stop(self) -> Outcome<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let count = self
            .thread
            .join()
            .map_err(|_| "the thread beside ended by a panic")?;
        Ok(count?)
    }
}

/// A measurement that runs on any device.
pub trait Task {
    fn run<M: BenchmarkExecutor>(self, on: &M) -> Outcome<Value>;
}

/// Runs a task on the selected device.
pub fn run_on_device(
    choice: DeviceChoice,
    pool: &Arc<Pool>,
    sealed: Option<&KernelCode>,
    task: impl Task,
) -> Outcome<Value> {
    match choice {
        DeviceChoice::Cpu => task.run(&CpuExecutor(Arc::clone(pool))),
        DeviceChoice::Reference => task.run(&ReferenceExecutor),
        DeviceChoice::Cuda(which) => on_cuda(which, sealed, pool, task),
        DeviceChoice::Emulated => on_emulated(pool, task),
        DeviceChoice::Auto => Err("figures need a device by name: cuda, cpu or emulated".into()),
    }
}

#[cfg(feature = "cuda")]
fn on_cuda(
    which: DeviceSelector,
    sealed: Option<&KernelCode>,
    pool: &Arc<Pool>,
    task: impl Task,
) -> Outcome<Value> {
    let device = htc_loader::device::open_cuda(which, sealed)?;
    task.run(&GpuExecutor(CountingDevice::new(device), Arc::clone(pool)))
}

#[cfg(not(feature = "cuda"))]
fn on_cuda(
    _: DeviceSelector,
    _: Option<&KernelCode>,
    _: &Arc<Pool>,
    _: impl Task,
) -> Outcome<Value> {
    Err("this build has no device cuda; build it with the feature cuda".into())
}

#[cfg(feature = "emulated")]
fn on_emulated(pool: &Arc<Pool>, task: impl Task) -> Outcome<Value> {
    let device = htc_loader::backend::EmulatedDevice::new(0);
    task.run(&GpuExecutor(CountingDevice::new(device), Arc::clone(pool)))
}

#[cfg(not(feature = "emulated"))]
fn on_emulated(_: &Arc<Pool>, _: impl Task) -> Outcome<Value> {
    Err("this build has no device emulated; build it with the feature emulated".into())
}

impl BenchmarkExecutor for CpuExecutor {
    fn device(&self) -> Value {
        json!({ "kind": "cpu", "name": self.name(), "threads": self.0.threads() })
    }

    fn copy_rate(&self, bytes: usize) -> Outcome<Option<f64>> {
        let part = bytes.div_ceil(self.0.threads()).max(1);
        let (from, mut to) = (vec![1_u8; bytes], vec![0_u8; bytes]);
        let mut copy = || {
            std::thread::scope(|scope| {
                for (from, to) in from.chunks(part).zip(to.chunks_mut(part)) {
                    scope.spawn(|| to.copy_from_slice(from));
                }
            });
            std::hint::black_box(&mut to);
            Ok(())
        };
        best_copy_rate(bytes, &mut copy, || Ok(()))
    }

    fn cache_evictor(&self, bytes: usize) -> Outcome<CopyFn> {
        Ok(host_cache_evictor(bytes))
    }

    fn background_copy(&self, bytes: usize) -> Outcome<CopyFn> {
        Ok(host_cache_evictor(bytes / 2))
    }
}

impl BenchmarkExecutor for ReferenceExecutor {
    fn device(&self) -> Value {
        json!({ "kind": "reference", "name": self.name() })
    }

    fn copy_rate(&self, _: usize) -> Outcome<Option<f64>> {
        Ok(None)
    }

    fn cache_evictor(&self, bytes: usize) -> Outcome<CopyFn> {
        Ok(host_cache_evictor(bytes))
    }

    fn background_copy(&self, bytes: usize) -> Outcome<CopyFn> {
        Ok(host_cache_evictor(bytes / 2))
    }
}

fn host_cache_evictor(bytes: usize) -> CopyFn {
    let (from, mut to) = (vec![1_u8; bytes], vec![0_u8; bytes]);
    Box::new(move || {
        to.copy_from_slice(&from);
        std::hint::black_box(&mut to);
        Ok(())
    })
}

fn copy_function<D: Device>(device: D, bytes: usize, times: usize) -> Outcome<CopyFn> {
    let (from, to) = (device.allocate(bytes)?, device.allocate(bytes)?);
    Ok(Box::new(move || {
        for _ in 0..times {
            device.copy((&from, 0), (&to, 0), bytes)?;
        }
        device.synchronize()
    }))
}

/// Returns the best rate of several timings; disturbances only slow a copy down.
fn best_copy_rate(
    bytes: usize,
    copy: &mut impl FnMut() -> Outcome<()>,
    wait: impl Fn() -> Outcome<()>,
) -> Outcome<Option<f64>> {
    copy()?;
    wait()?;
    let mut best = f64::INFINITY;
    for _ in 0..TIMES {
        let started = Instant::now();
        for _ in 0..COPIES {
            copy()?;
        }
        wait()?;
        best = best.min(started.elapsed().as_secs_f64());
    }
    Ok((best > 0.0).then(|| (2 * COPIES * bytes) as f64 / best))
}

/// A device that describes itself.
pub trait DescribedDevice: Device {
    fn describe(&self) -> Value;
    fn step_counts(&self) -> Value;

    /// Opens the same device with a separate stream.
    fn open_second_stream(&self) -> Result<Self, DeviceError>;
}

#[cfg(any(feature = "cuda", feature = "emulated"))]
fn counts(counts: htc_kernels::cuda::StepCounts) -> Value {
    json!({
        "replayed": counts.replayed,
        "updated": counts.updated,
        "changed": counts.changed_operations,
        "made": counts.created,
        "plain": counts.launched,
        "interrupted": counts.interrupted,
    })
}

#[cfg(feature = "cuda")]
impl DescribedDevice for htc_loader::backend::CudaDevice {
    fn describe(&self) -> Value {
        let found = self.properties();
        json!({
            "kind": "cuda",
            "name": found.name,
            "index": found.index,
            "identifier": found.uuid_string(),
            "architecture": found.architecture.to_string(),
            "multiprocessors": found.multiprocessors,
            "l2_bytes": found.l2_bytes,
            "code": self.code_origin(),
        })
    }

    fn step_counts(&self) -> Value {
        counts(self.step_counts())
    }

    fn open_second_stream(&self) -> Result<Self, DeviceError> {
        htc_loader::device::open_cuda(DeviceSelector::Index(self.properties().index), None)
    }
}

#[cfg(feature = "emulated")]
impl DescribedDevice for htc_loader::backend::EmulatedDevice {
    fn describe(&self) -> Value {
        json!({ "kind": "emulated", "name": self.name() })
    }

    fn step_counts(&self) -> Value {
        counts(self.step_counts())
    }
    fn open_second_stream(&self) -> Result<Self, DeviceError> {
        Ok(Self::new(1))
    }
}

/// A device that counts launches and copies.
#[derive(Clone, Debug)]
pub struct CountingDevice<D> {
    device: D,
    launches: Arc<AtomicU64>,
    copies: Arc<AtomicU64>,
}

impl<D: Device> CountingDevice<D> {
    #[cfg_attr(
        not(any(feature = "cuda", feature = "emulated")),
        expect(dead_code, reason = "a build without a device has nothing to count on")
    )]
    pub fn new(device: D) -> Self {
        let (launches, copies) = (Arc::default(), Arc::default());
        CountingDevice {
            device,
            launches,
            copies,
        }
    }
}

impl<D: Device> Device for CountingDevice<D> {
    type Memory = D::Memory;

    fn name(&self) -> String {
        self.device.name()
    }

    fn multiprocessors(&self) -> usize {
        self.device.multiprocessors()
    }

    fn uuid(&self) -> Option<String> {
        self.device.uuid()
    }

    fn launch_note(&self) -> Option<String> {
        self.device.launch_note()
    }

    fn max_shared_bytes(&self) -> usize {
        self.device.max_shared_bytes()
    }

    fn max_resident_blocks<A: KernelArguments>(
        &self,
        kernel: &Kernel<A>,
        shared: usize,
    ) -> Result<usize, DeviceError> {
        self.device.max_resident_blocks(kernel, shared)
    }

    fn allocate(&self, bytes: usize) -> Result<D::Memory, DeviceError> {
        self.device.allocate(bytes)
    }

    fn memory_info(&self) -> Result<[usize; 2], DeviceError> {
        self.device.memory_info()
    }

    fn upload(&self, from: &[u8], to: &D::Memory, at: usize) -> Result<(), DeviceError> {
        self.device.upload(from, to, at)
    }

    fn upload_parts(
        &self,
        to: &D::Memory,
        parts: &[(usize, usize)],
        fill: &mut dyn FnMut(&mut [u8]) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.device.upload_parts(to, parts, fill)
    }

    fn download(&self, from: &D::Memory, at: usize, to: &mut [u8]) -> Result<(), DeviceError> {
        self.device.download(from, at, to)
    }

    fn copy(
        &self,
        from: (&D::Memory, usize),
        to: (&D::Memory, usize),
        bytes: usize,
    ) -> Result<(), DeviceError> {
        self.copies.fetch_add(1, Ordering::Relaxed);
        self.device.copy(from, to, bytes)
    }

    unsafe fn launch<A: KernelArguments>(
        &self,
        kernel: &Kernel<A>,
        grid: [u32; 3],
        shared: usize,
        arguments: &A,
    ) -> Result<(), DeviceError> {
        self.launches.fetch_add(1, Ordering::Relaxed);
        // SAFETY: guaranteed by the caller.
        unsafe { self.device.launch(kernel, grid, shared, arguments) }
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.device.synchronize()
    }

    fn begin_step(&self) -> Result<(), DeviceError> {
        self.device.begin_step()
    }

    fn end_step(&self) -> Result<(), DeviceError> {
        self.device.end_step()
    }
}

impl<D: DescribedDevice> BenchmarkExecutor for GpuExecutor<CountingDevice<D>> {
    fn check_memory(&self, model: &Model, positions: usize) -> Outcome<()> {
        let kind = KvKind::default();
        let planned = PlannedSession {
            model,
            positions,
            kind,
        };
        Ok(GpuMemoryEstimate::for_sessions::<CountingDevice<D>>(&[planned]).check(&self.0)?)
    }

    fn device(&self) -> Value {
        let mut all = self.0.device.describe();
        if let Ok([free, total]) = self.0.memory_info() {
            all["memory_free"] = free.into();
            all["memory"] = total.into();
        }
        all
    }

    fn copy_rate(&self, bytes: usize) -> Outcome<Option<f64>> {
        let device = &self.0.device;
        let bytes = bytes.min(device.memory_info()?[0] / 4);
        let (from, to) = (device.allocate(bytes)?, device.allocate(bytes)?);
        let mut copy = || Ok(device.copy((&from, 0), (&to, 0), bytes)?);
        best_copy_rate(bytes, &mut copy, || Ok(device.synchronize()?))
    }

    fn single_launch_backend(&self) -> Option<Self::Backend> {
        Some(self.backend().in_one_launch())
    }

    fn launches(&self) -> Option<[u64; 2]> {
        let counts = [&self.0.launches, &self.0.copies];
        Some(counts.map(|count| count.load(Ordering::Relaxed)))
    }

    fn steps(&self) -> Value {
        self.0.device.step_counts()
    }

    fn cache_evictor(&self, bytes: usize) -> Outcome<CopyFn> {
        copy_function(self.0.device.clone(), bytes, 1)
    }

    fn background_copy(&self, bytes: usize) -> Outcome<CopyFn> {
        // With a separate stream, so that the measured work does not wait for it; reads half and
        // writes half.
        copy_function(self.0.device.open_second_stream()?, bytes / 2, 16)
    }

    fn begin(&self) -> Outcome<()> {
        Ok(self.0.begin_step()?)
    }

    fn end(&self) -> Outcome<()> {
        Ok(self.0.end_step()?)
    }
}
