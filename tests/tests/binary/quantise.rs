use std::fs;
use std::path::{Path, PathBuf};

use htc_formats::bands::{CodeKind, CodeLayout};
use htc_formats::model::Role;
use htc_formats::source::ModelFile;
use htc_tests::artifact::Artifact;
use htc_tests::material::{demo, demo_of_layers, shared, words};
use htc_tests::{Htc, Scratch, TinyModel, htc};
use serde_json::Value;

use super::{compile_calibrated, eval, list, number, text};

fn model() -> PathBuf {
    demo_of_layers(2)
}

fn compile(scratch: &Scratch, name: &str, options: &[&str]) -> Htc {
    compile_model(scratch, &model(), name, options)
}

fn compile_model(scratch: &Scratch, model: &Path, name: &str, options: &[&str]) -> Htc {
    let little = [
        "--method",
        "quantise",
        "--calibration-tokens",
        "8192",
        "--tune",
        "0",
        "--effort",
        "fast",
    ];
    compile_calibrated(scratch, model, name, &demo("alice.txt"))
        .args(little)
        .args(options)
}

fn size(scratch: &Scratch, name: &str) -> u64 {
    fs::metadata(scratch.path(name)).unwrap().len()
}

fn divergence(artifact: &Path) -> f64 {
    let source = model();
    let options = ["--chunks", "6", "--reference", source.to_str().unwrap()];
    let found = eval(artifact, &demo("time_machine.txt"), &options)
        .run()
        .json();
    number(&found, "/kl")
}

#[test]
fn files_have_the_requested_size() {
    let scratch = Scratch::new();
    let mut before = f64::INFINITY;
    for (option, value, bytes) in [
        ("--target-size", "1.2MB", 1_200_000),
        ("--bpw", "4.5", 1_475_280),
        ("--ratio", "0.4", 2_136_115),
        ("--target-size", "2.9MB", 2_900_000),
    ] {
        let report = compile(&scratch, "sized.htz", &[option, value])
            .run()
            .json();
        let found = size(&scratch, "sized.htz");
        assert!(found <= bytes, "{option} {value}: {found}");
        assert!(
            found as f64 > 0.995 * bytes as f64,
            "{option} {value}: {found}"
        );
        assert_eq!(number(&report, "/bytes/after"), found as f64);
        assert_eq!(text(&report, "/plan/method"), "quantise");
        let artifact = scratch.path("sized.htz");
        htc!["verify", &artifact].run().assert_ok();
        let kl = divergence(&artifact);
        assert!(kl < before, "{option} {value}: {kl}, smaller {before}");
        before = kl;
    }
    assert!(before < 0.001, "{before}");
}

#[test]
fn every_matrix_is_coded_within_the_predicted_time() {
    let scratch = Scratch::new();
    let demo = demo("reference-7m-f16.gguf");
    let report = compile_model(&scratch, &demo, "small.htz", &["--target-size", "3.2MB"])
        .run()
        .json();
    let within = |factor: f64, said: f64, took: f64| {
        assert!(
            said < factor * took && took < factor * said,
            "{said} {took}"
        );
    };
    let mut total = (0.0, 0.0);
    for stage in ["calibrate", "plan", "factorise", "measure"] {
        let said = number(&report, &format!("/forecast/stages/{stage}"));
        let took = number(&report, &format!("/seconds/{stage}"));
        eprintln!("{stage}: {said:.2} s forecast, {took:.2} s taken");
        within(10.0, said, took);
        total.0 += said;
        total.1 += took;
    }
    within(4.0, total.0, total.1);
    let (said, used) = (
        number(&report, "/forecast/peak_memory"),
        number(&report, "/peak_memory"),
    );
    eprintln!("memory: {said} forecast, {used} used");
    assert!(used <= said && said < 6.0 * used, "{said} {used}");
    let manifest = Artifact::open(&scratch.path("small.htz")).manifest;
    let weights = manifest.tensors.iter().filter(|t| t.rows > 1);
    for tensor in weights {
        let coded = tensor.dtype.block_len() > 1 || tensor.codes.is_some();
        assert!(coded, "{} {}", tensor.name, tensor.dtype);
    }
    let embedding = manifest.tensor(Role::TokenEmbedding).unwrap();
    let classes = matches!(embedding.codes, Some(CodeLayout::Classes(_)));
    assert!(classes, "{:?}", embedding.codes);
}

