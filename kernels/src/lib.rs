//! Model-independent compute kernels.
//!
//! * [`Matrix`]: a view of a stored matrix in any [`DType`](htc_formats::DType);
//! * [`Pool`]: a fork-join pool with a fixed number of threads;
//! * [`cpu`]: CPU kernels of a forward pass, selected at run time;
//! * [`cuda`]: kernels for NVIDIA GPUs, which the CPU can emulate;
//! * [`linear`]: dense linear algebra in double precision, by a device's libraries;
//! * [`mod@reference`]: reference implementations in plain Rust with double-precision sums.
//!
//! Except in [`linear`], numbers are `f32`, arrays are row-major and the last index is contiguous.
//! A kernel checks every shape and returns [`ShapeError`] before it writes anything. A result
//! depends on the instruction set but never on the number of threads.

pub mod cpu;
pub mod cuda;
mod error;
pub mod linear;
mod matrix;
mod pool;
pub mod reference;

pub use error::ShapeError;
pub use matrix::Matrix;
pub use pool::{Pool, PoolError};

/// The example of the README compiles and holds.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
