use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::metadata::{FolderFiles, SourceMetadata};
use crate::model::LongRope;

/// Defaults of the configuration classes of transformers 5.
#[test]
fn sizes_have_defaults() {
    let (no_kv, no_window) = (0, 0);
    for (name, vocabulary, width, ffn, layers, heads, kv_heads, head_size, context, window) in [
        (
            "llama", 32_000, 4096, 11_008, 32, 32, no_kv, 128, 2048, no_window,
        ),
        (
            "mistral", 32_000, 4096, 14_336, 32, 32, 8, 128, 131_072, 4096,
        ),
        (
            "qwen2", 151_936, 4096, 22_016, 32, 32, 32, 128, 32_768, no_window,
        ),
        (
            "qwen3", 151_936, 4096, 22_016, 32, 32, 32, 128, 32_768, no_window,
        ),
        ("gemma2", 256_000, 2304, 9216, 26, 8, 4, 256, 8192, 4096),
        (
            "gemma3_text",
            262_208,
            2304,
            9216,
            26,
            8,
            4,
            256,
            131_072,
            4096,
        ),
        (
            "phi3", 32_064, 3072, 8192, 32, 32, no_kv, 96, 4096, no_window,
        ),
    ] {
        let json = format!("{{\"model_type\":\"{name}\"}}");
        let map = config::parse(json.as_bytes()).unwrap();
        let reader = Reader::new(&map).unwrap();
        reader.check_supported().unwrap();
        let (hyper, _) = reader.hyper_parameters().unwrap();
        hyper.check().unwrap();
        let found = (
            (hyper.vocabulary, hyper.width, hyper.ffn, hyper.layers),
            (hyper.heads, hyper.kv_heads, hyper.head_size, hyper.context),
            hyper
                .forward
                .sliding_window
                .map_or(0, |window| window.positions),
        );
        let kv_heads = if kv_heads == no_kv { heads } else { kv_heads };
        let expected = (
            (vocabulary, width, ffn, layers),
            (heads, kv_heads, head_size, context),
            window,
        );
        assert_eq!(found, expected, "{name}");
        assert_eq!(hyper.forward.attention_scale, None, "{name}");
    }
}

#[test]
fn window_of_experts_is_in_every_layer_if_it_is_used() {
    let json = r#"{"model_type": "qwen3_moe", "num_hidden_layers": 3, "max_window_layers": 3,
            "sliding_window": 16, "mlp_only_layers": null, "use_sliding_window": USED}"#;
    let window = |used: &str| {
        let map = config::parse(json.replace("USED", used).as_bytes()).unwrap();
        let reader = Reader::new(&map).unwrap();
        let (hyper, _) = reader.hyper_parameters().unwrap();
        hyper.forward.sliding_window
    };
    assert_eq!(window("false"), None);
    let used = window("true").unwrap();
    assert_eq!((used.positions, used.full_layers.len()), (16, 0));
}

const FACTS: ConfigFacts<'static> = ConfigFacts {
    tied: false,
    biases: &[],
    dtype: DType::F32,
    rope_factors: None,
    long_rope_factors: None,
    bos: None,
    eos: None,
};

/// Returns the keys written for a model and for variants of it that its type supports.
fn written_keys(hyper: &HyperParameters) -> BTreeSet<String> {
    let factors = vec![1.5; hyper.rope_dimensions / 2];
    let scaled = ConfigFacts {
        rope_factors: Some(&factors),
        long_rope_factors: Some(&factors),
        ..FACTS
    };
    let [mut partly, mut long, mut unlimited] = [hyper, hyper, hyper].map(Clone::clone);
    partly.rope_dimensions /= 2;
    long.forward.long_rope = Some(LongRope {
        original_context: hyper.context / 2,
        attention_factor: 1.0,
    });
    unlimited.forward.sliding_window = None;
    let written = HuggingFaceConfig::new(hyper, &FACTS).unwrap();
    let variants = [
        (&partly, &FACTS),
        (&long, &scaled),
        (hyper, &scaled),
        (&unlimited, &FACTS),
    ];
    let variants = variants.map(|(hyper, facts)| HuggingFaceConfig::new(hyper, facts));
    let all = variants.into_iter().flatten().chain([written]);
    all.flat_map(|written| written.json.into_iter().map(|(key, _)| key))
        .collect()
}

/// A key of the source would state another model than the export is.
#[test]
fn keys_of_a_source_do_not_replace_written_ones() {
    let mut keys = BTreeSet::new();
    for (model, _) in model_types::all() {
        let json = format!("{{\"model_type\":\"{}\"}}", model.name);
        let map = config::parse(json.as_bytes()).unwrap();
        let (hyper, _) = Reader::new(&map).unwrap().hyper_parameters().unwrap();
        keys.extend(written_keys(&hyper));
    }
    for key in [
        "attention_bias",
        "final_logit_softcapping",
        "layer_types",
        "max_window_layers",
        "moe_intermediate_size",
        "num_local_experts",
        "original_max_position_embeddings",
        "partial_rotary_factor",
        "query_pre_attn_scalar",
        "rope_local_base_freq",
        "use_sliding_window",
    ] {
        assert!(keys.contains(key), "{key}");
    }
    let config: serde_json::Map<_, _> = keys.into_iter().map(|key| (key, 1.into())).collect();
    let config = serde_json::to_string(&config).unwrap();
    let source = BTreeMap::from([("config.json".to_owned(), config)]);
    let made = SourceMetadata::Folder(source).to_folder(FolderFiles::default(), None, &[]);
    let copied: Vec<String> = made.config.into_iter().map(|(key, _)| key).collect();
    // These change nothing that the model computes.
    assert_eq!(copied, ["attention_dropout", "use_cache"]);
    assert_eq!(made.left_out, ["config.json: pad_token_id"]);
}

#[test]
fn experts_round_trip_through_config() {
    let read = |json: &str| {
        let map = config::parse(json.as_bytes()).unwrap();
        let reader = Reader::new(&map).unwrap();
        reader.hyper_parameters().unwrap().0
    };
    for (model_type, count, used, ffn, normalised) in [
        ("qwen3_moe", 128, 8, 768, false),
        ("mixtral", 8, 2, 14336, true),
    ] {
        let defaults = read(&format!("{{\"model_type\":\"{model_type}\"}}"));
        let expected = Experts {
            count,
            used,
            ffn,
            normalised,
        };
        assert_eq!(defaults.forward.experts, Some(expected), "{model_type}");
        let theta = if model_type == "mixtral" { 1e6 } else { 1e4 };
        assert_eq!(defaults.rope_theta, theta, "{model_type}");
        let other = Experts {
            count: 6,
            used: 3,
            ffn: 96,
            normalised: true,
        };
        let mut hyper = defaults.clone();
        hyper.forward.experts = Some(other);
        if model_type == "mixtral" {
            hyper.ffn = other.ffn;
        }
        let written = HuggingFaceConfig::new(&hyper, &FACTS).unwrap();
        let json = serde_json::to_string(&written.json).unwrap();
        assert_eq!(read(&json), hyper, "{json}");
    }
}
