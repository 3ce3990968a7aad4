//! Execution through the loader: logits compared to float64, and every stored form at every rank.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "all of this crate is test code"
)]

use std::path::Path;
use std::sync::Arc;

use htc_formats::source::ModelFile;
use htc_loader::backend::Reference;
use htc_loader::generate::{GenerateLimits, Generator};
use htc_loader::kv::KvType;
use htc_loader::linear::RankFraction;
use htc_loader::sampling::Sampler;
use htc_loader::tokenizer::AddSpecialTokens;
use htc_loader::{Backend, Cpu, Model, Pool, Session};
use htc_tests::logits::{at_positions as logits, largest_difference};
use htc_tests::material::demo;
use htc_tests::{Scratch, TinyModel, htc};

fn compiled(scratch: &Scratch, model: &Path, name: &str, options: &[&str]) -> Arc<Model> {
    let output = scratch.path(name);
    let run = htc!["compile", model, "-o", &output, "--factor-type", "f32"].args(options);
    run.run().assert_ok();
    Arc::new(Model::open(&output).unwrap())
}

const TOKENS: [u32; 12] = [1, 261, 297, 70, 280, 280, 5, 298, 264, 275, 3, 290];

#[test]
fn artifacts_of_both_versions_have_the_same_logits() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/golden");
    for (old, new) in [
        ("v1_7", "v2_0_refinements"),
        ("v1_8", "v2_0_classes"),
        ("v1_9", "v2_0_tables"),
        ("v1_10", "v2_0_padding"),
        ("v1_11", "v2_0_rotation"),
    ] {
        let [old, new] = [old, new].map(|name| {
            let model = Model::open(folder.join(format!("{name}.htz"))).unwrap();
            logits(&Arc::new(model), &[1, 5, 3, 11], &[1, 3], 1)
        });
        let bits = |of: &[f32]| of.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
        for (old, new) in old.iter().zip(&new) {
            assert!(old.iter().all(|logit| logit.is_finite()));
            assert_eq!(bits(old), bits(new));
        }
    }
}

#[test]
fn logits_equal_float64() {
    let scratch = Scratch::new();
    let tiny = TinyModel::default;
    for tiny in [
        tiny(),
        TinyModel {
            output: true,
            ..tiny()
        },
        TinyModel {
            kv_heads: 1,
            ..tiny()
        },
        TinyModel {
            kv_heads: 4,
            layers: 3,
            ..tiny()
        },
        TinyModel {
            head_size: 24,
            ..tiny()
        },
        TinyModel {
            heads: 6,
            kv_heads: 3,
            head_size: 6,
            ffn: 33,
            ..tiny()
        },
    ] {
        let path = scratch.file("model.gguf", tiny.bytes());
        let model = Arc::new(Model::open(&path).unwrap());
        let tokens: Vec<u32> = (0..3).flat_map(|_| TOKENS).collect();
        let expected: Vec<f32> = htc_tests::reference::logits(&tiny, &tokens)
            .into_iter()
            .flatten()
            .map(|logit| logit as f32)
            .collect();
        let positions: Vec<usize> = (0..tokens.len()).collect();
        for found in logits(&model, &tokens, &positions, 2) {
            let difference = largest_difference(&found, &expected);
            assert!(difference < 1e-4, "{tiny:?}: {difference:.2e}");
        }
    }
}

#[test]
fn full_rank_gives_the_logits_of_the_source() {
    let scratch = Scratch::new();
    let tiny = TinyModel {
        output: true,
        head_size: 24,
        ..TinyModel::default()
    };
    let path = scratch.file("model.gguf", tiny.bytes());
    let positions: Vec<usize> = (0..TOKENS.len()).collect();
    let [expected, _] = logits(
        &Arc::new(Model::open(&path).unwrap()),
        &TOKENS,
        &positions,
        2,
    );
    for options in [
        &["--method", "low-rank", "--rank", "full"][..],
        &[
            "--method",
            "shared-basis",
            "--rank",
            "full",
            "--projections",
            "q,k,v,gate,up",
        ],
    ] {
        let model = compiled(&scratch, &path, &format!("{}.htz", options[1]), options);
        for found in logits(&model, &TOKENS, &positions, 2) {
            let difference = largest_difference(&found, &expected);
            assert!(difference < 1e-4, "{options:?}: {difference:.2e}");
        }
    }
}

