//! An emulated device: kernels compiled by the C++ compiler, with their threads run one after the
//! other.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::device::{Device, DeviceError, DeviceMemory, Kernel, KernelArguments, MemoryOffset};
use super::step::{Launch, Step, StepCounts, StepOperation};

/// Declares the functions of `emulate.cpp`: those linked into the program, and the same ones of a library.
macro_rules! emulation {
    ($($field:ident = $name:ident ($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        // SAFETY: the declarations match the functions of `emulate.cpp`.
        unsafe extern "C" {
            $(fn $name($($argument: $type),*) $(-> $result)?;)*
        }

        struct Emulation {
            $($field: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
        }

        impl Emulation {
            const LINKED: Self = Emulation { $($field: $name),* };

            fn of_library(library: &libloading::Library) -> Result<Self, libloading::Error> {
                // SAFETY: the library is built from `emulate.cpp`, whose functions the types match.
                unsafe { Ok(Emulation { $($field: *library.get(stringify!($name))?),* }) }
            }
        }
    };
}

emulation! {
    find = htc_emulate_find(name: *const c_char) -> *const c_void;
    launch = htc_emulate_launch(
        kernel: *const c_void,
        grid: *const c_uint,
        threads: c_uint,
        shared: usize,
        arguments: *const c_void,
        argument_bytes: usize,
        seed: u64,
        error: *mut c_char,
        capacity: usize,
    ) -> c_int;
    allocate = htc_emulate_allocate(bytes: usize) -> *mut c_void;
    whole = htc_emulate_whole(memory: *const c_void, bytes: usize) -> c_int;
    free = htc_emulate_free(memory: *mut c_void);
    sanitized = htc_emulate_sanitized() -> c_int;
    resident = htc_emulate_resident(threads: c_uint) -> c_uint;
}

/// Names a library of the emulation that is used instead of the linked one: `scripts/test_sanitized.sh`
/// builds it with sanitizers.
pub(super) const LIBRARY: &str = "HTC_EMULATED_LIBRARY";

fn emulation() -> &'static Emulation {
    static USED: OnceLock<Emulation> = OnceLock::new();
    USED.get_or_init(|| {
        let Some(path) = std::env::var_os(LIBRARY).filter(|path| !path.is_empty()) else {
            return Emulation::LINKED;
        };
        // SAFETY: the library has no initialisers but those of its C++ runtime.
        let loaded = unsafe { libloading::Library::new(&path) };
        let found = loaded.and_then(|library| {
            let found = Emulation::of_library(&library)?;
            // Its functions are used until the program ends.
            std::mem::forget(library);
            Ok(found)
        });
        found.unwrap_or_else(|error| {
            eprintln!("error: {LIBRARY}: {error}");
            std::process::exit(1)
        })
    })
}

static RUNNING: Mutex<()> = Mutex::new(());

fn lock_emulation() -> MutexGuard<'static, ()> {
    locked(&RUNNING)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A GPU emulated on the processor, with an order of threads and blocks drawn from a seed. Reports
/// divergent barriers, warp exchanges that not all lanes reach, and arguments of the wrong size.
#[derive(Clone, Debug)]
pub struct EmulatedDevice {
    seed: u64,
    launches: Arc<AtomicU64>,
    record: Arc<Mutex<StepRecording>>,
}

/// An allocation of an emulated device.
#[derive(Debug)]
pub struct EmulatedMemory {
    address: u64,
    bytes: usize,
    record: Arc<Mutex<StepRecording>>,
}

#[derive(Debug, Default)]
struct StepRecording {
    open: bool,
    step: Step,
    /// Allocations dropped while recorded launches may still access them.
    deferred_frees: Vec<(u64, usize)>,
    last: Step,
    counts: StepCounts,
}

/// A launch or copy of a completed step, for tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepNode {
    /// Kernel name; `None` for a copy.
    pub kernel: Option<&'static str>,
    /// Grid in blocks.
    pub grid: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared: usize,
    /// Arguments in 64-bit words.
    pub arguments: Vec<u64>,
}

impl EmulatedDevice {
    /// Creates a device with the thread order drawn from `seed`.
    pub fn new(seed: u64) -> Self {
        EmulatedDevice {
            seed,
            launches: Arc::new(AtomicU64::new(0)),
            record: Arc::default(),
        }
    }

    /// Returns the last completed step.
    pub fn last_step(&self) -> Vec<StepNode> {
        let record = locked(&self.record);
        let node = |node: &StepOperation| match node {
            StepOperation::Launch(launch) => StepNode {
                kernel: Some(launch.kernel),
                grid: launch.grid,
                shared: launch.shared,
                arguments: record.last.arguments(launch).to_vec(),
            },
            &StepOperation::Copy { from, to, bytes } => StepNode {
                kernel: None,
                grid: [0; 3],
                shared: 0,
                arguments: vec![from, to, bytes as u64],
            },
        };
        record.last.nodes().iter().map(node).collect()
    }

    /// Returns the counters of steps.
    pub fn step_counts(&self) -> StepCounts {
        locked(&self.record).counts
    }

    /// Returns the number of launches so far.
    pub fn launch_count(&self) -> u64 {
        self.launches.load(Ordering::Relaxed)
    }

    /// Returns true if the build uses AddressSanitizer.
    pub fn is_sanitized() -> bool {
        // SAFETY: it returns a constant.
        unsafe { (emulation().sanitized)() != 0 }
    }
}

impl DeviceMemory for EmulatedMemory {
    fn address(&self) -> u64 {
        self.address
    }

    fn len(&self) -> usize {
        self.bytes
    }
}

impl EmulatedMemory {
    fn pointer(&self, at: usize) -> *mut u8 {
        (self.address as *mut u8).wrapping_add(at)
    }

    /// Returns true if no kernel wrote past the end.
    pub fn is_intact(&self) -> bool {
        // SAFETY: the allocation is alive and has this many bytes.
        unsafe { (emulation().whole)(self.pointer(0).cast(), self.bytes) != 0 }
    }
}

impl Drop for EmulatedMemory {
    fn drop(&mut self) {
        let mut record = locked(&self.record);
        if record.open && !record.step.nodes().is_empty() {
            record.deferred_frees.push((self.address, self.bytes));
            return;
        }
        drop(record);
        free(self.address, self.bytes);
    }
}

fn free(address: u64, bytes: usize) {
    let memory = address as *mut c_void;
    // SAFETY: it was allocated by `htc_emulate_allocate` with this size, and no other references
    // exist.
    let whole = unsafe {
        let whole = (emulation().whole)(memory, bytes) != 0;
        (emulation().free)(memory);
        whole
    };
    assert!(
        whole || std::thread::panicking(),
        "a kernel wrote behind the end of an allocation of {bytes} bytes"
    );
}

impl EmulatedDevice {
    fn flush_step(&self, record: &mut StepRecording) -> Result<(), DeviceError> {
        if !std::mem::take(&mut record.open) {
            return Ok(());
        }
        if !record.step.nodes().is_empty() {
            record.counts.interrupted += 1;
        }
        self.run_step(record, false)
    }

    fn run_step(&self, record: &mut StepRecording, ends: bool) -> Result<(), DeviceError> {
        let step = std::mem::take(&mut record.step);
        let done = step.nodes().iter().try_for_each(|node| match node {
            StepOperation::Launch(launch) => self.run_launch(&step, launch),
            &StepOperation::Copy { from, to, bytes } => {
                let _alone = lock_emulation();
                // SAFETY: both spans were checked when the copy was recorded, and memory dropped
                // since is still allocated.
                unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
                Ok(())
            }
        });
        if ends {
            record.last = step;
        }
        for (address, bytes) in std::mem::take(&mut record.deferred_frees) {
            free(address, bytes);
        }
        done
    }

    fn run_launch(&self, step: &Step, launch: &Launch) -> Result<(), DeviceError> {
        let failed = |message: String| DeviceError::Kernel {
            kernel: launch.kernel,
            message,
        };
        let name = CString::new(launch.kernel).map_err(|error| failed(error.to_string()))?;
        let count = self.launches.fetch_add(1, Ordering::Relaxed);
        let seed = self.seed.wrapping_add(count);
        let mut error = [0_u8; 512];
        let _alone = lock_emulation();
        // SAFETY: the name is NUL-terminated; grid, arguments and error have the lengths passed.
        // The caller of `Device::launch` guarantees the memory accesses of the kernel, and the
        // arguments are those passed with it.
        let rc = unsafe {
            let found = (emulation().find)(name.as_ptr());
            if found.is_null() {
                return Err(failed("there is no kernel of this name".to_owned()));
            }
            (emulation().launch)(
                found,
                launch.grid.as_ptr(),
                launch.threads,
                launch.shared,
                step.arguments(launch).as_ptr().cast(),
                launch.argument_bytes,
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
}

impl Device for EmulatedDevice {
    type Memory = EmulatedMemory;

    fn name(&self) -> String {
        "emulated".to_owned()
    }

    fn multiprocessors(&self) -> usize {
        4
    }

    fn max_shared_bytes(&self) -> usize {
        227 << 10
    }

    fn max_resident_blocks<A: KernelArguments>(
        &self,
        kernel: &Kernel<A>,
        _shared: usize,
    ) -> Result<usize, DeviceError> {
        // SAFETY: a pure function.
        Ok(unsafe { (emulation().resident)(kernel.threads) } as usize)
    }

    fn allocate(&self, bytes: usize) -> Result<EmulatedMemory, DeviceError> {
        let bytes = bytes.max(1);
        // SAFETY: any size is allowed.
        let memory = unsafe { (emulation().allocate)(bytes) };
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
            record: Arc::clone(&self.record),
        })
    }

    fn memory_info(&self) -> Result<[usize; 2], DeviceError> {
        Ok([usize::MAX; 2])
    }

    fn upload(&self, from: &[u8], to: &EmulatedMemory, at: usize) -> Result<(), DeviceError> {
        to.span("upload", at, from.len())?;
        self.flush_step(&mut locked(&self.record))?;
        let _alone = lock_emulation();
        // SAFETY: the span check guarantees the number of bytes; launches have ended when they
        // return.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.pointer(at), from.len()) };
        Ok(())
    }

    fn download(&self, from: &EmulatedMemory, at: usize, to: &mut [u8]) -> Result<(), DeviceError> {
        from.span("download", at, to.len())?;
        self.flush_step(&mut locked(&self.record))?;
        let _alone = lock_emulation();
        // SAFETY: the span check guarantees the number of bytes; launches have ended when they
        // return.
        unsafe { std::ptr::copy_nonoverlapping(from.pointer(at), to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    fn copy(
        &self,
        from: MemoryOffset<'_, EmulatedMemory>,
        to: MemoryOffset<'_, EmulatedMemory>,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let (from, to) = (from.address(bytes)?, to.address(bytes)?);
        if bytes == 0 {
            return Ok(());
        }
        let mut record = locked(&self.record);
        record.counts.copies += 1;
        record.step.copy(from, to, bytes);
        if record.open {
            return Ok(());
        }
        self.run_step(&mut record, false)
    }

    unsafe fn launch<A: KernelArguments>(
        &self,
        kernel: &Kernel<A>,
        grid: [u32; 3],
        shared: usize,
        arguments: &A,
    ) -> Result<(), DeviceError> {
        const {
            assert!(align_of::<A>() <= align_of::<u64>());
        }
        if grid.contains(&0) {
            return Ok(());
        }
        let mut record = locked(&self.record);
        record.counts.kernels += 1;
        record.step.launch(kernel, grid, shared, arguments);
        if record.open {
            return Ok(());
        }
        self.run_step(&mut record, false)
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.flush_step(&mut locked(&self.record))
    }

    fn begin_step(&self) -> Result<(), DeviceError> {
        locked(&self.record).open = true;
        Ok(())
    }

    fn end_step(&self) -> Result<(), DeviceError> {
        let mut record = locked(&self.record);
        if !std::mem::take(&mut record.open) || record.step.nodes().is_empty() {
            return Ok(());
        }
        let record = &mut *record;
        // Counts as a driver would with only the previous graph cached.
        let (last, counts) = (&record.last, &mut record.counts);
        if *last == record.step {
            counts.replayed += 1;
        } else if last.has_same_operations(&record.step) {
            counts.updated += 1;
            counts.changed_operations += record.step.changed_operations(last).count() as u64;
        } else {
            counts.created += 1;
        }
        self.run_step(record, true)
    }
}
