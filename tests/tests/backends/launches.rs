//! Fused operations: results are identical to separate launches, with fewer launches.

use std::sync::Arc;

use htc_formats::DType;
use htc_formats::source::ModelFile;
use htc_loader::backend::{Emulated, EmulatedDevice, Gpu};
use htc_loader::kv::KvType;
use htc_loader::sampling::{LogitsRequest, Sampler, SamplerInput, SamplingOptions};
use htc_loader::{Model, Session};
use htc_tests::npy::Array;
use htc_tests::{Scratch, TinyModel, htc, material};

use htc_tests::material::{ARCHITECTURES, architecture as fixture};

fn fused_and_separate(
    file: &ModelFile,
    kv_type: KvType,
) -> [(EmulatedDevice, Session<Emulated>); 2] {
    let of = |joins: bool| {
        let device = EmulatedDevice::new(7);
        let mut backend = Gpu::new(&device);
        if !joins {
            backend = backend.one_by_one();
        }
        let model = Arc::new(Model::load(file.clone(), &mut backend).unwrap());
        let session = Session::with_kv_type(model, backend, 64, kv_type);
        (device, session.unwrap())
    };
    [of(true), of(false)]
}

#[derive(Debug, PartialEq)]
struct LaunchCounts {
    fused: u64,
    /// Updated on the device.
    changed: u64,
    separate: u64,
}

fn assert_same_logits(file: &ModelFile, tokens: &[u32], kv_type: KvType) -> LaunchCounts {
    let (batch, short) = (tokens.len() - 5, tokens.len() - 2);
    let found = fused_and_separate(file, kv_type).map(|(device, mut session)| {
        let mut logits = Vec::new();
        session.forward(&tokens[..batch]).unwrap();
        logits.extend_from_slice(session.logits(1, batch).unwrap());
        let first = device.step_counts();
        assert!(first.interrupted <= 1 && first.launched == 0, "{first:?}");
        session.forward(&tokens[batch..short]).unwrap();
        logits.extend_from_slice(session.logits(0, short - batch).unwrap());
        let mut last = [0; 2];
        for &token in &tokens[short..] {
            let before = [
                device.launch_count(),
                device.step_counts().changed_operations,
            ];
            logits.extend_from_slice(session.step(&[token]).unwrap());
            last = [
                device.launch_count() - before[0],
                device.step_counts().changed_operations - before[1],
            ];
        }
        let steps = device.step_counts();
        let apart = (steps.interrupted - first.interrupted, steps.launched);
        assert_eq!(apart, (0, 0), "{steps:?}");
        assert!(steps.created > 0 && steps.updated > 0, "{steps:?}");
        (logits, last)
    });
    let [(joined, few), (apart, many)] = found;
    let bits = |logits: &[f32]| logits.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
    let path = file.path.display();
    assert!(bits(&joined) == bits(&apart), "{path}, {kv_type:?}");
    let took = LaunchCounts {
        fused: few[0],
        changed: few[1],
        separate: many[0],
    };
    assert!(took.fused < took.separate, "{path}, {kv_type:?}: {took:?}");
    took
}

#[test]
fn fused_operations_give_identical_logits() {
    for name in ARCHITECTURES {
        let folder = fixture(name);
        let tokens = Array::read(&folder.join("tokens.npy")).tokens();
        let file = ModelFile::open(folder.join("model.gguf")).unwrap();
        for kv_type in [KvType::F32, KvType::F16] {
            assert_same_logits(&file, &tokens, kv_type);
        }
    }
    let scratch = Scratch::new();
    let tokens: Vec<u32> = (0..20).map(|i| 3 + i * 7 % 290).collect();
    for (dtype, head_size) in [(DType::Q8_0, 16), (DType::Q4_0, 32), (DType::Q4K, 64)] {
        let tiny = TinyModel {
            width: 256,
            ffn: 512,
            head_size,
            dtype,
            ..TinyModel::default()
        };
        let file = scratch.file(&format!("{dtype:?}.gguf"), tiny.bytes());
        let file = ModelFile::open(file).unwrap();
        for kv_type in [KvType::F16, KvType::Q8_0, KvType::Q4_0] {
            if head_size == 16 && kv_type != KvType::F16 {
                continue;
            }
            assert_same_logits(&file, &tokens, kv_type);
        }
    }
}

/// Per token change the embedding, the rotation, and for each layer the destination of keys and
/// values and the attended length.
const DEMO: LaunchCounts = took(84, 2 + 2 * 8, 124);
const DENSE: LaunchCounts = took(24, 2 + 2 * 2, 43);
const LOW_RANK: LaunchCounts = took(32, 2 + 2 * 2, 71);
const SHARED: LaunchCounts = took(28, 2 + 2 * 2, 51);
const ELASTIC: LaunchCounts = took(46, 3 + 2 * 2, 90);