#[test]
fn rank_fraction_equals_artifact_of_that_rank() {
    let scratch = Scratch::new();
    let path = scratch.file("model.gguf", TinyModel::default().bytes());
    for method in ["low-rank", "shared-basis"] {
        let model = |rank: &str| {
            let options = ["--method", method, "--rank", rank];
            compiled(&scratch, &path, &format!("{method}-{rank}.htz"), &options)
        };
        let (large, small) = (model("16"), model("8"));
        let last = |model: &Arc<Model>, fraction: f32| {
            let (model, cpu) = (Arc::clone(model), Cpu::with_threads(2).unwrap());
            let mut session = Session::new(model, cpu, TOKENS.len()).unwrap();
            session.set_rank_fraction(RankFraction::new(fraction).unwrap());
            session.step(&TOKENS).unwrap().to_vec()
        };
        let expected = last(&small, 1.0);
        let half = largest_difference(&last(&large, 0.5), &expected);
        assert!(half < 1e-3, "{method}: {half:.2e}");
        let whole = largest_difference(&last(&large, 1.0), &expected);
        assert!(whole > 0.05, "{method}: {whole:.2e}");
    }
}

/// A bias is that of the full rank, at any rank.
#[test]
fn rank_fraction_respects_gauges_and_sinks() {
    let scratch = Scratch::new();
    let path = scratch.file(
        "model.gguf",
        TinyModel::default().bytes_with_tensors(&TinyModel::with_missed_sink()),
    );
    let text = scratch.file(
        "text.txt",
        "the cat sat on the hat and then in a can ".repeat(30),
    );
    let cache = scratch.path("cache");
    let calibration = ["--context", "16", "--calibration-tokens", "256"];
    let calibration = [
        &calibration[..],
        &["--calibration", text.to_str().unwrap()],
        &["--cache", cache.to_str().unwrap()],
    ]
    .concat();
    for method in ["low-rank", "shared-basis"] {
        for (gauge, sink, bias) in [
            ("whiten", "off", "off"),
            ("none", "append", "off"),
            ("activation", "append", "off"),
            ("whiten", "append", "on"),
        ] {
            let made = |rank: &str| {
                let options = ["--method", method, "--rank", rank, "--gauge", gauge];
                let options = [&options[..], &["--sink", sink, "--bias", bias]].concat();
                let options = [&options[..], &calibration].concat();
                let name = format!("{method}-{gauge}-{sink}-{rank}.htz");
                compiled(&scratch, &path, &name, &options);
                ModelFile::open(scratch.path(&name)).unwrap()
            };
            let (large, small) = (made("16"), made("8"));
            let label = format!("{method}, {gauge}, {sink}, {bias}");
            let cpu = || Cpu::with_threads(2).unwrap();
            let half = at_fraction(&large, cpu(), 0.5);
            let oracle = at_fraction(&large, Reference, 0.5);
            let difference = largest_difference(&half, &oracle);
            assert!(difference < 1e-4, "{label}: {difference:.2e}");
            let expected = at_fraction(&small, cpu(), 1.0);
            let difference = largest_difference(&half, &expected);
            assert!(
                (difference < 1e-3) == (bias == "off"),
                "{label}: {difference:.2e}"
            );
            let whole = largest_difference(&at_fraction(&large, cpu(), 1.0), &expected);
            assert!(whole > 0.05, "{label}: {whole:.2e}");
        }
    }
}

fn at_fraction<B: Backend>(file: &ModelFile, mut backend: B, fraction: f32) -> Vec<f32> {
    let model = Model::load(file.clone(), &mut backend).unwrap();
    let session = Session::with_kv_type(model, backend, TOKENS.len(), KvType::F32);
    let mut session = session.unwrap();
    session.set_rank_fraction(RankFraction::new(fraction).unwrap());
    session.step(&TOKENS).unwrap().to_vec()
}

/// The margins between logits exceed the differences between instruction sets.
#[test]
fn demo_generates_the_recorded_tokens() {
    const WRITTEN: [u32; 64] = [
        4024, 284, 593, 298, 326, 261, 658, 543, 584, 261, 658, 1208, 4026, 13, 13, 4030, 4032,
        4033, 4018, 356, 1070, 282, 609, 343, 478, 298, 449, 4024, 319, 4032, 4033, 4018, 356,
        1070, 282, 305, 261, 658, 1208, 665, 13, 13, 4030, 4032, 4033, 4018, 356, 1070, 282, 305,
        261, 658, 1208, 478, 449, 263, 1208, 4026, 319, 4032, 4033, 4018, 356, 1070,
    ];
    let model = Arc::new(Model::open(demo("reference-7m-f16.gguf")).unwrap());
    let tokenizer = model.tokenizer().unwrap();
    let prompt = tokenizer.encode("Once upon a time", AddSpecialTokens::Prompt);
    let pool = Arc::new(Pool::new(2).unwrap());
    for cpu in Cpu::each(&pool) {
        let set = cpu.instruction_set();
        let mut session = Session::new(Arc::clone(&model), cpu, 256).unwrap();
        let (mut greedy, mut limits) = (Sampler::greedy(), GenerateLimits::tokens(64));
        limits.ignore_end = true;
        let written = Generator::new(&mut session, &tokenizer, &mut greedy, &prompt, limits);
        let written = written.unwrap().map(|written| written.unwrap().token);
        assert_eq!(written.collect::<Vec<u32>>(), WRITTEN, "{set}");
    }
}
