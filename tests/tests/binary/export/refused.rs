//! Refused and interrupted exports, which leave no files.

use std::fs;
use std::time::{Duration, Instant};

use htc_tests::binary::wait;
use htc_tests::{Scratch, TinyModel, htc};

use super::{compile, compile_unchanged};

#[test]
fn invalid_command_lines_are_usage_errors() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let artifact = compile_unchanged(&scratch, &model, "model.htz");
    let before = scratch.names();
    let (out, folder) = (scratch.path("out.gguf"), scratch.path("out"));
    htc!["export", &artifact]
        .run()
        .assert_refused(2, &["--output", "--to-safetensors"]);
    htc!["export", &artifact, "-o", &out, "--to-safetensors", &folder]
        .run()
        .assert_refused(2, &["cannot be used with"]);
    htc!["export", &artifact, "-o", &out, "--type", "iq3_s"]
        .run()
        .assert_refused(2, &["iq3_s", "q4_k", "bf16"]);
    htc![
        "export",
        &artifact,
        "--to-safetensors",
        &folder,
        "--type",
        "q8_0"
    ]
    .run()
    .assert_refused(2, &["--type", "q8_0", "f16"]);
    htc!["export", &artifact, "-o", &artifact, "--force"]
        .run()
        .assert_refused(2, &["model.htz", "extension .gguf"]);
    htc!["export", &artifact, "--to-safetensors", &artifact]
        .run()
        .assert_refused(2, &["artifact that is read"]);
    htc!["export", &artifact, "-o", &out, "--lora", &out]
        .run()
        .assert_refused(2, &["out.gguf"]);
    htc![
        "export",
        &artifact,
        "-o",
        &out,
        "--lora",
        scratch.path("lora.gguf")
    ]
    .run()
    .assert_refused(2, &["--lora", "factors"]);
    assert_eq!(scratch.names(), before);
}

#[test]
fn existing_outputs_are_kept_without_force() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let artifact = compile_unchanged(&scratch, &model, "model.htz");
    let out = scratch.file("out.gguf", "mine");
    htc!["export", &artifact, "-o", &out]
        .run()
        .assert_refused(1, &["out.gguf", "exists", "--force"]);
    assert_eq!(fs::read(&out).unwrap(), b"mine");
    htc!["export", &artifact, "-o", &out, "--force"]
        .run()
        .assert_ok();
    assert!(fs::read(&out).unwrap().starts_with(b"GGUF"));

    let folder = scratch.path("out");
    fs::create_dir(&folder).unwrap();
    htc!["export", &artifact, "--to-safetensors", &folder]
        .run()
        .assert_ok();
    let again = || htc!["export", &artifact, "--to-safetensors", &folder];
    again()
        .run()
        .assert_refused(1, &["out", "not empty", "--force"]);
    again().arg("--force").run().assert_ok();
    fs::write(folder.join("thesis.txt"), "mine").unwrap();
    again()
        .arg("--force")
        .run()
        .assert_refused(1, &["thesis.txt"]);
    assert_eq!(fs::read(folder.join("thesis.txt")).unwrap(), b"mine");
    let file = scratch.file("file", "mine");
    htc!["export", &artifact, "--to-safetensors", &file, "--force"]
        .run()
        .assert_refused(1, &["no folder"]);
    let mut names = scratch.names();
    names.retain(|name| name.starts_with('.'));
    assert!(names.is_empty(), "{names:?}");
}

#[test]
fn damage_and_other_files_are_refused() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let artifact = compile_unchanged(&scratch, &model, "model.htz");
    let (out, folder) = (scratch.path("out.gguf"), scratch.path("out"));
    htc!["export", &model, "-o", &out]
        .run()
        .assert_refused(1, &["model.gguf"]);
    htc!["export", scratch.path("none.htz"), "-o", &out]
        .run()
        .assert_refused(1, &["none.htz"]);
    let nowhere = scratch.path("no/such/out.gguf");
    htc!["export", &artifact, "-o", &nowhere]
        .run()
        .assert_refused(1, &["no/such"]);
    let nowhere = scratch.path("no/such/out");
    htc!["export", &artifact, "--to-safetensors", &nowhere]
        .run()
        .assert_refused(1, &["no/such"]);
    let opened = htc_tests::artifact::Artifact::open(&artifact);
    let mut bytes = opened.bytes.clone();
    bytes[opened.tensor_range("blk.1.ffn_up.weight").start + 9] ^= 4;
    let damaged = scratch.file("damaged.htz", bytes);
    let before = scratch.names();
    let words = ["damaged.htz", "blk.1.ffn_up.weight"];
    htc!["export", &damaged, "-o", &out]
        .run()
        .assert_refused(1, &words);
    htc!["export", &damaged, "--to-safetensors", &folder]
        .run()
        .assert_refused(1, &words);
    assert_eq!(scratch.names(), before);
}

#[test]
fn values_out_of_range_are_refused() {
    let scratch = Scratch::new();
    let mut tensors = TinyModel::default().tensors();
    for tensor in &mut tensors {
        if tensor.name == "blk.0.attn_v.weight" {
            tensor.values[5] = 1e6;
        }
    }
    let model = scratch.file(
        "model.gguf",
        TinyModel::default().bytes_with_tensors(&tensors),
    );
    let options = [
        "--rank",
        "full",
        "--projections",
        "v",
        "--factor-type",
        "f32",
    ];
    let (artifact, _) = compile(&scratch, &model, "model.htz", &options);
    let out = scratch.path("out.gguf");
    htc!["export", &artifact, "-o", &out]
        .run()
        .assert_refused(1, &["attn_v", "f16", "--type", "bf16"]);
    htc!["export", &artifact, "-o", &out, "--type", "bf16"]
        .run()
        .assert_ok();
}

#[test]
fn interrupted_export_leaves_no_files() {
    let (source, target) = (Scratch::new(), Scratch::new());
    let tiny = TinyModel {
        layers: 2,
        ..TinyModel::large()
    };
    let model = source.file("model.gguf", tiny.bytes());
    let options = ["--rank", "full", "--projections", "q,k,v,o,gate,up,down"];
    let (artifact, _) = compile(&source, &model, "model.htz", &options);
    let file = target.path("out.gguf");
    let folder = target.path("out");
    for command in [
        htc!["export", &artifact, "-o", &file, "--type", "q2_k"],
        htc!["export", &artifact, "--to-safetensors", &folder],
    ] {
        let mut child = command.arg("--threads").arg("1").spawn();
        let started = Instant::now();
        while target.names().is_empty() {
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "nothing was begun"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(child.try_wait().unwrap().is_none(), "finished too soon");
        let kill = std::process::Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status();
        assert!(kill.unwrap().success());
        let status = wait(&mut child, Duration::from_secs(10), "interrupted htc");
        assert_eq!(status.code(), Some(130), "{status}");
        target.assert_only_files(&[]);
    }
}
