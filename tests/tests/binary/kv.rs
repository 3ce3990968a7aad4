use std::path::{Path, PathBuf};

use htc_tests::material::words;
use htc_tests::{Htc, Scratch, TinyModel, htc};

use super::number;

const NUMBERS: f64 = 2.0 * 2.0 * 2.0 * 32.0;

fn source(scratch: &Scratch) -> PathBuf {
    let tiny = TinyModel {
        head_size: 32,
        ..TinyModel::default()
    };
    scratch.file("model.gguf", tiny.bytes())
}

fn with_bases(scratch: &Scratch) -> PathBuf {
    let model = source(scratch);
    let artifact = scratch.path("kv.htz");
    let text = scratch.file("words.txt", words(20_000));
    htc![
        "compile", &model, "-o", &artifact, "--method", "low-rank", "--ratio", "0.9"
    ]
    .args([
        "--context",
        "32",
        "--calibration-tokens",
        "2048",
        "--kv-bases",
    ])
    .args(["--calibration".into(), text])
    .args(["--cache".into(), scratch.path("cache")])
    .run()
    .assert_ok();
    artifact
}

fn run(model: &Path, tokens: &str) -> Htc {
    let prompt = words(60);
    let run = htc!["run", model, "-p", prompt, "-n", tokens];
    run.args(["--temp", "0", "--ignore-eos", "--threads", "2"])
}

#[test]
fn every_kv_kind_runs_and_reports_its_size() {
    let scratch = Scratch::new();
    let model = with_bases(&scratch);
    for (kind, bytes) in [
        ("f32", 4.0),
        ("f16", 2.0),
        ("q8_0", 34.0 / 32.0),
        ("q4_0", 18.0 / 32.0),
        ("q8_0-rotated", 34.0 / 32.0),
        ("q4_0-rotated", 18.0 / 32.0),
    ] {
        let found = run(&model, "24")
            .args(["--kv", kind, "--json"])
            .run()
            .assert_ok()
            .json();
        let expected = NUMBERS * bytes;
        assert_eq!(number(&found, "/kv_bytes_per_token"), expected, "{kind}");
    }
    let f16 = 2.0 * NUMBERS;
    for kind in [
        "static:0.5",
        "static-hybrid:0.5",
        "oja:0.5",
        "static:e0.9",
        "static:1",
    ] {
        let outcome = run(&model, "48")
            .args(["--kv", kind, "--json"])
            .run()
            .assert_ok();
        assert!(outcome.stderr.contains(" compressed"), "{}", outcome.stderr);
        let found = outcome.json();
        let taken = number(&found, "/kv_bytes_per_token");
        match kind {
            "static:0.5" => assert_eq!(taken, f16 / 2.0),
            "static:1" => assert_eq!(taken, f16),
            _ => assert!(taken < f16, "{kind}: {taken}"),
        }
    }
    let hybrid = run(&model, "48").args(["--kv", "static-hybrid:0.5", "--json"]);
    let hybrid = hybrid.run().assert_ok().json();
    let positions = number(&hybrid, "/prompt_tokens") + number(&hybrid, "/tokens") - 1.0;
    let taken = number(&hybrid, "/kv_bytes") / positions;
    assert!(
        number(&hybrid, "/kv_bytes_per_token") < taken && taken < f16,
        "{taken}"
    );
    let oja = run(&model, "48")
        .args(["--kv", "oja:0.5"])
        .run()
        .assert_ok();
    assert!(oja.stderr.contains("bases updated "), "{}", oja.stderr);
    let old = run(&model, "4")
        .args(["--kv-type", "f32", "--json"])
        .run()
        .assert_ok();
    assert_eq!(number(&old.json(), "/kv_bytes_per_token"), 4.0 * NUMBERS);
}

