use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use htc_tests::{Htc, Scratch, TinyModel, htc};
use serde_json::Value;

use super::{compile, number};

fn artifact(scratch: &Scratch) -> PathBuf {
    let tiny = TinyModel {
        ffn: 192,
        ..TinyModel::default()
    };
    let model = scratch.file("model.gguf", tiny.bytes());
    compile(scratch, &model, "out.htz", &["--rank", "32"]).0
}

fn run(model: &Path) -> Htc {
    written(model, "48")
}

fn written(model: &Path, tokens: &str) -> Htc {
    let run = htc!["run", model, "-p", "the cat sat on a", "-n", tokens];
    run.args(["--temp", "0", "--ignore-eos", "--threads", "2"])
}

fn events(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().unwrap()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .map(|e| e["event"].as_str().unwrap())
        .collect()
}

#[test]
fn hot_device_reduces_the_fraction() {
    let scratch = Scratch::new();
    let model = artifact(&scratch);
    let all = run(&model).run().assert_ok().stdout;
    let sim = |start: &str| {
        let sensor = format!("sim:start={start},time=1000000");
        run(&model).args(["--thermal", "60,80", "--sensor", &sensor, "--json"])
    };
    let followed = |start: &str| {
        let file = scratch.path(start);
        let outcome = sim(start).arg("--events").arg(&file).run().assert_ok();
        (outcome.stderr.clone(), outcome.json(), events(&file))
    };
    let text = |found: &Value| format!("{}\n", found["text"].as_str().unwrap()).into_bytes();

    let (said, hot, told) = followed("120");
    assert!(said.contains("is in use and the device is still beyond its limits"));
    assert_eq!(kinds(&told), ["start", "change", "beyond", "stop"]);
    let least = number(&told[1], "/fraction");
    assert!((0.25..0.9).contains(&least), "{least}");

    let (_, half, told) = followed("70");
    assert_eq!(kinds(&told), ["start", "change", "stop"]);
    for event in &told {
        for key in ["/at", "/unix", "/fraction"] {
            assert!(number(event, key) >= 0.0);
        }
    }
    let fraction = number(&told[1], "/fraction");
    assert!((fraction - (1.0 + least) / 2.0).abs() < 1.0 / 128.0);
    assert!((number(&told[1], "/temperature") - 70.0).abs() < 0.01);
    assert_eq!(
        (&told[1]["power"], &told[1]["why"]),
        (&105.0.into(), &"temperature".into())
    );
    let fixed = run(&model).args(["--fraction", &fraction.to_string()]);
    let fixed = fixed.run().assert_ok().stdout;
    assert_eq!(text(&half), fixed);
    assert_ne!(fixed, all);
    let range = |found| ["/fraction_min", "/fraction_max"].map(|key| number(found, key));
    let [smallest, largest] = range(&half);
    assert!(smallest > least * 0.9 && smallest <= fraction, "{smallest}");
    assert_eq!(largest, smallest);
    assert!(range(&hot)[0] < smallest);

    let cool = sim("40").run().assert_ok().json();
    assert_eq!((text(&cool), range(&cool)), (all, [1.0; 2]));
}

#[test]
fn power_cap_limits_and_energy_is_reported() {
    let scratch = Scratch::new();
    let model = artifact(&scratch);
    let capped = run(&model).args(["--power-cap", "60", "--sensor", "sim:time=1000"]);
    let outcome = capped.run().assert_ok();
    let line = |start: &str| {
        let found = outcome.stderr.lines().find(|line| line.starts_with(start));
        found
            .unwrap_or_else(|| panic!("no `{start}` in {}", outcome.stderr))
            .to_owned()
    };
    let followed = line("followed: ");
    assert!(!followed.contains("1.000 to 1.000"), "{followed}");
    assert!(line("energy: ").contains("tokens/J"));

    let found = run(&model)
        .args(["--sensor", "sim", "--json"])
        .run()
        .assert_ok()
        .json();
    let (joules, rate) = (
        number(&found, "/joules"),
        number(&found, "/tokens_per_joule"),
    );
    assert!(joules > 0.0);
    assert!((rate * joules / 48.0 - 1.0).abs() < 1e-6, "{rate} {joules}");
    assert_eq!(number(&found, "/fraction_min"), 1.0);
    let trace = scratch.file("trace", "time,power\n0,50\n1000000,50\n");
    let mut sensor = std::ffi::OsString::from("trace:");
    sensor.push(&trace);
    sensor.push(",speed=10000");
    let traced = run(&model).arg("--sensor").arg(sensor).arg("--json");
    let joules = number(&traced.run().assert_ok().json(), "/joules");
    assert!(joules > 0.0, "{joules}");
    let plain = run(&model).arg("--json").run().assert_ok().json();
    for key in ["joules", "tokens_per_joule"] {
        assert!(plain[key].is_null() && plain.get(key).is_some(), "{key}");
    }
}

