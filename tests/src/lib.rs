//! Shared code of the suites in `tests/`, which run the binary `htc` (next to the tests, or in
//! `HTC_BIN`) on generated models, the demo model and shared material.

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
