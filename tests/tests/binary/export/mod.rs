//! `htc export`: artifacts as files of other programs, read back and compared.

mod adapter;
mod containers;
mod metadata;
mod refused;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use htc_formats::gguf::Gguf;
use htc_formats::source::ModelFile;
use htc_loader::Model;
use htc_tests::logits::{at_positions, largest_difference};
use htc_tests::material::{ARCHITECTURES, architecture as fixture, words};
use htc_tests::npy::Array;
use htc_tests::scratch::names_in;
use htc_tests::{Scratch, TinyModel, htc};
use serde_json::Value;

use super::{compile, eval, list, number, text};

const UNCHANGED_PLAN: &str = r#"{
  "format": "htc-plan", "version": 2, "method": "low-rank", "factor_type": "f32",
  "units": [{"layer": 0, "projections": ["v"], "form": "dense"}]
}"#;

fn compile_unchanged(scratch: &Scratch, model: &Path, name: &str) -> PathBuf {
    let plan = scratch.file("as-it-is.json", UNCHANGED_PLAN);
    let options = ["--plan", plan.to_str().unwrap(), "--force"];
    compile(scratch, model, name, &options).0
}

#[track_caller]
fn export(artifact: &Path, options: &[&str]) -> Value {
    let run = htc!["export", artifact, "--json"].args(options);
    run.run().json()
}

#[track_caller]
fn to_gguf(scratch: &Scratch, artifact: &Path, name: &str, options: &[&str]) -> (PathBuf, Value) {
    let path = scratch.path(name);
    let all = [&["-o", path.to_str().unwrap()], options].concat();
    let report = export(artifact, &all);
    (path, report)
}

#[track_caller]
fn to_folder(scratch: &Scratch, artifact: &Path, name: &str, options: &[&str]) -> PathBuf {
    let path = scratch.path(name);
    let all = [&["--to-safetensors", path.to_str().unwrap()], options].concat();
    export(artifact, &all);
    path
}

fn logits(model: &Path, tokens: &[u32], positions: &[usize]) -> [Vec<f32>; 2] {
    at_positions(&Arc::new(Model::open(model).unwrap()), tokens, positions, 2)
}

fn difference(model: &Path, other: &Path, tokens: &[u32]) -> f64 {
    let positions: Vec<usize> = (0..tokens.len()).step_by(5).collect();
    let (found, expected) = (
        logits(model, tokens, &positions),
        logits(other, tokens, &positions),
    );
    let pairs = found.iter().zip(&expected);
    pairs
        .map(|(found, expected)| largest_difference(found, expected))
        .fold(0.0, f64::max)
}

#[test]
fn exports_preserve_logits_for_every_architecture_and_form() {
    let scratch = Scratch::new();
    let plan = scratch.file("as-it-is.json", UNCHANGED_PLAN);
    for name in ARCHITECTURES {
        let folder = fixture(name);
        let tokens = Array::read(&folder.join("tokens.npy")).tokens();
        for source in ["model.gguf", "."] {
            for (form, options) in [
                ("dense", &["--plan", plan.to_str().unwrap()][..]),
                (
                    "low-rank",
                    &[
                        "--method",
                        "low-rank",
                        "--rank",
                        "4",
                        "--projections",
                        "q,k,v,o,gate,up,down",
                    ],
                ),
                (
                    "shared-basis",
                    &[
                        "--method",
                        "shared-basis",
                        "--rank",
                        "4",
                        "--projections",
                        "q,k,v,gate,up",
                    ],
                ),
            ] {
                let options = [options, &["--factor-type", "f32", "--force"]].concat();
                let options = match form {
                    "dense" => options[..2].iter().chain(&["--force"]).copied().collect(),
                    _ => options,
                };
                let model = folder.join(source);
                let (artifact, _) = compile(&scratch, &model, "model.htz", &options);
                let as_f32 = ["--type", "f32", "--force"];
                let (gguf, _) = to_gguf(&scratch, &artifact, "out.gguf", &as_f32);
                let out = to_folder(&scratch, &artifact, "out", &as_f32);
                for exported in [&gguf, &out] {
                    let difference = difference(exported, &artifact, &tokens);
                    let label = format!("{name} {source} {form} {}", exported.display());
                    assert!(difference < 1e-4, "{label}: {difference:.2e}");
                }
            }
        }
    }
}

