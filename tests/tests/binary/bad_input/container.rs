//! Files that are not valid GGUF.

use std::fs;
use std::process::Command;

use htc_formats::gguf::Value;
use htc_tests::raw::{RawGguf, get_u64, put_u32, put_u64, tensor_row};
use htc_tests::{Scratch, TinyModel, htc};

use super::{BadModel, assert_refused};

const ABSURD: (u64, &str) = (1 << 60, "1152921504606846976");

fn tiny() -> Vec<u8> {
    TinyModel::default().bytes()
}

#[test]
fn missing() {
    let bad = BadModel::new("");
    fs::remove_file(&bad.model).unwrap();
    let words = ["model.gguf: no such file or folder; check the path"];
    for outcome in [bad.run(), bad.eval(), bad.inspect(), bad.tokenize()] {
        outcome.assert_refused(1, &words);
    }
    let output = bad.scratch.path("out.htz");
    assert_refused(htc!["compile", &bad.model, "-o", output], 1, &words);
    assert_refused(htc!["verify", &bad.model], 1, &words);
    assert_refused(htc!["plan", &bad.model, "--ratio", "0.5"], 1, &words);
    assert_refused(htc!["analyse", &bad.model], 1, &words);
    let below = bad.scratch.path("text.txt").join("model.htz");
    let words = ["model.htz: no such file or folder; check the path"];
    assert_refused(htc!["inspect", below], 1, &words);
    bad.scratch.assert_only_files(&["text.txt"]);
}

#[test]
fn empty() {
    BadModel::new("").assert_refused_by_all(&["empty"]);
    let bad = BadModel::new("");
    assert_refused(htc!["verify", &bad.model], 1, &["model.gguf", "empty"]);
}

#[test]
fn a_folder() {
    let scratch = Scratch::new();
    let folder = scratch.path("model.gguf");
    fs::create_dir(&folder).unwrap();
    let words = ["model.gguf", "no config.json", "name the folder"];
    for command in ["inspect", "run", "analyse", "plan"] {
        assert_refused(htc![command, &folder], 1, &words);
    }
    let output = scratch.path("out.htz");
    assert_refused(htc!["compile", &folder, "-o", output], 1, &words);
    let text = scratch.file("text.txt", "text");
    assert_refused(htc!["eval", &folder, "--text", &text], 1, &words);
    let tokenize = htc!["tokenize", &folder, "--text", &text];
    assert_refused(
        tokenize,
        1,
        &["tokenizer.json", "copy the tokenizer's files"],
    );
    assert_refused(htc!["verify", &folder], 1, &["model.gguf", "no digests"]);
}

#[test]
fn a_pipe() {
    let scratch = Scratch::new();
    let pipe = scratch.path("model.gguf");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    for command in ["inspect", "verify", "run"] {
        assert_refused(htc![command, &pipe], 1, &["model.gguf", "regular file"]);
    }
}

#[test]
fn a_device() {
    for device in ["/dev/zero", "/dev/null"] {
        assert_refused(htc!["inspect", device], 1, &[device, "regular file"]);
    }
}

#[test]
fn not_gguf() {
    for bytes in [
        &b"{\"weights\": [1, 2, 3]}\n"[..],
        b"PK\x03\x04 something zipped",
        b"\x00\x00\x00\x00\x00\x00\x00\x00",
        b"gguf in small letters",
        b"\x1b[2J\x07 control characters",
    ] {
        BadModel::new(bytes).assert_refused_by_all(&["not a", "GGUF"]);
    }
}

#[test]
fn other_version() {
    for version in [0, 1, 4, 1000] {
        let mut bytes = tiny();
        put_u32(&mut bytes, 4, version);
        let words = ["version", &version.to_string(), "2", "3"];
        BadModel::new(bytes).assert_refused_by_all(&words);
    }
}

#[test]
fn big_endian() {
    let mut bytes = tiny();
    put_u32(&mut bytes, 4, 3_u32.swap_bytes());
    BadModel::new(bytes).assert_refused_by_all(&["big-endian"]);
}

#[test]
fn truncated_at_some_bytes() {
    let bytes = tiny();
    let data = tensor_row(&bytes, "output_norm.weight").offset;
    let length = bytes.len();
    for cut in [
        3,
        8,
        20,
        24,
        100,
        data / 2,
        data,
        data + 8,
        length / 2,
        length - 64,
    ] {
        BadModel::new(&bytes[..cut]).assert_no_model(&[]);
    }
    BadModel::new(&bytes[..length / 2]).assert_refused_by_all(&["truncated", "copy or download"]);
}

