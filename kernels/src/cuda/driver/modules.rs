//! Loading of kernel modules and lookup of their functions.

use std::collections::HashMap;
use std::ffi::{CString, c_void};

use cudarc::driver::sys::{
    self, CUfunction, CUfunction_attribute, CUjit_option, CUmodule, CUresult,
};

use super::CudaOptions;
use super::api;
use crate::cuda::cache;
use crate::cuda::code::{self, CodeFormat, GpuArchitecture, KernelCode};
use crate::cuda::compile::Compiler;
use crate::cuda::device::DeviceError;
use crate::cuda::source::NO_TENSOR_CORES;

/// Shared memory of a block that needs no opt-in.
const DEFAULT_SHARED_BYTES: usize = 48 << 10;

/// First architecture whose launches may overlap, as in `dialect.cuh`.
const DEPENDENT_LAUNCH_ARCHITECTURE: GpuArchitecture = GpuArchitecture { major: 9, minor: 0 };

const LOG_BYTES: usize = 8 << 10;

#[derive(Default)]
pub(super) struct Modules {
    modules: Vec<CUmodule>,
    functions: HashMap<&'static str, LoadedFunction>,
    /// The code waits for its predecessors itself (from 9.0), so launches may overlap.
    pub(super) overlap: bool,
}

#[derive(Clone, Copy)]
struct LoadedFunction {
    handle: CUfunction,
    shared: usize,
}

impl Modules {
    /// Returns the function of a kernel and raises its limit of dynamic shared memory to `shared`.
    /// The context is current.
    pub(super) fn function(
        &mut self,
        kernel: &'static str,
        shared: usize,
    ) -> Result<CUfunction, DeviceError> {
        let failed = |message| DeviceError::Kernel { kernel, message };
        let mut function = match self.functions.get(kernel) {
            Some(function) => *function,
            None => LoadedFunction {
                handle: self.find_function(kernel)?,
                shared: DEFAULT_SHARED_BYTES,
            },
        };
        if shared > function.shared {
            let which = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = i32::try_from(shared).unwrap_or(i32::MAX);
            // SAFETY: the function belongs to a loaded module.
            let code = unsafe { sys::cuFuncSetAttribute(function.handle, which, bytes) };
            if code != CUresult::CUDA_SUCCESS {
                let meaning = api::error_description(code);
                return Err(failed(format!(
                    "{shared} bytes of shared memory: {meaning}"
                )));
            }
            function.shared = shared;
        }
        self.functions.insert(kernel, function);
        Ok(function.handle)
    }

    pub(super) fn resident_blocks(
        &mut self,
        kernel: &'static str,
        threads: u32,
        shared: usize,
    ) -> Result<usize, DeviceError> {
        let function = self.function(kernel, shared)?;
        let failed = |message| DeviceError::Kernel { kernel, message };
        let threads = i32::try_from(threads).map_err(|error| failed(error.to_string()))?;
        let mut blocks = 0;
        // SAFETY: the function belongs to a loaded module, and the number is writable.
        let code = unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, threads, shared)
        };
        match code {
            CUresult::CUDA_SUCCESS => Ok(usize::try_from(blocks).unwrap_or(0)),
            code => Err(failed(api::error_description(code))),
        }
    }

    fn find_function(&self, kernel: &'static str) -> Result<CUfunction, DeviceError> {
        let failed = |message| DeviceError::Kernel { kernel, message };
        let name = CString::new(kernel).map_err(|error| failed(error.to_string()))?;
        for &module in &self.modules {
            let mut function = std::ptr::null_mut();
            // SAFETY: the module is loaded, and the name is NUL-terminated.
            match unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) } {
                CUresult::CUDA_SUCCESS => return Ok(function),
                CUresult::CUDA_ERROR_NOT_FOUND => {}
                code => return Err(failed(api::error_description(code))),
            }
        }
        Err(failed("there is no kernel of this name".to_owned()))
    }

    /// # Safety
    /// The context is current, and no launch is running.
    pub(super) unsafe fn free(&mut self) {
        self.functions.clear();
        for module in self.modules.drain(..) {
            // SAFETY: it was loaded by `load_images`.
            let _ = unsafe { sys::cuModuleUnload(module) };
        }
    }
}

