//! The driver's library: whether it is there and whole, and what its codes mean.

use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult};

use crate::cuda::device::{DeviceError, Unavailable};

/// Every function of the driver that is called anywhere below: looked for once, because one that is missing could only
/// end the program when it is called.
const FUNCTIONS: &[&str] = &[
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetDefaultMemPool",
    "cuDeviceGetName",
    "cuDeviceGetUuid_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGraphAddKernelNode_v2",
    "cuGraphAddMemcpyNode",
    "cuGraphCreate",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphExecMemcpyNodeSetParams",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAllocAsync",
    "cuMemAlloc_v2",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemPoolGetAttribute",
    "cuMemPoolSetAttribute",
    "cuMemPoolTrimTo",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuModuleGetFunction",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
];

/// Whether the driver, which was started, has a function that not every one has.
pub(super) fn has(name: &str) -> bool {
    // SAFETY: the library is present, and the function is only looked for, not called.
    unsafe { sys::culib().get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_ok()
}

/// Loads the driver's library and starts it, once.
pub(super) fn start() -> Result<(), Unavailable> {
    static STARTED: OnceLock<Result<(), Unavailable>> = OnceLock::new();
    STARTED
        .get_or_init(|| {
            // SAFETY: the libraries that have the driver's names are the driver's, and loading them is what is wanted.
            if !unsafe { sys::is_culib_present() } {
                return Err(Unavailable::NoLibrary);
            }
            for name in FUNCTIONS {
                if !has(name) {
                    let message =
                        format!("its library has no {name}: a newer driver (12.0) is needed");
                    return Err(Unavailable::NoDriver { message });
                }
            }
            // SAFETY: the function is there, and 0 is the only flag.
            match unsafe { sys::cuInit(0) } {
                CUresult::CUDA_SUCCESS => Ok(()),
                CUresult::CUDA_ERROR_NO_DEVICE => Err(Unavailable::NoDevice { asked: 0, found: 0 }),
                code => Err(Unavailable::NoDriver {
                    message: meaning(code),
                }),
            }
        })
        .clone()
}

/// What a code of the driver means, in its own words.
pub(super) fn meaning(code: CUresult) -> String {
    let text = |get: unsafe fn(CUresult, *mut *const c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: the functions were looked for when the driver was started; a text they give is constant and ends with
        // a zero.
        unsafe {
            let known = get(code, &mut text) == CUresult::CUDA_SUCCESS && !text.is_null();
            known.then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    };
    match (text(sys::cuGetErrorName), text(sys::cuGetErrorString)) {
        (Some(name), Some(string)) => format!("{string} ({name})"),
        (Some(name), None) => name,
        _ => format!("{code:?}"),
    }
}

/// An error that names what was tried.
pub(super) fn check(code: CUresult, doing: &'static str) -> Result<(), DeviceError> {
    if code == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(DeviceError::Driver {
        doing,
        message: meaning(code),
    })
}

/// Whether a code tells that a kernel went wrong, perhaps one that was launched before.
pub(super) fn is_of_a_kernel(code: CUresult) -> bool {
    matches!(
        code,
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
    )
}
