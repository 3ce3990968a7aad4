//! `--gauge axiom`, `--sink` and `--bias`: effects on the stored factors.

use std::fs;
use std::path::{Path, PathBuf};

use htc_tests::artifact::{Artifact, id};
use htc_tests::float64::Matrix;
use htc_tests::material::{demo, demo_of_layers};
use htc_tests::model::Tensor;
use htc_tests::{Htc, Scratch, TinyModel, htc};
use serde_json::{Value, json};

use super::{METHODS, assert_close, compile, eval, list, number, text};

pub const READS: [(&str, &str); 5] = [
    ("q", "attn_q"),
    ("k", "attn_k"),
    ("v", "attn_v"),
    ("gate", "ffn_gate"),
    ("up", "ffn_up"),
];

pub fn all_projections(method: &str) -> [&'static str; 2] {
    match method {
        "shared-basis" => ["--projections", "q,k,v,gate,up"],
        _ => ["--projections", "q,k,v,o,gate,up,down"],
    }
}

pub fn source(tensors: &[Tensor], layer: usize, projection: &str) -> Matrix {
    let name = format!("blk.{layer}.{projection}.weight");
    let tensor = tensors.iter().find(|tensor| tensor.name == name).unwrap();
    Matrix::new(tensor.rows, tensor.cols, &tensor.values)
}

/// Options of a calibration on a short text, in windows of 16 tokens.
pub fn calibrated(scratch: &Scratch) -> Vec<String> {
    let file = scratch.file(
        "text.txt",
        "the cat sat on the hat and then in a can ".repeat(30),
    );
    let cache = scratch.path("cache");
    let mut options = vec!["--calibration".to_owned(), path(&file)];
    options.extend(["--context", "16", "--calibration-tokens", "256", "--cache"].map(String::from));
    options.push(path(&cache));
    options
}

fn path(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

pub fn with<'a>(options: &[&'a str], more: &'a [String]) -> Vec<&'a str> {
    let more = more.iter().map(String::as_str);
    options.iter().copied().chain(more).collect()
}

pub fn fixture(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/architectures");
    root.join(name).join("model.gguf")
}

#[test]
fn axiom_gauge_lowers_the_tail_energy() {
    let tiny = TinyModel::default();
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", tiny.bytes());
    let tensors = tiny.tensors();
    for method in METHODS {
        let fixed = ["--method", method, "--rank", "8", "--factor-type", "f32"];
        let fixed = [&fixed[..], &all_projections(method), &["--force"]].concat();
        let run = |gauge| {
            let options = [&fixed[..], &["--gauge", gauge]].concat();
            compile(&scratch, &model, "out.htz", &options)
        };
        let (_, plain) = run("none");
        assert!(plain.get("axiom").is_none());
        let (artifact, report) = run("axiom");
        htc!["verify", &artifact].run().assert_ok();
        assert_eq!(report["treatment"]["gauge"], "axiom");
        let searches = list(&report, "/axiom");
        assert_eq!(searches.len(), tiny.layers);
        for (layer, search) in searches.iter().enumerate() {
            assert_eq!(search["layer"], layer);
            let trace: Vec<f64> = list(search, "/trace")
                .iter()
                .map(|t| t.as_f64().unwrap())
                .collect();
            assert!(
                trace.len() > 1 && trace.is_sorted_by(|a, b| a >= b),
                "{trace:?}"
            );
            assert_eq!(number(search, "/before"), trace[0]);
            assert_eq!(number(search, "/after"), trace[trace.len() - 1]);
            assert!(number(search, "/after") < 0.9 * number(search, "/before"));
            if method == "low-rank" {
                let tails = list(&plain, "/measured").iter();
                let tails = tails.filter(|of| of["layer"] == layer).map(|of| {
                    let name = of["projection"].as_str().unwrap();
                    let at = htc_tests::model::PROJECTION_NAMES
                        .iter()
                        .position(|n| *n == name);
                    let projection = htc_tests::model::GGUF_PROJECTIONS[at.unwrap()];
                    assert_close(number(of, "/predicted"), number(of, "/error"), 1e-4);
                    assert_eq!(of["norm"], "frobenius");
                    (number(of, "/error") * source(&tensors, layer, projection).norm()).powi(2)
                });
                assert_close(trace[0], tails.sum(), 1e-4);
            }
        }
        let measured = list(&report, "/measured");
        assert!(measured.iter().all(|of| of["norm"] == "axiom"));
        let shown = htc!["compile", &model, "-o", &artifact].args(&fixed);
        let shown = shown.args(["--gauge", "axiom"]).run().assert_ok().stderr;
        assert!(shown.contains("gauge axiom") && shown.contains("tail energy"));
        let manifest = Artifact::open(&artifact).manifest;
        let record = manifest.provenance.treatment.unwrap();
        assert_eq!(
            (record.gauge.as_str(), record.sink, record.bias),
            ("axiom", None, false)
        );
    }
}

