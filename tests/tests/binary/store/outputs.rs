//! Output files are either complete or absent.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::Command;

use htc_tests::binary;
use htc_tests::{Scratch, TinyModel, htc};

use super::Subject;

#[test]
fn plans_and_analyses_are_complete_or_absent() {
    let subject = Subject::new();
    let output = subject.scratch.path("out.json");
    for command in ["plan", "analyse"] {
        let run = || htc![command, &subject.model, "-o", &output];
        let failed = run().file_blocks(0).run();
        assert_eq!(failed.code(), Some(1), "{}", failed.stderr);
        subject.scratch.assert_only_files(&["model.gguf"]);
        run().run().assert_ok();
        assert!(fs::metadata(&output).unwrap().len() > 100);
        fs::remove_file(&output).unwrap();
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn replaced_files_keep_their_permissions() {
    let subject = Subject::new();
    let report = subject.scratch.file("report.json", "old");
    let plan = subject.scratch.file("plan.json", "old");
    fs::write(&subject.output, "old").unwrap();
    for path in [&report, &plan, &subject.output] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let run = subject
        .compile()
        .arg("--force")
        .arg("--report")
        .arg(&report);
    run.run().assert_ok();
    let run = htc!["plan", &subject.model, "-o", &plan, "--force"];
    run.run().assert_ok();
    for path in [&report, &plan, &subject.output] {
        assert_eq!(mode(path), 0o600, "{}", path.display());
        assert!(fs::metadata(path).unwrap().len() > 3);
    }
    let other = subject.scratch.path("other.htz");
    let any = subject.scratch.file("any", "");
    htc!["compile", &subject.model, "-o", &other, "--rank", "8"]
        .run()
        .assert_ok();
    assert_eq!(mode(&other), mode(&any));
}

#[test]
fn long_report_names_are_accepted_or_refused_early() {
    let subject = Subject::new();
    let longest = subject.scratch.path(&"r".repeat(255));
    subject
        .compile()
        .arg("--report")
        .arg(&longest)
        .run()
        .assert_ok();
    assert!(fs::metadata(&longest).unwrap().len() > 100);
    fs::remove_file(&subject.output).unwrap();
    let beyond = subject.scratch.path(&"r".repeat(256));
    let run = subject.compile().arg("--report").arg(&beyond).run();
    run.assert_refused(1, &["cannot be written"]);
    let run = htc!["plan", &subject.model, "-o", &beyond].run();
    run.assert_refused(1, &["cannot be written"]);
    assert!(!subject.output.exists());
}

#[test]
fn pipe_in_place_of_a_report_is_refused() {
    let subject = Subject::new();
    let report = subject.scratch.path("report");
    super::pipe(&report);
    let outcome = subject.compile().arg("--report").arg(&report).run();
    assert_eq!(outcome.code(), Some(1), "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("nobody reads"),
        "{}",
        outcome.stderr
    );
    htc!["verify", &subject.output].run().assert_ok();
}

#[test]
fn unreadable_output_folder_works() {
    let (source, target) = (Scratch::new(), Scratch::new());
    let model = source.file("model.gguf", TinyModel::default().bytes());
    fs::set_permissions(source.folder(), fs::Permissions::from_mode(0o755)).unwrap();
    let output = target.path("out.htz");
    let mut run = htc!["compile", &model, "-o", &output, "--rank", "8"];
    if chown(target.folder(), Some(65534), Some(65534)).is_ok() {
        let mut probe = Command::new(binary::path());
        std::os::unix::process::CommandExt::uid(&mut probe, 65534);
        if probe.arg("--version").output().is_err() {
            eprintln!("skipped: root binds no permissions, and nobody may not run the binary");
            return;
        }
        run = run.as_user(65534);
    }
    fs::set_permissions(target.folder(), fs::Permissions::from_mode(0o300)).unwrap();
    let outcome = run.run().assert_ok();
    fs::set_permissions(target.folder(), fs::Permissions::from_mode(0o700)).unwrap();
    let said = outcome.stderr;
    assert!(said.contains("cannot be forced to the disk"), "{said}");
    htc!["verify", &output].run().assert_ok();
    target.assert_only_files(&["out.htz"]);
}
