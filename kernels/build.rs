//! Compiles the GPU kernels with the C++ compiler for the `emulated` feature.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "emulated")]
    build_emulated_kernels();
}

#[cfg(feature = "emulated")]
fn build_emulated_kernels() {
    for folder in ["src/emulate", "src/cuda/cu"] {
        println!("cargo::rerun-if-changed={folder}");
    }
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .file("src/emulate/unit.cpp")
        .opt_level(2)
        .flag("@src/emulate/flags")
        .warnings_into_errors(true)
        .flag("-Wno-unused-function")
        .flag("-Wno-unused-const-variable");
    build.compile("htc_emulated");
}
