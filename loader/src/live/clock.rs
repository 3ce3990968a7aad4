//! Clock of readings.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Time since an origin: the monotonic system clock, or a manual clock for simulations.
#[derive(Clone, Debug)]
pub struct Clock {
    source: ClockSource,
    /// Seconds of this clock per second of the source.
    speed: f64,
}

#[derive(Clone, Debug)]
enum ClockSource {
    System(Instant),
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// Returns a system clock that starts now.
    pub fn system() -> Clock {
        Clock {
            source: ClockSource::System(Instant::now()),
            speed: 1.0,
        }
    }

    /// Returns a manual clock that stands still until it is [advanced](Clock::advance); clones
    /// share it.
    pub fn manual() -> Clock {
        Clock {
            source: ClockSource::Manual(Arc::default()),
            speed: 1.0,
        }
    }

    /// Returns the clock scaled by `speed`, which must be finite and above 0.
    pub(super) fn scaled(mut self, speed: f64) -> Clock {
        self.speed *= speed;
        self
    }

    /// Returns the time since the origin.
    pub fn now(&self) -> Duration {
        let passed = match &self.source {
            ClockSource::System(beginning) => beginning.elapsed(),
            ClockSource::Manual(nanoseconds) => {
                Duration::from_nanos(nanoseconds.load(Ordering::Acquire))
            }
        };
        if self.speed == 1.0 {
            passed
        } else {
            Duration::try_from_secs_f64(passed.as_secs_f64() * self.speed).unwrap_or(Duration::MAX)
        }
    }

    /// Advances a manual clock by a time before scaling.
    pub fn advance(&self, by: Duration) {
        if let ClockSource::Manual(nanoseconds) = &self.source {
            let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
            // Saturates instead of wrapping to zero.
            let _ = nanoseconds.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
                Some(now.saturating_add(by))
            });
        }
    }

    pub(super) fn wait(&self, time: Duration) {
        match &self.source {
            ClockSource::System(_) => thread::sleep(time),
            ClockSource::Manual(_) => self.advance(time),
        }
    }
}

#[cfg(test)]
mod tests;
