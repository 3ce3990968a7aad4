//! Rotation of matrices in column groups and of their inputs.

use std::fs;
use std::path::{Path, PathBuf};

use htc_formats::bands::CodeLayout;
use htc_tests::artifact::Artifact;
use htc_tests::logits::assert_export_matches;
use htc_tests::material::words;
use htc_tests::{Htc, Scratch, TinyModel, htc};

const TOKENS: [u32; 8] = [1, 261, 297, 70, 280, 5, 298, 3];

const SIZE: [&str; 6] = [
    "--target-size",
    "90kB",
    "--effort",
    "fast",
    "--codes",
    "trellis",
];

fn planning(scratch: &Scratch, command: &str, name: &str, options: &[&str]) -> Htc {
    let model = scratch.path("model.gguf");
    if !model.exists() {
        let tiny = TinyModel {
            ffn: 200,
            ..TinyModel::default()
        };
        scratch.file("words.txt", words(20_000));
        scratch.file("model.gguf", tiny.bytes());
    }
    htc![command, &model, "-o", scratch.path(name)]
        .args(["--force", "--context", "32", "--calibration-tokens", "4096"])
        .args(["--calibration".into(), scratch.path("words.txt")])
        .args(["--cache".into(), scratch.path("cache")])
        .args(options)
}

fn compile(scratch: &Scratch, name: &str, options: &[&str]) -> PathBuf {
    let options = [&SIZE[..], &["--tune", "0"], options].concat();
    planning(scratch, "compile", name, &options)
        .run()
        .assert_ok();
    scratch.path(name)
}

fn codes(path: &Path) -> Vec<CodeLayout> {
    let tensors = Artifact::open(path).manifest.tensors.into_iter();
    tensors.filter_map(|tensor| tensor.codes).collect()
}

fn rotated(path: &Path) -> Vec<bool> {
    codes(path).iter().map(CodeLayout::is_rotated).collect()
}

#[test]
fn column_groups_are_rotated_by_default() {
    let scratch = Scratch::new();
    let one = compile(&scratch, "1.htz", &["--threads", "1"]);
    let two = compile(&scratch, "2.htz", &["--threads", "2"]);
    assert!(fs::read(&one).unwrap() == fs::read(&two).unwrap());
    let all = rotated(&one);
    assert!(
        all.len() > 10 && all.iter().all(|&rotated| rotated),
        "{all:?}"
    );
    let requires = Artifact::open(&one).manifest.requires;
    assert!(requires.iter().any(|name| name == "rotated_bands"));
    htc!["verify", &one].run().assert_ok();
    let shown = htc!["inspect", &one].run().assert_ok().text().to_owned();
    assert!(shown.contains(", rotated"), "{shown}");

    let exported = scratch.path("exported.gguf");
    htc!["export", &one, "-o", &exported, "--type", "f32", "--force"]
        .run()
        .assert_ok();
    assert_export_matches(&one, &exported, &TOKENS);
}

#[test]
fn residuals_are_rotated() {
    let scratch = Scratch::new();
    let path = compile(&scratch, "planes.htz", &["--planes", "2"]);
    htc!["verify", &path].run().assert_ok();
    let tensors = Artifact::open(&path).manifest.tensors.into_iter();
    let refinements = tensors.filter(|tensor| tensor.name.ends_with(".refinement"));
    let rotated: Vec<bool> = refinements
        .map(|tensor| tensor.codes.unwrap().is_rotated())
        .collect();
    assert!(
        rotated.len() > 2 && rotated.iter().all(|&rotated| rotated),
        "{rotated:?}"
    );
}

#[test]
fn rotation_off_keeps_the_sources_columns() {
    let scratch = Scratch::new();
    let off = ["--rotation", "off"];
    let path = compile(&scratch, "off.htz", &off);
    let all = rotated(&path);
    assert!(
        all.len() > 10 && !all.iter().any(|&rotated| rotated),
        "{all:?}"
    );
    let requires = Artifact::open(&path).manifest.requires;
    assert!(
        !requires.iter().any(|name| name == "rotated_bands"),
        "{requires:?}"
    );
    let shown = htc!["inspect", &path].run().assert_ok().text().to_owned();
    assert!(!shown.contains("rotated"), "{shown}");

    planning(&scratch, "plan", "plan.json", &[&SIZE[..], &off].concat())
        .run()
        .assert_ok();
    let plan = scratch.path("plan.json");
    let written = fs::read_to_string(&plan).unwrap();
    assert!(written.contains("\"rotation\":\"off\""), "{written}");
    assert!(!written.contains("2r:"), "{written}");
    planning(&scratch, "plan", "on.json", &SIZE)
        .run()
        .assert_ok();
    let on = fs::read_to_string(scratch.path("on.json")).unwrap();
    assert!(on.contains("\"2r:") && !on.contains("\"rotation\""), "{on}");
    for (plan, expected) in [
        (plan, path),
        (scratch.path("on.json"), compile(&scratch, "on.htz", &[])),
    ] {
        let options = ["--plan", plan.to_str().unwrap(), "--tune", "0"];
        planning(&scratch, "compile", "planned.htz", &options)
            .run()
            .assert_ok();
        assert_eq!(codes(&scratch.path("planned.htz")), codes(&expected));
    }

    planning(&scratch, "compile", "no.htz", &["--rotation", "maybe"])
        .run()
        .assert_refused(2, &["--rotation", "on or off"]);
}
