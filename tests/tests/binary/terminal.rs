//! On a terminal: progress, and no waiting for a prompt. `script` makes the terminal.

use std::path::Path;
use std::process::{Command, Stdio};

use htc_tests::material::demo;
use htc_tests::{Scratch, binary};

/// What a command shows on a terminal, and its exit code; `None` without `script`.
fn on_terminal(arguments: &[&Path]) -> Option<(String, Option<i32>)> {
    let quoted = |path: &Path| format!("'{}'", path.display());
    let command: Vec<String> = std::iter::once(binary::path().as_path())
        .chain(arguments.iter().copied())
        .map(quoted)
        .collect();
    let run = Command::new("script")
        .args(["-q", "-e", "-c", &command.join(" "), "/dev/null"])
        .stdin(Stdio::null())
        .output();
    match run {
        Ok(run) => Some((String::from_utf8(run.stdout).unwrap(), run.status.code())),
        Err(error) => {
            eprintln!("skipped: script: {error}");
            None
        }
    }
}

#[test]
fn compiling_shows_its_progress_slot_by_slot() {
    let scratch = Scratch::new();
    let (model, output) = (demo("reference-7m-f16.gguf"), scratch.path("out.htz"));
    let arguments = [
        "compile".as_ref(),
        model.as_path(),
        "-o".as_ref(),
        output.as_path(),
    ];
    let Some((shown, code)) = on_terminal(&arguments) else {
        return;
    };
    assert_eq!(code, Some(0), "{shown}");
    // What is shown is refreshed some times a second, so not every slot is seen.
    let layers = (0..8).filter(|layer| shown.contains(&format!("layer {layer}:")));
    assert!(layers.count() >= 1, "{shown}");
}

#[test]
fn a_prompt_is_not_waited_for() {
    let model = demo("reference-7m-f16.gguf");
    let Some((shown, code)) = on_terminal(&["run".as_ref(), model.as_path()]) else {
        return;
    };
    assert_eq!(code, Some(2), "{shown}");
    assert!(
        shown.contains("-p") && shown.contains("--prompt-file"),
        "{shown}"
    );
}
