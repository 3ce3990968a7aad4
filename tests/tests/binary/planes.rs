//! `htc compile --planes 2`: elastic artifacts, and `--fraction` for their execution.

use std::fs;
use std::thread::sleep;
use std::time::Instant;

use htc_formats::model::Role;
use htc_formats::source::ModelFile;
use htc_loader::backend::Reference;
use htc_loader::dial::{ActiveFraction, ActiveSetting};
use htc_loader::kv::KvType;
use htc_loader::{Backend, Cpu, Model, Session};
use htc_tests::artifact::Artifact;
use htc_tests::logits::largest_difference;
use htc_tests::material::words;
use htc_tests::{Htc, Scratch, TinyModel, htc};

use super::{list, number};

const SIZE: u64 = 110_000;

fn compile(scratch: &Scratch, name: &str, options: &[&str]) -> Htc {
    let model = scratch.path("model.gguf");
    if !model.exists() {
        let tiny = TinyModel {
            ffn: 192,
            ..TinyModel::default()
        };
        scratch.file("model.gguf", tiny.bytes());
        scratch.file("words.txt", words(20_000));
    }
    htc!["compile", &model, "-o", scratch.path(name), "--force"]
        .args(["--context", "32", "--calibration-tokens", "8192"])
        .args(["--calibration".into(), scratch.path("words.txt")])
        .args(["--cache".into(), scratch.path("cache")])
        .args(["--report", "json", "--effort", "fast"])
        .args(options)
}

pub(super) fn elastic(scratch: &Scratch, name: &str, options: &[&str]) -> Htc {
    let size = SIZE.to_string();
    let options = [&["--target-size", &size, "--planes", "2"], options].concat();
    compile(scratch, name, &options)
}

fn logits<B: Backend>(file: &ModelFile, mut backend: B, setting: ActiveSetting) -> Vec<f32> {
    let tokens = [1, 5, 9, 3, 7, 11, 2, 8];
    let model = Model::load(file.clone(), &mut backend).unwrap();
    let session = Session::with_kv_type(model, backend, tokens.len(), KvType::F32);
    let mut session = session.unwrap();
    session.set(setting);
    session.step(&tokens).unwrap().to_vec()
}

#[test]
fn larger_fractions_are_closer_to_the_source() {
    let scratch = Scratch::new();
    let report = elastic(&scratch, "e.htz", &["--tune", "4"]).run().json();
    let path = scratch.path("e.htz");
    htc!["verify", &path].run().assert_ok();
    let bytes = fs::metadata(&path).unwrap().len();
    assert!(bytes <= SIZE && bytes > SIZE - 4096, "{bytes}");
    assert_eq!(number(&report, "/bytes/after"), bytes as f64);
    let artifact = Artifact::open(&path);
    let dial = &artifact.manifest.dial;
    assert_eq!(list(&report, "/dial").len(), dial.len());
    let (first, last) = (dial.first().unwrap(), dial.last().unwrap());
    assert!(dial.len() > 2 && first.fraction < 0.75, "{dial:?}");
    assert!(last.kl < 0.5 * first.kl, "{dial:?}");
    let quality = artifact.manifest.quality.as_ref().unwrap();
    assert_eq!(quality.kl.value, last.kl);
    assert!(number(&report, "/tuning/kl_before") < 0.5 * first.kl);
    assert!(quality.choosing_windows > 0);
    let roles: Vec<Role> = artifact.manifest.tensors.iter().map(|t| t.role).collect();
    let is_refinement = |role: &Role| matches!(role, Role::Refinement { .. });
    let bases = roles.iter().position(is_refinement).unwrap();
    assert!(roles[bases..].iter().all(is_refinement));
    assert_eq!(last.refinements as usize, roles.len() - bases);
    let kl = |fraction: f64| {
        let measured = htc!["eval", &path, "--json", "--context", "32", "--chunks", "8"]
            .args(["--text".into(), scratch.path("words.txt")])
            .args(["--reference".into(), scratch.path("model.gguf")])
            .args(["--fraction", &fraction.to_string()])
            .run()
            .json();
        let touched = number(&measured, "/touched/fraction");
        assert!(touched <= fraction + 1e-3 && touched > fraction - 0.2);
        number(&measured, "/kl")
    };
    let (base, whole) = (kl(first.fraction), kl(1.0));
    assert!(whole < 0.5 * base, "{whole} {base}");
    let said = htc!["inspect", &path].run().assert_ok().text().to_owned();
    assert!(said.contains("fraction   bytes touched"), "{said}");
}