#[test]
fn lost_or_invalid_sensors_do_not_limit() {
    let scratch = Scratch::new();
    let model = artifact(&scratch);
    let all = run(&model).run().assert_ok().stdout;
    for (name, rows) in [
        ("ended", "0,70,50\n"),
        ("minus", "0,-1,50\n9,-1,50\n"),
        ("most", "0,255,50\n9,255,50\n"),
        ("nan", "0,N/A,50\n9,N/A,50\n"),
    ] {
        let trace = scratch.file(name, format!("time,temperature,power\n{rows}"));
        let mut sensor = std::ffi::OsString::from("trace:");
        sensor.push(&trace);
        let file = scratch.path(&format!("{name}.events"));
        if name == "ended" {
            sensor.push(",speed=10000");
        }
        let followed = match name {
            "ended" => written(&model, "20000").args(["--on-full", "slide"]),
            _ => run(&model),
        };
        let followed = followed
            .args(["--thermal", "60,80", "--sensor"])
            .arg(sensor);
        let outcome = followed.arg("--events").arg(&file).run().assert_ok();
        let events = events(&file);
        let lost = kinds(&events)
            .iter()
            .filter(|kind| **kind == "lost")
            .count();
        match name {
            "ended" => assert!(outcome.stdout.len() > all.len()),
            _ => assert_eq!(outcome.stdout, all, "{name}"),
        }
        assert_eq!(lost, 1, "{events:?}");
        let warned = outcome
            .stderr
            .matches("cannot be followed any more")
            .count();
        assert_eq!(warned, 1, "{}", outcome.stderr);
    }
}

#[test]
fn missing_sensor_does_not_change_the_text() {
    let scratch = Scratch::new();
    let model = artifact(&scratch);
    let all = run(&model).run().assert_ok().stdout;
    let outcome = run(&model).args(["--thermal", "65,85", "--sensor", "nvml:99"]);
    let outcome = outcome.run().assert_ok();
    assert_eq!(outcome.stdout, all);
    assert_eq!(outcome.stderr.matches("htc: warning: ").count(), 1);
    assert!(outcome.stderr.contains("nothing is followed"));
    let outcome = run(&model).args(["--fraction", "0.9", "--thermal", "65,85", "--sensor", "sim"]);
    assert!(
        !outcome
            .run()
            .assert_ok()
            .stderr
            .contains("nothing that could be left out")
    );
    let source = scratch.path("model.gguf");
    let outcome = run(&source).args(["--thermal", "65,85", "--sensor", "sim"]);
    assert!(
        outcome
            .run()
            .assert_ok()
            .stderr
            .contains("nothing that could be left out")
    );
}

#[test]
fn invalid_limits_and_sensors_are_refused() {
    let scratch = Scratch::new();
    let model = artifact(&scratch);
    for (options, says) in [
        (&["--thermal", "85,65"][..], "65,85"),
        (&["--thermal", "65"], "65,85"),
        (&["--thermal", "nan,85"], "65,85"),
        (&["--thermal", "65,900", "--sensor", "sim"], "900"),
        (&["--power-cap", "0"], "above 0"),
        (&["--power-cap=-5"], "above 0"),
        (&["--sensor", "oven"], "hwmon"),
        (&["--sensor", "sim:heat=3"], "heat"),
        (&["--sensor", "sim:time=0"], "time"),
        (&["--sensor", "trace:"], "trace"),
        (&["--on-full", "wrap"], "slide"),
    ] {
        run(&model).args(options).run().assert_refused(2, &[says]);
    }
    let trace = scratch.file("trace.csv", "time,temperature\n0,warm\n");
    let traced = |path: &Path| {
        let mut sensor = std::ffi::OsString::from("trace:");
        sensor.push(path);
        run(&model).arg("--sensor").arg(sensor)
    };
    traced(&trace)
        .run()
        .assert_refused(1, &["trace.csv", "2", "warm"]);
    traced(&scratch.path("none"))
        .run()
        .assert_refused(1, &["none"]);
    traced(Path::new("/dev/zero"))
        .run()
        .assert_refused(1, &["regular"]);

    let kept = scratch.file("kept", "mine");
    let link = scratch.path("link");
    symlink(&kept, &link).unwrap();
    for path in [&kept, &link] {
        let outcome = run(&model).args(["--sensor", "sim", "--events"]).arg(path);
        outcome.run().assert_refused(1, &["already"]);
        assert_eq!(fs::read_to_string(&kept).unwrap(), "mine");
    }
    let nowhere = scratch.path("no/where");
    let outcome = run(&model)
        .args(["--sensor", "sim", "--events"])
        .arg(nowhere);
    outcome.run().assert_refused(1, &["where"]);
}
