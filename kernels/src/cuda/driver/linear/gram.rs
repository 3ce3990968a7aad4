//! Gram matrix accumulation on a GPU.

use std::sync::Arc;

use cudarc::cublas::sys as blas;

use super::library::check_blas;
use super::{
    CudaMemory, LinearContext, download_f64, lock_ignoring_poison, overwrite, pointer, to_i64,
};
use crate::cuda::device::DeviceError;
use crate::cuda::device::{Device, DeviceMemory};
use crate::error::{self, check_size};
use crate::linear::{GramMatrix, vector_count};

pub(super) struct CudaGram {
    order: usize,
    /// Overwritten by the first addition.
    sums: CudaMemory,
    has_sums: bool,
    /// Reused upload buffer. Stream order makes later uploads wait for its readers.
    vectors: Option<CudaMemory>,
    shared: Arc<LinearContext>,
}

impl std::fmt::Debug for CudaGram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaGram")
            .field("order", &self.order)
            .field("begun", &self.has_sums)
            .finish_non_exhaustive()
    }
}

impl CudaGram {
    pub(super) fn new(shared: &Arc<LinearContext>, order: usize) -> Result<CudaGram, DeviceError> {
        let bytes = error::checked_product("sums (bytes)", &[size_of::<f64>(), order, order])?;
        Ok(CudaGram {
            order,
            sums: shared.device.allocate(bytes)?,
            has_sums: false,
            vectors: None,
            shared: Arc::clone(shared),
        })
    }

    fn upload(&mut self, vectors: &[f64]) -> Result<&CudaMemory, DeviceError> {
        let needed = size_of_val(vectors);
        let memory = match self.vectors.take() {
            Some(memory) if memory.len() >= needed => memory,
            memory => {
                drop(memory);
                self.shared.device.allocate(needed)?
            }
        };
        overwrite(&self.shared.device, vectors, &memory)?;
        Ok(self.vectors.insert(memory))
    }
}

impl GramMatrix for CudaGram {
    fn add(&mut self, scale: f64, vectors: &[f64]) -> Result<(), DeviceError> {
        let count = vector_count(self.order, vectors)?;
        if count == 0 {
            return Ok(());
        }
        let [n, k] = [to_i64(self.order)?, to_i64(count)?];
        let shared = Arc::clone(&self.shared);
        let handles = lock_ignoring_poison(&shared.handles);
        let a = pointer(self.upload(vectors)?).cast_const().cast();
        let c = pointer(&self.sums).cast();
        let lower = blas::cublasFillMode_t::CUBLAS_FILL_MODE_LOWER;
        let (handle, as_it_is) = (handles.blas, blas::cublasOperation_t::CUBLAS_OP_N);
        let kept = if self.has_sums { 1.0 } else { 0.0 };
        // SAFETY: the context is current, vectors and sums are allocations of those sizes, and the
        // factors are read during the call.
        let code = shared.call_library(|| unsafe {
            blas::cublasDsyrk_v2_64(handle, lower, as_it_is, n, k, &scale, a, n, &kept, c, n)
        })?;
        check_blas(code, "adding products by cuBLAS")?;
        self.has_sums = true;
        Ok(())
    }

    fn scale(&mut self, factor: f64) -> Result<(), DeviceError> {
        if !self.has_sums {
            return Ok(());
        }
        let numbers = to_i64(self.sums.len() / size_of::<f64>())?;
        let shared = &*self.shared;
        let handles = lock_ignoring_poison(&shared.handles);
        let x = pointer(&self.sums).cast();
        // SAFETY: the context is current, the allocation has this many numbers, and the factor is
        // read during the call.
        let code = shared.call_library(|| unsafe {
            blas::cublasDscal_v2_64(handles.blas, numbers, &factor, x, 1)
        })?;
        check_blas(code, "multiplying sums by cuBLAS")
    }

    fn read(&self, first: usize, out: &mut [f64]) -> Result<(), DeviceError> {
        let order = self.order;
        error::check_rows("out (numbers, whole columns)", order, out.len())?;
        let count = out.len().checked_div(order).unwrap_or(0);
        check_size(
            "columns",
            order.min(first.saturating_add(count)),
            first.saturating_add(count),
        )?;
        if !self.has_sums {
            out.fill(0.0);
            return Ok(());
        }
        download_f64(&self.shared.device, &self.sums, first * order, out)?;
        // cuBLAS does not write this triangle.
        for (column, numbers) in out.chunks_exact_mut(order.max(1)).enumerate() {
            numbers[..first + column].fill(0.0);
        }
        Ok(())
    }
}
