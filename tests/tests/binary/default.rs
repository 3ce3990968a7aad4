use std::fs;
use std::path::PathBuf;

use htc_tests::artifact::Artifact;
use htc_tests::material::{demo, demo_of_layers};
use htc_tests::{Htc, Scratch, TinyModel, htc};
use serde_json::Value;

use super::{list, number, text};

fn model(scratch: &Scratch) -> PathBuf {
    let tiny = TinyModel {
        context: 64,
        ..TinyModel::default()
    };
    scratch.file("model.gguf", tiny.bytes())
}

fn plain(scratch: &Scratch, name: &str, options: &[&str]) -> Htc {
    htc!["compile", model(scratch), "-o", scratch.path(name)]
        .args(["--report", "json"])
        .args(options)
}

fn compile(scratch: &Scratch, name: &str, options: &[&str]) -> Htc {
    let run = plain(scratch, name, options);
    run.args(["--cache".as_ref(), scratch.path("cache").as_path()])
}

#[test]
fn model_and_output_suffice() {
    let scratch = Scratch::new();
    let outcome = compile(&scratch, "small.htz", &[]).run().assert_ok();
    let said = outcome.stderr.clone();
    assert!(said.contains("windows are of 64 tokens"), "{said}");
    let asked = "request     --method quantise --max-perplexity-increase 1";
    assert!(said.contains(asked), "{said}");
    let report = outcome.json();
    assert_eq!(text(&report, "/plan/method"), "quantise");
    assert_eq!(number(&report, "/limit/perplexity_increase"), 0.01);
    assert_eq!(text(&report, "/calibration/text"), "shipped v1");
    assert_eq!(number(&report, "/calibration/context"), 64.0);
    let (before, after) = (
        number(&report, "/bytes/before"),
        number(&report, "/bytes/after"),
    );
    assert!(after < 0.6 * before, "{after} of {before}");
    let trials = list(&report, "/trials");
    let chosen = trials.iter().find(|trial| trial["chosen"] == true).unwrap();
    let upper = number(chosen, "/evaluation/perplexity_ratio_all_interval/1");
    assert!(upper <= 1.01, "{upper}");
    let upper = number(chosen, "/evaluation/kl_interval/1");
    assert!(upper <= 1.01f64.ln(), "{upper}");
    htc!["verify", scratch.path("small.htz")].run().assert_ok();
    let named = ["--method", "quantise", "--preset", "balanced"];
    compile(&scratch, "named.htz", &named).run().assert_ok();
    let bytes = |name| fs::read(scratch.path(name)).unwrap();
    assert!(bytes("named.htz") == bytes("small.htz"));
    let long = compile(&scratch, "long.htz", &["--context", "512"]).run();
    long.assert_refused(2, &["--calibration-context 512", "64 positions"]);
}

#[test]
fn file_size_with_factor_options_is_refused() {
    let scratch = Scratch::new();
    for (options, words) in [
        (&["--rank-cap", "4"][..], "--rank-cap 4"),
        (&["--projections", "q"], "--projections q"),
        (&["--embedding-type", "q8_0"], "--embedding-type q8_0"),
        (&["--factor-type", "q8_0"], "--factor-type q8_0"),
        (&["--gauge", "whiten"], "--gauge whiten"),
    ] {
        for method in [&["--bpw", "9"][..], &["--method", "quantise"]] {
            let run = compile(&scratch, "none.htz", &[options, method].concat());
            run.as_typed().run().assert_refused(
                2,
                &[words, "no factors", "--method low-rank or shared-basis"],
            );
        }
    }
    let off = ["--gauge", "none", "--bias", "off", "--sink", "off"];
    let off = compile(&scratch, "off.htz", &off).as_typed().run().json();
    assert_eq!(text(&off, "/plan/method"), "quantise");
    let small = compile(&scratch, "small.htz", &["--bpw", "2"]).run();
    assert_eq!(small.code(), Some(2));
    assert!(small.stderr.contains("--bpw 2: "), "{small:?}");
    let sized = compile(&scratch, "sized.htz", &["--target-size", "60%"]);
    let report = sized.run().json();
    assert_eq!(text(&report, "/plan/method"), "quantise");
    assert!(!Artifact::open(&scratch.path("sized.htz")).bytes.is_empty());
}

