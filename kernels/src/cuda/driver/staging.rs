//! Copies between the host and the device, by way of memory that the device reads itself.

use std::ffi::c_void;

use cudarc::driver::sys::{self, CUdeviceptr, CUevent, CUresult, CUstream};

/// Bytes of a buffer. Larger ones make copies no faster, and reading a file is overlapped with them from the second on.
const BYTES: usize = 8 << 20;

/// A part of the host's memory that stays where it is, and the event behind the last copy that reads it.
struct Buffer {
    host: *mut u8,
    event: CUevent,
    /// Whether a copy may be reading it.
    used: bool,
}

/// Two buffers: while the device reads one, the processor fills the other, from a file that is mapped for instance.
pub(super) struct Staging {
    buffers: Vec<Buffer>,
    next: usize,
}

// SAFETY: what the pointers lead to belongs to this structure alone; the driver is called by any thread.
unsafe impl Send for Staging {}

type Code = Result<(), CUresult>;

fn ok(code: CUresult) -> Code {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(code),
    }
}

impl Staging {
    pub(super) const fn new() -> Self {
        Staging {
            buffers: Vec::new(),
            next: 0,
        }
    }

    /// Allocates the buffers, where they are not.
    ///
    /// # Safety
    /// The device's context is current.
    unsafe fn prepare(&mut self) -> Code {
        while self.buffers.len() < 2 {
            let mut host: *mut c_void = std::ptr::null_mut();
            let mut event: CUevent = std::ptr::null_mut();
            // SAFETY: the context is current; what was allocated is given back where the next thing fails.
            unsafe {
                ok(sys::cuMemHostAlloc(&mut host, BYTES, 0))?;
                let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
                if let Err(code) = ok(sys::cuEventCreate(&mut event, flags)) {
                    let _ = sys::cuMemFreeHost(host);
                    return Err(code);
                }
            }
            self.buffers.push(Buffer {
                host: host.cast(),
                event,
                used: false,
            });
        }
        Ok(())
    }

    /// Copies bytes to the device. They have been read when this returns, not necessarily been written.
    ///
    /// # Safety
    /// The device's context is current, `stream` is its, and `to` has so many bytes.
    pub(super) unsafe fn upload(&mut self, from: &[u8], to: CUdeviceptr, stream: CUstream) -> Code {
        // SAFETY: the caller's.
        unsafe { self.prepare()? };
        let mut at = to;
        for part in from.chunks(BYTES) {
            let buffer = &mut self.buffers[self.next];
            // SAFETY: the buffer has room for a part; whatever read it has ended once its event has come.
            unsafe {
                if buffer.used {
                    ok(sys::cuEventSynchronize(buffer.event))?;
                }
                std::ptr::copy_nonoverlapping(part.as_ptr(), buffer.host, part.len());
                let host = buffer.host.cast_const().cast();
                buffer.used = true;
                ok(sys::cuMemcpyHtoDAsync_v2(at, host, part.len(), stream))?;
                ok(sys::cuEventRecord(buffer.event, stream))?;
            }
            at += part.len() as u64;
            self.next = 1 - self.next;
        }
        Ok(())
    }

    /// Copies bytes from the device, once everything before is done.
    ///
    /// # Safety
    /// As [`Staging::upload`].
    pub(super) unsafe fn download(
        &mut self,
        from: CUdeviceptr,
        to: &mut [u8],
        stream: CUstream,
    ) -> Code {
        // SAFETY: the caller's.
        unsafe { self.prepare()? };
        let mut at = from;
        for part in to.chunks_mut(BYTES) {
            let buffer = &self.buffers[self.next];
            // SAFETY: the buffer has room for a part. The stream writes it behind any copy that reads it, and is done
            // before it is looked at.
            unsafe {
                ok(sys::cuMemcpyDtoHAsync_v2(
                    buffer.host.cast(),
                    at,
                    part.len(),
                    stream,
                ))?;
                ok(sys::cuStreamSynchronize(stream))?;
                std::ptr::copy_nonoverlapping(buffer.host, part.as_mut_ptr(), part.len());
            }
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Gives the buffers back.
    ///
    /// # Safety
    /// The device's context is current, and nothing reads the buffers any more.
    pub(super) unsafe fn free(&mut self) {
        for buffer in self.buffers.drain(..) {
            // SAFETY: they were allocated by `prepare`. What fails cannot be helped when everything is given back.
            unsafe {
                let _ = sys::cuEventDestroy_v2(buffer.event);
                let _ = sys::cuMemFreeHost(buffer.host.cast());
            }
        }
    }
}
