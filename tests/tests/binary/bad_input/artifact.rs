//! Artifacts that are damaged, of another version, or inconsistent.

use std::path::PathBuf;

use htc_formats::htz::{Digest, HEADER_BYTES};
use htc_tests::artifact::Artifact;
use htc_tests::material::words;
use htc_tests::raw::put_u64;
use htc_tests::{Scratch, TinyModel, htc};
use serde_json::{Value, json};

use super::super::compile;
use super::assert_refused;

struct Bad {
    scratch: Scratch,
    text: PathBuf,
    artifact: Artifact,
}

impl Bad {
    fn new() -> Self {
        let scratch = Scratch::new();
        let text = scratch.file("text.txt", words(60));
        let model = scratch.file("model.gguf", TinyModel::default().bytes());
        let (path, _) = compile(&scratch, &model, "good.htz", &["--rank", "8"]);
        let artifact = Artifact::open(&path);
        Bad {
            scratch,
            text,
            artifact,
        }
    }

    #[track_caller]
    fn refused_by_all(&self, bytes: &[u8], words: &[&str]) {
        let path = self.scratch.file("bad.htz", bytes);
        let words = [&["bad.htz"], words].concat();
        let output = self.scratch.path("out.htz");
        for run in [
            htc!["inspect", &path],
            htc!["inspect", &path, "--json"],
            htc!["verify", &path],
            htc!["run", &path, "-p", "the", "-n", "2"],
            htc!["eval", &path, "--text", &self.text, "--context", "16"],
            htc!["tokenize", &path, "--text", &self.text, "--json"],
            htc!["compile", &path, "-o", &output],
        ] {
            assert_refused(run, 1, &words);
        }
        assert!(!output.exists());
    }

    fn with_manifest(&self, change: impl FnOnce(&mut Value)) -> Vec<u8> {
        let place = self.artifact.manifest_range();
        let mut bytes = self.artifact.bytes.clone();
        let mut manifest = serde_json::from_slice(&bytes[place.clone()]).unwrap();
        change(&mut manifest);
        let mut text = serde_json::to_vec(&manifest).unwrap();
        assert!(text.len() <= place.len(), "no room for the change");
        text.resize(place.len(), b' ');
        bytes[place].copy_from_slice(&text);
        self.sealed(bytes)
    }

    fn sealed(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        let manifest = Digest::of_bytes(&bytes[self.artifact.manifest_range()]);
        bytes[40..72].copy_from_slice(&manifest.0);
        let header = Digest::of_bytes(&bytes[..96]);
        bytes[96..HEADER_BYTES].copy_from_slice(&header.0);
        bytes
    }
}

#[test]
fn resealing_without_a_change_is_valid() {
    let bad = Bad::new();
    let path = bad.scratch.file("same.htz", bad.with_manifest(|_| ()));
    htc!["verify", &path].run().assert_ok();
}

#[test]
fn flipped_bit_in_the_header() {
    let bad = Bad::new();
    for byte in [8, 16, 24, 32, 40, 72, 96, 127] {
        let mut bytes = bad.artifact.bytes.clone();
        bytes[byte] ^= 4;
        bad.refused_by_all(&bytes, &["header", "damaged", "copy"]);
    }
}

#[test]
fn flipped_bit_in_the_manifest() {
    let bad = Bad::new();
    let place = bad.artifact.manifest_range();
    for byte in [place.start, place.start + place.len() / 3, place.end - 1] {
        let mut bytes = bad.artifact.bytes.clone();
        bytes[byte] ^= 1;
        bad.refused_by_all(&bytes, &["manifest", "damaged", "copy"]);
    }
}

#[test]
fn flipped_bit_in_the_data() {
    let bad = Bad::new();
    let mut bytes = bad.artifact.bytes.clone();
    bytes[bad.artifact.tensor_range("blk.0.ffn_up.a").start + 5] ^= 1;
    let path = bad.scratch.file("bad.htz", &bytes);
    assert_refused(
        htc!["verify", &path],
        1,
        &["bad.htz", "blk.0.ffn_up.a", "damaged", "copy"],
    );
}

#[test]
fn flipped_bit_in_the_tokenizer() {
    let bad = Bad::new();
    let mut bytes = bad.artifact.bytes.clone();
    bytes[bad.artifact.section_range("tokenizer").start + 20] ^= 1;
    let path = bad.scratch.file("bad.htz", &bytes);
    for run in [
        htc!["verify", &path],
        htc!["run", &path, "-p", "the", "-n", "2"],
        htc!["eval", &path, "--text", &bad.text, "--context", "16"],
        htc!["tokenize", &path, "--text", &bad.text],
    ] {
        assert_refused(run, 1, &["bad.htz", "tokenizer", "damaged"]);
    }
}

#[test]
fn truncated_at_some_bytes() {
    let bad = Bad::new();
    let bytes = &bad.artifact.bytes;
    let manifest = bad.artifact.manifest_range();
    for cut in [
        8,
        127,
        128,
        manifest.end - 1,
        manifest.end,
        bytes.len() / 2,
        bytes.len() - 1,
    ] {
        bad.refused_by_all(&bytes[..cut], &["copy"]);
    }
}

#[test]
fn truncated_anywhere() {
    let bad = Bad::new();
    let bytes = &bad.artifact.bytes;
    let head = (1..128).chain((128..bytes.len()).step_by(bytes.len() / 100));
    for cut in head {
        let path = bad.scratch.file("bad.htz", &bytes[..cut]);
        assert_refused(htc!["inspect", &path], 1, &["bad.htz"]);
    }
}

