//! State shared with the decode loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The active fraction of a model, in (0, 1], shared between the governor and the decode loop. 1 is
/// the full allocated rank.
#[derive(Debug)]
pub struct SharedFraction {
    fraction: AtomicU64,
    /// Whether the device works, according to the marked phases.
    busy: AtomicBool,
}

impl SharedFraction {
    /// Creates the state with fraction 1, working.
    pub fn new() -> Arc<SharedFraction> {
        Arc::new(SharedFraction {
            fraction: AtomicU64::new(1_f64.to_bits()),
            busy: AtomicBool::new(true),
        })
    }

    /// Returns the fraction, with a single atomic load.
    pub fn fraction(&self) -> f64 {
        f64::from_bits(self.fraction.load(Ordering::Relaxed))
    }

    /// Returns the load of a simulated plant: the fraction, or `None` while idle.
    pub fn plant_load(&self) -> Option<f64> {
        self.busy.load(Ordering::Relaxed).then(|| self.fraction())
    }

    /// Sets the fraction, for programs with a separate loop.
    pub fn set_fraction(&self, fraction: f64) {
        self.fraction.store(fraction.to_bits(), Ordering::Relaxed);
    }

    /// Marks the device as working or idle.
    pub fn set_busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::Relaxed);
    }
}
