//! The sources of the kernels, as a compiler for GPUs gets them.

use htc_formats::htz::{Digest, Hasher};

/// A file of sources.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Its name: that of a header as it is included, that of a unit without its ending.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

macro_rules! sources {
    ($($name:literal from $file:literal),* $(,)?) => {
        &[$(Source { name: $name, text: include_str!(concat!("cu/", $file)) }),*]
    };
}

/// What units include.
pub const HEADERS: &[Source] = sources! {
    "blocks.cuh" from "blocks.cuh",
    "dialect.cuh" from "dialect.cuh",
    "kv.cuh" from "kv.cuh",
    "parts.cuh" from "parts.cuh",
    "products.cuh" from "products.cuh",
    "rows.cuh" from "rows.cuh",
    "tiles.cuh" from "tiles.cuh",
    "vectors.cuh" from "vectors.cuh",
};

/// What is compiled, each on its own.
pub const UNITS: &[Source] = sources! {
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

/// What a compiler is told beside the architecture. Line numbers cost no time and let profilers name the source.
pub const OPTIONS: &[&str] = &["--std=c++17", "--generate-line-info"];

/// What it is told beside for kernels that do without tensor cores.
pub const PLAIN: &str = "--define-macro=HTC_PLAIN_MMA";

/// Names sources and options: code that was compiled from others may take other arguments.
pub fn digest() -> Digest {
    let mut hasher = Hasher::default();
    let mut part = |text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    for Source { name, text } in HEADERS.iter().chain(UNITS) {
        part(name);
        part(text);
    }
    OPTIONS.iter().for_each(|option| part(option));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that is written and not listed would be found by the emulation and by no device.
    #[test]
    fn every_file_of_the_folder_is_listed() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cuda/cu");
        let mut found: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let units = UNITS.iter().map(|unit| format!("{}.cu", unit.name));
        let headers = HEADERS.iter().map(|header| header.name.to_owned());
        let mut listed: Vec<String> = units.chain(headers).collect();
        found.sort();
        listed.sort();
        assert_eq!(found, listed);
    }

    #[test]
    fn what_is_included_is_a_header() {
        for source in HEADERS.iter().chain(UNITS) {
            for line in source.text.lines() {
                let Some(rest) = line.trim().strip_prefix("#include ") else {
                    continue;
                };
                let name = rest.trim_matches(['"', '<', '>']);
                // The emulation's stands behind its own condition.
                let known = name == "emulate.h" || HEADERS.iter().any(|h| h.name == name);
                assert!(known, "{} includes {name}", source.name);
            }
        }
    }
}
