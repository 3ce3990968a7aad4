use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use htc_formats::DType;
use htc_loader::Model;
use htc_tests::artifact::{Artifact, place};
use htc_tests::float64::Matrix;
use htc_tests::logits::{at_positions, largest_difference};
use htc_tests::material::demo_of_layers;
use htc_tests::model::{GGUF_PROJECTIONS, PROJECTION_NAMES, Tensor};
use htc_tests::{Htc, Scratch, TinyModel, htc};
use serde_json::Value;

use super::{assert_close, compile, list, number};

const TOKENS: [u32; 12] = [1, 261, 297, 70, 280, 280, 5, 298, 264, 275, 3, 290];

const LAYERS: u32 = 4;

fn tiny() -> TinyModel {
    TinyModel {
        output: true,
        ffn: 192,
        ..TinyModel::default()
    }
}

fn plan_of_forms(head: &str) -> String {
    format!(
        r#"{{
  "format": "htc-plan", "version": 2, "method": "low-rank", "factor_type": "f32",
  "embedding": {{"form": "dense", "types": {{"weight": "bf16"}}}},
  "head": {head},
  "units": [
    {{"layer": 0, "projections": ["q"], "form": "residual", "rank": 16, "types": {{"base": "bf16", "a": "f32", "b": "f16"}}}},
    {{"layer": 0, "projections": ["k"], "form": "dense", "types": {{"weight": "bf16"}}}},
    {{"layer": 0, "projections": ["up"], "form": "low_rank", "rank": 24, "types": {{"a": "f32", "b": "f32"}}}},
    {{"layer": 0, "projections": ["gate"], "form": "dense"}},
    {{"layer": 1, "projections": ["o"], "form": "residual", "rank": 8, "types": {{"base": "f16", "a": "f16", "b": "f32"}}}},
    {{"layer": 1, "projections": ["down"], "form": "residual", "rank": 20, "types": {{"base": "bf16", "a": "f32", "b": "f32"}}}}
  ]
}}"#
    )
}

const HEADS: [&str; 3] = [
    r#"{"form": "low_rank", "rank": 40, "types": {"a": "f32", "b": "f32"}}"#,
    r#"{"form": "residual", "rank": 12, "types": {"base": "bf16", "a": "f32", "b": "f32"}}"#,
    r#"{"form": "dense", "types": {"weight": "f16"}}"#,
];

fn dense_equal(tiny: &TinyModel, artifact: &Artifact) -> Vec<Tensor> {
    let mut tensors = tiny.tensors();
    let mut put = |name: String, matrix: Matrix| {
        let tensor = tensors.iter_mut().find(|t| t.name == name).unwrap();
        tensor.values = matrix.values.iter().map(|v| *v as f32).collect();
    };
    put(
        "token_embd.weight".to_owned(),
        artifact.matrix("token_embd.weight"),
    );
    put("output.weight".to_owned(), artifact.dense_head());
    for layer in 0..tiny.layers {
        for (name, projection) in GGUF_PROJECTIONS.iter().zip(PROJECTION_NAMES) {
            put(
                format!("blk.{layer}.{name}.weight"),
                artifact.dense_projection(layer, projection),
            );
        }
    }
    tensors
}

fn logits(path: &Path) -> [Vec<f32>; 2] {
    let positions: Vec<usize> = (0..TOKENS.len()).collect();
    let model = Arc::new(Model::open(path).unwrap());
    at_positions(&model, &TOKENS, &positions, 2)
}

#[test]
fn every_form_computes_like_its_dense_matrix() {
    let tiny = tiny();
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", tiny.bytes());
    for head in HEADS {
        let plan = scratch.file("plan.json", plan_of_forms(head));
        let options = ["--plan", plan.to_str().unwrap(), "--force"];
        let (path, report) = compile(&scratch, &model, "out.htz", &options);
        htc!["verify", &path].run().assert_ok();
        htc!["verify", &path, "--probe", "--layer", "0"]
            .run()
            .assert_ok();
        htc!["inspect", &path].run().assert_ok();
        let artifact = Artifact::open(&path);
        let dense = tiny.bytes_with_tensors(&dense_equal(&tiny, &artifact));
        let dense = scratch.file("dense.gguf", dense);
        let [expected, _] = logits(&dense);
        for found in logits(&path) {
            let difference = largest_difference(&found, &expected);
            assert!(difference < 1e-4, "{head}: {difference:.2e}");
        }
        let sources = tiny.tensors();
        let source = |name: &str| {
            let tensor = sources.iter().find(|t| t.name == name).unwrap();
            Matrix::new(tensor.rows, tensor.cols, &tensor.values)
        };
        let matrices = list(&report, "/plan/matrices");
        assert_eq!(matrices.len(), 2);
        let stored = [artifact.matrix("token_embd.weight"), artifact.dense_head()];
        let names = ["token_embd.weight", "output.weight"];
        for ((record, stored), name) in matrices.iter().zip(stored).zip(names) {
            let expected = source(name).relative_distance(&stored);
            assert_close(number(record, "/error"), expected, 1e-4);
        }
        let mut residuals = 0;
        for record in list(&report, "/plan/projections") {
            let (layer, projection) = place(record);
            let at = PROJECTION_NAMES
                .iter()
                .position(|name| *name == projection)
                .unwrap();
            let source = source(&format!("blk.{layer}.{}.weight", GGUF_PROJECTIONS[at]));
            let expected = source.relative_distance(&artifact.dense_projection(layer, &projection));
            match record["error"].as_f64() {
                Some(error) => assert_close(error, expected, 1e-3),
                None => assert_eq!(expected, 0.0, "{record}"),
            }
            residuals += usize::from(record["form"] == "residual");
        }
        assert_eq!(residuals, 3);
    }
}

