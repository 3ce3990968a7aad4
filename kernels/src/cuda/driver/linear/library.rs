//! Loading of cuBLAS and cuSOLVER and their error codes.

use crate::cuda::device::DeviceError;
use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

use cudarc::cublas::sys::{self as blas, cublasStatus_t};
use cudarc::cusolver::sys::{self as solver, cusolverStatus_t};

pub(super) const BLAS: &str = "cuBLAS";
pub(super) const SOLVER: &str = "cuSOLVER";

/// Checked once, because calling a missing function aborts the program.
const BLAS_FUNCTIONS: &[&str] = &[
    "cublasCreate_v2",
    "cublasDestroy_v2",
    "cublasDgemm_v2_64",
    "cublasDscal_v2_64",
    "cublasDsyrk_v2_64",
    "cublasGetProperty",
    "cublasGetStatusName",
    "cublasGetStatusString",
    "cublasSetAtomicsMode",
    "cublasSetStream_v2",
];

const SOLVER_FUNCTIONS: &[&str] = &[
    "cusolverDnCreate",
    "cusolverDnCreateParams",
    "cusolverDnDestroy",
    "cusolverDnDestroyParams",
    "cusolverDnSetDeterministicMode",
    "cusolverDnSetStream",
    "cusolverDnXgeqrf",
    "cusolverDnXgeqrf_bufferSize",
    "cusolverDnXgesvd",
    "cusolverDnXgesvd_bufferSize",
    "cusolverDnXsyevd",
    "cusolverDnXsyevd_bufferSize",
    "cusolverGetProperty",
];

/// Returns the error of an unusable library.
pub(super) fn unavailable_error(library: &'static str, message: impl Into<String>) -> DeviceError {
    DeviceError::NoLibrary {
        library,
        message: message.into(),
    }
}

/// Loads the libraries, once.
pub(super) fn load_libraries() -> Result<(), DeviceError> {
    static STARTED: OnceLock<Result<(), DeviceError>> = OnceLock::new();
    STARTED.get_or_init(load).clone()
}

fn load() -> Result<(), DeviceError> {
    // SAFETY: libraries with these names are those libraries, and loading them has no other effect.
    let [blas_there, solver_there] =
        unsafe { [blas::is_culib_present(), solver::is_culib_present()] };
    let absent = "is not installed, or a library that it needs is not";
    if !blas_there {
        return Err(unavailable_error(BLAS, absent));
    }
    if !solver_there {
        return Err(unavailable_error(SOLVER, absent));
    }
    for name in BLAS_FUNCTIONS {
        // SAFETY: the library is present; the function is looked up, not called.
        let found = unsafe { blas::culib().get::<unsafe extern "C" fn()>(name.as_bytes()) };
        found.map_err(|_| {
            unavailable_error(BLAS, format!("has no {name}: a newer one is needed"))
        })?;
    }
    for name in SOLVER_FUNCTIONS {
        // SAFETY: as above.
        let found = unsafe { solver::culib().get::<unsafe extern "C" fn()>(name.as_bytes()) };
        found.map_err(|_| {
            unavailable_error(SOLVER, format!("has no {name}: a newer one is needed"))
        })?;
    }
    Ok(())
}

pub(super) fn versions() -> Result<String, DeviceError> {
    use blas::libraryPropertyType_t as OfBlas;
    use solver::libraryPropertyType_t as OfSolver;
    let [mut of_blas, mut of_solver]: [[c_int; 3]; 2] = [[0; 3]; 2];
    let parts = [
        (OfBlas::MAJOR_VERSION, OfSolver::MAJOR_VERSION),
        (OfBlas::MINOR_VERSION, OfSolver::MINOR_VERSION),
        (OfBlas::PATCH_LEVEL, OfSolver::PATCH_LEVEL),
    ];
    for (i, (blas_part, solver_part)) in parts.into_iter().enumerate() {
        // SAFETY: the functions exist, and write one number each.
        unsafe {
            check_blas(
                blas::cublasGetProperty(blas_part, &mut of_blas[i]),
                "asking for the version of cuBLAS",
            )?;
            check_solver(
                solver::cusolverGetProperty(solver_part, &mut of_solver[i]),
                "asking for the version of cuSOLVER",
            )?;
        }
    }
    let dotted = |[major, minor, patch]: [c_int; 3]| format!("{major}.{minor}.{patch}");
    Ok(format!(
        "{SOLVER} {}, {BLAS} {}",
        dotted(of_solver),
        dotted(of_blas)
    ))
}

pub(super) fn blas_error_description(code: cublasStatus_t) -> String {
    let text = |get: unsafe fn(cublasStatus_t) -> *const c_char| {
        // SAFETY: the functions were checked at start; the text is constant and NUL-terminated.
        unsafe {
            let text = get(code);
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    };
    let string = text(blas::cublasGetStatusString);
    match (string, text(blas::cublasGetStatusName)) {
        (Some(string), Some(name)) => format!("{string} ({name})"),
        (None, Some(name)) => name,
        _ => format!("{code:?}"),
    }
}

pub(super) fn solver_error_description(code: cusolverStatus_t) -> String {
    let words = match code {
        cusolverStatus_t::CUSOLVER_STATUS_NOT_INITIALIZED => "the library was not initialized",
        cusolverStatus_t::CUSOLVER_STATUS_ALLOC_FAILED => "not enough memory for the library",
        cusolverStatus_t::CUSOLVER_STATUS_INVALID_VALUE => "an argument is not valid",
        cusolverStatus_t::CUSOLVER_STATUS_ARCH_MISMATCH => "the device lacks what is needed",
        cusolverStatus_t::CUSOLVER_STATUS_EXECUTION_FAILED => "the device failed to execute it",
        cusolverStatus_t::CUSOLVER_STATUS_INTERNAL_ERROR => "an internal operation failed",
        cusolverStatus_t::CUSOLVER_STATUS_NOT_SUPPORTED => "not supported",
        _ => return format!("{code:?}"),
    };
    format!("{words} ({code:?})")
}

pub(super) fn check_blas(code: cublasStatus_t, doing: &'static str) -> Result<(), DeviceError> {
    if code == cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    Err(DeviceError::Driver {
        operation: doing,
        message: blas_error_description(code),
    })
}

pub(super) fn check_solver(code: cusolverStatus_t, doing: &'static str) -> Result<(), DeviceError> {
    if code == cusolverStatus_t::CUSOLVER_STATUS_SUCCESS {
        return Ok(());
    }
    Err(DeviceError::Driver {
        operation: doing,
        message: solver_error_description(code),
    })
}

#[cfg(test)]
mod tests;