#[test]
fn bytes_after_the_end() {
    let bad = Bad::new();
    let mut bytes = bad.artifact.bytes.clone();
    bytes.push(0);
    let (found, expected) = (bytes.len().to_string(), (bytes.len() - 1).to_string());
    bad.refused_by_all(&bytes, &[&found, &expected]);
}

#[test]
fn newer_major_version() {
    let bad = Bad::new();
    for major in [0, 3, 255] {
        let mut bytes = bad.artifact.bytes.clone();
        bytes[8] = major;
        let words = [&format!("{major}.x"), "1.x and 2.x", "not supported", "htc"];
        bad.refused_by_all(&bad.sealed(bytes), &words);
    }
}

#[test]
fn newer_minor_version_is_read() {
    let bad = Bad::new();
    let mut bytes = bad.artifact.bytes.clone();
    bytes[10] = 9;
    let path = bad.scratch.file("newer.htz", bad.sealed(bytes));
    htc!["verify", &path].run().assert_ok();
    htc!["run", &path, "-p", "the", "-n", "2"].run().assert_ok();
}

#[test]
fn feature_of_a_newer_version() {
    let bad = Bad::new();
    let bytes = bad.with_manifest(|manifest| manifest["requires"] = json!(["telepathy"]));
    bad.refused_by_all(&bytes, &["telepathy", "update"]);
}

#[test]
fn absent_tokenizer() {
    let bad = Bad::new();
    let bytes = bad.with_manifest(|manifest| {
        manifest["sections"][0]["name"] = json!("another");
        manifest["sections"][0]["required"] = json!(false);
    });
    let path = bad.scratch.file("bad.htz", bytes);
    htc!["inspect", &path].run().assert_ok();
    htc!["verify", &path].run().assert_ok();
    for run in [
        htc!["run", &path, "-p", "the", "-n", "2"],
        htc!["eval", &path, "--text", &bad.text, "--context", "16"],
        htc!["tokenize", &path, "--text", &bad.text, "--json"],
    ] {
        assert_refused(run, 1, &["bad.htz", "vocabulary"]);
    }
}

#[test]
fn inconsistent_manifest() {
    let bad = Bad::new();
    type Change = fn(&mut Value);
    let changes: [(Change, &[&str]); 13] = [
        (|m| m["hyper"]["layers"] = json!(4000), &["tensor"]),
        (|m| m["hyper"]["layers"] = json!(1_u64 << 60), &["layers"]),
        (|m| m["hyper"]["width"] = json!(0), &["width"]),
        (
            |m| m["hyper"]["norm_epsilon"] = json!(-1),
            &["norm_epsilon"],
        ),
        (
            |m| m["hyper"]["vocabulary"] = json!(300),
            &["token_embd.weight"],
        ),
        (
            |m| m["tensors"][0]["rows"] = json!(1_u64 << 62),
            &["token_embd.weight"],
        ),
        (
            |m| m["tensors"][3]["offset"] = json!(1_u64 << 62),
            &["offset"],
        ),
        (
            |m| m["tensors"][3]["offset"] = m["tensors"][2]["offset"].clone(),
            &["offset"],
        ),
        (|m| m["tensors"][3]["length"] = json!(7), &["length"]),
        (
            |m| m["tensors"][2]["role"] = m["tensors"][1]["role"].clone(),
            &["tensor"],
        ),
        (|m| m["sections"] = json!([]), &["bytes"]),
        (
            |m| m["sections"][0]["name"] = json!("another"),
            &["another", "update"],
        ),
        (|m| m["plan"]["projections"] = json!([]), &["plan"]),
    ];
    for (change, words) in changes {
        bad.refused_by_all(&bad.with_manifest(change), words);
    }
}

#[test]
fn manifest_that_is_not_json() {
    let bad = Bad::new();
    let place = bad.artifact.manifest_range();
    let nested = "[".repeat(place.len());
    let other = format!("{:<1$}", "\"a\n\u{1b}[2Jtext\"", place.len());
    for text in [nested.as_bytes(), &other.as_bytes()[..place.len()]] {
        let mut bytes = bad.artifact.bytes.clone();
        bytes[place.clone()].copy_from_slice(text);
        bad.refused_by_all(&bad.sealed(bytes), &["manifest"]);
    }
}

#[test]
fn absurd_lengths_in_the_header() {
    let bad = Bad::new();
    for (at, word) in [(16, "manifest"), (24, "manifest"), (32, "bytes")] {
        for value in [0, 1 << 60, u64::MAX] {
            let mut bytes = bad.artifact.bytes.clone();
            put_u64(&mut bytes, at, value);
            let header = Digest::of_bytes(&bytes[..96]);
            bytes[96..HEADER_BYTES].copy_from_slice(&header.0);
            bad.refused_by_all(&bytes, &[word, &value.to_string()]);
        }
    }
}

#[test]
fn absurd_length_of_a_section() {
    let bad = Bad::new();
    for length in [1_u64 << 40, 1 << 60] {
        let bytes = bad.with_manifest(|m| m["sections"][0]["decoded_length"] = json!(length));
        bad.refused_by_all(&bytes, &["tokenizer", &length.to_string()]);
    }
}

#[test]
fn compiling_an_artifact() {
    let bad = Bad::new();
    let input = bad.scratch.path("good.htz");
    let output = bad.scratch.path("again.htz");
    assert_refused(
        htc!["compile", &input, "-o", &output],
        1,
        &["good.htz", "artifact"],
    );
    assert!(!output.exists());
}