#[test]
fn each_kind_of_code_is_closer_than_the_previous() {
    let scratch = Scratch::new();
    let mut before = f64::INFINITY;
    for codes in ["gguf", "levels", "trellis"] {
        let options = ["--target-size", "1.1MB", "--codes", codes];
        compile(&scratch, "kind.htz", &options).run().assert_ok();
        let artifact = Artifact::open(&scratch.path("kind.htz"));
        let mut weights = artifact.manifest.tensors.iter().filter(|t| t.rows > 1);
        let wanted = |list: &CodeLayout| match codes {
            "levels" => !list.contains_kind(CodeKind::Trellis),
            _ => {
                let mut all = list.codes_with_rows(1).flat_map(|(_, codes)| codes.iter());
                list.contains_kind(CodeKind::Trellis) || all.all(|code| code.bits() > 5)
            }
        };
        assert!(
            weights.all(|t| t.codes.as_ref().map_or(codes == "gguf", &wanted)),
            "{codes}"
        );
        let kl = divergence(&scratch.path("kind.htz"));
        assert!(kl < 0.9 * before, "{codes}: {kl}, before {before}");
        before = kl;
    }
    let factors = htc!["compile", model(), "-o", scratch.path("no.htz")];
    let refused = factors
        .args(["--method", "low-rank", "--codes", "levels"])
        .run();
    refused.assert_refused(2, &["codes", "levels", "low-rank", "quantise"]);
    let unknown = compile(&scratch, "no.htz", &["--codes", "fine"]).run();
    unknown.assert_refused(2, &["--codes", "gguf, levels, trellis or all"]);
}

#[test]
fn threads_and_plans_give_the_same_bytes() {
    let scratch = Scratch::new();
    // A single type is predicted to lose less than twice as much here.
    let asked = ["--target-size", "2.85MB"];
    let with = |name: &str, threads: &str| {
        let options = [&asked[..], &["--threads", threads]].concat();
        let report = compile(&scratch, name, &options).run().json();
        (fs::read(scratch.path(name)).unwrap(), report)
    };
    let (one, report) = with("one.htz", "1");
    assert_eq!(with("two.htz", "2").0, one);
    let trials = list(&report, "/trials");
    assert!(trials.len() == 2, "{trials:?}");
    let uniform = trials.iter().filter(|trial| trial["uniform"].is_string());
    assert_eq!(uniform.count(), 1, "{trials:?}");
    let chosen = trials.iter().find(|trial| trial["chosen"] == true).unwrap();
    assert!(chosen["uniform"].is_null(), "{chosen}");
    let plan = scratch.path("plan.json");
    let model = model();
    htc!["plan", &model, "-o", &plan, "--method", "quantise"]
        .args(asked)
        .args(["--calibration".as_ref(), demo("alice.txt").as_os_str()])
        .args(["--effort", "fast"])
        .args(["--calibration-tokens", "8192", "--cache"])
        .arg(scratch.path("cache"))
        .run()
        .assert_ok();
    let read: Value = serde_json::from_slice(&fs::read(&plan).unwrap()).unwrap();
    assert_eq!(text(&read, "/method"), "quantise");
    let planned = htc!["compile", &model, "-o", scratch.path("planned.htz")]
        .args(["--plan".as_ref(), plan.as_os_str()])
        .args(["--calibration".as_ref(), demo("alice.txt").as_os_str()])
        .args([
            "--calibration-tokens",
            "8192",
            "--report",
            "json",
            "--cache",
        ])
        .arg(scratch.path("cache"))
        .run()
        .json();
    let forms = |report: &Value| -> Vec<String> {
        let projections = list(report, "/plan/projections");
        projections
            .iter()
            .map(|projection| projection["bytes_after"].to_string())
            .collect()
    };
    assert_eq!(forms(&planned), forms(&report));
}

