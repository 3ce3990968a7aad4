use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use htc_formats::gguf::{Value, ValueType};
use htc_tests::raw::RawGguf;
use htc_tests::{Scratch, TinyModel, binary, htc};

use super::assert_refused;

fn pipe(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}

fn folder(scratch: &Scratch) -> PathBuf {
    let folder = scratch.path("model");
    fs::create_dir(&folder).unwrap();
    let tokenizer = r#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2},
        "merges": ["a b"]}, "pre_tokenizer": {"type": "ByteLevel"}}"#;
    fs::write(folder.join("tokenizer.json"), tokenizer).unwrap();
    fs::write(folder.join("config.json"), r#"{"model_type": "qwen2"}"#).unwrap();
    folder
}

/// An empty string takes 24 bytes of memory per eight bytes of a sparse file.
#[test]
fn sparse_file_with_a_huge_list_of_strings() {
    const LENGTH: u64 = 2_200_000_000;
    let scratch = Scratch::new();
    let raw = RawGguf::new(3, 0, 1).text("list");
    let raw = raw.u32(ValueType::Array as u32);
    let raw = raw.u32(ValueType::String as u32);
    let raw = raw.u64((LENGTH - 100) / 8);
    let path = scratch.file("sparse.gguf", &raw.bytes);
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(LENGTH).unwrap();
    for command in ["inspect", "run"] {
        let started = Instant::now();
        let outcome = htc![command, &path].allocations(400 << 20).run();
        let words = ["sparse.gguf", "\"list\"", "memory", "268435456"];
        outcome.assert_refused(1, &words);
        assert!(started.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn excessive_head_size() {
    let scratch = Scratch::new();
    let wide = Value::U32(1 << 20);
    let tiny = TinyModel::default()
        .with("llama.attention.key_length", wide.clone())
        .with("llama.attention.value_length", wide)
        .with("llama.attention.head_count", Value::U32(1))
        .with("llama.attention.head_count_kv", Value::U32(1));
    let model = scratch.file("model.gguf", tiny.bytes());
    let run = htc!["run", &model, "-p", "the", "-n", "1"];
    assert_refused(run, 1, &["model.gguf", "head_size", "1048576", "4096"]);
}

#[test]
fn pipes_in_a_folder() {
    let scratch = Scratch::new();
    let folder = folder(&scratch);
    let text = scratch.file("text.txt", "ab");
    htc!["tokenize", &folder, "--text", &text].run().assert_ok();
    for name in [
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "generation_config.json",
        "chat_template.jinja",
        "chat_template.json",
    ] {
        let path = folder.join(name);
        pipe(&path);
        let run = htc!["tokenize", &folder, "--text", &text];
        assert_refused(run, 1, &[name, "regular file"]);
        fs::remove_file(&path).unwrap();
    }
    for name in [
        "config.json",
        "model.safetensors",
        "model.safetensors.index.json",
    ] {
        let path = folder.join(name);
        let kept = fs::read(&path).ok();
        let _ = fs::remove_file(&path);
        pipe(&path);
        assert_refused(htc!["inspect", &folder], 1, &[name, "regular file"]);
        fs::remove_file(&path).unwrap();
        if let Some(kept) = kept {
            fs::write(&path, kept).unwrap();
        }
    }
}

#[test]
fn pipes_for_texts_plans_and_reports() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let named = scratch.path("pipe");
    pipe(&named);
    let output = scratch.path("out.htz");
    for run in [
        htc!["tokenize", &model, "--text", &named],
        htc!["run", &model, "--file", &named],
        htc!["eval", &model, "--text", &named],
        htc!["compile", &model, "-o", &output, "--plan", &named],
        htc![
            "compile",
            &model,
            "-o",
            &output,
            "--rank",
            "8",
            "--calibration",
            &named,
            "--context",
            "16"
        ],
        htc!["report", &named, "-o", &output],
        htc!["tokenize", &model, "--text", "/dev/zero"],
    ] {
        assert_refused(run, 1, &["regular file"]);
    }
    scratch.assert_only_files(&["model.gguf", "pipe"]);
}

#[test]
fn pipes_that_are_open_are_read() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let text = scratch.file("text.txt", "the cat");
    let expected = htc!["tokenize", &model, "--text", &text, "--json"]
        .run()
        .assert_ok();
    let run = htc!["tokenize", &model, "--text", "/dev/stdin", "--json"];
    assert_eq!(
        run.stdin("the cat").run().assert_ok().stdout,
        expected.stdout
    );
    let shell = Command::new("bash")
        .arg("-c")
        .arg("\"$0\" tokenize \"$1\" --text <(printf 'the cat') --json")
        .args([binary::path(), model])
        .output();
    match shell {
        Ok(found) => assert_eq!(found.stdout, expected.stdout),
        Err(error) => eprintln!("skipped: bash: {error}"),
    }
}

#[test]
fn links_out_of_a_folder() {
    let scratch = Scratch::new();
    let folder = folder(&scratch);
    let text = scratch.file("text.txt", "ab");
    scratch.file("secret", "{{ 'secret' }}");
    let link = folder.join("chat_template.jinja");
    symlink("../secret", &link).unwrap();
    let run = htc!["tokenize", &folder, "--text", &text];
    assert_refused(run, 1, &["chat_template.jinja", "leads out of", "secret"]);
    fs::remove_file(&link).unwrap();
    for name in ["config.json", "model.safetensors"] {
        let path = folder.join(name);
        let _ = fs::remove_file(&path);
        symlink("../secret", &path).unwrap();
        assert_refused(htc!["inspect", &folder], 1, &[name, "leads out of"]);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "{}").unwrap();
    }
    let index = r#"{"weight_map": {"a": "../secret.safetensors"}}"#;
    fs::remove_file(folder.join("model.safetensors")).unwrap();
    fs::write(folder.join("model.safetensors.index.json"), index).unwrap();
    assert_refused(htc!["inspect", &folder], 1, &["../secret.safetensors"]);
    let index = r#"{"weight_map": {"a": "a.safetensors"}}"#;
    fs::write(folder.join("model.safetensors.index.json"), index).unwrap();
    symlink("../secret", folder.join("a.safetensors")).unwrap();
    assert_refused(
        htc!["inspect", &folder],
        1,
        &["a.safetensors", "leads out of"],
    );
}

