//! Interruptions of a compilation by signals.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use htc_tests::binary::wait;
use htc_tests::scratch::names_in;
use htc_tests::{Scratch, TinyModel, htc};

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

const WORK: &str = ".out.htz.htc-work";

fn journal_in(target: &Scratch) -> String {
    let entries = fs::read_dir(target.path(WORK)).into_iter().flatten();
    let mut paths = entries.map(|entry| entry.unwrap().path());
    let found = paths.find(|path| path.extension().is_some_and(|e| e == "journal"));
    found.map_or_else(String::new, |path| fs::read_to_string(path).unwrap())
}

fn wait_for_a_tensor(target: &Scratch) {
    let started = Instant::now();
    while !journal_in(target).contains('\n') {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "nothing was finished"
        );
        sleep(Duration::from_millis(2));
    }
}

fn undisturbed(model: &Path) -> Vec<u8> {
    let scratch = Scratch::new();
    let output = scratch.path("out.htz");
    htc!["compile", "--method", "low-rank", model, "-o", &output]
        .run()
        .assert_ok();
    fs::read(output).unwrap()
}

fn interrupted_by(signal: &str) {
    let (source, target) = (Scratch::new(), Scratch::new());
    let model = source.file("model.gguf", TinyModel::large().bytes());
    let output = target.path("out.htz");
    let command = || {
        htc![
            "compile",
            "--method",
            "low-rank",
            &model,
            "-o",
            &output,
            "--threads",
            "2"
        ]
    };
    let mut child = command().spawn();
    wait_for_a_tensor(&target);
    assert!(
        child.try_wait().unwrap().is_none(),
        "finished before the signal"
    );
    assert!(!output.exists(), "the name is taken before the end");
    send(signal, &child);
    let status = wait(&mut child, Duration::from_secs(10), "interrupted htc");
    assert!(!status.success(), "{status}");
    assert_ne!(status.code(), Some(101), "a panic");
    target.assert_only_files(&[WORK]);
    source.assert_only_files(&["model.gguf"]);
    command().run().assert_ok();
    target.assert_only_files(&["out.htz"]);
    assert!(fs::read(&output).unwrap() == undisturbed(&model));
}

#[test]
fn same_command_resumes_after_sigint() {
    interrupted_by("-INT");
}

#[test]
fn same_command_resumes_after_sigterm() {
    interrupted_by("-TERM");
}

#[test]
fn same_command_resumes_after_sighup() {
    interrupted_by("-HUP");
}

