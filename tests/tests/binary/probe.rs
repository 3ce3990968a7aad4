//! `htc verify --probe`: spectra of one layer compared to the artifact's record.

use std::fs;
use std::path::{Path, PathBuf};

use htc_formats::htz::{Digest, HEADER_BYTES};
use htc_tests::artifact::Artifact;
use htc_tests::material::words;
use htc_tests::{Outcome, Scratch, TinyModel, htc};
use serde_json::Value;

use super::{METHODS, assert_close, compile, list, number, text};

const DEPTH_SINK: usize = 2;

fn model(scratch: &Scratch) -> PathBuf {
    let model = TinyModel {
        layers: 3,
        ffn: 160,
        ..TinyModel::default()
    };
    scratch.file("model.gguf", model.bytes())
}

fn probe(artifact: &Path, options: &[&str]) -> Outcome {
    htc!["verify", artifact, "--probe"].args(options).run()
}

#[track_caller]
fn parsed(outcome: &Outcome) -> Value {
    serde_json::from_slice(&outcome.stdout).unwrap()
}

#[track_caller]
fn assert_confirmed(path: &Path) {
    let said = probe(path, &[]).assert_ok().text().to_owned();
    for words in ["layer 2 of 3", "depth sink", "guessed", " ms"] {
        assert!(said.contains(words), "{words} in {said}");
    }
    assert!(!said.contains("undamaged"), "{said}");
    let artifact = Artifact::open(path);
    for layer in 0..3 {
        let asked = layer.to_string();
        let found = probe(path, &["--json", "--layer", &asked]).json();
        assert_eq!(found["ok"], true, "{found}");
        assert_eq!(found["probe"]["layer"], layer);
        assert_eq!(text(&found, "/probe/origin"), "asked");
        assert!(number(&found, "/probe/milliseconds") > 0.0);
        assert!(found.get("items").is_none(), "{found}");
        let projections = list(&found, "/probe/projections");
        assert_eq!(projections.len(), 7);
        for projection in projections {
            let energies = energies(&artifact, layer, text(projection, "/id"));
            let largest = energies.iter().copied().fold(0.0, f64::max).sqrt();
            for side in ["/expected", "/found"] {
                let number = |key: &str| number(projection, &format!("{side}/{key}"));
                assert_eq!(number("components"), energies.len() as f64);
                assert_close(number("largest"), largest, 1e-9);
                assert_close(number("energy"), energies.iter().sum(), 1e-9);
            }
        }
    }
}

fn energies(artifact: &Artifact, layer: usize, id: &str) -> Vec<f64> {
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let row = |role: &str| -> Vec<f64> {
        let m = artifact.matrix(role);
        let rows = (0..m.rows).map(|i| squares(&mut (0..m.cols).map(|j| m.at(i, j))));
        rows.collect()
    };
    let column = |role: &str| -> Vec<f64> {
        let m = artifact.matrix(role);
        let cols = (0..m.cols).map(|j| squares(&mut (0..m.rows).map(|i| m.at(i, j))));
        cols.collect()
    };
    let product = |a: Vec<f64>, b: Vec<f64>| a.iter().zip(&b).map(|(a, b)| a * b).collect();
    let part = |part: &str| format!("{id}.{part}");
    if artifact.has(&part("a")) {
        product(row(&part("a")), column(&part("b")))
    } else if artifact.has(&part("projected")) {
        let basis = format!("blk.{layer}.attn_qkv.basis");
        product(row(&basis), column(&part("projected")))
    } else {
        row(&part("weight"))
    }
}

#[test]
fn undamaged_spectra_are_confirmed() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    for method in METHODS {
        let options = ["--method", method, "--rank", "32", "--force"];
        for factor_type in ["f32", "q8_0", "q4_0"] {
            let options = [&options[..], &["--factor-type", factor_type]].concat();
            let (path, _) = compile(&scratch, &model, "out.htz", &options);
            assert_confirmed(&path);
        }
    }
}

#[test]
fn mostly_dense_artifact_is_confirmed() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let options = ["--projections", "k", "--rank", "8"];
    let (path, _) = compile(&scratch, &model, "out.htz", &options);
    assert_confirmed(&path);
}

