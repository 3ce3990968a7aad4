//! Files written by other programs, if present in `HTC_SHARED` or `../shared`.

use std::path::PathBuf;

use htc_formats::architecture::SUPPORTED;
use htc_formats::gguf::Gguf;
use htc_formats::model::{Activation, Forward, Part, Role, RopePairs, SlidingWindow};
use htc_formats::source::ModelFile;
use htc_formats::vocab::{PreTokenizer, Vocabulary};

fn shared(path: &str) -> Option<PathBuf> {
    let root = std::env::var_os("HTC_SHARED").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared"),
        PathBuf::from,
    );
    let path = root.join(path);
    if !path.exists() {
        println!("skipped: {} is absent", path.display());
        return None;
    }
    Some(path)
}

fn model(path: &str) -> Option<ModelFile> {
    Some(ModelFile::open_gguf(shared(path)?).unwrap())
}

#[test]
fn llama_files_bind() {
    for (name, output, factors, scale) in [
        ("llama", false, false, 1.0),
        ("mistral", true, false, 1.0),
        ("llama3-rope", true, true, 1.0),
        ("llama-linear-rope", true, false, 4.0),
    ] {
        let Some(model) = model(&format!("reference/arch/{name}/model.gguf")) else {
            continue;
        };
        let hyper = &model.hyper;
        assert_eq!(
            (hyper.layers, hyper.width, hyper.vocabulary),
            (3, 64, 4096),
            "{name}"
        );
        assert_eq!(
            (hyper.heads, hyper.kv_heads, hyper.ffn),
            (4, 2, 160),
            "{name}"
        );
        assert_eq!(hyper.rope_linear_scale, scale, "{name}");
        assert_eq!(model.tensor(Role::Output).is_some(), output, "{name}");
        assert_eq!(model.tensor(Role::RopeFactors).is_some(), factors, "{name}");
        let tensors = 2 + 9 * 3 + usize::from(output) + usize::from(factors);
        assert_eq!(model.tensors.len(), tensors, "{name}");
        let vocabulary = model.vocabulary.unwrap();
        assert_eq!(
            (vocabulary.bos, vocabulary.eos),
            (Some(1), Some(2)),
            "{name}"
        );
        assert_eq!(vocabulary.tokens[0], "<unk>", "{name}");
    }
}

#[test]
fn files_of_every_architecture_bind() {
    for architecture in SUPPORTED {
        let name = architecture.name;
        let Some(model) = model(&format!("reference/arch/{name}/model.gguf")) else {
            continue;
        };
        assert_eq!(model.hyper.architecture, name);
        let per_projection = |part| {
            let of = |role| matches!(role, Role::Linear { part: p, .. } if p == part);
            model.tensors.iter().filter(|t| of(t.role)).count()
        };
        let projections = model.spec().projections().count();
        assert_eq!(per_projection(Part::Weight), projections, "{name}");
        let biases = if name == "qwen2" { 3 * 3 } else { 0 };
        assert_eq!(per_projection(Part::Bias), biases, "{name}");
        for tensor in &model.tensors {
            let expected = tensor.dtype.matrix_bytes(tensor.rows, tensor.cols);
            assert_eq!(Some(model.bytes(tensor).len()), expected, "{name}");
        }
    }
}

#[test]
fn differences_from_llama_are_read() {
    let forward = |name: &str| {
        let model = model(&format!("reference/arch/{name}/model.gguf"))?;
        Some(model.hyper.forward)
    };
    let plain = Forward {
        rope_pairs: RopePairs::Halves,
        ..Forward::default()
    };
    for name in ["qwen2", "qwen3", "phi3"] {
        let Some(found) = forward(name) else { continue };
        assert_eq!(found, plain, "{name}");
    }
    let gemma = |full_layers, rope_theta, caps: Option<[f32; 2]>| Forward {
        activation: Activation::GeluTanh,
        embedding_scale: Some(8.0),
        attention_softcap: caps.map(|caps| caps[0]),
        logit_softcap: caps.map(|caps| caps[1]),
        sliding_window: Some(SlidingWindow {
            positions: 64,
            full_layers,
            rope_theta,
        }),
        ..plain.clone()
    };
    if let Some(found) = forward("gemma2") {
        assert_eq!(found, gemma(vec![1], None, Some([50.0, 30.0])));
    }
    if let Some(found) = forward("gemma3") {
        assert_eq!(found, gemma(vec![], Some(1e4), None));
    }
}

#[test]
fn all_formats_of_one_model_decode_alike() {
    let decode = |format: &str| -> Option<Vec<(Role, Vec<f32>)>> {
        let model = model(&format!("models/reference-7m/reference-7m-{format}.gguf"))?;
        let decoded = model.tensors.iter().map(|tensor| {
            let mut values = vec![0.0; tensor.rows * tensor.cols];
            htc_formats::block::decode(tensor.dtype, model.bytes(tensor), &mut values).unwrap();
            (tensor.role, values)
        });
        Some(decoded.collect())
    };
    let Some(reference) = decode("f16") else {
        return;
    };
    // A wrong scale, sign or order of codes gives about 1.
    for (format, bound) in [
        ("q8_0", 0.01),
        ("q6_k", 0.03),
        ("q5_k_m", 0.06),
        ("q4_k_m", 0.12),
        ("q4_0", 0.15),
    ] {
        let Some(found) = decode(format) else {
            continue;
        };
        for ((role, expected), (found_role, found)) in reference.iter().zip(&found) {
            assert_eq!(role, found_role);
            let norm: f64 = expected.iter().map(|x| f64::from(*x).powi(2)).sum();
            let error: f64 = expected
                .iter()
                .zip(found)
                .map(|(x, y)| (f64::from(*x) - f64::from(*y)).powi(2))
                .sum();
            let relative = (error / norm).sqrt();
            assert!(relative < bound, "{format} {role}: {relative}");
        }
    }
}

#[test]
fn vocabulary_files_are_read() {
    for (name, tokens, pre) in [
        ("llama-spm", 32_000, None),
        ("phi-3", 32_064, None),
        ("gpt-2", 50_257, Some(PreTokenizer::Gpt2)),
        ("llama-bpe", 128_256, Some(PreTokenizer::Llama3)),
        ("qwen2", 151_936, Some(PreTokenizer::Qwen2)),
    ] {
        let Some(path) = shared(&format!("models/gguf-vocab/ggml-vocab-{name}.gguf")) else {
            continue;
        };
        let gguf = Gguf::open(path).unwrap();
        assert!(gguf.tensors().is_empty());
        let vocabulary = Vocabulary::from_gguf(&gguf).unwrap();
        assert_eq!(vocabulary.tokens.len(), tokens, "{name}");
        assert_eq!(vocabulary.pre, pre, "{name}");
        assert_eq!(vocabulary.merges.is_empty(), pre.is_none(), "{name}");
    }
}
