//! Device memory.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUdevice, CUdeviceptr, CUmemPool_attribute as Attribute, CUresult,
};

use super::api::check_driver;
use super::{Shared, lock_ignoring_poison};
use crate::cuda::device::{DeviceError, DeviceMemory};

/// An allocation on a GPU.
pub struct CudaMemory {
    shared: Arc<Shared>,
    address: CUdeviceptr,
    bytes: usize,
}

impl std::fmt::Debug for CudaMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaMemory")
            .field("address", &self.address)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl CudaMemory {
    pub(super) fn new(shared: &Arc<Shared>, bytes: usize) -> Result<CudaMemory, DeviceError> {
        shared.make_current()?;
        let state = lock_ignoring_poison(&shared.state);
        let mut address = 0;
        let allocate = |address: &mut CUdeviceptr| {
            // SAFETY: the context is current and owns the stream.
            unsafe {
                if shared.found.has_memory_pools {
                    sys::cuMemAllocAsync(address, bytes, shared.stream)
                } else {
                    sys::cuMemAlloc_v2(address, bytes)
                }
            }
        };
        let mut code = allocate(&mut address);
        if code == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            // SAFETY: as above. Freed memory may still be reserved for launches that have not
            // ended.
            let _ = unsafe { sys::cuStreamSynchronize(shared.stream) };
            if let Ok(pool) = default_pool(shared.device) {
                // SAFETY: the pool belongs to the device.
                let _ = unsafe { sys::cuMemPoolTrimTo(pool, 0) };
            }
            code = allocate(&mut address);
        }
        if code == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let [free, total] = memory_info(shared)?;
            return Err(DeviceError::OutOfMemory {
                needed: bytes,
                free,
                total,
            });
        }
        shared.check_launch(state.last_kernel, code, "allocating memory")?;
        Ok(CudaMemory {
            shared: Arc::clone(shared),
            address,
            bytes,
        })
    }
}

impl DeviceMemory for CudaMemory {
    fn address(&self) -> u64 {
        self.address
    }

    fn len(&self) -> usize {
        self.bytes
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        let mut state = lock_ignoring_poison(&self.shared.state);
        if state.record.open && !state.record.step.nodes().is_empty() {
            state.record.deferred_frees.push(self.address);
            return;
        }
        if self.shared.make_current().is_ok() {
            self.shared.free(self.address);
        }
    }
}

impl Shared {
    /// Frees memory after all earlier launches. The context is current.
    pub(super) fn free(&self, address: CUdeviceptr) {
        // SAFETY: it was allocated on this device, and no other references exist. An error here is
        // that of an earlier launch, which the next call reports.
        unsafe {
            if self.found.has_memory_pools {
                let _ = sys::cuMemFreeAsync(address, self.stream);
            } else {
                let _ = sys::cuStreamSynchronize(self.stream);
                let _ = sys::cuMemFree_v2(address);
            }
        }
    }
}

fn default_pool(device: CUdevice) -> Result<sys::CUmemoryPool, DeviceError> {
    let mut pool = std::ptr::null_mut();
    // SAFETY: the device handle is valid.
    let code = unsafe { sys::cuDeviceGetDefaultMemPool(&mut pool, device) };
    check_driver(code, "asking for a device's pool of memory")?;
    Ok(pool)
}

/// Lets the pool retain freed memory instead of returning it at each synchronisation.
pub(super) fn retain_freed_memory(device: CUdevice) -> Result<(), DeviceError> {
    let mut threshold = u64::MAX;
    let value: *mut c_void = std::ptr::from_mut(&mut threshold).cast();
    let which = Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    let pool = default_pool(device)?;
    // SAFETY: the attribute is a 64-bit number, which is read during the call.
    check_driver(
        unsafe { sys::cuMemPoolSetAttribute(pool, which, value) },
        "setting up memory",
    )
}

/// Returns the free bytes, including those of the pool, and the total.
pub(super) fn memory_info(shared: &Shared) -> Result<[usize; 2], DeviceError> {
    let [mut free, mut total] = [0; 2];
    // SAFETY: the context is current.
    let code = unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) };
    check_driver(code, "asking for free memory")?;
    let kept = if shared.found.has_memory_pools {
        let pool = default_pool(shared.device)?;
        let ask = |which| {
            let mut bytes = 0_u64;
            // SAFETY: the attribute is a 64-bit number, and `bytes` has this type.
            let code = unsafe {
                sys::cuMemPoolGetAttribute(pool, which, std::ptr::from_mut(&mut bytes).cast())
            };
            check_driver(code, "asking for kept memory").map(|()| bytes)
        };
        let reserved = ask(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        let used = ask(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
        reserved.saturating_sub(used) as usize
    } else {
        0
    };
    Ok([free.saturating_add(kept).min(total), total])
}
