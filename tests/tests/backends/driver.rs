//! The suite of a GPU through the driver's functions, on a device that is not there: whatever the backend asks of a driver is asked.

use htc_tests::machine::Machine;

/// Some of the suite: every operation, whole models, sessions, drafts. All of it takes minutes on one thread.
const PART: &[&str] = &["numbers_come_back_as_they_went_in"];

#[test]
fn the_suite_of_a_gpu_passes_through_a_driver() {
    let machine = Machine::new();
    let names = PART.iter().map(|name| format!("on::cuda::{name}"));
    let run = machine
        .program(&std::env::current_exe().unwrap())
        // Devices share what the driver keeps.
        .args(["--ignored", "--exact", "--test-threads=1"])
        .args(names)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{said}");
    let passed = format!("test result: ok. {} passed", PART.len());
    assert!(said.contains(&passed), "{said}");
    let called = machine.called();
    for asked in ["launch a graph of", "change a node", "load cubin"] {
        assert!(called.contains(asked), "{asked}");
    }
    machine.nothing_is_left();
}
