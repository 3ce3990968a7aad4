//! Every architecture, before and after compilation: logits compared to transformers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "all of this crate is test code"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use htc_loader::Model;
use htc_loader::kv::KvType;
use htc_tests::artifact::Artifact;
use htc_tests::logits::{largest_difference, with_kv_type};
use htc_tests::material::{ARCHITECTURES, architecture, shared, words};
use htc_tests::npy::Array;
use htc_tests::{Scratch, htc};

struct Fixture {
    name: String,
    folder: PathBuf,
    tokens: Vec<u32>,
    positions: Vec<usize>,
    expected: Vec<f32>,
}

impl Fixture {
    fn read(name: &str, folder: PathBuf, positions: &[usize]) -> Fixture {
        let logits = Array::read(&folder.join("logits.npy"));
        assert_eq!(logits.shape[0], positions.len());
        Fixture {
            name: name.to_owned(),
            tokens: Array::read(&folder.join("tokens.npy")).tokens(),
            positions: positions.to_vec(),
            expected: logits.f32(),
            folder,
        }
    }

    fn difference(&self, model: &Path, kv_type: KvType, threads: usize) -> f64 {
        let model = Arc::new(Model::open(model).unwrap());
        with_kv_type(&model, &self.tokens, &self.positions, threads, kv_type)
            .iter()
            .map(|found| largest_difference(found, &self.expected))
            .fold(0.0, f64::max)
    }
}

/// The tokens exceed the sliding windows of 16 and the original context of 32 positions.
fn small() -> Vec<Fixture> {
    let fixture = |name| Fixture::read(name, architecture(name), &[0, 1, 15, 31, 47]);
    ARCHITECTURES.into_iter().map(fixture).collect()
}

fn large() -> Vec<Fixture> {
    let fixture = |name| {
        let folder = shared(&format!("reference/arch/{name}"))?;
        Some(Fixture::read(name, folder, &[0, 1, 31, 100, 159]))
    };
    ARCHITECTURES.into_iter().filter_map(fixture).collect()
}

/// Tolerance for each KV type, in standard deviations of the logits.
const KV: [(KvType, f64); 2] = [(KvType::F32, 1e-3), (KvType::F16, 5e-3)];

fn gives_the_logits_of_transformers(model: impl Fn(&Fixture) -> PathBuf) {
    for fixture in small().into_iter().chain(large()) {
        for ((kv_type, bound), threads) in KV.into_iter().zip([1, 2]) {
            let model = model(&fixture);
            let difference = fixture.difference(&model, kv_type, threads);
            let model = model.display();
            assert!(difference < bound, "{model}, {kv_type:?}: {difference:.2e}");
        }
    }
}

#[test]
fn gguf_gives_the_logits_of_transformers() {
    gives_the_logits_of_transformers(|fixture| fixture.folder.join("model.gguf"));
}

#[test]
fn folder_gives_the_logits_of_transformers() {
    gives_the_logits_of_transformers(|fixture| fixture.folder.clone());
}

#[test]
fn folder_and_gguf_generate_the_same_text() {
    for fixture in small() {
        let written = |model: &Path| {
            let options = ["-p", "the white rabbit", "-n", "12", "--temp", "0"];
            htc!["run", model].args(options).run().assert_ok().stdout
        };
        let gguf = written(&fixture.folder.join("model.gguf"));
        assert_eq!(written(&fixture.folder), gguf, "{}", fixture.name);
        assert!(gguf.len() > 8, "{}", fixture.name);
    }
}

fn compiled(scratch: &Scratch, fixture: &Fixture, source: &str, options: &[&str]) -> PathBuf {
    let options = [&["--factor-type", "f32"], options].concat();
    let output = scratch.path(&format!("{}{}.htz", fixture.name, options.join("")));
    compile(fixture, source, &output, &options);
    output
}

fn compile(fixture: &Fixture, source: &str, output: &Path, options: &[&str]) {
    let source = fixture.folder.join(source);
    htc!["compile", source, "-o", output, "--force"]
        .args(options)
        .run()
        .assert_ok();
    htc!["verify", output].run().assert_ok();
}

const ALL_PROJECTIONS: [(&str, &str); 2] = [
    ("low-rank", "q,k,v,o,gate,up,down"),
    ("shared-basis", "q,k,v,gate,up"),
];

#[test]
fn full_rank_loses_nothing() {
    let scratch = Scratch::new();
    for fixture in small().into_iter().chain(large()) {
        // `half_rank_artifact_runs` has each method with the other source.
        for ((method, projections), source) in ALL_PROJECTIONS.into_iter().zip(["model.gguf", "."])
        {
            let options = [
                "--method",
                method,
                "--projections",
                projections,
                "--rank",
                "full",
            ];
            let artifact = compiled(&scratch, &fixture, source, &options);
            let difference = fixture.difference(&artifact, KvType::F32, 2);
            let name = &fixture.name;
            assert!(difference < 1e-3, "{name}, {method}: {difference:.2e}");
        }
    }
}

