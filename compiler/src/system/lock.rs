//! File locks between processes, with a timeout.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::thread::sleep;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(50);

/// Waits for the lock on a file, at most `timeout`. Calls `held` once if another process has it;
/// `ended` may stop waiting. Returns true if taken or unsupported.
pub fn acquire(
    file: &File,
    timeout: Duration,
    held: impl FnOnce(),
    ended: impl Fn() -> bool,
) -> io::Result<bool> {
    let (begun, mut held) = (Instant::now(), Some(held));
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {
                return Ok(true);
            }
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) => {}
        }
        let left = timeout.saturating_sub(begun.elapsed());
        if left.is_zero() || ended() {
            return Ok(false);
        }
        if let Some(held) = held.take() {
            held();
        }
        sleep(PAUSE.min(left));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn lock_waits_until_the_timeout() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let [first, second] = [0, 1].map(|_| File::open(file.path()).unwrap());
        let told = Cell::new(0);
        let try_for = |of: &File, millis| {
            let held = || told.set(told.get() + 1);
            acquire(of, Duration::from_millis(millis), held, || false).unwrap()
        };
        assert!(try_for(&first, 0));
        let begun = Instant::now();
        assert!(!try_for(&second, 120));
        assert!(begun.elapsed() >= Duration::from_millis(120));
        assert!(!try_for(&second, 0));
        assert_eq!(told.get(), 1);
        assert!(!acquire(&second, Duration::from_secs(60), || {}, || true).unwrap());
        drop(first);
        assert!(try_for(&second, 0));
    }
}
