use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use htc_formats::htz::{Digest, HEADER_BYTES, QualityRecord};
use htc_tests::artifact::Artifact;
use htc_tests::binary::wait;
use htc_tests::material::{demo, demo_of_layers};
use htc_tests::scratch::names_in;
use htc_tests::{Htc, Scratch, TinyModel, htc};
use serde_json::{Value, json};

use super::{list, number};

const LAYERS: u32 = 2;

const WORK: &str = ".out.htz.htc-work";

fn compile(scratch: &Scratch, options: &[&str]) -> Htc {
    htc![
        "compile",
        demo_of_layers(LAYERS),
        "-o",
        scratch.path("out.htz"),
        "--calibration",
        demo("alice.txt"),
        "--cache",
        scratch.path("cache")
    ]
    .args(["--calibration-tokens", "4096", "--context", "64"])
    .args(["--projections", "k,v", "--ratio", "0.5"])
    .args(options)
}

const FIXED: [&str; 4] = ["--gauge", "whiten", "--bias", "off"];

fn output(scratch: &Scratch) -> Artifact {
    Artifact::open(&scratch.path("out.htz"))
}

#[test]
fn artifact_records_quality_on_the_test_split() {
    let scratch = Scratch::new();
    let options = [
        "--shrinkage",
        "auto",
        "--gauge",
        "whiten",
        "--report",
        "json",
    ];
    let report = compile(&scratch, &options).run().assert_ok().json();
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
    assert_eq!((quality.context, quality.tokens), (64, 16 * 31));
    assert_eq!(quality.protocol, QualityRecord::SECOND_HALF);
    let text = fs::read(demo("alice.txt")).unwrap();
    assert_eq!(quality.text_sha256, Digest::of_bytes(&text));
    let trials = list(&report, "/trials");
    assert!(trials.len() > 5);
    let manifest = String::from_utf8(artifact.bytes[artifact.manifest_range()].to_vec()).unwrap();
    for trial in trials {
        let kl = trial["evaluation"]["kl"].to_string();
        assert!(kl.len() > 8 && !manifest.contains(&kl), "{kl}");
    }
    let chosen = trials.iter().find(|trial| trial["chosen"] == true).unwrap();
    let treatment = artifact.manifest.provenance.treatment.clone().unwrap();
    assert_eq!(treatment.shrinkage, chosen["shrinkage"].as_f64());
    assert!(treatment.shrinkage.is_some());
    scratch.assert_only_files(&["cache", "out.htz"]);
    let path = scratch.path("out.htz");
    htc!["verify", &path].run().assert_ok();
    let said = htc!["inspect", &path].run().assert_ok().text().to_owned();
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
    assert_eq!(found["version"], "2.1");
    let page = scratch.path("page.html");
    htc!["report", &path, "-o", &page].run().assert_ok();
    let page = fs::read_to_string(&page).unwrap();
    assert!(page.contains("The artifact records this for 496 tokens of the test split"));
    let held_out = demo("time_machine.txt");
    let start: String = fs::read_to_string(held_out)
        .unwrap()
        .chars()
        .take(2000)
        .collect();
    let held_out = scratch.file("held.txt", &start);
    let run = compile(&scratch, &FIXED).arg("--held-out").arg(&held_out);
    run.arg("--force").run().assert_ok();
    let quality = output(&scratch).manifest.quality.unwrap();
    assert_eq!(quality.text_sha256, Digest::of_bytes(start.as_bytes()));
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
    .arg(demo_of_layers(LAYERS));
    let measured = measured.run().assert_ok().json();
    assert_eq!(number(&measured, "/kl"), quality.kl.value);
    assert_eq!(
        number(&measured, "/perplexity_ratio"),
        quality.perplexity_ratio.value
    );
    assert_eq!(measured["chunks"], json!(quality.windows));
}

