//! Gram matrix accumulation on a GPU.

use std::sync::Arc;

use cudarc::cublas::sys as blas;

use super::library::check_blas;
use super::{CudaMemory, Libraries, dimension, get, locked, overwrite, pointer};
use crate::cuda::device::{Device, Memory};
use crate::error::{self, expect};
use crate::linear::{Gram, LinearError, vectors_of};

/// Accumulated sum of outer products of vectors on an NVIDIA GPU.
pub(super) struct CudaGram {
    order: usize,
    /// Unspecified until the first addition, which overwrites it.
    sums: CudaMemory,
    begun: bool,
    /// Reused upload buffer. Stream order makes later uploads wait for its readers.
    vectors: Option<CudaMemory>,
    shared: Arc<Libraries>,
}

impl std::fmt::Debug for CudaGram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaGram")
            .field("order", &self.order)
            .field("begun", &self.begun)
            .finish_non_exhaustive()
    }
}

impl CudaGram {
    pub(super) fn new(shared: &Arc<Libraries>, order: usize) -> Result<CudaGram, LinearError> {
        let bytes = error::product("sums (bytes)", &[size_of::<f64>(), order, order])?;
        Ok(CudaGram {
            order,
            sums: shared.device.allocate(bytes)?,
            begun: false,
            vectors: None,
            shared: Arc::clone(shared),
        })
    }

    fn bring(&mut self, vectors: &[f64]) -> Result<&CudaMemory, LinearError> {
        let needed = size_of_val(vectors);
        let room = match self.vectors.take() {
            Some(room) if room.bytes() >= needed => room,
            // Freed before a larger one is allocated.
            room => {
                drop(room);
                self.shared.device.allocate(needed)?
            }
        };
        overwrite(&self.shared.device, vectors, &room)?;
        Ok(self.vectors.insert(room))
    }
}

impl Gram for CudaGram {
    fn add(&mut self, scale: f64, vectors: &[f64]) -> Result<(), LinearError> {
        let count = vectors_of(self.order, vectors)?;
        if count == 0 {
            return Ok(());
        }
        let [n, k] = [dimension(self.order)?, dimension(count)?];
        let shared = Arc::clone(&self.shared);
        let handles = locked(&shared.handles);
        let a = pointer(self.bring(vectors)?).cast_const().cast();
        let c = pointer(&self.sums).cast();
        let lower = blas::cublasFillMode_t::CUBLAS_FILL_MODE_LOWER;
        let as_it_is = blas::cublasOperation_t::CUBLAS_OP_N;
        let kept = if self.begun { 1.0 } else { 0.0 };
        // SAFETY: the context is current, vectors and sums are allocations of those sizes, and the
        // factors are read during the call.
        let code = shared.call(|| unsafe {
            blas::cublasDsyrk_v2_64(
                handles.blas,
                lower,
                as_it_is,
                n,
                k,
                &scale,
                a,
                n,
                &kept,
                c,
                n,
            )
        })?;
        check_blas(code, "adding products by cuBLAS")?;
        self.begun = true;
        Ok(())
    }

    fn scale(&mut self, factor: f64) -> Result<(), LinearError> {
        if !self.begun {
            return Ok(());
        }
        // Scales the whole square, including the unused part above the diagonal.
        let numbers = dimension(self.sums.bytes() / size_of::<f64>())?;
        let shared = &*self.shared;
        let handles = locked(&shared.handles);
        let x = pointer(&self.sums).cast();
        // SAFETY: the context is current, the allocation has this many numbers, and the factor is
        // read during the call.
        let code = shared
            .call(|| unsafe { blas::cublasDscal_v2_64(handles.blas, numbers, &factor, x, 1) })?;
        check_blas(code, "multiplying sums by cuBLAS")
    }

    fn read(&self, first: usize, out: &mut [f64]) -> Result<(), LinearError> {
        let order = self.order;
        error::expect_rows("out (numbers, whole columns)", order, out.len())?;
        let count = out.len().checked_div(order).unwrap_or(0);
        expect(
            "columns",
            order.min(first.saturating_add(count)),
            first.saturating_add(count),
        )?;
        if !self.begun {
            out.fill(0.0);
            return Ok(());
        }
        get(&self.shared.device, (&self.sums, first * order), out)?;
        // cuBLAS does not write this triangle.
        for (column, numbers) in out.chunks_exact_mut(order.max(1)).enumerate() {
            numbers[..first + column].fill(0.0);
        }
        Ok(())
    }
}
