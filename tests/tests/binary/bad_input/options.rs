use std::path::PathBuf;

use htc_tests::{Scratch, TinyModel, htc};

use super::assert_refused;

fn model() -> (Scratch, PathBuf) {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    (scratch, model)
}

#[test]
fn rank_zero() {
    let (scratch, model) = model();
    let output = scratch.path("out.htz");
    let run = htc!["compile", &model, "-o", &output, "--rank", "0"];
    assert_refused(run, 2, &["--rank", "at least 1"]);
    scratch.assert_only_files(&["model.gguf"]);
}

#[test]
fn rank_larger_than_the_projection() {
    let (scratch, model) = model();
    let output = scratch.path("out.htz");
    for (method, projections, rank, words, largest) in [
        ("low-rank", "q,k,v,o,gate,up,down", "33", ["k", "32"], "32"),
        ("low-rank", "q,o", "65", ["q", "64"], "64"),
        ("low-rank", "down", "4000000000", ["down", "64"], "64"),
        ("shared-basis", "q,k,v", "65", ["64", "64"], "64"),
    ] {
        let with = |rank: &str| {
            let run = htc!["compile", &model, "-o", &output, "--method", method];
            run.args(["--projections", projections, "--force", "--rank", rank])
        };
        assert_refused(with(rank), 2, &["--rank", rank, words[0], words[1]]);
        scratch.assert_only_files(&["model.gguf"]);
        with(largest).run().assert_ok();
        std::fs::remove_file(&output).unwrap();
    }
}

#[test]
fn ratio_out_of_range() {
    let (scratch, model) = model();
    let output = scratch.path("out.htz");
    for ratio in ["0", "-0.1", "1.0001", "nan", "inf"] {
        let run = htc!["compile", &model, "-o", &output, "--ratio", ratio];
        assert_refused(run, 2, &["--ratio", ratio]);
    }
    scratch.assert_only_files(&["model.gguf"]);
}

#[test]
fn ratio_impossibly_small() {
    let (scratch, model) = model();
    let output = scratch.path("out.htz");
    for (method, factor_type) in [
        ("low-rank", "q8_0"),
        ("low-rank", "f16"),
        ("shared-basis", "f32"),
    ] {
        let with = |ratio: &str| {
            let run = htc!["compile", &model, "-o", &output, "--method", method];
            run.args(["--factor-type", factor_type, "--ratio", ratio])
        };
        let outcome = with("0.001").run();
        outcome.assert_refused(2, &["--ratio", "0.001", "smallest"]);
        scratch.assert_only_files(&["model.gguf"]);
        let smallest = outcome
            .stderr
            .split_whitespace()
            .map(|word| word.trim_matches([',', ';', '(', ')']))
            .filter(|word| word.starts_with("0."))
            .filter_map(|word| word.parse::<f64>().ok())
            .find(|ratio| *ratio > 0.001);
        let smallest = smallest.unwrap_or_else(|| panic!("no ratio in {}", outcome.stderr));
        with(&smallest.to_string()).run().assert_ok();
        std::fs::remove_file(&output).unwrap();
    }
}

#[test]
fn shared_basis_for_a_projection_that_shares_nothing() {
    let (scratch, model) = model();
    let output = scratch.path("out.htz");
    for projections in ["o", "q,k,v,down"] {
        let run = htc![
            "compile",
            &model,
            "-o",
            &output,
            "--method",
            "shared-basis",
            "--projections",
            projections
        ];
        assert_refused(run, 2, &["--projections", "shared-basis", "low-rank"]);
    }
    scratch.assert_only_files(&["model.gguf"]);
}

#[test]
fn reference_with_another_vocabulary() {
    let (scratch, model) = model();
    let mut pieces = htc_tests::model::vocabulary();
    pieces[280] = "another".to_owned();
    let pieces = htc_formats::gguf::Array::String(pieces);
    let other = TinyModel::default().with(
        "tokenizer.ggml.tokens",
        htc_formats::gguf::Value::Array(pieces),
    );
    let other = scratch.file("other.gguf", other.bytes());
    let text = scratch.file("text.txt", htc_tests::material::words(60));
    let run = htc![
        "eval",
        &model,
        "--text",
        &text,
        "--context",
        "16",
        "--reference",
        &other
    ];
    assert_refused(run, 1, &["--reference", "vocabulary", "280"]);
    let missing = scratch.path("missing.gguf");
    let run = htc!["eval", &model, "--text", &text, "--reference", &missing];
    assert_refused(run, 1, &["missing.gguf", "no such file"]);
}
