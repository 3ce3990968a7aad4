//! `htc analyse`: results for models with known weights, and refusals.

use std::fs;
use std::path::Path;

use htc_tests::binary::HOSTILE_MEMORY;
use htc_tests::material::words;
use htc_tests::{Htc, Scratch, TinyModel, htc};
use serde_json::Value;

use super::{assert_close, list, number, text};

const CALIBRATED: [&str; 6] = [
    "calibration",
    "phases",
    "sinks",
    "depth",
    "dimension",
    "manifold",
];

fn tiny() -> TinyModel {
    TinyModel {
        layers: 3,
        ..TinyModel::default()
    }
}

fn calibrated(scratch: &Scratch, model: &Path, cache: &str) -> Htc {
    let text = scratch.path("text.txt");
    fs::write(&text, words(1200)).unwrap();
    htc![
        "analyse",
        model,
        "--calibration",
        text,
        "--context",
        "32",
        "--cache",
        scratch.path(cache)
    ]
}

fn projection<'a>(analysis: &'a Value, layer: u64, projection: &str) -> &'a Value {
    let mut projections = list(analysis, "/spectra/projections").iter();
    projections
        .find(|s| s["layer"] == layer && s["projection"] == projection)
        .unwrap()
}

#[test]
fn without_calibration_only_spectra_are_reported() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", tiny().bytes());
    let outcome = htc!["analyse", &model, "--json"].run().assert_ok();
    assert!(outcome.stderr.contains("without --calibration"));
    assert!(outcome.stderr.lines().count() <= 60);
    assert!(
        outcome
            .text()
            .starts_with("{\n  \"schema\": \"htc-analysis-3\",\n")
    );
    let analysis = outcome.json();
    assert_eq!(text(&analysis, "/model"), "model.gguf");
    assert_eq!(text(&analysis, "/source_sha256").len(), 64);
    assert_eq!(number(&analysis, "/shape/layers"), 3.0);
    assert_eq!(number(&analysis, "/shape/width"), 64.0);
    for part in CALIBRATED {
        assert!(analysis.get(part).is_none(), "{part}");
    }
    assert_eq!(list(&analysis, "/spectra/projections").len(), 21);
    assert_eq!(list(&analysis, "/spectra/groups").len(), 6);
    let fractions = list(&analysis, "/spectra/fractions").len();
    for projection in list(&analysis, "/spectra/projections") {
        let tails = list(projection, "/tails/none");
        assert_eq!(tails.len(), fractions);
        assert!(projection["tails"].get("activation").is_none());
        assert!(list(projection, "/curve").len() <= 33);
        let falls = |pair: &[Value]| pair[0].as_f64() >= pair[1].as_f64();
        assert!(tails.windows(2).all(falls), "{projection}");
    }
    for group in list(&analysis, "/spectra/groups") {
        for member in list(group, "/members") {
            let excess = list(member, "/excess").iter().filter_map(Value::as_f64);
            excess.for_each(|rho| assert!(rho > 0.9999, "{member}"));
        }
    }
}

#[test]
fn memory_stays_near_the_size_of_the_weights() {
    let scratch = Scratch::new();
    let wide = TinyModel {
        layers: 1,
        width: 16_384,
        heads: 1,
        kv_heads: 1,
        head_size: 2,
        ffn: 8,
        ..TinyModel::default()
    };
    let model = scratch.file("model.gguf", wide.bytes());
    let run = htc!["analyse", &model, "--json", "--threads", "1"];
    let analysis = run.memory(HOSTILE_MEMORY).run().json();
    let q = projection(&analysis, 0, "q");
    assert_eq!(number(q, "/cols"), 16_384.0);
    assert_eq!(list(q, "/curve").len(), 3);
}

#[test]
fn spectrum_of_a_known_weight_is_exact() {
    let scratch = Scratch::new();
    let tiny = tiny();
    let mut tensors = tiny.tensors();
    let known = |name: &str| name == "blk.1.attn_q.weight";
    let q = tensors.iter_mut().find(|t| known(&t.name)).unwrap();
    q.values.fill(0.0);
    q.values[5 * 64 + 9] = 2.0;
    q.values[7 * 64 + 3] = -1.0;
    let model = scratch.file("model.gguf", tiny.bytes_with_tensors(&tensors));
    let analysis = htc!["analyse", &model, "--json"].run().json();
    let q = projection(&analysis, 1, "q");
    assert_close(number(q, "/norm"), 5f64.sqrt(), 1e-5);
    assert_close(number(q, "/largest"), 2.0, 1e-5);
    assert_close(number(q, "/stable_rank"), 1.25, 1e-5);
    let ranks: Vec<u64> = list(q, "/ranks")
        .iter()
        .map(|r| r.as_u64().unwrap())
        .collect();
    assert_eq!(ranks, [1, 1, 2, 2, 2]);
    assert!(number(q, "/tails/none/0") < 1e-6);
    assert_eq!(list(q, "/curve")[1][0], 2);
    assert_close(list(q, "/curve")[1][1].as_f64().unwrap(), 1.0, 1e-6);
}

