//! Shared code of the suites in `tests/`. They run the binary `htc` as a person or a script would,
//! on generated models, on the demo model of the repository and, if present, on shared material.
//!
//! The binary is the one built next to the tests, or the one in `HTC_BIN`.

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
pub use model::{TinyExperts, TinyModel};
pub use scratch::Scratch;
