//! Simulated machine with a GPU: driver, compiler and libraries with NVIDIA's names that compute on
//! the CPU.

#[path = "../../kernels/tests/driver/library.rs"]
mod library;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Htc, Scratch};
pub use library::{BLAS, DRIVER, SOLVER};

/// File name of the compiler library.
pub const COMPILER: &str = "libnvrtc.so";

/// Folder of the libraries, and log of their calls.
pub struct FakeGpuMachine {
    scratch: Scratch,
    libraries: PathBuf,
}

impl Default for FakeGpuMachine {
    fn default() -> Self {
        FakeGpuMachine::new()
    }
}

impl FakeGpuMachine {
    /// Creates a machine with a driver and a compiler.
    pub fn new() -> FakeGpuMachine {
        let scratch = Scratch::new();
        let libraries = scratch.path("libraries");
        std::fs::create_dir(&libraries).unwrap();
        let machine = FakeGpuMachine { scratch, libraries };
        machine.install(DRIVER, "libcuda.cpp", &[]);
        machine.install(COMPILER, "libnvrtc.cpp", &[]);
        machine
    }

    /// Returns a folder for temporary files.
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// Returns the folder of the libraries.
    pub fn libraries(&self) -> &Path {
        &self.libraries
    }

    /// Compiles a library with one of NVIDIA's names.
    pub fn install(&self, name: &str, source: &str, options: &[&str]) {
        let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels");
        library::compile_library(&kernels, &self.libraries, name, source, options);
    }

    fn environment(&self) -> [(&'static str, PathBuf); 3] {
        [
            ("LD_LIBRARY_PATH", self.libraries.clone()),
            ("HTC_FAKE_LOG", self.log()),
            ("XDG_CACHE_HOME", self.scratch.path("user")),
        ]
    }

    /// Configures a run of `htc` for this machine.
    pub fn configure(&self, htc: Htc) -> Htc {
        let set = |htc: Htc, (name, value): (&'static str, PathBuf)| htc.env(name, Some(&value));
        self.environment().into_iter().fold(htc, set)
    }

    /// Returns a command that runs another program on this machine.
    pub fn program(&self, path: &Path) -> Command {
        let mut command = Command::new(path);
        command.envs(self.environment());
        command
    }

    fn log(&self) -> PathBuf {
        self.scratch.path("called")
    }

    /// Returns the log of library calls in all runs so far.
    pub fn call_log(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// Asserts that all resources of the last device were released.
    pub fn assert_last_device_released(&self) {
        self.assert_released(1);
    }

    /// Asserts that all resources of every device were released.
    pub fn assert_all_released(&self) {
        self.assert_released(usize::MAX);
    }

    fn assert_released(&self, last: usize) {
        let called = self.call_log();
        let left = called.lines().filter(|line| line.starts_with("left: "));
        let nothing = "left: 0 allocations, 0 of the host, 0 modules, 0 streams, 0 events, 0 graphs, 0 handles of libraries";
        let left: Vec<&str> = left.collect();
        assert!(!left.is_empty(), "{called}");
        let left = &left[left.len().saturating_sub(last)..];
        assert!(left.iter().all(|line| *line == nothing), "{left:?}");
        let refused = called.lines().find(|line| line.starts_with("refused"));
        assert_eq!(refused, None);
    }
}