fn damaged(scratch: &Scratch, artifact: &Artifact, role: &str) -> PathBuf {
    let mut bytes = artifact.bytes.clone();
    let place = artifact.tensor_range(role);
    bytes[place.start + 7] ^= 0x03;
    scratch.file("damaged.htz", bytes)
}

#[test]
fn damage_in_the_probed_layer_is_found_and_named() {
    let scratch = Scratch::new();
    let (path, _) = compile(&scratch, &model(&scratch), "out.htz", &["--rank", "16"]);
    let artifact = Artifact::open(&path);
    for part in ["attn_q.a", "ffn_up.b", "ffn_down.b"] {
        let role = format!("blk.{DEPTH_SINK}.{part}");
        let path = damaged(&scratch, &artifact, &role);
        let outcome = probe(&path, &[]);
        assert_eq!(outcome.code(), Some(1), "{}", outcome.stderr);
        let (said, failure) = outcome.stderr.split_once('\n').unwrap();
        let (id, _) = role.rsplit_once('.').unwrap();
        assert!(said.contains(&format!("({id})")), "{said}");
        assert!(said.contains("every digest follows"), "{said}");
        assert!(
            failure.contains(&role) && failure.contains("copy"),
            "{failure}"
        );
        let outcome = probe(&path, &["--json"]);
        assert_eq!(outcome.code(), Some(1));
        let found = parsed(&outcome);
        assert_eq!(
            (&found["ok"], &found["probe"]["ok"]),
            (&false.into(), &false.into())
        );
        assert_eq!(text(&found, "/probe/origin"), "guessed");
        assert_eq!(list(&found, "/damaged").len(), 1);
        assert_eq!(text(&found, "/damaged/0/item"), format!("tensor {role}"));
        assert!(number(&found, "/items") > 10.0);
    }
}

#[test]
fn damage_in_another_layer_is_found_when_probed() {
    let scratch = Scratch::new();
    let (path, _) = compile(&scratch, &model(&scratch), "out.htz", &["--rank", "16"]);
    let artifact = Artifact::open(&path);
    let path = damaged(&scratch, &artifact, "blk.0.ffn_gate.b");
    probe(&path, &[]).assert_ok();
    htc!["verify", &path]
        .run()
        .assert_refused(1, &["damaged.htz", "blk.0.ffn_gate.b"]);
    let outcome = probe(&path, &["--layer", "0"]);
    assert_eq!(outcome.code(), Some(1), "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("(blk.0.ffn_gate)"),
        "{}",
        outcome.stderr
    );
    assert!(outcome.stderr.contains("blk.0.ffn_gate.b is damaged"));
}

#[test]
fn wrong_spectra_with_valid_digests_fail() {
    let scratch = Scratch::new();
    let (path, _) = compile(&scratch, &model(&scratch), "out.htz", &["--rank", "16"]);
    let mut bytes = fs::read(&path).unwrap();
    let manifest = Artifact::open(&path).manifest_range();
    let mut value: Value = serde_json::from_slice(&bytes[manifest.clone()]).unwrap();
    let record = &mut value["geometry"]["spectra"][DEPTH_SINK * 7 + 4]["energy"];
    *record = 0.5.into();
    let text = value.to_string();
    bytes[manifest.clone()].fill(b' ');
    bytes[manifest.start..manifest.start + text.len()].copy_from_slice(text.as_bytes());
    let digest = Digest::of_bytes(&bytes[manifest]);
    bytes[40..72].copy_from_slice(&digest.0);
    let header = Digest::of_bytes(&bytes[..96]);
    bytes[96..HEADER_BYTES].copy_from_slice(&header.0);
    let path = scratch.file("untrue.htz", bytes);
    htc!["verify", &path].run().assert_ok();
    let outcome = probe(&path, &[]);
    assert_eq!(outcome.code(), Some(1), "{}", outcome.stderr);
    let last = outcome.stderr.lines().last().unwrap();
    assert!(
        last.contains("every digest is right")
            && last.contains(&format!("(blk.{DEPTH_SINK}.ffn_gate)")),
        "{last}"
    );
    let found = parsed(&probe(&path, &["--json"]));
    assert_eq!(found["ok"], false);
    assert!(list(&found, "/damaged").is_empty());
}

