//! L2 cache size and memory bandwidth of common NVIDIA GPUs, as published.

/// Properties of a GPU that planning uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu {
    /// Name on the command line.
    pub name: &'static str,
    /// Bytes of the L2 cache.
    pub l2_bytes: u64,
    /// Peak memory bandwidth in bytes per second.
    pub memory_bandwidth: f64,
}

const fn gpu(name: &'static str, l2_kib: u64, gigabytes_per_second: f64) -> Gpu {
    Gpu {
        name,
        l2_bytes: l2_kib << 10,
        memory_bandwidth: gigabytes_per_second * 1e9,
    }
}

/// Known GPUs, sorted by name.
pub const ALL: [Gpu; 32] = [
    gpu("a10", 6 << 10, 600.0),
    gpu("a100-40gb", 40 << 10, 1555.0),
    gpu("a100-80gb", 40 << 10, 2039.0),
    gpu("a30", 24 << 10, 933.0),
    gpu("a40", 6 << 10, 696.0),
    gpu("h100-pcie", 50 << 10, 2000.0),
    gpu("h100-sxm", 50 << 10, 3350.0),
    gpu("h200", 50 << 10, 4800.0),
    gpu("jetson-agx-orin", 4 << 10, 204.8),
    gpu("l4", 48 << 10, 300.0),
    gpu("l40", 96 << 10, 864.0),
    gpu("l40s", 96 << 10, 864.0),
    gpu("rtx-2080-ti", 5632, 616.0),
    gpu("rtx-3060", 3 << 10, 360.0),
    gpu("rtx-3070", 4 << 10, 448.0),
    gpu("rtx-3080", 5 << 10, 760.0),
    gpu("rtx-3090", 6 << 10, 936.0),
    gpu("rtx-4060", 24 << 10, 272.0),
    gpu("rtx-4060-ti", 32 << 10, 288.0),
    gpu("rtx-4070", 36 << 10, 504.0),
    gpu("rtx-4070-laptop", 32 << 10, 256.0),
    gpu("rtx-4070-ti", 48 << 10, 504.0),
    gpu("rtx-4080", 64 << 10, 717.0),
    gpu("rtx-4090", 72 << 10, 1008.0),
    gpu("rtx-4090-laptop", 64 << 10, 576.0),
    gpu("rtx-5070", 48 << 10, 672.0),
    gpu("rtx-5080", 64 << 10, 960.0),
    gpu("rtx-5090", 96 << 10, 1792.0),
    gpu("rtx-6000-ada", 96 << 10, 960.0),
    gpu("rtx-a6000", 6 << 10, 768.0),
    gpu("t4", 4 << 10, 320.0),
    gpu("v100", 6 << 10, 900.0),
];

/// Returns the GPU with the given name; case, spaces, hyphens and the vendor prefix are ignored.
///
/// # Errors
/// A one-line message with the known names.
pub fn find_by_name(name: &str) -> Result<&'static Gpu, String> {
    let requested = name.trim().to_lowercase().replace([' ', '_'], "-");
    let requested = requested.trim_start_matches("nvidia-");
    let requested = requested.trim_start_matches("geforce-");
    ALL.iter().find(|gpu| gpu.name == requested).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|gpu| gpu.name).collect();
        let requested: String = name.chars().take(60).collect();
        format!(
            "the GPU {requested:?} is not in the table; give the bytes of its L2 cache, or one of {}",
            names.join(", ")
        )
    })
}

#[cfg(test)]
mod tests;
