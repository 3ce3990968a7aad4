//! A device that is the processor: kernels compiled by the C++ compiler and run a thread after the other.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::device::{Arguments, Device, DeviceError, Kernel, Memory};

// SAFETY: these are the functions of `emulate.cpp` with the types that they have there.
unsafe extern "C" {
    fn htc_emulate_find(name: *const c_char) -> *const c_void;
    fn htc_emulate_name(index: usize) -> *const c_char;
    fn htc_emulate_launch(
        kernel: *const c_void,
        grid: *const c_uint,
        threads: c_uint,
        shared: usize,
        arguments: *const c_void,
        argument_bytes: usize,
        seed: u64,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
    fn htc_emulate_allocate(bytes: usize) -> *mut c_void;
    fn htc_emulate_whole(memory: *const c_void, bytes: usize) -> c_int;
    fn htc_emulate_free(memory: *mut c_void);
    fn htc_emulate_sanitized() -> c_int;
}

/// The emulation runs one launch at a time, whichever thread asks.
static RUNNING: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A GPU emulated by the processor, which draws the order of threads and blocks by a seed and reports what a GPU
/// leaves undefined: barriers that not all threads reach, lanes that wait for others in vain, arguments of another size.
#[derive(Clone, Debug)]
pub struct Emulated {
    seed: u64,
    launches: Arc<AtomicU64>,
}

/// An allocation of it.
#[derive(Debug)]
pub struct EmulatedMemory {
    address: u64,
    bytes: usize,
}

impl Emulated {
    /// A device whose threads run in an order that `seed` draws.
    pub fn new(seed: u64) -> Self {
        Emulated {
            seed,
            launches: Arc::new(AtomicU64::new(0)),
        }
    }

    /// Launches so far.
    pub fn launches(&self) -> u64 {
        self.launches.load(Ordering::Relaxed)
    }

    /// Whether it was built with AddressSanitizer, which ends the program where a kernel leaves an allocation.
    pub fn is_sanitized() -> bool {
        // SAFETY: it returns a constant.
        unsafe { htc_emulate_sanitized() != 0 }
    }

    /// The names of all kernels.
    pub fn kernels() -> Vec<String> {
        let name = |index| {
            // SAFETY: any index is allowed; the name is null or a constant that ends with a zero.
            unsafe {
                let name = htc_emulate_name(index);
                (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
            }
        };
        (0..).map_while(name).collect()
    }
}

impl Memory for EmulatedMemory {
    fn address(&self) -> u64 {
        self.address
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl EmulatedMemory {
    fn pointer(&self, at: usize) -> *mut u8 {
        (self.address as *mut u8).wrapping_add(at)
    }

    /// Whether nothing was written behind its end.
    pub fn is_whole(&self) -> bool {
        // SAFETY: the allocation has so many bytes and is alive.
        unsafe { htc_emulate_whole(self.pointer(0).cast(), self.bytes) != 0 }
    }
}

impl Drop for EmulatedMemory {
    fn drop(&mut self) {
        let whole = self.is_whole();
        // SAFETY: it was allocated by `htc_emulate_allocate` and nobody has it any more.
        unsafe { htc_emulate_free(self.pointer(0).cast()) };
        assert!(
            whole || std::thread::panicking(),
            "a kernel wrote behind the end of an allocation of {} bytes",
            self.bytes
        );
    }
}

impl Device for Emulated {
    type Memory = EmulatedMemory;

    fn name(&self) -> String {
        "emulated".to_owned()
    }

    fn multiprocessors(&self) -> usize {
        4
    }

    fn allocate(&self, bytes: usize) -> Result<EmulatedMemory, DeviceError> {
        let bytes = bytes.max(1);
        // SAFETY: any number of bytes may be asked for.
        let memory = unsafe { htc_emulate_allocate(bytes) };
        if memory.is_null() {
            return Err(DeviceError::OutOfMemory {
                needed: bytes,
                free: 0,
                total: 0,
            });
        }
        Ok(EmulatedMemory {
            address: memory as u64,
            bytes,
        })
    }

    fn room(&self) -> Result<[usize; 2], DeviceError> {
        Ok([usize::MAX; 2])
    }

    fn upload(&self, from: &[u8], to: &EmulatedMemory, at: usize) -> Result<(), DeviceError> {
        to.span("upload", at, from.len())?;
        let _alone = alone();
        // SAFETY: the span check says that so many bytes are there; launches are done when they return.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.pointer(at), from.len()) };
        Ok(())
    }

    fn download(&self, from: &EmulatedMemory, at: usize, to: &mut [u8]) -> Result<(), DeviceError> {
        from.span("download", at, to.len())?;
        let _alone = alone();
        // SAFETY: the span check says that so many bytes are there; launches are done when they return.
        unsafe { std::ptr::copy_nonoverlapping(from.pointer(at), to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    fn copy(
        &self,
        (from, from_at): (&EmulatedMemory, usize),
        (to, to_at): (&EmulatedMemory, usize),
        bytes: usize,
    ) -> Result<(), DeviceError> {
        from.span("copy", from_at, bytes)?;
        to.span("copy", to_at, bytes)?;
        let _alone = alone();
        // SAFETY: both span checks say that so many bytes are there; `copy` allows that they overlap.
        unsafe { std::ptr::copy(from.pointer(from_at), to.pointer(to_at), bytes) };
        Ok(())
    }

    unsafe fn launch<A: Arguments>(
        &self,
        kernel: &Kernel<A>,
        grid: [u32; 3],
        shared: usize,
        arguments: &A,
    ) -> Result<(), DeviceError> {
        if grid.contains(&0) {
            return Ok(());
        }
        let failed = |message: String| DeviceError::Kernel {
            kernel: kernel.name,
            message,
        };
        let name = CString::new(kernel.name).map_err(|error| failed(error.to_string()))?;
        let launch = self.launches.fetch_add(1, Ordering::Relaxed);
        let seed = self.seed.wrapping_add(launch);
        let mut error = [0_u8; 512];
        let _alone = alone();
        // SAFETY: the name ends with a zero; grid, arguments and error have the lengths that are passed, and the caller
        // answers for what the kernel touches.
        let rc = unsafe {
            let found = htc_emulate_find(name.as_ptr());
            if found.is_null() {
                return Err(failed("there is no kernel of this name".to_owned()));
            }
            htc_emulate_launch(
                found,
                grid.as_ptr(),
                kernel.threads,
                shared,
                std::ptr::from_ref(arguments).cast(),
                size_of::<A>(),
                seed,
                error.as_mut_ptr().cast(),
                error.len(),
            )
        };
        if rc == 0 {
            return Ok(());
        }
        let message = CStr::from_bytes_until_nul(&error).unwrap_or_default();
        Err(failed(message.to_string_lossy().into_owned()))
    }

    fn wait(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}
