use std::fs;
use std::time::{Duration, Instant};

use htc_tests::artifact::Artifact;
use htc_tests::material::{demo, demo_of_layers};
use htc_tests::scratch::names_in;
use htc_tests::{Htc, Outcome, Scratch, htc};
use serde_json::Value;

use super::number;

const LAYERS: u32 = 4;

/// The demo model, calibrated on 64 short windows and measured on the 32 following, which alternate
/// between validation and test split.
fn calibrated(scratch: &Scratch, name: &str, output: &str) -> Htc {
    htc![
        name,
        demo_of_layers(LAYERS),
        "-o",
        scratch.path(output),
        "--calibration",
        demo("alice.txt"),
        "--calibration-tokens",
        "4096",
        "--context",
        "64",
        "--cache",
        scratch.path("cache")
    ]
}

fn command(scratch: &Scratch, name: &str, options: &[&str]) -> Htc {
    calibrated(scratch, name, "out.htz")
        .args(["--projections", "k,v,o"])
        .args(options)
}

fn compile(scratch: &Scratch, options: &[&str]) -> Outcome {
    command(scratch, "compile", &["--report", "json", "--force"])
        .args(options)
        .run()
        .assert_ok()
}

fn trials(report: &Value) -> Vec<Value> {
    let trials = report.get("trials").and_then(Value::as_array);
    trials.cloned().unwrap_or_default()
}

fn kl(trial: &Value) -> f64 {
    number(trial, "/evaluation/kl")
}

