//! A machine with a GPU that is not there: the driver, the compiler and the libraries that programs load have NVIDIA's names, and
//! compute on the processor what they are asked for.

#[path = "../../kernels/tests/driver/library.rs"]
mod library;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Htc, Scratch};
pub use library::{BLAS, DRIVER, SOLVER};

/// The name of the compiler's library.
pub const COMPILER: &str = "libnvrtc.so";

/// Where libraries are looked for, and what was asked of them.
pub struct Machine {
    scratch: Scratch,
    libraries: PathBuf,
}

impl Default for Machine {
    fn default() -> Self {
        Machine::new()
    }
}

impl Machine {
    /// With a driver and a compiler.
    pub fn new() -> Machine {
        let scratch = Scratch::new();
        let libraries = scratch.path("libraries");
        std::fs::create_dir(&libraries).unwrap();
        let machine = Machine { scratch, libraries };
        machine.install(DRIVER, "libcuda.cpp", &[]);
        machine.install(COMPILER, "libnvrtc.cpp", &[]);
        machine
    }

    /// A folder for whatever is made there.
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// Where the libraries lie.
    pub fn libraries(&self) -> &Path {
        &self.libraries
    }

    /// Compiles a library of one of NVIDIA's names.
    pub fn install(&self, name: &str, source: &str, options: &[&str]) {
        let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels");
        library::library(&kernels, &self.libraries, name, source, options);
    }

    /// What a program there has in its environment. Its kernels are kept apart: no GPU takes them.
    fn environment(&self) -> [(&'static str, PathBuf); 3] {
        [
            ("LD_LIBRARY_PATH", self.libraries.clone()),
            ("HTC_FAKE_LOG", self.log()),
            ("XDG_CACHE_HOME", self.scratch.path("user")),
        ]
    }

    /// A run of `htc` there.
    pub fn on(&self, htc: Htc) -> Htc {
        let set = |htc: Htc, (name, value): (&'static str, PathBuf)| htc.env(name, Some(&value));
        self.environment().into_iter().fold(htc, set)
    }

    /// Another program there.
    pub fn program(&self, path: &Path) -> Command {
        let mut command = Command::new(path);
        command.envs(self.environment());
        command
    }

    fn log(&self) -> PathBuf {
        self.scratch.path("called")
    }

    /// What was asked of the libraries in all runs so far, a line each.
    pub fn called(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// Whether everything was given back that was asked of the libraries when the last device was closed.
    pub fn nothing_is_left_at_the_end(&self) {
        self.nothing_is_left_of(1);
    }

    /// The same of each device, in all runs so far, of which none had two at a time.
    pub fn nothing_is_left(&self) {
        self.nothing_is_left_of(usize::MAX);
    }

    fn nothing_is_left_of(&self, last: usize) {
        let called = self.called();
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
