//! What an artifact says of its own quality: what was measured on text that decided nothing, and nothing else.

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use htc_formats::htz::{Digest, HEADER_BYTES, QualityRecord};
use htc_tests::artifact::Artifact;
use htc_tests::binary::wait;
use htc_tests::material::demo;
use htc_tests::scratch::names_in;
use htc_tests::{Htc, Scratch, TinyModel, htc};
use serde_json::{Value, json};

use super::{list, number};

const MODEL: &str = "reference-7m-f16.gguf";

/// Where what is finished is kept.
const WORK: &str = ".out.htz.htc-work";

/// The demo model, calibrated and measured on very little text: 64 windows and behind them 16.
fn compile(scratch: &Scratch, options: &[&str]) -> Htc {
    htc![
        "compile",
        demo(MODEL),
        "-o",
        scratch.path("out.htz"),
        "--calibration",
        demo("alice.txt"),
        "--cache",
        scratch.path("cache")
    ]
    .args(["--calibration-tokens", "4096", "--context", "64"])
    .args(["--slots", "k,v", "--ratio", "0.5"])
    .args(options)
}

/// Nothing is decided by measuring.
const FIXED: [&str; 4] = ["--gauge", "whiten", "--bias", "off"];

fn output(scratch: &Scratch) -> Artifact {
    Artifact::open(&scratch.path("out.htz"))
}

/// The quality of an artifact is that of the report, on the windows that decided nothing; of the candidates that
/// were not chosen there is nothing in it.
#[test]
fn an_artifact_says_what_was_measured_on_what_decided_nothing() {
    let scratch = Scratch::new();
    let options = [
        "--shrinkage",
        "auto",
        "--gauge",
        "whiten",
        "--report",
        "json",
    ];
    let report = compile(&scratch, &options).run().ok().json();
    let artifact = output(&scratch);
    let quality = artifact.manifest.quality.clone().unwrap();
    let evaluation = &report["quality"]["evaluation"];
    for (estimate, name) in [
        (quality.kl, "kl"),
        (quality.perplexity_ratio, "perplexity_ratio"),
    ] {
        assert_eq!(json!(estimate.value), evaluation[name]);
        assert_eq!(json!(estimate.stderr), evaluation[format!("{name}_stderr")]);
        assert_eq!(
            json!(estimate.interval),
            evaluation[format!("{name}_interval")]
        );
        assert!(estimate.stderr > Some(0.0));
    }
    assert_eq!((quality.windows, quality.choosing_windows), (16, 16));
    // From half of each window on, but for the last position, which predicts nothing.
    assert_eq!((quality.context, quality.tokens), (64, 16 * 31));
    assert_eq!(quality.protocol, QualityRecord::SECOND_HALF);
    let text = fs::read(demo("alice.txt")).unwrap();
    assert_eq!(quality.text_sha256, Digest::of(&text));
    // No candidate's own number: those are of the windows that decided.
    let trials = list(&report, "/trials");
    assert!(trials.len() > 5);
    let manifest = String::from_utf8(artifact.bytes[artifact.manifest_place()].to_vec()).unwrap();
    for trial in trials {
        let kl = trial["evaluation"]["kl"].to_string();
        assert!(kl.len() > 8 && !manifest.contains(&kl), "{kl}");
    }
    // The shrinkage that was found.
    let chosen = trials.iter().find(|trial| trial["chosen"] == true).unwrap();
    let treatment = artifact.manifest.provenance.treatment.clone().unwrap();
    assert_eq!(treatment.shrinkage, chosen["shrinkage"].as_f64());
    assert!(treatment.shrinkage.is_some());
    scratch.holds_only(&["cache", "out.htz"]);
    // What is said of it.
    let path = scratch.path("out.htz");
    htc!["verify", &path].run().ok();
    let said = htc!["inspect", &path].run().ok().stderr;
    for word in [
        format!("KL divergence {:.5} nats (95 % interval", quality.kl.value),
        format!(
            "perplexity {:.4} of the source's (95 %",
            quality.perplexity_ratio.value
        ),
        format!(
            "16 windows of 64 tokens that decided nothing, 496 positions by second_half, text sha256 {}",
            quality.text_sha256
        ),
        format!(", shrinkage {}", treatment.shrinkage.unwrap()),
    ] {
        assert!(said.contains(&word), "{word}: {said}");
    }
    let found = htc!["inspect", &path, "--json"].run().json();
    assert_eq!(found["quality"], serde_json::to_value(&quality).unwrap());
    assert_eq!(found["version"], "1.5");
    let page = scratch.path("page.html");
    htc!["report", &path, "-o", &page].run().ok();
    let page = fs::read_to_string(&page).unwrap();
    assert!(page.contains("Recorded in the artifact: on 496 tokens of the test split"));
    // `htc eval` measures the same where nothing decided: on the windows of a text of its own.
    let held_out = demo("time_machine.txt");
    let start: String = fs::read_to_string(held_out)
        .unwrap()
        .chars()
        .take(2000)
        .collect();
    let held_out = scratch.file("held.txt", &start);
    let run = compile(&scratch, &FIXED).arg("--held-out").arg(&held_out);
    run.arg("--force").run().ok();
    let quality = output(&scratch).manifest.quality.unwrap();
    assert_eq!(quality.text_sha256, Digest::of(start.as_bytes()));
    assert_eq!(quality.choosing_windows, 0);
    let measured = htc![
        "eval",
        &path,
        "--text",
        &held_out,
        "--context",
        "64",
        "--json"
    ]
    .arg("--reference")
    .arg(demo(MODEL));
    let measured = measured.run().ok().json();
    assert_eq!(number(&measured, "/kl"), quality.kl.value);
    assert_eq!(
        number(&measured, "/perplexity_ratio"),
        quality.perplexity_ratio.value
    );
    assert_eq!(measured["chunks"], json!(quality.windows));
}

