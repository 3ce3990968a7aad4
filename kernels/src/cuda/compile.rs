//! Compilation of the kernels with NVRTC.

use std::ffi::{CStr, CString, c_char, c_int};
use std::num::NonZero;
use std::sync::OnceLock;
use std::thread::available_parallelism;

use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};

use super::code::{CodeFormat, CodeImage, GpuArchitecture, KernelCode};
use super::device::DeviceError;
use super::source::{HEADERS, KernelSource, OPTIONS, UNITS, sources_digest};
use crate::Pool;

const FUNCTIONS: &[&str] = &[
    "nvrtcCompileProgram",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetCUBIN",
    "nvrtcGetCUBINSize",
    "nvrtcGetErrorString",
    "nvrtcGetNumSupportedArchs",
    "nvrtcGetPTX",
    "nvrtcGetPTXSize",
    "nvrtcGetProgramLog",
    "nvrtcGetProgramLogSize",
    "nvrtcGetSupportedArchs",
    "nvrtcVersion",
];

/// The NVRTC compiler.
#[derive(Clone, Debug)]
pub struct Compiler {
    version: [u32; 2],
    architectures: Vec<GpuArchitecture>,
}

/// Output of the compilation of a unit.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Machine code of the architecture.
    pub cubin: Vec<u8>,
    /// PTX text with its terminating NUL.
    pub ptx: Vec<u8>,
    /// Compiler log.
    pub log: String,
}

impl Compiler {
    /// Loads NVRTC.
    ///
    /// # Errors
    /// Returns a message if the library is missing or too old.
    pub fn load() -> Result<Compiler, String> {
        static LOADED: OnceLock<Result<Compiler, String>> = OnceLock::new();
        LOADED.get_or_init(load).clone()
    }

    /// Returns the name and version, e.g. `NVRTC 13.0`.
    pub fn name(&self) -> String {
        let [major, minor] = self.version;
        format!("NVRTC {major}.{minor}")
    }

    /// Returns the supported architectures.
    pub fn architectures(&self) -> &[GpuArchitecture] {
        &self.architectures
    }

    /// Compiles every unit for every architecture.
    ///
    /// # Errors
    /// [`DeviceError::Code`] for an unsupported architecture or sources that do not compile.
    pub fn compile(&self, architectures: &[GpuArchitecture]) -> Result<KernelCode, DeviceError> {
        self.compile_with(architectures, &[])
    }

    /// As [`Compiler::compile`], with extra options, which the result does not record.
    pub fn compile_with(
        &self,
        architectures: &[GpuArchitecture],
        further: &[&str],
    ) -> Result<KernelCode, DeviceError> {
        let all = architectures.iter();
        let jobs: Vec<(GpuArchitecture, &KernelSource)> = all
            .flat_map(|&architecture| UNITS.iter().map(move |unit| (architecture, unit)))
            .collect();
        let mut compiled: Vec<_> = jobs.into_iter().map(|job| (job, None)).collect();
        compiler_pool()?.chunks_mut(&mut compiled, 1, |_, chunk| {
            for ((architecture, unit), made) in chunk {
                *made = Some(self.compile_unit(unit, *architecture, further));
            }
        });
        let mut images = Vec::new();
        for ((architecture, unit), made) in compiled {
            let Some(made) = made else { continue };
            let Compiled { cubin, ptx, .. } = made?;
            for (form, bytes) in [(CodeFormat::Cubin, cubin), (CodeFormat::Ptx, ptx)] {
                images.push(CodeImage {
                    architecture,
                    form,
                    unit: unit.name.to_owned(),
                    bytes,
                });
            }
        }
        Ok(KernelCode {
            sources: sources_digest(),
            compiler: self.name(),
            images,
        })
    }

    /// Compiles one unit for one architecture with extra options.
    pub fn compile_unit(
        &self,
        unit: &KernelSource,
        architecture: GpuArchitecture,
        further: &[&str],
    ) -> Result<Compiled, DeviceError> {
        let failed = |message: String| DeviceError::Code {
            architecture: architecture.to_string(),
            message,
        };
        if !self.architectures.contains(&architecture) {
            let known: Vec<_> = self.architectures.iter().map(ToString::to_string).collect();
            return Err(failed(format!(
                "{} compiles for {}",
                self.name(),
                known.join(", ")
            )));
        }
        let target = format!("--gpu-architecture={architecture}");
        let options = [target.as_str()];
        let options = options.iter().chain(OPTIONS).chain(further).copied();
        let program = Program::new(unit).map_err(failed)?;
        program.compile(options).map_err(failed)
    }
}

fn compiler_pool() -> Result<Pool, DeviceError> {
    const MOST: usize = 8;
    let threads = available_parallelism().map_or(1, NonZero::get).min(MOST);
    let pool = Pool::new(threads).or_else(|_| Pool::new(1));
    pool.map_err(|error| DeviceError::Driver {
        operation: "compiling kernels",
        message: error.to_string(),
    })
}

