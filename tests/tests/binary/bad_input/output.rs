use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use htc_tests::binary;
use htc_tests::{Scratch, TinyModel, htc};

use super::assert_refused;

fn model(scratch: &Scratch) -> PathBuf {
    scratch.file("model.gguf", TinyModel::default().bytes())
}

#[test]
fn output_folder_missing() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let output = scratch.path("no/such/folder/out.htz");
    let words = ["no/such/folder", "does not exist", "create"];
    assert_refused(htc!["compile", &model, "-o", &output], 1, &words);
    scratch.assert_only_files(&["model.gguf"]);
}

#[test]
fn output_folder_is_a_file() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let output = model.join("out.htz");
    assert_refused(htc!["compile", &model, "-o", &output], 1, &["model.gguf"]);
    scratch.assert_only_files(&["model.gguf"]);
}

/// Even root cannot create files there.
#[test]
fn output_folder_of_the_system() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    for folder in ["/proc", "/sys"] {
        let output = format!("{folder}/out.htz");
        assert_refused(htc!["compile", &model, "-o", &output], 1, &[folder]);
        assert!(!fs::exists(&output).unwrap());
    }
    scratch.assert_only_files(&["model.gguf"]);
}

#[test]
fn output_folder_not_writable() {
    let (source, target) = (Scratch::new(), Scratch::new());
    let model = model(&source);
    let mode = |scratch: &Scratch, mode| {
        fs::set_permissions(scratch.folder(), fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&source, 0o755);
    mode(&target, 0o555);
    let output = target.path("out.htz");
    let run = htc!["compile", &model, "-o", &output];
    // Permissions do not restrict root.
    let root = fs::File::create(target.path("probe")).is_ok();
    let run = if root { run.as_user(65534) } else { run };
    if root {
        fs::remove_file(target.path("probe")).unwrap();
        let mut probe = Command::new(binary::path());
        std::os::unix::process::CommandExt::uid(&mut probe, 65534);
        if probe.arg("--version").output().is_err() {
            eprintln!("skipped: root binds no permissions, and nobody may not run the binary");
            return;
        }
    }
    let folder = target.folder().to_str().unwrap();
    run.run()
        .assert_refused(1, &[folder, "written", "choose another"]);
    mode(&target, 0o755);
    target.assert_only_files(&[]);
    source.assert_only_files(&["model.gguf"]);
}

#[test]
fn writing_fails_in_the_middle() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let output = scratch.path("out.htz");
    for blocks in [0, 1, 40, 150] {
        let run = htc!["compile", &model, "-o", &output, "--rank", "16"];
        let outcome = run.file_blocks(blocks).run();
        outcome.assert_refused(1, &["out.htz"]);
        if outcome.stderr.contains("kept in") {
            scratch.assert_only_files(&[".out.htz.htc-work", "model.gguf"]);
        } else {
            scratch.assert_only_files(&["model.gguf"]);
        }
    }
}

/// Needs a file system of 128 kB, if one can be mounted.
#[test]
fn disk_full() {
    for more in [None, Some("--dry-run")] {
        on_a_small_disk(more);
    }
}

fn on_a_small_disk(more: Option<&str>) {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let disk = scratch.path("disk");
    fs::create_dir(&disk).unwrap();
    let script = "mount -t tmpfs -o size=128k tmpfs \"$1\" || exit 77; shift; \
                  \"$@\"; code=$?; ls -A \"$0\"; exit $code";
    let output = disk.join("out.htz");
    let run = Command::new("unshare")
        .args(["-r", "-m", "sh", "-c", script])
        .arg(&disk)
        .arg(&disk)
        .arg(binary::path())
        .args(["compile", "--method", "low-rank"])
        .arg(&model)
        .arg("-o")
        .arg(&output)
        .args(more)
        .output();
    let run = match run {
        Ok(run) if !matches!(run.status.code(), Some(77)) && can_unshare() => run,
        _ => {
            eprintln!("skipped: no file system can be mounted here");
            return;
        }
    };
    let said = String::from_utf8(run.stderr).unwrap();
    assert_eq!(run.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.contains("out.htz") && said.contains("no space") && said.contains("131072 are free"),
        "{said}"
    );
    let left = String::from_utf8(run.stdout).unwrap();
    assert_eq!(left, "", "left on the full disk");
}