#[test]
fn plan_of_gguf_types_gives_the_same_matrices() {
    let scratch = Scratch::new();
    let asked = ["--target-size", "1.8MB", "--codes", "gguf"];
    compile(&scratch, "direct.htz", &asked).run().assert_ok();
    let plan = scratch.path("plan.json");
    let calibration = || {
        let text = demo("alice.txt");
        let cache = scratch.path("cache");
        [
            "--calibration".into(),
            text,
            "--cache".into(),
            cache,
            "--calibration-tokens".into(),
            "8192".into(),
        ]
    };
    let model = model();
    htc!["plan", &model, "-o", &plan, "--method", "quantise"]
        .args(asked)
        .args(["--effort", "fast"])
        .args(calibration())
        .run()
        .assert_ok();
    htc!["compile", &model, "-o", scratch.path("planned.htz")]
        .args([
            "--tune".as_ref(),
            "0".as_ref(),
            "--plan".as_ref(),
            plan.as_path(),
        ])
        .args(calibration())
        .run()
        .assert_ok();
    let file = |name: &str| ModelFile::open(scratch.path(name)).unwrap();
    let (direct, planned) = (file("direct.htz"), file("planned.htz"));
    for (one, other) in direct.tensors.iter().zip(&planned.tensors) {
        assert_eq!((one.role, one.dtype), (other.role, other.dtype));
        assert!(direct.bytes(one) == planned.bytes(other), "{}", one.role);
    }
    assert_eq!(direct.tensors.len(), planned.tensors.len());
}

#[test]
fn calibrated_codes_lose_less_than_plain_ones() {
    let scratch = Scratch::new();
    let model = model();
    let options = [
        "--rank",
        "full",
        "--projections",
        "q",
        "--factor-type",
        "f16",
    ];
    let types = [
        "--dense-type",
        "q3_k",
        "--embedding-type",
        "q4_k",
        "--force",
    ];
    let common = || {
        let output = scratch.path("dense.htz");
        htc!["compile", &model, "-o", output]
            .args(options)
            .args(types)
    };
    common().run().assert_ok();
    let plain = divergence(&scratch.path("dense.htz"));
    common()
        .args(["--calibration".as_ref(), demo("alice.txt").as_os_str()])
        .args([
            "--calibration-tokens",
            "8192",
            "--gauge",
            "none",
            "--bias",
            "off",
        ])
        .arg("--cache")
        .arg(scratch.path("cache"))
        .run()
        .assert_ok();
    let fed = divergence(&scratch.path("dense.htz"));
    assert!(fed < 0.8 * plain, "{fed} with feedback, {plain} without");
}

#[test]
fn smallest_file_within_a_limit_is_found() {
    let scratch = Scratch::new();
    let options = ["--max-kl", "0.05", "--calibration-tokens", "16384"];
    // A dozen artifacts are made.
    let untuned = ["--tune", "0", "--codes", "levels", "--effort", "fast"];
    let report = htc![
        "compile",
        model(),
        "-o",
        scratch.path("limited.htz"),
        "--method",
        "quantise",
        "--calibration",
        demo("alice.txt"),
        "--cache",
        scratch.path("cache"),
        "--report",
        "json"
    ]
    .args(options)
    .args(untuned)
    .run()
    .json();
    let bytes = size(&scratch, "limited.htz");
    assert!(bytes < 1_700_000, "{bytes}");
    let trials = list(&report, "/trials");
    let chosen = trials.iter().find(|trial| trial["chosen"] == true).unwrap();
    let upper = number(chosen, "/evaluation/kl_interval/1");
    assert!(upper <= 0.05, "{upper}");
    let beyond = trials.iter().any(|trial| {
        let upper = number(trial, "/evaluation/kl_interval/1");
        let less = bytes as f64 - number(trial, "/bytes");
        upper > 0.05 && less > 0.0 && less < 80_000.0
    });
    assert!(beyond, "{trials:?}");
}

