//! What the suites in `tests/` have in common: they drive the binary `htc` as a person or a
//! script does, on models made here, on the demo model of the repository and, where it is
//! present, on material shared between projects.
//!
//! The binary is the one that was built beside the tests, or the one that `HTC_BIN` names.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "all of this crate is test code"
)]

pub mod artifact;
pub mod binary;
pub mod float64;
pub mod logits;
pub mod machine;
pub mod material;
pub mod model;
pub mod npy;
pub mod raw;
pub mod reference;
pub mod scratch;

pub use binary::{Htc, Outcome};
pub use model::TinyModel;
pub use scratch::Scratch;