fn can_unshare() -> bool {
    let run = Command::new("unshare").args(["-r", "-m", "true"]).output();
    run.is_ok_and(|run| run.status.success())
}

#[test]
fn output_exists() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let output = scratch.file("out.htz", "precious");
    assert_refused(
        htc!["compile", &model, "-o", &output],
        1,
        &["out.htz", "exists", "--force"],
    );
    assert_eq!(fs::read(&output).unwrap(), b"precious");
    scratch.assert_only_files(&["model.gguf", "out.htz"]);
}

#[test]
fn failing_with_force_keeps_the_old_output() {
    let scratch = Scratch::new();
    let bytes = TinyModel::default().bytes();
    let truncated = scratch.file("bad.gguf", &bytes[..bytes.len() / 2]);
    let output = scratch.file("out.htz", "precious");
    assert_refused(
        htc!["compile", &truncated, "-o", &output, "--force"],
        1,
        &["bad.gguf"],
    );
    let good = model(&scratch);
    let run = htc!["compile", &good, "-o", &output, "--force", "--rank", "16"];
    run.file_blocks(40).run().assert_refused(1, &["out.htz"]);
    assert_eq!(fs::read(&output).unwrap(), b"precious");
}

#[test]
fn output_equal_to_input() {
    let scratch = Scratch::new();
    let gguf = model(&scratch);
    let model = scratch.path("model.htz");
    fs::rename(&gguf, &model).unwrap();
    let before = fs::read(&model).unwrap();
    fs::create_dir(scratch.path("folder")).unwrap();
    symlink(&model, scratch.path("link.htz")).unwrap();
    let spelled = scratch.path("folder/../model.htz");
    for output in [&model, &spelled, &scratch.path("link.htz")] {
        for force in [&[][..], &["--force"]] {
            let run = htc!["compile", &model, "-o", output].args(force);
            assert_refused(run, 2, &["same file", "-o"]);
        }
    }
    let relative = htc!["compile", "model.htz", "-o", "./model.htz", "--force"];
    assert_refused(
        relative.in_folder(scratch.folder()),
        2,
        &["same file", "-o"],
    );
    assert_eq!(fs::read(&model).unwrap(), before);
    scratch.assert_only_files(&["folder", "link.htz", "model.htz"]);
}

#[test]
fn outputs_that_are_no_files_of_their_format_are_refused() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    for (output, remedy) in [
        ("-", "name a file"),
        ("new.gguf", "htc export"),
        ("new.GGUF", "htc export"),
        ("new.safetensors", "--format"),
    ] {
        let run = htc!["compile", &model, "-o", output, "--rank", "4"];
        assert_refused(run.in_folder(scratch.folder()), 2, &["-o", remedy]);
    }
    let artifact = scratch.path("model.htz");
    htc!["compile", &model, "-o", &artifact, "--rank", "4"]
        .run()
        .assert_ok();
    for run in [
        htc!["export", &artifact, "-o", "-"],
        htc!["export", &artifact, "--to-safetensors", "-"],
        htc!["export", &artifact, "-o", "new.gguf", "--lora", "-"],
        htc!["report", &artifact, "-o", "-"],
        htc!["bench", &artifact, "-o", "-"],
        htc!["run", &artifact, "-p", "a", "--events", "-"],
        htc!["run", &artifact, "-p", "a", "--adapt-state", "-"],
    ] {
        assert_refused(run.in_folder(scratch.folder()), 2, &["name a file"]);
    }
    for output in ["new.htz", "new.safetensors"] {
        let run = htc!["export", &artifact, "-o", output];
        let words = ["-o", "extension .gguf", "--format safetensors"];
        assert_refused(run.in_folder(scratch.folder()), 2, &words);
    }
    scratch.assert_only_files(&["model.gguf", "model.htz"]);
}

