//! The CUDA device with a mock driver library that executes on the emulation. A library is loaded
//! once per process, so each scenario runs in a child process.

#![cfg(all(feature = "cuda", feature = "emulated", target_os = "linux"))]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::undocumented_unsafe_blocks,
    reason = "test code"
)]

#[path = "device.rs"]
mod device;
#[path = "driver/library.rs"]
mod library;
#[path = "driver/linear.rs"]
mod linear;
#[path = "driver/scenarios.rs"]
mod scenarios;
#[path = "driver/steps.rs"]
mod steps;

use std::path::{Path, PathBuf};
use std::process::Command;

use library::{BLAS, DRIVER, SOLVER};

const SCENARIO: &str = "HTC_SCENARIO";

fn compile_library(folder: &Path, name: &str, source: &str, options: &[&str]) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    library::compile_library(here, folder, name, source, options);
}

fn run_scenario(name: &str, folder: &Path, environment: &[(&str, &str)]) -> Result<(), String> {
    let log = folder.join(format!("{name}.log"));
    let run = Command::new(std::env::current_exe().unwrap())
        .args([
            "the_scenario_that_the_environment_names",
            "--exact",
            "--nocapture",
        ])
        .env(SCENARIO, name)
        .env("LD_LIBRARY_PATH", folder)
        .env("HTC_FAKE_LOG", &log)
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    if run.status.success() {
        return Ok(());
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let log = std::fs::read_to_string(log).unwrap_or_default();
    Err(format!(
        "{name}: {}{}\ncalled:\n{log}",
        text(&run.stdout),
        text(&run.stderr)
    ))
}

#[test]
fn the_scenario_that_the_environment_names() {
    let Ok(name) = std::env::var(SCENARIO) else {
        return;
    };
    let log = std::env::var_os("HTC_FAKE_LOG").map(PathBuf::from).unwrap();
    scenarios::run(&name, &log);
}

fn run_scenarios(folder: &Path, scenarios: &[(&str, &[(&str, &str)])]) {
    let faults: Vec<String> = scenarios
        .iter()
        .filter_map(|(name, environment)| run_scenario(name, folder, environment).err())
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

#[test]
fn devices_are_found_or_the_reason_is_reported() {
    let empty = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let short = tempfile::tempdir().unwrap();
    compile_library(folder.path(), DRIVER, "libcuda.cpp", &[]);
    compile_library(short.path(), DRIVER, "short.cpp", &[]);
    if !Path::new("/dev/nvidiactl").exists() {
        run_scenarios(empty.path(), &[("no-library", &[])]);
    }
    run_scenarios(short.path(), &[("a-library-that-is-too-old", &[])]);
    run_scenarios(
        folder.path(),
        &[
            ("a-stub", &[("HTC_FAKE", "stub")]),
            ("a-driver-without-devices", &[("HTC_FAKE", "no-device")]),
            ("no-devices", &[("HTC_FAKE", "none")]),
            ("an-old-device", &[("HTC_FAKE", "old")]),
            ("a-full-device", &[("HTC_FAKE", "full")]),
            ("devices-by-index-and-identifier", &[]),
        ],
    );
}

#[test]
fn device_operations_run_in_order() {
    let folder = tempfile::tempdir().unwrap();
    compile_library(folder.path(), DRIVER, "libcuda.cpp", &[]);
    run_scenarios(
        folder.path(),
        &[
            ("code", &[]),
            ("code-as-text", &[("HTC_FAKE", "no-cubin")]),
            (
                "code-that-does-not-load",
                &[("HTC_FAKE", "no-cubin no-ptx")],
            ),
            ("operations", &[]),
            ("operations", &[("HTC_FAKE", "no-pools")]),
            ("copies", &[]),
            ("copies-in-parts", &[]),
            ("memory-that-is-full", &[("HTC_FAKE_MEMORY", "1000000")]),
            ("shared-memory", &[]),
            ("errors-of-kernels", &[]),
            ("steps", &[]),
            ("steps-that-are-not-updated", &[("HTC_FAKE", "no-update")]),
            ("steps-that-change-in-part", &[]),
            ("steps-of-many-kinds", &[]),
            ("launches-that-begin-early", &[]),
            ("launches-that-may-not", &[("HTC_FAKE", "no-overlap")]),
            ("steps-without-graphs", &[("HTC_FAKE", "no-graphs")]),
            ("steps-that-end-early", &[]),
            ("what-a-step-still-needs", &[]),
            ("threads", &[]),
        ],
    );
}

#[test]
fn gpu_tests_pass_on_the_mock_driver() {
    let folder = tempfile::tempdir().unwrap();
    for (name, source) in [
        (DRIVER, "libcuda.cpp"),
        (BLAS, "libcublas.cpp"),
        (SOLVER, "libcusolver.cpp"),
        ("libnvrtc.so", "libnvrtc.cpp"),
    ] {
        compile_library(folder.path(), name, source, &[]);
    }
    let run = Command::new(std::env::current_exe().unwrap())
        // The mock libraries are single-threaded.
        .args(["device::", "--test-threads=1"])
        .env("LD_LIBRARY_PATH", folder.path())
        .env("HTC_NEED_CUDA", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{said}");
    assert!(said.contains("test device::bytes_come_back_as_they_went ... ok"));
}

#[test]
fn linear_algebra_uses_the_libraries() {
    let folder = tempfile::tempdir().unwrap();
    compile_library(folder.path(), DRIVER, "libcuda.cpp", &[]);
    let at = |name: &str| folder.path().join(name);
    let known = Command::new("/sbin/ldconfig").arg("-p").output();
    let known = known.map_or_else(|_| Vec::new(), |output| output.stdout);
    let known = String::from_utf8_lossy(&known);
    let known = |library: &str| known.contains(library);
    if !known(BLAS) {
        run_scenarios(folder.path(), &[("no-blas", &[])]);
    }
    compile_library(folder.path(), BLAS, "libcublas.cpp", &[]);
    if !known(SOLVER) {
        run_scenarios(folder.path(), &[("no-solver", &[])]);
    }
    compile_library(folder.path(), SOLVER, "libcusolver.cpp", &["-DHTC_SHORT"]);
    run_scenarios(folder.path(), &[("a-solver-that-is-too-old", &[])]);
    compile_library(folder.path(), SOLVER, "libcusolver.cpp", &[]);
    std::fs::rename(at(BLAS), at("whole")).unwrap();
    compile_library(folder.path(), BLAS, "libcublas.cpp", &["-DHTC_SHORT"]);
    run_scenarios(folder.path(), &[("a-blas-that-is-too-old", &[])]);
    std::fs::rename(at("whole"), at(BLAS)).unwrap();
    run_scenarios(
        folder.path(),
        &[
            (
                "a-blas-that-does-not-start",
                &[("HTC_FAKE", "no-start-of-blas")],
            ),
            (
                "a-solver-that-does-not-start",
                &[("HTC_FAKE", "no-start-of-solver")],
            ),
            ("no-room-to-start", &[("HTC_FAKE", "no-room-for-blas")]),
            ("no-room-to-start", &[("HTC_FAKE", "no-room-for-solver")]),
            ("no-room-to-start", &[("HTC_FAKE", "no-parameters")]),
            ("eigenvalues", &[]),
            ("eigenvalues", &[("HTC_FAKE", "no-pools")]),
            ("singular-values", &[]),
            ("singular-values", &[("HTC_FAKE", "no-pools")]),
            ("products", &[]),
            ("sums-of-products", &[]),
            ("sums-of-products", &[("HTC_FAKE", "no-pools")]),
            ("shapes-that-do-not-fit", &[]),
            ("no-convergence", &[("HTC_FAKE", "no-convergence")]),
            ("numbers-that-are-not-finite", &[]),
            (
                "an-argument-that-is-not-valid",
                &[("HTC_FAKE", "an-argument")],
            ),
            (
                "libraries-that-fail",
                &[("HTC_FAKE", "blas-fails solver-fails")],
            ),
            (
                "linear-algebra-without-room",
                &[("HTC_FAKE_MEMORY", "300000")],
            ),
            ("linear-algebra-behind-a-step", &[]),
            ("linear-algebra-of-threads", &[]),
            ("a-kernel-of-the-libraries", &[("HTC_FAKE", "their-kernel")]),
        ],
    );
}
