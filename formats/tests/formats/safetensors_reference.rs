//! Folders written by transformers and their GGUF conversions by llama.cpp must be the same model.
//! Larger ones are compared if present in `HTC_SHARED` or `../shared`.

use std::path::{Path, PathBuf};

use htc_formats::block;
use htc_formats::model::{HyperParameters, Part, ProjectionKind, Role, RopePairs};
use htc_formats::source::{Container, ModelFile, ModelTensor, Place};

const NAMES: [&str; 9] = [
    "llama",
    "mistral",
    "llama-linear-rope",
    "llama3-rope",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "phi3",
];

fn decoded(model: &ModelFile, tensor: &ModelTensor) -> Vec<f32> {
    let mut values = vec![0.0; tensor.rows * tensor.cols];
    block::decode(tensor.dtype, model.bytes(tensor), &mut values).unwrap();
    values
}

/// The converter interleaves the halves of each head for some architectures.
fn halves(values: &[f32], heads: usize, head_size: usize) -> Vec<f32> {
    let row = values.len() / (heads * head_size);
    let mut back = Vec::with_capacity(values.len());
    for head in 0..heads {
        for half in 0..2 {
            for pair in 0..head_size / 2 {
                let from = (head * head_size + 2 * pair + half) * row;
                back.extend_from_slice(&values[from..from + row]);
            }
        }
    }
    back
}

fn reordered(hyper: &HyperParameters, role: Role) -> Option<usize> {
    match role {
        Role::Linear {
            projection: ProjectionKind::Q,
            part: Part::Weight | Part::Bias,
            ..
        } => Some(hyper.heads),
        Role::Linear {
            projection: ProjectionKind::K,
            part: Part::Weight | Part::Bias,
            ..
        } => Some(hyper.kv_heads),
        _ => None,
    }
}

fn compare(name: &str, path: &Path) {
    let folder = ModelFile::open(path).unwrap();
    let gguf = ModelFile::open(path.join("model.gguf")).unwrap();
    assert_eq!(folder.container, Container::Safetensors { shards: 1 });
    assert_eq!(folder.hyper.forward.rope_pairs, RopePairs::Halves, "{name}");
    let permuted = gguf.hyper.forward.rope_pairs == RopePairs::Adjacent;
    let llama = name.starts_with("llama") || name == "mistral";
    assert_eq!(permuted, llama, "{name}");
    let mut expected = gguf.hyper.clone();
    expected.name = None;
    expected.forward.rope_pairs = RopePairs::Halves;
    assert_eq!(folder.hyper, expected, "{name}");

    let tokens = folder.vocabulary.as_ref().unwrap().tokens.len();
    assert_eq!(tokens, folder.hyper.vocabulary, "{name}");

    assert_eq!(folder.tensors.len(), gguf.tensors.len(), "{name}");
    for (found, expected) in folder.tensors.iter().zip(&gguf.tensors) {
        let role = found.role;
        assert_eq!(role, expected.role, "{name}");
        let shape = (found.rows, found.cols);
        assert_eq!(shape, (expected.rows, expected.cols), "{name} {role}");
        let computed = matches!(found.place, Place::Computed(_));
        let found = decoded(&folder, found);
        let mut expected = decoded(&gguf, expected);
        if let (true, Some(heads)) = (permuted, reordered(&gguf.hyper, role)) {
            expected = halves(&expected, heads, gguf.hyper.head_size);
        }
        if computed {
            // The converter computes in the type of the weights.
            for (a, b) in found.iter().zip(&expected) {
                assert!((a / b - 1.0).abs() < 1e-5, "{name} {role}: {a} {b}");
            }
        } else {
            assert!(found == expected, "{name} {role}");
        }
    }
}

#[test]
fn folder_equals_its_gguf_conversion() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/architectures");
    for name in NAMES {
        compare(name, &fixtures.join(name));
    }
}

#[test]
fn larger_folder_equals_its_gguf_conversion() {
    let root = std::env::var_os("HTC_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"),
        PathBuf::from,
    );
    for name in NAMES {
        let path = root.join("reference/arch").join(name);
        if path.exists() {
            compare(name, &path);
        } else {
            println!("skipped: {} is absent", path.display());
        }
    }
}
