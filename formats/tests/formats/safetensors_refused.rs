//! Unsupported configurations.

use crate::safetensors_common::{TYPES, hyper, refused, refused_value, small};
use htc_formats::architecture::{BindError, bind_hugging_face};
use serde_json::{Value, json};

#[test]
fn another_activation_is_refused_by_name() {
    for model_type in TYPES {
        let gemma = model_type.starts_with("gemma");
        let key = if gemma {
            "hidden_activation"
        } else {
            "hidden_act"
        };
        let (said, found) = refused_value(model_type, json!({key: "relu"}));
        assert_eq!((said.as_str(), found.as_str()), (key, "\"relu\""));
        let own = if gemma { "gelu_pytorch_tanh" } else { "swish" };
        hyper(model_type, json!({key: own}));
    }
}

#[test]
fn other_models_are_refused_by_name() {
    let all = "llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, gemma2, gemma3_text, phi3";
    let named = |keys: Value| {
        let error = refused("llama", keys);
        assert!(error.to_string().ends_with(all), "{error}");
        error
    };
    for found in ["gpt2", "gemma", "gemma3", "phi", "phi3small", "Llama", ""] {
        let expected = BindError::ModelType {
            found: found.to_owned(),
        };
        assert_eq!(named(json!({"model_type": found})), expected);
    }
    for found in ["qwen2_moe", "phimoe"] {
        let expected = BindError::ExpertModel {
            found: found.to_owned(),
        };
        assert_eq!(named(json!({"model_type": found})), expected);
    }
    for key in ["num_local_experts", "num_experts", "n_routed_experts"] {
        let expected = BindError::ExpertModel {
            found: "new".to_owned(),
        };
        assert_eq!(named(json!({"model_type": "new", key: 8})), expected);
    }
    for found in ["gemma3", "llava", "mllama"] {
        let expected = BindError::Vision {
            found: found.to_owned(),
        };
        let keys = json!({"model_type": found, "vision_config": {"hidden_size": 1}});
        assert_eq!(named(keys), expected);
    }
    let mut model = small("llama");
    let error = model.without("model_type").refused();
    assert!(matches!(error, BindError::MissingKey { .. }), "{error}");
}

#[test]
fn quantised_weights_are_refused_by_their_method() {
    for method in [
        "gptq",
        "awq",
        "bitsandbytes",
        "fp8",
        "mxfp4",
        "compressed-tensors",
    ] {
        let keys = json!({"quantization_config": {"quant_method": method, "bits": 4}});
        assert_eq!(
            refused("llama", keys),
            BindError::Quantised {
                method: method.to_owned()
            }
        );
    }
    assert!(matches!(
        refused("llama", json!({"quantization_config": {}})),
        BindError::Quantised { .. }
    ));
    hyper("llama", json!({"quantization_config": null}));
}

#[test]
fn malformed_configuration_is_refused() {
    let deep = format!("{{\"a\":{}", "[".repeat(1 << 20));
    for text in [
        "",
        "{",
        "[]",
        "null",
        "{} {}",
        "{\"model_type\": \"llama\", NaN}",
        &deep,
        "\u{feff}{}",
    ] {
        let error = bind_hugging_face(text.as_bytes(), &[]).unwrap_err();
        assert!(!error.to_string().contains('\n'), "{error}");
        assert!(matches!(error, BindError::ConfigJson { .. }), "{error}");
    }
    for (key, value) in [
        ("model_type", json!(["llama"])),
        ("hidden_size", json!(-8)),
        ("hidden_size", json!(8.0)),
        ("hidden_size", json!("8")),
        ("vocab_size", json!(true)),
        ("rms_norm_eps", json!("1e-5")),
        ("rope_theta", json!([1])),
        ("rope_scaling", json!("linear")),
        ("rope_parameters", json!([])),
        ("tie_word_embeddings", json!("yes")),
        ("quantization_config", json!("gptq")),
        ("attention_bias", json!(1)),
    ] {
        match refused("llama", json!({key: value})) {
            BindError::WrongKeyType { key: said, .. } => assert_eq!(said, key),
            other => panic!("{other}"),
        }
    }
    for (key, value) in [
        ("num_hidden_layers", json!(0)),
        ("num_hidden_layers", json!(u64::MAX)),
        ("num_attention_heads", json!(0)),
        ("num_attention_heads", json!(u64::MAX)),
        ("num_key_value_heads", json!(3)),
        ("head_dim", json!(u64::MAX)),
        ("head_dim", json!(3)),
        ("max_position_embeddings", json!(u64::MAX)),
        ("intermediate_size", json!(u64::MAX)),
        ("vocab_size", json!(0)),
        ("rms_norm_eps", json!(0)),
        ("rms_norm_eps", json!(1e300)),
        ("rope_theta", json!(-1)),
    ] {
        let error = refused("llama", json!({key: value}));
        assert!(matches!(error, BindError::Hyper(_)), "{key}: {error}");
    }
}
