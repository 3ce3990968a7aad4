//! Dense linear algebra on a GPU with cuSOLVER and cuBLAS.

mod gram;
mod handles;
mod library;

use std::ffi::{c_int, c_schar, c_void};
use std::sync::{Arc, Mutex};

use cudarc::cublas::sys as blas;
use cudarc::cusolver::sys::{self as solver, cusolverStatus_t};

use super::{Cuda, CudaMemory, lock_ignoring_poison};
use crate::cuda::device::{Device, DeviceError, DeviceMemory};
use crate::error::{self, ShapeError};
use crate::linear::{
    GramMatrix, LinearAlgebra, ProductShape, check_product, check_square, check_tall,
};
use gram::CudaGram;
use handles::LibraryHandles;
use library::{check_blas, check_solver};

const LIBRARY_KERNEL: &str = "of cuSOLVER or cuBLAS";

const F64: solver::cudaDataType = solver::cudaDataType_t::CUDA_R_64F;

/// Linear algebra on an NVIDIA GPU in the stream of its device. An operation ends an open step
/// early, as an upload does.
pub struct CudaLinear {
    shared: Arc<LinearContext>,
}

struct LinearContext {
    name: String,
    /// Locked during a whole operation, so that concurrent ones allocate one after the other.
    handles: Mutex<LibraryHandles>,
    device: Cuda,
}

impl std::fmt::Debug for CudaLinear {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaLinear")
            .field("name", &self.shared.name)
            .finish_non_exhaustive()
    }
}

impl Cuda {
    /// Returns double-precision linear algebra on this device.
    ///
    /// # Errors
    /// [`DeviceError::NoLibrary`] if cuSOLVER or cuBLAS is missing or does not initialise.
    pub fn linear(&self) -> Result<CudaLinear, DeviceError> {
        library::load_libraries()?;
        let handles = LibraryHandles::new(&self.shared)?;
        let name = format!("{} on {}", library::versions()?, self.name());
        Ok(CudaLinear {
            shared: Arc::new(LinearContext {
                name,
                handles: Mutex::new(handles),
                device: self.clone(),
            }),
        })
    }
}

impl LinearContext {
    fn call_library<R>(&self, call: impl FnOnce() -> R) -> Result<R, DeviceError> {
        let mut state = self.device.shared.lock_without_step()?;
        state.last_kernel = LIBRARY_KERNEL;
        Ok(call())
    }

    /// Runs a decomposition of this name and order. `run` takes the workspaces on the device and on
    /// the host with their bytes, and the result code.
    fn run_decomposition(
        &self,
        doing: &'static str,
        order: usize,
        sizes: impl FnOnce(*mut usize, *mut usize) -> cusolverStatus_t,
        run: impl FnOnce(*mut c_void, usize, *mut c_void, usize, *mut c_int) -> cusolverStatus_t,
    ) -> Result<(), DeviceError> {
        let [mut device_len, mut host_len] = [0; 2];
        let code = self.call_library(|| sizes(&mut device_len, &mut host_len))?;
        check_solver(code, doing)?;
        let workspace = self.device.allocate(device_len)?;
        let info = self.device.allocate(size_of::<c_int>())?;
        self.device.upload(&0_i32.to_ne_bytes(), &info, 0)?;
        let mut host = vec![0_u64; host_len.div_ceil(size_of::<u64>()).max(1)];
        let (on_device, on_host) = (pointer(&workspace), host.as_mut_ptr().cast());
        let info_at = pointer(&info).cast();
        let code = self.call_library(|| run(on_device, device_len, on_host, host_len, info_at))?;
        // Queued work may use the host workspace until here.
        let waited = self.device.synchronize();
        drop(host);
        // A device error is more specific than the code of the library.
        waited?;
        check_solver(code, doing)?;
        let mut told = [0; size_of::<c_int>()];
        self.device.download(&info, 0, &mut told)?;
        match c_int::from_ne_bytes(told) {
            0 => Ok(()),
            argument if argument < 0 => Err(DeviceError::Driver {
                operation: doing,
                message: format!("argument {} is not valid", argument.unsigned_abs()),
            }),
            _ => Err(DeviceError::NoConvergence { order }),
        }
    }

