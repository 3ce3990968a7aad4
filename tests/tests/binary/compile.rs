use std::fs;

use htc_formats::DType;
use htc_formats::gguf::Contents;
use htc_tests::artifact::{Artifact, id, place};
use htc_tests::material::{demo, demo_of_layers, shared, words};
use htc_tests::model::{GGUF_PROJECTIONS, PROJECTION_NAMES};
use htc_tests::{Scratch, TinyModel, htc};

use serde_json::Value;

use super::{FACTOR_TYPES, METHODS, assert_close, compile, eval, list, number, text};

#[test]
fn every_method_with_every_factor_type() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let words = scratch.file("words.txt", words(150));
    for method in METHODS {
        for factor_type in FACTOR_TYPES {
            let mut options = vec!["--method", method, "--factor-type", factor_type];
            options.extend(["--rank", "32", "--projections", "q,gate,up", "--force"]);
            let (artifact, report) = compile(&scratch, &model, "model.htz", &options);
            assert_eq!(text(&report, "/plan/method"), method);
            assert_eq!(text(&report, "/plan/factor_type"), factor_type);
            let factors = match method {
                "low-rank" => ["blk.0.ffn_gate.a", "blk.1.ffn_up.b"],
                _ => ["blk.0.ffn_gate_up.basis", "blk.1.ffn_up.projected"],
            };
            let manifest = Artifact::open(&artifact).manifest;
            for factor in factors {
                let entry = manifest.tensor(factor.parse().unwrap());
                let entry = entry.unwrap_or_else(|| panic!("{method}: no {factor}"));
                assert_eq!(entry.dtype.name(), factor_type, "{method}: {factor}");
            }
            htc!["verify", &artifact].run().assert_ok();
            let result = eval(&artifact, &words, &["--context", "64"]).run().json();
            assert!(number(&result, "/perplexity") > 1.0);
        }
    }
}

#[test]
fn demo_model_shrinks_with_little_loss() {
    let scratch = Scratch::new();
    let model = demo("reference-7m-f16.gguf");
    let artifact = scratch.path("small.htz");
    let outcome = htc!["compile", &model, "-o", &artifact, "--method", "low-rank"];
    let outcome = outcome.run().assert_ok();
    assert!(outcome.stdout.is_empty(), "stdout is for programs");
    let summary = outcome.stderr.to_lowercase();
    for word in ["bytes", "parameters", "error", " s on "] {
        assert!(
            summary.contains(word),
            "no {word:?} in the summary:\n{summary}"
        );
    }
    for projection in PROJECTION_NAMES {
        assert!(
            summary.contains(&format!("  {projection} ")),
            "no {projection} in:\n{summary}"
        );
    }
    let bytes = |path| fs::metadata(path).unwrap().len();
    assert!(bytes(&artifact) < bytes(&model) * 6 / 10);
    let text = demo("time_machine.txt");
    let reference = model.to_str().unwrap();
    let result = eval(
        &artifact,
        &text,
        &["--chunks", "4", "--reference", reference],
    )
    .run()
    .json();
    let (found, before) = (
        number(&result, "/perplexity"),
        number(&result, "/reference_perplexity"),
    );
    assert!(found < 1.25 * before, "perplexity {found}, before {before}");
    assert!(number(&result, "/top1") > 0.6);
}

#[test]
fn full_rank_equals_the_source() {
    let scratch = Scratch::new();
    let words = scratch.file("words.txt", words(400));
    let tiny = scratch.file("tiny.gguf", TinyModel::default().bytes());
    let models = [
        (tiny, words, ["--context", "128", "--chunks", "4"]),
        (
            demo_of_layers(2),
            demo("time_machine.txt"),
            ["--context", "512", "--chunks", "4"],
        ),
    ];
    for (model, text, protocol) in models {
        for (method, projections) in [
            ("low-rank", "q,k,v,o,gate,up,down"),
            ("shared-basis", "q,k,v"),
            ("shared-basis", "q,k,v,gate,up"),
        ] {
            let options = ["--method", method, "--projections", projections, "--force"];
            let options = [&options[..], &["--rank", "full", "--factor-type", "f32"]].concat();
            let (artifact, report) = compile(&scratch, &model, "full.htz", &options);
            for record in list(&report, "/plan/projections") {
                let selected = projections
                    .split(',')
                    .any(|projection| projection == place(record).1);
                assert_eq!(record["form"] != "dense", selected, "{record}");
                if selected {
                    assert!(number(record, "/error") < 1e-5, "{record}");
                }
            }
            let reference = ["--reference", model.to_str().unwrap()];
            let options = [&protocol[..], &reference].concat();
            let result = eval(&artifact, &text, &options).run().json();
            let source = eval(&model, &text, &protocol).run().json();
            for key in ["/perplexity", "/perplexity_all"] {
                assert_close(number(&result, key), number(&source, key), 1e-4);
            }
            assert!(number(&result, "/kl") < 1e-5, "{method}: {result}");
        }
    }
}

