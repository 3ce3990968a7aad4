use super::*;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

impl From<ThreadError> for io::Error {
    fn from(error: ThreadError) -> io::Error {
        error.0
    }
}

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