    /// Returns the upper triangle `R [columns, columns]` of `tall [rows, columns] = Q R`, with
    /// zeros below.
    fn qr_upper_triangle(
        &self,
        handles: &LibraryHandles,
        tall: &CudaMemory,
        [rows, columns]: [usize; 2],
    ) -> Result<CudaMemory, DeviceError> {
        let device = &self.device;
        let [m, n] = [to_i64(rows)?, to_i64(columns)?];
        let scales = device.allocate(size_of::<f64>() * columns)?;
        let [a, tau] = [tall, &scales].map(pointer);
        let LibraryHandles { solver, params, .. } = *handles;
        self.run_decomposition(
            "a QR decomposition by cuSOLVER",
            columns,
            // SAFETY: the context is current, and both sizes are writable.
            |on_device, on_host| unsafe {
                solver::cusolverDnXgeqrf_bufferSize(
                    solver, params, m, n, F64, a, m, F64, tau, F64, on_device, on_host,
                )
            },
            // SAFETY: the context is current, matrix and scales are allocations of those sizes, and
            // the workspace has the queried size.
            |device, device_len, host, host_len, info| unsafe {
                solver::cusolverDnXgeqrf(
                    solver, params, m, n, F64, a, m, F64, tau, F64, device, device_len, host,
                    host_len, info,
                )
            },
        )?;
        // Below the diagonal are Householder vectors of Q.
        let size = size_of::<f64>();
        let zeros = vec![0_u8; size * columns * columns];
        let triangle = device.allocate(zeros.len())?;
        device.upload(&zeros, &triangle, 0)?;
        for column in 0..columns {
            let from = size * rows * column;
            let to = size * columns * column;
            device.copy(tall.at(from), triangle.at(to), size * (column + 1))?;
        }
        Ok(triangle)
    }

    fn run_svd(
        &self,
        handles: &LibraryHandles,
        matrix: &CudaMemory,
        [rows, order]: [usize; 2],
        [values, right]: [&CudaMemory; 2],
    ) -> Result<(), DeviceError> {
        let [m, n] = [to_i64(rows)?, to_i64(order)?];
        // The left singular vectors are not used, but cuSOLVER may write them regardless.
        let left = self.device.allocate(matrix.len())?;
        let [a, s, vt, u] = [matrix, values, right, &left].map(pointer);
        let LibraryHandles { solver, params, .. } = *handles;
        let [none, all] = [b'N', b'A'].map(|job| job as c_schar);
        self.run_decomposition(
            "a singular value decomposition by cuSOLVER",
            order,
            // SAFETY: the context is current, and both sizes are writable.
            |on_device, on_host| unsafe {
                solver::cusolverDnXgesvd_bufferSize(
                    solver, params, none, all, m, n, F64, a, m, F64, s, F64, u, m, F64, vt, n, F64,
                    on_device, on_host,
                )
            },
            // SAFETY: the context is current; inputs, outputs and unused outputs are allocations of
            // those sizes, and the workspace has the queried size.
            |device, device_len, host, host_len, info| unsafe {
                solver::cusolverDnXgesvd(
                    solver, params, none, all, m, n, F64, a, m, F64, s, F64, u, m, F64, vt, n, F64,
                    device, device_len, host, host_len, info,
                )
            },
        )
    }
}

impl LinearAlgebra for CudaLinear {
    fn name(&self) -> String {
        self.shared.name.clone()
    }

    fn symmetric_eigen(
        &self,
        matrix: &mut [f64],
        values: &mut [f64],
        vectors: bool,
    ) -> Result<(), DeviceError> {
        let order = check_square(matrix, values)?;
        if order == 0 {
            return Ok(());
        }
        let n = to_i64(order)?;
        let shared = &*self.shared;
        let handles = lock_ignoring_poison(&shared.handles);
        let device = &shared.device;
        let on_device = upload_f64(device, matrix)?;
        let found = device.allocate(size_of_val(values))?;
        let [a, w] = [&on_device, &found].map(pointer);
        let LibraryHandles { solver, params, .. } = *handles;
        let lower = solver::cublasFillMode_t::CUBLAS_FILL_MODE_LOWER;
        let job = if vectors {
            solver::cusolverEigMode_t::CUSOLVER_EIG_MODE_VECTOR
        } else {
            solver::cusolverEigMode_t::CUSOLVER_EIG_MODE_NOVECTOR
        };
        shared.run_decomposition(
            "an eigenvalue decomposition by cuSOLVER",
            order,
            // SAFETY: the context is current, and both sizes are writable.
            |on_device, on_host| unsafe {
                solver::cusolverDnXsyevd_bufferSize(
                    solver, params, job, lower, n, F64, a, n, F64, w, F64, on_device, on_host,
                )
            },
            // SAFETY: the context is current, matrix and values are allocations of those sizes, and
            // the workspace has the queried size.
            |device, device_len, host, host_len, info| unsafe {
                solver::cusolverDnXsyevd(
                    solver, params, job, lower, n, F64, a, n, F64, w, F64, device, device_len,
                    host, host_len, info,
                )
            },
        )?;
        download_f64(device, &found, 0, values)?;
        check_finite(order, values)?;
        if vectors {
            download_f64(device, &on_device, 0, matrix)?;
        }
        Ok(())
    }