#[test]
fn only_selected_projections_are_factorised() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let all = PROJECTION_NAMES.join(",");
    for (method, projections) in [
        ("low-rank", all.as_str()),
        ("low-rank", "down"),
        ("low-rank", "up,q"),
        ("shared-basis", "q,k,v"),
        ("shared-basis", "q,v"),
        ("shared-basis", "gate,up"),
    ] {
        let options = [
            "--method",
            method,
            "--projections",
            projections,
            "--rank",
            "8",
            "--force",
        ];
        let (artifact, report) = compile(&scratch, &model, "out.htz", &options);
        let artifact = Artifact::open(&artifact);
        for layer in 0..2 {
            for projection in PROJECTION_NAMES {
                let selected = projections.split(',').any(|s| s == projection);
                let dense = artifact.has(&format!("{}.weight", id(layer, projection)));
                assert_eq!(
                    dense, !selected,
                    "{method} {projections}: layer {layer}, {projection}"
                );
            }
        }
        for record in list(&report, "/plan/projections") {
            let selected = projections.split(',').any(|s| s == place(record).1);
            let rank = record["rank"].as_u64();
            assert_eq!(
                rank,
                selected.then_some(8),
                "{method} {projections}: {record}"
            );
        }
    }
}

#[test]
fn default_projections_depend_on_the_method() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    for (method, expected) in [
        ("low-rank", &PROJECTION_NAMES[..]),
        ("shared-basis", &["q", "k", "v"]),
    ] {
        let options = ["--method", method, "--rank", "8"];
        let (_, report) = compile(&scratch, &model, &format!("{method}.htz"), &options);
        let factorised: Vec<&str> = list(&report, "/projections")
            .iter()
            .filter(|projection| projection["factorised"] == 2)
            .map(|projection| projection["projection"].as_str().unwrap())
            .collect();
        assert_eq!(factorised, expected);
    }
}

/// The unused budget is less than one rank step of the projection with the largest step.
#[test]
fn ratios_are_met_from_below() {
    let scratch = Scratch::new();
    let tiny = TinyModel::default();
    let model = scratch.file("model.gguf", tiny.bytes());
    for (method, projections, granule, factor_type) in [
        ("low-rank", "q,k,v,o,gate,up,down", 8.0, "f16"),
        ("low-rank", "q,k,v,o,gate,up,down", 32.0, "q8_0"),
        ("low-rank", "gate,up,down", 8.0, "f32"),
        ("shared-basis", "q,k,v", 8.0, "f16"),
        ("shared-basis", "q,k,v,gate,up", 8.0, "bf16"),
    ] {
        let selected: Vec<&str> = PROJECTION_NAMES
            .into_iter()
            .zip(GGUF_PROJECTIONS)
            .filter(|(name, _)| projections.split(',').any(|projection| projection == *name))
            .map(|(_, projection)| projection)
            .collect();
        let groups: Vec<&[&str]> = match method {
            "low-rank" => selected.chunks(1).collect(),
            _ => selected.chunk_by(|a, b| a[..3] == b[..3]).collect(),
        };
        let units: Vec<(f64, f64)> = groups
            .iter()
            .map(|group| {
                let rows: usize = group
                    .iter()
                    .map(|projection| tiny.shape(projection).0)
                    .sum();
                let cols = tiny.shape(group[0]).1;
                ((rows * cols) as f64, granule * (rows + cols) as f64)
            })
            .collect();
        let dense: f64 = units.iter().map(|(dense, _)| dense).sum();
        let dearest = units.iter().map(|(_, step)| *step).fold(0.0, f64::max);
        for ratio in ["0.5", "0.75", "0.9", "1"] {
            let options = [
                "--method",
                method,
                "--projections",
                projections,
                "--ratio",
                ratio,
            ];
            let options = [&options[..], &["--factor-type", factor_type, "--force"]].concat();
            let (artifact, report) = compile(&scratch, &model, "out.htz", &options);
            let about = format!("{method} {projections} {factor_type} {ratio}");
            let asked: f64 = ratio.parse().unwrap();
            let met = number(&report, "/ratio");
            assert!(met <= asked, "{about}: {met}");
            let share = |(dense, step): &(f64, f64)| (asked * dense).min(dense - step);
            let shares: f64 = units.iter().map(share).sum();
            let least = (asked - dearest / dense).min(shares / dense);
            assert!(met > least, "{about}: only {met}");
            let manifest = Artifact::open(&artifact).manifest;
            let held: u64 = manifest
                .tensors
                .iter()
                .filter(|tensor| {
                    let role = tensor.role.to_string();
                    let of = |projection: &&str| role.contains(&format!(".{projection}."));
                    role.ends_with(".basis") || selected.iter().any(of)
                })
                .map(|tensor| tensor.parameters())
                .sum();
            assert_close(met, held as f64 / (2.0 * dense), 1e-12);
        }
    }
}