#[test]
fn conflicting_options_are_refused() {
    let scratch = Scratch::new();
    let refused = |options: &[&str], words: &[&str]| {
        let outcome = compile(&scratch, "refused.htz", options).run();
        outcome.assert_refused(2, words);
        assert!(!scratch.path("refused.htz").exists());
    };
    refused(&["--rank", "8"], &["--rank 8", "quantise", "--target-size"]);
    refused(&["--mean-rank", "8"], &["--mean-rank 8", "--target-size"]);
    refused(
        &["--target-size", "400kB"],
        &["--target-size 400000", "smallest"],
    );
    refused(
        &["--target-size", "1.4MB", "--gauge", "whiten"],
        &["--gauge whiten", "no factors", "--method"],
    );
    refused(
        &["--target-size", "1.4MB", "--bias", "on"],
        &["--bias on", "no factors"],
    );
    let tiny = scratch.file("tiny.gguf", TinyModel::default().bytes());
    let ranks = htc!["compile", &tiny, "-o", scratch.path("ranks.htz")]
        .args(["--method", "low-rank", "--target-size", "1MB"])
        .run();
    ranks.assert_refused(
        2,
        &["--target-size 1000000", "low-rank", "--ratio", "quantise"],
    );
    let both = htc!["compile", &tiny, "-o", scratch.path("both.htz")]
        .args(["--target-size", "1MB", "--bpw", "3"])
        .run();
    both.assert_refused(2, &["--target-size", "--bpw"]);
}

#[test]
fn channels_are_permuted_if_possible() {
    let scratch = Scratch::new();
    let order_of = |name: &str| {
        let manifest = Artifact::open(&scratch.path(name)).manifest;
        manifest.provenance.order
    };
    let sized = |name: &str, more: &[&str]| {
        let options = [&["--target-size", "1.4MB"], more].concat();
        compile(&scratch, name, &options).run().assert_ok();
    };
    sized("default.htz", &[]);
    sized("on.htz", &["--order", "on"]);
    sized("off.htz", &["--order", "off"]);
    let on = order_of("on.htz");
    assert!(on.is_some() && order_of("default.htz") == on && order_of("off.htz").is_none());
    let read = |name: &str| fs::read(scratch.path(name)).unwrap();
    assert_eq!(read("on.htz"), read("default.htz"));
    let inspected = htc!["inspect", scratch.path("on.htz")].run().assert_ok();
    let said = format!("stored in an order of its own, sha256 {}", on.unwrap());
    assert!(inspected.text().contains(&said), "{}", inspected.text());
    let [on, off] = ["on.htz", "off.htz"].map(|name| divergence(&scratch.path(name)));
    assert!(on < 1.2 * off, "{on} in order, {off} without");
    compile(&scratch, "no.htz", &["--order", "perhaps"])
        .run()
        .assert_refused(2, &["--order", "on or off"]);
    let tiny = scratch.file("tiny.gguf", TinyModel::default().bytes());
    htc![
        "compile",
        &tiny,
        "-o",
        scratch.path("no.htz"),
        "--rank",
        "8",
        "--order",
        "on"
    ]
    .run()
    .assert_refused(2, &["--order on", "text", "--calibration"]);
    if let Some(blocks) = shared("models/reference-7m/reference-7m-q4_0.gguf") {
        htc![
            "compile",
            blocks,
            "-o",
            scratch.path("no.htz"),
            "--order",
            "on"
        ]
        .run()
        .assert_refused(2, &["--order on", "blocks of", "leave --order out"]);
    }
}

#[test]
fn widths_that_do_not_fit_blocks_compile() {
    let scratch = Scratch::new();
    for width in [64, 96, 48] {
        let tiny = TinyModel {
            width,
            heads: 3,
            kv_heads: 3,
            head_size: width / 3 / 2 * 2,
            ffn: 160,
            ..TinyModel::default()
        };
        let model = scratch.file("tiny.gguf", tiny.bytes());
        let whole = fs::metadata(&model).unwrap().len();
        let text = scratch.file("words.txt", words(400));
        let outcome = htc!["compile", &model, "-o", scratch.path("tiny.htz")]
            .args(["--method", "quantise", "--ratio", "0.6", "--force"])
            .args(["--calibration".as_ref(), text.as_os_str()])
            .args(["--context", "32", "--calibration-tokens", "512", "--cache"])
            .arg(scratch.path("cache"))
            .run();
        if outcome.code() == Some(0) {
            assert!(size(&scratch, "tiny.htz") as f64 <= 0.6 * whole as f64);
        } else {
            outcome.assert_refused(2, &["smallest"]);
        }
    }
}
