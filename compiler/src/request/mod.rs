//! What is asked for, with its defaults.

mod treatment;

pub use treatment::{Asked, BiasArg, GaugeKind, SinkProtection, Treatment, TreatmentError};