#[test]
fn report_agrees_with_the_files() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let output = scratch.path("out.htz");
    let report = scratch.path("report.json");
    let outcome = htc!["compile", &model, "-o", &output, "--report", &report]
        .args(["--rank", "16", "--threads", "2"])
        .run()
        .assert_ok();
    assert!(outcome.stdout.is_empty(), "the report goes to its file");
    scratch.assert_only_files(&["model.gguf", "out.htz", "report.json"]);
    let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    let bytes = |path| fs::metadata(path).unwrap().len() as f64;
    assert_eq!(number(&report, "/bytes/before"), bytes(&model));
    assert_eq!(number(&report, "/bytes/after"), bytes(&output));
    assert_eq!(number(&report, "/threads"), 2.0);
    assert!(number(&report, "/seconds/total") > 0.0);
    let artifact = Artifact::open(&output);
    let tensors = &artifact.manifest.tensors;
    let held: u64 = tensors.iter().map(|tensor| tensor.parameters()).sum();
    assert_eq!(number(&report, "/parameters/after"), held as f64);
    let source = Contents::parse(&fs::read(&model).unwrap()).unwrap();
    let there: u64 = source
        .tensors()
        .iter()
        .map(|t| t.dims.iter().product::<u64>())
        .sum();
    assert_eq!(number(&report, "/parameters/before"), there as f64);
    let plan = serde_json::to_value(&artifact.manifest.plan).unwrap();
    assert_eq!(report["plan"], plan, "the report's plan is the artifact's");
}

#[test]
fn report_on_standard_output_is_pure_json() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    for target in ["json", "-"] {
        let output = scratch.path("out.htz");
        let report = htc![
            "compile", &model, "-o", &output, "--report", target, "--force"
        ]
        .args(["--rank", "8"])
        .run()
        .json();
        assert!(report.is_object());
        scratch.assert_only_files(&["model.gguf", "out.htz"]);
    }
}

#[test]
fn artifact_is_self_contained() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let words = scratch.file("words.txt", words(100));
    let (artifact, _) = compile(&scratch, &model, "out.htz", &["--rank", "16"]);
    fs::remove_file(&model).unwrap();
    let moved = scratch.path("moved.htz");
    fs::rename(&artifact, &moved).unwrap();
    let outcome = htc!["run", &moved, "-p", "the cat", "-n", "8"]
        .run()
        .assert_ok();
    assert!(!outcome.stdout.is_empty());
    eval(&moved, &words, &["--context", "32"]).run().json();
    htc!["tokenize", &moved, "--text", &words, "--json"]
        .run()
        .json();
    htc!["inspect", &moved, "--json"].run().json();
    htc!["verify", &moved].run().assert_ok();
}

#[test]
fn same_request_gives_identical_bytes() {
    let scratch = Scratch::new();
    let tiny = scratch.file("tiny.gguf", TinyModel::default().bytes());
    for model in [tiny, demo_of_layers(2)] {
        for method in METHODS {
            let mut first: Option<Vec<u8>> = None;
            for threads in ["1", "2", "2", "5"] {
                let options = ["--method", method, "--threads", threads, "--force"];
                let options = [&options[..], &["--ratio", "0.8"]].concat();
                let (artifact, _) = compile(&scratch, &model, "out.htz", &options);
                let bytes = fs::read(artifact).unwrap();
                let first = first.get_or_insert_with(|| bytes.clone());
                assert!(
                    *first == bytes,
                    "{}: {method} differs with {threads} threads",
                    model.display()
                );
            }
        }
    }
}