pub(super) fn load_kernels(
    device: GpuArchitecture,
    options: CudaOptions<'_>,
) -> Result<(Modules, String), DeviceError> {
    let (further, without): (&[&str], _) = if options.tensor_cores {
        (&[], "")
    } else {
        (&[NO_TENSOR_CORES], " without tensor cores")
    };
    let sealed = match options.precompiled {
        _ if !options.tensor_cores => "none are sealed without tensor cores".to_owned(),
        None => "the artifact has none".to_owned(),
        Some(sealed) => match load_any(sealed, device) {
            Ok((modules, form)) => return Ok((modules, format!("sealed {form}"))),
            Err(why) => why,
        },
    };
    let kept = options
        .cache
        .and_then(|cache| cache::read(cache, device, further));
    if let Some(kept) = kept
        && let Ok((modules, form)) = load_any(&kept, device)
    {
        let name = &kept.compiler;
        return Ok((
            modules,
            format!("{form}{without}, compiled before by {name}"),
        ));
    }
    let compiler = Compiler::load().map_err(|compiler| DeviceError::NoCode {
        architecture: device.to_string(),
        mismatch: sealed,
        compiler,
    })?;
    let compiled = compiler.compile_with(&[device], further)?;
    if let Some(cache) = options.cache {
        // A cache that is not writable only costs the next start time.
        let _ = cache::write(cache, device, further, &compiled);
    }
    let name = compiler.name();
    match load_any(&compiled, device) {
        Ok((modules, form)) => Ok((modules, format!("{form}{without}, compiled by {name}"))),
        Err(message) => Err(DeviceError::Code {
            architecture: device.to_string(),
            message,
        }),
    }
}

/// Loads the first candidate that the driver accepts; output of a newer compiler may not load.
fn load_any(code: &KernelCode, device: GpuArchitecture) -> Result<(Modules, String), String> {
    let mut faults = Vec::new();
    for images in code::compatible_images(code, device)? {
        let Some(first) = images.first() else {
            continue;
        };
        let named = format!("{} for {}", first.form, first.architecture);
        match load_images(&images) {
            Ok(modules) => {
                let overlap = first.architecture >= DEPENDENT_LAUNCH_ARCHITECTURE;
                return Ok((Modules { overlap, ..modules }, named));
            }
            Err(fault) => faults.push(format!("the {named} does not load: {fault}")),
        }
    }
    Err(faults.join("; "))
}

fn load_images(images: &code::Images<'_>) -> Result<Modules, String> {
    let mut loaded = Modules::default();
    for image in images {
        match load_image(image.form, &image.bytes) {
            Ok(module) => loaded.modules.push(module),
            Err(fault) => {
                // SAFETY: none of its kernels was launched.
                unsafe { loaded.free() };
                return Err(format!("{}: {fault}", image.unit));
            }
        }
    }
    Ok(loaded)
}

fn load_image(form: CodeFormat, bytes: &[u8]) -> Result<CUmodule, String> {
    // The driver reads PTX as text and a cubin in words.
    let mut image = vec![0_u64; bytes.len() / 8 + 1];
    // SAFETY: the buffer has at least one byte more than `bytes`.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), image.as_mut_ptr().cast(), bytes.len());
    }
    if form == CodeFormat::Cubin && !bytes.starts_with(b"\x7fELF") {
        return Err("it is no file of instructions".to_owned());
    }
    let mut log = vec![0_u8; LOG_BYTES];
    let mut options = [
        CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
        CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
    ];
    // The size is passed in the pointer value.
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), (LOG_BYTES - 1) as *mut c_void];
    let mut module = std::ptr::null_mut();
    // SAFETY: the context is current; image, options and log live until the call returns.
    let code = unsafe {
        sys::cuModuleLoadDataEx(
            &mut module,
            image.as_ptr().cast(),
            options.len() as u32,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    if code == CUresult::CUDA_SUCCESS {
        return Ok(module);
    }
    let end = log.iter().position(|&byte| byte == 0).unwrap_or(0);
    let log = String::from_utf8_lossy(&log[..end]);
    let log = log.trim();
    let separator = if log.is_empty() { "" } else { ": " };
    Err(format!("{}{separator}{log}", api::error_description(code)))
}
