use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use htc_formats::DType;
use htc_tests::artifact::Artifact;
use htc_tests::material::words;
use htc_tests::scratch::names_in;
use htc_tests::{Htc, Scratch, TinyModel, htc};
use serde_json::Value;

use super::{list, number, text};

fn compile(scratch: &Scratch, name: &str, options: &[&str]) -> Htc {
    let model = scratch.path("model.gguf");
    if !model.exists() {
        scratch.file("model.gguf", tiny().bytes());
        scratch.file("words.txt", words(20_000));
    }
    htc!["compile", &model, "-o", scratch.path(name), "--force"]
        .args(["--method", "quantise", "--target-size", "110kB"])
        .args(["--context", "32", "--calibration-tokens", "8192"])
        .args(["--calibration".into(), scratch.path("words.txt")])
        .args(["--cache".into(), scratch.path("cache")])
        .args(["--report", "json"])
        .args(options)
}

fn tiny() -> TinyModel {
    TinyModel {
        ffn: 192,
        ..TinyModel::default()
    }
}

fn bytes(scratch: &Scratch, name: &str) -> Vec<u8> {
    fs::read(scratch.path(name)).unwrap()
}

#[test]
fn only_norms_and_rows_are_tuned() {
    let scratch = Scratch::new();
    // Size steps exceed the space for the tuning record, so the plan is the same.
    let coded = ["--codes", "gguf", "--tune"];
    let plain = compile(&scratch, "plain.htz", &[&coded[..], &["0"]].concat())
        .run()
        .json();
    assert!(plain["tuning"].is_null(), "{plain}");
    let outcome = compile(&scratch, "tuned.htz", &[&coded[..], &["12"]].concat())
        .run()
        .assert_ok();
    let said = outcome.stderr.clone();
    assert!(said.contains("  tuned       "), "{said}");
    let tuned = outcome.json();
    assert_eq!(number(&tuned, "/tuning/asked"), 12.0);
    let rows = 2 * (64 + 32 + 32 + 64 + 192 + 192 + 64);
    assert_eq!(number(&tuned, "/tuning/numbers"), f64::from(320 + rows));
    let (before, after) = (
        number(&tuned, "/tuning/kl_before"),
        number(&tuned, "/tuning/kl_after"),
    );
    assert!(after < before, "{before} -> {after}");
    let trace = list(&tuned, "/tuning/trace");
    assert!(trace.len() > 2, "{trace:?}");
    assert_eq!(number(&tuned, "/tuning/trace/0/step"), 0.0);
    let chosen = |report: &Value| -> Value {
        let trials = list(report, "/trials").iter();
        let chosen = trials.filter(|trial| trial["chosen"] == true);
        let chosen: Vec<&Value> = chosen.collect();
        assert_eq!(chosen.len(), 1);
        chosen[0].clone()
    };
    let trial = chosen(&tuned);
    assert_eq!(trial["tuned"], tuned["tuning"]["kept"]);
    assert_eq!(number(&trial, "/evaluation/kl"), after);
    let record = Artifact::open(&scratch.path("tuned.htz"))
        .manifest
        .provenance
        .tuning;
    let record = record.unwrap();
    assert_eq!((record.kl_before, record.kl_after), (before, after));
    let shown = htc!["inspect", scratch.path("tuned.htz")]
        .run()
        .assert_ok()
        .text()
        .to_owned();
    let line = format!("KL divergence {before:.5} -> {after:.5} nats");
    assert!(shown.contains(&line), "{shown}");
    for word in ["factors in", "allocator"] {
        assert!(!shown.contains(word), "{word} in {shown}");
    }
    let [plain, tuned] = ["plain.htz", "tuned.htz"].map(|name| {
        htc!["verify", "--probe", scratch.path(name)]
            .run()
            .assert_ok();
        Artifact::open(&scratch.path(name))
    });
    assert!(plain.manifest.provenance.tuning.is_none());
    let record = tuned.manifest.provenance.tuning.unwrap();
    assert!(record.steps > 0 && record.kl_after < record.kl_before);
    let inspected = htc!["inspect", scratch.path("tuned.htz")].run().assert_ok();
    let said = format!("scales tuned in {} steps", record.steps);
    assert!(inspected.text().contains(&said));
    assert!(fs::metadata(scratch.path("tuned.htz")).unwrap().len() <= 110_000);
    let pairs = plain.manifest.tensors.iter().zip(&tuned.manifest.tensors);
    for (plain, tuned) in pairs {
        assert_eq!((plain.role, plain.dtype), (tuned.role, tuned.dtype));
        let role = plain.role.to_string();
        let is_tuned = role.contains("norm") || role.contains("blk.");
        assert_eq!(plain.sha256 != tuned.sha256, is_tuned, "{role}");
    }
}