#[test]
fn residual_is_optimal_for_its_rank() {
    let tiny = tiny();
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", tiny.bytes());
    let unit = |form: &str| {
        let units = format!("{{\"layer\": 0, \"projections\": [\"up\"], {form}}}");
        format!(
            "{{\"format\": \"htc-plan\", \"version\": 2, \"method\": \"gp\", \"factor_type\": \"f32\", \
             \"units\": [{units}]}}"
        )
    };
    let made = |form: &str| {
        let plan = scratch.file("plan.json", unit(form));
        let options = ["--plan", plan.to_str().unwrap(), "--force"];
        let (path, report) = compile(&scratch, &model, "out.htz", &options);
        let record = list(&report, "/plan/projections").iter();
        let record = record.clone().find(|r| place(r).1 == "up").unwrap();
        (Artifact::open(&path), number(record, "/error"))
    };
    let (_, alone) = made(r#""form": "dense", "types": {"weight": "q4_0"}"#);
    let residual = |rank: usize| {
        made(&format!(
            r#""form": "residual", "rank": {rank}, "types": {{"base": "q4_0", "a": "f32", "b": "f32"}}"#
        ))
    };
    let (artifact, error) = residual(16);
    let tensors = tiny.tensors();
    let source = tensors
        .iter()
        .find(|t| t.name == "blk.0.ffn_up.weight")
        .unwrap();
    let source = Matrix::new(source.rows, source.cols, &source.values);
    let mut lacking = source.clone();
    lacking.add(-1.0, &artifact.matrix("blk.0.ffn_up.weight"));
    assert_close(alone, lacking.norm() / source.norm(), 1e-5);
    let gram = lacking.transposed().times(&lacking);
    let tail: f64 = gram.eigen().0[16..].iter().sum();
    assert_close(error, tail.sqrt() / source.norm(), 1e-4);
    assert!(error < 0.9 * alone);
    let (_, all) = residual(64);
    assert!(all < 1e-5, "{all}");
}

#[test]
fn codes_of_every_table_version_run() {
    let tiny = tiny();
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", tiny.bytes());
    for (codes, needs, named) in [
        ("1:t4x6", false, "trellis4 (tables 1)"),
        ("2:t4x6", true, "trellis4"),
    ] {
        let plan = format!(
            r#"{{"format": "htc-plan", "version": 2, "method": "low-rank", "factor_type": "f32", "units": [
              {{"layer": 0, "projections": ["down"], "form": "dense", "types": {{"weight": "{codes}"}}}}]}}"#
        );
        let plan = scratch.file("plan.json", plan);
        let options = ["--plan", plan.to_str().unwrap(), "--force"];
        let (path, _) = compile(&scratch, &model, "out.htz", &options);
        let artifact = Artifact::open(&path);
        let requires = &artifact.manifest.requires;
        assert_eq!(requires.iter().any(|name| name == "tables"), needs);
        let tensors = &mut artifact.manifest.tensors.iter();
        let coded = tensors.find_map(|tensor| tensor.codes.as_ref()).unwrap();
        assert_eq!(coded.to_string(), codes);
        let shown = htc!["inspect", &path].run().assert_ok();
        let down = shown
            .text()
            .lines()
            .find(|line| line.contains("blk.0.ffn_down.weight"));
        let down = down.unwrap();
        assert!(down.contains(&format!("{named} ")), "{down}");

        let sources = tiny.tensors();
        let source = sources.iter().find(|t| t.name == "blk.0.ffn_down.weight");
        let source = source
            .map(|t| Matrix::new(t.rows, t.cols, &t.values))
            .unwrap();
        let error = source.relative_distance(&artifact.dense_projection(0, "down"));
        assert!(error > 0.02 && error < 0.12, "{codes}: {error}");
        let dense = tiny.bytes_with_tensors(&dense_equal(&tiny, &artifact));
        let dense = scratch.file("dense.gguf", dense);
        let [expected, _] = logits(&dense);
        for found in logits(&path) {
            let difference = largest_difference(&found, &expected);
            assert!(difference < 0.05, "{codes}: {difference:.2e}");
        }
    }
}

