//! What is asked for, with its defaults: plain data that every stage may read.

mod calibration;
mod compile;
mod goal;
mod planning;
mod shrinkage;
mod treatment;
mod wishes;

pub use calibration::{CalibrationOptions, CalibrationText, DEFAULT_CONTEXT, DEFAULT_TOKENS};
pub use compile::{CompileOptions, Planning};
pub use goal::{Goal, Limit};
pub use planning::{Allocation, Allocator, Budget, DenseTypes, Floor, Method, Request, Target};
pub use shrinkage::{Shrinkage, ShrinkageArg};
pub use treatment::{Asked, BiasArg, GaugeKind, SinkProtection, Treatment, TreatmentError};
pub use wishes::{DEFAULT_FACTOR_TYPE, DEFAULT_RATIO, Wishes};