#[test]
fn names_and_folders_do_not_change_the_bytes() {
    let (here, there) = (Scratch::new(), Scratch::new());
    let bytes = TinyModel::default().bytes();
    let (a, b) = (
        here.file("a.gguf", &bytes),
        there.file("other.gguf", &bytes),
    );
    let (a, _) = compile(&here, &a, "a.htz", &["--rank", "8"]);
    let (b, _) = compile(&there, &b, "another name.htz", &["--rank", "8"]);
    assert!(fs::read(a).unwrap() == fs::read(b).unwrap());
}

fn note_about<'a>(report: &'a Value, projection: &str) -> Option<&'a str> {
    let notes = list(report, "/notes")
        .iter()
        .map(|note| note.as_str().unwrap());
    let mut about = notes.filter(|note| {
        let projections = note.split(['(', ':']).next().unwrap_or_default();
        projections.split(',').any(|name| name.trim() == projection)
    });
    about.next()
}

#[test]
fn growing_projections_stay_dense_and_are_reported() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let output = scratch.path("out.htz");
    let report = scratch.path("report.json");
    // At rank 32 in f32, only the factors of the feed-forward layer are smaller than the matrix.
    let outcome = htc!["compile", &model, "-o", &output, "--report", &report]
        .args(["--rank", "32", "--factor-type", "f32"])
        .run()
        .assert_ok();
    let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    let source = TinyModel::default();
    let artifact = Artifact::open(&output);
    for (name, projection) in PROJECTION_NAMES.into_iter().zip(GGUF_PROJECTIONS) {
        let (rows, cols) = source.shape(projection);
        let grows = 32 * (rows + cols) >= rows * cols;
        assert_eq!(grows, name.len() == 1, "the example is as described");
        assert_eq!(
            artifact.has(&format!("blk.1.{projection}.weight")),
            grows,
            "{name}"
        );
        let note = note_about(&report, name).filter(|note| note.contains("dense"));
        assert_eq!(note.is_some(), grows, "{name}: {}", report["notes"]);
        if let Some(note) = note {
            assert!(outcome.stderr.contains(note), "not said: {note}");
        }
    }
}

#[test]
fn factors_that_do_not_fit_blocks_are_reported() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let output = scratch.path("out.htz");
    let outcome = htc!["compile", &model, "-o", &output, "--report", "json"]
        .args([
            "--rank",
            "20",
            "--factor-type",
            "q8_0",
            "--projections",
            "q,down",
        ])
        .run();
    let said = outcome.stderr.clone();
    let report = outcome.json();
    let artifact = Artifact::open(&output);
    let dtype = |role: &str| {
        artifact
            .manifest
            .tensor(role.parse().unwrap())
            .unwrap()
            .dtype
    };
    assert_eq!(dtype("blk.0.attn_q.a"), DType::Q8_0);
    for role in ["blk.0.attn_q.b", "blk.0.ffn_down.a", "blk.0.ffn_down.b"] {
        assert_eq!(dtype(role), DType::F16, "{role}");
    }
    for projection in ["q", "down"] {
        let note = note_about(&report, projection)
            .unwrap_or_else(|| panic!("nothing is said of {projection}"));
        assert!(note.contains("f16") && note.contains("20"), "{note}");
        assert!(said.contains(note), "not said: {note}");
    }
}

#[test]
fn unselected_tensors_are_copied_unchanged() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::Q8_0] {
        let scratch = Scratch::new();
        let tiny = TinyModel {
            ffn: 160,
            dtype,
            output: true,
            ..TinyModel::default()
        };
        let model = scratch.file("model.gguf", tiny.bytes());
        let options = ["--method", "shared-basis", "--rank", "8"];
        let (artifact, report) = compile(&scratch, &model, "out.htz", &options);
        assert!(list(&report, "/projections")[0]["factorised"] == 2);
        let artifact = Artifact::open(&artifact);
        let bytes = fs::read(&model).unwrap();
        let source = Contents::parse(&bytes).unwrap();
        let mut passed = 0;
        for entry in &artifact.manifest.tensors {
            let Some(tensor) = source.tensor(&entry.name) else {
                continue;
            };
            assert_eq!(entry.dtype, tensor.dtype().unwrap(), "{}", entry.name);
            let stored = artifact.tensor_bytes(&entry.role.to_string());
            assert!(
                stored == &bytes[tensor.range.clone()],
                "{}: {}",
                dtype,
                entry.name
            );
            passed += 1;
        }
        assert_eq!(passed, 3 + 2 * (2 + 4));
    }
}

