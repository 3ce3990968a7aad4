use std::fs;

use htc_tests::artifact::Artifact;
use htc_tests::material::{demo, demo_of_layers};
use htc_tests::{Htc, Scratch, htc};
use serde_json::Value;

use super::number;

const LAYERS: u32 = 2;

fn compile(scratch: &Scratch, output: &str, second: &str, options: &[&str]) -> Htc {
    for name in ["alice.txt", "time_machine.txt"] {
        let text = fs::read_to_string(demo(name)).unwrap();
        let short: String = text.chars().take(6000).collect();
        scratch.file(name, short);
    }
    let second = scratch.path(second);
    htc![
        "compile",
        demo_of_layers(LAYERS),
        "-o",
        scratch.path(&format!("{output}.htz"))
    ]
    .args(["--projections", "k,v", "--ratio", "0.5", "--context", "64"])
    .args(["--report", "json", "--force", "--cache"])
    .arg(scratch.path("cache"))
    .arg("--calibration")
    .arg(scratch.path("alice.txt"))
    .arg("--calibration")
    .arg(second)
    .args(options)
}

fn artifact(scratch: &Scratch, name: &str) -> Vec<u8> {
    fs::read(scratch.path(&format!("{name}.htz"))).unwrap()
}

const GIVEN: [&str; 4] = ["--gauge", "whiten", "--bias", "off"];

#[test]
fn byte_order_mark_is_not_calibrated_on() {
    let scratch = Scratch::new();
    let alice = fs::read_to_string(demo("alice.txt")).unwrap();
    let short: String = alice.chars().take(6000).collect();
    scratch.file(
        "mark.txt",
        format!("\u{feff}{}", short.replace('\n', "\r\n")),
    );
    scratch.file("plain.txt", short.replace('\n', "\r\n"));
    let run = |output, second| compile(&scratch, output, second, &GIVEN).run().assert_ok();
    let said = run("mark", "mark.txt").stderr;
    assert!(
        said.contains("mark.txt: removed the byte order mark"),
        "{said}"
    );
    assert!(said.contains("lines with CR LF"), "{said}");
    run("plain", "plain.txt");
    assert!(artifact(&scratch, "mark") == artifact(&scratch, "plain"));
}

#[test]
fn texts_are_reported_with_their_weights() {
    let scratch = Scratch::new();
    let run = |output, second| {
        let run = compile(&scratch, output, second, &GIVEN);
        run.run().assert_ok().json()
    };
    let found = run("half", "time_machine.txt=0.5");
    let calibration = &found["calibration"];
    let said = "alice.txt, time_machine.txt (weight 0.5)";
    assert_eq!(calibration["text"], said);
    let texts = calibration["texts"].as_array().unwrap();
    assert_eq!(texts.len(), 2);
    assert_eq!(texts[0]["weight"], 1.0);
    assert_eq!(texts[1]["weight"], 0.5);
    let tokens: f64 = texts.iter().map(|text| number(text, "/tokens")).sum();
    assert_eq!(number(calibration, "/tokens"), tokens);
    assert_eq!(found["quality"]["text"], "alice.txt, time_machine.txt");
    assert_ne!(texts[0]["sha256"], texts[1]["sha256"]);
    assert_eq!(calibration["found_layers"], 0);
    let again = run("again", "time_machine.txt=0.5");
    let layers = &again["calibration"]["layers"];
    assert_eq!(&again["calibration"]["found_layers"], layers);
    assert!(artifact(&scratch, "again") == artifact(&scratch, "half"));
    let other = run("whole", "time_machine.txt");
    assert_eq!(other["calibration"]["found_layers"], 0);
    assert!(artifact(&scratch, "whole") != artifact(&scratch, "half"));
}

#[test]
fn duplicate_texts_and_invalid_weights_are_refused() {
    let scratch = Scratch::new();
    let run = |second: &str| compile(&scratch, "out", second, &GIVEN).run();
    run("alice.txt").assert_refused(2, &["--calibration", "given twice"]);
    run("alice.txt=3").assert_refused(2, &["--calibration", "given twice"]);
    run("time_machine.txt=0").assert_refused(2, &["--calibration", "above 0"]);
    run("time_machine.txt=-1").assert_refused(2, &["--calibration", "above 0"]);
    assert!(!scratch.path("out.htz").exists());
}

