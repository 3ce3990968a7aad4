//! `htc bench --sensor`, and plans from measured energy.

use std::fs;
use std::path::Path;

use htc_tests::{Scratch, TinyModel, htc};
use serde_json::Value;

use super::bench::{RESULT, bench, fake_llama_bench, llama_cpp_argument, tiny};
use super::{assert_close, compile, list, number, text};

#[test]
fn sensor_option_adds_joules() {
    let scratch = Scratch::new();
    let model = tiny(&scratch, "a.gguf", 1);
    let options = ["--method", "low-rank", "--rank", "16"];
    let (artifact, _) = compile(&scratch, &model, "a.htz", &options);
    let page = scratch.path("page.html");
    let run = bench(&artifact).args(["--fraction", "0.6", "--pairs", "2", "--context", "32"]);
    let run = run.arg("--against").arg(&artifact).arg("-o").arg(&page);
    let outcome = run.args(["--sensor", "sim:idle=10,full=110,speed=100"]);
    let outcome = outcome.run().assert_ok();
    for words in [
        "tokens/J",
        "sensor: simulated plant",
        "idling at 10.0 W",
        "less than 1 s",
    ] {
        assert!(
            outcome.stderr.contains(words),
            "no {words}: {}",
            outcome.stderr
        );
    }
    let found = outcome.json();
    assert_close(number(&found, "/sensor/idle_watts"), 10.0, 1e-6);
    assert_eq!(text(&found, "/sensor/source"), "counter");
    let fraction = number(&found, "/subject/fraction");
    let touched =
        number(&found, "/subject/touched_bytes") / number(&found, "/baseline/touched_bytes");
    assert_close(touched, fraction, 1e-9);
    let mut ratios = 0.0;
    for pair in list(&found, "/pairs") {
        // A short run is attributed in part to the readings at its ends.
        for (side, watts) in [("subject", 10.0 + 100.0 * fraction), ("baseline", 110.0)] {
            let run = &pair[side];
            let power = number(run, "/power_watts");
            assert!(power > 10.0 && power < watts + 1e-6, "{power} {watts}");
            let joules = number(run, "/joules");
            assert_close(
                number(run, "/tokens_per_joule"),
                number(run, "/tokens") / joules,
                1e-9,
            );
            assert!(number(run, "/decode_joules") < joules && number(run, "/net_joules") < joules);
            let [before, after] =
                ["before", "after"].map(|at| number(run, &format!("/temperature_{at}_celsius")));
            assert!(before > 31.9 && after < 110.0, "{before} {after}");
            assert_eq!(number(run, "/missed_seconds"), 0.0);
        }
        ratios +=
            number(pair, "/subject/tokens_per_joule") / number(pair, "/baseline/tokens_per_joule");
    }
    let comparison = &found["energy"]["tokens_per_joule"]["comparison"];
    assert_close(number(comparison, "/ratio"), ratios / 2.0, 1e-9);
    assert!(number(comparison, "/interval/0") <= number(comparison, "/interval/1"));
    assert!(
        number(
            &found,
            "/context/0/energy/decode_tokens_per_joule/comparison/ratio"
        ) > 0.0
    );
    let html = fs::read_to_string(&page).unwrap();
    for words in [
        "Tokens per joule of every run",
        "J beyond idling",
        "simulated plant",
        "of the baseline's tokens per joule",
    ] {
        assert!(html.contains(words), "no {words}");
    }
}

#[test]
fn missing_sensor_quantities_are_null() {
    let scratch = Scratch::new();
    let model = tiny(&scratch, "a.gguf", 1);
    let warm = scratch.file("warm.csv", "seconds,temperature\n0,50\n3600,50\n");
    let run = bench(&model).args(["--pairs", "2"]);
    let run = run.arg("--sensor").arg(format!("trace:{}", warm.display()));
    let outcome = run.run().assert_ok();
    assert!(
        outcome.stderr.contains("2 of 2 runs have no joules"),
        "{}",
        outcome.stderr
    );
    let found = outcome.json();
    let run = found["pairs"][0]["subject"].as_object().unwrap();
    for null in [
        "joules",
        "net_joules",
        "decode_joules",
        "tokens_per_joule",
        "power_watts",
    ] {
        assert!(run[null].is_null(), "{null}: {}", run[null]);
    }
    assert_eq!(run["temperature_celsius"], 50.0);
    assert!(
        found["energy"]["tokens_per_joule"].is_null() && found["sensor"]["idle_watts"].is_null()
    );
    let with = |sensor: &str| bench(&model).args(["--sensor", sensor]).run();
    with("trace:no.csv").assert_refused(1, &["no.csv"]);
    with("nvml:4294967295").assert_refused(1, &["nvidia-smi"]);
    with("thermometer").assert_refused(2, &["--sensor", "hwmon"]);
    let over = bench(&model).arg("-o").arg(&warm).arg("--force");
    let over = over
        .arg("--sensor")
        .arg(format!("trace:{}", warm.display()));
    over.run().assert_refused(2, &["warm.csv", "-o"]);
}