#[test]
fn artifact_without_text_has_no_quality() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let (path, _) = super::compile(&scratch, &model, "out.htz", &["--rank", "8"]);
    let artifact = Artifact::open(&path);
    assert_eq!(artifact.manifest.quality, None);
    assert_eq!(artifact.bytes[8..12], [2, 0, 1, 0], "format 2.1");
    let manifest = &artifact.bytes[artifact.manifest_range()];
    assert!(
        !htc!["inspect", &path]
            .run()
            .assert_ok()
            .text()
            .contains("quality")
    );
    // At most 24 bytes for each error, offset and spectrum.
    let spaces = manifest.iter().rev().take_while(|byte| **byte == b' ');
    let numbers =
        3 * artifact.manifest.plan.projections.len() + artifact.manifest.tensors.len() + 1;
    assert!(spaces.count() < 256 + 20 * numbers);
}

fn completions(scratch: &Scratch) -> usize {
    left(scratch, "journal").map_or(0, |path| {
        let journal = fs::read_to_string(path).unwrap_or_default();
        journal.matches("\"complete\"").count()
    })
}

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

fn wait_for(condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(120), "no progress");
        sleep(Duration::from_millis(1));
    }
}

#[test]
fn quality_does_not_depend_on_threads_or_interruptions() {
    let scratch = Scratch::new();
    let path = scratch.path("out.htz");
    let run = |threads: &str| compile(&scratch, &FIXED).args(["--threads", threads]);
    run("1").run().assert_ok();
    let expected = fs::read(&path).unwrap();
    assert!(output(&scratch).manifest.quality.is_some());
    let is_expected = || {
        let same = fs::read(&path).unwrap() == expected;
        scratch.assert_only_files(&["cache", "out.htz"]);
        fs::remove_file(&path).unwrap();
        same
    };
    assert!(is_expected());
    run("2").run().assert_ok();
    assert!(is_expected());

    let mut child = run("2").spawn();
    wait_for(|| completions(&scratch) == 1);
    child.kill().unwrap();
    child.wait().unwrap();
    let complete = left(&scratch, "htz").unwrap();
    let unmeasured = Artifact::open(&complete);
    assert_eq!(unmeasured.manifest.quality, None);
    let half = [
        &expected[..HEADER_BYTES + 100],
        &unmeasured.bytes[HEADER_BYTES + 100..],
    ]
    .concat();
    fs::write(&complete, half).unwrap();
    run("1").run().assert_ok();
    assert!(is_expected());

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
    run("2").run().assert_ok();
    assert!(is_expected());
    taken("1");
    let start = fs::read_to_string(demo("time_machine.txt")).unwrap();
    let start: String = start.chars().take(2000).collect();
    let other = scratch.file("other.txt", &start);
    let with_other = || run("2").arg("--held-out").arg(&other).run().assert_ok();
    with_other();
    let gone_on = output(&scratch);
    let quality = gone_on.manifest.quality.clone().unwrap();
    assert_eq!(quality.text_sha256, Digest::of_bytes(start.as_bytes()));
    scratch.assert_only_files(&["cache", "other.txt", "out.htz"]);
    fs::remove_file(&path).unwrap();
    with_other();
    assert!(output(&scratch).bytes == gone_on.bytes);
}

#[test]
fn invalid_quality_is_refused_by_field() {
    let scratch = Scratch::new();
    compile(&scratch, &FIXED).run().assert_ok();
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
            serde_json::from_slice(&artifact.bytes[artifact.manifest_range()]).unwrap();
        *manifest.pointer_mut(place).unwrap() = value;
        let mut bytes = artifact.bytes.clone();
        let stored = &mut bytes[artifact.manifest_range()];
        let text = manifest.to_string();
        stored.fill(b' ');
        stored[..text.len()].copy_from_slice(text.as_bytes());
        let digest = Digest::of_bytes(stored);
        bytes[40..72].copy_from_slice(&digest.0);
        let digest = Digest::of_bytes(&bytes[..96]);
        bytes[96..HEADER_BYTES].copy_from_slice(&digest.0);
        let bad = scratch.file("bad.htz", &bytes);
        for command in ["verify", "inspect"] {
            htc![command, &bad]
                .run()
                .assert_refused(1, &[&["bad.htz"][..], &words].concat());
        }
    }
}
