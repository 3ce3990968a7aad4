//! Mixtures of experts, made from a dense model of the fixtures.

use std::path::{Path, PathBuf};

use htc_formats::DType;
use htc_formats::gguf::{GgmlType, Gguf, Value, Writer};
use tempfile::TempDir;

use super::whole::architectures;
use crate::system::random::Rng;

pub const EXPERTS: usize = 5;
pub const USED: usize = 2;
pub const HIDDEN: usize = 24;

/// Models of all dense architectures and mixtures of experts.
pub struct Models {
    _folder: TempDir,
    pub paths: Vec<PathBuf>,
}

impl Models {
    pub fn new() -> Models {
        let folder = tempfile::tempdir().unwrap();
        let mut paths = architectures();
        paths.push(mixture(folder.path(), true));
        paths.push(mixture(folder.path(), false));
        Models {
            _folder: folder,
            paths,
        }
    }
}

/// Writes a qwen3moe model with the attention and vocabulary of the qwen3 fixture; returns its
/// path. Routing weights are divided by their sum if `normalised`.
pub fn mixture(folder: &Path, normalised: bool) -> PathBuf {
    let dense = architectures()
        .into_iter()
        .find(|path| path.ends_with("qwen3/model.gguf"));
    let dense = Gguf::open(dense.unwrap()).unwrap();
    let mut writer = Writer::new();
    for (key, value) in dense.metadata() {
        let value = match key.as_str() {
            "general.architecture" => Value::String("qwen3moe".to_owned()),
            _ => value.clone(),
        };
        writer.metadata(key.replace("qwen3.", "qwen3moe."), value);
    }
    let number = |n: usize| Value::U32(n as u32);
    for (key, value) in [
        ("expert_count", number(EXPERTS)),
        ("expert_used_count", number(USED)),
        ("expert_feed_forward_length", number(HIDDEN)),
        ("expert_weights_norm", Value::Bool(normalised)),
    ] {
        writer.metadata(format!("qwen3moe.{key}"), value);
    }
    let mut experts: Vec<(String, Vec<u64>, Vec<u8>)> = Vec::new();
    let mut random = Rng(11);
    for tensor in dense.tensors() {
        let Some(layer) = tensor.name.strip_suffix("ffn_gate.weight") else {
            continue;
        };
        let width = tensor.cols();
        let mut matrix = |name: &str, dims: &[usize]| {
            let scale = 1.5 / (dims[0] as f64).sqrt();
            let count: usize = dims.iter().product();
            let numbers = (0..count).map(|_| (scale * random.normal()) as f32);
            let bytes = numbers.flat_map(f32::to_le_bytes).collect();
            let dims = dims.iter().map(|&dim| dim as u64).collect();
            experts.push((format!("{layer}{name}.weight"), dims, bytes));
        };
        matrix("ffn_gate_inp", &[width, EXPERTS]);
        matrix("ffn_gate_exps", &[width, HIDDEN, EXPERTS]);
        matrix("ffn_up_exps", &[width, HIDDEN, EXPERTS]);
        matrix("ffn_down_exps", &[HIDDEN, width, EXPERTS]);
    }
    let is_network = |name: &str| {
        let names = ["ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"];
        names.iter().any(|network| name.ends_with(network))
    };
    for tensor in dense.tensors().iter().filter(|of| !is_network(&of.name)) {
        let dims: Vec<u64> = tensor.dims.clone();
        writer.tensor(&tensor.name, tensor.ggml_type, &dims, dense.bytes(tensor));
    }
    let float32 = GgmlType::ALL.iter().copied();
    let float32 = float32
        .into_iter()
        .find(|of| of.dtype() == Some(DType::F32))
        .unwrap();
    for (name, dims, bytes) in &experts {
        writer.tensor(name, float32, dims, bytes);
    }
    let path = folder.join(format!("mixture-{normalised}.gguf"));
    std::fs::write(&path, writer.to_bytes().unwrap()).unwrap();
    path
}