#[test]
fn joules_of_llama_cpp_are_null() {
    let scratch = Scratch::new();
    let model = tiny(&scratch, "a.gguf", 1);
    let program = fake_llama_bench(&scratch, RESULT);
    let run = bench(&model).args(["--pairs", "2", "--sensor", "sim"]);
    let outcome = run
        .arg("--against")
        .arg(llama_cpp_argument(&program))
        .run()
        .assert_ok();
    assert!(
        outcome.stderr.contains("llama-bench loads the model"),
        "{}",
        outcome.stderr
    );
    let found = outcome.json();
    let pair = &found["pairs"][0];
    assert!(number(pair, "/subject/joules") > 0.0 && pair["baseline"]["joules"].is_null());
    assert!(pair["baseline"]["temperature_celsius"].is_number());
    let quantity = &found["energy"]["tokens_per_joule"];
    assert!(quantity["subject"].is_object() && quantity.get("comparison").is_none());
}

#[test]
fn plan_uses_measured_energy() {
    let scratch = Scratch::new();
    let model = super::plan::model(&scratch);
    let long = TinyModel {
        context: 1024,
        width: 128,
        ..TinyModel::default()
    };
    let long = scratch.file("long.gguf", long.bytes());
    let (artifact, _) = compile(
        &scratch,
        &long,
        "a.htz",
        &["--method", "low-rank", "--rank", "16"],
    );
    let run = bench(&artifact).args(["--fraction", "0.8", "--pairs", "2"]);
    let run = run.arg("--against").arg(&artifact);
    let found = run.args(["--sensor", "sim"]).run().json();
    let with_slope = |name: &str, slope: f64| {
        let mut found = found.clone();
        let touched =
            ["subject", "baseline"].map(|side| (side, number(&found[side], "/touched_bytes")));
        for pair in found["pairs"].as_array_mut().unwrap() {
            for (side, bytes) in touched {
                let run = &mut pair[side];
                assert!(number(run, "/decode_joules") > 0.0);
                let passes = number(run, "/tokens") - 1.0;
                run["decode_joules"] = (passes * (0.5 + slope * bytes)).into();
            }
        }
        scratch.file(name, found.to_string())
    };
    let (measured, dear) = (
        with_slope("energy.json", 1e-9),
        with_slope("dear.json", 1e-2),
    );
    let options = |file: &Path| {
        let file = file.to_str().unwrap().to_owned();
        ["--allocator", "diffplan", "--energy"]
            .map(str::to_owned)
            .into_iter()
            .chain([file])
            .collect::<Vec<_>>()
    };
    let as_given = options(&measured);
    let as_given: Vec<&str> = as_given.iter().map(String::as_str).collect();
    let (one, report) = compile(&scratch, &model, "one.htz", &as_given);
    let (other, _) = compile(&scratch, &model, "other.htz", &as_given);
    let [one, other] = [one, other].map(|path| fs::read(path).unwrap());
    assert!(one == other);
    let plan_text = |report: &Value| report["plan"].to_string();
    assert!(
        plan_text(&report).contains("J for each byte"),
        "{}",
        plan_text(&report)
    );
    let ratio = |file: &Path, out: &str| {
        let options = options(file);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        number(&compile(&scratch, &model, out, &options).1, "/ratio")
    };
    let (cheap, dear) = (ratio(&measured, "c.htz"), ratio(&dear, "d.htz"));
    assert!(dear < cheap, "{dear} {cheap}");
    let plan = |options: &[&str]| htc!["plan", &model].args(options.iter().copied()).run();
    let said = plan(&as_given).assert_ok().stderr;
    assert!(
        said.contains("J for each byte") && said.contains("sha256"),
        "{said}"
    );
    let empty = scratch.file("empty.json", "");
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    plan(&["--allocator", "diffplan", "--energy", &path(&empty)])
        .assert_refused(1, &["empty.json", "line 1"]);
    plan(&["--allocator", "diffplan", "--energy", &path(&model)])
        .assert_refused(1, &["model.gguf"]);
    let alone = bench(&long).args(["--pairs", "1"]).run().assert_ok();
    let alone = scratch.file("alone.json", &alone.stdout);
    plan(&["--allocator", "diffplan", "--energy", &path(&alone)])
        .assert_refused(1, &["alone.json", "--sensor"]);
    plan(&["--energy", &path(&measured)]).assert_refused(2, &["--energy", "diffplan"]);
    let both = ["--tokens-per-joule", "2"];
    plan(&[&as_given[..], &both].concat()).assert_refused(2, &["--energy", "--tokens-per-joule"]);
    let over = ["-o", &path(&measured), "--force"].map(str::to_owned);
    let over: Vec<&str> = over.iter().map(String::as_str).collect();
    plan(&[&as_given[..], &over].concat()).assert_refused(2, &["energy.json"]);
    htc!["compile", &model]
        .args([&as_given[..], &over].concat())
        .run()
        .assert_refused(2, &["energy.json"]);
    assert!(
        fs::read_to_string(&measured)
            .unwrap()
            .contains("decode_joules")
    );
}
