//! Arithmetic on buffers, no model in sight.
//!
//! * [`Matrix`]: a view of a stored matrix in any [`DType`](htc_formats::DType);
//! * [`Pool`]: a fixed number of threads that split one piece of work and join again;
//! * [`cpu`]: the kernels a forward pass calls, chosen for the processor at run time;
//! * [`cuda`]: kernels for NVIDIA GPUs, which a processor can emulate;
//! * [`linear`]: dense linear algebra in double precision, by a device's own libraries;
//! * [`mod@reference`]: the same operations in plain Rust with double-precision sums, the oracle
//!   of every other implementation.
//!
//! Except in [`linear`], numbers are `f32`, arrays are row-major and the last index is contiguous. A kernel checks
//! every shape it is given and returns [`ShapeError`] before it writes anything. A result
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
