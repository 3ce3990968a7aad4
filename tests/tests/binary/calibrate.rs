//! `htc compile --calibration`: effect of the gauges, and the cache.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use htc_tests::binary::wait;
use htc_tests::material::{demo, demo_of_layers};
use htc_tests::{Htc, Scratch, TinyModel, htc};
use serde_json::Value;

use super::{METHODS, compile_calibrated};

const LAYERS: u32 = 4;

fn compile(scratch: &Scratch, output: &str, options: &[&str]) -> Htc {
    // Without biases, whose trial takes as long as the rest.
    let half = [
        "--ratio",
        "0.6",
        "--calibration-tokens",
        "2048",
        "--bias",
        "off",
    ];
    compile_calibrated(scratch, &demo_of_layers(LAYERS), output, &demo(TEXT))
        .args(half)
        .args(options)
}

const TEXT: &str = "alice.txt";

const NOBODY: u32 = 65534;

fn cached_calibration(scratch: &Scratch) -> PathBuf {
    let mut found = fs::read_dir(scratch.path("cache")).unwrap();
    let one = found.next().unwrap().unwrap().path();
    assert!(found.next().is_none());
    one
}

fn found_layers(report: &Value) -> u64 {
    report["calibration"]["found_layers"].as_u64().unwrap()
}

fn output_error(report: &Value) -> f64 {
    let projections = report["calibration"]["output_errors"].as_array().unwrap();
    let errors = projections
        .iter()
        .map(|projection| projection["error"].as_f64().unwrap());
    let squares: Vec<f64> = errors.map(|error| error * error).collect();
    assert!(!squares.is_empty());
    (squares.iter().sum::<f64>() / squares.len() as f64).sqrt()
}

#[test]
fn output_error_falls_from_none_to_activation_to_whiten() {
    let scratch = Scratch::new();
    for method in METHODS {
        let mut errors = Vec::new();
        for gauge in ["none", "activation", "whiten"] {
            let run = compile(&scratch, "out.htz", &["--gauge", gauge, "--method", method]);
            let report = run.run().assert_ok().json();
            assert_eq!(report["calibration"]["gauge"], gauge);
            assert_eq!(report["calibration"]["tokens"], 2048);
            errors.push(output_error(&report));
            htc!["verify", scratch.path("out.htz")].run().assert_ok();
        }
        let [none, activation, whiten] = errors[..] else {
            panic!("{errors:?}");
        };
        assert!(activation < none, "{method}: {errors:?}");
        assert!(whiten < 0.9 * activation.min(none), "{method}: {errors:?}");
    }
}

#[test]
fn cached_statistics_give_identical_bytes() {
    let scratch = Scratch::new();
    let first = compile(&scratch, "first.htz", &["--threads", "1"])
        .run()
        .assert_ok()
        .json();
    assert_eq!(found_layers(&first), 0);
    let bytes = fs::read(scratch.path("first.htz")).unwrap();
    let second = compile(&scratch, "second.htz", &[])
        .run()
        .assert_ok()
        .json();
    assert_eq!(found_layers(&second), u64::from(LAYERS));
    assert_eq!(fs::read(scratch.path("second.htz")).unwrap(), bytes);
    fs::remove_dir_all(scratch.path("cache")).unwrap();
    let third = compile(&scratch, "third.htz", &["--threads", "2"])
        .run()
        .assert_ok()
        .json();
    assert_eq!(found_layers(&third), 0);
    assert_eq!(fs::read(scratch.path("third.htz")).unwrap(), bytes);
    let other = compile(&scratch, "other.htz", &["--calibration-context", "128"])
        .run()
        .assert_ok()
        .json();
    assert_eq!(found_layers(&other), 0);
    assert_ne!(fs::read(scratch.path("other.htz")).unwrap(), bytes);
}

