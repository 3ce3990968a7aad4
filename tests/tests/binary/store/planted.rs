//! Links, pipes and forgeries in place of the program's own files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::{ForeignFolder, HANG_DEADLINE, Subject, WORK, pipe};

#[test]
fn link_in_place_of_a_folder_is_refused() {
    let subject = Subject::new();
    let precious = ForeignFolder::new(&subject.scratch);
    subject.calibrated().run().assert_ok();
    let entry = subject.cached_calibration();
    fs::remove_dir_all(&entry).unwrap();
    symlink(&precious.0, &entry).unwrap();
    fs::remove_file(&subject.output).unwrap();
    let refused = subject.calibrated().run();
    refused.assert_refused(1, &["calibration-", "a link", "remove it", "--cache"]);
    precious.assert_untouched();

    symlink(&precious.0, subject.scratch.path(WORK)).unwrap();
    let refused = subject.compile().run();
    refused.assert_refused(1, &[WORK, "a link", "remove it"]);
    precious.assert_untouched();
    assert!(!subject.output.exists());
}

#[test]
fn links_and_pipes_in_place_of_files_are_refused() {
    let subject = Subject::new();
    let precious = ForeignFolder::new(&subject.scratch);
    let plant = |place: &Path, kind: usize| {
        let _ = fs::remove_file(place);
        match kind {
            0 => symlink(precious.file(), place).unwrap(),
            1 => fs::hard_link(precious.file(), place).unwrap(),
            _ => pipe(place),
        }
    };
    for extension in ["journal", "partial"] {
        for kind in 0..3 {
            subject.fail_halfway(|| subject.compile());
            plant(&subject.work_file(extension), kind);
            let refused = subject.compile().run();
            refused.assert_refused(1, &[extension, "remove"]);
            precious.assert_untouched();
            let _ = fs::remove_dir_all(subject.scratch.path(WORK));
        }
    }
    subject.fail_halfway(|| subject.compile());
    let lock = subject.scratch.path(WORK).join("lock");
    for kind in 0..3 {
        plant(&lock, kind);
        subject
            .compile()
            .run()
            .assert_refused(1, &["lock", "remove"]);
        precious.assert_untouched();
    }
    fs::remove_file(&lock).unwrap();
    subject.compile().run().assert_ok();

    fs::remove_file(&subject.output).unwrap();
    let expected = subject.expected(Subject::calibrated);
    let lock = subject.cached_calibration().join("lock");
    for kind in 0..3 {
        plant(&lock, kind);
        subject
            .calibrated()
            .run()
            .assert_refused(1, &["lock", "remove"]);
        precious.assert_untouched();
    }
    fs::remove_file(&lock).unwrap();
    for kind in [0, 2] {
        plant(&subject.cached_calibration().join("layer-0001"), kind);
        let outcome = subject
            .calibrated()
            .deadline(HANG_DEADLINE)
            .run()
            .assert_ok();
        assert!(outcome.stderr.contains("layer-0001"), "{}", outcome.stderr);
        precious.assert_untouched();
        subject.assert_complete(&expected);
        fs::remove_file(&subject.output).unwrap();
    }
}

#[test]
fn foreign_work_folder_is_not_resumed() {
    let subject = Subject::new();
    let expected = subject.expected(Subject::compile);
    let elsewhere = subject.scratch.path("state");
    let theirs = || subject.compile().env("XDG_STATE_HOME", Some(&elsewhere));
    subject.fail_halfway(theirs);
    let outcome = subject.compile().run().assert_ok();
    let said = &outcome.stderr;
    assert!(
        said.contains("was not written by this user's htc"),
        "{said}"
    );
    subject.assert_complete(&expected);
    fs::remove_file(&subject.output).unwrap();
    subject.fail_halfway(theirs);
    let outcome = theirs().run().assert_ok();
    assert!(!outcome.stderr.contains("htc: "), "{}", outcome.stderr);
    subject.assert_complete(&expected);
}

#[test]
fn foreign_artifact_is_not_used() {
    let subject = Subject::new();
    let expected = subject.expected(Subject::compile);
    let other = subject.compile().args(["--projections", "q"]);
    other.run().assert_ok();
    let foreign = fs::read(&subject.output).unwrap();
    fs::remove_file(&subject.output).unwrap();
    subject.fail_halfway(|| subject.compile());
    let place = subject.work_file("partial").with_extension("htz");
    for bytes in [&foreign, &expected] {
        fs::write(&place, bytes).unwrap();
        subject.compile().run().assert_ok();
        subject.assert_complete(&expected);
        fs::remove_file(&subject.output).unwrap();
        subject.fail_halfway(|| subject.compile());
    }
}

#[test]
fn replaced_tensors_are_not_used() {
    let subject = Subject::new();
    let expected = subject.expected(Subject::compile);
    subject.fail_halfway(|| subject.compile());
    let partial = subject.work_file("partial");
    let mut bytes = fs::read(&partial).unwrap();
    bytes.iter_mut().skip(20_000).for_each(|byte| *byte ^= 0x11);
    fs::write(&partial, bytes).unwrap();
    subject.compile().run().assert_ok();
    subject.assert_complete(&expected);
}