#[test]
fn truncated_anywhere() {
    let bytes = tiny();
    let scratch = Scratch::new();
    let head = (1..64).chain((64..bytes.len() - 64).step_by(bytes.len() / 150));
    for cut in head {
        let path = scratch.file("model.gguf", &bytes[..cut]);
        assert_refused(htc!["inspect", &path], 1, &["model.gguf"]);
    }
}

#[test]
fn absurd_count_of_tensors() {
    for padding in [0, 100_000] {
        let bytes = RawGguf::new(3, ABSURD.0, 0).zeros(padding).bytes;
        BadModel::new(bytes).assert_refused_by_all(&["tensors", ABSURD.1]);
    }
    let bytes = RawGguf::new(3, u64::MAX, 0).bytes;
    BadModel::new(bytes).assert_refused_by_all(&["tensors", "18446744073709551615"]);
}

#[test]
fn more_tensors_than_bytes() {
    let bytes = RawGguf::new(3, 1 << 20, 0).zeros(1000).bytes;
    BadModel::new(bytes).assert_refused_by_all(&["tensors", "1048576"]);
}

#[test]
fn absurd_count_of_metadata() {
    let bytes = RawGguf::new(3, 0, ABSURD.0).zeros(1000).bytes;
    BadModel::new(bytes).assert_refused_by_all(&["metadata", ABSURD.1]);
}

#[test]
fn absurd_length_of_an_array() {
    for kind in [0, 4, 8, 9, 12] {
        let raw = RawGguf::new(3, 0, 1).text("a.list").u32(9).u32(kind);
        let bytes = raw.u64(ABSURD.0).zeros(1000).bytes;
        BadModel::new(bytes).assert_refused_by_all(&["a.list", ABSURD.1]);
    }
}

#[test]
fn absurd_length_of_a_string() {
    let key = RawGguf::new(3, 0, 1).u64(ABSURD.0).zeros(100).bytes;
    BadModel::new(key).assert_refused_by_all(&["key of metadata entry 0"]);
    let raw = RawGguf::new(3, 0, 1).text("a.text").u32(8);
    BadModel::new(raw.u64(ABSURD.0).zeros(100).bytes).assert_refused_by_all(&["a.text"]);
    let raw = RawGguf::new(3, 1, 0).u64(u64::MAX).zeros(100);
    BadModel::new(raw.bytes).assert_refused_by_all(&["name of tensor 0"]);
}

#[test]
fn unknown_type_of_metadata() {
    let raw = RawGguf::new(3, 0, 1).text("a.key").u32(13).zeros(100);
    BadModel::new(raw.bytes).assert_refused_by_all(&["a.key", "13", "expected"]);
}

#[test]
fn deep_nesting() {
    for levels in [10, 500_000] {
        let mut raw = RawGguf::new(3, 0, 1).text("a.tree").u32(9);
        for _ in 0..levels {
            raw = raw.u32(9).u64(1);
        }
        let bytes = raw.u32(0).u64(0).bytes;
        BadModel::new(bytes).assert_refused_by_all(&["a.tree", "nested"]);
    }
}

#[test]
fn text_that_is_not_utf8() {
    let mut raw = RawGguf::new(3, 0, 1).text("a.text").u32(8).text("abcd");
    let last = raw.bytes.len() - 1;
    raw.bytes[last] = 0xff;
    BadModel::new(raw.bytes).assert_refused_by_all(&["a.text", "UTF-8"]);
}

#[test]
fn a_key_twice() {
    let raw = RawGguf::new(3, 0, 2);
    let raw = raw
        .text("a.key")
        .u32(0)
        .zeros(1)
        .text("a.key")
        .u32(0)
        .zeros(1);
    BadModel::new(raw.bytes).assert_refused_by_all(&["a.key", "twice"]);
}

#[test]
fn a_tensor_twice() {
    let mut bytes = tiny();
    let name = b"blk.0.ffn_gate.weight";
    let second = tensor_row(&bytes, "blk.1.ffn_gate.weight").dimensions - name.len();
    bytes[second..second + name.len()].copy_from_slice(name);
    BadModel::new(bytes).assert_refused_by_all(&["blk.0.ffn_gate.weight", "twice"]);
}

#[test]
fn offset_beyond_the_end() {
    for offset in [1 << 40, 1 << 63, u64::MAX - 31] {
        let mut bytes = tiny();
        let row = tensor_row(&bytes, "blk.1.ffn_up.weight");
        put_u64(&mut bytes, row.offset, offset);
        let length = bytes.len().to_string();
        let words = ["blk.1.ffn_up.weight", &length, "truncated"];
        BadModel::new(bytes).assert_refused_by_all(&words);
    }
}

#[test]
fn offset_not_aligned() {
    let mut bytes = tiny();
    let row = tensor_row(&bytes, "blk.1.ffn_up.weight");
    let offset = get_u64(&bytes, row.offset) + 4;
    put_u64(&mut bytes, row.offset, offset);
    let words = ["blk.1.ffn_up.weight", &offset.to_string(), "32"];
    BadModel::new(bytes).assert_refused_by_all(&words);
}

