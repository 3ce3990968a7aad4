//! Texts and prompts that cannot be used.

use std::path::PathBuf;
use std::process::Command;

use htc_tests::material::words;
use htc_tests::{Htc, Scratch, TinyModel, binary, htc};

use super::assert_refused;

fn model() -> (Scratch, PathBuf) {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    (scratch, model)
}

fn readers(model: &PathBuf, text: &PathBuf) -> [Htc; 3] {
    [
        htc!["eval", model, "--text", text, "--context", "16"],
        htc!["tokenize", model, "--text", text, "--json"],
        htc!["run", model, "--file", text, "-n", "2"],
    ]
}

#[test]
fn text_shorter_than_a_window() {
    let (scratch, model) = model();
    for (text, context) in [
        (String::new(), "16"),
        (words(20), "128"),
        (words(100), "256"),
    ] {
        let text = scratch.file("short.txt", text);
        let run = htc![
            "eval",
            &model,
            "--text",
            &text,
            "--context",
            context,
            "--json"
        ];
        assert_refused(run, 1, &["short.txt", context, "longer text", "--ctx-size"]);
    }
}

#[test]
fn missing_text() {
    let (scratch, model) = model();
    for run in readers(&model, &scratch.path("missing.txt")) {
        assert_refused(run, 1, &["missing.txt", "no such file"]);
    }
}

#[test]
fn text_that_is_a_folder() {
    let (scratch, model) = model();
    let folder = scratch.path("folder");
    std::fs::create_dir(&folder).unwrap();
    for run in readers(&model, &folder) {
        assert_refused(run, 1, &["folder: cannot be read", "this is a folder"]);
    }
}

#[test]
fn text_that_is_not_utf8() {
    let (scratch, model) = model();
    let mut bytes = words(60).into_bytes();
    bytes[123] = 0xe9;
    let text = scratch.file("latin1.txt", bytes);
    for run in readers(&model, &text) {
        assert_refused(run, 1, &["latin1.txt", "UTF-8", "123"]);
    }
    let run = htc!["run", &model, "-n", "2"].stdin(&b"caf\xe9"[..]);
    assert_refused(run, 1, &["standard input", "UTF-8", "3"]);
}

#[test]
fn text_without_end() {
    let (_scratch, model) = model();
    // Standard input may be a device.
    let limited = "ulimit -v 4194304 && exec \"$0\" tokenize \"$1\" --text /dev/stdin </dev/zero";
    let outcome = Command::new("sh")
        .args(["-c", limited])
        .args([binary::path(), model])
        .output()
        .unwrap();
    let said = String::from_utf8(outcome.stderr).unwrap();
    assert_eq!(outcome.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.contains("/dev/stdin") && said.contains("1073741824"),
        "{said}"
    );
}