#[test]
fn active_residuals_are_added_to_the_bases() {
    let scratch = Scratch::new();
    elastic(&scratch, "e.htz", &[]).run().assert_ok();
    let path = scratch.path("e.htz");
    let file = ModelFile::open(&path).unwrap();
    let model = Model::bind(file.clone()).unwrap();
    let dial = model.dial();
    let cpu = || Cpu::with_threads(2).unwrap();
    let whole = logits(&file, cpu(), ActiveSetting::FULL);
    let mut before: Option<Vec<f32>> = None;
    for refinements in 0..=dial.refinements() {
        let setting = ActiveSetting {
            refinements,
            ..ActiveSetting::FULL
        };
        let exact = logits(&file, Reference, setting);
        let found = logits(&file, cpu(), setting);
        let difference = largest_difference(&found, &exact);
        assert!(difference < 0.15, "{refinements}: {difference:.2e}");
        if let Some(before) = &before {
            let moved = largest_difference(before, &exact);
            assert!(moved > 1e-3, "{refinements}: {moved:.2e}");
        }
        before = Some(exact);
    }
    let bases = ActiveSetting {
        refinements: 0,
        ..ActiveSetting::FULL
    };
    let moved = largest_difference(&logits(&file, cpu(), bases), &whole);
    assert!(moved > 0.3, "{moved:.2e}");
    let exported = scratch.path("whole.gguf");
    htc!["export", &path, "-o", &exported, "--type", "f32"]
        .run()
        .assert_ok();
    let plain = logits(
        &ModelFile::open(&exported).unwrap(),
        Reference,
        ActiveSetting::FULL,
    );
    let difference = largest_difference(&logits(&file, Reference, ActiveSetting::FULL), &plain);
    assert!(difference < 1e-3, "{difference:.2e}");
    let between =
        ActiveFraction::new(0.5 * (1.0 + dial.fraction(ActiveSetting::FULL)) - 2e-3).unwrap();
    assert_eq!(
        dial.setting_for(between).unwrap().refinements,
        dial.refinements() - 1
    );
}

#[test]
fn elastic_bytes_do_not_depend_on_threads_or_kills() {
    let scratch = Scratch::new();
    let started = Instant::now();
    let elastic =
        |name: &str, threads: &str| elastic(&scratch, name, &["--tune", "4", "--threads", threads]);
    elastic("one.htz", "1").run().assert_ok();
    let whole = started.elapsed();
    elastic("two.htz", "2").run().assert_ok();
    let bytes = |name: &str| fs::read(scratch.path(name)).unwrap();
    assert!(bytes("one.htz") == bytes("two.htz"));
    for part in [0.3, 0.6, 0.75, 0.9] {
        let mut child = elastic("killed.htz", "1").spawn();
        sleep(whole.mul_f64(part));
        child.kill().unwrap();
        // It has its name only when it is complete, which may be just before the kill.
        if child.wait().unwrap().success() || scratch.path("killed.htz").exists() {
            assert!(bytes("killed.htz") == bytes("one.htz"));
            break;
        }
    }
    elastic("killed.htz", "2").run().assert_ok();
    assert!(bytes("killed.htz") == bytes("one.htz"));
    assert!(!scratch.path(".killed.htz.htc-work").exists());
}