#[test]
fn tuned_bytes_do_not_depend_on_threads() {
    let scratch = Scratch::new();
    let of = |name: &str, threads: &str| {
        let options = ["--tune", "6", "--threads", threads];
        let report = compile(&scratch, name, &options).run().json();
        assert!(number(&report, "/tuning/kept") > 0.0, "{report}");
        bytes(&scratch, name)
    };
    assert!(of("one.htz", "1") == of("two.htz", "2"));
}

#[test]
fn killed_tuning_resumes() {
    let scratch = Scratch::new();
    let options = ["--tune", "40"];
    compile(&scratch, "whole.htz", &options).run().assert_ok();
    let work = scratch.path(".killed.htz.htc-work");
    let state = || -> Option<PathBuf> {
        if !work.exists() {
            return None;
        }
        let names = names_in(&work);
        let name = names.into_iter().find(|name| name.ends_with(".state"))?;
        Some(work.join(name))
    };
    let steps = || -> f64 {
        let Some(text) = state().and_then(|path| fs::read(path).ok()) else {
            return 0.0;
        };
        let line = text.split(|byte| *byte == b'\n').next().unwrap();
        let json = line.iter().position(|byte| *byte == b'{').unwrap();
        number(&serde_json::from_slice(&line[json..]).unwrap(), "/step")
    };
    for _ in 0..3 {
        let before = steps();
        let mut child = compile(&scratch, "killed.htz", &options).spawn();
        let started = Instant::now();
        while steps() < before + 2.0 {
            assert!(child.try_wait().unwrap().is_none(), "finished too soon");
            assert!(started.elapsed() < Duration::from_secs(120), "no progress");
            sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!scratch.path("killed.htz").exists());
    }
    compile(&scratch, "killed.htz", &options).run().assert_ok();
    assert!(!work.exists());
    assert!(bytes(&scratch, "killed.htz") == bytes(&scratch, "whole.htz"));
}

#[test]
fn tuned_values_out_of_range_are_discarded() {
    let scratch = Scratch::new();
    let mut tensors = tiny().tensors();
    for tensor in &mut tensors {
        match tensor.name.as_str() {
            "blk.1.ffn_norm.weight" => {
                tensor.dtype = DType::F16;
                tensor.values.fill(65504.0);
            }
            "blk.1.ffn_gate.weight" | "blk.1.ffn_up.weight" => {
                tensor.values.iter_mut().for_each(|w| *w /= 65504.0);
            }
            _ => {}
        }
    }
    scratch.file("model.gguf", tiny().bytes_with_tensors(&tensors));
    scratch.file("words.txt", words(20_000));
    let outcome = compile(&scratch, "tuned.htz", &["--tune", "12"])
        .run()
        .assert_ok();
    let said = outcome.stderr.clone();
    assert!(said.contains("cannot be stored"), "{said}");
    let report = outcome.json();
    assert_eq!(number(&report, "/tuning/kept"), 0.0, "{report}");
    let why = text(&report, "/tuning/without_code");
    assert!(
        why.contains("ffn") && why.contains("f16") && why.contains("below 6.552e4"),
        "{why}"
    );
    htc!["verify", "--probe", scratch.path("tuned.htz")]
        .run()
        .assert_ok();
}

#[test]
fn invalid_steps_are_refused() {
    let scratch = Scratch::new();
    for steps in ["-1", "many", "1.5", "100001"] {
        let run = compile(&scratch, "none.htz", &["--tune", steps]).run();
        run.assert_refused(2, &["--tune", steps]);
    }
    let model = scratch.path("model.gguf");
    let run = htc!["compile", &model, "-o", scratch.path("none.htz")]
        .args(["--method", "low-rank", "--tune", "3"])
        .run();
    run.assert_refused(2, &["--tune", "--calibration"]);
    assert!(!scratch.path("none.htz").exists());
    let gp = |options: &[&str]| {
        htc!["compile", &model, "-o", scratch.path("gp.htz"), "--force"]
            .args(["--method", "low-rank", "--rank", "24", "--gauge", "whiten"])
            .args(["--context", "32", "--calibration-tokens", "8192"])
            .args(["--calibration".into(), scratch.path("words.txt")])
            .args(["--cache".into(), scratch.path("cache")])
            .args(["--report", "json"])
            .args(options)
            .run()
            .json()
    };
    assert!(gp(&[])["tuning"].is_null());
    let tuned = gp(&["--tune", "8"]);
    assert!(number(&tuned, "/tuning/kept") > 0.0, "{tuned}");
    assert_eq!(text(&tuned, "/plan/method"), "low-rank");
}
