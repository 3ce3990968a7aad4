//! Parses arbitrary bytes as safetensors file, header, index and configuration; configurations are
//! bound to small models.

#![no_main]

use std::sync::LazyLock;

use htc_formats::architecture::{WeightFile, bind_hugging_face};
use htc_formats::safetensors::{Contents, Index, SafetensorsError};
use libfuzzer_sys::fuzz_target;

/// Width 4, one KV head of size 2, two query heads.
const LLAMA: [(&str, &str, usize); 12] = [
    ("model.embed_tokens.weight", "3,4", 12),
    ("model.norm.weight", "4", 4),
    ("lm_head.weight", "3,4", 12),
    ("model.layers.0.input_layernorm.weight", "4", 4),
    ("model.layers.0.post_attention_layernorm.weight", "4", 4),
    ("model.layers.0.self_attn.q_proj.weight", "4,4", 16),
    ("model.layers.0.self_attn.k_proj.weight", "2,4", 8),
    ("model.layers.0.self_attn.v_proj.weight", "2,4", 8),
    ("model.layers.0.self_attn.o_proj.weight", "4,4", 16),
    ("model.layers.0.mlp.gate_proj.weight", "4,4", 16),
    ("model.layers.0.mlp.up_proj.weight", "4,4", 16),
    ("model.layers.0.mlp.down_proj.weight", "4,4", 16),
];

const GEMMA: [(&str, &str, usize); 4] = [
    ("model.layers.0.pre_feedforward_layernorm.weight", "4", 4),
    ("model.layers.0.post_feedforward_layernorm.weight", "4", 4),
    ("model.layers.0.self_attn.q_norm.weight", "2", 2),
    ("model.layers.0.self_attn.k_norm.weight", "2", 2),
];

const PHI: [(&str, &str, usize); 2] = [
    ("model.layers.0.self_attn.qkv_proj.weight", "8,4", 32),
    ("model.layers.0.mlp.gate_up_proj.weight", "8,4", 32),
];

static MODELS: LazyLock<[Vec<u8>; 3]> = LazyLock::new(|| {
    let gemma = LLAMA.into_iter().chain(GEMMA);
    let kept = |name: &str| {
        !["q_proj", "k_proj", "v_proj", "gate_", "up_"]
            .iter()
            .any(|part| name.contains(part))
    };
    let phi = LLAMA.into_iter().filter(|(name, ..)| kept(name)).chain(PHI);
    [
        model(LLAMA.into_iter()),
        model(gemma.filter(|(name, ..)| *name != "lm_head.weight")),
        model(phi),
    ]
});

fn model(tensors: impl Iterator<Item = (&'static str, &'static str, usize)>) -> Vec<u8> {
    let mut entries = Vec::new();
    let mut end = 0;
    for (name, shape, numbers) in tensors {
        let start = end;
        end += 2 * numbers;
        entries.push(format!(
            "\"{name}\":{{\"dtype\":\"BF16\",\"shape\":[{shape}],\"data_offsets\":[{start},{end}]}}"
        ));
    }
    file(format!("{{{}}}", entries.join(",")).as_bytes(), end)
}

fn file(header: &[u8], data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header);
    bytes.resize(bytes.len() + data, 0);
    bytes
}

fn one_line(error: &dyn std::fmt::Display) {
    assert!(!error.to_string().contains('\n'));
}

fn parse(bytes: &[u8]) -> Result<Contents, SafetensorsError> {
    let contents = Contents::parse(bytes).inspect_err(|error| one_line(error))?;
    for tensor in contents.tensors() {
        let _ = &bytes[tensor.range.clone()];
        assert_eq!(contents.tensor(&tensor.name), Some(tensor));
    }
    Ok(contents)
}

fn bind(config: &[u8], model: &[u8]) {
    let contents = Contents::parse(model).unwrap();
    let weights = WeightFile {
        index: 0,
        bytes: model,
        contents: &contents,
    };
    match bind_hugging_face(config, &[weights]) {
        Ok((hyper, tensors)) => {
            assert!(hyper.check().is_ok());
            for tensor in tensors {
                let expected = tensor.dtype.matrix_bytes(tensor.rows, tensor.cols);
                assert_eq!(expected, Some(tensor.place.len()));
            }
        }
        Err(error) => one_line(&error),
    }
}

fuzz_target!(|bytes: &[u8]| {
    let _ = parse(bytes);
    let _ = parse(&file(bytes, 8));
    if let Err(error) = Index::parse(bytes) {
        one_line(&error);
    }
    for model in MODELS.iter() {
        bind(bytes, model);
    }
});