#[test]
fn damaged_statistics_are_reported_and_recomputed() {
    let scratch = Scratch::new();
    compile(&scratch, "out.htz", &[]).run().assert_ok();
    let expected = fs::read(scratch.path("out.htz")).unwrap();
    let layer = cached_calibration(&scratch).join("layer-0002");
    let good = fs::read(&layer).unwrap();
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    let of_another = fs::read(cached_calibration(&scratch).join("layer-0001")).unwrap();
    for bad in [&flipped[..], &good[..good.len() - 1], b"", &of_another] {
        fs::write(&layer, bad).unwrap();
        let outcome = compile(&scratch, "again.htz", &[]).run().assert_ok();
        assert!(outcome.stderr.contains("layer-0002"), "{}", outcome.stderr);
        assert_eq!(fs::read(scratch.path("again.htz")).unwrap(), expected);
        assert_eq!(fs::read(&layer).unwrap(), good);
    }
}

#[test]
fn killed_calibration_resumes() {
    let scratch = Scratch::new();
    compile(&scratch, "out.htz", &[]).run().assert_ok();
    let expected = fs::read(scratch.path("out.htz")).unwrap();
    let folder = cached_calibration(&scratch);
    fs::remove_dir_all(&folder).unwrap();
    let mut child = compile(&scratch, "killed.htz", &[]).spawn();
    let begun = Instant::now();
    while !folder.join("layer-0001").exists() {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!scratch.path("killed.htz").exists());
    let report = compile(&scratch, "resumed.htz", &[])
        .run()
        .assert_ok()
        .json();
    assert!(found_layers(&report) >= 2, "{}", found_layers(&report));
    assert_eq!(fs::read(scratch.path("resumed.htz")).unwrap(), expected);
    let left = names(&folder);
    let layers = (0..LAYERS).map(|layer| format!("layer-{layer:04}"));
    let head = ["head".to_owned()].into_iter();
    let expected: Vec<String> = head.chain(layers).chain(["lock".to_owned()]).collect();
    assert_eq!(left, expected);
}

#[test]
fn complete_read_only_cache_suffices() {
    let scratch = Scratch::new();
    compile(&scratch, "out.htz", &[]).run().assert_ok();
    let expected = fs::read(scratch.path("out.htz")).unwrap();
    let folder = cached_calibration(&scratch);
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&folder.join("lock"), 0o444);
    mode(&folder, 0o555);
    mode(scratch.folder(), 0o777);
    let root = fs::File::create(folder.join("lock")).is_ok();
    if root {
        for owned in [&scratch.path("cache"), &folder] {
            chown(owned, Some(NOBODY), None).unwrap();
        }
        for owned in names(&folder) {
            chown(folder.join(owned), Some(NOBODY), None).unwrap();
        }
    }
    let readable = Command::new("sh")
        .args(["-c", "cat \"$0\" > /dev/null"])
        .arg(demo_of_layers(LAYERS))
        .uid(NOBODY)
        .status();
    if root && !readable.is_ok_and(|status| status.success()) {
        eprintln!("skipped: root binds no permissions, and nobody may not read the model");
        return;
    }
    let run = |name: &str| {
        let run = compile(&scratch, name, &[]);
        if root {
            let state = scratch.path("state-of-nobody");
            run.env("XDG_STATE_HOME", Some(&state))
                .as_user(NOBODY)
                .run()
        } else {
            run.run()
        }
    };
    let report = run("read.htz").assert_ok().json();
    assert_eq!(found_layers(&report), u64::from(LAYERS));
    assert_eq!(fs::read(scratch.path("read.htz")).unwrap(), expected);
    mode(&folder, 0o755);
    fs::remove_file(folder.join("layer-0003")).unwrap();
    mode(&folder, 0o555);
    let outcome = run("other.htz");
    assert_eq!(outcome.code(), Some(1));
    for said in ["lock", "--cache DIR"] {
        assert!(outcome.stderr.contains(said), "{}", outcome.stderr);
    }
    mode(&folder, 0o755);
}

