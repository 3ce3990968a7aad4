//! Copies between the host and the device, by way of memory that the device reads itself.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Mutex;

use cudarc::driver::sys::{self, CUdeviceptr, CUevent, CUresult, CUstream};

use super::locked;

/// Bytes of a buffer. Larger ones make copies no faster, and reading a file is overlapped with them from the second on.
pub(super) const BYTES: usize = 8 << 20;

/// A part of the host's memory that stays where it is, and the event behind the last copy that reads it.
struct Buffer {
    host: *mut u8,
    event: CUevent,
    /// Whether a copy may be reading it.
    used: bool,
}

/// Buffers at most that are filled at a time by those who could do without; one more is filled by who could not.
pub(super) const MOST: usize = 8;

/// Buffers that nobody has, the one first that was given back first: while the device reads one, the processor fills another, from a
/// file that is mapped for instance. There are two, and more where several threads fill them.
pub(super) struct Staging {
    free: VecDeque<Buffer>,
    made: usize,
}

// SAFETY: what the pointers lead to belongs to this structure alone; the driver is called by any thread.
unsafe impl Send for Staging {}

/// A buffer that is given back where this is dropped.
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
    /// The device's context is current.
    unsafe fn new() -> Result<Buffer, CUresult> {
        let mut host: *mut c_void = std::ptr::null_mut();
        let mut event: CUevent = std::ptr::null_mut();
        // SAFETY: the context is current; what was allocated is given back where the next thing fails.
        unsafe {
            ok(sys::cuMemHostAlloc(&mut host, BYTES, 0))?;
            // What its first user reads was written.
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

    /// A buffer that nothing reads or writes any more; no memory where others have so many.
    ///
    /// # Safety
    /// The device's context is current.
    pub(super) unsafe fn take(
        staging: &Mutex<Staging>,
        most: usize,
    ) -> Result<Taken<'_>, CUresult> {
        let kept = {
            let mut state = locked(staging);
            if state.made - state.free.len() >= most {
                return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
            }
            let kept = match state.made < 2 {
                true => None,
                false => state.free.pop_front(),
            };
            state.made += usize::from(kept.is_none());
            kept
        };
        let buffer = match kept {
            Some(buffer) => buffer,
            // SAFETY: the caller's.
            None => unsafe { Buffer::new() }.inspect_err(|_| locked(staging).made -= 1)?,
        };
        let mut taken = Taken {
            staging,
            buffer: Some(buffer),
        };
        if let Some(buffer) = taken.buffer.as_mut().filter(|buffer| buffer.used) {
            // SAFETY: the event is the buffer's. Whatever read it has ended once it has come.
            ok(unsafe { sys::cuEventSynchronize(buffer.event) })?;
            buffer.used = false;
        }
        Ok(taken)
    }

    /// Copies bytes to the device. They have been read when this returns, not necessarily been written.
    ///
    /// # Safety
    /// The device's context is current, `stream` is its, and `to` has so many bytes.
    pub(super) unsafe fn upload(
        staging: &Mutex<Staging>,
        from: &[u8],
        to: CUdeviceptr,
        stream: CUstream,
    ) -> Code {
        let mut at = to;
        for part in from.chunks(BYTES) {
            // SAFETY: the caller's.
            unsafe {
                let mut taken = Staging::take(staging, usize::MAX)?;
                taken.bytes(part.len()).copy_from_slice(part);
                taken.copy(&[(at, part.len())], stream)?;
            }
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Copies bytes from the device, once everything before is done.
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
            // SAFETY: the caller's; the buffer has room for a part, and the stream is done before it is looked at.
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

    /// Gives the buffers back.
    ///
    /// # Safety
    /// The device's context is current, and nothing reads the buffers any more.
    pub(super) unsafe fn free(&mut self) {
        for buffer in self.free.drain(..) {
            // SAFETY: they were allocated by `Buffer::new`. What fails cannot be helped when everything is given back.
            unsafe {
                let _ = sys::cuEventDestroy_v2(buffer.event);
                let _ = sys::cuMemFreeHost(buffer.host.cast());
            }
        }
    }
}

impl Taken<'_> {
    /// Its first bytes, at most [`BYTES`].
    pub(super) fn bytes(&mut self, count: usize) -> &mut [u8] {
        match &mut self.buffer {
            // SAFETY: the buffer has [`BYTES`], all of them written once, and nobody else has it. Nothing reads it until `copy`, behind
            // which whoever took it has no use for it, and `download` looks at it when the stream is done.
            Some(buffer) => unsafe {
                std::slice::from_raw_parts_mut(buffer.host, count.min(BYTES))
            },
            None => &mut [],
        }
    }

    /// Copies its bytes to places of the device, each so many of those that follow the ones before.
    ///
    /// # Safety
    /// The device's context is current, `stream` is its, the places have so many bytes, which are [`BYTES`] at most.
    pub(super) unsafe fn copy(mut self, places: &[(CUdeviceptr, usize)], stream: CUstream) -> Code {
        let Some(buffer) = &mut self.buffer else {
            return Ok(());
        };
        let mut from = buffer.host.cast_const();
        buffer.used = true;
        let copied = places.iter().try_for_each(|&(to, bytes)| {
            // SAFETY: the caller's.
            let code = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, stream) };
            from = from.wrapping_add(bytes);
            ok(code)
        });
        // Behind those that were begun, too, where one was refused.
        // SAFETY: the event is the buffer's.
        let recorded = ok(unsafe { sys::cuEventRecord(buffer.event, stream) });
        if recorded.is_err() {
            // Nothing else would tell when it was read.
            // SAFETY: the context is current, and the stream is its.
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
