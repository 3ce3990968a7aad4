//! What `htc --version` prints.

/// Returns the version, the commit it was built from, the features of the build, the instruction set
/// of the kernels on this processor, the GPUs that the CUDA driver finds, and the compiler of their
/// kernels.
pub fn describe() -> String {
    let commit = option_env!("HTC_COMMIT").filter(|commit| !commit.is_empty());
    let commit = commit.map_or(String::new(), |commit| format!(" ({commit})"));
    let [devices, compiler] = describe_cuda();
    let lines = [
        format!("htc {}{commit}", env!("CARGO_PKG_VERSION")),
        format!(
            "processor: kernels for {}",
            htc_kernels::cpu::instruction_set()
        ),
        format!("features: {}", describe_features()),
        format!("GPU: {devices}"),
        format!("GPU compiler: {compiler}"),
    ];
    lines.join("\n")
}

fn describe_features() -> String {
    let features = [
        ("cuda", cfg!(feature = "cuda")),
        ("emulated", cfg!(feature = "emulated")),
        ("openblas", cfg!(feature = "openblas")),
    ];
    let enabled = features.into_iter().filter(|(_, enabled)| *enabled);
    let names: Vec<&str> = enabled.map(|(name, _)| name).collect();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

/// Returns the GPUs, and the compiler of their kernels.
#[cfg(feature = "cuda")]
fn describe_cuda() -> [String; 2] {
    use htc_kernels::cuda::{Cuda, compile::Compiler};
    let devices = match Cuda::devices() {
        Ok(devices) => {
            let devices = devices
                .iter()
                .map(|device| format!("{} ({})", device.name, device.architecture));
            devices.collect::<Vec<_>>().join(", ")
        }
        Err(error) => error.to_string(),
    };
    let compiler = Compiler::load().map_or_else(|error| error, |compiler| compiler.name());
    [devices, compiler]
}

#[cfg(not(feature = "cuda"))]
fn describe_cuda() -> [String; 2] {
    ["not in this build"; 2].map(str::to_owned)
}
