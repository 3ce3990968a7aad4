//! Caches shared by several users or processes.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, chown};

use super::Subject;

#[test]
fn lock_timeout_limits_the_wait() {
    let subject = Subject::new();
    subject.calibrated().run().assert_ok();
    fs::remove_file(&subject.output).unwrap();
    let lock = File::open(subject.cached_calibration().join("lock")).unwrap();
    lock.lock().unwrap();
    let outcome = subject.calibrated().args(["--lock-timeout", "1"]).run();
    assert_eq!(outcome.code(), Some(1), "{}", outcome.stderr);
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{}", outcome.stderr);
    assert!(
        lines[0].contains("waiting for it, 1 second"),
        "{}",
        lines[0]
    );
    assert!(
        lines[1].contains("still holds") && lines[1].contains("--lock-timeout"),
        "{}",
        lines[1]
    );
    let none = subject.calibrated().args(["--lock-timeout", "0"]).run();
    none.assert_refused(1, &["still holds"]);
    drop(lock);
    subject.calibrated().run().assert_ok();
}

#[test]
fn statistics_of_another_user_require_trust_cache() {
    let subject = Subject::new();
    let expected = subject.expected(Subject::calibrated);
    let entry = subject.cached_calibration();
    for place in [&entry, &entry.join("layer-0000")] {
        if chown(place, Some(65534), None).is_err() {
            eprintln!("skipped: only root may give a file to somebody else");
            return;
        }
    }
    let refused = subject.calibrated().run();
    refused.assert_refused(1, &["another user (65534)", "--trust-cache", "--cache"]);
    subject
        .calibrated()
        .args(["--trust-cache"])
        .run()
        .assert_ok();
    subject.assert_complete(&expected);
    fs::remove_file(&subject.output).unwrap();
    chown(&entry, Some(0), None).unwrap();
    let outcome = subject.calibrated().run().assert_ok();
    let said = outcome.stderr;
    assert!(
        said.contains("layer-0000") && said.contains("another user"),
        "{said}"
    );
    subject.assert_complete(&expected);
}

#[test]
fn folders_are_private() {
    let subject = Subject::new();
    subject.calibrated().run().assert_ok();
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let (cache, entry) = (subject.scratch.path("cache"), subject.cached_calibration());
    assert_eq!((mode(&cache), mode(&entry)), (0o700, 0o700));
    fs::set_permissions(&entry, fs::Permissions::from_mode(0o777)).unwrap();
    fs::remove_file(&subject.output).unwrap();
    subject.calibrated().run().assert_ok();
    assert_eq!(mode(&entry), 0o755);
    fs::remove_file(&subject.output).unwrap();
    subject.fail_halfway(|| subject.compile());
    assert_eq!(mode(&subject.scratch.path(super::WORK)), 0o700);
}
