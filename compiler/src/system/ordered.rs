//! Parallel work with ordered results.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use htc_formats::memory;

/// Time after which freed memory is returned to the system; `docs/results/speed.md` has what that
/// saves and costs.
const TRIM_INTERVAL: Duration = Duration::from_millis(500);

/// Error returned when no thread can be started.
#[derive(Debug, thiserror::Error)]
#[error("no thread can be started: {0}; end other programs or raise the limit of processes")]
pub struct ThreadError(io::Error);

struct State<T, E> {
    next: usize,
    consumed: usize,
    finished: BTreeMap<usize, Result<T, E>>,
    stop: bool,
}

struct Shared<T, E> {
    state: Mutex<State<T, E>>,
    changed: Condvar,
}

impl<T, E> Shared<T, E> {
    fn lock(&self) -> MutexGuard<'_, State<T, E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<T, E>>) -> MutexGuard<'a, State<T, E>> {
        let state = self.changed.wait(state);
        state.unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self) {
        self.lock().stop = true;
        self.changed.notify_all();
    }
}

/// Stops all threads when dropped, also by a panic.
struct StopOnDrop<'a, T, E>(&'a Shared<T, E>);

impl<T, E> Drop for StopOnDrop<'_, T, E> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Runs `work` on `0..jobs` with `threads` threads and passes the results to `consume` in order, on
/// the calling thread. At most `window` results exist at a time.
///
/// # Errors
/// That of the first failed job, or of `consume`.
pub fn for_each<T: Send, E: Send + From<ThreadError>>(
    threads: usize,
    jobs: usize,
    window: usize,
    work: impl Fn(usize) -> Result<T, E> + Sync,
    mut consume: impl FnMut(usize, T) -> Result<(), E>,
) -> Result<(), E> {
    let window = window.max(1);
    let shared = Shared {
        state: Mutex::new(State {
            next: 0,
            consumed: 0,
            finished: BTreeMap::new(),
            stop: false,
        }),
        changed: Condvar::new(),
    };
    let take = |state: &mut State<T, E>| {
        let ready = !state.stop && state.next < jobs && state.next < state.consumed + window;
        ready.then(|| {
            state.next += 1;
            state.next - 1
        })
    };
    let worker = || {
        let on_panic = StopOnDrop(&shared);
        loop {
            let mut state = shared.lock();
            let job = loop {
                if state.stop || state.next >= jobs {
                    std::mem::forget(on_panic);
                    return;
                }
                match take(&mut state) {
                    Some(job) => break job,
                    None => state = shared.wait(state),
                }
            };
            drop(state);
            let result = work(job);
            shared.lock().finished.insert(job, result);
            shared.changed.notify_all();
        }
    };
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&shared);
        for started in 0..threads.clamp(1, jobs.max(1)) {
            match std::thread::Builder::new().spawn_scoped(scope, worker) {
                Ok(_) => {}
                Err(error) if started == 0 => return Err(ThreadError(error).into()),
                Err(_) => break,
            }
        }
        let mut trimmed = Instant::now();
        for job in 0..jobs {
            let mut state = shared.lock();
            let result = loop {
                if let Some(result) = state.finished.remove(&job) {
                    break result;
                }
                if state.stop {
                    return Ok(());
                }
                state = shared.wait(state);
            };
            drop(state);
            consume(job, result?)?;
            if trimmed.elapsed() > TRIM_INTERVAL {
                memory::release_freed();
                trimmed = Instant::now();
            }
            shared.lock().consumed = job + 1;
            shared.changed.notify_all();
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests;
