//! Bits and costs of codes, on the page and in `htc inspect`.

use std::path::Path;

use htc_tests::material::words;
use htc_tests::{Scratch, TinyModel, htc};
use serde_json::Value;

use super::super::{compile, list, number};
use super::{assert_sound, page, sections};

#[test]
fn bits_and_costs_are_shown() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let said = scratch.file("words.txt", words(1200));
    let cache = scratch.path("cache");
    let options = [
        "--max-kl",
        "0.01",
        "--calibration",
        said.to_str().unwrap(),
        "--context",
        "32",
        "--cache",
        cache.to_str().unwrap(),
    ];
    let (artifact, report) = compile(&scratch, &model, "coded.htz", &options);
    let matrices = list(&report, "/foreseen/matrices");
    assert_eq!(matrices.len(), 15, "{matrices:?}");
    let plain = list(&report, "/foreseen/plain");
    let bytes: Vec<f64> = plain.iter().map(|of| number(of, "/bytes")).collect();
    assert!(bytes.len() >= 3 && bytes.is_sorted(), "{bytes:?}");
    let trials = list(&report, "/trials");
    let chosen = trials.iter().find(|of| of["chosen"] == true).unwrap();
    let sum: f64 = matrices.iter().map(|of| number(of, "/kl")).sum();
    let expected = number(chosen, "/expected");
    assert!((sum / expected - 1.0).abs() < 1e-9, "{sum} {expected}");
    let input = scratch.file("report.json", report.to_string());
    let html = page(&scratch, &[&input, &artifact], "page.html");
    let root = assert_sound(&html);
    assert!(sections(&root).contains(&"bits"), "{:?}", sections(&root));
    let section = root.all("section");
    let section = section.iter().find(|s| s.attribute("id") == Some("bits"));
    let section = section.unwrap();
    let tips = section.all("rect");
    let tips: Vec<String> = tips
        .iter()
        .flat_map(|rect| rect.all("title"))
        .map(|title| title.text.clone())
        .collect();
    assert_eq!(tips.len(), 14, "{tips:?}");
    let first = &tips[0];
    assert!(first.starts_with("blk.0.attn_q: "), "{first}");
    for word in ["bits", "of the predicted divergence"] {
        assert!(first.contains(word), "{first}");
    }
    inspected(&artifact, &report);
}

fn inspected(artifact: &Path, report: &Value) {
    let shown = htc!["inspect", artifact]
        .run()
        .assert_ok()
        .text()
        .to_owned();
    for word in ["bits for each", "bits   error", "KL divergence", "95 %"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    assert!(shown.contains("smallest within --max-kl 0.01"), "{shown}");
    let json = htc!["inspect", artifact, "--json"].run().json();
    let weights = number(report, "/parameters/before");
    let bits = 8.0 * number(report, "/bytes/after") / weights;
    assert!((number(&json, "/bits_per_weight") / bits - 1.0).abs() < 1e-9);
    assert_eq!(number(report, "/limit/kl"), 0.01);
}