fn load() -> Result<Compiler, String> {
    // SAFETY: libraries with the names of NVRTC are NVRTC, and loading them has no other effect.
    if !unsafe { sys::is_culib_present() } {
        return Err("NVRTC (libnvrtc) is not installed".to_owned());
    }
    for name in FUNCTIONS {
        // SAFETY: the library is present; the function is looked up, not called.
        if unsafe { sys::culib().get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_err() {
            return Err(format!("NVRTC has no {name}: a newer one (11.4) is needed"));
        }
    }
    let [mut major, mut minor, mut count]: [c_int; 3] = [0; 3];
    // SAFETY: the functions exist, and write one number each.
    unsafe {
        check(sys::nvrtcVersion(&mut major, &mut minor))?;
        check(sys::nvrtcGetNumSupportedArchs(&mut count))?;
    }
    let mut numbers: Vec<c_int> = vec![0; count.max(0) as usize];
    // SAFETY: `numbers` has `count` elements.
    check(unsafe { sys::nvrtcGetSupportedArchs(numbers.as_mut_ptr()) })?;
    let architecture = |&n: &c_int| {
        let major = u8::try_from(n / 10).ok()?;
        let minor = u8::try_from(n % 10).ok()?;
        Some(GpuArchitecture { major, minor })
    };
    Ok(Compiler {
        version: [major, minor].map(|n| n.max(0) as u32),
        architectures: numbers.iter().filter_map(architecture).collect(),
    })
}

fn check(code: nvrtcResult) -> Result<(), String> {
    if code == nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    // SAFETY: the function exists; the text is constant and NUL-terminated.
    let text = unsafe {
        let text = sys::nvrtcGetErrorString(code);
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    Err(text.unwrap_or_else(|| format!("{code:?}")))
}

struct Program {
    handle: nvrtcProgram,
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the handle was created by `new` and is not used after this.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.handle) };
    }
}

impl Program {
    fn new(unit: &KernelSource) -> Result<Program, String> {
        let text = |text: &str| CString::new(text).map_err(|error| error.to_string());
        let name = text(&format!("{}.cu", unit.name))?;
        let source = text(unit.text)?;
        let texts = HEADERS.iter().map(|header| text(header.text));
        let texts: Vec<CString> = texts.collect::<Result<_, _>>()?;
        let names = HEADERS.iter().map(|header| text(header.name));
        let names: Vec<CString> = names.collect::<Result<_, _>>()?;
        let pointers = |texts: &[CString]| -> Vec<*const c_char> {
            texts.iter().map(|text| text.as_ptr()).collect()
        };
        let (texts_at, names_at) = (pointers(&texts), pointers(&names));
        let mut handle: nvrtcProgram = std::ptr::null_mut();
        // SAFETY: all texts are NUL-terminated and live until the call returns, which copies them.
        check(unsafe {
            sys::nvrtcCreateProgram(
                &mut handle,
                source.as_ptr(),
                name.as_ptr(),
                HEADERS.len() as c_int,
                texts_at.as_ptr(),
                names_at.as_ptr(),
            )
        })?;
        Ok(Program { handle })
    }

    fn compile<'a>(&self, options: impl Iterator<Item = &'a str>) -> Result<Compiled, String> {
        let options = options.map(|option| CString::new(option).map_err(|e| e.to_string()));
        let options: Vec<CString> = options.collect::<Result<_, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is alive; the options are NUL-terminated and live until the call
        // returns.
        let code = unsafe {
            sys::nvrtcCompileProgram(self.handle, pointers.len() as c_int, pointers.as_ptr())
        };
        let log = self.get(sys::nvrtcGetProgramLogSize, sys::nvrtcGetProgramLog);
        let log = log.unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let log = log.trim_end_matches('\0').trim_end().to_owned();
        check(code).map_err(|error| format!("{error}\n{log}"))?;
        Ok(Compiled {
            cubin: self.get(sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN)?,
            ptx: self.get(sys::nvrtcGetPTXSize, sys::nvrtcGetPTX)?,
            log,
        })
    }

    fn get(
        &self,
        size: unsafe fn(nvrtcProgram, *mut usize) -> nvrtcResult,
        get: unsafe fn(nvrtcProgram, *mut c_char) -> nvrtcResult,
    ) -> Result<Vec<u8>, String> {
        let mut length = 0;
        // SAFETY: the program is alive, and the buffer has the length that the first call returned.
        unsafe {
            check(size(self.handle, &mut length))?;
            let mut bytes = vec![0_u8; length];
            check(get(self.handle, bytes.as_mut_ptr().cast()))?;
            Ok(bytes)
        }
    }
}
