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
    println!("cargo::rerun-if-env-changed=HTC_EMULATE_SANITIZE");
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .file("src/emulate/unit.cpp")
        .include("src/emulate")
        .include("src/cuda/cu")
        .std("c++17")
        .define("HTC_EMULATED", None)
        .opt_level(2)
        .flag("-ffp-contract=off")
        .flag("-fno-strict-aliasing")
        .warnings_into_errors(true)
        .flag("-Wno-unused-function")
        .flag("-Wno-unused-const-variable");
    // With `address,undefined`, the final binary must link the sanitizer runtimes first.
    if let Some(sanitizers) = std::env::var_os("HTC_EMULATE_SANITIZE") {
        let sanitizers = sanitizers.to_string_lossy();
        if !sanitizers.is_empty() {
            build
                .flag(format!("-fsanitize={sanitizers}"))
                .flag("-fno-sanitize-recover=undefined")
                .flag("-g");
            for library in ["asan", "ubsan"] {
                println!(
                    "cargo::rustc-link-search=native={}",
                    library_dir(&build, library)
                );
                println!("cargo::rustc-link-lib=dylib={library}");
            }
        }
    }
    build.compile("htc_emulated");
}

#[cfg(feature = "emulated")]
fn library_dir(build: &cc::Build, library: &str) -> String {
    let compiler = build.get_compiler();
    let mut command = std::process::Command::new(compiler.path());
    let found = command.arg(format!("-print-file-name=lib{library}.so"));
    let path = found
        .output()
        .map(|output| output.stdout)
        .unwrap_or_default();
    let path = String::from_utf8_lossy(&path).trim().to_owned();
    let folder = std::path::Path::new(&path).parent();
    folder
        .map(|folder| folder.display().to_string())
        .unwrap_or_default()
}
