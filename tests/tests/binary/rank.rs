use std::path::PathBuf;
use std::sync::Arc;

use htc_formats::model::Form;
use htc_formats::source::ModelFile;
use htc_loader::dial::{ActiveFraction, WeightBytes};
use htc_loader::{Cpu, Model, Session};
use htc_tests::artifact::Artifact;
use htc_tests::material::words;
use htc_tests::{Htc, Scratch, TinyModel, htc};
use serde_json::Value;

use super::number;

const SIZE: &str = "90000";

fn source(scratch: &Scratch, method: &str) -> PathBuf {
    let tiny = TinyModel {
        ffn: 192,
        ..TinyModel::default()
    };
    let model = scratch.file("whole.gguf", tiny.bytes());
    scratch.file("words.txt", words(20_000));
    let (factors, source) = (scratch.path("factors.htz"), scratch.path("source.gguf"));
    let projections = match method {
        "shared-basis" => "q,k,v,gate,up",
        _ => "q,k,v,o,gate,up,down",
    };
    htc![
        "compile",
        &model,
        "-o",
        &factors,
        "--method",
        method,
        "--rank",
        "8",
        "--projections",
        projections
    ]
    .args(["--factor-type", "f32"])
    .run()
    .assert_ok();
    htc!["export", &factors, "-o", &source, "--type", "f32"]
        .run()
        .assert_ok();
    source
}

fn text(scratch: &Scratch, of: Htc) -> Htc {
    of.args(["--context", "32", "--calibration-tokens", "8192"])
        .args(["--calibration".into(), scratch.path("words.txt")])
        .args(["--cache".into(), scratch.path("cache")])
}

fn compile(scratch: &Scratch, name: &str, options: &[&str]) -> Htc {
    let source = scratch.path("source.gguf");
    let made = htc!["compile", &source, "-o", scratch.path(name), "--force"];
    text(scratch, made)
        .args(["--report", "json", "--effort", "fast", "--tune", "0"])
        .args(options)
}

fn divergence(scratch: &Scratch, name: &str) -> f64 {
    let measured = htc![
        "eval",
        scratch.path(name),
        "--json",
        "--context",
        "32",
        "--chunks",
        "16"
    ]
    .args(["--text".into(), scratch.path("words.txt")])
    .args(["--reference".into(), scratch.path("source.gguf")])
    .run()
    .json();
    number(&measured, "/kl")
}

fn projections_in(scratch: &Scratch, name: &str, form: Form) -> usize {
    let artifact = Artifact::open(&scratch.path(name));
    let projections = artifact.manifest.plan.projections.iter();
    projections
        .filter(|projection| projection.form == form)
        .count()
}

fn bytes(report: &Value) -> f64 {
    number(report, "/bytes/after")
}

#[test]
fn low_rank_source_is_stored_as_factors() {
    let scratch = Scratch::new();
    source(&scratch, "low-rank");
    let report = compile(&scratch, "on.htz", &["--target-size", SIZE]).run();
    assert!(
        report.stderr.contains("low rank: evaluated"),
        "{}",
        report.stderr
    );
    let report = report.json();
    let off = ["--target-size", SIZE, "--low-rank", "off"];
    let without = compile(&scratch, "off.htz", &off).run();
    assert!(!without.stderr.contains("low rank"), "{}", without.stderr);
    assert!(bytes(&report) <= 90_000.0 && bytes(&without.json()) <= 90_000.0);
    assert!(projections_in(&scratch, "on.htz", Form::LowRank) >= 6);
    assert_eq!(projections_in(&scratch, "off.htz", Form::LowRank), 0);
    let (on, off) = (
        divergence(&scratch, "on.htz"),
        divergence(&scratch, "off.htz"),
    );
    eprintln!("KL with factors {on:.2e}, without {off:.2e}");
    assert!(on < 0.3 * off, "{on} {off}");
    let foreseen = report
        .pointer("/foreseen/matrices")
        .and_then(Value::as_array);
    let of_rank = |of: &&Value| {
        of["form"]
            .as_str()
            .is_some_and(|form| form.starts_with("rank 8 in"))
    };
    assert!(foreseen.unwrap().iter().filter(of_rank).count() >= 6);
    let artifact = scratch.path("on.htz");
    htc!["verify", &artifact].run().assert_ok();
    let said = htc!["inspect", &artifact]
        .run()
        .assert_ok()
        .text()
        .to_owned();
    assert!(
        said.contains("low rank") && said.contains("gauge whiten"),
        "{said}"
    );
    compile(
        &scratch,
        "gguf.htz",
        &["--target-size", SIZE, "--codes", "gguf"],
    )
    .run()
    .assert_ok();
    assert!(projections_in(&scratch, "gguf.htz", Form::LowRank) >= 6);
    for options in [
        vec!["-o".into(), scratch.path("plain.gguf")],
        vec![
            "-o".into(),
            scratch.path("base.gguf"),
            "--lora".into(),
            scratch.path("lora.gguf"),
        ],
        vec!["--to-safetensors".into(), scratch.path("folder")],
    ] {
        htc!["export", scratch.path("gguf.htz")]
            .args(options)
            .run()
            .assert_ok();
    }
    let measured = divergence(&scratch, "plain.gguf");
    let own = divergence(&scratch, "gguf.htz");
    assert!(
        measured < 2.0 * own && own < 2.0 * measured,
        "{measured} {own}"
    );
}

