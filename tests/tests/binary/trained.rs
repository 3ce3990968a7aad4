//! Trained models: results of other programs that the whole chain must reproduce.

use htc_tests::material::{demo, shared};
use htc_tests::{Scratch, htc};

use super::{METHODS, assert_close, compile, eval, number};

/// llama.cpp 0c1e57098, CPU: `llama-perplexity -m reference-7m-f16.gguf -f time_machine.txt -c 512
/// -b 512 --chunks 20`.
const LLAMA_CPP_TIME_MACHINE: f64 = 74.2388;

#[test]
fn demo_perplexity_equals_llama_cpp() {
    let (model, text) = (demo("reference-7m-f16.gguf"), demo("time_machine.txt"));
    let result = eval(&model, &text, &["--chunks", "20"]).run().json();
    assert_close(number(&result, "/perplexity"), LLAMA_CPP_TIME_MACHINE, 1e-3);
}

#[test]
fn stories_compile_with_both_methods() {
    let (Some(model), Some(text)) = (
        shared("models/stories260K/stories260K-f32.gguf"),
        shared("text/tinystories.flat.txt"),
    ) else {
        return;
    };
    let scratch = Scratch::new();
    for method in METHODS {
        for ratio in ["0.9", "0.5"] {
            let options = ["--method", method, "--ratio", ratio, "--force"];
            let (artifact, report) = compile(&scratch, &model, "out.htz", &options);
            assert!(number(&report, "/ratio") <= ratio.parse().unwrap());
            htc!["verify", &artifact].run().assert_ok();
            let result = eval(&artifact, &text, &["--context", "256", "--chunks", "4"]);
            let perplexity = number(&result.run().json(), "/perplexity");
            // Plain truncation ruins a model of width 64.
            assert!(perplexity > 2.0, "{method} {ratio}: {perplexity}");
            assert!(
                method == "low-rank" || perplexity < 20.0,
                "{ratio}: {perplexity}"
            );
        }
    }
}

/// The script (numpy and torch) uses plain SVD, factors in f16, WikiText-2's test split, 60
/// windows, all positions. Ranks here are up to a granule of 8 lower.
#[test]
fn truncation_loss_equals_an_independent_script() {
    let Some(text) = shared("text/wikitext2.test.raw.txt") else {
        return;
    };
    let model = demo("reference-7m-f16.gguf");
    let scratch = Scratch::new();
    let measure = |model: &std::path::Path| {
        let result = eval(model, &text, &["--chunks", "60"]).run().json();
        number(&result, "/perplexity_all")
    };
    let before = measure(&model);
    for (ratio, expected, tolerance) in [("0.9", 1.072, 0.01), ("0.6", 1.93, 0.1)] {
        let options = ["--factor-type", "f16", "--ratio", ratio, "--force"];
        let (artifact, _) = compile(&scratch, &model, "out.htz", &options);
        assert_close(measure(&artifact) / before, expected, tolerance);
    }
}

/// The same script, calibrated on the head of WikiText-2's training split; a third of its windows
/// suffices.
#[test]
fn weighted_truncation_loss_equals_an_independent_script() {
    let (Some(text), Some(calibration)) = (
        shared("text/wikitext2.test.raw.txt"),
        shared("text/wikitext2.train-head.raw.txt"),
    ) else {
        return;
    };
    let model = demo("reference-7m-f16.gguf");
    let scratch = Scratch::new();
    let cache = scratch.path("cache");
    // One window suffices.
    let held_out = std::fs::read_to_string(&text).unwrap();
    let held_out: String = held_out.chars().take(3000).collect();
    let held_out = scratch.file("held-out.txt", held_out);
    let measure = |model: &std::path::Path| {
        let result = eval(model, &text, &["--chunks", "20"]).run().json();
        number(&result, "/perplexity_all")
    };
    let before = measure(&model);
    for (gauge, ratio, expected, tolerance) in [
        ("activation", "0.9", 1.058, 0.01),
        ("activation", "0.6", 1.60, 0.06),
        ("whiten", "0.9", 1.038, 0.01),
        ("whiten", "0.6", 1.33, 0.05),
    ] {
        let options = [
            ["--factor-type", "f16"],
            ["--ratio", ratio],
            ["--allocator", "uniform"],
            ["--gauge", gauge],
            ["--bias", "off"],
            ["--held-out", held_out.to_str().unwrap()],
            ["--calibration", calibration.to_str().unwrap()],
            ["--cache", cache.to_str().unwrap()],
        ];
        let options = [&options.concat()[..], &["--force"]].concat();
        let (artifact, _) = compile(&scratch, &model, "out.htz", &options);
        assert_close(measure(&artifact) / before, expected, tolerance);
    }
}
