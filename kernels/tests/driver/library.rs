//! Mock libraries of a GPU, compiled on demand.

use std::path::Path;
use std::process::Command;

/// File name of the CUDA driver.
pub const DRIVER: &str = "libcuda.so.1";
/// Searched before any system library.
pub const BLAS: &str = "libcublas.so";
/// File name of cuSOLVER that is searched first.
pub const SOLVER: &str = "libcusolver.so";

pub fn compile_library(kernels: &Path, folder: &Path, name: &str, source: &str, options: &[&str]) {
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let include = |folder: &str| format!("-I{}", kernels.join(folder).display());
    let run = Command::new(compiler)
        .args(["-std=c++17", "-O1", "-shared", "-fPIC", "-DHTC_EMULATED"])
        .args([
            "-ffp-contract=off",
            "-fno-strict-aliasing",
            "-Wl,-Bsymbolic",
        ])
        .args(["src/emulate", "src/cuda/cu"].map(include))
        .arg("-o")
        .arg(folder.join(name))
        .arg(kernels.join("tests/driver").join(source))
        .arg("-ldl")
        .args(options)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{error}");
}