#[test]
fn calibration_adds_the_residual_stream() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", tiny().bytes());
    let run = calibrated(&scratch, &model, "cache").arg("--json");
    let outcome = run.run().assert_ok();
    assert!(outcome.stderr.lines().count() <= 60, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("depth sink"));
    let analysis = outcome.json();
    for part in CALIBRATED {
        assert!(analysis.get(part).is_some(), "{part}");
    }
    let tokens = number(&analysis, "/calibration/tokens");
    let windows = tokens / 32.0;
    for projection in list(&analysis, "/spectra/projections") {
        for gauge in ["activation", "whiten"] {
            assert_eq!(list(projection, &format!("/tails/{gauge}")).len(), 8);
        }
    }
    for (layer, found) in list(&analysis, "/dimension/layers").iter().enumerate() {
        assert_eq!(number(found, "/layer"), layer as f64);
        assert_eq!(number(found, "/pca/samples"), tokens - windows);
        let value = number(found, "/pca/value");
        assert!((1.0..=64.0).contains(&value));
        assert_close(number(found, "/pca/relative"), value / 64.0, 1e-5);
        let [low, high] = list(found, "/pca/interval") else {
            panic!("{found}");
        };
        assert!(low.as_f64() <= Some(value) && Some(value) <= high.as_f64());
        assert_eq!(number(found, "/pca/windows"), windows);
        assert!(number(found, "/pca/replicates_median") <= number(found, "/pca/sample_value"));
        assert_eq!(list(found, "/stability/pca").len(), 5);
        assert!(number(found, "/twonn/interval/0") <= number(found, "/twonn/interval/1"));
    }
    // Every window begins with the same token.
    for (layer, sink) in list(&analysis, "/sinks/layers").iter().enumerate() {
        assert_close(number(sink, "/share"), 1.0, 1e-5);
        assert_eq!(
            list(sink, "/coverage").len(),
            if layer == 0 { 0 } else { 2 }
        );
        for covered in list(sink, "/coverage") {
            let random = (number(covered, "/rank") / 64.0).sqrt();
            assert_close(number(covered, "/random"), random, 1e-5);
        }
        let limit =
            number(sink, "/tokens/norm_mean") + 3.0 * number(sink, "/tokens/norm_deviation");
        let largest = list(sink, "/tokens/largest");
        assert!(largest.iter().all(|token| number(token, "/norm") > limit));
        assert!(largest.iter().all(|token| number(token, "/position") > 0.0));
        assert!(largest.len() as f64 <= number(sink, "/tokens/found"));
        let channels = list(sink, "/channels").iter();
        let shares: Vec<f64> = channels.map(|c| c["share"].as_f64().unwrap()).collect();
        assert!(shares.len() == 8 && shares.is_sorted_by(|a, b| a >= b));
    }
    let curve: Vec<f64> = list(&analysis, "/depth/curve")
        .iter()
        .map(|v| v.as_f64().unwrap())
        .collect();
    assert!(curve.len() == 3 && curve.iter().all(|v| *v <= curve[2] + 1e-6));
    assert!(curve[2] >= 0.95);
    assert_eq!(number(&analysis, "/depth/two_thirds"), 2.0);
    let tolerance = ((curve[2] - curve[0]) / 2.0).max(1e-3);
    assert_close(number(&analysis, "/depth/tolerance"), tolerance, 1e-4);
    let weights = list(&analysis, "/depth/weights").iter();
    let variance = list(&analysis, "/phases/without_first/variance").iter();
    for (weight, variance) in weights.zip(variance) {
        let trace = 64.0 * variance.as_f64().unwrap();
        assert_close(weight.as_f64().unwrap() * trace, 1.0, 1e-4);
    }
    for found in list(&analysis, "/manifold/layers") {
        assert_eq!(list(found, "/symmetry").len(), 3);
        assert_eq!(number(found, "/symmetry/0/pairs"), 1.0);
        assert!(number(found, "/curvature/edges") > 0.0);
        assert!((0.0..=1.0).contains(&number(found, "/axioms/consistency")));
    }
    for profile in ["without_first", "with_first"] {
        let variance = list(&analysis, &format!("/phases/{profile}/variance"));
        assert!(variance.len() == 3 && variance.iter().all(|v| v.as_f64() > Some(0.0)));
    }
}

#[test]
fn output_does_not_depend_on_threads_or_cache() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", tiny().bytes());
    let mut outputs = Vec::new();
    for (threads, cache) in [("1", "one"), ("2", "two"), ("2", "one")] {
        let run = calibrated(&scratch, &model, cache);
        let outcome = run.args(["--json", "--threads", threads]).run().assert_ok();
        outputs.push(outcome.stdout);
    }
    assert!(outputs.iter().all(|output| *output == outputs[0]));
    let output = scratch.path("analysis.json");
    let run = calibrated(&scratch, &model, "one").arg("-o").arg(&output);
    assert!(run.run().assert_ok().stdout.is_empty());
    assert_eq!(fs::read(&output).unwrap(), outputs[0]);
    let dash = calibrated(&scratch, &model, "one").args(["-o", "-"]);
    assert_eq!(dash.run().assert_ok().stdout, outputs[0]);
}