#[test]
fn smallest_elastic_artifact_within_a_limit_is_found() {
    let scratch = Scratch::new();
    let within = |name: &str, options: &[&str]| {
        compile(&scratch, name, &[&["--planes", "2"], options].concat())
    };
    let mut sizes = Vec::new();
    for kl in ["0.2", "0.02"] {
        let name = format!("{kl}.htz");
        let report = within(&name, &["--max-kl", kl, "--threads", "1"])
            .run()
            .json();
        let dial = list(&report, "/dial");
        let (base, all) = (number(&dial[0], "/kl"), number(dial.last().unwrap(), "/kl"));
        let limit: f64 = kl.parse().unwrap();
        assert!(all < 1.5 * limit && all < base, "{all} {base}");
        let notes = report.pointer("/notes").or(report.pointer("/plan/notes"));
        println!("{kl}: {notes:?}");
        assert_eq!(number(&report, "/limit/kl"), limit);
        let bytes = fs::metadata(scratch.path(&name)).unwrap().len();
        assert_eq!(number(&report, "/bytes/after"), bytes as f64);
        sizes.push(bytes);
    }
    assert!(sizes[0] < sizes[1], "{sizes:?}");
    within("again.htz", &["--max-kl", "0.02", "--threads", "2"])
        .run()
        .assert_ok();
    let bytes = |name: &str| fs::read(scratch.path(name)).unwrap();
    assert!(bytes("0.02.htz") == bytes("again.htz"));
    let dry = within("none.htz", &["--preset", "small", "--dry-run"]);
    let said = dry.run().assert_ok().stderr;
    assert!(said.contains("--max-perplexity-increase 5"), "{said}");
    let run = within("none.htz", &["--max-kl", "1e-9"]).run();
    assert_eq!(run.status.code(), Some(1), "{}", run.stderr);
    assert!(
        run.stderr.contains("htc: cannot compile") && run.stderr.contains(": --max-kl"),
        "{}",
        run.stderr
    );
    assert!(!scratch.path("none.htz").exists());
}

#[test]
fn invalid_planes_and_fractions_are_refused() {
    let scratch = Scratch::new();
    let size = ["--target-size", "110kB"];
    for (options, said) in [
        (&["--planes", "3"][..], "--planes"),
        (&["--planes", "0"], "--planes"),
        (
            &["--planes", "2", "--method", "low-rank", "--rank", "8"],
            "--method",
        ),
        (
            &["--planes", "2", "--codes", "gguf", size[0], size[1]],
            "--codes",
        ),
    ] {
        let run = compile(&scratch, "none.htz", options).run();
        run.assert_refused(2, &["--planes", said]);
        assert!(!scratch.path("none.htz").exists());
    }
    let size_of = |size: &str| {
        compile(
            &scratch,
            "least.htz",
            &["--planes", "2", "--target-size", size],
        )
    };
    let run = size_of("67000").run();
    run.assert_refused(2, &["--target-size 67000", "the smallest possible is"]);
    let said = &run.stderr;
    let behind = said.split("smallest possible is ").nth(1).unwrap();
    let least = behind.split(' ').next().unwrap();
    let least: f64 = least.parse().unwrap();
    assert!(least > 67_000.0);
    size_of(&format!("{:.0}", 1.05 * least)).run().assert_ok();
    let model = scratch.path("model.gguf");
    let text = scratch.path("words.txt");
    for fraction in ["0", "1.5", "-1", "half", "nan"] {
        let run = htc![
            "run",
            &model,
            "-p",
            "the cat",
            "-n",
            "2",
            "--fraction",
            fraction
        ]
        .run();
        run.assert_refused(2, &["--fraction"]);
    }
    let run = htc![
        "eval",
        &model,
        "--text",
        &text,
        "--context",
        "32",
        "--fraction",
        "0.5"
    ]
    .run();
    run.assert_refused(1, &["fraction 0.5", "below 1.000"]);
    let dry = compile(
        &scratch,
        "none.htz",
        &["--planes", "2", "--dry-run", size[0], size[1]],
    );
    let dry = dry.run().assert_ok();
    assert!(
        dry.stderr.contains("the plan is of the bases"),
        "{}",
        dry.stderr
    );
}
