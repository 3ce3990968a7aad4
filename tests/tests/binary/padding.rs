use std::fs;
use std::path::PathBuf;

use htc_formats::DType;
use htc_formats::bands::CodeKind;
use htc_tests::artifact::Artifact;
use htc_tests::logits::assert_export_matches;
use htc_tests::material::words;
use htc_tests::{Htc, Scratch, TinyModel, htc};
use serde_json::Value;

use super::{eval, list, number};

const TOKENS: [u32; 8] = [1, 261, 297, 70, 280, 5, 298, 3];

fn model(scratch: &Scratch) -> PathBuf {
    let tiny = TinyModel {
        width: 60,
        head_size: 14,
        ..TinyModel::default()
    };
    scratch.file("words.txt", words(20_000));
    scratch.file("model.gguf", tiny.bytes())
}

fn planning(scratch: &Scratch, command: &str, name: &str, options: &[&str]) -> Htc {
    htc![
        command,
        scratch.path("model.gguf"),
        "-o",
        scratch.path(name)
    ]
    .args(["--force", "--context", "32", "--calibration-tokens", "4096"])
    .args(["--calibration".into(), scratch.path("words.txt")])
    .args(["--cache".into(), scratch.path("cache")])
    .args(options)
}

const SIZE: [&str; 4] = ["--target-size", "90kB", "--effort", "fast"];

fn compile(scratch: &Scratch, name: &str, options: &[&str]) -> Value {
    let options = [options, &["--report", "json", "--tune", "0"]].concat();
    planning(scratch, "compile", name, &options).run().json()
}

#[test]
fn any_width_is_stored_in_padded_column_groups() {
    let scratch = Scratch::new();
    let source = model(&scratch);
    let said = "padded to whole bands of 32 columns: embedding, q, k, v, gate, up (11 matrices of 60 columns) by 4; \
                o (2 matrices of 56 columns) by 8; down (2 matrices of 172 columns) by 20";
    for (codes, kind) in [
        ("levels", CodeKind::Codebook),
        ("trellis", CodeKind::Trellis),
    ] {
        let options = [&SIZE[..], &["--codes", codes]].concat();
        let [one, two] = ["1", "2"].map(|threads| {
            let name = format!("{threads}.htz");
            let report = compile(
                &scratch,
                &name,
                &[&options[..], &["--threads", threads]].concat(),
            );
            let notes = list(&report, "/notes").iter().filter_map(Value::as_str);
            let notes = notes.filter(|note| note.starts_with("padded to whole bands"));
            assert_eq!(notes.collect::<Vec<_>>(), [said], "{codes}");
            scratch.path(&name)
        });
        assert!(
            fs::read(&one).unwrap() == fs::read(&two).unwrap(),
            "{codes}"
        );
        assert!(fs::metadata(&one).unwrap().len() <= 90_000);
        htc!["verify", &one].run().assert_ok();
        htc!["verify", &one, "--probe", "--layer", "0"]
            .run()
            .assert_ok();
        let shown = htc!["inspect", &one].run().assert_ok().text().to_owned();
        assert!(shown.contains(said), "{shown}");

        let artifact = Artifact::open(&one);
        assert!(
            artifact
                .manifest
                .requires
                .iter()
                .any(|name| name == "padded_bands")
        );
        let mut of_kind = 0;
        for tensor in artifact.manifest.tensors.iter().filter(|of| of.rows > 1) {
            let layout = tensor.codes.as_ref().unwrap();
            let padding = tensor.cols.next_multiple_of(32) - tensor.cols;
            assert_eq!(layout.padding() as u64, padding);
            of_kind += usize::from(layout.contains_kind(kind));
        }
        assert!(of_kind > 5, "{codes}: {of_kind}");
        let exported = scratch.path("exported.gguf");
        htc!["export", &one, "-o", &exported, "--type", "f32", "--force"]
            .run()
            .assert_ok();
        assert_export_matches(&one, &exported, &TOKENS);
        let source = ["--reference", source.to_str().unwrap(), "--context", "32"];
        let kl = eval(&one, &scratch.path("words.txt"), &source).run().json();
        assert!(number(&kl, "/kl") < 0.01, "{codes}: {kl}");
    }
}

#[test]
fn plans_and_residuals_are_padded() {
    let scratch = Scratch::new();
    model(&scratch);
    let plan = scratch.path("plan.json");
    planning(&scratch, "plan", "plan.json", &SIZE)
        .run()
        .assert_ok();
    let written = fs::read_to_string(&plan).unwrap();
    assert_eq!(
        written
            .matches("padded to whole bands of 32 columns")
            .count(),
        1
    );
    let options = ["--plan", plan.to_str().unwrap()];
    let [planned, made] = [&options[..], &SIZE].map(|options| {
        compile(&scratch, "made.htz", options);
        let tensors = Artifact::open(&scratch.path("made.htz")).manifest.tensors;
        let codes = tensors.into_iter().filter(|of| of.dtype == DType::Bands);
        codes.map(|of| (of.name, of.codes)).collect::<Vec<_>>()
    });
    assert_eq!((planned.len(), planned == made), (15, true), "{planned:?}");
    for (codes, found) in [
        (
            "2:t3x6-19",
            "19 columns of padding behind 172 columns, expected 20",
        ),
        (
            "2:t3x6",
            "0 columns of padding behind 172 columns, expected 20",
        ),
        ("2:t3x5-20", "172 columns, 5 bands"),
        ("2:t3x6-32", "1 to 31 columns of padding"),
    ] {
        let plan = format!(
            r#"{{"format": "htc-plan", "version": 2, "method": "low-rank", "factor_type": "f32", "units": [
              {{"layer": 0, "projections": ["down"], "form": "dense", "types": {{"weight": "{codes}"}}}}]}}"#
        );
        let plan = scratch.file("wrong.json", plan);
        let wrong = ["--plan", plan.to_str().unwrap()];
        planning(&scratch, "compile", "wrong.htz", &wrong)
            .run()
            .assert_refused(2, &["line 2", found]);
    }
    let planes = [&SIZE[..], &["--planes", "2", "--codes", "trellis"]].concat();
    compile(&scratch, "planes.htz", &planes);
    let path = scratch.path("planes.htz");
    htc!["verify", &path].run().assert_ok();
    let artifact = Artifact::open(&path);
    let refined = artifact.manifest.tensors.iter();
    let refined: Vec<_> = refined
        .filter(|of| of.name.ends_with(".refinement"))
        .collect();
    assert!(!refined.is_empty());
    for tensor in refined {
        let layout = tensor.codes.as_ref().unwrap();
        assert_eq!(
            layout.padding() as u64,
            tensor.cols.next_multiple_of(32) - tensor.cols
        );
    }
}
