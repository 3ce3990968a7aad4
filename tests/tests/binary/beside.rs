use htc_tests::material::words;
use htc_tests::scratch::names_in;
use htc_tests::{Htc, Scratch, TinyModel, htc};
use serde_json::Value;

use super::{list, number, text};

fn compile(scratch: &Scratch, options: &[&str]) -> Htc {
    let model = scratch.path("model.gguf");
    if !model.exists() {
        scratch.file("model.gguf", TinyModel::default().bytes());
        scratch.file("words.txt", words(20_000));
    }
    htc!["compile", &model, "-o", scratch.path("out.htz"), "--force"]
        .args([
            "--context",
            "32",
            "--calibration-tokens",
            "8192",
            "--tune",
            "0",
        ])
        .args(["--calibration".into(), scratch.path("words.txt")])
        .args(["--cache".into(), scratch.path("cache")])
        .args(["--report", "json"])
        .args(options)
}

fn types(report: &Value) -> Vec<String> {
    let beside = report["beside"].as_array();
    let files = beside.into_iter().flatten();
    files.map(|file| text(file, "/type").to_owned()).collect()
}

#[test]
fn nearest_uniform_files_are_measured() {
    let scratch = Scratch::new();
    let size = ["--target-size", "155kB"];
    let outcome = compile(&scratch, &size).run().assert_ok();
    let said = outcome.stderr.clone();
    let report = outcome.json();
    assert_eq!(types(&report).len(), 2, "{report}");
    let files = list(&report, "/beside");
    let bytes = [0, 1].map(|file| number(&files[file], "/bytes"));
    let own = number(&report, "/bytes/after");
    assert!(bytes[0] <= own && own < bytes[1], "{bytes:?} around {own}");
    for file in files {
        let measured = &file["evaluation"];
        assert!(number(measured, "/kl") > 0.0, "{file}");
        for key in ["/chunks", "/reference_perplexity"] {
            let of_artifact = number(&report["quality"]["evaluation"], key);
            assert_eq!(number(measured, key), of_artifact, "{key}");
        }
        let name = format!("{} throughout", text(file, "/type"));
        assert!(said.contains(&name), "{said}");
    }
    assert_eq!(
        names_in(scratch.folder()),
        ["cache", "model.gguf", "out.htz", "words.txt"]
    );
    let with = std::fs::read(scratch.path("out.htz")).unwrap();
    let off = [&size[..], &["--compare", "off"]].concat();
    let report = compile(&scratch, &off).run().json();
    assert_eq!(types(&report), [""; 0]);
    assert!(std::fs::read(scratch.path("out.htz")).unwrap() == with);
}

#[test]
fn effort_determines_the_number_of_baselines() {
    let scratch = Scratch::new();
    let count = |effort: &str, more: &[&str]| {
        let options = ["--target-size", "110kB", "--effort", effort];
        types(
            &compile(&scratch, &[&options[..], more].concat())
                .run()
                .json(),
        )
        .len()
    };
    assert_eq!(count("fast", &[]), 0);
    assert_eq!(count("fast", &["--compare", "on"]), 2);
    assert!(count("high", &[]) > 4);
    let wrong = ["--compare", "perhaps"];
    compile(&scratch, &wrong)
        .run()
        .assert_refused(2, &["on or off"]);
}

/// A single type for all matrices is predicted to lose more than twice as much here.
#[test]
fn search_measures_no_uniform_type_that_is_predicted_to_lose_far_more() {
    let scratch = Scratch::new();
    let report = compile(&scratch, &["--max-kl", "0.05"]).run().json();
    let trials = list(&report, "/trials");
    assert!(trials.iter().any(|trial| trial["chosen"] == true));
    let is_uniform = |trial: &&Value| trial.get("uniform").is_some();
    assert_eq!(trials.iter().filter(is_uniform).count(), 0, "{trials:?}");
}