    fn right_singular_vectors(
        &self,
        tall: &[f64],
        values: &mut [f64],
        right: &mut [f64],
    ) -> Result<(), DeviceError> {
        let [rows, order] = check_tall(tall, values, right)?;
        if order == 0 {
            return Ok(());
        }
        let shared = &*self.shared;
        let handles = lock_ignoring_poison(&shared.handles);
        let device = &shared.device;
        let mut rows = rows;
        let mut matrix = upload_f64(device, tall)?;
        if prefers_qr_first(rows, order) {
            matrix = shared.qr_upper_triangle(&handles, &matrix, [rows, order])?;
            rows = order;
        }
        let found = device.allocate(size_of_val(values))?;
        let found_right = device.allocate(size_of_val(right))?;
        shared.run_svd(&handles, &matrix, [rows, order], [&found, &found_right])?;
        download_f64(device, &found, 0, values)?;
        check_finite(order, values)?;
        download_f64(device, &found_right, 0, right)
    }

    fn multiply(
        &self,
        shape: ProductShape,
        left: &[f64],
        right: &[f64],
        out: &mut [f64],
    ) -> Result<(), DeviceError> {
        check_product(shape, left, right, out)?;
        if left.is_empty() || right.is_empty() {
            out.fill(0.0);
            return Ok(());
        }
        let [m, n] = [to_i64(shape.rows)?, to_i64(shape.columns)?];
        let k = to_i64(shape.inner)?;
        let shared = &*self.shared;
        let handles = lock_ignoring_poison(&shared.handles);
        let device = &shared.device;
        let [left, right] = [upload_f64(device, left)?, upload_f64(device, right)?];
        let found = device.allocate(size_of_val(out))?;
        let [a, b] = [&left, &right].map(|memory| pointer(memory).cast_const().cast());
        let c = pointer(&found).cast();
        let (handle, as_it_is) = (handles.blas, blas::cublasOperation_t::CUBLAS_OP_N);
        let [one, zero] = [1.0, 0.0];
        // SAFETY: the context is current, the matrices are allocations of those sizes, and the
        // factors are read during the call.
        let code = shared.call_library(|| unsafe {
            blas::cublasDgemm_v2_64(
                handle, as_it_is, as_it_is, m, n, k, &one, a, m, b, k, &zero, c, m,
            )
        })?;
        check_blas(code, "a product by cuBLAS")?;
        download_f64(device, &found, 0, out)
    }

    fn new_gram(&self, order: usize) -> Result<Box<dyn GramMatrix>, DeviceError> {
        Ok(Box::new(CudaGram::new(&self.shared, order)?))
    }
}

/// Decides if a matrix is reduced by QR before its SVD, which is faster from fewer than 5/3 as many
/// rows as columns on, because it consists mostly of matrix products.
fn prefers_qr_first(rows: usize, columns: usize) -> bool {
    rows.saturating_sub(columns) >= columns.div_ceil(4)
}

/// Returns an error for values that are not finite, which a decomposition may pass through
/// unnoticed.
fn check_finite(order: usize, values: &[f64]) -> Result<(), DeviceError> {
    if values.iter().all(|value| value.is_finite()) {
        Ok(())
    } else {
        Err(DeviceError::NoConvergence { order })
    }
}

fn to_i64(size: usize) -> Result<i64, ShapeError> {
    i64::try_from(size)
        .map_err(|_| ShapeError::new("rows or columns (at most)", i64::MAX as usize, size))
}

fn pointer(memory: &CudaMemory) -> *mut c_void {
    memory.address() as *mut c_void
}

fn upload_f64(device: &Cuda, numbers: &[f64]) -> Result<CudaMemory, DeviceError> {
    let memory = device.allocate(size_of_val(numbers))?;
    overwrite(device, numbers, &memory)?;
    Ok(memory)
}

fn overwrite(device: &Cuda, numbers: &[f64], to: &CudaMemory) -> Result<(), DeviceError> {
    // SAFETY: the length is that of the slice, and floats have no padding.
    let bytes =
        unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast::<u8>(), size_of_val(numbers)) };
    device.upload(bytes, to, 0)
}

fn download_f64(
    device: &Cuda,
    from: &CudaMemory,
    first: usize,
    numbers: &mut [f64],
) -> Result<(), DeviceError> {
    let bytes = size_of_val(numbers);
    // SAFETY: the length is that of the vector, which is uniquely borrowed, and all bit patterns
    // are valid floats.
    let bytes = unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast::<u8>(), bytes) };
    let at = error::checked_product("first (bytes)", &[size_of::<f64>(), first])?;
    device.download(from, at, bytes)
}

#[cfg(test)]
mod tests;
