//! Parallel work with ordered results.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

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
pub fn for_each<T: Send, E: Send + From<std::io::Error>>(
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
                Err(error) if started == 0 => return Err(E::from(error)),
                Err(_) => break,
            }
        }
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
            shared.lock().consumed = job + 1;
            shared.changed.notify_all();
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn results_come_in_order_and_never_more_than_the_window() {
        for threads in [1, 2, 5] {
            let alive = AtomicUsize::new(0);
            let most = AtomicUsize::new(0);
            let mut seen = Vec::new();
            for_each(
                threads,
                40,
                3,
                |job| {
                    let now = alive.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now, Ordering::SeqCst);
                    std::thread::sleep(std::time::Duration::from_micros((job * 37 % 11) as u64));
                    Ok::<_, io::Error>(job * job)
                },
                |job, value| {
                    assert_eq!(value, job * job);
                    seen.push(job);
                    alive.fetch_sub(1, Ordering::SeqCst);
                    Ok(())
                },
            )
            .unwrap();
            assert_eq!(seen, (0..40).collect::<Vec<_>>());
            assert!(most.load(Ordering::SeqCst) <= 3);
        }
    }

    #[test]
    fn the_first_error_in_order_is_returned_and_work_stops() {
        let started = AtomicUsize::new(0);
        let result = for_each(
            2,
            1000,
            4,
            |job| {
                started.fetch_add(1, Ordering::SeqCst);
                match job {
                    5 => Err(io::Error::other("five")),
                    _ => Ok(()),
                }
            },
            |_, ()| Ok(()),
        );
        assert_eq!(result.unwrap_err().to_string(), "five");
        assert!(started.load(Ordering::SeqCst) <= 10);
    }

    #[test]
    fn a_panic_in_the_work_is_raised_in_the_caller() {
        let outcome = std::panic::catch_unwind(|| {
            for_each(
                2,
                10,
                4,
                |job| {
                    assert_ne!(job, 3, "on purpose");
                    Ok::<_, io::Error>(())
                },
                |_, ()| Ok(()),
            )
        });
        assert!(outcome.is_err());
    }

    #[test]
    fn no_jobs_are_done_at_once() {
        for_each(2, 0, 4, |_| Ok::<_, io::Error>(()), |_, ()| Ok(())).unwrap();
    }
}
