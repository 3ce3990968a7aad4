//! `htc compile --dry-run`: predictions compared to the results.

use std::fs;
use std::time::Duration;

use htc_formats::DType;
use htc_tests::material::demo_of_layers;
use htc_tests::{Htc, Scratch, TinyModel, htc};

use super::compile;
use super::plan::{model, plan};
use super::treatment::{calibrated, fixture, with};
use super::{METHODS, number};

#[test]
fn dry_run_writes_nothing_and_predicts_exact_bytes() {
    let scratch = Scratch::new();
    let models = [model(&scratch), demo_of_layers(2)];
    let output = scratch.path("out.htz");
    for model in &models {
        let plan_file = scratch.path("plan.json");
        plan(model, &[&["--ratio", "0.6"]])
            .arg("-o")
            .arg(&plan_file)
            .run()
            .assert_ok();
        let from_plan = ["--plan", plan_file.to_str().unwrap()];
        let mut cases = vec![
            from_plan.to_vec(),
            vec!["--rank", "full", "--factor-type", "f32"],
        ];
        for method in METHODS {
            for factor_type in ["f32", "q8_0", "q4_0"] {
                let options = ["--method", method, "--factor-type", factor_type];
                cases.push([&options[..], &["--allocator", "waterfill"]].concat());
            }
        }
        for options in cases {
            let run = || htc!["compile", model, "-o", &output].args(&options);
            let forecast = run().args(["--dry-run", "--report", "json"]).run().json();
            assert!(!output.exists(), "{options:?}");
            let shown = run().arg("--dry-run").run().assert_ok();
            assert!(shown.stdout.is_empty());
            for word in ["exactly", "dry run", "memory", "free", "request"] {
                assert!(
                    shown.stderr.contains(word),
                    "{word:?} is not in {}",
                    shown.stderr
                );
            }
            let report = run().args(["--report", "json"]).run().json();
            let bytes = fs::metadata(&output).unwrap().len() as f64;
            assert_eq!(number(&forecast, "/bytes/after"), bytes, "{options:?}");
            for key in ["ratio", "parameters", "selected_bytes", "notes", "request"] {
                assert_eq!(forecast[key], report[key], "{options:?}: {key}");
            }
            assert!(number(&forecast, "/free_bytes") > bytes);
            fs::remove_file(&output).unwrap();
        }
        fs::remove_file(&plan_file).unwrap();
    }
    scratch.assert_only_files(&["model.gguf"]);
    fs::write(&output, "something").unwrap();
    let run = htc!["compile", &models[0], "-o", &output, "--dry-run"].run();
    run.assert_refused(1, &["out.htz", "exists", "--force"]);
    let nowhere = htc!["compile", &models[0], "-o", "/no/such/out.htz", "--dry-run"];
    nowhere.run().assert_refused(1, &["/no/such"]);
}

/// Returns the peak anonymous memory of a process, without mapped files, which the system can
/// evict.
fn peak_memory(run: Htc) -> f64 {
    let mut child = run.spawn();
    let mut most = 0.0f64;
    while child.try_wait().unwrap().is_none() {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let own = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = own.and_then(|own| own.trim().strip_suffix(" kB")?.parse::<f64>().ok());
        most = most.max(kib.unwrap_or(0.0) * 1024.0);
        std::thread::sleep(Duration::from_micros(200));
    }
    assert!(child.wait().unwrap().success());
    most
}

#[test]
fn predicted_memory_bounds_actual_memory() {
    let scratch = Scratch::new();
    let tiny = TinyModel {
        layers: 2,
        width: 768,
        heads: 12,
        kv_heads: 12,
        head_size: 64,
        ffn: 1536,
        dtype: DType::F16,
        ..TinyModel::default()
    };
    let wide = scratch.file("wide.gguf", tiny.bytes());
    let output = scratch.path("out.htz");
    for model in [demo_of_layers(2), wide] {
        for method in METHODS {
            for threads in ["1", "3"] {
                let options = [
                    "--method",
                    method,
                    "--allocator",
                    "waterfill",
                    "--threads",
                    threads,
                ];
                let run = || htc!["compile", &model, "-o", &output, "--force"].args(options);
                let forecast = run().args(["--dry-run", "--report", "json"]).run().json();
                let said = number(&forecast, "/peak_memory");
                let used = peak_memory(run());
                eprintln!("{options:?}: {said} forecast, {used} used");
                // Sampling may miss a peak.
                assert!(used <= said, "{options:?}: {used} used, {said} forecast");
                assert!(
                    used > 0.2 * said,
                    "{options:?}: {used} used, {said} forecast"
                );
            }
        }
    }
}

#[test]
fn dry_run_counts_biases() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let calibration = calibrated(&scratch);
    for model in [model, fixture("qwen2")] {
        for method in METHODS {
            let options = ["--method", method, "--rank", "4", "--gauge", "axiom"];
            let options = [&options[..], &["--keep-gauge", "--bias", "on", "--force"]].concat();
            let options = with(&options, &calibration);
            let dry = [&options[..], &["--dry-run"]].concat();
            let (_, forecast) = compile(&scratch, &model, "dry.htz", &dry);
            let (artifact, report) = compile(&scratch, &model, "out.htz", &options);
            let bytes = fs::metadata(artifact).unwrap().len();
            assert_eq!(number(&forecast, "/bytes/after"), bytes as f64);
            for key in ["biases", "parameters", "ratio"] {
                assert_eq!(forecast[key], report[key]);
            }
        }
    }
}