#[test]
fn damaged_stream_restarts_the_calibration() {
    let scratch = Scratch::new();
    compile(&scratch, "out.htz", &[]).run().assert_ok();
    let expected = fs::read(scratch.path("out.htz")).unwrap();
    let folder = cached_calibration(&scratch);
    for layer in 2..LAYERS {
        fs::remove_file(folder.join(format!("layer-{layer:04}"))).unwrap();
    }
    for stream in [None, Some(vec![0; 4096])] {
        if let Some(bytes) = stream {
            fs::write(folder.join("stream-0001"), bytes).unwrap();
        }
        fs::remove_file(folder.join("layer-0003")).unwrap_or_default();
        let outcome = compile(&scratch, "again.htz", &[]).run().assert_ok();
        assert!(outcome.stderr.contains("anew"), "{}", outcome.stderr);
        assert_eq!(fs::read(scratch.path("again.htz")).unwrap(), expected);
    }
}

#[test]
fn concurrent_compilations_share_a_calibration() {
    let scratch = Scratch::new();
    compile(&scratch, "out.htz", &[]).run().assert_ok();
    let expected = fs::read(scratch.path("out.htz")).unwrap();
    fs::remove_dir_all(scratch.path("cache")).unwrap();
    let mut both = ["a.htz", "b.htz"].map(|name| compile(&scratch, name, &[]).spawn());
    for child in &mut both {
        assert!(wait(child, Duration::from_secs(60), "calibration").success());
    }
    for name in ["a.htz", "b.htz"] {
        assert_eq!(fs::read(scratch.path(name)).unwrap(), expected);
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn invalid_calibrations_are_refused() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let short = scratch.file("short.txt", "the cat");
    let text = scratch.file("text.txt", "the cat sat on the hat ".repeat(40));
    let output = scratch.path("out.htz");
    let run = |text: &Path, options: &[&str]| {
        let run = htc!["compile", &model, "-o", &output, "--calibration", text];
        run.args(["--calibration-context", "16"]).args(options)
    };
    let cache = scratch.path("cache");
    let cache = cache.to_str().unwrap();
    run(&short, &["--cache", cache])
        .run()
        .assert_refused(1, &["short.txt", "tokens", "window"]);
    run(&scratch.path("none.txt"), &["--cache", cache])
        .run()
        .assert_refused(1, &["none.txt"]);
    let file = scratch.file("file", "");
    let in_file = file.join("cache");
    run(&text, &["--cache", in_file.to_str().unwrap()])
        .run()
        .assert_refused(1, &["file/cache", "--cache"]);
    for options in [
        &["--gauge", "whiten"][..],
        &["--gauge", "activation"],
        &["--cache", "x"],
        &["--calibration-tokens", "64"],
        &["--calibration-context", "64"],
    ] {
        let run = htc!["compile", &model, "-o", &output].args(options);
        let run = run.args(["--method", "low-rank"]);
        run.run().assert_refused(2, &["--calibration"]);
    }
    run(&text, &["--gauge", "best"])
        .run()
        .assert_refused(2, &["--gauge", "best", "whiten"]);
    run(&text, &["--calibration-tokens", "15"])
        .run()
        .assert_refused(
            2,
            &["--calibration-tokens 15", "--calibration-context", "16"],
        );
    let long = htc!["compile", &model, "-o", &output, "--calibration", &text];
    long.args([
        "--calibration-context",
        "100000",
        "--calibration-tokens",
        "200000",
    ])
    .run()
    .assert_refused(2, &["--calibration-context 100000", "positions"]);
    run(&text, &["--allocator", "cachefit"])
        .run()
        .assert_refused(2, &["--gpu"]);
    let over = htc![
        "compile",
        &model,
        "-o",
        &text,
        "--calibration",
        &text,
        "--context",
        "16"
    ];
    over.args(["--force"])
        .run()
        .assert_refused(2, &["text.txt", "-o"]);
    let report = run(&text, &["--report", text.to_str().unwrap()]);
    report.run().assert_refused(2, &["text.txt", "--report"]);
    assert!(fs::read(&text).unwrap().starts_with(b"the cat"));
    run(&text, &["--calibration-tokens", "0"])
        .run()
        .assert_refused(2, &["--calibration-tokens"]);
    assert!(!output.exists());
}
