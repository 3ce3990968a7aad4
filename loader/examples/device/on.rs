//! Executors under measurement, with properties of their device.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use htc_formats::htz::KernelCode;
use htc_kernels::Pool;
use htc_kernels::cuda::DeviceError;
use htc_loader::Model;
use htc_loader::device::{CpuExecutor, DeviceChoice, DeviceSelector, Executor, ReferenceExecutor};
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

    fn cache_evictor(&self, bytes: usize) -> Outcome<CopyFn> {
        Ok(host_cache_evictor(bytes))
    }

    fn background_copy(&self, bytes: usize) -> Outcome<CopyFn> {
        Ok(host_cache_evictor(bytes / 2))
    }

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
    task.run(&htc_loader::device::GpuExecutor(device, Arc::clone(pool)))
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
    task.run(&htc_loader::device::GpuExecutor(device, Arc::clone(pool)))
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
}

impl BenchmarkExecutor for ReferenceExecutor {
    fn device(&self) -> Value {
        json!({ "kind": "reference", "name": self.name() })
    }

    fn copy_rate(&self, _: usize) -> Outcome<Option<f64>> {
        Ok(None)
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

/// Returns the best rate of several timings; disturbances only slow a copy down.
pub fn best_copy_rate(
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