#[test]
fn best_measured_gauge_is_chosen_by_default() {
    let scratch = Scratch::new();
    let outcome = compile(&scratch, &["--ratio", "0.5"]);
    let said = outcome.stderr.clone();
    let report = outcome.json();
    let trials = trials(&report);
    let gauges: Vec<&str> = trials
        .iter()
        .map(|t| t["gauge"].as_str().unwrap())
        .collect();
    assert_eq!(gauges[..3], ["whiten", "activation", "none"]);
    assert_eq!(trials.len(), 4, "{gauges:?}");
    let best = trials[..3].iter().min_by(|a, b| kl(a).total_cmp(&kl(b)));
    assert_eq!(trials[3]["gauge"], best.unwrap()["gauge"]);
    assert_eq!(trials[3]["bias"], true);
    let smallest = trials.iter().map(kl).fold(f64::INFINITY, f64::min);
    let chosen: Vec<&Value> = trials.iter().filter(|t| t["chosen"] == true).collect();
    assert_eq!(chosen.len(), 1);
    assert_eq!(kl(chosen[0]), smallest);
    let quality = &report["quality"];
    assert_eq!(number(quality, "/choosing_windows"), 16.0);
    assert_eq!(number(quality, "/evaluation/chunks"), 16.0);
    let reported = number(quality, "/evaluation/kl");
    assert_ne!(reported, smallest);
    for word in [
        "of 4 candidates",
        "* gauge",
        "quality",
        "95 % interval",
        "on 16 held-out windows of alice.txt that decided nothing",
        "16 others decided",
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let found = Artifact::open(&scratch.path("out.htz"));
    let (gauge, bias) = (chosen[0]["gauge"].as_str().unwrap(), &chosen[0]["bias"]);
    let bias = if bias == true { "on" } else { "off" };
    let explicit = ["--ratio", "0.5", "--gauge", gauge, "--bias", bias];
    let report = compile(&scratch, &explicit).json();
    assert!(self::trials(&report).is_empty());
    assert!(Artifact::open(&scratch.path("out.htz")).equals_except_quality(&found));
    assert_eq!(number(&report, "/quality/choosing_windows"), 0.0);
    assert_eq!(number(&report, "/quality/evaluation/chunks"), 32.0);
    let all = number(&report, "/quality/evaluation/kl");
    assert!((all - 0.5 * (smallest + reported)).abs() < 1e-9, "{all}");
    scratch.assert_only_files(&["cache", "out.htz"]);
}

#[test]
fn quality_equals_eval_on_the_held_out_text() {
    let scratch = Scratch::new();
    let text = demo("time_machine.txt");
    let short: String = fs::read_to_string(&text)
        .unwrap()
        .chars()
        .take(2000)
        .collect();
    let held_out = scratch.file("held.txt", short);
    let options = ["--ratio", "0.5", "--gauge", "whiten", "--bias", "off"];
    let report = command(&scratch, "compile", &options)
        .args(["--report", "json", "--held-out"])
        .arg(&held_out)
        .run()
        .assert_ok()
        .json();
    assert_eq!(report["quality"]["text"], "held.txt");
    let measured = htc![
        "eval",
        scratch.path("out.htz"),
        "--text",
        &held_out,
        "--context",
        "64",
        "--reference",
        demo_of_layers(LAYERS),
        "--json"
    ]
    .run()
    .assert_ok()
    .json();
    for key in ["perplexity", "kl", "perplexity_ratio", "top1", "chunks"] {
        let found = &report["quality"]["evaluation"][key];
        assert_eq!(found, &measured[key], "{key}");
    }
}

#[test]
fn gauge_that_measures_worse_is_refused() {
    let scratch = Scratch::new();
    let options = ["--ratio", "0.5", "--gauge", "axiom", "--bias", "off"];
    let run = || {
        let run = calibrated(&scratch, "compile", "out.htz").args(options);
        run.args(["--projections", "gate,up", "--allocator", "uniform"])
    };
    let said = [
        "axiom",
        "tail energy from",
        "worse than none",
        "--keep-gauge",
    ];
    run().run().assert_refused(1, &said);
    scratch.assert_only_files(&[".out.htz.htc-work", "cache"]);
    let kept = run()
        .args(["--keep-gauge", "--report", "json"])
        .run()
        .assert_ok();
    let trials = trials(&kept.json());
    assert_eq!(trials[0]["chosen"], true);
    assert!(kl(&trials[0]) > kl(&trials[1]));
    assert!(number(&trials[0], "/tail/1") < number(&trials[0], "/tail/0"));
}

#[test]
fn smallest_artifact_within_the_limit_is_found() {
    let scratch = Scratch::new();
    let cases = [
        ("--max-kl", "0.02", "/kl_interval/1", 0.02),
        (
            "--max-perplexity-increase",
            "5",
            "/perplexity_ratio_all_interval/1",
            1.05,
        ),
    ];
    for (option, value, upper, most) in cases {
        let of_source = |of: &Value| number(of, "/kl_interval/1").exp();
        let upper = |of: &Value| match option {
            "--max-kl" => number(of, upper),
            _ => number(of, upper).max(of_source(of)),
        };
        let options = ["--gauge", "whiten", "--bias", "off", option, value];
        let outcome = compile(&scratch, &options);
        assert!(outcome.stderr.contains("as the smallest that holds"));
        let report = outcome.json();
        let trials = trials(&report);
        let holds = |trial: &&Value| upper(&trial["evaluation"]) <= most;
        let chosen = trials.iter().find(|t| t["chosen"] == true).unwrap();
        assert!(holds(&chosen), "{chosen}");
        let notes = report["notes"].to_string();
        let confirmed = upper(&report["quality"]["evaluation"]) <= most;
        assert_eq!(
            confirmed,
            !notes.contains("holds where it was searched"),
            "{notes}"
        );
        let bytes = number(chosen, "/bytes");
        assert!(
            trials
                .iter()
                .filter(holds)
                .all(|t| number(t, "/bytes") >= bytes)
        );
        let below = trials.iter().map(|t| number(t, "/ratio"));
        let ratio = number(chosen, "/ratio");
        let nearest = below.filter(|r| *r < ratio).fold(0.0, f64::max);
        assert!(ratio - nearest < 0.06, "{nearest} {ratio}");
        let length = fs::metadata(scratch.path("out.htz")).unwrap().len();
        assert_eq!(length as f64, bytes);
    }
}

#[test]
fn plan_command_searches_within_a_limit() {
    let scratch = Scratch::new();
    let limit = ["--max-kl", "0.02", "--gauge", "whiten", "--bias", "off"];
    let found = command(&scratch, "plan", &limit).run().assert_ok();
    assert!(
        found
            .stderr
            .contains("as the smallest that holds --max-kl 0.02")
    );
    let plan = scratch.path("plan.json");
    fs::rename(scratch.path("out.htz"), &plan).unwrap();
    assert_eq!(
        names_in(&scratch.path("cache")).len(),
        1,
        "what was tried is gone"
    );
    compile(&scratch, &limit);
    let expected = Artifact::open(&scratch.path("out.htz"));
    let compiled = calibrated(&scratch, "compile", "other.htz")
        .arg("--plan")
        .arg(&plan);
    compiled.run().assert_ok();
    let other = Artifact::open(&scratch.path("other.htz"));
    assert!(other.equals_except_quality(&expected));
    assert_eq!(other.bytes.len(), expected.bytes.len());
}

#[test]
fn infeasible_or_unmeasurable_limits_are_refused() {
    let scratch = Scratch::new();
    let options = ["--max-kl", "1e-12", "--gauge", "none", "--bias", "off"];
    let strict = command(&scratch, "compile", &options);
    let strict = strict.args(["--allocator", "uniform", "--factor-type", "q4_0"]);
    strict
        .run()
        .assert_refused(1, &["--max-kl", "not within it at any ratio", "allow more"]);
    scratch.assert_only_files(&[".out.htz.htc-work", "cache"]);
    let window = ["--calibration-tokens", "128", "--max-kl", "1"];
    let short: String = fs::read_to_string(demo("alice.txt")).unwrap();
    let short = scratch.file("short.txt", short.chars().take(600).collect::<String>());
    let run = || {
        htc![
            "compile",
            demo_of_layers(LAYERS),
            "-o",
            scratch.path("out.htz"),
            "--calibration",
            &short
        ]
        .args(["--method", "low-rank", "--context", "128", "--cache"])
        .arg(scratch.path("cache"))
    };
    run()
        .args(window)
        .run()
        .assert_refused(1, &["--max-kl", "3 held-out windows", "--held-out"]);
    let two: String = fs::read_to_string(demo("alice.txt")).unwrap();
    let two = scratch.file("two.txt", two.chars().take(1000).collect::<String>());
    let only_decided = htc![
        "compile",
        demo_of_layers(LAYERS),
        "-o",
        scratch.path("two.htz")
    ]
    .args(["--projections", "k", "--context", "128", "--report", "json"])
    .args(["--gauge", "whiten", "--calibration"])
    .arg(&two)
    .arg("--cache")
    .arg(scratch.path("cache"))
    .run()
    .assert_ok();
    let said = only_decided.stderr.clone();
    assert!(said.contains("the only held-out window decided"), "{said}");
    let report = only_decided.json();
    assert!(report["quality"].is_null() && trials(&report).len() == 2);
    let unmeasured = run().run().assert_ok();
    assert!(
        unmeasured.stderr.contains("was not measured"),
        "{}",
        unmeasured.stderr
    );
    for wrong in [
        &["--max-kl", "0"][..],
        &["--max-kl", "nan"],
        &["--max-perplexity-increase", "-1"],
        &["--max-kl", "1", "--ratio", "0.5"],
        &["--max-kl", "1", "--dry-run"],
    ] {
        command(&scratch, "compile", wrong)
            .run()
            .assert_refused(2, &[wrong[0]]);
    }
    let nothing_to_keep = command(&scratch, "compile", &["--keep-gauge"]);
    nothing_to_keep.run().assert_refused(2, &["--gauge"]);
    let uncalibrated = htc![
        "compile",
        demo_of_layers(LAYERS),
        "-o",
        scratch.path("x.htz"),
        "--method",
        "low-rank",
        "--max-kl",
        "1"
    ];
    uncalibrated.run().assert_refused(2, &["--calibration"]);
}

#[test]
fn inputs_are_not_overwritten() {
    let scratch = Scratch::new();
    let text = scratch.file("text.txt", fs::read(demo("alice.txt")).unwrap());
    let held_out = scratch.file("held.txt", fs::read(demo("time_machine.txt")).unwrap());
    let calibration = [
        "--calibration",
        text.to_str().unwrap(),
        "--held-out",
        held_out.to_str().unwrap(),
    ];
    for name in ["plan", "analyse"] {
        for path in [&text, &held_out] {
            let run = htc![name, demo_of_layers(LAYERS), "-o", path, "--force"].args(calibration);
            run.run().assert_refused(2, &["same file"]);
        }
    }
    let same = htc![
        "compile",
        demo_of_layers(LAYERS),
        "-o",
        scratch.path("out.htz"),
        "--calibration",
        &text
    ]
    .arg("--held-out")
    .arg(&text);
    same.run().assert_refused(2, &["--held-out", "same text"]);
    let report = scratch.file("precious.json", "precious");
    let run = |force: &[&str]| {
        htc![
            "compile",
            demo_of_layers(LAYERS),
            "-o",
            scratch.path("out.htz"),
            "--rank",
            "8",
            "--report"
        ]
        .arg(&report)
        .args(force)
        .run()
    };
    run(&[]).assert_refused(1, &["precious.json", "--force"]);
    assert_eq!(fs::read(&report).unwrap(), b"precious");
    run(&["--force"]).assert_ok();
    assert!(fs::read(&report).unwrap().starts_with(b"{"));
    let folder = htc![
        "compile",
        demo_of_layers(LAYERS),
        "-o",
        scratch.path("b.htz"),
        "--report",
        scratch.folder()
    ];
    folder.run().assert_refused(2, &["--report", "a folder"]);
    scratch.assert_only_files(&["held.txt", "out.htz", "precious.json", "text.txt"]);
}

#[test]
fn killed_search_resumes() {
    let scratch = Scratch::new();
    let options = ["--max-kl", "0.02", "--gauge", "whiten", "--bias", "off"];
    let run = || command(&scratch, "compile", &options);
    let mut child = run().spawn();
    let work = scratch.path(".out.htz.htc-work");
    let measured = || {
        let names = if work.exists() {
            names_in(&work)
        } else {
            Vec::new()
        };
        names.into_iter().filter(|n| n.ends_with(".json")).count()
    };
    let started = Instant::now();
    while measured() < 3 {
        assert!(child.try_wait().unwrap().is_none(), "finished too soon");
        assert!(started.elapsed() < Duration::from_secs(100), "no progress");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!scratch.path("out.htz").exists());
    run().args(["--threads", "1"]).run().assert_ok();
    scratch.assert_only_files(&["cache", "out.htz"]);
    let bytes = fs::read(scratch.path("out.htz")).unwrap();
    fs::remove_file(scratch.path("out.htz")).unwrap();
    run().run().assert_ok();
    assert!(fs::read(scratch.path("out.htz")).unwrap() == bytes);
}

#[test]
fn report_includes_the_forecast() {
    let scratch = Scratch::new();
    let report = compile(&scratch, &["--gauge", "none", "--bias", "off"]).json();
    let length = fs::metadata(scratch.path("out.htz")).unwrap().len() as f64;
    assert_eq!(number(&report, "/forecast/bytes"), length);
    assert!(number(&report, "/forecast/seconds") > 0.0);
    assert!(number(&report, "/forecast/peak_memory") > 1e6);
    assert!(number(&report, "/peak_memory") > 1e6);
    let dry = command(&scratch, "compile", &["--dry-run", "--force"])
        .run()
        .assert_ok();
    assert!(dry.stderr.contains("time        about"), "{}", dry.stderr);
}