#[test]
fn insufficient_data_is_reported() {
    let scratch = Scratch::new();
    let one = TinyModel {
        layers: 1,
        ..TinyModel::default()
    };
    let model = scratch.file("model.gguf", one.bytes());
    let run = calibrated(&scratch, &model, "cache");
    let few = run.args(["--json", "--calibration-tokens", "32"]);
    let analysis = few.run().json();
    assert!(text(&analysis, "/phases/without_first/reason").contains("one layer"));
    assert!(text(&analysis, "/depth/reason").contains("one layer"));
    let found = &list(&analysis, "/dimension/layers")[0];
    assert!(number(found, "/pca/sample_samples") <= 31.0);
    assert!(found.get("stability").is_none());
    assert!(found.pointer("/pca/interval").is_none() && found.pointer("/twonn/interval").is_none());
}

#[test]
fn existing_files_are_not_overwritten() {
    let scratch = Scratch::new();
    let bytes = tiny().bytes();
    let model = scratch.file("model.gguf", &bytes);
    let run = |output: &Path| calibrated(&scratch, &model, "cache").arg("-o").arg(output);
    let old = scratch.file("old.json", "old");
    run(&old)
        .run()
        .assert_refused(1, &["old.json", "exists already", "--force"]);
    assert_eq!(fs::read(&old).unwrap(), b"old");
    run(&old).arg("--force").run().assert_ok();
    assert!(fs::read(&old).unwrap().starts_with(b"{"));
    for own in ["model.gguf", "text.txt"] {
        let refused = run(&scratch.path(own)).arg("--force").run();
        refused.assert_refused(2, &[own, "same file"]);
    }
    assert_eq!(fs::read(&model).unwrap(), bytes);
    run(&scratch.path("none/a.json"))
        .run()
        .assert_refused(1, &["none/a.json"]);
}

#[test]
fn invalid_inputs_are_refused() {
    let scratch = Scratch::new();
    let tiny = tiny();
    let model = scratch.file("model.gguf", tiny.bytes());
    htc!["analyse", scratch.path("absent.gguf")]
        .run()
        .assert_refused(1, &["absent.gguf"]);
    let (artifact, _) = super::compile(&scratch, &model, "model.htz", &["--rank", "8"]);
    htc!["analyse", artifact]
        .run()
        .assert_refused(1, &["model.htz", "an artifact already"]);
    let mut tensors = tiny.tensors();
    let up = tensors
        .iter_mut()
        .find(|t| t.name == "blk.2.ffn_up.weight")
        .unwrap();
    up.values[70] = f32::NAN;
    let damaged = scratch.file("damaged.gguf", tiny.bytes_with_tensors(&tensors));
    htc!["analyse", &damaged]
        .run()
        .assert_refused(1, &["damaged.gguf", "blk.2.ffn_up.weight", "NaN", "repair"]);
    let text = scratch.file("text.txt", "the cat sat on the mat. ".repeat(400));
    for name in [
        "blk.2.ffn_up.weight",
        "blk.0.attn_k.weight",
        "token_embd.weight",
    ] {
        let mut tensors = tiny.tensors();
        let tensor = tensors.iter_mut().find(|t| t.name == name);
        tensor.unwrap().values[70] = f32::NAN;
        let damaged = scratch.file("damaged.gguf", tiny.bytes_with_tensors(&tensors));
        htc!["compile", damaged, "-o", scratch.path("damaged.htz")]
            .args(["--bpw", "6", "--context", "256", "--cache"])
            .arg(scratch.path("cache of damaged"))
            .arg("--calibration")
            .arg(&text)
            .run()
            .assert_refused(1, &["damaged.gguf", name, "NaN", "row", "repair"]);
    }
    let short = scratch.file("short.txt", "the cat");
    let cache = scratch.path("cache");
    htc!["analyse", &model, "--calibration", short, "--cache", cache]
        .args(["--context", "32"])
        .run()
        .assert_refused(1, &["short.txt", "tokens"]);
    calibrated(&scratch, &model, "cache")
        .args(["--calibration-tokens", "16"])
        .run()
        .assert_refused(2, &["--calibration-tokens 16"]);
    htc!["analyse", &model, "--context", "32"]
        .run()
        .assert_refused(2, &["--calibration-context requires --calibration"]);
    for wrong in [
        &["--force"][..],
        &["--threads", "0"],
        &["--gauge", "whiten"],
    ] {
        htc!["analyse", &model]
            .args(wrong)
            .run()
            .assert_refused(2, &["--help"]);
    }
}