#[test]
fn half_rank_artifact_runs() {
    let scratch = Scratch::new();
    let small = small().into_iter().map(|fixture| (fixture, "4"));
    let large = large().into_iter().map(|fixture| (fixture, "16"));
    for (fixture, rank) in small.chain(large) {
        let sources = ["config.json", "model.gguf"];
        for ((method, projections), source) in ALL_PROJECTIONS.into_iter().zip(sources) {
            let options = [
                "--method",
                method,
                "--projections",
                projections,
                "--rank",
                rank,
            ];
            let artifact = compiled(&scratch, &fixture, source, &options);
            let name = &fixture.name;
            let difference = fixture.difference(&artifact, KvType::F32, 2);
            assert!(difference > 1e-2, "{name}, {method}: {difference:.2e}");
            let run = ["-p", "the cat", "-n", "8", "--temp", "0"];
            htc!["run", &artifact].args(run).run().assert_ok();
        }
    }
}

const REORDERED: &str = r#"{"format": "htc-plan", "version": 2, "method": "quantise", "factor_type": "f32",
    "request": {"order": "ORDER"}, "units": [{"layer": 0, "projections": ["q"], "form": "dense"}]}"#;

#[test]
fn channel_permutation_preserves_logits() {
    let scratch = Scratch::new();
    let typed = |path: PathBuf| path.to_str().unwrap().to_owned();
    let plan = |order: &str| {
        let plan = REORDERED.replace("ORDER", order);
        typed(scratch.file(&format!("{order}.json"), plan))
    };
    let plans = ["on", "off"].map(plan);
    let text = typed(scratch.file("text.txt", words(3000)));
    let cache = typed(scratch.path("cache"));
    let (text, cache) = (&text[..], &cache[..]);
    let calibrated = ["--calibration", text, "--context", "32", "--cache", cache];
    for fixture in small() {
        let name = &fixture.name;
        for source in ["model.gguf", "."] {
            let model = Arc::new(Model::open(fixture.folder.join(source)).unwrap());
            let logits = |model: &Arc<Model>| {
                with_kv_type(model, &fixture.tokens, &fixture.positions, 2, KvType::F32)
            };
            let expected = logits(&model);
            let made = |name: &str, options: &[&str]| {
                let output = scratch.path(&format!("{name}.htz"));
                compile(&fixture, source, &output, &[options, &calibrated].concat());
                output
            };
            let on = made("on", &["--plan", &plans[0]]);
            let off = made("off", &["--plan", &plans[1]]);
            let full = [
                "--method",
                "low-rank",
                "--rank",
                "full",
                "--factor-type",
                "f32",
            ];
            let full = made("full", &[&full[..], &["--order", "on"]].concat());
            for (artifact, bound) in [(&on, 1e-5), (&full, 1e-3)] {
                let found = logits(&Arc::new(Model::open(artifact).unwrap()));
                for (found, expected) in found.iter().zip(&expected) {
                    let difference = largest_difference(found, expected);
                    assert!(difference < bound, "{name} {source}: {difference:.2e}");
                }
            }
            let [on, off] = [on, off].map(|path| Artifact::open(&path));
            assert!(on.manifest.provenance.order.is_some());
            assert!(off.manifest.provenance.order.is_none());
            let moved = on.manifest.tensors.iter().zip(&off.manifest.tensors);
            let moved = moved.filter(|(a, b)| a.sha256 != b.sha256).count();
            // In two layers: embedding or head, V, O, gate, up, down, Q and K; norms may be
            // constant.
            assert!(moved > 14, "{name} {source}: {moved}");
        }
    }
}

#[test]
fn embedded_source_gives_identical_logits() {
    let scratch = Scratch::new();
    for fixture in small() {
        for source in ["model.gguf", "."] {
            let bits = |model: Model| {
                let positions: Vec<usize> = (0..fixture.tokens.len()).collect();
                let model = Arc::new(model);
                let found = with_kv_type(&model, &fixture.tokens, &positions, 2, KvType::F16);
                found.map(|logits| logits.into_iter().map(f32::to_bits).collect::<Vec<_>>())
            };
            let path = scratch.path(&format!("{}.htz", source.len()));
            let options = ["--with-source", "--method", "low-rank", "--rank", "4"];
            compile(&fixture, source, &path, &options);
            let sealed = Model::open(&path).unwrap().source().unwrap().unwrap();
            let expected = bits(Model::open(fixture.folder.join(source)).unwrap());
            assert_eq!(bits(sealed), expected, "{} {source}", fixture.name);
        }
    }
}