#[test]
fn mixed_plan_round_trips() {
    let scratch = Scratch::new();
    let model = source(&scratch, "low-rank");
    let plan = scratch.path("plan.json");
    let planned = htc![
        "plan",
        &model,
        "-o",
        &plan,
        "--target-size",
        SIZE,
        "--effort",
        "fast"
    ];
    text(&scratch, planned).run().assert_ok();
    let written = std::fs::read_to_string(&plan).unwrap();
    assert!(written.contains("\"low_rank\"") && written.contains("\"method\": \"quantise\""));
    for threads in ["1", "2"] {
        let name = format!("planned-{threads}.htz");
        let made = htc!["compile", &model, "-o", scratch.path(&name), "--tune", "0"];
        text(&scratch, made)
            .args(["--plan".into(), plan.clone()])
            .args(["--threads", threads])
            .run()
            .assert_ok();
    }
    let read = |name: &str| std::fs::read(scratch.path(name)).unwrap();
    assert!(read("planned-1.htz") == read("planned-2.htz"));
    let written_again = Artifact::open(&scratch.path("planned-1.htz"));
    let projections = &written_again.manifest.plan.projections;
    assert!(
        projections
            .iter()
            .any(|projection| projection.form == Form::LowRank)
    );
    let treatment = written_again.manifest.provenance.treatment.unwrap();
    assert_eq!(treatment.gauge, "whiten");
}

#[test]
fn projections_share_a_basis_if_the_source_has_one() {
    let scratch = Scratch::new();
    source(&scratch, "shared-basis");
    compile(&scratch, "on.htz", &["--target-size", "110000"])
        .run()
        .assert_ok();
    let off = ["--target-size", "110000", "--low-rank", "off"];
    compile(&scratch, "off.htz", &off).run().assert_ok();
    assert!(projections_in(&scratch, "on.htz", Form::SharedBasis) >= 2);
    let (on, off) = (
        divergence(&scratch, "on.htz"),
        divergence(&scratch, "off.htz"),
    );
    eprintln!("KL with bases in common {on:.2e}, without {off:.2e}");
    assert!(on < 0.5 * off, "{on} {off}");
    htc!["verify", scratch.path("on.htz")].run().assert_ok();
    htc![
        "export",
        scratch.path("on.htz"),
        "-o",
        scratch.path("on.gguf")
    ]
    .run()
    .assert_ok();
}

#[test]
fn elastic_artifact_keeps_its_factors() {
    let scratch = Scratch::new();
    source(&scratch, "low-rank");
    let options = ["--target-size", "130000", "--planes", "2"];
    compile(&scratch, "e.htz", &options).run().assert_ok();
    htc!["verify", scratch.path("e.htz")].run().assert_ok();
    let artifact = Artifact::open(&scratch.path("e.htz"));
    let plan = &artifact.manifest.plan;
    let is_refined = |matrix| {
        let role = htc_formats::model::Role::Refinement { matrix };
        artifact.manifest.tensor(role).is_some()
    };
    let factors: Vec<_> = plan
        .projections
        .iter()
        .filter(|projection| projection.form == Form::LowRank)
        .collect();
    assert!(factors.len() >= 3, "{}", factors.len());
    assert!(factors.iter().all(|projection| !is_refined(projection.id)));
    let dial = &artifact.manifest.dial;
    let (first, last) = (dial.first().unwrap(), dial.last().unwrap());
    assert!(dial.len() > 1 && last.kl < first.kl, "{dial:?}");
    let at = |fraction: f64| {
        let asked = fraction.to_string();
        at_fraction(&scratch, "e.htz", "source.gguf", &["--fraction", &asked])
    };
    let (bases, fewer) = (at(first.fraction), at(0.97 * first.fraction));
    println!("bases {bases:?}, with fewer components {fewer:?}");
    assert!(
        fewer.1 < bases.1 && fewer.0 > 1.05 * bases.0,
        "{bases:?} {fewer:?}"
    );
    assert_eq!(at(1.0).0, divergence(&scratch, "e.htz"));
}

