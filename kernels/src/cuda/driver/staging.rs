//! Copies between host and device through pinned staging buffers.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Mutex;

use cudarc::driver::sys::{self, CUdeviceptr, CUevent, CUresult, CUstream};

use super::locked;

/// Size of a buffer in bytes. Larger ones do not speed up copies, and reading a file overlaps with
/// the copies from the second buffer on.
pub(super) const BYTES: usize = 8 << 20;

/// A pinned host buffer and the event after the last copy that reads it.
struct Buffer {
    host: *mut u8,
    event: CUevent,
    used: bool,
}

/// Maximum number of buffers that are filled at a time by callers with an alternative; callers
/// without one may take one more.
pub(super) const MOST: usize = 8;

/// Free buffers, least recently returned first. While the device reads one, the processor fills
/// another, e.g. from a mapped file. There are two, and more if several threads fill them.
pub(super) struct Staging {
    free: VecDeque<Buffer>,
    made: usize,
}

// SAFETY: the pointers are owned by this structure; the driver may be called from any thread.
unsafe impl Send for Staging {}

/// A buffer that is returned on drop.
pub(super) struct Taken<'a> {
    staging: &'a Mutex<Staging>,
    buffer: Option<Buffer>,
}

type Code = Result<(), CUresult>;

fn ok(code: CUresult) -> Code {
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
            ok(sys::cuMemHostAlloc(&mut host, BYTES, 0))?;
            // Initialised, because `bytes` hands it out as a slice.
            host.cast::<u8>().write_bytes(0, BYTES);
            let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
            if let Err(code) = ok(sys::cuEventCreate(&mut event, flags)) {
                let _ = sys::cuMemFreeHost(host);
                return Err(code);
            }
        }
        Ok(Buffer {
            host: host.cast(),
            event,
            used: false,
        })
    }
}

impl Staging {
    pub(super) const fn new() -> Self {
        Staging {
            free: VecDeque::new(),
            made: 0,
        }
    }

    /// Returns a buffer that is no longer in use, or an out-of-memory code if `most` buffers are
    /// taken.
    ///
    /// # Safety
    /// The context of the device is current.
    pub(super) unsafe fn take(
        staging: &Mutex<Staging>,
        most: usize,
    ) -> Result<Taken<'_>, CUresult> {
        let kept = {
            let mut state = locked(staging);
            if state.made - state.free.len() >= most {
                return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
            }
            let kept = if state.made < 2 {
                None
            } else {
                state.free.pop_front()
            };
            state.made += usize::from(kept.is_none());
            kept
        };
        let buffer = match kept {
            Some(buffer) => buffer,
            // SAFETY: guaranteed by the caller.
            None => unsafe { Buffer::new() }.inspect_err(|_| locked(staging).made -= 1)?,
        };
        let mut taken = Taken {
            staging,
            buffer: Some(buffer),
        };
        if let Some(buffer) = taken.buffer.as_mut().filter(|buffer| buffer.used) {
            // SAFETY: the event belongs to the buffer. All reads have ended once it has completed.
            ok(unsafe { sys::cuEventSynchronize(buffer.event) })?;
            buffer.used = false;
        }
        Ok(taken)
    }

    /// Copies bytes to the device. On return `from` has been read; the copy may still be queued.
    ///
    /// # Safety
    /// The context of the device is current and owns `stream`, and `to` has at least this many
    /// bytes.
    pub(super) unsafe fn upload(
        staging: &Mutex<Staging>,
        from: &[u8],
        to: CUdeviceptr,
        stream: CUstream,
    ) -> Code {
        let mut at = to;
        for part in from.chunks(BYTES) {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let mut taken = Staging::take(staging, usize::MAX)?;
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
    /// As [`Staging::upload`].
    pub(super) unsafe fn download(
        staging: &Mutex<Staging>,
        from: CUdeviceptr,
        to: &mut [u8],
        stream: CUstream,
    ) -> Code {
        let mut at = from;
        for part in to.chunks_mut(BYTES) {
            // SAFETY: guaranteed by the caller; the buffer holds a part, and is read after the
            // stream is synchronised.
            unsafe {
                let mut taken = Staging::take(staging, usize::MAX)?;
                let bytes = taken.bytes(part.len());
                let host = bytes.as_mut_ptr().cast();
                ok(sys::cuMemcpyDtoHAsync_v2(host, at, part.len(), stream))?;
                ok(sys::cuStreamSynchronize(stream))?;
                part.copy_from_slice(bytes);
            }
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Frees the buffers.
    ///
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

impl Taken<'_> {
    /// Returns its first bytes, at most [`BYTES`].
    pub(super) fn bytes(&mut self, count: usize) -> &mut [u8] {
        match &mut self.buffer {
            // SAFETY: the buffer has [`BYTES`] initialised bytes and is uniquely owned. The device
            // reads it only after `copy`, which consumes it, and `download` reads it after the
            // stream is synchronised.
            Some(buffer) => unsafe {
                std::slice::from_raw_parts_mut(buffer.host, count.min(BYTES))
            },
            None => &mut [],
        }
    }

    /// Copies its bytes to device ranges, one after the other.
    ///
    /// # Safety
    /// The context of the device is current and owns `stream`; the ranges are valid and have at
    /// most [`BYTES`] in total.
    pub(super) unsafe fn copy(mut self, places: &[(CUdeviceptr, usize)], stream: CUstream) -> Code {
        let Some(buffer) = &mut self.buffer else {
            return Ok(());
        };
        let mut from = buffer.host.cast_const();
        buffer.used = true;
        let copied = places.iter().try_for_each(|&(to, bytes)| {
            // SAFETY: guaranteed by the caller.
            let code = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, stream) };
            from = from.wrapping_add(bytes);
            ok(code)
        });
        // SAFETY: the event belongs to the buffer. It is recorded after the copies that were
        // queued, even if one was rejected.
        let recorded = ok(unsafe { sys::cuEventRecord(buffer.event, stream) });
        if recorded.is_err() {
            // SAFETY: the context is current and owns the stream. Without the event the end of the
            // read is unknown.
            let _ = unsafe { sys::cuStreamSynchronize(stream) };
        }
        copied.and(recorded)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            locked(self.staging).free.push_back(buffer);
        }
    }
}
