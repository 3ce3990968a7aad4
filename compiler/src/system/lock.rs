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
mod tests;