#[test]
fn axiom_at_full_rank_changes_nothing() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let options = |gauge| ["--rank", "full", "--factor-type", "f32", "--gauge", gauge];
    let (plain, _) = compile(&scratch, &model, "plain.htz", &options("none"));
    let (axiom, report) = compile(&scratch, &model, "axiom.htz", &options("axiom"));
    assert!(report.get("axiom").is_none());
    let (plain, axiom) = (Artifact::open(&plain), Artifact::open(&axiom));
    for entry in &plain.manifest.tensors {
        let role = entry.role.to_string();
        assert_eq!(
            plain.tensor_bytes(&role),
            axiom.tensor_bytes(&role),
            "{role}"
        );
    }
}

#[test]
fn bytes_do_not_depend_on_threads() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let calibration = calibrated(&scratch);
    for method in METHODS {
        for options in [
            &["--gauge", "axiom", "--keep-gauge", "--bias", "on"][..],
            &["--sink", "append", "--bias", "on"],
            &["--gauge", "axiom", "--keep-gauge", "--sink", "channels:3"],
        ] {
            let mut files = Vec::new();
            for threads in ["1", "2", "5"] {
                let fixed = ["--method", method, "--ratio", "0.5", "--force"];
                let options = [&fixed[..], options, &["--threads", threads]].concat();
                let options = with(&options, &calibration);
                let (artifact, _) = compile(&scratch, &model, "out.htz", &options);
                files.push(fs::read(artifact).unwrap());
            }
            assert!(files[0] == files[1] && files[0] == files[2], "{options:?}");
        }
    }
}

/// The input of the first layer, computed without executing the model: the normed embeddings.
fn first_inputs(tensors: &[Tensor], tokens: &[u32]) -> Vec<Vec<f64>> {
    let of = |name: &str| tensors.iter().find(|tensor| tensor.name == name).unwrap();
    let (embedding, norm) = (of("token_embd.weight"), of("blk.0.attn_norm.weight"));
    let normed = |token: &u32| -> Vec<f64> {
        let row = &embedding.values[*token as usize * embedding.cols..][..embedding.cols];
        let squares: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
        let scale = 1.0 / (squares / row.len() as f64 + 1e-5).sqrt();
        let weighted = row.iter().zip(&norm.values);
        weighted
            .map(|(&x, &w)| f64::from(x) * scale * f64::from(w))
            .collect()
    };
    tokens.iter().map(normed).collect()
}

/// The mean output of a corrected projection equals that of its weight: `W E[x] = Ŵ E[x] + b`.
#[test]
fn bias_correction_makes_the_mean_error_zero() {
    let tiny = TinyModel::default();
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", tiny.bytes());
    let words = scratch.file("words.txt", "the cat sat on the hat and then in a can");
    let found = htc!["tokenize", &model, "--text", &words, "--json"]
        .run()
        .json();
    let tokens: Vec<u32> = list(&found, "/tokens")
        .iter()
        .map(|id| id.as_u64().unwrap() as u32)
        .collect();
    let tensors = tiny.tensors();
    let inputs = first_inputs(&tensors, &tokens[..8]);
    let mean: Vec<f32> = (0..tiny.width)
        .map(|i| (inputs.iter().map(|x| x[i]).sum::<f64>() / 8.0) as f32)
        .collect();
    let mean = Matrix::new(tiny.width, 1, &mean);
    let cache = scratch.path("cache");
    for method in METHODS {
        let options = |bias| {
            let options = ["--method", method, "--rank", "6", "--bias", bias, "--force"];
            let text = [
                "--factor-type",
                "f32",
                "--context",
                "8",
                "--calibration-tokens",
                "8",
            ];
            [&options[..], &text].concat()
        };
        let calibration = [
            "--calibration".to_owned(),
            path(&words),
            "--cache".to_owned(),
            path(&cache),
        ];
        let run = |bias| {
            let options = options(bias);
            compile(&scratch, &model, "out.htz", &with(&options, &calibration))
        };
        let (artifact, report) = run("on");
        assert_eq!(report["treatment"]["bias"], true);
        assert!(number(&report, "/biases/count") > 0.0);
        let bytes = fs::metadata(&artifact).unwrap().len();
        assert_eq!(number(&report, "/bytes/after"), bytes as f64);
        let artifact = Artifact::open(&artifact);
        assert!(
            artifact
                .manifest
                .provenance
                .treatment
                .as_ref()
                .unwrap()
                .bias
        );
        for (projection, name) in &READS[..3] {
            let exact = source(&tensors, 0, name).times(&mean);
            let mut corrected = artifact.dense_projection(0, projection).times(&mean);
            let without = exact.relative_distance(&corrected);
            assert!(without > 0.05, "{projection}: {without}");
            let bias = artifact
                .matrix(&format!("{}.bias", id(0, projection)))
                .transposed();
            corrected.add(1.0, &bias);
            let lost = exact.relative_distance(&corrected);
            assert!(lost < 1e-5, "{method}, {projection}: {lost:e}");
        }
        let (artifact, report) = run("off");
        assert_eq!(number(&report, "/biases/count"), 0.0);
        assert!(!Artifact::open(&artifact).has("blk.0.attn_q.bias"));
    }
}