#[test]
fn output_is_a_file_of_the_model() {
    let scratch = Scratch::new();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/architectures/llama");
    let folder = scratch.path("model");
    fs::create_dir(&folder).unwrap();
    let files = ["config.json", "model.safetensors", "tokenizer.model"];
    for name in files {
        fs::copy(fixture.join(name), folder.join(name)).unwrap();
    }
    symlink(
        folder.join("model.safetensors"),
        scratch.path("weights.htz"),
    )
    .unwrap();
    let link = htc!["compile", &folder, "-o", scratch.path("weights.htz")];
    assert_refused(
        link.args(["--rank", "4", "--force"]),
        2,
        &["same file", "-o"],
    );
    let output = scratch.path("out.htz");
    for name in files {
        let file = folder.join(name);
        let run = htc!["compile", &folder, "-o", &file, "--rank", "4", "--force"];
        assert_refused(run, 2, &[".htz", "-o", name]);
        let run = htc![
            "compile", &folder, "-o", &output, "--rank", "4", "--report", &file
        ];
        assert_refused(run, 2, &["a file of the model", "--report", name]);
        assert_eq!(
            fs::read(&file).unwrap(),
            fs::read(fixture.join(name)).unwrap()
        );
    }
    scratch.assert_only_files(&["model", "weights.htz"]);
}

#[test]
fn output_is_a_folder() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    fs::create_dir(scratch.path("folder")).unwrap();
    fs::create_dir(scratch.path("folder.htz")).unwrap();
    for output in ["folder.htz", "folder.htz/", "new.htz/"] {
        for force in [&[][..], &["--force"]] {
            let run = htc!["compile", "model.gguf", "-o", output].args(force);
            assert_refused(run.in_folder(scratch.folder()), 1, &["folder"]);
        }
    }
    for output in ["folder", "folder/", "new/", ".", ".."] {
        let run = htc!["compile", "model.gguf", "-o", output];
        assert_refused(run.in_folder(scratch.folder()), 2, &["-o", ".htz"]);
    }
    scratch.assert_only_files(&["folder", "folder.htz", "model.gguf"]);
    assert!(model.exists());
}

#[test]
fn output_is_a_device() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    symlink("/dev/null", scratch.path("null.htz")).unwrap();
    let null = scratch.path("null.htz");
    assert_refused(
        htc!["compile", &model, "-o", &null, "--force"],
        1,
        &["null.htz"],
    );
    let run = htc!["compile", &model, "-o", "/dev/null", "--force"];
    assert_refused(run, 2, &["/dev/null", "-o"]);
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
}

#[test]
fn output_in_the_current_folder() {
    let scratch = Scratch::new();
    model(&scratch);
    let run = htc!["compile", "model.gguf", "-o", "out.htz", "--rank", "8"];
    run.in_folder(scratch.folder()).run().assert_ok();
    scratch.assert_only_files(&["model.gguf", "out.htz"]);
}

#[test]
fn output_name_of_the_greatest_length() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let longest = format!("{}.htz", "n".repeat(251));
    let output = scratch.path(&longest);
    htc!["compile", &model, "-o", &output, "--rank", "8"]
        .run()
        .assert_ok();
    scratch.assert_only_files(&["model.gguf", &longest]);
    let too_long = scratch.path(&format!("n{longest}"));
    assert_refused(htc!["compile", &model, "-o", &too_long], 1, &["too long"]);
    scratch.assert_only_files(&["model.gguf", &longest]);
}

#[test]
fn report_that_cannot_be_written() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let output = scratch.path("out.htz");
    let report = scratch.path("no/report.json");
    let run = htc![
        "compile", &model, "-o", &output, "--rank", "8", "--report", &report
    ];
    let outcome = run.run();
    assert_eq!(outcome.code(), Some(1));
    let last = outcome.stderr.trim_end().lines().last().unwrap_or_default();
    assert!(last.contains("no/report.json"), "{}", outcome.stderr);
    if output.exists() {
        htc!["verify", &output].run().assert_ok();
    }
}

#[test]
fn report_equal_to_input_or_output() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let before = fs::read(&model).unwrap();
    let output = scratch.path("out.htz");
    let link = scratch.path("link.gguf");
    fs::hard_link(&model, &link).unwrap();
    let detour = scratch.folder().join(".").join("out.htz");
    for report in [&model, &output, &link, &detour] {
        let run = htc![
            "compile", &model, "-o", &output, "--rank", "8", "--report", report
        ];
        assert_refused(run, 2, &["--report"]);
        assert!(
            fs::read(&model).unwrap() == before,
            "the source is overwritten"
        );
        scratch.assert_only_files(&["link.gguf", "model.gguf"]);
    }
}