/// Where nothing is measured nothing is said, and no room is kept for it.
#[test]
fn an_artifact_without_text_says_nothing_of_its_quality() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let (path, _) = super::compile(&scratch, &model, "out.htz", &["--rank", "8"]);
    let artifact = Artifact::open(&path);
    assert_eq!(artifact.manifest.quality, None);
    assert_eq!(artifact.bytes[10], 3, "the minor version");
    let manifest = &artifact.bytes[artifact.manifest_place()];
    assert!(!htc!["inspect", &path].run().ok().stderr.contains("quality"));
    // As much as longer errors, offsets and spectra take, of which there are at most 24 bytes each.
    let spaces = manifest.iter().rev().take_while(|byte| **byte == b' ');
    let numbers = 3 * artifact.manifest.plan.slots.len() + artifact.manifest.tensors.len() + 1;
    assert!(spaces.count() < 256 + 20 * numbers);
}

/// The journals in the work folder, how often they say that an artifact is complete.
fn completions(scratch: &Scratch) -> usize {
    left(scratch, "journal").map_or(0, |path| {
        let journal = fs::read_to_string(path).unwrap_or_default();
        journal.matches("\"complete\"").count()
    })
}

/// A file of the work folder with this extension.
fn left(scratch: &Scratch, extension: &str) -> Option<PathBuf> {
    let work = scratch.path(WORK);
    let names = if work.exists() {
        names_in(&work)
    } else {
        Vec::new()
    };
    let mut found = names.into_iter().map(|name| work.join(name));
    found.find(|path| path.extension().is_some_and(|of| of == extension))
}

fn wait_for(what: impl Fn() -> bool) {
    let begun = Instant::now();
    while !what() {
        assert!(begun.elapsed() < Duration::from_secs(120), "no progress");
        sleep(Duration::from_millis(1));
    }
}