#[test]
fn second_text_determines_the_shrinkage() {
    let scratch = Scratch::new();
    let options = [&GIVEN[..], &["--shrinkage", "auto"]].concat();
    let second = "time_machine.txt=0.1";
    let run = compile(&scratch, "auto", second, &options)
        .run()
        .assert_ok();
    let said = run.stderr.clone();
    assert!(said.contains("on the texts behind the first"), "{said}");
    let report = run.json();
    let trials = report["trials"].as_array().unwrap();
    let (elsewhere, all): (Vec<&Value>, Vec<&Value>) =
        trials.iter().partition(|trial| trial["elsewhere"] == true);
    assert_eq!((elsewhere.len(), all.len()), (5, 1));
    let kl = |trial: &Value| number(trial, "/evaluation/kl");
    let best = elsewhere.iter().min_by(|a, b| kl(a).total_cmp(&kl(b)));
    let part = &best.unwrap()["shrinkage"];
    assert_eq!(&all[0]["shrinkage"], part);
    assert_eq!(all[0]["chosen"], true);
    assert_eq!(&report["treatment"]["shrinkage"], part);
    let chunks = |trial: &Value| number(trial, "/evaluation/chunks");
    assert!(chunks(elsewhere[0]) < chunks(all[0]));
    let part = part.to_string();
    let explicit = [&GIVEN[..], &["--shrinkage", &part]].concat();
    compile(&scratch, "explicit", second, &explicit)
        .run()
        .assert_ok();
    let tensors = |name| {
        Artifact::open(&scratch.path(&format!("{name}.htz")))
            .manifest
            .tensors
    };
    assert!(tensors("explicit") == tensors("auto"));
}

#[test]
fn shrinkage_applies_only_to_whiten() {
    let scratch = Scratch::new();
    let second = "time_machine.txt";
    let shrunk = |part| {
        let options = [&GIVEN[..], &["--shrinkage", part]].concat();
        let run = compile(&scratch, part, second, &options).run().assert_ok();
        let report = run.json();
        assert_eq!(report["treatment"]["shrinkage"].to_string(), part);
        artifact(&scratch, part)
    };
    assert!(shrunk("0.01") != shrunk("0.3"));
    compile(&scratch, "default", second, &GIVEN)
        .run()
        .assert_ok();
    assert!(artifact(&scratch, "default") == artifact(&scratch, "0.01"));
    for (options, words) in [
        (["--gauge", "none", "--shrinkage", "0.1"], "--gauge whiten"),
        (["--gauge", "whiten", "--shrinkage", "2"], "--shrinkage"),
    ] {
        let run = compile(&scratch, "out", second, &options).run();
        run.assert_refused(2, &[words]);
    }
}

fn compile_shipped(scratch: &Scratch, output: &str, texts: &[&str]) -> Htc {
    let run = htc![
        "compile",
        demo_of_layers(LAYERS),
        "-o",
        scratch.path(&format!("{output}.htz"))
    ]
    .args(["--projections", "k,v", "--ratio", "0.5", "--context", "64"])
    .args(["--calibration-tokens", "2048", "--report", "json"])
    .args(["--cache".as_ref(), scratch.path("cache").as_path()])
    .args(GIVEN);
    let run = texts
        .iter()
        .fold(run, |run, text| run.args(["--calibration", text]));
    run.in_folder(scratch.folder())
}

#[test]
fn shipped_text_needs_no_file() {
    let scratch = Scratch::new();
    let lines = fs::read_to_string(demo("alice.txt")).unwrap();
    let lines: String = lines.chars().take(6000).collect();
    scratch.file("shipped", &lines);
    scratch.file("shipped=2", &lines);
    let outcome = compile_shipped(&scratch, "one", &["shipped"])
        .run()
        .assert_ok();
    let (said, found) = (outcome.stderr.clone(), outcome.json());
    let left_out = "russian, chinese, japanese, korean, arabic, hindi";
    assert!(said.contains(left_out), "{said}");
    let text = &found["calibration"]["texts"][0];
    assert_eq!(text["name"], "shipped v1");
    assert_eq!(text["sha256"], found["calibration"]["text_sha256"]);
    assert_eq!(text["left_out"].as_array().unwrap().len(), 6);
    assert_eq!(number(text, "/tokens"), 2048.0);
    assert_eq!(found["quality"]["text"], "shipped v1");
    fs::remove_dir_all(scratch.path("cache")).unwrap();
    let again = compile_shipped(&scratch, "two", &["shipped"]).args(["--threads", "1"]);
    again.run().assert_ok();
    assert_eq!(artifact(&scratch, "one"), artifact(&scratch, "two"));
    let texts = ["shipped=2", "./shipped"];
    let found = compile_shipped(&scratch, "three", &texts)
        .run()
        .assert_ok()
        .json();
    assert_eq!(
        found["calibration"]["text"],
        "shipped v1 (weight 2), shipped"
    );
    assert_eq!(found["calibration"]["texts"][1].get("left_out"), None);
    let twice = compile_shipped(&scratch, "four", &["shipped", "shipped=2"]);
    twice
        .run()
        .assert_refused(2, &["--calibration", "shipped", "twice"]);
}