/// Qwen 2 has a bias of its own, Mistral has not.
#[test]
fn every_architecture_supports_biases() {
    let scratch = Scratch::new();
    let calibration = calibrated(&scratch);
    let words = scratch.path("text.txt");
    for name in [
        "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3",
    ] {
        let model = fixture(name);
        for method in METHODS {
            let projections = all_projections(method);
            let options = ["--method", method, "--factor-type", "f32", "--force"];
            let options = [&options[..], &projections].concat();
            let measure = |rank| {
                let options = [&options[..], &["--rank", rank]].concat();
                let plain = [&options[..], &["--bias", "off"]].concat();
                let (plain, _) = compile(&scratch, &model, "plain.htz", &plain);
                let plain = Artifact::open(&plain);
                let options = [&options[..], &["--bias", "on"]].concat();
                let options = with(&options, &calibration);
                let (artifact, report) = compile(&scratch, &model, "out.htz", &options);
                let opened = Artifact::open(&artifact);
                for record in list(&report, "/plan/projections") {
                    let projection = text(record, "/id");
                    let bias = format!("{projection}.bias");
                    let expected = plain.has(&bias) || record["form"] != "dense";
                    assert_eq!(opened.has(&bias), expected, "{name}: {projection}");
                }
                let reference = ["--reference", model.to_str().unwrap(), "--context", "16"];
                let options = [&reference[..], &["--chunks", "4", "--kv-type", "f32"]].concat();
                let found = eval(&artifact, &words, &options).run().json();
                htc!["verify", &artifact].run().assert_ok();
                (number(&found, "/kl"), report)
            };
            let (kl, _) = measure("full");
            assert!(kl.abs() < 1e-6, "{name}, {method}: {kl:e}");
            let (kl, report) = measure("4");
            assert!(kl > 1e-4 && kl.is_finite(), "{name}, {method}: {kl:e}");
            assert!(number(&report, "/biases/bytes") > 0.0);
        }
    }
}

