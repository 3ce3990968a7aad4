use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use htc_tests::binary::wait;
use htc_tests::{Scratch, TinyModel, htc};

use super::{HANG_DEADLINE, Subject, WORK, fail_halfway};

#[test]
fn errors_keep_finished_work() {
    let subject = Subject::new();
    let expected = subject.expected(Subject::compile);
    let blocks = subject.fail_halfway(|| subject.compile());
    let journal = fs::read(subject.work_file("journal")).unwrap();
    assert!(!journal.is_empty());
    let further = subject.compile().file_blocks(blocks + 1).run();
    further.assert_refused(1, &["same command goes on", WORK]);
    assert!(
        fs::read(subject.work_file("journal"))
            .unwrap()
            .starts_with(&journal)
    );
    subject.compile().run().assert_ok();
    subject.assert_complete(&expected);
    subject
        .scratch
        .assert_only_files(&["model.gguf", "out.htz"]);
}

#[test]
fn without_a_state_folder_work_is_not_resumed() {
    let subject = Subject::new();
    let expected = subject.expected(Subject::compile);
    let without = || {
        let run = subject.compile().env("XDG_STATE_HOME", None);
        run.env("HOME", None)
    };
    let blocks = subject.fail_halfway(|| subject.compile());
    fs::remove_dir_all(subject.scratch.path(WORK)).unwrap();
    let failed = without().file_blocks(blocks).run();
    failed.assert_refused(1, &["out.htz"]);
    assert!(!failed.stderr.contains("kept"), "{}", failed.stderr);
    subject.scratch.assert_only_files(&["model.gguf"]);
    subject.fail_halfway(|| subject.compile());
    let outcome = without().run().assert_ok();
    assert!(
        outcome.stderr.contains("XDG_STATE_HOME"),
        "{}",
        outcome.stderr
    );
    subject.assert_complete(&expected);
}

#[test]
fn edited_model_files_are_read_again() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/architectures/llama");
    let scratch = Scratch::new();
    let folder = scratch.path("model");
    fs::create_dir(&folder).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.model"] {
        fs::copy(fixture.join(name), folder.join(name)).unwrap();
    }
    let template = folder.join("chat_template.jinja");
    fs::write(&template, "{{ messages[0].content }} old").unwrap();
    let output = scratch.path("out.htz");
    let compile = || {
        htc![
            "compile", "--method", "low-rank", &folder, "-o", &output, "--rank", "4"
        ]
    };
    fail_halfway(compile);
    fs::write(&template, "{{ messages[0].content }} new").unwrap();
    compile().run().assert_ok();
    let resumed = fs::read(&output).unwrap();
    fs::remove_file(&output).unwrap();
    compile().run().assert_ok();
    assert!(fs::read(&output).unwrap() == resumed);
    let again = scratch.path("again.htz");
    fs::write(&template, "{{ messages[0].content }} old").unwrap();
    htc![
        "compile", "--method", "low-rank", &folder, "-o", &again, "--rank", "4"
    ]
    .run()
    .assert_ok();
    assert!(fs::read(&again).unwrap() != resumed);
}

#[test]
fn source_changed_during_compilation_is_refused() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::large().bytes());
    let output = scratch.path("out.htz");
    let mut child = htc![
        "compile",
        "--method",
        "low-rank",
        &model,
        "-o",
        &output,
        "--threads",
        "2"
    ]
    .spawn();
    let begun = Instant::now();
    let journal = || -> u64 {
        let entries = fs::read_dir(scratch.path(WORK)).into_iter().flatten();
        let journals = entries.flatten().filter(|entry| {
            let path = entry.path();
            path.extension().is_some_and(|of| of == "journal")
        });
        journals
            .filter_map(|entry| Some(entry.metadata().ok()?.len()))
            .sum()
    };
    while journal() == 0 {
        assert!(begun.elapsed() < HANG_DEADLINE && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut file = File::options().write(true).open(&model).unwrap();
    file.seek(SeekFrom::End(-4)).unwrap();
    file.write_all(&[1]).unwrap();
    let status = wait(&mut child, Duration::from_secs(120), "compile");
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("model.gguf: it changed while"), "{said}");
    scratch.assert_only_files(&["model.gguf"]);
}

#[test]
fn abandoned_work_is_removed() {
    let subject = Subject::new();
    subject.fail_halfway(|| subject.compile());
    let month = Duration::from_secs(31 * 24 * 60 * 60);
    for entry in fs::read_dir(subject.scratch.path(WORK)).unwrap() {
        let file = File::options().write(true).open(entry.unwrap().path());
        file.unwrap()
            .set_modified(SystemTime::now() - month)
            .unwrap();
    }
    let other = subject.scratch.path("other.htz");
    let outcome = htc![
        "compile",
        "--method",
        "low-rank",
        &subject.model,
        "-o",
        &other,
        "--rank",
        "8"
    ]
    .run();
    let said = outcome.assert_ok().stderr;
    assert!(
        said.contains("note") && said.contains(WORK) && said.contains("30 days"),
        "{said}"
    );
    subject
        .scratch
        .assert_only_files(&["model.gguf", "other.htz"]);
}