const fn took(joined: u64, changed: u64, apart: u64) -> LaunchCounts {
    LaunchCounts {
        fused: joined,
        changed,
        separate: apart,
    }
}

#[test]
fn launches_per_token_are_as_recorded() {
    let tokens: Vec<u32> = (0..20).map(|i| 3 + i * 7 % 290).collect();
    let demo = ModelFile::open(material::demo("reference-7m-f16.gguf")).unwrap();
    assert_eq!(demo.hyper.layers, 8);
    assert_eq!(assert_same_logits(&demo, &tokens, KvType::F16), DEMO);
    let scratch = Scratch::new();
    let tiny = TinyModel {
        width: 256,
        ffn: 512,
        head_size: 64,
        dtype: DType::Q8_0,
        ..TinyModel::default()
    };
    let source = scratch.file("model.gguf", tiny.bytes());
    let dense = ModelFile::open(&source).unwrap();
    assert_eq!(assert_same_logits(&dense, &tokens, KvType::F16), DENSE);
    for (method, projections, expected) in [
        ("low-rank", "q,k,v,o,gate,up,down", LOW_RANK),
        ("shared-basis", "q,k,v,gate,up", SHARED),
    ] {
        let artifact = scratch.path(&format!("{method}.htz"));
        let run = htc!["compile", &source, "-o", &artifact, "--method", method];
        let rank = [
            "--projections",
            projections,
            "--rank",
            "64",
            "--factor-type",
            "q8_0",
        ];
        run.args(rank).run().assert_ok();
        let file = ModelFile::open(&artifact).unwrap();
        assert_eq!(
            assert_same_logits(&file, &tokens, KvType::F16),
            expected,
            "{method}"
        );
    }
}

#[test]
fn residuals_add_few_launches() {
    let scratch = Scratch::new();
    let tiny = TinyModel {
        ffn: 192,
        ..TinyModel::default()
    };
    let source = scratch.file("model.gguf", tiny.bytes());
    let text = scratch.file("words.txt", material::words(20_000));
    let artifact = scratch.path("elastic.htz");
    htc!["compile", &source, "-o", &artifact, "--calibration", &text]
        .args(["--target-size", "130000", "--planes", "2"])
        .args(["--context", "32", "--calibration-tokens", "2048"])
        .args(["--effort", "fast"])
        .run()
        .assert_ok();
    let tokens: Vec<u32> = (0..20).map(|i| 3 + i * 7 % 290).collect();
    let file = ModelFile::open(&artifact).unwrap();
    assert_eq!(assert_same_logits(&file, &tokens, KvType::F16), ELASTIC);
}

#[test]
fn sampling_runs_on_the_device() {
    let scratch = Scratch::new();
    let file = scratch.file("model.gguf", TinyModel::default().bytes());
    let file = ModelFile::open(file).unwrap();
    let [(device, mut session), _] = fused_and_separate(&file, KvType::F16);
    let of = |temperature, top_k| {
        let mut options = SamplingOptions::default();
        (options.temperature, options.top_k) = (temperature, top_k);
        Sampler::new(options).unwrap()
    };
    let mut alone = 0;
    for (wanted, expected, more) in [
        (LogitsRequest::All, "all", 0),
        (of(0.0, 0).logits_for_sample(), "largest", 1),
        (of(1.0, 64).logits_for_sample(), "largest", 1),
        (of(1.0, 65).logits_for_sample(), "drawn", 1),
        (of(1.0, 0).logits_for_sample(), "drawn", 1),
    ] {
        // The first steps of a kind may build a new graph.
        for turn in 0..4 {
            let (before, launches) = (device.step_counts(), device.launch_count());
            let found = match session.step_for(&[5], wanted).unwrap() {
                SamplerInput::TopK(_) => "largest",
                SamplerInput::Drawn(_) => "drawn",
                SamplerInput::All(_) => "all",
            };
            assert_eq!(found, expected);
            let (steps, launches) = (device.step_counts(), device.launch_count() - launches);
            if wanted == LogitsRequest::All {
                alone = launches;
            }
            if turn == 3 {
                assert_eq!(steps.updated, before.updated + 1, "{wanted:?}: {steps:?}");
                let others = [steps.created, steps.launched, steps.interrupted];
                let before = [before.created, before.launched, before.interrupted];
                assert_eq!(others, before, "{wanted:?}");
                assert_eq!(launches, alone + more, "{wanted:?}");
            }
        }
    }
}
