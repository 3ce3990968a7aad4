//! Implicit budgets, and budgets that a type of factors cannot meet.

use std::fs;

use htc_tests::{Scratch, TinyModel, htc};
use serde_json::Value;

use super::plan::{ALLOCATORS, model, plan};
use super::{compile, list, number};

#[test]
fn energy_determines_the_budget_and_is_shown() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let file = scratch.path("plan.json");
    let output = ["-o", file.to_str().unwrap(), "--force"];
    let shown = plan(&model, &[ALLOCATORS[2], &output])
        .run()
        .assert_ok()
        .stderr;
    assert!(shown.contains("decided the total"), "{shown}");
    let json: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(json["request"]["budget"], "energy");
    compile(&scratch, &model, "out.htz", &["--plan", output[1]]);
    let shown = plan(&model, &[ALLOCATORS[2], &["--ratio", "0.6"], &output]);
    let shown = shown.run().assert_ok().stderr;
    assert!(shown.contains("the energy term nothing"), "{shown}");
    let shown = plan(&model, &[ALLOCATORS[3], &output])
        .run()
        .assert_ok()
        .stderr;
    assert!(shown.contains("a prediction by bytes alone"), "{shown}");
}

#[test]
fn ratio_of_a_quantised_source_is_met_or_refused() {
    let scratch = Scratch::new();
    let tiny = TinyModel {
        width: 128,
        ffn: 256,
        dtype: htc_formats::DType::Q4_0,
        ..TinyModel::default()
    };
    let model = scratch.file("model.gguf", tiny.bytes());
    let output = scratch.path("out.htz");
    let options = ["--ratio", "0.9", "--projections", "gate,up"];
    let run = htc!["compile", &model, "-o", &output].args(options);
    let said = ["--ratio 0.9", "q8_0", "--factor-type", "q4_0"];
    run.run().assert_refused(2, &said);
    let options = [&options[..], &["--factor-type", "q4_0"]].concat();
    let (_, report) = compile(&scratch, &model, "out.htz", &options);
    assert!(number(&report, "/ratio") <= 0.9);
    assert!(
        list(&report, "/plan/projections")
            .iter()
            .any(|projection| projection["form"] == "low_rank")
    );
}