#[test]
fn overlapping_tensors() {
    let mut bytes = tiny();
    let gate = tensor_row(&bytes, "blk.0.ffn_gate.weight");
    let up = tensor_row(&bytes, "blk.0.ffn_up.weight");
    let middle = get_u64(&bytes, gate.offset) + 64;
    put_u64(&mut bytes, up.offset, middle);
    let words = ["blk.0.ffn_gate.weight", "blk.0.ffn_up.weight", "overlap"];
    BadModel::new(bytes).assert_refused_by_all(&words);
}

#[test]
fn invalid_alignment() {
    for alignment in [0, 3, 48, 1 << 30] {
        let tiny = TinyModel::default();
        // The writer checks its keys.
        let tiny = tiny.with("general.alignment2", Value::U32(alignment));
        let mut bytes = tiny.bytes();
        let at = tensor_row(&bytes, "general.alignment2").dimensions;
        let key = at - "general.alignment2".len();
        bytes.remove(at - 1);
        put_u64(&mut bytes, key - 8, "general.alignment".len() as u64);
        let words = ["general.alignment", &alignment.to_string(), "power of two"];
        BadModel::new(bytes).assert_refused_by_all(&words);
    }
}

#[test]
fn unknown_tensor_type() {
    for kind in [4, 5, 99, u32::MAX] {
        let mut bytes = tiny();
        let row = tensor_row(&bytes, "blk.0.attn_k.weight");
        put_u32(&mut bytes, row.kind, kind);
        let words = ["blk.0.attn_k.weight", &kind.to_string(), "newer"];
        BadModel::new(bytes).assert_refused_by_all(&words);
    }
}

#[test]
fn impossible_shapes() {
    for (dims, word) in [
        ([0, 64], "shape"),
        ([64, 0], "shape"),
        ([1 << 63, 4], "shape"),
        ([1 << 32, 1 << 32], "shape"),
        ([1 << 40, 1 << 20], "truncated"),
    ] {
        let mut bytes = tiny();
        let row = tensor_row(&bytes, "blk.0.attn_q.weight");
        put_u64(&mut bytes, row.dims, dims[0]);
        put_u64(&mut bytes, row.dims + 8, dims[1]);
        BadModel::new(bytes).assert_refused_by_all(&["blk.0.attn_q.weight", word]);
    }
}

#[test]
fn too_many_dimensions() {
    for count in [0, 5, u32::MAX] {
        let mut bytes = tiny();
        let row = tensor_row(&bytes, "blk.0.attn_q.weight");
        put_u32(&mut bytes, row.dimensions, count);
        let words = ["blk.0.attn_q.weight", "dimensions", &count.to_string()];
        BadModel::new(bytes).assert_refused_by_all(&words);
    }
}

#[test]
fn names_with_line_ends_and_control_characters() {
    let raw = RawGguf::new(3, 0, 1)
        .text("a\n\x1b[2Jkey\r\n")
        .u32(13)
        .zeros(100);
    BadModel::new(raw.bytes).assert_refused_by_all(&["13"]);
    let raw = RawGguf::new(3, 1, 0)
        .text("a\n\x1b[2Jname\u{85}")
        .u32(7)
        .zeros(100);
    BadModel::new(raw.bytes).assert_refused_by_all(&["dimensions"]);
    let tiny = TinyModel::default();
    let text = Value::String("arch\n\x1b[2Jitecture".to_owned());
    BadModel::new(
        tiny.clone()
            .with("general.architecture", text.clone())
            .bytes(),
    )
    .assert_no_model(&["architecture"]);
    let bad = BadModel::new(tiny.with("tokenizer.ggml.model", text).bytes());
    bad.tokenize().assert_refused(1, &["tokenizer"]);
}

#[test]
fn a_path_with_a_line_end() {
    let scratch = Scratch::new();
    let path = scratch.file("two\nlines.gguf", "no model");
    assert_refused(htc!["inspect", &path], 1, &["two", "lines.gguf"]);
    let missing = scratch.path("no\nsuch.gguf");
    assert_refused(htc!["run", &missing, "-p", "the"], 1, &["such.gguf"]);
}

#[test]
fn messages_have_a_bounded_length() {
    let long = "x".repeat(60_000);
    let raw = RawGguf::new(3, 0, 1).text(&long).u32(13).zeros(100);
    let bad = BadModel::new(raw.bytes);
    let outcome = bad.inspect();
    outcome.assert_refused(1, &["model.gguf"]);
    assert!(
        outcome.stderr.len() < 2000,
        "{} bytes",
        outcome.stderr.len()
    );
}