#[test]
fn links_in_place_of_a_part() {
    let scratch = Scratch::new();
    let folder = scratch.path("model");
    fs::create_dir(&folder).unwrap();
    let part = |number: u16| {
        let tiny = TinyModel::default()
            .with("split.no", Value::U16(number))
            .with("split.count", Value::U16(2))
            .with("split.tensors.count", Value::I32(1));
        tiny.vocabulary_only()
    };
    let first = folder.join("m-00001-of-00002.gguf");
    fs::write(&first, part(0)).unwrap();
    scratch.file("other.gguf", part(1));
    symlink("../other.gguf", folder.join("m-00002-of-00002.gguf")).unwrap();
    let run = htc!["run", &first, "-p", "the"];
    assert_refused(run, 1, &["m-00002-of-00002.gguf", "leads out of"]);
}

#[test]
fn links_within_a_cache() {
    let scratch = Scratch::new();
    let model = folder(&scratch);
    let snapshot = scratch.path("models--a--b/snapshots/0123");
    let blobs = scratch.path("models--a--b/blobs");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(&blobs).unwrap();
    let text = scratch.file("text.txt", "ab");
    let expected = htc!["tokenize", &model, "--text", &text, "--json"]
        .run()
        .assert_ok();
    for (blob, name) in [("45", "tokenizer.json"), ("67", "config.json")] {
        fs::rename(model.join(name), blobs.join(blob)).unwrap();
        symlink(format!("../../blobs/{blob}"), snapshot.join(name)).unwrap();
    }
    let run = htc!["tokenize", &snapshot, "--text", &text, "--json"]
        .run()
        .assert_ok();
    assert_eq!(run.stdout, expected.stdout);
}

#[cfg(target_os = "linux")]
#[test]
fn model_that_shrinks_while_mapped() {
    let scratch = Scratch::new();
    let model = scratch.file("shrinks.gguf", TinyModel::default().bytes());
    let mut child = Command::new(binary::path())
        .args([
            "run".as_ref(),
            model.as_os_str(),
            "-n".as_ref(),
            "4".as_ref(),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let maps = format!("/proc/{}/maps", child.id());
    let started = Instant::now();
    while !fs::read_to_string(&maps).unwrap().contains("shrinks.gguf") {
        assert!(started.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(500));
    File::options()
        .write(true)
        .open(&model)
        .unwrap()
        .set_len(4096)
        .unwrap();
    child.stdin.take().unwrap().write_all(b"the cat").unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{:?} {said}", ended.status);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.starts_with("htc: error: ") && said.contains("shrinks.gguf: the file became shorter"),
        "{said}"
    );
}

#[test]
fn ffn_too_wide_to_calibrate() {
    let scratch = Scratch::new();
    let tiny = TinyModel {
        layers: 1,
        width: 8,
        heads: 1,
        kv_heads: 1,
        head_size: 8,
        ffn: 1 << 18,
        ..TinyModel::default()
    };
    let model = scratch.file("model.gguf", tiny.bytes());
    let text = scratch.file("text.txt", htc_tests::material::words(100));
    let cache = scratch.path("cache");
    let run = htc![
        "compile",
        &model,
        "-o",
        scratch.path("out.htz"),
        "--rank",
        "4"
    ];
    let run = run
        .arg("--calibration")
        .arg(&text)
        .args(["--context", "16"]);
    let run = run.arg("--cache").arg(&cache).allocations(1 << 30);
    run.run()
        .assert_refused(1, &["model.gguf", "no memory", "bytes"]);
    assert!(!scratch.path("out.htz").exists());
}
