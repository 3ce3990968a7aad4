//! Kernels on a device: from code to functions that are launched.

use std::collections::HashMap;
use std::ffi::{CString, c_void};

use cudarc::driver::sys::{
    self, CUfunction, CUfunction_attribute, CUjit_option, CUmodule, CUresult,
};

use super::Options;
use super::api;
use crate::cuda::cache;
use crate::cuda::code::{self, Architecture, CodeForm, KernelCode};
use crate::cuda::compile::Compiler;
use crate::cuda::device::DeviceError;
use crate::cuda::source::PLAIN;

/// Dynamic shared memory that a launch has without being asked for.
const UNASKED: usize = 48 << 10;

/// From where on code of kernels waits for those in front of them, as `dialect.cuh` has it.
const WAITING: Architecture = Architecture { major: 9, minor: 0 };

/// Bytes for what the driver's compiler has to say.
const LOG: usize = 8 << 10;

/// Code on the device.
#[derive(Default)]
pub(super) struct Modules {
    modules: Vec<CUmodule>,
    functions: HashMap<&'static str, Function>,
    /// Whether kernels wait for those in front themselves, and so may begin before these have ended: code for 9.0 and above.
    pub(super) overlap: bool,
}

#[derive(Clone, Copy)]
struct Function {
    handle: CUfunction,
    /// Dynamic shared memory that it may be given.
    shared: usize,
}

impl Modules {
    /// The function of a kernel, which may be given so much dynamic shared memory. The context is current.
    pub(super) fn function(
        &mut self,
        kernel: &'static str,
        shared: usize,
    ) -> Result<CUfunction, DeviceError> {
        let failed = |message| DeviceError::Kernel { kernel, message };
        let mut function = match self.functions.get(kernel) {
            Some(function) => *function,
            None => Function {
                handle: self.find(kernel)?,
                shared: UNASKED,
            },
        };
        if shared > function.shared {
            let which = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = i32::try_from(shared).unwrap_or(i32::MAX);
            // SAFETY: the function is of a module that is loaded.
            let code = unsafe { sys::cuFuncSetAttribute(function.handle, which, bytes) };
            if code != CUresult::CUDA_SUCCESS {
                let meaning = api::meaning(code);
                return Err(failed(format!(
                    "{shared} bytes of shared memory: {meaning}"
                )));
            }
            function.shared = shared;
        }
        self.functions.insert(kernel, function);
        Ok(function.handle)
    }

    /// Blocks of a kernel that a multiprocessor has at a time. The context is current.
    pub(super) fn resident(
        &mut self,
        kernel: &'static str,
        threads: u32,
        shared: usize,
    ) -> Result<usize, DeviceError> {
        let function = self.function(kernel, shared)?;
        let failed = |message| DeviceError::Kernel { kernel, message };
        let threads = i32::try_from(threads).map_err(|error| failed(error.to_string()))?;
        let mut blocks = 0;
        // SAFETY: the function is of a module that is loaded, and there is room for a number.
        let code = unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, threads, shared)
        };
        match code {
            CUresult::CUDA_SUCCESS => Ok(usize::try_from(blocks).unwrap_or(0)),
            code => Err(failed(api::meaning(code))),
        }
    }

    fn find(&self, kernel: &'static str) -> Result<CUfunction, DeviceError> {
        let failed = |message| DeviceError::Kernel { kernel, message };
        let name = CString::new(kernel).map_err(|error| failed(error.to_string()))?;
        for &module in &self.modules {
            let mut function = std::ptr::null_mut();
            // SAFETY: the module is loaded, and the name ends with a zero.
            match unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) } {
                CUresult::CUDA_SUCCESS => return Ok(function),
                CUresult::CUDA_ERROR_NOT_FOUND => {}
                code => return Err(failed(api::meaning(code))),
            }
        }
        Err(failed("there is no kernel of this name".to_owned()))
    }

    /// Unloads the code.
    ///
    /// # Safety
    /// The context is current, and nothing that was launched runs.
    pub(super) unsafe fn free(&mut self) {
        self.functions.clear();
        for module in self.modules.drain(..) {
            // SAFETY: it was loaded by `load_images`.
            let _ = unsafe { sys::cuModuleUnload(module) };
        }
    }
}

/// Kernels for a device of this architecture, and where they are from. The context is current.
pub(super) fn load(
    device: Architecture,
    options: Options<'_>,
) -> Result<(Modules, String), DeviceError> {
    let (further, without): (&[&str], _) = match options.tensor_cores {
        true => (&[], ""),
        false => (&[PLAIN], " without tensor cores"),
    };
    let sealed = match options.sealed {
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
    // Those that the driver does not take are made anew, where there is a compiler.
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
        sealed,
        compiler,
    })?;
    let compiled = compiler.compile_with(&[device], further)?;
    if let Some(cache) = options.cache {
        // A cache that cannot be written to costs the next start its time, and this one nothing.
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

/// The first of what fits that the driver takes: instructions of a compiler that is newer than the driver may not load,
/// and nor does their text then.
fn load_any(code: &KernelCode, device: Architecture) -> Result<(Modules, String), String> {
    let mut faults = Vec::new();
    for images in code::choices(code, device)? {
        let Some(first) = images.first() else {
            continue;
        };
        let named = format!("{} for {}", first.form, first.architecture);
        match load_images(&images) {
            Ok(modules) => {
                let overlap = first.architecture >= WAITING;
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
                // SAFETY: nothing of it was launched.
                unsafe { loaded.free() };
                return Err(format!("{}: {fault}", image.unit));
            }
        }
    }
    Ok(loaded)
}

fn load_image(form: CodeForm, bytes: &[u8]) -> Result<CUmodule, String> {
    // Where the driver may read it as what it is: text with the zero that ends it, or a file of instructions, whose
    // header says how long it is and is looked at in words.
    let mut image = vec![0_u64; bytes.len() / 8 + 1];
    // SAFETY: there is room for all bytes and a zero behind them.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), image.as_mut_ptr().cast(), bytes.len());
    }
    if form == CodeForm::Cubin && !bytes.starts_with(b"\x7fELF") {
        return Err("it is no file of instructions".to_owned());
    }
    let mut log = vec![0_u8; LOG];
    let mut options = [
        CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
        CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
    ];
    // The size is passed in the place of a pointer.
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), (LOG - 1) as *mut c_void];
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
    Err(format!("{}{separator}{log}", api::meaning(code)))
}
