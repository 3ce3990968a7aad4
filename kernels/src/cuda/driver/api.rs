//! Loading of the driver library and its error codes.

use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult};

use crate::cuda::device::DeviceError;

/// Checked once, because calling a missing function aborts the program.
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

pub(super) fn has_function(name: &str) -> bool {
    // SAFETY: the library is present; the function is looked up, not called.
    unsafe { sys::culib().get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_ok()
}

pub(super) fn load_driver() -> Result<(), DeviceError> {
    static STARTED: OnceLock<Result<(), DeviceError>> = OnceLock::new();
    STARTED
        .get_or_init(|| {
            // SAFETY: libraries with the names of the driver are the driver, and loading them has
            // no other effect.
            if !unsafe { sys::is_culib_present() } {
                return Err(DeviceError::NoDriverLibrary);
            }
            for name in FUNCTIONS {
                if !has_function(name) {
                    let message =
                        format!("its library has no {name}: a newer driver (12.0) is needed");
                    return Err(DeviceError::NoDriver { message });
                }
            }
            // SAFETY: the function exists, and 0 is the only valid flag.
            match unsafe { sys::cuInit(0) } {
                CUresult::CUDA_SUCCESS => Ok(()),
                CUresult::CUDA_ERROR_NO_DEVICE => Err(DeviceError::NoDevice {
                    requested: 0,
                    available: 0,
                }),
                code => Err(DeviceError::NoDriver {
                    message: error_description(code),
                }),
            }
        })
        .clone()
}

pub(super) fn error_description(code: CUresult) -> String {
    let text = |get: unsafe fn(CUresult, *mut *const c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: the functions were checked at start; the text is constant and NUL-terminated.
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

pub(super) fn check_driver(code: CUresult, doing: &'static str) -> Result<(), DeviceError> {
    if code == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(DeviceError::Driver {
        operation: doing,
        message: error_description(code),
    })
}

pub(super) fn is_kernel_error(code: CUresult) -> bool {
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
