//! Compiles every GPU kernel for the given architectures, prints the resources of each, and fails
//! if registers spill or occupancy is too low: `check_cuda sm_80 sm_90`.
//!
//! Without NVRTC the check is skipped with a message.

#[cfg(feature = "cuda")]
mod cubin;

#[cfg(feature = "cuda")]
fn main() -> std::process::ExitCode {
    check::main()
}

#[cfg(not(feature = "cuda"))]
fn main() {
    println!("skipped: this build has no feature cuda");
}

#[cfg(feature = "cuda")]
mod check {
    use std::process::ExitCode;

    use htc_kernels::cuda::code::GpuArchitecture;
    use htc_kernels::cuda::compile::Compiler;
    use htc_kernels::cuda::occupancy::MultiprocessorLimits;
    use htc_kernels::cuda::ops::dynamic_shared_bytes;
    use htc_kernels::cuda::source::{NO_TENSOR_CORES, UNITS};

    use crate::cubin::{self, KernelResources};

    /// Minimum of resident warps per multiprocessor, limited by registers and shared memory: enough
    /// to hide memory latency when each warp has several loads in flight.
    const MIN_WARPS: u32 = 16;

    const MIN_WARPS_EXCEPTIONS: [(&str, u32); 4] = [
        ("attend_tiles_64", 8),
        ("attend_tiles_128", 4),
        ("attend_tiles_of_halves_64", 12),
        ("attend_tiles_of_halves_128", 8),
    ];

    pub fn main() -> ExitCode {
        let names: Vec<String> = std::env::args().skip(1).collect();
        let compiler = match Compiler::load() {
            Ok(compiler) => compiler,
            Err(why) => {
                println!("skipped: no NVRTC: {why}");
                return ExitCode::SUCCESS;
            }
        };
        println!("{}", compiler.name());
        println!(
            "{:8} {:28} {:>7} {:>9} {:>6} {:>6} {:>7} {:>6} {:>9} {:>9}",
            "",
            "kernel",
            "threads",
            "registers",
            "spills",
            "stack",
            "shared",
            "blocks",
            "warps",
            "occupancy"
        );
        let mut faults = Vec::new();
        for name in &names {
            if let Err(fault) = check_architecture(&compiler, name, &mut faults) {
                faults.push(format!("{name}: {fault}"));
            }
        }
        // Kernels without tensor cores serve as a reference: check that they compile on one
        // architecture.
        let plain = names
            .first()
            .map(|name| without_tensor_cores(&compiler, name));
        if let Some(Err(fault)) = plain {
            faults.push(format!("without tensor cores: {fault}"));
        }
        for fault in &faults {
            eprintln!("{fault}");
        }
        if faults.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }

    fn check_architecture(
        compiler: &Compiler,
        name: &str,
        faults: &mut Vec<String>,
    ) -> Result<(), String> {
        let architecture: GpuArchitecture = name.parse()?;
        let multiprocessor = MultiprocessorLimits::for_architecture(architecture)
            .ok_or_else(|| "the multiprocessor is not in the table".to_owned())?;
        for unit in UNITS {
            let compiled = compiler
                .compile_unit(unit, architecture, &["--ptxas-options=-v"])
                .map_err(|error| format!("{}: {error}", unit.name))?;
            let kernels =
                cubin::read_kernel_resources(&compiled.cubin).map_err(|error| error.to_string())?;
            if kernels.is_empty() {
                faults.push(format!("{name}: {} has no kernels", unit.name));
            }
            for kernel in &kernels {
                let spills = spilled_bytes(&compiled.log, &kernel.kernel);
                print_row(name, multiprocessor, kernel, spills);
                let mut fault = |what: String| {
                    faults.push(format!("{name}: {}: {what}", kernel.kernel));
                };
                match spills {
                    Some(0) => {}
                    Some(bytes) => fault(format!("{bytes} bytes of registers are spilled")),
                    None => fault("the compiler does not say what is spilled".to_owned()),
                }
                let warps = warps(multiprocessor, kernel);
                let fewer = MIN_WARPS_EXCEPTIONS
                    .iter()
                    .find(|(name, _)| *name == kernel.kernel);
                let least = fewer.map_or(MIN_WARPS, |&(_, least)| least);
                if warps < least {
                    fault(format!(
                        "{warps} warps side by side, at least {least} are expected"
                    ));
                }
            }
        }
        Ok(())
    }

    fn without_tensor_cores(compiler: &Compiler, name: &str) -> Result<(), String> {
        let compiled = compiler.compile_with(&[name.parse()?], &[NO_TENSOR_CORES]);
        let code = compiled.map_err(|error| error.to_string())?;
        println!(
            "{name:8} without tensor cores: {} images",
            code.images.len()
        );
        Ok(())
    }

    fn warps(multiprocessor: MultiprocessorLimits, kernel: &KernelResources) -> u32 {
        let &KernelResources {
            max_threads: threads,
            registers,
            ..
        } = kernel;
        threads / 32
            * multiprocessor.resident_blocks(threads, registers, shared_memory_bytes(kernel))
    }

    fn shared_memory_bytes(kernel: &KernelResources) -> u32 {
        kernel.static_shared_bytes + dynamic_shared_bytes(&kernel.kernel) as u32
    }

    fn print_row(
        name: &str,
        multiprocessor: MultiprocessorLimits,
        kernel: &KernelResources,
        spills: Option<u32>,
    ) {
        let &KernelResources {
            kernel: ref kernel_name,
            registers,
            local_bytes: stack,
            max_threads: threads,
            ..
        } = kernel;
        let shared = shared_memory_bytes(kernel);
        let blocks = multiprocessor.resident_blocks(threads, registers, shared);
        let percent = multiprocessor.occupancy_percent(threads, registers, shared);
        let spills = spills.map_or_else(|| "?".to_owned(), |bytes| bytes.to_string());
        let warps = warps(multiprocessor, kernel);
        println!(
            "{name:8} {kernel_name:28} {threads:>7} {registers:>9} {spills:>6} {stack:>6} {shared:>7} {blocks:>6} {warps:>9} {percent:>8}%",
        );
    }

    /// Returns the bytes of spilled registers of a kernel from the log of the assembler:
    fn spilled_bytes(log: &str, kernel: &str) -> Option<u32> {
        let mut lines = log.lines();
        lines.find(|line| {
            line.trim_end()
                .ends_with(&format!("Function properties for {kernel}"))
        })?;
        let parts = lines.next()?.split(',').skip(1);
        let bytes = parts.map(|part| part.split_whitespace().next()?.parse::<u32>().ok());
        bytes.sum()
    }
}