#[test]
fn quantised_sources_are_compiled() {
    let Some(folder) = shared("models/reference-7m") else {
        return;
    };
    let scratch = Scratch::new();
    for kind in ["q8_0", "q4_0", "q4_k_m", "q5_k_m", "q6_k"] {
        let model = folder.join(format!("reference-7m-{kind}.gguf"));
        let options = [
            "--rank",
            "full",
            "--factor-type",
            "f32",
            "--projections",
            "q,down",
        ];
        let (artifact, _) = compile(&scratch, &model, &format!("{kind}.htz"), &options);
        let options = ["--chunks", "1", "--reference", model.to_str().unwrap()];
        let result = eval(&artifact, &demo("alice.txt"), &options).run().json();
        // Products with the source's type round activations to 8 bits.
        assert_close(number(&result, "/perplexity_ratio"), 1.0, 5e-3);
        assert!(number(&result, "/kl") < 2e-3, "{kind}: {result}");
    }
}

#[test]
fn gguf_version_2_is_read() {
    let scratch = Scratch::new();
    let mut bytes = TinyModel::default().bytes();
    let third = scratch.file("v3.gguf", &bytes);
    htc_tests::raw::put_u32(&mut bytes, 4, 2);
    let second = scratch.file("v2.gguf", &bytes);
    let tensors = |path| {
        let (artifact, _) = compile(&scratch, path, "out.htz", &["--rank", "8", "--force"]);
        let manifest = Artifact::open(&artifact).manifest;
        serde_json::to_value(&manifest.tensors).unwrap()
    };
    assert_eq!(tensors(&second), tensors(&third));
}

#[test]
fn force_replaces_an_artifact() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let old = scratch.file("out.htz", "old");
    let output = htc!["compile", &model, "-o", &old, "--rank", "8", "--force"];
    output.run().assert_ok();
    htc!["verify", &old].run().assert_ok();
    scratch.assert_only_files(&["model.gguf", "out.htz"]);
}

#[test]
fn zero_matrices_compile() {
    let tiny = TinyModel::default();
    let mut tensors = tiny.tensors();
    for name in ["blk.0.attn_q.weight", "blk.1.ffn_down.weight"] {
        let tensor = tensors
            .iter_mut()
            .find(|tensor| tensor.name == name)
            .unwrap();
        tensor.values.fill(0.0);
    }
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", tiny.bytes_with_tensors(&tensors));
    let words = scratch.file("words.txt", words(60));
    for method in METHODS {
        for factor_type in FACTOR_TYPES {
            let options = [
                "--method",
                method,
                "--factor-type",
                factor_type,
                "--rank",
                "8",
            ];
            let options = [&options[..], &["--force"]].concat();
            let (artifact, report) = compile(&scratch, &model, "out.htz", &options);
            let record = &list(&report, "/plan/projections")[0];
            assert_eq!(number(record, "/error"), 0.0, "{record}");
            eval(&artifact, &words, &["--context", "16"]).run().json();
        }
    }
}

#[test]
fn file_names_of_any_bytes() {
    use std::os::unix::ffi::OsStrExt;
    let scratch = Scratch::new();
    let name = |bytes: &[u8]| scratch.folder().join(std::ffi::OsStr::from_bytes(bytes));
    let (model, output) = (name(b"\xff.gguf"), name(b"\xfe.htz"));
    fs::write(&model, TinyModel::default().bytes()).unwrap();
    let run = htc![
        "compile", &model, "-o", &output, "--rank", "8", "--report", "-"
    ];
    run.run().json();
    htc!["verify", &output].run().assert_ok();
    fs::remove_file(model).unwrap();
    fs::remove_file(output).unwrap();
    scratch.assert_only_files(&[]);
}

#[test]
fn memory_stays_at_the_largest_layer() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::deep().bytes());
    let size = fs::metadata(&model).unwrap().len();
    let layer = size / 40;
    assert!(size > 130_000_000, "{size}");
    for method in METHODS {
        let output = scratch.path(&format!("{method}.htz"));
        htc!["compile", &model, "-o", &output, "--method", method]
            .args(["--ratio", "0.5", "--factor-type", "f32", "--threads", "2"])
            .allocations(12 * layer + (64 << 20)) // The KV caches of two models.
            .run()
            .assert_ok();
    }
}