/// Killed while it is measured, with the quality half written, and refused its name with the quality in it: the
/// same command gives the same bytes, on one thread and on two, and another text another quality.
#[test]
fn the_quality_is_the_same_on_any_number_of_threads_and_after_any_end() {
    let scratch = Scratch::new();
    let path = scratch.path("out.htz");
    let run = |threads: &str| compile(&scratch, &FIXED).args(["--threads", threads]);
    run("1").run().ok();
    let expected = fs::read(&path).unwrap();
    assert!(output(&scratch).manifest.quality.is_some());
    let is_expected = || {
        let same = fs::read(&path).unwrap() == expected;
        scratch.holds_only(&["cache", "out.htz"]);
        fs::remove_file(&path).unwrap();
        same
    };
    assert!(is_expected());
    run("2").run().ok();
    assert!(is_expected());

    // While it is measured.
    let mut child = run("2").spawn();
    wait_for(|| completions(&scratch) == 1);
    child.kill().unwrap();
    child.wait().unwrap();
    let complete = left(&scratch, "htz").unwrap();
    let unmeasured = Artifact::open(&complete);
    assert_eq!(unmeasured.manifest.quality, None);
    // With half of the quality written.
    let half = [
        &expected[..HEADER_BYTES + 100],
        &unmeasured.bytes[HEADER_BYTES + 100..],
    ]
    .concat();
    fs::write(&complete, half).unwrap();
    run("1").run().ok();
    assert!(is_expected());

    // Its name is taken at the end.
    let taken = |threads: &str| {
        let mut child = run(threads).spawn();
        wait_for(|| completions(&scratch) == 1);
        fs::write(&path, "of somebody").unwrap();
        let status = wait(&mut child, Duration::from_secs(120), "htc");
        assert_eq!(status.code(), Some(1));
        fs::remove_file(&path).unwrap();
        assert_eq!(completions(&scratch), 2);
        let kept = Artifact::open(&left(&scratch, "htz").unwrap());
        assert!(kept.bytes == expected);
    };
    taken("2");
    run("2").run().ok();
    assert!(is_expected());
    // Gone on with, it is measured on what is given now.
    taken("1");
    let start = fs::read_to_string(demo("time_machine.txt")).unwrap();
    let start: String = start.chars().take(2000).collect();
    let other = scratch.file("other.txt", &start);
    let with_other = || run("2").arg("--held-out").arg(&other).run().ok();
    with_other();
    let gone_on = output(&scratch);
    let quality = gone_on.manifest.quality.clone().unwrap();
    assert_eq!(quality.text_sha256, Digest::of(start.as_bytes()));
    scratch.holds_only(&["cache", "other.txt", "out.htz"]);
    fs::remove_file(&path).unwrap();
    with_other();
    assert!(output(&scratch).bytes == gone_on.bytes);
}

/// What is no measurement is refused by its name, by every command that opens the artifact.
#[test]
fn a_quality_that_is_none_is_named() {
    let scratch = Scratch::new();
    compile(&scratch, &FIXED).run().ok();
    let artifact = output(&scratch);
    for (place, value, words) in [
        (
            "/quality/kl/value",
            json!(-0.5),
            ["quality: kl.value is -0.5", "not negative"],
        ),
        (
            "/quality/kl/value",
            Value::Null,
            ["quality.kl.value", "null"],
        ),
        (
            "/quality/kl/value",
            json!("low"),
            ["quality.kl.value", "string"],
        ),
        (
            "/quality/perplexity_ratio/interval",
            json!([2, 1]),
            [
                "quality: perplexity_ratio.interval is 2 to 1",
                "the lower first",
            ],
        ),
    ] {
        let mut manifest: Value =
            serde_json::from_slice(&artifact.bytes[artifact.manifest_place()]).unwrap();
        *manifest.pointer_mut(place).unwrap() = value;
        let mut bytes = artifact.bytes.clone();
        let room = &mut bytes[artifact.manifest_place()];
        let text = manifest.to_string();
        room.fill(b' ');
        room[..text.len()].copy_from_slice(text.as_bytes());
        let digest = Digest::of(room);
        bytes[40..72].copy_from_slice(&digest.0);
        let digest = Digest::of(&bytes[..96]);
        bytes[96..HEADER_BYTES].copy_from_slice(&digest.0);
        let bad = scratch.file("bad.htz", &bytes);
        for command in ["verify", "inspect"] {
            htc![command, &bad]
                .run()
                .refused(1, &[&["bad.htz"][..], &words].concat());
        }
    }
}