#[test]
fn export_equals_the_reference_converter() {
    let scratch = Scratch::new();
    for name in ARCHITECTURES {
        let folder = fixture(name);
        let artifact = compile_unchanged(&scratch, &folder, "folder.htz");
        let (path, _) = to_gguf(&scratch, &artifact, "out.gguf", &["--force"]);
        let (found, expected) = (
            Gguf::open(&path).unwrap(),
            Gguf::open(folder.join("model.gguf")).unwrap(),
        );
        for tensor in expected.tensors() {
            let other = found.tensor(&tensor.name);
            let other = other.unwrap_or_else(|| panic!("{name}: no {}", tensor.name));
            assert_eq!(
                (other.ggml_type, &other.dims),
                (tensor.ggml_type, &tensor.dims),
                "{name}: {}",
                tensor.name
            );
            let same = found.bytes(other) == expected.bytes(tensor);
            assert!(same, "{name}: {} has other bytes", tensor.name);
        }
        assert_eq!(found.tensors().len(), expected.tensors().len(), "{name}");
        for (key, value) in expected.metadata() {
            let said = key == "general.name" || found.get(key) == Some(value);
            assert!(said, "{name}: {key} is {:?}", found.get(key));
        }

        let artifact = compile_unchanged(&scratch, &folder.join("model.gguf"), "gguf.htz");
        let out = to_folder(&scratch, &artifact, "out", &["--force"]);
        let (found, expected) = (
            ModelFile::open(&out).unwrap(),
            ModelFile::open(&folder).unwrap(),
        );
        for tensor in &expected.tensors {
            let other = found.tensor(tensor.role).unwrap();
            let same = numbers(&found, other) == numbers(&expected, tensor);
            assert!(same, "{name}: {} has other numbers", tensor.role);
        }
        assert_eq!(found.tensors.len(), expected.tensors.len(), "{name}");
        assert_eq!(found.hyper, expected.hyper, "{name}");
    }
}

fn numbers(file: &ModelFile, tensor: &htc_formats::source::ModelTensor) -> Vec<f32> {
    let mut values = vec![0.0; tensor.rows * tensor.cols];
    htc_formats::block::decode(tensor.dtype, file.bytes(tensor), &mut values).unwrap();
    values
}

#[test]
fn gguf_types_are_copied_unchanged() {
    let scratch = Scratch::new();
    for (dtype, output) in [
        (htc_formats::DType::Q8_0, false),
        (htc_formats::DType::Q4_0, true),
        (htc_formats::DType::BF16, true),
    ] {
        let tiny = TinyModel {
            dtype,
            output,
            ffn: 192,
            ..TinyModel::default()
        };
        let source = scratch.file("model.gguf", tiny.bytes());
        let artifact = compile_unchanged(&scratch, &source, "model.htz");
        let (path, report) = to_gguf(&scratch, &artifact, "out.gguf", &["--force"]);
        let (found, expected) = (Gguf::open(&path).unwrap(), Gguf::open(&source).unwrap());
        assert_eq!(found.tensors().len(), expected.tensors().len());
        for tensor in expected.tensors() {
            let other = found.tensor(&tensor.name).unwrap();
            assert_eq!(other.ggml_type, tensor.ggml_type, "{}", tensor.name);
            assert!(
                found.bytes(other) == expected.bytes(tensor),
                "{}",
                tensor.name
            );
        }
        assert_eq!(found.tensor("output.weight").is_some(), output);
        let vocabulary = |gguf: &Gguf| htc_formats::vocab::Vocabulary::from_gguf(gguf).unwrap();
        assert!(vocabulary(&found) == vocabulary(&expected));
        let sums = list(&report, "/matrices");
        assert_eq!(sums.len(), 1, "{report}");
        assert_eq!(text(&sums[0], "/how"), "stored");
        assert_eq!(text(&sums[0], "/dtype"), dtype.name());
        let words = scratch.file("words.txt", words(3000));
        let options = ["--context", "64", "--reference", artifact.to_str().unwrap()];
        let measured = eval(&path, &words, &options).run().json();
        assert_eq!(number(&measured, "/kl"), 0.0, "{measured}");
    }
}

