//! Embedded kernel sources.

use htc_formats::htz::{Digest, Hasher};

/// A source file.
#[derive(Clone, Copy, Debug)]
pub struct KernelSource {
    /// Name: that of a header as it is included, that of a unit without its extension.
    pub name: &'static str,
    /// Source text.
    pub text: &'static str,
}

macro_rules! sources {
    ($($name:literal from $file:literal),* $(,)?) => {
        &[$(KernelSource { name: $name, text: include_str!(concat!("cu/", $file)) }),*]
    };
}

/// Headers included by the units.
pub const HEADERS: &[KernelSource] = sources! {
    "blocks.cuh" from "blocks.cuh",
    "dialect.cuh" from "dialect.cuh",
    "kv.cuh" from "kv.cuh",
    "parts.cuh" from "parts.cuh",
    "products.cuh" from "products.cuh",
    "rows.cuh" from "rows.cuh",
    "tiles.cuh" from "tiles.cuh",
    "vectors.cuh" from "vectors.cuh",
};

/// Translation units, compiled separately.
pub const UNITS: &[KernelSource] = sources! {
    "attention" from "attention.cu",
    "attention_tiles" from "attention_tiles.cu",
    "bands" from "bands.cu",
    "draw" from "draw.cu",
    "elementwise" from "elementwise.cu",
    "float_tiles" from "float_tiles.cu",
    "floats" from "floats.cu",
    "fused" from "fused.cu",
    "kv" from "kv.cu",
    "pairs" from "pairs.cu",
    "products" from "products.cu",
    "sampling" from "sampling.cu",
    "supers" from "supers.cu",
    "tiles" from "tiles.cu",
    "vectors" from "vectors.cu",
};

/// Compiler options besides the architecture; line numbers are for profilers.
pub const OPTIONS: &[&str] = &["--std=c++17", "--generate-line-info"];

/// Extra option for kernels without tensor cores.
pub const NO_TENSOR_CORES: &str = "--define-macro=HTC_PLAIN_MMA";

/// Returns the digest of sources and options.
pub fn sources_digest() -> Digest {
    let mut hasher = Hasher::default();
    let mut part = |text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    for KernelSource { name, text } in HEADERS.iter().chain(UNITS) {
        part(name);
        part(text);
    }
    OPTIONS.iter().for_each(|option| part(option));
    hasher.finish()
}

#[cfg(test)]
mod tests;
