//! Small GGUF files for tests.

#![allow(dead_code, reason = "every test uses its own part")]

use htc_formats::gguf::{Array, Contents, GgmlType, GgufError, Value, Writer};

#[track_caller]
pub fn error(bytes: &[u8]) -> GgufError {
    let error = Contents::parse(bytes).unwrap_err();
    assert!(!error.to_string().contains('\n'), "{error}");
    error
}

pub struct Raw {
    pub bytes: Vec<u8>,
}

impl Raw {
    pub fn new(version: u32, tensors: u64, entries: u64) -> Self {
        let mut raw = Raw {
            bytes: b"GGUF".to_vec(),
        };
        raw.u32(version).u64(tensors).u64(entries);
        raw
    }

    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.raw(&[value])
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub fn text(&mut self, text: &str) -> &mut Self {
        self.u64(text.len() as u64).raw(text.as_bytes())
    }

    pub fn tensor(&mut self, name: &str, dims: &[u64], kind: u32, offset: u64) -> &mut Self {
        self.text(name).u32(dims.len() as u32);
        for &dim in dims {
            self.u64(dim);
        }
        self.u32(kind).u64(offset)
    }

    pub fn data(&mut self, length: usize) -> &mut Self {
        let start = self.bytes.len().next_multiple_of(32);
        self.bytes.resize(start + length, 0);
        self
    }
}

pub const WIDTH: u64 = 8;
pub const FFN: u64 = 12;
pub const TOKENS: u64 = 5;
pub const LAYERS: usize = 2;

/// Metadata of a small Llama: 4 query heads and 2 KV heads of size 2.
pub fn model_metadata() -> Writer<'static> {
    let mut writer = Writer::new();
    for (key, value) in [
        ("embedding_length", WIDTH as u32),
        ("feed_forward_length", FFN as u32),
        ("block_count", LAYERS as u32),
        ("context_length", 64),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ] {
        writer.metadata(format!("llama.{key}"), Value::U32(value));
    }
    writer
        .metadata("general.architecture", Value::String("llama".to_owned()))
        .metadata("general.name", Value::String("tiny".to_owned()))
        .metadata("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5));
    vocabulary(&mut writer);
    writer
}

fn vocabulary(writer: &mut Writer<'_>) {
    let tokens = ["<unk>", "<s>", "</s>", "\u{2581}", "a"];
    let strings = tokens.map(str::to_owned).to_vec();
    writer
        .metadata("tokenizer.ggml.model", Value::String("llama".to_owned()))
        .metadata(
            "tokenizer.ggml.tokens",
            Value::Array(Array::String(strings)),
        )
        .metadata(
            "tokenizer.ggml.scores",
            Value::Array(Array::F32(vec![0.0, 0.0, 0.0, -1.0, -2.0])),
        )
        .metadata(
            "tokenizer.ggml.token_type",
            Value::Array(Array::I32(vec![2, 3, 3, 1, 1])),
        );
}

/// Names and dimensions of the tensors that [`model_metadata`] requires, with tied `output`.
pub fn model_tensors() -> Vec<(String, Vec<u64>)> {
    let mut tensors = vec![
        ("output_norm.weight".to_owned(), vec![WIDTH]),
        ("token_embd.weight".to_owned(), vec![WIDTH, TOKENS]),
    ];
    for layer in 0..LAYERS {
        for (name, dims) in [
            ("ffn_down", vec![FFN, WIDTH]),
            ("attn_norm", vec![WIDTH]),
            ("attn_q", vec![WIDTH, 8]),
            ("attn_k", vec![WIDTH, 4]),
            ("attn_v", vec![WIDTH, 4]),
            ("attn_output", vec![8, WIDTH]),
            ("ffn_norm", vec![WIDTH]),
            ("ffn_gate", vec![WIDTH, FFN]),
            ("ffn_up", vec![WIDTH, FFN]),
        ] {
            tensors.push((format!("blk.{layer}.{name}.weight"), dims));
        }
    }
    tensors
}

pub fn add_tensors(writer: &mut Writer<'_>, tensors: &[(String, Vec<u64>)]) {
    static ZEROS: [u8; 4096] = [0; 4096];
    for (name, dims) in tensors {
        let size = 4 * dims.iter().product::<u64>() as usize;
        writer.tensor(name.as_str(), GgmlType::F32, dims, &ZEROS[..size]);
    }
}

pub fn tiny_model() -> Vec<u8> {
    let mut writer = model_metadata();
    add_tensors(&mut writer, &model_tensors());
    writer.to_bytes().unwrap()
}
