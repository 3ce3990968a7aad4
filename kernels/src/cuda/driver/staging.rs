//! Copies between host and device through pinned staging buffers.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Mutex;

use cudarc::driver::sys::{self, CUdeviceptr, CUevent, CUresult, CUstream};

use super::lock_ignoring_poison;

/// Larger buffers do not speed up copies.
pub(super) const BUFFER_BYTES: usize = 8 << 20;

/// A pinned host buffer and the event after the last copy that reads it.
struct Buffer {
    host: *mut u8,
    event: CUevent,
    in_use: bool,
}

/// Callers without an alternative may take one more.
pub(super) const MAX_BUFFERS: usize = 8;

/// Free buffers, least recently returned first. While the device reads one, the processor fills
/// another.
pub(super) struct StagingPool {
    free: VecDeque<Buffer>,
    allocated: usize,
}

// SAFETY: the pointers are owned by this structure; the driver may be called from any thread.
unsafe impl Send for StagingPool {}

/// Returned to the pool on drop.
pub(super) struct StagingBuffer<'a> {
    staging: &'a Mutex<StagingPool>,
    buffer: Option<Buffer>,
}

type DriverResult = Result<(), CUresult>;

fn to_result(code: CUresult) -> DriverResult {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(code),
    }
}

impl Buffer {
    /// # Safety
    /// The context of the device is current.
    unsafe fn new() -> Result<Buffer, CUresult> {
        let mut host: *mut c_void = std::ptr::null_mut();
        let mut event: CUevent = std::ptr::null_mut();
        // SAFETY: the context is current; the allocation is freed if the next step fails.
        unsafe {
            to_result(sys::cuMemHostAlloc(&mut host, BUFFER_BYTES, 0))?;
            host.cast::<u8>().write_bytes(0, BUFFER_BYTES);
            let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
            if let Err(code) = to_result(sys::cuEventCreate(&mut event, flags)) {
                let _ = sys::cuMemFreeHost(host);
                return Err(code);
            }
        }
        Ok(Buffer {
            host: host.cast(),
            event,
            in_use: false,
        })
    }
}

impl StagingPool {
    pub(super) const fn new() -> Self {
        StagingPool {
            free: VecDeque::new(),
            allocated: 0,
        }
    }

    /// Returns a buffer, or an out-of-memory code if `most` are taken.
    ///
    /// # Safety
    /// The context of the device is current.
    pub(super) unsafe fn take(
        staging: &Mutex<StagingPool>,
        most: usize,
    ) -> Result<StagingBuffer<'_>, CUresult> {
        let kept = {
            let mut state = lock_ignoring_poison(staging);
            if state.allocated - state.free.len() >= most {
                return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
            }
            let kept = if state.allocated < 2 {
                None
            } else {
                state.free.pop_front()
            };
            state.allocated += usize::from(kept.is_none());
            kept
        };
        let buffer = match kept {
            Some(buffer) => buffer,
            // SAFETY: guaranteed by the caller.
            None => unsafe { Buffer::new() }
                .inspect_err(|_| lock_ignoring_poison(staging).allocated -= 1)?,
        };
        let mut taken = StagingBuffer {
            staging,
            buffer: Some(buffer),
        };
        if let Some(buffer) = taken.buffer.as_mut().filter(|buffer| buffer.in_use) {
            // SAFETY: the event belongs to the buffer. All reads have ended once it has completed.
            to_result(unsafe { sys::cuEventSynchronize(buffer.event) })?;
            buffer.in_use = false;
        }
        Ok(taken)
    }

    /// Copies bytes to the device; on return `from` has been read.
    ///
    /// # Safety
    /// The context is current and owns `stream`, and `to` has at least this many bytes.
    pub(super) unsafe fn upload(
        staging: &Mutex<StagingPool>,
        from: &[u8],
        to: CUdeviceptr,
        stream: CUstream,
    ) -> DriverResult {
        let mut at = to;
        for part in from.chunks(BUFFER_BYTES) {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let mut taken = StagingPool::take(staging, usize::MAX)?;
                taken.bytes(part.len()).copy_from_slice(part);
                taken.copy(&[(at, part.len())], stream)?;
            }
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Copies bytes from the device after all earlier operations.
    ///
    /// # Safety
    /// As [`StagingPool::upload`].
    pub(super) unsafe fn download(
        staging: &Mutex<StagingPool>,
        from: CUdeviceptr,
        to: &mut [u8],
        stream: CUstream,
    ) -> DriverResult {
        let mut at = from;
        for part in to.chunks_mut(BUFFER_BYTES) {
            // SAFETY: guaranteed by the caller; the buffer holds a part, and is read after the
            // stream is synchronised.
            unsafe {
                let mut taken = StagingPool::take(staging, usize::MAX)?;
                let bytes = taken.bytes(part.len());
                let host = bytes.as_mut_ptr().cast();
                to_result(sys::cuMemcpyDtoHAsync_v2(host, at, part.len(), stream))?;
                to_result(sys::cuStreamSynchronize(stream))?;
                part.copy_from_slice(bytes);
            }
            at += part.len() as u64;
        }
        Ok(())
    }

    /// # Safety
    /// The context of the device is current, and no copy is running.
    pub(super) unsafe fn free(&mut self) {
        for buffer in self.free.drain(..) {
            // SAFETY: they were allocated by `Buffer::new`. Errors are ignored during teardown.
            unsafe {
                let _ = sys::cuEventDestroy_v2(buffer.event);
                let _ = sys::cuMemFreeHost(buffer.host.cast());
            }
        }
    }
}

impl StagingBuffer<'_> {
    pub(super) fn bytes(&mut self, count: usize) -> &mut [u8] {
        match &mut self.buffer {
            // SAFETY: the buffer has [`BYTES`] initialised bytes and is uniquely owned. The device
            // reads it only after `copy`, which consumes it, and `download` reads it after the
            // stream is synchronised.
            Some(buffer) => unsafe {
                std::slice::from_raw_parts_mut(buffer.host, count.min(BUFFER_BYTES))
            },
            None => &mut [],
        }
    }

    /// Copies its bytes to device ranges, one after the other.
    ///
    /// # Safety
    /// The context is current and owns `stream`; the ranges are valid and have at most [`BYTES`] in
    /// total.
    pub(super) unsafe fn copy(
        mut self,
        places: &[(CUdeviceptr, usize)],
        stream: CUstream,
    ) -> DriverResult {
        let Some(buffer) = &mut self.buffer else {
            return Ok(());
        };
        let mut from = buffer.host.cast_const();
        buffer.in_use = true;
        let copied = places.iter().try_for_each(|&(to, bytes)| {
            // SAFETY: guaranteed by the caller.
            let code = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, stream) };
            from = from.wrapping_add(bytes);
            to_result(code)
        });
        // SAFETY: the event belongs to the buffer. It is recorded after the copies that were
        // queued, even if one was rejected.
        let recorded = to_result(unsafe { sys::cuEventRecord(buffer.event, stream) });
        if recorded.is_err() {
            // SAFETY: the context is current and owns the stream. Without the event the end of the
            // read is unknown.
            let _ = unsafe { sys::cuStreamSynchronize(stream) };
        }
        copied.and(recorded)
    }
}

impl Drop for StagingBuffer<'_> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            lock_ignoring_poison(self.staging).free.push_back(buffer);
        }
    }
}
