//! Tests of the loader through the public interface, in one program so that it is linked once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "all of this crate is test code"
)]

mod example;
mod live_replay;
mod tokenizer_byte_level;
mod tokenizer_common;
mod tokenizer_hugging_face;
mod tokenizer_peer;
mod tokenizer_properties;
mod tokenizer_vectors;
