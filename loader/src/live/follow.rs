//! What the decode loop reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The fraction of a model to use at the moment, in (0, 1], shared between the thread that decides and the loop that
/// decodes. 1 is the base: all that was allocated.
#[derive(Debug)]
pub struct Follow {
    /// The bits of a float64.
    fraction: AtomicU64,
    /// Whether the device is at work, as far as whoever marks phases says: a simulated plant asks.
    busy: AtomicBool,
}

impl Follow {
    /// At the base, and taken to be at work.
    pub fn new() -> Arc<Follow> {
        Arc::new(Follow {
            fraction: AtomicU64::new(1_f64.to_bits()),
            busy: AtomicBool::new(true),
        })
    }

    /// The fraction: one load of one atomic number.
    pub fn fraction(&self) -> f64 {
        f64::from_bits(self.fraction.load(Ordering::Relaxed))
    }

    /// What a plant is driven with: the fraction, or nothing while the device idles.
    pub fn load(&self) -> Option<f64> {
        self.busy.load(Ordering::Relaxed).then(|| self.fraction())
    }

    /// Sets the fraction; for programs that have a [`Controller`](super::Controller) in a loop of their own.
    pub fn set(&self, fraction: f64) {
        // No other memory hangs on it, so that the order of other accesses is free.
        self.fraction.store(fraction.to_bits(), Ordering::Relaxed);
    }

    /// Says whether the device is at work.
    pub fn set_busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::Relaxed);
    }
}