/// Leading components miss a first position along a channel that no projection weighs.
#[test]
fn appended_sink_is_exact() {
    let tiny = TinyModel::default();
    let tensors = TinyModel::with_missed_sink();
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", tiny.bytes_with_tensors(&tensors));
    let calibration = calibrated(&scratch);
    let direction: Vec<f32> = (0..tiny.width)
        .map(|i| f32::from(i == TinyModel::MISSED_SINK_CHANNEL))
        .collect();
    let direction = Matrix::new(tiny.width, 1, &direction);
    for method in METHODS {
        let lost = |sink| {
            let options = [
                "--method",
                method,
                "--rank",
                "6",
                "--factor-type",
                "f32",
                "--force",
            ];
            let options = [&options[..], &["--gauge", "none", "--sink", sink]].concat();
            let options = with(&options, &calibration);
            let (artifact, report) = compile(&scratch, &model, "out.htz", &options);
            let artifact = Artifact::open(&artifact);
            let lost = READS[..3].iter().map(|(projection, name)| {
                let exact = source(&tensors, 0, name).times(&direction);
                exact.relative_distance(&artifact.dense_projection(0, projection).times(&direction))
            });
            let first = READS[..3].iter().map(|(projection, name)| {
                let id = id(0, projection);
                let (a, b) = match method {
                    "shared-basis" => {
                        ("blk.0.attn_qkv.basis".to_owned(), format!("{id}.projected"))
                    }
                    _ => (format!("{id}.a"), format!("{id}.b")),
                };
                let [a, b] = [a, b].map(|role| artifact.matrix(&role));
                let b = b.transposed().leading_rows(1).transposed();
                let exact = source(&tensors, 0, name).times(&direction);
                exact.relative_distance(&b.times(&a.leading_rows(1)).times(&direction))
            });
            (lost.chain(first).collect::<Vec<f64>>(), report)
        };
        let (without, report) = lost("off");
        assert!(
            without.iter().all(|lost| *lost > 0.5),
            "{method}: {without:?}"
        );
        assert!(report.get("sinks").is_none());
        let (with, report) = lost("append");
        assert!(with.iter().all(|lost| *lost < 1e-4), "{method}: {with:?}");
        let first = list(&report, "/sinks").iter().filter(|of| of["layer"] == 0);
        let attention = first.filter(|of| {
            list(of, "/projections")[0] != "gate" && list(of, "/projections")[0] != "up"
        });
        let attention: Vec<&Value> = attention.collect();
        assert_eq!(attention.len(), if method == "low-rank" { 3 } else { 1 });
        for of in attention {
            assert_eq!(of["appended"], true);
            assert!(number(of, "/largest") <= number(of, "/coverage"));
        }
        let threshold = (6.0 / tiny.width as f64).sqrt();
        for of in list(&report, "/sinks") {
            assert!((number(of, "/random") - threshold).abs() < 1e-12);
            let avoids = number(of, "/coverage") < threshold;
            assert_eq!(of["appended"], avoids, "{method}: {of}");
        }
        assert_eq!(text(&report, "/treatment/sink"), "append");
        let projections: Vec<&Value> = list(&report, "/sinks")
            .iter()
            .flat_map(|of| list(of, "/projections"))
            .collect();
        assert!(!projections.contains(&&json!("o")) && !projections.contains(&&json!("down")));
    }
}

#[test]
fn invalid_treatments_are_refused() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let output = scratch.path("out.htz");
    let compile = |options: &[&str]| htc!["compile", &model, "-o", &output].args(options);
    for options in [
        &["--gauge", "whiten"][..],
        &["--gauge", "activation"],
        &["--sink", "append"],
        &["--bias", "on"],
    ] {
        compile(&[options, &["--method", "low-rank"]].concat())
            .run()
            .assert_refused(2, &[options[0], options[1], "--calibration"]);
    }
    for options in [
        &["--gauge", "best"][..],
        &["--sink", "on"],
        &["--sink", "channels:0"],
        &["--sink", "channels:-1"],
        &["--sink", "channels:99999999999999999999"],
        &["--bias", "yes"],
    ] {
        compile(options)
            .run()
            .assert_refused(2, &[options[0], options[1]]);
        let plan = htc!["plan", &model].args(options);
        plan.run().assert_refused(2, &[options[0], options[1]]);
    }
    for method in METHODS {
        let options = ["--method", method, "--rank", "8", "--sink", "channels:9"];
        let said = ["--sink channels:9", "layer 0", "rank 8", "channels:8"];
        compile(&options).run().assert_refused(2, &said);
        htc!["plan", &model]
            .args(options)
            .run()
            .assert_refused(2, &said);
    }
    assert!(!output.exists());
    let file = scratch.path("plan.json");
    htc!["plan", &model, "--rank", "8", "-o", &file]
        .run()
        .assert_ok();
    let options = ["--plan", file.to_str().unwrap(), "--sink", "channels:2"];
    let said = ["channels:2", "layer 0", "f16", "f32"];
    compile(&options).run().assert_refused(2, &said);
    let options = ["--rank", "8", "--sink", "channels:8"];
    compile(&options).run().assert_ok();
    htc!["verify", &output].run().assert_ok();
}

