//! The compiler called from another program.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

#[path = "../examples/build_script.rs"]
mod build_script;

use std::fs;
use std::path::{Path, PathBuf};

use htc::request::{Budget, Method, Planning};
use htc::{Cancel, CompileError, Compiler, Event};

fn demo(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../assets/demo")
        .join(name)
}

#[test]
fn a_build_script_compiles_and_names_what_it_depends_on() {
    let folder = tempfile::tempdir().unwrap();
    let (model, artifact) = (demo("reference-7m-f16.gguf"), folder.path().join("m.htz"));
    let lines = build_script::build(&model, &artifact).unwrap();
    assert_eq!(
        lines[0],
        format!("cargo::rerun-if-changed={}", model.display())
    );
    let after = fs::metadata(&artifact).unwrap().len();
    assert!(after < fs::metadata(&model).unwrap().len());
    assert!(lines.iter().any(|line| line.contains(&after.to_string())));
}

#[test]
fn what_is_not_said_has_the_defaults_of_the_command_line() {
    let options = Compiler::new("a.gguf", "a.htz").options();
    let Planning::Make { request, .. } = options.planning else {
        panic!("a plan of a file");
    };
    assert_eq!(request.method, Method::PerSlot);
    assert_eq!(request.budget, Budget::Ratio(0.9));
    assert!(options.calibration.is_none() && !options.overwrite);
}

#[test]
fn texts_and_plans_are_inputs_too() {
    let compiler = Compiler::new(demo("reference-7m-f16.gguf"), "a.htz")
        .calibration(demo("alice.txt"))
        .held_out(demo("time_machine.txt"))
        .plan("plan.json");
    let inputs = compiler.inputs().unwrap();
    for input in [
        demo("reference-7m-f16.gguf"),
        demo("alice.txt"),
        demo("time_machine.txt"),
        "plan.json".into(),
    ] {
        assert!(inputs.contains(&input), "{}", input.display());
    }
}

/// What is finished stays in the work folder, and the same compilation goes on with it.
#[test]
fn a_cancelled_compilation_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let artifact = folder.path().join("m.htz");
    let cancel = Cancel::default();
    let compiler = Compiler::new(demo("reference-7m-f16.gguf"), &artifact)
        .ratio(0.5)
        .cancelled_by(&cancel);
    let ended = compiler.run_with(|event| {
        if let Event::Done(_) = event {
            cancel.cancel();
        }
    });
    assert!(
        matches!(ended, Err(CompileError::Cancelled(_))),
        "{ended:?}"
    );
    assert!(!artifact.exists());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    let report = Compiler::new(demo("reference-7m-f16.gguf"), &artifact)
        .ratio(0.5)
        .run()
        .unwrap();
    assert_eq!(report.bytes.after, fs::metadata(&artifact).unwrap().len());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}
