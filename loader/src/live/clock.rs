//! The clock that readings are of.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Time since a beginning: the system's monotonic clock, or one that is moved by hand, so that what takes
/// minutes can be computed in milliseconds and is the same each time.
#[derive(Clone, Debug)]
pub struct Clock {
    hands: Hands,
    /// Seconds on this clock in a second on the one below it.
    speed: f64,
}

#[derive(Clone, Debug)]
enum Hands {
    System(Instant),
    /// Nanoseconds.
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The system's, from now on.
    pub fn system() -> Clock {
        Clock {
            hands: Hands::System(Instant::now()),
            speed: 1.0,
        }
    }

    /// One that stands still until it is [advanced](Clock::advance); clones are the same clock.
    pub fn manual() -> Clock {
        Clock {
            hands: Hands::Manual(Arc::default()),
            speed: 1.0,
        }
    }

    /// The same, `speed` times as fast; `speed` is finite and above 0, which who reads it from a text checks.
    pub(super) fn times(mut self, speed: f64) -> Clock {
        self.speed *= speed;
        self
    }

    /// Time since the beginning.
    pub fn now(&self) -> Duration {
        let passed = match &self.hands {
            Hands::System(beginning) => beginning.elapsed(),
            Hands::Manual(nanoseconds) => Duration::from_nanos(nanoseconds.load(Ordering::Acquire)),
        };
        match self.speed == 1.0 {
            true => passed,
            // Beyond what a Duration holds, 6e11 years, it stands still.
            false => Duration::try_from_secs_f64(passed.as_secs_f64() * self.speed)
                .unwrap_or(Duration::MAX),
        }
    }

    /// Moves a clock that is moved by hand, by a time of the one below its speed. The system's goes by itself: nothing happens.
    pub fn advance(&self, by: Duration) {
        if let Hands::Manual(nanoseconds) = &self.hands {
            let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
            // Saturating, as time that turns back to zero would be.
            let _ = nanoseconds.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
                Some(now.saturating_add(by))
            });
        }
    }

    /// Waits: the thread sleeps, and a clock that is moved by hand is moved.
    pub(super) fn wait(&self, time: Duration) {
        match &self.hands {
            Hands::System(_) => thread::sleep(time),
            Hands::Manual(_) => self.advance(time),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hands_are_shared_and_speeds_are_not() {
        let clock = Clock::manual();
        let fast = clock.clone().times(4.0);
        clock.advance(Duration::from_millis(1500));
        fast.wait(Duration::from_millis(500));
        assert_eq!(clock.now(), Duration::from_secs(2));
        assert_eq!(fast.now(), Duration::from_secs(8));
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), Duration::from_nanos(u64::MAX));
        let system = Clock::system();
        system.advance(Duration::from_secs(1000));
        assert!(system.now() < Duration::from_secs(100));
    }
}