fn at_fraction(scratch: &Scratch, name: &str, reference: &str, options: &[&str]) -> (f64, f64) {
    let measured = htc!["eval", scratch.path(name), "--json"]
        .args(["--context", "32", "--chunks", "16"])
        .args(["--text".into(), scratch.path("words.txt")])
        .args(["--reference".into(), scratch.path(reference)])
        .args(options)
        .run()
        .json();
    let touched = measured.pointer("/touched/fraction");
    let touched = touched.and_then(Value::as_f64).unwrap_or(1.0);
    (number(&measured, "/kl"), touched)
}

#[test]
fn fraction_reduces_the_components_of_factors() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    scratch.file("words.txt", words(4000));
    let path = scratch.path("gp.htz");
    htc![
        "compile", &model, "-o", &path, "--method", "low-rank", "--rank", "24"
    ]
    .run()
    .assert_ok();
    let (whole, _) = at_fraction(&scratch, "gp.htz", "model.gguf", &[]);
    let file = ModelFile::open(&path).unwrap();
    let mut before: Option<(f64, Vec<f32>, Vec<u8>)> = None;
    for fraction in [1.0, 0.9, 0.75, 0.6] {
        let asked = fraction.to_string();
        let (kl, touched) = at_fraction(&scratch, "gp.htz", "model.gguf", &["--fraction", &asked]);
        assert!(
            touched <= fraction + 1e-3 && touched > fraction - 0.1,
            "{touched}"
        );
        let cpu = Cpu::with_threads(1).unwrap();
        let mut session = Session::new(Arc::new(Model::open(&path).unwrap()), cpu, 8).unwrap();
        let setting = session
            .set_fraction(ActiveFraction::new(fraction).unwrap())
            .unwrap();
        assert_eq!(WeightBytes::from_file(&file).fraction(setting), touched);
        let logits = session.step(&[1, 270, 265, 280]).unwrap().to_vec();
        let run = [
            "-p",
            "the cat",
            "-n",
            "24",
            "--temp",
            "0",
            "--fraction",
            &asked,
        ];
        let written = htc!["run", &path].args(run).run().assert_ok().stdout;
        assert!(written.len() > 8, "{fraction}: {written:?}");
        println!(
            "{fraction}: KL {kl:.4}, {}",
            String::from_utf8_lossy(&written)
        );
        if let Some((kl_before, logits_before, written_before)) = &before {
            assert!(kl > 1.05 * kl_before, "{fraction}: {kl} {kl_before}");
            assert!(
                logits != *logits_before && written != *written_before,
                "{fraction}"
            );
        } else {
            assert_eq!(kl, whole);
        }
        before = Some((kl, logits, written));
    }
    let too_small = htc!["run", &path, "-p", "the", "--fraction", "0.01"].run();
    assert!(
        too_small.code() == Some(2) || too_small.code() == Some(1),
        "{too_small:?}"
    );
}

#[test]
fn low_rank_and_rotation_options_require_codes() {
    let scratch = Scratch::new();
    let model = source(&scratch, "low-rank");
    htc!["compile", &model, "-o", scratch.path("no.htz")]
        .args(["--method", "low-rank", "--rank", "8", "--low-rank", "off"])
        .run()
        .assert_refused(2, &["low-rank off"]);
    htc!["compile", &model, "-o", scratch.path("no.htz")]
        .args(["--method", "low-rank", "--rank", "8", "--rotation", "off"])
        .run()
        .assert_refused(2, &["rotation off"]);
}
