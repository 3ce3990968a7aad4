//! Second moments of the gradients at the outputs of every matrix: what an error of its weights costs.
//!
//! So far the arithmetic: a block and the head, forwards and back, in float32 or float64.

#![expect(dead_code, reason = "the pass that calls it follows")]

mod attention;
mod block;
mod elementwise;
mod error;
mod head;
mod heads;
mod number;
mod weights;

pub use error::GradientError;

#[cfg(test)]
mod tests;
