//! `htc clean`: removes leftovers of earlier runs, and nothing else.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use htc_tests::{Htc, htc};

use super::{ForeignFolder, Subject, WORK};

fn set_age(folder: &Path, days: u64) {
    let age = Duration::from_secs(days * 24 * 60 * 60 + 60);
    for entry in fs::read_dir(folder).unwrap() {
        let file = File::options().write(true).open(entry.unwrap().path());
        file.unwrap().set_modified(SystemTime::now() - age).unwrap();
    }
}

fn clean(subject: &Subject, options: &[&str]) -> Htc {
    let run = htc!["clean", subject.scratch.folder(), "--cache"];
    run.arg(subject.scratch.path("cache")).args(options)
}

#[test]
fn old_work_and_statistics_are_removed() {
    let subject = Subject::new();
    let precious = ForeignFolder::new(&subject.scratch);
    let said = clean(&subject, &[]).run().assert_ok().text().to_owned();
    assert!(said.contains("nothing is 30 days old"), "{said}");
    subject.calibrated().run().assert_ok();
    fs::remove_file(&subject.output).unwrap();
    subject.fail_halfway(|| subject.compile());
    let unfinished = ".htc-0123456789abcdef.unfinished";
    let file = File::create(subject.scratch.path(unfinished)).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(7200))
        .unwrap();
    let link = subject.scratch.path(".link.htc-work");
    std::os::unix::fs::symlink(&precious.0, &link).unwrap();
    set_age(&subject.scratch.path(WORK), 10);
    set_age(&subject.cached_calibration(), 20);
    let before = subject.scratch.names();
    let said = clean(&subject, &["--older-than", "15"])
        .args(["--dry-run"])
        .run()
        .assert_ok()
        .text()
        .to_owned();
    assert!(
        said.contains("would remove") && said.contains("calibration-"),
        "{said}"
    );
    assert!(said.contains("20 days") && !said.contains(WORK), "{said}");
    let json = clean(&subject, &["--older-than", "15", "--dry-run", "--json"]);
    let json = json.run().json();
    assert_eq!(json["dry_run"], true);
    assert_eq!(json["removed"][0]["days"], 20);
    assert_eq!(json["removed"][0]["bytes"], json["bytes"]);
    assert_eq!(subject.scratch.names(), before);
    subject.cached_calibration();
    clean(&subject, &["--older-than", "15"]).run().assert_ok();
    assert_eq!(subject.scratch.names(), before);
    assert_eq!(
        fs::read_dir(subject.scratch.path("cache")).unwrap().count(),
        0
    );
    let lock = File::open(subject.scratch.path(WORK).join("lock")).unwrap();
    lock.lock().unwrap();
    let said = clean(&subject, &["--older-than", "0"])
        .run()
        .assert_ok()
        .text()
        .to_owned();
    assert!(said.contains(unfinished) && !said.contains(WORK), "{said}");
    drop(lock);
    let said = clean(&subject, &["--older-than", "0"])
        .run()
        .assert_ok()
        .text()
        .to_owned();
    assert!(said.contains(WORK), "{said}");
    let left = [
        ".link.htc-work",
        "cache",
        "model.gguf",
        "precious",
        "text.txt",
    ];
    subject.scratch.assert_only_files(&left);
    precious.assert_untouched();
}

#[test]
fn missing_folder_is_an_error() {
    let subject = Subject::new();
    let run = htc!["clean", subject.scratch.path("no"), "--older-than", "0"];
    run.run().assert_refused(1, &["/no"]);
}
