//! File formats: GGUF, safetensors, block formats, vocabularies and the sealed `.htz` artifact. The
//! layout of `.htz` is specified in the documentation of the `htz` module.

pub mod architecture;
pub mod bands;
pub mod block;
mod bounded_json;
pub mod dtype;
mod error;
pub mod escape;
pub mod folder;
pub mod gguf;
pub mod htz;
pub mod learnt;
pub mod limits;
pub mod map;
pub mod memory;
pub mod metadata;
pub mod model;
mod names;
pub mod open;
mod python_json;
pub mod safetensors;
#[cfg(feature = "schemas")]
mod schemas;
pub mod source;
pub mod vocab;
pub mod wire;

pub use dtype::DType;
pub use error::CodecError;

/// The example of the README compiles and holds.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
