//! Compiles the kernels, with NVRTC where it is installed.

use std::ffi::{CStr, CString, c_char, c_int};
use std::num::NonZero;
use std::sync::OnceLock;
use std::thread::available_parallelism;

use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};

use super::code::{Architecture, CodeForm, CodeImage, KernelCode};
use super::device::DeviceError;
use super::source::{HEADERS, OPTIONS, Source, UNITS, digest};
use crate::Pool;

/// Every function that is called below, looked for once.
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

/// A compiler for GPUs.
#[derive(Clone, Debug)]
pub struct Compiler {
    version: [u32; 2],
    architectures: Vec<Architecture>,
}

/// What compiling a unit gave.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Instructions of the architecture.
    pub cubin: Vec<u8>,
    /// Text, with the zero that ends it.
    pub ptx: Vec<u8>,
    /// What the compiler had to say.
    pub log: String,
}

impl Compiler {
    /// NVRTC, where the system finds its library.
    ///
    /// # Errors
    /// Why there is none.
    pub fn load() -> Result<Compiler, String> {
        static LOADED: OnceLock<Result<Compiler, String>> = OnceLock::new();
        LOADED.get_or_init(load).clone()
    }

    /// As `NVRTC 13.0`.
    pub fn name(&self) -> String {
        let [major, minor] = self.version;
        format!("NVRTC {major}.{minor}")
    }

    /// What it compiles for.
    pub fn architectures(&self) -> &[Architecture] {
        &self.architectures
    }

    /// Every unit for every architecture.
    ///
    /// # Errors
    /// [`DeviceError::Code`] for an architecture that the compiler does not know, and for sources that do not compile.
    pub fn compile(&self, architectures: &[Architecture]) -> Result<KernelCode, DeviceError> {
        self.compile_with(architectures, &[])
    }

    /// As [`Compiler::compile`], with further options, which what comes of it does not tell.
    ///
    /// # Errors
    /// As [`Compiler::compile`].
    pub fn compile_with(
        &self,
        architectures: &[Architecture],
        further: &[&str],
    ) -> Result<KernelCode, DeviceError> {
        let all = architectures.iter();
        let jobs: Vec<(Architecture, &Source)> = all
            .flat_map(|&architecture| UNITS.iter().map(move |unit| (architecture, unit)))
            .collect();
        let mut compiled: Vec<_> = jobs.into_iter().map(|job| (job, None)).collect();
        threads()?.chunks_mut(&mut compiled, 1, |_, chunk| {
            for ((architecture, unit), made) in chunk {
                *made = Some(self.unit(unit, *architecture, further));
            }
        });
        let mut images = Vec::new();
        for ((architecture, unit), made) in compiled {
            let Some(made) = made else { continue };
            let Compiled { cubin, ptx, .. } = made?;
            for (form, bytes) in [(CodeForm::Cubin, cubin), (CodeForm::Ptx, ptx)] {
                images.push(CodeImage {
                    architecture,
                    form,
                    unit: unit.name.to_owned(),
                    bytes,
                });
            }
        }
        Ok(KernelCode {
            sources: digest(),
            compiler: self.name(),
            images,
        })
    }

    /// One unit for one architecture, with further options.
    ///
    /// # Errors
    /// As [`Compiler::compile`].
    pub fn unit(
        &self,
        unit: &Source,
        architecture: Architecture,
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

/// As many threads as there are processors, eight at most, for who has no pool yet; one where the system gives no more.
fn threads() -> Result<Pool, DeviceError> {
    const MOST: usize = 8;
    let threads = available_parallelism().map_or(1, NonZero::get).min(MOST);
    let pool = Pool::new(threads).or_else(|_| Pool::new(1));
    pool.map_err(|error| DeviceError::Driver {
        doing: "compiling kernels",
        message: error.to_string(),
    })
}

fn load() -> Result<Compiler, String> {
    // SAFETY: the libraries that have NVRTC's names are NVRTC, and loading them is what is wanted.
    if !unsafe { sys::is_culib_present() } {
        return Err("NVRTC (libnvrtc) is not installed".to_owned());
    }
    for name in FUNCTIONS {
        // SAFETY: the library is present, and the function is only looked for, not called.
        if unsafe { sys::culib().get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_err() {
            return Err(format!("NVRTC has no {name}: a newer one (11.4) is needed"));
        }
    }
    let [mut major, mut minor, mut count]: [c_int; 3] = [0; 3];
    // SAFETY: the functions are there, and write one number each.
    unsafe {
        check(sys::nvrtcVersion(&mut major, &mut minor))?;
        check(sys::nvrtcGetNumSupportedArchs(&mut count))?;
    }
    let mut numbers: Vec<c_int> = vec![0; count.max(0) as usize];
    // SAFETY: there is room for as many as there are.
    check(unsafe { sys::nvrtcGetSupportedArchs(numbers.as_mut_ptr()) })?;
    let architecture = |&n: &c_int| {
        let major = u8::try_from(n / 10).ok()?;
        let minor = u8::try_from(n % 10).ok()?;
        Some(Architecture { major, minor })
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
    // SAFETY: the function was looked for; the text is constant and ends with a zero.
    let text = unsafe {
        let text = sys::nvrtcGetErrorString(code);
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    Err(text.unwrap_or_else(|| format!("{code:?}")))
}

/// A unit within the compiler.
struct Program {
    handle: nvrtcProgram,
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: it was created by `new`, and nobody has it any more.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.handle) };
    }
}

impl Program {
    fn new(unit: &Source) -> Result<Program, String> {
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
        // SAFETY: all texts end with a zero and live until the call returns, which copies them.
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
        // SAFETY: the program is alive, the options end with zeros and live until the call returns.
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

    /// Something that the compiler has made of the program.
    fn get(
        &self,
        size: unsafe fn(nvrtcProgram, *mut usize) -> nvrtcResult,
        get: unsafe fn(nvrtcProgram, *mut c_char) -> nvrtcResult,
    ) -> Result<Vec<u8>, String> {
        let mut length = 0;
        // SAFETY: the program is alive, and there is room for the length that the first call tells.
        unsafe {
            check(size(self.handle, &mut length))?;
            let mut bytes = vec![0_u8; length];
            check(get(self.handle, bytes.as_mut_ptr().cast()))?;
            Ok(bytes)
        }
    }
}
