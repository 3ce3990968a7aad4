//! Example of a `build.rs` that ships a compressed model.
//!
//! usage: build_script MODEL ARTIFACT

use std::path::Path;
use std::process::ExitCode;

use htc::{CompileError, Compiler, Event};

/// Compiles `model` into `artifact` and returns the lines that a build script prints.
pub fn build(model: &Path, artifact: &Path) -> Result<Vec<String>, CompileError> {
    let compiler = Compiler::new(model, artifact)
        .cache(artifact.with_extension("cache"))
        .overwrite(true);
    let inputs = compiler.inputs()?;
    let mut lines: Vec<String> = inputs
        .iter()
        .map(|input| format!("cargo::rerun-if-changed={}", input.display()))
        .collect();
    let report = compiler.run_with(|event| {
        if let Event::Warning(said) = event {
            println!("cargo::warning={said}");
        }
    })?;
    lines.push(format!("cargo::rustc-env=MODEL={}", artifact.display()));
    lines.push(format!(
        "cargo::warning={} of {} bytes",
        report.bytes.after, report.bytes.before
    ));
    Ok(lines)
}

#[allow(dead_code, reason = "a test calls build")]
fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(model), Some(artifact)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: build_script MODEL ARTIFACT");
        return ExitCode::from(2);
    };
    match build(model.as_ref(), artifact.as_ref()) {
        Ok(lines) => {
            lines.iter().for_each(|line| println!("{line}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