#[test]
fn same_artifact_gives_identical_bytes() {
    let (source, scratch) = (Scratch::new(), Scratch::new());
    let model = source.file("model.gguf", TinyModel::default().bytes());
    let (artifact, _) = compile(&source, &model, "model.htz", &["--rank", "8"]);
    let mut outputs = Vec::new();
    for threads in ["1", "2", "5"] {
        let options = ["--type", "q4_0", "--threads", threads];
        let (path, _) = to_gguf(&scratch, &artifact, &format!("{threads}.gguf"), &options);
        outputs.push(fs::read(path).unwrap());
    }
    assert!(outputs.windows(2).all(|pair| pair[0] == pair[1]));
    scratch.assert_only_files(&["1.gguf", "2.gguf", "5.gguf"]);
}

#[test]
fn fallback_types_are_reported() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let options = ["--rank", "8", "--projections", "q,k,v,o,gate,up,down"];
    let (artifact, _) = compile(&scratch, &model, "model.htz", &options);
    let (path, report) = to_gguf(&scratch, &artifact, "out.gguf", &["--type", "q4_k"]);
    let gguf = Gguf::open(&path).unwrap();
    let dtype = |name: &str| gguf.tensor(name).unwrap().ggml_type.name();
    assert_eq!(dtype("blk.0.attn_q.weight"), "Q5_0");
    assert_eq!(dtype("blk.1.ffn_down.weight"), "F16");
    let notes = list(&report, "/notes");
    let notes: Vec<&str> = notes.iter().map(|note| note.as_str().unwrap()).collect();
    let about = |dtype: &str, count: &str| {
        let mut notes = notes.iter();
        notes.any(|n| n.starts_with(count) && n.contains("q4_k") && n.ends_with(dtype))
    };
    assert!(about("q5_0", "12 ") && about("f16", "2 "), "{notes:?}");
    let said = htc![
        "export", &artifact, "-o", &path, "--type", "q4_k", "--force"
    ]
    .run();
    let said = said.assert_ok().stderr;
    assert!(
        said.contains("12 matrices with rows") && said.contains("q5_0"),
        "{said}"
    );
    assert!(
        said.contains("decoded") && said.contains("as stored"),
        "{said}"
    );
}

#[test]
fn memory_stays_at_the_largest_tensor() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::deep().bytes());
    assert!(fs::metadata(&model).unwrap().len() > 130_000_000);
    let copied = compile_unchanged(&scratch, &model, "copied.htz");
    let (multiplied, _) = compile(&scratch, &model, "factors.htz", &["--rank", "16"]);
    for (artifact, option, name, form) in [
        (&copied, "-o", "copied.gguf", "f32"),
        (&multiplied, "-o", "multiplied.gguf", "f32"),
        (&multiplied, "-o", "coded.gguf", "q8_0"),
        (&copied, "--to-safetensors", "copied", "f32"),
        (&multiplied, "--to-safetensors", "multiplied", "f32"),
    ] {
        let output = scratch.path(name);
        htc!["export", artifact, option, &output, "--type", form]
            .args(["--threads", "2"])
            .allocations(40 << 20)
            .run()
            .assert_ok();
        assert!(form != "f32" || size_of(&output) > 130_000_000, "{name}");
    }
}

fn size_of(path: &Path) -> u64 {
    let bytes = |path: &Path| fs::metadata(path).unwrap().len();
    if path.is_dir() {
        names_in(path)
            .iter()
            .map(|name| bytes(&path.join(name)))
            .sum()
    } else {
        bytes(path)
    }
}
