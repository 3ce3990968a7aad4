//! `htc compile` and `htc plan` where no method is named: what follows from the other options, and what is said of it.

use std::fs;
use std::path::PathBuf;

use htc_tests::artifact::Artifact;
use htc_tests::{Htc, Scratch, TinyModel, htc};
use serde_json::Value;

use super::{list, number, text};

/// Two small blocks, which read 64 tokens at once.
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

/// What is found out of it is kept in the folder of the test.
fn compile(scratch: &Scratch, name: &str, options: &[&str]) -> Htc {
    let run = plain(scratch, name, options);
    run.args(["--cache".as_ref(), scratch.path("cache").as_path()])
}

fn notes(report: &Value) -> Vec<&str> {
    let notes = list(report, "/notes").iter();
    notes.filter_map(Value::as_str).collect()
}

/// The balanced preset, on the text that ships with the program, in windows that the model can read.
#[test]
fn a_model_and_a_name_are_enough() {
    let scratch = Scratch::new();
    let outcome = compile(&scratch, "small.htz", &[]).run().ok();
    let said = outcome.stderr.clone();
    assert!(said.contains("windows are of 64 tokens"), "{said}");
    let asked = "asked for   --method quantise --max-perplexity-increase 1";
    assert!(said.contains(asked), "{said}");
    let report = outcome.json();
    assert_eq!(text(&report, "/plan/method"), "quantise");
    assert_eq!(text(&report, "/limit"), "--max-perplexity-increase 1");
    assert_eq!(text(&report, "/calibration/text"), "shipped v1");
    assert_eq!(number(&report, "/calibration/context"), 64.0);
    let (before, after) = (
        number(&report, "/bytes/before"),
        number(&report, "/bytes/after"),
    );
    assert!(after < 0.6 * before, "{after} of {before}");
    let trials = list(&report, "/trials");
    let chosen = trials.iter().find(|trial| trial["chosen"] == true).unwrap();
    let upper = number(chosen, "/evaluation/perplexity_ratio_interval/1");
    assert!(upper <= 1.01, "{upper}");
    htc!["verify", scratch.path("small.htz")].run().ok();
    // Named, it is the same.
    let named = ["--method", "auto", "--preset", "balanced"];
    compile(&scratch, "named.htz", &named).run().ok();
    let bytes = |name| fs::read(scratch.path(name)).unwrap();
    assert!(bytes("named.htz") == bytes("small.htz"));
    // A window that is asked for is had or refused.
    let long = compile(&scratch, "long.htz", &["--context", "512"]).run();
    long.refused(2, &["--context 512", "64 positions"]);
}

/// What only factors have decides for them, and that is said; it is in no byte.
#[test]
fn options_of_factors_decide_for_factors() {
    let scratch = Scratch::new();
    for options in [
        &["--ratio", "0.8"][..],
        &["--rank", "4"],
        &["--bytes", "150kB"],
        &["--slots", "q,k"],
        &["--factor-type", "f16"],
        &["--rank-floor", "4"],
        &["--gauge", "axiom"],
    ] {
        let report = plain(&scratch, "auto.htz", &[options, &["--force"]].concat());
        let report = report.run().json();
        assert_eq!(text(&report, "/plan/method"), "gp", "{options:?}");
        assert!(report["calibration"].is_null() && report["limit"].is_null());
        let said = |note: &&str| note.starts_with(options[0]) && note.contains("method is gp");
        assert!(notes(&report).iter().any(said), "{options:?}: {report}");
        let named = [options, &["--method", "gp", "--force"]].concat();
        let report = plain(&scratch, "named.htz", &named).run().json();
        assert!(!notes(&report).iter().any(said), "{options:?}: {report}");
        let bytes = |name| fs::read(scratch.path(name)).unwrap();
        assert!(bytes("auto.htz") == bytes("named.htz"), "{options:?}");
    }
    let dry = htc!["plan", model(&scratch), "--rank", "4"].run().ok();
    assert!(dry.stderr.contains("method is gp"), "{}", dry.stderr);
    assert!(dry.text().contains("\"method\": \"gp\""), "{}", dry.text());
}

/// A size of the file is no matter of factors; both together are refused, with what can be done.
#[test]
fn a_size_of_the_file_and_options_of_factors_are_refused() {
    let scratch = Scratch::new();
    for (options, words) in [
        (&["--rank-cap", "4"][..], "--rank-cap 4"),
        (&["--slots", "q"], "--slots q"),
        (&["--embedding-type", "q8_0"], "--embedding-type q8_0"),
        (&["--factor-type", "q8_0"], "--factor-type q8_0"),
        (&["--gauge", "whiten"], "--gauge whiten"),
    ] {
        for method in [&["--bits", "9"][..], &["--method", "quantise"]] {
            let run = compile(&scratch, "none.htz", &[options, method].concat());
            run.run()
                .refused(2, &[words, "no factors", "--method gp or grc"]);
        }
    }
    // What is off asks for no factors.
    let off = ["--gauge", "none", "--bias", "off", "--sink", "off"];
    let off = compile(&scratch, "off.htz", &off).run().json();
    assert_eq!(text(&off, "/plan/method"), "quantise");
    let sized = compile(&scratch, "sized.htz", &["--file-size", "1MB"]);
    let report = sized.run().json();
    assert_eq!(text(&report, "/plan/method"), "quantise");
    assert!(!Artifact::open(&scratch.path("sized.htz")).bytes.is_empty());
}

/// A dry run of a limit says what is expected, not what will be.
#[test]
fn a_dry_run_of_the_default_expects_a_size() {
    let scratch = Scratch::new();
    let run = || compile(&scratch, "out.htz", &["--dry-run"]);
    let forecast = run().run().json();
    assert_eq!(text(&forecast, "/limit"), "--max-perplexity-increase 1");
    assert!(number(&forecast, "/bytes/after") > 0.0);
    let said = run().run().ok().stderr;
    assert!(said.contains("measuring decides"), "{said}");
    assert!(!scratch.path("out.htz").exists());
}
