//! Valid GGUF files whose model cannot be executed or compiled.

use htc_formats::DType;
use htc_formats::gguf::{Array, Value};
use htc_tests::TinyModel;
use htc_tests::model::Tensor;
use htc_tests::raw::{put_u32, put_u64, tensor_row};

use super::BadModel;

fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

fn with_tensors(tiny: &TinyModel, change: impl FnOnce(&mut Vec<Tensor>)) -> BadModel {
    let mut tensors = tiny.tensors();
    change(&mut tensors);
    BadModel::new(tiny.bytes_with_tensors(&tensors))
}

fn with_tensor(tiny: &TinyModel, name: &str, change: impl FnOnce(&mut Tensor)) -> BadModel {
    with_tensors(tiny, |tensors| {
        change(
            tensors
                .iter_mut()
                .find(|tensor| tensor.name == name)
                .unwrap(),
        );
    })
}

#[test]
fn nan_weights() {
    let tiny = TinyModel::default();
    for (name, options) in [
        ("blk.1.attn_v.weight", &["--method", "low-rank"][..]),
        ("blk.1.attn_v.weight", &["--method", "shared-basis"]),
        ("blk.0.ffn_down.weight", &["--method", "low-rank"]),
        ("blk.0.ffn_down.weight", &["--method", "shared-basis"]),
        ("blk.1.ffn_norm.weight", &[]),
        ("token_embd.weight", &[]),
        ("output_norm.weight", &[]),
    ] {
        let bad = with_tensor(&tiny, name, |tensor| {
            let last = tensor.values.len() - 1;
            tensor.values[last] = f32::NAN;
        });
        let options = [options, &["--rank", "8"]].concat();
        let outcome = bad.compile_with(&options);
        outcome.assert_refused(1, &["model.gguf", name, "NaN", "finite"]);
        bad.run().assert_refused(1, &["model.gguf", "finite"]);
        bad.eval().assert_refused(1, &["model.gguf", "finite"]);
    }
}

#[test]
fn infinite_weights() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let tiny = TinyModel {
            dtype,
            ..TinyModel::default()
        };
        for name in [
            "blk.0.attn_q.weight",
            "blk.1.ffn_up.weight",
            "token_embd.weight",
        ] {
            let bad = with_tensor(&tiny, name, |tensor| tensor.values[70] = f32::NEG_INFINITY);
            let outcome = bad.compile_with(&["--rank", "8"]);
            outcome.assert_refused(1, &["model.gguf", name, "inf", "finite"]);
        }
    }
}

#[test]
fn nan_scales_of_blocks() {
    let tiny = TinyModel {
        dtype: DType::Q8_0,
        ffn: 160,
        ..TinyModel::default()
    };
    for name in ["blk.0.attn_q.weight", "token_embd.weight"] {
        let mut bytes = tiny.bytes();
        let row = tensor_row(&bytes, name);
        let offset = htc_tests::raw::get_u64(&bytes, row.offset) as usize;
        let end = tensor_row(&bytes, "output_norm.weight").offset + 8;
        let start = end.next_multiple_of(32) + offset;
        bytes[start..start + 2].copy_from_slice(&[0xff, 0x7f]);
        let bad = BadModel::new(bytes);
        let outcome = bad.compile_with(&["--rank", "8"]);
        outcome.assert_refused(1, &["model.gguf", name, "finite"]);
    }
}

#[test]
fn weights_too_large_for_the_factor_type() {
    let tiny = TinyModel::default();
    let bad = with_tensor(&tiny, "blk.1.ffn_up.weight", |tensor| {
        tensor.values.iter_mut().for_each(|value| *value *= 1e12);
    });
    for factor_type in ["f16", "q8_0"] {
        let outcome = bad.compile_with(&["--rank", "32", "--factor-type", factor_type]);
        outcome.assert_refused(1, &["model.gguf", "blk.1.ffn_up.weight"]);
    }
    bad.compile_with(&["--rank", "32", "--factor-type", "f32"])
        .assert_ok();
}

#[test]
fn unsupported_tensor_type() {
    let mut bytes = TinyModel::default().bytes();
    let row = tensor_row(&bytes, "blk.1.attn_k.weight");
    put_u32(&mut bytes, row.kind, 40);
    let bad = BadModel::new(bytes);
    bad.assert_no_model(&["blk.1.attn_k.weight", "NVFP4", "q8_0", "q4_k"]);
    assert!(bad.inspect().assert_ok().text().contains("NVFP4"));
}

#[test]
fn unknown_architecture() {
    for name in ["bert", "mamba", "", "LLAMA"] {
        let tiny = TinyModel::default().with("general.architecture", text(name));
        BadModel::new(tiny.bytes()).assert_no_model(&["architecture", name, "llama"]);
    }
}

#[test]
fn absent_architecture() {
    let tiny = TinyModel::default().with("general.architecture", None);
    BadModel::new(tiny.bytes()).assert_no_model(&["general.architecture", "missing"]);
}

#[test]
fn absent_tokenizer() {
    let tiny = TinyModel::default().with("tokenizer.ggml.model", None);
    let bad = BadModel::new(tiny.bytes());
    bad.assert_no_model(&["tokenizer"]);
    bad.tokenize()
        .assert_refused(1, &["model.gguf", "tokenizer"]);
}

#[test]
fn absent_tokens() {
    for key in ["tokenizer.ggml.tokens", "tokenizer.ggml.scores"] {
        let bad = BadModel::new(TinyModel::default().with(key, None).bytes());
        bad.assert_no_model(&[key, "missing"]);
        bad.tokenize()
            .assert_refused(1, &["model.gguf", key, "missing"]);
    }
}