#[test]
fn plan_records_the_treatment() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let file = scratch.path("plan.json");
    let asked = ["--gauge", "axiom", "--sink", "channels:2", "--bias", "auto"];
    let plan = htc!["plan", &model, "--rank", "8", "-o", &file, "--force"];
    plan.args(asked).run().assert_ok();
    let written = fs::read_to_string(&file).unwrap();
    let json: Value = serde_json::from_str(&written).unwrap();
    assert_eq!(json["request"]["gauge"], "axiom");
    assert_eq!(json["request"]["sink"], "channels:2");
    assert_eq!(json["request"]["bias"], "auto");
    let from_plan = |name: &str, options: &[&str]| -> Htc {
        let run = htc!["compile", &model, "-o", scratch.path(name), "--plan", &file];
        run.args(["--report", "json", "--force"]).args(options)
    };
    let report = from_plan("a.htz", &[]).run().json();
    assert_eq!(
        report["treatment"],
        json!({"gauge": "axiom", "sink": "channels:2", "bias": false})
    );
    let (direct, _) = compile(
        &scratch,
        &model,
        "b.htz",
        &[&["--rank", "8"], &asked[..]].concat(),
    );
    assert_eq!(
        fs::read(scratch.path("a.htz")).unwrap(),
        fs::read(direct).unwrap()
    );
    let report = from_plan("a.htz", &["--gauge", "none"]).run().json();
    assert_eq!(
        report["treatment"],
        json!({"gauge": "none", "sink": "channels:2", "bias": false})
    );
    let report = from_plan("a.htz", &["--sink", "off", "--dry-run"])
        .run()
        .assert_ok();
    assert!(report.stderr.contains("dry run"));

    htc!["plan", &model, "--rank", "8", "-o", &file, "--force"]
        .run()
        .assert_ok();
    assert!(!fs::read_to_string(&file).unwrap().contains("gauge"));
    let report = from_plan("c.htz", &[]).run().json();
    assert_eq!(
        report["treatment"],
        json!({"gauge": "none", "sink": "off", "bias": false})
    );

    let plan = htc!["plan", &model, "--rank", "8", "-o", &file, "--force"];
    plan.args(["--gauge", "whiten", "--bias", "on"])
        .run()
        .assert_ok();
    from_plan("d.htz", &[])
        .run()
        .assert_refused(2, &["--gauge whiten", "--calibration"]);
    let calibration = calibrated(&scratch);
    let report = from_plan("d.htz", &with(&[], &calibration)).run().json();
    assert_eq!(
        report["treatment"],
        json!({"gauge": "whiten", "sink": "append", "bias": true, "shrinkage": 0.01})
    );

    for (key, good, bad) in [
        ("gauge", "\"axiom\"", "\"best\""),
        ("gauge", "\"axiom\"", "3"),
        ("sink", "\"channels:2\"", "\"channels:0\""),
        ("bias", "\"auto\"", "true"),
    ] {
        let text = written.replace(good, bad);
        assert_ne!(text, written);
        fs::write(&file, text).unwrap();
        let line = written.lines().position(|line| line.contains(key)).unwrap() + 1;
        from_plan("e.htz", &[])
            .run()
            .assert_refused(2, &[&format!("line {line}"), &format!("request.{key}")]);
    }
}

#[test]
fn treatment_of_a_trained_model() {
    let scratch = Scratch::new();
    let model = demo_of_layers(2);
    let words = demo("alice.txt");
    let cache = path(&scratch.path("cache"));
    let calibration = ["--calibration", words.to_str().unwrap(), "--cache", &cache];
    let options = [
        "--ratio",
        "0.6",
        "--factor-type",
        "f16",
        "--allocator",
        "uniform",
        "--force",
    ];
    let tokens = ["--calibration-tokens", "4096"];
    let measure = |more: &[&str]| {
        let options = [&options[..], &calibration, &tokens, more].concat();
        let (artifact, report) = compile(&scratch, &model, "out.htz", &options);
        let found = eval(&artifact, &demo("time_machine.txt"), &["--chunks", "2"]);
        (number(&found.run().json(), "/perplexity"), report)
    };
    let (plain, report) = measure(&["--bias", "off"]);
    assert_eq!(text(&report, "/treatment/sink"), "append");
    for of in list(&report, "/measured") {
        assert_eq!(of["norm"], "output");
        let (predicted, error) = (number(of, "/predicted"), number(of, "/output_error"));
        assert!(predicted > 0.99 * error, "{of}");
        assert!(predicted < 1.3 * error || error < 0.1, "{of}");
    }
    let (corrected, _) = measure(&["--bias", "on"]);
    assert!(plain != corrected, "{plain}");
    assert!(corrected < 1.2 * plain, "{corrected} for {plain}");
}
