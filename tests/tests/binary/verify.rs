//! `htc verify`: every change to an artifact is found and named.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;

use htc_tests::artifact::Artifact;
use htc_tests::{Scratch, TinyModel, htc};

use super::{compile, list};

fn artifact(scratch: &Scratch) -> (PathBuf, Artifact) {
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let (path, _) = compile(scratch, &model, "out.htz", &["--rank", "16"]);
    let artifact = Artifact::open(&path);
    fs::remove_file(model).unwrap();
    (path, artifact)
}

#[test]
fn undamaged_artifact_is_confirmed() {
    let scratch = Scratch::new();
    let (path, artifact) = artifact(&scratch);
    let outcome = htc!["verify", &path].run().assert_ok();
    assert!(!outcome.stdout.is_empty() && outcome.stderr.is_empty());
    let result = htc!["verify", &path, "--json"].run().json();
    assert_eq!(result["ok"], true);
    assert!(list(&result, "/damaged").is_empty());
    let manifest = artifact.manifest;
    let items = manifest.tensors.len() + manifest.sections.len();
    assert!(result["items"].as_u64() >= Some(items as u64), "{result}");
}

fn flipped(artifact: &Artifact, byte: usize, bit: usize) -> Vec<u8> {
    let mut bytes = artifact.bytes.clone();
    bytes[byte] ^= 1 << bit;
    bytes
}

fn assert_found_in(part: impl Fn(&Artifact) -> Range<usize>, named: &[&str]) {
    let scratch = Scratch::new();
    let (_, artifact) = artifact(&scratch);
    let part = part(&artifact);
    for (byte, bit) in [
        (part.start, 0),
        (part.start + part.len() / 2, 3),
        (part.end - 1, 7),
    ] {
        let path = scratch.file("damaged.htz", flipped(&artifact, byte, bit));
        let words = [&["damaged.htz"], named].concat();
        htc!["verify", &path].run().assert_refused(1, &words);
    }
}

#[test]
fn flipped_bit_in_the_header_is_found() {
    assert_found_in(|_| 8..128, &["header", "copy"]);
}

#[test]
fn flipped_bit_in_the_magic_is_found() {
    let scratch = Scratch::new();
    let (_, artifact) = artifact(&scratch);
    for byte in 0..8 {
        let path = scratch.file("damaged.htz", flipped(&artifact, byte, 5));
        htc!["verify", &path]
            .run()
            .assert_refused(1, &["damaged.htz"]);
    }
}

#[test]
fn flipped_bit_in_the_manifest_is_found() {
    assert_found_in(Artifact::manifest_range, &["manifest", "copy"]);
}

#[test]
fn flipped_bit_in_a_tensor_is_found() {
    for role in ["token_embd.weight", "blk.1.ffn_gate.b", "output_norm"] {
        assert_found_in(|artifact| artifact.tensor_range(role), &[role, "copy"]);
    }
}

#[test]
fn flipped_bit_in_the_tokenizer_is_found() {
    assert_found_in(
        |artifact| artifact.section_range("tokenizer"),
        &["tokenizer", "copy"],
    );
}

#[test]
fn flipped_bit_in_the_padding_is_found() {
    let place = |artifact: &Artifact| artifact.padding()..artifact.padding() + 1;
    assert_found_in(place, &["padding", "copy"]);
}

#[test]
fn damage_is_listed_as_json() {
    let scratch = Scratch::new();
    let (_, artifact) = artifact(&scratch);
    let mut bytes = artifact.bytes.clone();
    for role in ["blk.0.attn_q.a", "blk.1.ffn_down.b"] {
        bytes[artifact.tensor_range(role).start] ^= 1;
    }
    let path = scratch.file("damaged.htz", bytes);
    let outcome = htc!["verify", &path, "--json"].run();
    assert_eq!(outcome.code(), Some(1), "{}", outcome.stderr);
    let result: serde_json::Value = serde_json::from_slice(&outcome.stdout).unwrap();
    assert_eq!(result["ok"], false);
    let damaged = list(&result, "/damaged");
    assert_eq!(damaged.len(), 2, "{result}");
    assert_eq!(damaged[0]["item"], "tensor blk.0.attn_q.a");
    assert_eq!(damaged[1]["item"], "tensor blk.1.ffn_down.b");
    assert_eq!(outcome.stderr.lines().count(), 1);
}

/// The odd step covers all bits of a byte.
#[test]
fn flipped_bit_anywhere_is_found() {
    let scratch = Scratch::new();
    let (_, artifact) = artifact(&scratch);
    let step = artifact.bytes.len() / 150;
    for (index, byte) in (0..artifact.bytes.len()).step_by(step).enumerate() {
        let path = scratch.file("damaged.htz", flipped(&artifact, byte, index % 8));
        htc!["verify", &path]
            .run()
            .assert_refused(1, &["damaged.htz"]);
    }
}

#[test]
fn gguf_cannot_be_verified() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    htc!["verify", &model]
        .run()
        .assert_refused(1, &["model.gguf", "compile"]);
}