#[test]
fn artifact_without_spectra_is_verified_fully() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/golden/v1_0.htz");
    let outcome = probe(&golden, &[]).assert_ok();
    let said = &outcome.stderr;
    assert!(
        said.contains("nothing to probe") && said.contains("format 1.0"),
        "{said}"
    );
    assert!(outcome.text().contains("undamaged"));
    let found = probe(&golden, &["--json"]).json();
    assert_eq!(
        (&found["ok"], &found["probe"]["ok"]),
        (&true.into(), &false.into())
    );
    assert!(list(&found, "/probe/projections").is_empty());
    assert!(number(&found, "/items") > 10.0);
    let mut bytes = fs::read(&golden).unwrap();
    let place = Artifact::open(&golden).tensor_range("blk.0.attn_output.a");
    bytes[place.start] ^= 1;
    let scratch = Scratch::new();
    let path = scratch.file("damaged.htz", bytes);
    let outcome = probe(&path, &[]);
    assert_eq!(outcome.code(), Some(1));
    assert!(outcome.stderr.contains("blk.0.attn_output.a is damaged"));
}

#[test]
fn nonexistent_layer_is_a_usage_error() {
    let scratch = Scratch::new();
    let (path, _) = compile(&scratch, &model(&scratch), "out.htz", &["--rank", "16"]);
    probe(&path, &["--layer", "3"]).assert_refused(2, &["--layer 3", "3 layers"]);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/golden/v1_0.htz");
    probe(&golden, &["--layer", "1"]).assert_refused(2, &["--layer 1", "has 1 layer,"]);
    htc!["verify", &path, "--layer", "0"]
        .run()
        .assert_refused(2, &["--probe"]);
    for wrong in ["-1", "x"] {
        probe(&path, &["--layer", wrong]).assert_refused(2, &["--layer"]);
    }
}

#[test]
fn calibration_measures_the_depth_sink() {
    let scratch = Scratch::new();
    let tiny = TinyModel {
        layers: 3,
        ..TinyModel::default()
    };
    let mut tensors = tiny.tensors();
    let growing = scratch.file("growing.gguf", tiny.bytes_with_tensors(&tensors));
    for tensor in &mut tensors {
        let writes = ["attn_output", "ffn_down"].map(|part| tensor.name.contains(part));
        if writes.contains(&true) && !tensor.name.starts_with("blk.0.") {
            tensor.values.iter_mut().for_each(|v| *v *= 1e-4);
        }
    }
    let flat = scratch.file("flat.gguf", tiny.bytes_with_tensors(&tensors));
    let said = scratch.file("text.txt", words(1200));
    let cache = scratch.path("cache");
    let calibrated = |command: &str, model: &Path| {
        htc![command, model, "--calibration", &said, "--context", "32"]
            .arg("--cache")
            .arg(&cache)
    };
    for (model, layer, origin) in [(&flat, 0, "measured"), (&growing, DEPTH_SINK, "guessed")] {
        let output = scratch.path("out.htz");
        let compile = calibrated("compile", model).arg("-o").arg(&output);
        compile.args(["--rank", "16", "--force"]).run().assert_ok();
        let analysis = calibrated("analyse", model).arg("--json").run().json();
        let measured = analysis["depth"]["layer"].as_u64();
        assert_eq!(measured, (origin == "measured").then_some(layer as u64));
        let found = probe(&output, &["--json"]).json();
        assert_eq!(number(&found, "/probe/layer"), layer as f64);
        assert_eq!(text(&found, "/probe/origin"), origin);
    }
}

#[test]
fn probe_layer_option_is_recorded() {
    let scratch = Scratch::new();
    let (model, path) = (model(&scratch), scratch.path("asked.htz"));
    let run = |layer: &str| {
        let run = htc!["compile", &model, "-o", &path, "--ratio", "0.5"];
        run.args(["--probe-layer", layer]).run()
    };
    run("3").assert_refused(2, &["--probe-layer 3", "3 layers"]);
    run("-1").assert_refused(2, &["--probe-layer"]);
    scratch.assert_only_files(&["model.gguf"]);
    run("1").assert_ok();
    let found = probe(&path, &["--json"]).json();
    assert_eq!(found["probe"]["layer"], 1);
    assert_eq!(text(&found, "/probe/origin"), "asked");
    let said = probe(&path, &[]).assert_ok().text().to_owned();
    assert!(
        said.contains("layer 1 of 3") && said.contains("asked"),
        "{said}"
    );
    htc!["verify", &path].run().assert_ok();
}
