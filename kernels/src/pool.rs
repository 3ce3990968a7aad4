//! Fork-join over a fixed number of threads.
//!
//! A forward pass forks some fifty times in a few hundred microseconds, so idle workers spin before
//! they sleep. A busy core takes fewer tasks, and a worker that wakes after the last task is taken
//! is not waited for.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use thiserror::Error;

/// Longer than the gap between two kernels of a decoding step, short enough not to heat an idle
/// machine.
const SPIN: Duration = Duration::from_micros(100);

const PAUSES_PER_CLOCK_READ: usize = 64;

const MAX_THREADS: usize = 1024;

/// Error of [`Pool::new`].
#[derive(Debug, Error)]
pub enum PoolError {
    /// The number of threads is out of range.
    #[error(
        "threads: expected 1 to {MAX_THREADS}, found {requested}; ask for a number in that range"
    )]
    Threads {
        /// Requested number.
        requested: usize,
    },
    /// The system refused a thread.
    #[error("cannot start worker thread {index}: {source}; ask for fewer threads")]
    Spawn {
        /// Index of the worker, from 1.
        index: usize,
        /// System error.
        source: std::io::Error,
    },
}

/// Fixed number of threads, including the caller, that split one job at a time. A nested
/// [`run`](Pool::run), or one from a second thread while another is in progress, is executed by its
/// caller alone.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("threads", &self.threads())
            .finish()
    }
}

/// Prevents false sharing.
#[repr(align(128))]
struct CachePadded<T>(T);

/// Function that executes the task of an index.
type Task<'a> = dyn Fn(usize) + Sync + 'a;

struct Job {
    /// Valid from the opening of the job until its last worker leaves.
    task: *const Task<'static>,
    tasks: usize,
}

/// Bits of [`Shared::state`]: workers inside the job, open flag, closing flag, job number.
const INSIDE: u64 = 0xFFFF;
const OPEN: u64 = 1 << 16;
const CLOSING: u64 = 1 << 17;
const NEXT_JOB: u64 = 1 << 18;

struct Shared {
    state: CachePadded<AtomicU64>,
    next: CachePadded<AtomicUsize>,
    busy: CachePadded<AtomicBool>,
    sleepers: AtomicUsize,
    job: UnsafeCell<Job>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    sleep: Mutex<()>,
    wake: Condvar,
}