#[test]
fn default_dry_run_predicts_a_size() {
    let scratch = Scratch::new();
    let run = || compile(&scratch, "out.htz", &["--dry-run"]);
    let forecast = run().run().json();
    assert_eq!(number(&forecast, "/limit/perplexity_increase"), 0.01);
    for stage in ["calibrate", "plan", "factorise", "measure"] {
        assert!(number(&forecast, &format!("/stages/{stage}")) > 0.0);
    }
    let limit = run().args(["--preset", "small"]).run().json();
    assert!(number(&limit, "/bytes/after") <= number(&forecast, "/bytes/after"));
    let ranks = run().args([
        "--max-kl",
        "0.1",
        "--projections",
        "q",
        "--calibration",
        "shipped",
    ]);
    ranks
        .run()
        .assert_refused(2, &["--max-kl", "--dry-run", "--method quantise"]);
    assert!(number(&forecast, "/bytes/after") > 0.0);
    let said = run().run().assert_ok().stderr;
    assert!(said.contains("measuring decides"), "{said}");
    assert!(!scratch.path("out.htz").exists());
}

#[test]
fn effort_affects_plan_and_bytes() {
    let scratch = Scratch::new();
    let sized = ["--target-size", "170kB", "--force"];
    let with = |name: &str, options: &[&str]| {
        let report = compile(&scratch, name, &[&sized[..], options].concat());
        let report = report.run().json();
        (fs::read(scratch.path(name)).unwrap(), report)
    };
    let (normal, report) = with("normal.htz", &[]);
    assert_eq!(number(&report, "/calibration/tokens"), 65_536.0);
    assert!(report.pointer("/request/effort").is_none());
    let (fast, report) = with("fast.htz", &["--effort", "fast"]);
    assert_eq!(number(&report, "/calibration/tokens"), 16_384.0);
    assert_eq!(text(&report, "/request/effort"), "fast");
    assert!(fast != normal);
    let tokens = ["--calibration-tokens", "65536", "--effort", "fast"];
    let (asked, report) = with("asked.htz", &tokens);
    assert_eq!(number(&report, "/calibration/tokens"), 65_536.0);
    assert!(asked != normal && asked != fast);
    let plan = scratch.path("plan.json");
    let made = htc!["plan", scratch.path("model.gguf"), "-o", &plan];
    let made = made.args(["--target-size", "170kB", "--effort", "fast", "--cache"]);
    made.arg(scratch.path("cache")).run().assert_ok();
    let written: Value = serde_json::from_slice(&fs::read(&plan).unwrap()).unwrap();
    assert_eq!(text(&written, "/request/effort"), "fast");
    let planned = compile(&scratch, "planned.htz", &["--calibration", "shipped"]);
    let planned = planned.arg("--plan").arg(&plan);
    let report = planned.args(["--calibration-tokens", "16384"]).run().json();
    assert_eq!(text(&report, "/request/effort"), "fast");
    let both = compile(&scratch, "both.htz", &["--effort", "high"]);
    both.arg("--plan")
        .arg(&plan)
        .run()
        .assert_refused(2, &["--plan", "--effort"]);
    let wrong = compile(&scratch, "wrong.htz", &["--effort", "most"]).run();
    wrong.assert_refused(2, &["--effort", "fast, normal or high"]);
}

#[test]
fn result_is_brief_unless_asked_otherwise() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let compile = |name: &str, options: &[&str]| {
        let run = htc!["compile", &model, scratch.path(name), "--effort", "fast"];
        let run = run.args([
            "--target-size".into(),
            "60%".into(),
            "--cache".into(),
            scratch.path("cache"),
        ]);
        run.args(options).as_typed().run().assert_ok()
    };
    let brief = compile("brief.htz", &[]);
    let lines: Vec<&str> = brief
        .stderr
        .lines()
        .filter(|line| !line.contains("note: "))
        .collect();
    assert_eq!(lines.len(), 6, "{}", brief.stderr);
    for (line, word) in lines.iter().zip([
        "model.gguf -> brief.htz",
        "bits per weight",
        "of the source's (95 % interval ",
        "same top token",
        " threads",
        "htc run ",
    ]) {
        assert!(line.contains(word), "{word}: {line}");
    }
    assert!(brief.stdout.is_empty());
    let quiet = compile("quiet.htz", &["-q"]);
    assert_eq!((quiet.stdout.len(), &quiet.stderr[..]), (0, ""));
    let verbose = compile("verbose.htz", &["-v"]);
    assert!(verbose.stderr.contains("request  ") && verbose.stderr.contains("\n  down "));
    let report = compile("json.htz", &["--json"]).json();
    assert_eq!(text(&report, "/schema"), "htc-report-1");
    assert_eq!(text(&report, "/htc"), env!("CARGO_PKG_VERSION"));
    let bits = 8.0 * number(&report, "/bytes/after") / number(&report, "/parameters/before");
    assert_eq!(number(&report, "/bits_per_weight"), bits);
}

