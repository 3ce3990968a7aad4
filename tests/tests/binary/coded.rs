use std::fs;
use std::path::{Path, PathBuf};

use htc_formats::bands::CodeKind;
use htc_formats::model::MatrixId;
use htc_formats::source::ModelFile;
use htc_loader::backend::Reference;
use htc_loader::kv::KvType;
use htc_loader::{Backend, Cpu, Model, Session};
use htc_tests::artifact::Artifact;
use htc_tests::logits::largest_difference;
use htc_tests::material::{ARCHITECTURES, architecture, words};
use htc_tests::{Htc, Scratch, TinyModel, htc};

use super::number;

fn compile_to_size(scratch: &Scratch, model: &Path, name: &str, size: impl ToString) -> Htc {
    let text = scratch.path("words.txt");
    if !text.exists() {
        scratch.file("words.txt", words(20_000));
    }
    htc!["compile", model, "-o", scratch.path(name), "--force"]
        .args(["--method", "quantise", "--target-size", &size.to_string()])
        .args(["--context", "32", "--calibration-tokens", "2048"])
        .args(["--calibration".into(), text])
        .args(["--cache".into(), scratch.path("cache")])
        .args(["--report", "json", "--effort", "fast"])
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

fn divergence(scratch: &Scratch, artifact: &Path, reference: &Path) -> f64 {
    let measured = htc![
        "eval",
        artifact,
        "--json",
        "--context",
        "32",
        "--chunks",
        "8"
    ]
    .args(["--text".into(), scratch.path("words.txt")])
    .args(["--reference".as_ref(), reference])
    .run()
    .json();
    number(&measured, "/kl")
}

fn cpu_difference(path: &Path) -> f64 {
    let file = ModelFile::open(path).unwrap();
    let found = logits(&file, Cpu::with_threads(2).unwrap());
    largest_difference(&found, &logits(&file, Reference))
}

fn logits<B: Backend>(file: &ModelFile, mut backend: B) -> Vec<f32> {
    let tokens = [1, 5, 9, 3, 7, 11, 2, 8];
    let model = Model::load(file.clone(), &mut backend).unwrap();
    let session = Session::with_kv_type(model, backend, tokens.len(), KvType::F32);
    session.unwrap().step(&tokens).unwrap().to_vec()
}

#[test]
fn untied_head_is_stored_in_codes() {
    let scratch = Scratch::new();
    let tiny = TinyModel {
        output: true,
        ffn: 192,
        ..TinyModel::default()
    };
    let model = scratch.file("model.gguf", tiny.bytes());
    let mut before = f64::INFINITY;
    for bytes in [80_000, 100_000] {
        let report = compile_to_size(&scratch, &model, "head.htz", bytes)
            .run()
            .json();
        let path = scratch.path("head.htz");
        let found = size(&path);
        assert!(found <= bytes && found > bytes - 4096, "{found}");
        assert_eq!(number(&report, "/bytes/after"), found as f64);
        htc!["verify", &path].run().assert_ok();
        let probed = htc!["verify", &path, "--probe"].run().assert_ok();
        assert!(probed.text().contains("layer 1 of 2"), "{}", probed.text());
        let artifact = Artifact::open(&path);
        for matrix in [MatrixId::Embedding, MatrixId::Head] {
            let tensor = artifact.manifest.tensor(matrix.weight()).unwrap();
            assert!(tensor.codes.is_some(), "{matrix}: {}", tensor.dtype);
        }
        let mut codes = artifact
            .manifest
            .tensors
            .iter()
            .filter_map(|t| t.codes.as_ref());
        assert!(codes.any(|codes| codes.contains_kind(CodeKind::Trellis)));
        let difference = cpu_difference(&path);
        assert!(difference < 0.15, "{difference:.2e}");
        let kl = divergence(&scratch, &path, &model);
        println!("{bytes} bytes: KL {kl:.5}, {difference:.4} from the reference");
        assert!(
            kl > 0.0 && kl < 0.6 * before,
            "{bytes}: {kl}, before {before}"
        );
        before = kl;
    }
    assert!(before < 0.02, "{before}");
}

fn architectures() -> Vec<PathBuf> {
    let files = ARCHITECTURES.map(|name| architecture(name).join("model.gguf"));
    files.into()
}

/// Column groups of these small models are half padding; at 11/12 of the f16 size most matrices are
/// in codes.
#[test]
fn every_architecture_runs_in_codes() {
    let scratch = Scratch::new();
    for model in architectures() {
        let name = model.display();
        let path = scratch.path("coded.htz");
        let large = compile_to_size(&scratch, &model, "coded.htz", "100%");
        large.run().assert_ok();
        let (whole, exact) = (size(&path), divergence(&scratch, &path, &model));
        assert!(exact < 1e-6, "{name}: {exact}");
        let bytes = whole * 11 / 12;
        compile_to_size(&scratch, &model, "coded.htz", bytes)
            .run()
            .assert_ok();
        let found = size(&path);
        assert!(found <= bytes, "{name}: {found} of {bytes}");
        for options in [&[][..], &["--probe"]] {
            htc!["verify", &path].args(options).run().assert_ok();
        }
        let tensors = Artifact::open(&path).manifest.tensors;
        let coded = tensors.iter().filter(|t| t.codes.is_some()).count();
        assert!(coded > 6, "{name}: {coded} matrices");
        let difference = cpu_difference(&path);
        assert!(difference < 0.25, "{name}: {difference:.2e}");
        let kl = divergence(&scratch, &path, &model);
        println!("{name}: {coded} in codes, KL {kl:.4}, {difference:.4} from the reference");
        assert!(kl > 1e-4 && kl < 4.0, "{name}: {kl}");
        let run = ["-p", "the cat", "-n", "8", "--temp", "0"];
        let written = htc!["run", &path].args(run).run().assert_ok();
        assert!(!written.text().is_empty(), "{name}");
    }
}

#[test]
fn smallest_size_in_the_error_is_feasible() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    for codes in ["all", "levels", "gguf"] {
        let asked =
            |bytes| compile_to_size(&scratch, &model, "least.htz", bytes).args(["--codes", codes]);
        let refused_with = |bytes: u64, before: &str| -> u64 {
            let refused = asked(bytes).run();
            refused.assert_refused(2, &[before]);
            let behind = refused.stderr.split(before).nth(1).unwrap();
            behind.split_whitespace().next().unwrap().parse().unwrap()
        };
        let by_shapes = refused_with(10_000, "no artifact of this model has less than ");
        let named = refused_with(by_shapes, "the smallest possible is ");
        assert!(named > by_shapes, "{codes}: {named}, {by_shapes}");
        asked(named).run().assert_ok();
        let made = size(&scratch.path("least.htz"));
        assert!(
            made <= named && made + 2048 > named,
            "{codes}: {made} of {named}"
        );
    }
}