#[test]
fn demo_model_in_short_types_stays_close_to_its_source() {
    let scratch = Scratch::new();
    let source = demo_of_layers(LAYERS);
    let tied = Model::open(&source).unwrap();
    let tied = tied
        .file()
        .tensor(htc_formats::model::Role::Output)
        .is_none();
    let [expected, _] = logits(&source);
    let by_hand = |head: &str, base: &str| -> String {
        let unit = |layer: u32, projection: &str| {
            format!(
                r#"{{"layer": {layer}, "projections": ["{projection}"], "form": "residual", "rank": 32, "types": {{"base": "{base}", "a": "q8_0", "b": "q8_0"}}}}"#
            )
        };
        let projections = ["q", "o", "down"].into_iter();
        let units =
            projections.flat_map(|projection| (0..LAYERS).map(move |layer| (layer, projection)));
        let units: Vec<String> = units
            .map(|(layer, projection)| unit(layer, projection))
            .collect();
        let head = if tied { "" } else { head };
        format!(
            r#"{{"format": "htc-plan", "version": 2, "method": "low-rank", "factor_type": "q8_0",
             "embedding": {{"form": "dense", "types": {{"weight": "q8_0"}}}}, {head} "units": [{}]}}"#,
            units.join(", ")
        )
    };
    let head = r#""head": {"form": "dense", "types": {"weight": "q6_k"}},"#;
    let plans = [
        ("q8_0", by_hand(head, "q8_0")),
        ("q4_k", by_hand(head, "q4_k")),
    ];
    let plans = plans.map(|(name, text)| scratch.file(&format!("{name}.json"), text));
    let [long, short] = plans.each_ref().map(|path| path.to_str().unwrap());
    let cases: [(&[&str], f64); 5] = [
        (
            &[
                "--projections",
                "q",
                "--rank",
                "full",
                "--dense-type",
                "q8_0",
                "--embedding-type",
                "q8_0",
            ],
            0.2,
        ),
        (
            &[
                "--projections",
                "q",
                "--rank",
                "full",
                "--dense-type",
                "q4_k",
            ],
            0.6,
        ),
        (
            &[
                "--projections",
                "q",
                "--rank",
                "full",
                "--embedding-type",
                "q4_k",
            ],
            0.9,
        ),
        (&["--plan", long], 0.2),
        (&["--plan", short], 0.6),
    ];
    for (options, bound) in cases {
        let output = scratch.path("out.htz");
        let run = |threads: &str| -> Htc {
            let base = htc![
                "compile", &source, "-o", &output, "--force", "--report", "json"
            ];
            base.args(options).args(["--threads", threads])
        };
        let forecast = run("2").arg("--dry-run").run().json();
        run("1").run().assert_ok();
        let one = fs::read(&output).unwrap();
        let report = run("2").run().json();
        assert!(
            fs::read(&output).unwrap() == one,
            "{options:?}: other bytes on two threads"
        );
        assert_eq!(
            number(&forecast, "/bytes/after"),
            one.len() as f64,
            "{options:?}"
        );
        for key in ["parameters", "selected_bytes", "ratio"] {
            assert_eq!(forecast[key], report[key], "{options:?}: {key}");
        }
        htc!["verify", &output].run().assert_ok();
        htc!["verify", &output, "--probe"].run().assert_ok();
        for found in logits(&output) {
            let difference = largest_difference(&found, &expected);
            assert!(difference < bound, "{options:?}: {difference:.3}");
            assert!(difference > 1e-4, "{options:?}: nothing was rounded");
        }
    }
}

