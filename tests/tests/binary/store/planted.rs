//! Links, pipes and forgeries in place of the program's own files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::{Precious, SOON, Subject, WORK, pipe};

#[test]
fn link_in_place_of_a_folder_is_refused() {
    let subject = Subject::new();
    let precious = Precious::new(&subject.scratch);
    subject.calibrated().run().ok();
    let entry = subject.entry();
    fs::remove_dir_all(&entry).unwrap();
    symlink(&precious.0, &entry).unwrap();
    fs::remove_file(&subject.output).unwrap();
    let refused = subject.calibrated().run();
    refused.refused(1, &["calibration-", "a link", "remove it", "--cache"]);
    precious.is_untouched();

    symlink(&precious.0, subject.scratch.path(WORK)).unwrap();
    let refused = subject.compile().run();
    refused.refused(1, &[WORK, "a link", "remove it"]);
    precious.is_untouched();
    assert!(!subject.output.exists());
}

#[test]
fn links_and_pipes_in_place_of_files_are_refused() {
    let subject = Subject::new();
    let precious = Precious::new(&subject.scratch);
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
            plant(&subject.left(extension), kind);
            let refused = subject.compile().run();
            refused.refused(1, &[extension, "remove"]);
            precious.is_untouched();
            let _ = fs::remove_dir_all(subject.scratch.path(WORK));
        }
    }
    subject.fail_halfway(|| subject.compile());
    let lock = subject.scratch.path(WORK).join("lock");
    for kind in 0..3 {
        plant(&lock, kind);
        subject.compile().run().refused(1, &["lock", "remove"]);
        precious.is_untouched();
    }
    fs::remove_file(&lock).unwrap();
    subject.compile().run().ok();

    fs::remove_file(&subject.output).unwrap();
    let expected = subject.expected(Subject::calibrated);
    let lock = subject.entry().join("lock");
    for kind in 0..3 {
        plant(&lock, kind);
        subject.calibrated().run().refused(1, &["lock", "remove"]);
        precious.is_untouched();
    }
    fs::remove_file(&lock).unwrap();
    for kind in [0, 2] {
        plant(&subject.entry().join("layer-0001"), kind);
        let outcome = subject.calibrated().deadline(SOON).run().ok();
        assert!(outcome.stderr.contains("layer-0001"), "{}", outcome.stderr);
        precious.is_untouched();
        subject.is_complete(&expected);
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
    let outcome = subject.compile().run().ok();
    let said = &outcome.stderr;
    assert!(
        said.contains("was not written by this user's htc"),
        "{said}"
    );
    subject.is_complete(&expected);
    fs::remove_file(&subject.output).unwrap();
    subject.fail_halfway(theirs);
    let outcome = theirs().run().ok();
    assert!(!outcome.stderr.contains("htc: "), "{}", outcome.stderr);
    subject.is_complete(&expected);
}

#[test]
fn foreign_artifact_is_not_used() {
    let subject = Subject::new();
    let expected = subject.expected(Subject::compile);
    let other = subject.compile().args(["--slots", "q"]);
    other.run().ok();
    let foreign = fs::read(&subject.output).unwrap();
    fs::remove_file(&subject.output).unwrap();
    subject.fail_halfway(|| subject.compile());
    let place = subject.left("partial").with_extension("htz");
    for bytes in [&foreign, &expected] {
        fs::write(&place, bytes).unwrap();
        subject.compile().run().ok();
        subject.is_complete(&expected);
        fs::remove_file(&subject.output).unwrap();
        subject.fail_halfway(|| subject.compile());
    }
}

#[test]
fn replaced_tensors_are_not_used() {
    let subject = Subject::new();
    let expected = subject.expected(Subject::compile);
    subject.fail_halfway(|| subject.compile());
    let partial = subject.left("partial");
    let mut bytes = fs::read(&partial).unwrap();
    bytes.iter_mut().skip(20_000).for_each(|byte| *byte ^= 0x11);
    fs::write(&partial, bytes).unwrap();
    subject.compile().run().ok();
    subject.is_complete(&expected);
}
