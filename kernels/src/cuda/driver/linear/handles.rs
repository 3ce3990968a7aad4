//! cuBLAS and cuSOLVER handles of a device.

use std::sync::Arc;

use cudarc::cublas::sys::{self as blas, cublasHandle_t, cublasStatus_t};
use cudarc::cusolver::sys::{
    self as solver, cusolverDnHandle_t, cusolverDnParams_t, cusolverStatus_t,
};

use super::super::{Shared, lock_ignoring_poison};
use super::library::{self, BLAS, SOLVER, check_blas, check_solver, unavailable_error};
use crate::cuda::device::DeviceError;

/// Handles of cuBLAS and cuSOLVER, not to be used by two threads at a time.
pub(super) struct LibraryHandles {
    shared: Arc<Shared>,
    pub(super) blas: cublasHandle_t,
    pub(super) solver: cusolverDnHandle_t,
    pub(super) params: cusolverDnParams_t,
}

// SAFETY: handles may be used by any thread in which their context is current; each use makes it
// current.
unsafe impl Send for LibraryHandles {}

impl LibraryHandles {
    pub(super) fn new(shared: &Arc<Shared>) -> Result<LibraryHandles, DeviceError> {
        let mut handles = LibraryHandles {
            shared: Arc::clone(shared),
            blas: std::ptr::null_mut(),
            solver: std::ptr::null_mut(),
            params: std::ptr::null_mut(),
        };
        handles.create()?;
        Ok(handles)
    }

    fn create(&mut self) -> Result<(), DeviceError> {
        let shared = Arc::clone(&self.shared);
        // Locked until the handles exist: creating them allocates, which is not allowed during
        // stream capture.
        let _state = shared.lock_without_step()?;
        // SAFETY: the context is current, the functions exist, and the handle is writable.
        match unsafe { blas::cublasCreate_v2(&mut self.blas) } {
            cublasStatus_t::CUBLAS_STATUS_SUCCESS => {}
            code => {
                self.blas = std::ptr::null_mut();
                if code == cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED {
                    return check_blas(code, "starting cuBLAS");
                }
                let message = format!("does not start: {}", library::blas_error_description(code));
                return Err(unavailable_error(BLAS, message));
            }
        }
        // SAFETY: as above.
        match unsafe { solver::cusolverDnCreate(&mut self.solver) } {
            cusolverStatus_t::CUSOLVER_STATUS_SUCCESS => {}
            code => {
                self.solver = std::ptr::null_mut();
                if code == cusolverStatus_t::CUSOLVER_STATUS_ALLOC_FAILED {
                    return check_solver(code, "starting cuSOLVER");
                }
                let message = format!(
                    "does not start: {}",
                    library::solver_error_description(code)
                );
                return Err(unavailable_error(SOLVER, message));
            }
        }
        self.configure()
    }

    /// Selects the stream of the device and bit-reproducible results. cuBLAS guarantees these on
    /// GPUs of the same model without atomics and with one stream per handle; a user workspace is
    /// needed only for handles with several streams. The default math mode multiplies 64-bit
    /// numbers in full precision.
    fn configure(&mut self) -> Result<(), DeviceError> {
        const DOING: &str = "setting up cuBLAS";
        const DOING_SOLVER: &str = "setting up cuSOLVER";
        let stream = self.shared.stream;
        // SAFETY: the handles were created above, the stream belongs to their context and outlives
        // them, and the parameters are writable.
        unsafe {
            let no_atomics = blas::cublasAtomicsMode_t::CUBLAS_ATOMICS_NOT_ALLOWED;
            check_blas(blas::cublasSetStream_v2(self.blas, stream.cast()), DOING)?;
            check_blas(blas::cublasSetAtomicsMode(self.blas, no_atomics), DOING)?;
            let same = solver::cusolverDeterministicMode_t::CUSOLVER_DETERMINISTIC_RESULTS;
            let code = solver::cusolverDnSetStream(self.solver, stream.cast());
            check_solver(code, DOING_SOLVER)?;
            let code = solver::cusolverDnSetDeterministicMode(self.solver, same);
            check_solver(code, DOING_SOLVER)?;
            let code = solver::cusolverDnCreateParams(&mut self.params);
            if code != cusolverStatus_t::CUSOLVER_STATUS_SUCCESS {
                self.params = std::ptr::null_mut();
            }
            check_solver(code, DOING_SOLVER)
        }
    }
}

impl Drop for LibraryHandles {
    fn drop(&mut self) {
        if self.shared.make_current().is_err() {
            return;
        }
        // Locked: freeing waits for the device, which is not allowed during stream capture.
        let _state = lock_ignoring_poison(&self.shared.state);
        // SAFETY: the context is current, the handles were created by `begin`, and no other
        // references exist. Errors are ignored during teardown.
        unsafe {
            if !self.params.is_null() {
                let _ = solver::cusolverDnDestroyParams(self.params);
            }
            if !self.solver.is_null() {
                let _ = solver::cusolverDnDestroy(self.solver);
            }
            if !self.blas.is_null() {
                let _ = blas::cublasDestroy_v2(self.blas);
            }
        }
    }
}