// SAFETY: `job` is the only field that is not Sync by itself. It is written only by the thread that
// holds `busy`, before it sets OPEN with Release and never while OPEN is set or a worker is INSIDE;
// it is read by a worker only after it has counted itself INSIDE, with Acquire, in a state that was
// OPEN. The closure is Sync.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is dereferenced only while the caller of `run` keeps it alive.
unsafe impl Send for Shared {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// Starts a pool of `threads` threads, including the caller of [`run`](Pool::run).
    ///
    /// # Errors
    /// When `threads` is 0 or above 1024, or the system refuses a thread.
    pub fn new(threads: usize) -> Result<Pool, PoolError> {
        if !(1..=MAX_THREADS).contains(&threads) {
            return Err(PoolError::Threads { requested: threads });
        }
        const NOTHING: &Task<'static> = &|_| ();
        let mut pool = Pool {
            shared: Arc::new(Shared {
                state: CachePadded(AtomicU64::new(0)),
                next: CachePadded(AtomicUsize::new(0)),
                busy: CachePadded(AtomicBool::new(false)),
                sleepers: AtomicUsize::new(0),
                job: UnsafeCell::new(Job {
                    task: NOTHING,
                    tasks: 0,
                }),
                panic: Mutex::new(None),
                sleep: Mutex::new(()),
                wake: Condvar::new(),
            }),
            workers: Vec::with_capacity(threads - 1),
        };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let worker = std::thread::Builder::new()
                .name(format!("htc-{index}"))
                .spawn(move || shared.worker_loop())
                .map_err(|source| PoolError::Spawn { index, source })?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Number of threads, including the caller.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f` once with every number below `tasks`, on all threads in unspecified order, and
    /// waits.
    ///
    /// # Panics
    /// Propagates a panic of `f` after all running calls have ended; the remaining calls are
    /// skipped.
    pub fn run(&self, tasks: usize, f: impl Fn(usize) + Sync) {
        let alone = self.workers.is_empty() || tasks < 2;
        if alone || self.shared.busy.0.swap(true, Ordering::Acquire) {
            (0..tasks).for_each(f);
            return;
        }
        self.shared.fork_join(tasks, &f);
    }

    /// Calls `f(stage, task)` once for every stage and every task below `tasks[stage]`, in one fork
    /// and join. `after(stage)` is called once after each stage.
    ///
    /// # Panics
    /// As [`run`](Pool::run); remaining stages are skipped.
    pub fn run_stages<const N: usize>(
        &self,
        tasks: [usize; N],
        f: impl Fn(usize, usize) + Sync,
        after: impl Fn(usize) + Sync,
    ) {
        let next = [(); N].map(|()| CachePadded(AtomicUsize::new(0)));
        let done = [(); N].map(|()| CachePadded(AtomicUsize::new(0)));
        let finished = CachePadded(AtomicUsize::new(0));
        self.run(self.threads(), |_| {
            let abandon = AbandonOnUnwind(&finished.0);
            for stage in 0..N {
                let count = tasks[stage].max(1);
                loop {
                    let task = next[stage].0.fetch_add(1, Ordering::Relaxed);
                    if task >= count {
                        break;
                    }
                    if task < tasks[stage] {
                        f(stage, task);
                    }
                    if done[stage].0.fetch_add(1, Ordering::AcqRel) + 1 == count {
                        after(stage);
                        finished.0.fetch_add(1, Ordering::Release);
                    }
                }
                if stage + 1 < N {
                    spin_until(|| finished.0.load(Ordering::Acquire) > stage);
                    if finished.0.load(Ordering::Acquire) >= ABANDONED {
                        return;
                    }
                }
            }
            std::mem::forget(abandon);
        });
    }

    /// Cuts `data` into chunks of `chunk` numbers, the last possibly shorter, and calls `f` with
    /// the index of each chunk and the chunk, on all threads.
    pub fn chunks_mut<T: Send>(
        &self,
        data: &mut [T],
        chunk: usize,
        f: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let chunk = chunk.max(1);
        let len = data.len();
        let base = SendPtr(data.as_mut_ptr());
        self.run(len.div_ceil(chunk), |index| {
            let start = index * chunk;
            let count = chunk.min(len - start);
            // SAFETY: `run` calls with every index below the number of chunks exactly once, so
            // `start < len`, the range lies inside `data` and no two calls share an element; `data`
            // is borrowed mutably until `run` has returned, which is after the last call.
            let part = unsafe { std::slice::from_raw_parts_mut(base.get().add(start), count) };
            f(index, part);
        });
    }
}

/// Pointer to a slice whose parts are given to several threads.
pub(crate) struct SendPtr<T>(pub *mut T);

// SAFETY: the pointer is only used to give each part of a slice of Send values to one task.
unsafe impl<T: Send> Sync for SendPtr<T> {}

impl<T> SendPtr<T> {
    /// A method, so that a closure borrows the whole of `self`, which is Sync.
    pub fn get(&self) -> *mut T {
        self.0
    }
}

/// Stage count that marks a panic.
const ABANDONED: usize = usize::MAX / 2;

/// Releases the waiting threads.
struct AbandonOnUnwind<'a>(&'a AtomicUsize);

impl Drop for AbandonOnUnwind<'_> {
    fn drop(&mut self) {
        self.0.store(ABANDONED, Ordering::Release);
    }
}

/// Yields after spinning, because the awaited thread may need this core.
fn spin_until(done: impl Fn() -> bool) {
    let mut spins = 0usize;
    while !done() {
        spins += 1;
        if spins.is_multiple_of(512) {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.state.0.fetch_or(CLOSING, Ordering::SeqCst);
        drop(lock(&self.shared.sleep));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn fork_join(&self, tasks: usize, f: &Task<'_>) {
        // SAFETY: the lifetime is erased only until this function returns, and no worker touches
        // the closure after the wait below: the job is closed and nobody is inside.
        let task: *const Task<'static> =
            unsafe { std::mem::transmute::<&Task<'_>, &'static Task<'static>>(f) };
        // SAFETY: `busy` is held and the last job was closed and left, see the impl of Sync.
        unsafe { *self.job.get() = Job { task, tasks } };
        self.next.0.store(0, Ordering::Relaxed);
        let state = self.state.0.load(Ordering::Relaxed);
        self.state.0.store(
            (state & !OPEN).wrapping_add(NEXT_JOB) | OPEN,
            Ordering::SeqCst,
        );
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.sleep));
            self.wake.notify_all();
        }

        self.take_tasks(tasks, f);

        self.state.0.fetch_and(!OPEN, Ordering::AcqRel);
        spin_until(|| self.state.0.load(Ordering::Acquire) & INSIDE == 0);
        let panic = lock(&self.panic).take();
        self.busy.0.store(false, Ordering::Release);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// Takes tasks until none is left; stores the first panic for the caller of `run`.
    fn take_tasks(&self, tasks: usize, f: &Task<'_>) {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let index = self.next.0.fetch_add(1, Ordering::Relaxed);
                if index >= tasks {
                    break;
                }
                f(index);
            }
        }));
        if let Err(payload) = outcome {
            self.next.0.store(tasks, Ordering::Relaxed);
            lock(&self.panic).get_or_insert(payload);
        }
    }

    fn worker_loop(&self) {
        let mut last = 0;
        while let Some(state) = self.wait_for_job(last) {
            last = state / NEXT_JOB;
            let entered = self
                .state
                .0
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
                    (state & OPEN != 0).then(|| state + 1)
                });
            let Ok(state) = entered else { continue };
            last = state / NEXT_JOB;
            // SAFETY: this worker is counted INSIDE an open job, see the impl of Sync; the closure
            // lives until the caller has seen it leave.
            let (f, tasks) = unsafe {
                let job = &*self.job.get();
                (&*job.task, job.tasks)
            };
            self.take_tasks(tasks, f);
            self.state.0.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for a job other than `last`; `None` when the pool closes.
    fn wait_for_job(&self, last: u64) -> Option<u64> {
        let ready = |state: u64| state & OPEN != 0 && state / NEXT_JOB != last;
        let begin = Instant::now();
        loop {
            for _ in 0..PAUSES_PER_CLOCK_READ {
                let state = self.state.0.load(Ordering::Acquire);
                if state & CLOSING != 0 {
                    return None;
                }
                if ready(state) {
                    return Some(state);
                }
                std::hint::spin_loop();
            }
            if begin.elapsed() > SPIN {
                break;
            }
        }
        let mut guard = lock(&self.sleep);
        // Either the caller of `run` sees this sleeper and notifies, for which it needs the lock
        // that is held from here to the wait, or the load below sees its job: both are SeqCst.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let found = loop {
            let state = self.state.0.load(Ordering::SeqCst);
            if state & CLOSING != 0 {
                break None;
            }
            if ready(state) {
                break Some(state);
            }
            guard = self
                .wake
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        found
    }
}

#[cfg(test)]
mod tests;