#[test]
fn damaged_tokenizer() {
    let numbers = |count: usize| Value::Array(Array::F32(vec![0.0; count]));
    let count = htc_tests::model::vocabulary().len();
    let mut scores = vec![0.0; count];
    scores[77] = f32::NAN;
    for (key, value, words) in [
        ("tokenizer.ggml.scores", numbers(5), &["scores", "5"][..]),
        (
            "tokenizer.ggml.scores",
            Value::Array(Array::F32(scores)),
            &["77", "NaN"],
        ),
        (
            "tokenizer.ggml.tokens",
            numbers(count),
            &["tokenizer.ggml.tokens"],
        ),
        (
            "tokenizer.ggml.token_type",
            Value::Array(Array::I32(vec![9; count])),
            &["type", "9"],
        ),
        (
            "tokenizer.ggml.bos_token_id",
            Value::U32(4_000_000),
            &["BOS", "4000000"],
        ),
        (
            "tokenizer.ggml.eos_token_id",
            Value::I32(-3),
            &["eos", "-3"],
        ),
    ] {
        let bad = BadModel::new(TinyModel::default().with(key, value).bytes());
        bad.assert_no_model(words);
        bad.tokenize().assert_refused(1, words);
    }
}

#[test]
fn vocabulary_of_another_size_than_the_embedding() {
    let bad = with_tensor(&TinyModel::default(), "token_embd.weight", |tensor| {
        tensor.rows -= 10;
        tensor.values.truncate(tensor.rows * tensor.cols);
    });
    bad.assert_no_model(&["vocabulary", "299", "289"]);
}

#[test]
fn impossible_hyper_parameters() {
    for (key, value, words) in [
        ("llama.attention.head_count", 0, &["head"][..]),
        ("llama.attention.head_count", 3_000_000_000, &["head"]),
        ("llama.attention.head_count_kv", 3, &["head", "3"]),
        ("llama.attention.head_count_kv", 0, &["head", "0"]),
        ("llama.block_count", 0, &["layers", "0"]),
        (
            "llama.block_count",
            4_000_000_000,
            &["layers", "4000000000"],
        ),
        ("llama.embedding_length", 0, &["width", "0"]),
        (
            "llama.embedding_length",
            4_000_000_000,
            &["width", "4000000000"],
        ),
        (
            "llama.feed_forward_length",
            4_000_000_000,
            &["ffn", "4000000000"],
        ),
        ("llama.context_length", 0, &["context", "0"]),
        ("llama.attention.key_length", 5, &["5"]),
        ("llama.rope.dimension_count", 7, &["rope", "7"]),
        ("llama.rope.dimension_count", 32, &["rope", "32"]),
    ] {
        let tiny = TinyModel::default().with(key, Value::U32(value));
        BadModel::new(tiny.bytes()).assert_no_model(words);
    }
    for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        for key in [
            "llama.attention.layer_norm_rms_epsilon",
            "llama.rope.freq_base",
        ] {
            let tiny = TinyModel::default().with(key, Value::F32(value));
            BadModel::new(tiny.bytes()).assert_no_model(&["positive"]);
        }
    }
}

#[test]
fn absent_or_mistyped_hyper_parameters() {
    for key in [
        "llama.block_count",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
        "llama.context_length",
    ] {
        let absent = TinyModel::default().with(key, None);
        BadModel::new(absent.bytes()).assert_no_model(&[key, "missing"]);
        let mistyped = TinyModel::default().with(key, text("many"));
        BadModel::new(mistyped.bytes()).assert_no_model(&[key, "many"]);
    }
}

#[test]
fn mixtures_of_experts_and_other_scalings_of_positions() {
    let experts = TinyModel::default().with("llama.expert_count", Value::U32(8));
    BadModel::new(experts.bytes()).assert_no_model(&["llama.expert_used_count", "missing"]);
    let experts = experts.with("llama.expert_used_count", Value::U32(2));
    BadModel::new(experts.bytes()).assert_no_model(&["blk.0.ffn_gate_inp.weight", "missing"]);
    let yarn = TinyModel::default().with("llama.rope.scaling.type", text("yarn"));
    BadModel::new(yarn.bytes()).assert_no_model(&["yarn", "linear"]);
}

#[test]
fn missing_tensor() {
    for name in [
        "token_embd.weight",
        "blk.0.attn_norm.weight",
        "blk.1.ffn_down.weight",
        "output_norm.weight",
    ] {
        let bad = with_tensors(&TinyModel::default(), |tensors| {
            tensors.retain(|tensor| tensor.name != name);
        });
        bad.assert_no_model(&[name, "missing"]);
    }
}

#[test]
fn vocabulary_without_weights() {
    let bad = BadModel::new(TinyModel::default().vocabulary_only());
    bad.assert_no_model(&["missing", "vocabulary"]);
}

#[test]
fn superfluous_tensor() {
    let bad = with_tensors(&TinyModel::default(), |tensors| {
        let mut bias = tensors[1].clone();
        bias.name = "blk.0.attn_norm.bias".to_owned();
        tensors.push(bias);
    });
    bad.assert_no_model(&["blk.0.attn_norm.bias"]);
}

#[test]
fn tensor_of_another_shape() {
    let mut bytes = TinyModel::default().bytes();
    let row = tensor_row(&bytes, "blk.0.ffn_gate.weight");
    put_u64(&mut bytes, row.dims, 172);
    put_u64(&mut bytes, row.dims + 8, 64);
    let words = ["blk.0.ffn_gate.weight", "[64, 172]", "[172, 64]"];
    BadModel::new(bytes).assert_no_model(&words);
}