#[test]
fn dense_types_are_reported_and_do_not_affect_the_ratio() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", tiny().bytes());
    let base = [
        "--method",
        "shared-basis",
        "--ratio",
        "0.4",
        "--factor-type",
        "f16",
    ];
    let (plain, before) = compile(&scratch, &model, "plain.htz", &base);
    let types = ["--dense-type", "q8_0", "--embedding-type", "f16"];
    let options = [&base[..], &types].concat();
    let (short, after) = compile(&scratch, &model, "short.htz", &options);
    assert_eq!(before["ratio"], after["ratio"]);
    assert_eq!(before["selected_bytes"], after["selected_bytes"]);
    let (plain, short) = (Artifact::open(&plain), Artifact::open(&short));
    assert!(short.bytes.len() < plain.bytes.len() / 2);
    for tensor in &short.manifest.tensors {
        let role = tensor.role.to_string();
        let kept = plain.manifest.tensor(tensor.role).unwrap();
        let expected = match role.as_str() {
            "token_embd.weight" | "output.weight" => DType::F16,
            _ if ["attn_output", "ffn_gate", "ffn_up", "ffn_down"]
                .iter()
                .any(|name| role.ends_with(&format!(".{name}.weight"))) =>
            {
                DType::Q8_0
            }
            _ => kept.dtype,
        };
        assert_eq!(tensor.dtype, expected, "{role}");
        if tensor.dtype == kept.dtype {
            assert_eq!(
                short.tensor_bytes(&role),
                plain.tensor_bytes(&role),
                "{role}"
            );
        }
    }
    let plan = scratch.path("plan.json");
    htc!["plan", &model, "-o", &plan]
        .args(&options)
        .run()
        .assert_ok();
    let from_plan = ["--plan", plan.to_str().unwrap()];
    let (again, _) = compile(&scratch, &model, "again.htz", &from_plan);
    assert!(fs::read(again).unwrap() == short.bytes);
    let shown = htc!["inspect", scratch.path("short.htz")].run().assert_ok();
    for word in ["  token_embd ", "  output "] {
        assert!(shown.text().contains(word), "{}", shown.text());
    }
}

#[test]
fn killed_encoding_resumes() {
    let scratch = Scratch::new();
    let source = demo_of_layers(LAYERS);
    let types = [
        "--projections",
        "q",
        "--rank",
        "32",
        "--dense-type",
        "q4_k",
        "--embedding-type",
        "q4_k",
    ];
    let undisturbed = scratch.path("undisturbed.htz");
    htc!["compile", &source, "-o", &undisturbed]
        .args(types)
        .run()
        .assert_ok();
    let output: PathBuf = scratch.path("out.htz");
    let command =
        |threads: &str| htc!["compile", &source, "-o", &output, "--threads", threads].args(types);
    let journal = || -> String {
        let entries = fs::read_dir(scratch.path(".out.htz.htc-work"))
            .into_iter()
            .flatten();
        let mut paths = entries.map(|entry| entry.unwrap().path());
        let found = paths.find(|path| path.extension().is_some_and(|e| e == "journal"));
        found.map_or_else(String::new, |path| fs::read_to_string(path).unwrap())
    };
    let mut child = command("1").spawn();
    let started = Instant::now();
    while journal().lines().count() < 20 {
        assert!(child.try_wait().unwrap().is_none(), "finished too soon");
        assert!(started.elapsed() < Duration::from_secs(120), "no progress");
        sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!output.exists() && journal().contains("\"step\""));
    command("2").run().assert_ok();
    assert!(fs::read(&output).unwrap() == fs::read(&undisturbed).unwrap());
}

#[test]
fn invalid_encodings_are_refused() {
    let scratch = Scratch::new();
    let tiny = tiny();
    let out = scratch.path("out.htz");
    let model = scratch.file("model.gguf", tiny.bytes());
    for option in ["--dense-type", "--embedding-type"] {
        let said = ["one of f32", "q4_0"];
        htc!["compile", &model, "-o", &out, option, "iq2_xs"]
            .run()
            .assert_refused(2, &said);
    }
    let with = |value: f32| {
        let mut tensors = tiny.tensors();
        let tensor = tensors
            .iter_mut()
            .find(|t| t.name == "token_embd.weight")
            .unwrap();
        tensor.values[3 * 64 + 5] = value;
        scratch.file("bad.gguf", tiny.bytes_with_tensors(&tensors))
    };
    let compile = |model: &Path, dtype: &str| {
        htc!["compile", model, "-o", &out, "--embedding-type", dtype].run()
    };
    compile(&with(1e6), "f16").assert_refused(1, &["token_embd.weight", "range of f16", "bf16"]);
    let bad = with(f32::NAN);
    for dtype in ["f16", "q8_0"] {
        compile(&bad, dtype).assert_refused(1, &["token_embd.weight", "row 3, column 5", "repair"]);
    }
    assert!(!out.exists());
    let tied = TinyModel {
        output: false,
        ..tiny.clone()
    };
    let tied = scratch.file("tied.gguf", tied.bytes());
    let plan = scratch.file("plan.json", plan_of_forms(HEADS[0]));
    let run = htc!["compile", &tied, "-o", &out, "--plan", &plan].run();
    run.assert_refused(2, &["line 4, head", "uses the embedding as head"]);
    let (path, report) = {
        let options = [
            "--embedding-type",
            "q8_0",
            "--projections",
            "q",
            "--rank",
            "8",
        ];
        super::compile(&scratch, &tied, "tied.htz", &options)
    };
    let records: &[Value] = list(&report, "/plan/matrices");
    assert_eq!(records.len(), 1);
    assert_eq!(records[0]["id"], "token_embd");
    htc!["verify", &path].run().assert_ok();
    assert!(
        logits(&path)
            .iter()
            .flatten()
            .all(|logit| logit.is_finite())
    );
}