#[test]
fn prompt_is_truncated_to_the_kept_positions() {
    let scratch = Scratch::new();
    let model = with_bases(&scratch);
    let whole = run(&model, "8").run().assert_ok();
    for kind in ["f16", "q4_0-rotated", "static:0.5"] {
        let outcome = run(&model, "8")
            .args(["--kv", kind, "--kv-keep", "40"])
            .run()
            .assert_ok();
        let line = outcome
            .stderr
            .lines()
            .find(|line| line.contains(" evicted"));
        let line = line.unwrap_or_else(|| panic!("{}", outcome.stderr));
        let evicted = line
            .split("; ")
            .find_map(|part| part.strip_suffix(" evicted"));
        let read = number(
            &run(&model, "8").arg("--json").run().json(),
            "/prompt_tokens",
        );
        assert_eq!(
            evicted.unwrap().parse::<f64>().unwrap(),
            read - 40.0,
            "{kind}"
        );
    }
    let kept = run(&model, "8")
        .args(["--kv-keep", "250"])
        .run()
        .assert_ok();
    assert_eq!(kept.stdout, whole.stdout);
}

#[test]
fn full_context_stops_or_slides() {
    let scratch = Scratch::new();
    let model = source(&scratch);
    let stopped = run(&model, "400").run().assert_ok();
    let stopped = stopped.stderr;
    assert!(stopped.contains("context"), "{stopped}");
    let ended = run(&model, "400").arg("--json").run().assert_ok().json();
    assert_eq!(ended["stop"], "context");
    let room = number(&ended, "/tokens").to_string();
    let all = run(&model, &room).args(["--on-full", "slide", "--json"]);
    let all = all.run().assert_ok().json();
    assert_eq!(all["text"], ended["text"]);
    assert_eq!(
        (&all["stop"], number(&all, "/slides")),
        (&"limit".into(), 0.0)
    );
    let slid = || run(&model, "400").args(["--on-full", "slide", "--json"]);
    let outcome = slid().run().assert_ok();
    assert!(outcome.stderr.contains("began anew"), "{}", outcome.stderr);
    let found = outcome.json();
    assert_eq!(number(&found, "/tokens"), 400.0);
    assert!(number(&found, "/slides") > 1.0);
    let drafted = slid().args(["--draft", "1", "--draft-length", "3"]);
    let drafted = drafted.run().assert_ok().json();
    assert_eq!(drafted["text"], found["text"]);
    assert!(number(&drafted, "/accepted") > 100.0);
}

#[test]
fn eval_measures_the_kv_kind() {
    let scratch = Scratch::new();
    let model = with_bases(&scratch);
    let text = scratch.file("text.txt", words(2_000));
    let divergence = |kind: &str| {
        let eval = htc![
            "eval",
            &model,
            "--reference",
            scratch.path("model.gguf"),
            "--context",
            "96"
        ];
        let eval = eval
            .arg("--text")
            .arg(&text)
            .args(["--chunks", "4", "--kv", kind, "--json"]);
        eval.run().assert_ok().json()
    };
    let perplexity = |kind: &str| number(&divergence(kind), "/perplexity");
    let full = perplexity("f32");
    let apart = |kind: &str| (perplexity(kind) / full - 1.0).abs();
    let coarse = apart("static:0.1");
    assert!(
        apart("q8_0") < 0.01 && coarse > 2.0 * apart("q8_0"),
        "{coarse}"
    );
    assert!(apart("static:1") < 0.01);
}

#[test]
fn invalid_kinds_and_missing_bases_are_refused() {
    let scratch = Scratch::new();
    let model = source(&scratch);
    for kind in [
        "q5_0",
        "static",
        "oja:0",
        "oja:1.5",
        "oja:nan",
        "static:e2",
        "f16-rotated",
        "",
    ] {
        run(&model, "4")
            .args(["--kv", kind])
            .run()
            .assert_refused(2, &["--kv"]);
    }
    run(&model, "4")
        .args(["--kv-keep", "-1"])
        .run()
        .assert_refused(2, &["--kv-keep"]);
    run(&model, "4")
        .args(["--kv-keep", "0"])
        .run()
        .assert_refused(1, &["0"]);
    for kind in ["static:0.5", "oja:0.8"] {
        run(&model, "4")
            .args(["--kv", kind])
            .run()
            .assert_refused(1, &["bases", "--kv-bases"]);
    }
    let drafted = run(&with_bases(&scratch), "4").args(["--draft", "1"]);
    drafted
        .args(["--kv", "oja:0.5"])
        .run()
        .assert_refused(1, &["oja"]);
}