#[test]
fn resume_after_sigkill_gives_identical_bytes() {
    let (source, target) = (Scratch::new(), Scratch::new());
    let model = source.file("model.gguf", TinyModel::large().bytes());
    let output = target.path("out.htz");
    let command = |threads: &str| {
        htc![
            "compile",
            "--method",
            "low-rank",
            &model,
            "-o",
            &output,
            "--threads",
            threads
        ]
    };
    let journal = || journal_in(&target);
    let mut kills = 0;
    for more in [1, 9, 30] {
        let before = journal();
        let mut child = command("2").spawn();
        let started = Instant::now();
        while journal().lines().count() < before.lines().count() + more {
            assert!(child.try_wait().unwrap().is_none(), "finished too soon");
            assert!(started.elapsed() < Duration::from_secs(60), "no progress");
            sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(journal().starts_with(&before));
        assert!(!output.exists());
        kills += 1;
    }
    assert_eq!(kills, 3);
    command("1").run().assert_ok();
    target.assert_only_files(&["out.htz"]);
    assert!(fs::read(&output).unwrap() == undisturbed(&model));
}

#[test]
fn only_intact_work_of_the_same_command_is_resumed() {
    let (source, target) = (Scratch::new(), Scratch::new());
    let model = source.file("model.gguf", TinyModel::large().bytes());
    let output = target.path("out.htz");
    let command = |options: &[&str]| {
        htc!["compile", "--method", "low-rank", &model, "-o", &output].args(options)
    };
    let mut child = command(&[]).spawn();
    wait_for_a_file(target.folder());
    let partial = || {
        let entries = fs::read_dir(target.path(WORK)).unwrap();
        let mut paths = entries.map(|entry| entry.unwrap().path());
        paths.find(|path| path.extension().is_some_and(|e| e == "partial"))
    };
    let started = Instant::now();
    while partial().is_none_or(|path| fs::metadata(path).unwrap().len() < 2_000_000) {
        assert!(started.elapsed() < Duration::from_secs(60), "no progress");
        sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let path = partial().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    for byte in bytes.iter_mut().skip(300_000).step_by(10_000) {
        *byte ^= 0x55;
    }
    fs::write(&path, bytes).unwrap();
    let work = fs::read_dir(target.path(WORK)).unwrap().count();
    assert!(work >= 3, "{work}");
    let copy = Scratch::new();
    copy_folder(&target.path(WORK), &copy.path("work"));
    command(&["--ratio", "0.5"]).run().assert_ok();
    target.assert_only_files(&["out.htz"]);
    let other = Scratch::new();
    htc![
        "compile",
        "--method",
        "low-rank",
        &model,
        "-o",
        other.path("out.htz"),
        "--ratio",
        "0.5"
    ]
    .run()
    .assert_ok();
    assert!(fs::read(&output).unwrap() == fs::read(other.path("out.htz")).unwrap());
    fs::remove_file(&output).unwrap();
    copy_folder(&copy.path("work"), &target.path(WORK));
    command(&[]).run().assert_ok();
    target.assert_only_files(&["out.htz"]);
    assert!(fs::read(&output).unwrap() == undisturbed(&model));
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

#[test]
fn concurrent_compilation_of_the_same_artifact_is_refused() {
    let (source, target) = (Scratch::new(), Scratch::new());
    let model = source.file("model.gguf", TinyModel::large().bytes());
    let text = source.file("text.txt", "the cat sat on the hat ".repeat(200));
    let cache = source.path("cache");
    let output = target.path("out.htz");
    let command = || {
        htc![
            "compile",
            "--method",
            "low-rank",
            &model,
            "-o",
            &output,
            "--threads",
            "1"
        ]
    };
    let mut first = command().spawn();
    wait_for_a_tensor(&target);
    let calibrated = [
        "--calibration".as_ref(),
        text.as_path(),
        "--cache".as_ref(),
        &cache,
    ];
    let second = command().args(calibrated).run();
    assert!(first.try_wait().unwrap().is_none(), "finished too soon");
    second.assert_refused(
        1,
        &[
            "out.htz",
            "another htc is making this artifact; wait for it",
        ],
    );
    assert!(!cache.exists(), "calibrated");
    assert!(wait(&mut first, Duration::from_secs(60), "the first").success());
    target.assert_only_files(&["out.htz"]);
    assert!(fs::read(&output).unwrap() == undisturbed(&model));
}

#[test]
fn interrupted_replacement_keeps_the_old_artifact() {
    let (source, target) = (Scratch::new(), Scratch::new());
    let model = source.file("model.gguf", TinyModel::large().bytes());
    let output = target.file("out.htz", "old");
    let mut child = htc![
        "compile",
        "--method",
        "low-rank",
        &model,
        "-o",
        &output,
        "--force",
        "--threads",
        "2"
    ]
    .spawn();
    wait_for_a_tensor(&target);
    send("-INT", &child);
    wait(&mut child, Duration::from_secs(10), "interrupted htc");
    target.assert_only_files(&["out.htz", WORK]);
    assert_eq!(fs::read(&output).unwrap(), b"old");
}

/// The program `kill` may be missing.
fn send(signal: &str, child: &std::process::Child) {
    let pid = child.id().to_string();
    let mut shell = Command::new("sh");
    let sent = shell
        .args(["-c", "kill \"$@\"", "sh", signal, &pid])
        .status();
    assert!(sent.unwrap().success());
}
