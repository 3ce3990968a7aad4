//! GPU kernels, compiled together with the artifact.

use htc_formats::htz::{GpuArchitecture, Section};

#[cfg(feature = "cuda")]
use htc_kernels::cuda::{compile::Compiler, driver::MIN_ARCHITECTURE};

use super::CompileError;

#[cfg(feature = "cuda")]
pub(super) fn section(architectures: &[GpuArchitecture]) -> Result<Option<Section>, CompileError> {
    let mut architectures = architectures.to_vec();
    architectures.sort_unstable();
    architectures.dedup();
    if architectures.is_empty() {
        return Ok(None);
    }
    if let Some(old) = architectures.iter().find(|&&a| a < MIN_ARCHITECTURE) {
        let message = format!("kernels for {old}: they need {MIN_ARCHITECTURE} at the least");
        return Err(CompileError::Kernels(message));
    }
    let compiler = Compiler::load().map_err(CompileError::NoKernelCompiler)?;
    let code = compiler.compile(&architectures);
    let code = code.map_err(|error| CompileError::Kernels(error.to_string()))?;
    Ok(Some(Section::kernels(&code)?))
}

#[cfg(not(feature = "cuda"))]
pub(super) fn section(architectures: &[GpuArchitecture]) -> Result<Option<Section>, CompileError> {
    match architectures {
        [] => Ok(None),
        [..] => Err(CompileError::KernelsNotBuilt),
    }
}