/// The quality is measured without a calibration, too, and a useless artifact is called one.
#[test]
fn artifact_of_twice_the_perplexity_is_a_warning() {
    let scratch = Scratch::new();
    let demo = demo("reference-7m-f16.gguf");
    let compile = |rank: &str, output: &str| {
        let run = htc!["compile", &demo, scratch.path("out.htz"), "--force", output];
        let run = run.args(["--method", "low-rank", "--rank", rank]);
        run.as_typed().run()
    };
    let useless = compile("4", "--json");
    let ratio = |report: &Value| number(report, "/quality/evaluation/perplexity_ratio");
    let warned = useless.stderr.clone();
    let report = useless.json();
    assert!(ratio(&report) > 2.0 && report["calibration"].is_null());
    let said = format!("perplexity is {:.1} times the source's", ratio(&report));
    assert!(
        warned.contains(&said) && !warned.contains("htc run "),
        "{warned}"
    );
    let verbose = compile("4", "-v").assert_ok().stderr;
    assert!(
        verbose.contains("KL divergence") && verbose.contains(&said),
        "{verbose}"
    );
    let whole = compile("full", "--json");
    assert!(
        !whole.stderr.contains("times the source's"),
        "{}",
        whole.stderr
    );
    assert!((ratio(&whole.json()) - 1.0).abs() < 0.02);
}

/// What the shapes of the matrices rule out is refused before the calibration.
#[test]
fn impossible_sizes_are_refused_at_once() {
    let scratch = Scratch::new();
    let cache = scratch.path("cache");
    let refused = |options: &[&str], words: &[&str]| {
        let run = htc!["compile", demo_of_layers(2), scratch.path("out.htz")];
        let run = run
            .args(options)
            .arg("--cache")
            .arg(&cache)
            .as_typed()
            .run();
        run.assert_refused(2, words);
        assert!(!cache.exists(), "{options:?} is calibrated");
    };
    for (options, words) in [
        (
            &["--target-size", "1%"][..],
            &["--target-size 1%", "shapes"][..],
        ),
        (
            &["--target-size", "20MB"],
            &["--target-size 20000000", "at most"],
        ),
        (&["--bpw", "0.1"], &["--bpw 0.1", "shapes"]),
        (&["--bpw", "40"], &["--bpw 40", "at most"]),
        (
            &["--planes", "2", "--target-size", "100kB"],
            &["--target-size 100000", "shapes"],
        ),
        (
            &["--planes", "2", "--target-size", "20MB"],
            &["--target-size 20000000", "at most"],
        ),
    ] {
        refused(options, words);
    }
}

/// What the environment sets for all commands fits those that do not use it.
#[test]
fn environment_sets_defaults_of_the_cache() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let compile = |value: &str| {
        let run = htc!["compile", &model, scratch.path("out.htz"), "--force"];
        let run = run.args(["--method", "low-rank", "--rank", "8"]);
        let run = run.env("HTC_TRUST_CACHE", Some(value.as_ref()));
        run.env("HTC_LOCK_TIMEOUT", Some("5".as_ref())).run()
    };
    compile("1").assert_ok();
    let run = htc!["analyse", &model, "--json"];
    let run = run.env("HTC_LOCK_TIMEOUT", Some("5".as_ref()));
    run.run().assert_ok();
    let run = htc!["analyse", &model].env("HTC_LOCK_TIMEOUT", Some("soon".as_ref()));
    run.run().assert_refused(2, &["--lock-timeout", "seconds"]);
}
