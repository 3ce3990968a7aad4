//! Ctrl-C and its relatives in the middle of compiling.

use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use htc_tests::binary::wait;
use htc_tests::scratch::names_in;
use htc_tests::{Scratch, TinyModel, htc};

/// A model that takes seconds: every slot is a large decomposition.
fn large() -> Vec<u8> {
    let tiny = TinyModel {
        layers: 8,
        width: 512,
        heads: 8,
        kv_heads: 8,
        head_size: 64,
        ffn: 1024,
        ..TinyModel::default()
    };
    tiny.bytes()
}

/// Waits until the folder holds something.
fn wait_for_a_file(folder: &Path) {
    let started = Instant::now();
    while names_in(folder).is_empty() {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "nothing was begun"
        );
        sleep(Duration::from_millis(2));
    }
}

fn interrupted_by(signal: &str) {
    let (source, target) = (Scratch::new(), Scratch::new());
    let model = source.file("model.gguf", large());
    let output = target.path("out.htz");
    let mut child = htc!["compile", &model, "-o", &output, "--threads", "2"].spawn();
    wait_for_a_file(target.folder());
    sleep(Duration::from_millis(50));
    assert!(
        child.try_wait().unwrap().is_none(),
        "finished before the signal"
    );
    assert!(!output.exists(), "the name is taken before the end");
    send(signal, &child);
    let status = wait(&mut child, Duration::from_secs(10), "interrupted htc");
    assert!(!status.success(), "{status}");
    assert_ne!(status.code(), Some(101), "a panic");
    target.holds_only(&[]);
    source.holds_only(&["model.gguf"]);
}

#[test]
fn sigint_leaves_nothing_behind() {
    interrupted_by("-INT");
}

#[test]
fn sigterm_leaves_nothing_behind() {
    interrupted_by("-TERM");
}

/// A terminal that closes.
#[test]
fn sighup_leaves_nothing_behind() {
    interrupted_by("-HUP");
}

/// What was there before stays until it is replaced.
#[test]
fn an_interrupted_replacement_leaves_the_old_artifact() {
    let (source, target) = (Scratch::new(), Scratch::new());
    let model = source.file("model.gguf", large());
    let output = target.file("out.htz", "old");
    let mut child = htc![
        "compile",
        &model,
        "-o",
        &output,
        "--force",
        "--threads",
        "2"
    ]
    .spawn();
    let started = Instant::now();
    while target.names().len() < 2 {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "nothing was begun"
        );
        sleep(Duration::from_millis(2));
    }
    send("-INT", &child);
    wait(&mut child, Duration::from_secs(10), "interrupted htc");
    target.holds_only(&["out.htz"]);
    assert_eq!(std::fs::read(&output).unwrap(), b"old");
}

/// The shell has `kill` built in; the program of that name need not be there.
fn send(signal: &str, child: &std::process::Child) {
    let pid = child.id().to_string();
    let mut shell = Command::new("sh");
    let sent = shell
        .args(["-c", "kill \"$@\"", "sh", signal, &pid])
        .status();
    assert!(sent.unwrap().success());
}
