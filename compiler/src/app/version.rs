//! What `htc --version` prints.

/// Returns the version, the commit it was built from, the instruction set of the kernels on this
/// processor, and the GPUs that the CUDA driver finds.
pub fn describe() -> String {
    let commit = option_env!("HTC_COMMIT").filter(|commit| !commit.is_empty());
    let commit = commit.map_or(String::new(), |commit| format!(" ({commit})"));
    let lines = [
        format!("htc {}{commit}", env!("CARGO_PKG_VERSION")),
        format!(
            "processor: kernels for {}",
            htc_kernels::cpu::instruction_set()
        ),
        format!("GPU: {}", describe_cuda()),
    ];
    lines.join("\n")
}

#[cfg(feature = "cuda")]
fn describe_cuda() -> String {
    match htc_kernels::cuda::Cuda::devices() {
        Ok(devices) => {
            let devices = devices
                .iter()
                .map(|device| format!("{} ({})", device.name, device.architecture));
            devices.collect::<Vec<_>>().join(", ")
        }
        Err(error) => error.to_string(),
    }
}

#[cfg(not(feature = "cuda"))]
fn describe_cuda() -> String {
    "not in this build".to_owned()
}
