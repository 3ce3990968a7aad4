//! Small folders in Hugging Face's layout for tests.

#![allow(dead_code, reason = "every test uses its own part")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use htc_formats::DType;
use htc_formats::architecture::{BindError, ModelTensor, Place, WeightFile, bind_hugging_face};
use htc_formats::model::{HyperParameters, Role};
use htc_formats::safetensors::Contents;
use serde_json::{Value, json};

pub const WIDTH: u64 = 8;
pub const FFN: u64 = 12;
pub const TOKENS: u64 = 5;
pub const LAYERS: u64 = 3;
pub const HEADS: u64 = 4;
pub const KV_HEADS: u64 = 2;
pub const HEAD: u64 = 4;

pub const TYPES: [&str; 7] = [
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "phi3",
];

#[derive(Clone, Debug)]
pub struct Tensor {
    pub dtype: &'static str,
    pub shape: Vec<u64>,
    pub bytes: Vec<u8>,
}

impl Tensor {
    fn numbered(name: &str, shape: &[u64]) -> Self {
        let seed: u64 = name.bytes().fold(17, |s, b| (s * 31 + u64::from(b)) % 1000);
        let values = (0..shape.iter().product()).map(|i| (seed * 64 + i) as f32 / 1024.0);
        Tensor {
            dtype: "F32",
            shape: shape.to_vec(),
            bytes: values.flat_map(f32::to_le_bytes).collect(),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Model {
    pub config: Value,
    pub tensors: BTreeMap<String, Tensor>,
}

/// The configuration states sizes only.
pub fn small(model_type: &str) -> Model {
    let config = json!({
        "model_type": model_type,
        "vocab_size": TOKENS,
        "hidden_size": WIDTH,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "max_position_embeddings": 64,
    });
    let mut model = Model {
        config,
        tensors: BTreeMap::new(),
    };
    let gemma = model_type.starts_with("gemma");
    let (q, kv) = (HEADS * HEAD, KV_HEADS * HEAD);
    model.add("model.embed_tokens.weight", &[TOKENS, WIDTH]);
    model.add("model.norm.weight", &[WIDTH]);
    if !gemma {
        model.add("lm_head.weight", &[TOKENS, WIDTH]);
    }
    for layer in 0..LAYERS {
        let mut add = |name: &str, shape: &[u64]| {
            model.add(&format!("model.layers.{layer}.{name}"), shape);
        };
        add("input_layernorm.weight", &[WIDTH]);
        add("post_attention_layernorm.weight", &[WIDTH]);
        add("self_attn.o_proj.weight", &[WIDTH, q]);
        add("mlp.down_proj.weight", &[WIDTH, FFN]);
        if model_type == "phi3" {
            add("self_attn.qkv_proj.weight", &[q + 2 * kv, WIDTH]);
            add("mlp.gate_up_proj.weight", &[2 * FFN, WIDTH]);
        } else {
            add("self_attn.q_proj.weight", &[q, WIDTH]);
            add("self_attn.k_proj.weight", &[kv, WIDTH]);
            add("self_attn.v_proj.weight", &[kv, WIDTH]);
            add("mlp.gate_proj.weight", &[FFN, WIDTH]);
            add("mlp.up_proj.weight", &[FFN, WIDTH]);
        }
        if model_type == "qwen2" {
            add("self_attn.q_proj.bias", &[q]);
            add("self_attn.k_proj.bias", &[kv]);
            add("self_attn.v_proj.bias", &[kv]);
        }
        if ["qwen3", "gemma3_text"].contains(&model_type) {
            add("self_attn.q_norm.weight", &[HEAD]);
            add("self_attn.k_norm.weight", &[HEAD]);
        }
        if gemma {
            add("pre_feedforward_layernorm.weight", &[WIDTH]);
            add("post_feedforward_layernorm.weight", &[WIDTH]);
        }
    }
    model
}

impl Model {
    pub fn add(&mut self, name: &str, shape: &[u64]) -> &mut Self {
        let tensor = Tensor::numbered(name, shape);
        self.tensors.insert(name.to_owned(), tensor);
        self
    }

    pub fn remove(&mut self, name: &str) -> &mut Self {
        self.tensors.remove(name).unwrap();
        self
    }

    pub fn with(&mut self, keys: Value) -> &mut Self {
        let Value::Object(keys) = keys else {
            panic!("{keys} is no object");
        };
        self.config.as_object_mut().unwrap().extend(keys);
        self
    }

    pub fn without(&mut self, key: &str) -> &mut Self {
        self.config.as_object_mut().unwrap().remove(key).unwrap();
        self
    }

    pub fn file(&self, pick: impl Fn(&str) -> bool) -> Vec<u8> {
        let picked = self.tensors.iter().filter(|(name, _)| pick(name));
        let mut header = serde_json::Map::new();
        header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
        let mut data = Vec::new();
        for (name, tensor) in picked {
            let start = data.len();
            data.extend_from_slice(&tensor.bytes);
            let entry = json!({
                "dtype": tensor.dtype,
                "shape": tensor.shape,
                "data_offsets": [start, data.len()],
            });
            header.insert(name.clone(), entry);
        }
        file(&Value::Object(header).to_string(), &data)
    }

    pub fn write(&self, folder: &Path) {
        self.write_config(folder);
        fs::write(folder.join("model.safetensors"), self.file(|_| true)).unwrap();
    }

    pub fn write_config(&self, folder: &Path) {
        fs::write(folder.join("config.json"), self.config.to_string()).unwrap();
    }

    pub fn write_sharded(&self, folder: &Path) -> Value {
        self.write_config(folder);
        let shard = |name: &str| match name.strip_prefix("model.layers.") {
            Some(rest) => 2 + rest.split_once('.').unwrap().0.parse::<u64>().unwrap(),
            None => 1,
        };
        let of = |shard: u64| format!("model-{shard:05}-of-{:05}.safetensors", LAYERS + 1);
        for part in 1..=LAYERS + 1 {
            fs::write(folder.join(of(part)), self.file(|name| shard(name) == part)).unwrap();
        }
        let map: serde_json::Map<String, Value> = self
            .tensors
            .keys()
            .map(|name| (name.clone(), of(shard(name)).into()))
            .collect();
        let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
        write_index(folder, &index);
        index
    }

    pub fn bind(&self) -> Result<(HyperParameters, Vec<ModelTensor>), BindError> {
        let bytes = self.file(|_| true);
        let contents = Contents::parse(&bytes).unwrap();
        let file = WeightFile {
            index: 0,
            bytes: &bytes,
            contents: &contents,
        };
        bind_hugging_face(self.config.to_string().as_bytes(), &[file])
    }

    pub fn refused(&self) -> BindError {
        let error = self.bind().unwrap_err();
        assert!(!error.to_string().contains('\n'), "{error}");
        error
    }
}

pub fn write_index(folder: &Path, index: &Value) {
    fs::write(
        folder.join("model.safetensors.index.json"),
        index.to_string(),
    )
    .unwrap();
}

pub fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    bytes
}

pub fn hyper(model_type: &str, keys: Value) -> HyperParameters {
    small(model_type).with(keys).bind().unwrap().0
}

pub fn refused(model_type: &str, keys: Value) -> BindError {
    small(model_type).with(keys).refused()
}

pub fn refused_value(model_type: &str, keys: Value) -> (String, String) {
    let error = refused(model_type, keys.clone());
    match error {
        BindError::KeyValue { key, found, .. } => (key, found),
        other => panic!("{keys}: {other}"),
    }
}

pub fn numbers(tensor: &ModelTensor) -> Vec<f32> {
    let Place::Computed(bytes) = &tensor.place else {
        panic!("{} is in a file", tensor.role);
    };
    assert_eq!((tensor.dtype, tensor.rows), (DType::F32, 1));
    assert_eq!(bytes.len(), 4 * tensor.cols);
    bytes
        .chunks(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

pub fn computed(model: &Model, role: Role) -> Vec<f32> {
    let (_, tensors) = model.bind().unwrap();
    numbers(tensors.iter().find(|t| t.role == role).unwrap())
}
