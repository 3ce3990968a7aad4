//! Configurations in Hugging Face's old and new forms.

use crate::safetensors_common::{
    FFN, HEAD, LAYERS, TOKENS, TYPES, WIDTH, computed, hyper, numbers, refused, refused_value,
    small,
};
use htc_formats::architecture::{BindError, Place, WeightFile, bind_hugging_face};
use htc_formats::model::{Activation, Forward, HyperParameters, Role, RopePairs, SlidingWindow};
use htc_formats::safetensors::Contents;
use serde_json::{Value, json};

fn window(model_type: &str, keys: Value) -> Option<SlidingWindow> {
    hyper(model_type, keys).forward.sliding_window
}

#[test]
fn defaults_match_transformers() {
    // The defaults of transformers 5.
    for model_type in TYPES {
        let gemma = model_type.starts_with("gemma");
        let expected = HyperParameters {
            architecture: match model_type {
                "mistral" => "llama",
                "gemma3_text" => "gemma3",
                other => other,
            }
            .to_owned(),
            name: None,
            vocabulary: TOKENS as usize,
            context: 64,
            width: WIDTH as usize,
            layers: LAYERS as usize,
            heads: 4,
            kv_heads: 2,
            head_size: HEAD as usize,
            ffn: FFN as usize,
            norm_epsilon: if model_type == "phi3" { 1e-5 } else { 1e-6 },
            rope_theta: if model_type == "gemma3_text" {
                1e6
            } else {
                1e4
            },
            rope_dimensions: HEAD as usize,
            rope_linear_scale: 1.0,
            forward: Forward {
                rope_pairs: RopePairs::Halves,
                activation: if gemma {
                    Activation::GeluTanh
                } else {
                    Activation::Silu
                },
                embedding_scale: gemma.then(|| 8f32.sqrt()),
                attention_scale: gemma.then_some(1.0 / 16.0),
                attention_softcap: (model_type == "gemma2").then_some(50.0),
                logit_softcap: (model_type == "gemma2").then_some(30.0),
                sliding_window: match model_type {
                    "mistral" => Some((vec![], None)),
                    "gemma2" => Some((vec![1], None)),
                    "gemma3_text" => Some((vec![], Some(1e4))),
                    _ => None,
                }
                .map(|(full_layers, rope_theta)| SlidingWindow {
                    positions: 4096,
                    full_layers,
                    rope_theta,
                }),
                long_rope: None,
                experts: None,
            },
        };
        let (found, tensors) = small(model_type).bind().unwrap();
        assert_eq!(found, expected, "{model_type}");
        assert!(tensors.iter().map(|t| t.role.execution_order()).is_sorted());
    }
}

#[test]
fn every_tensor_has_its_role_and_bytes() {
    for (model_type, per_layer) in [
        ("llama", 9),
        ("mistral", 9),
        ("qwen2", 12),
        ("qwen3", 11),
        ("gemma2", 11),
        ("gemma3_text", 13),
        ("phi3", 9),
    ] {
        let model = small(model_type);
        let (_, tensors) = model.bind().unwrap();
        let gemma = model_type.starts_with("gemma");
        let outside = if gemma { 2 } else { 3 };
        assert_eq!(
            tensors.len(),
            outside + per_layer * LAYERS as usize,
            "{model_type}"
        );
        let file = model.file(|_| true);
        for tensor in &tensors {
            let stored = &model.tensors[&tensor.name];
            match &tensor.place {
                Place::File { index: 0, range } => {
                    let found = &file[range.clone()];
                    let at = stored
                        .bytes
                        .windows(found.len())
                        .position(|part| part == found);
                    assert!(
                        at.is_some_and(|at| at % 4 == 0),
                        "{model_type} {}",
                        tensor.role
                    );
                    assert_eq!(found.len(), 4 * tensor.rows * tensor.cols);
                }
                Place::File { .. } => panic!("there is one file"),
                Place::Computed(_) => {
                    assert!(gemma, "{model_type} {}", tensor.role);
                    let plus_one: Vec<f32> = stored
                        .bytes
                        .chunks(4)
                        .map(|b| 1.0 + f32::from_le_bytes(b.try_into().unwrap()))
                        .collect();
                    assert_eq!(numbers(tensor), plus_one, "{model_type} {}", tensor.role);
                }
            }
        }
        let computed = tensors
            .iter()
            .filter(|t| matches!(t.place, Place::Computed(_)));
        let norms = match model_type {
            "gemma2" => 4 * LAYERS + 1,
            "gemma3_text" => 6 * LAYERS + 1,
            _ => 0,
        };
        assert_eq!(computed.count() as u64, norms, "{model_type}");
    }
}

#[test]
fn fused_projections_are_split_in_order() {
    let model = small("phi3");
    let (_, tensors) = model.bind().unwrap();
    let file = model.file(|_| true);
    let name = "model.layers.1.self_attn.qkv_proj.weight";
    let parts: Vec<u8> = tensors
        .iter()
        .filter(|t| t.name == name)
        .flat_map(|t| match &t.place {
            Place::File { range, .. } => file[range.clone()].to_vec(),
            Place::Computed(_) => panic!("{} is computed", t.role),
        })
        .collect();
    assert_eq!(parts, model.tensors[name].bytes);
    let roles: Vec<String> = tensors
        .iter()
        .filter(|t| t.name == name || t.name.ends_with("1.mlp.gate_up_proj.weight"))
        .map(|t| format!("{} {}", t.role, t.rows))
        .collect();
    assert_eq!(
        roles,
        [
            "blk.1.attn_q.weight 16",
            "blk.1.attn_k.weight 8",
            "blk.1.attn_v.weight 8",
            "blk.1.ffn_gate.weight 12",
            "blk.1.ffn_up.weight 12"
        ]
    );
}

#[test]
fn gemma_norms_of_every_float_type_gain_one() {
    let name = "model.layers.2.self_attn.k_norm.weight";
    for (dtype, codes) in [
        ("F16", [0xb800u16, 0x3e00, 0, 0x4000]),
        ("BF16", [0xbf00, 0x3fc0, 0, 0x4000]),
    ] {
        let mut model = small("gemma3_text");
        let tensor = model.tensors.get_mut(name).unwrap();
        tensor.dtype = dtype;
        tensor.bytes = codes.iter().flat_map(|code| code.to_le_bytes()).collect();
        assert_eq!(
            computed(&model, Role::KeyNorm { layer: 2 }),
            [0.5, 2.5, 1.0, 3.0]
        );
    }
}

#[test]
fn null_means_none_for_optional_keys() {
    let found = hyper("llama", json!({"num_key_value_heads": 2, "head_dim": 4}));
    assert_eq!(found.kv_heads, 2);
    let mut model = small("llama");
    model.with(json!({"num_key_value_heads": null, "num_attention_heads": 2, "head_dim": null}));
    for layer in 0..LAYERS {
        for name in ["q", "k", "v"] {
            model.add(
                &format!("model.layers.{layer}.self_attn.{name}_proj.weight"),
                &[8, 8],
            );
        }
        model.add(
            &format!("model.layers.{layer}.self_attn.o_proj.weight"),
            &[8, 8],
        );
    }
    let found = model.bind().unwrap().0;
    assert_eq!((found.heads, found.kv_heads, found.head_size), (2, 2, 4));

    let caps = json!({"attn_logit_softcapping": null, "final_logit_softcapping": null});
    let found = hyper("gemma2", caps).forward;
    assert_eq!((found.attention_softcap, found.logit_softcap), (None, None));
    let caps = json!({"attn_logit_softcapping": 20, "final_logit_softcapping": 7.5});
    for model_type in ["gemma2", "gemma3_text"] {
        let found = hyper(model_type, caps.clone()).forward;
        assert_eq!(
            (found.attention_softcap, found.logit_softcap),
            (Some(20.0), Some(7.5))
        );
    }
    assert_eq!(hyper("llama", caps).forward.attention_softcap, None);

    for key in ["hidden_size", "vocab_size", "rms_norm_eps", "hidden_act"] {
        match refused("llama", json!({key: null})) {
            BindError::WrongKeyType {
                key: said, found, ..
            } => {
                assert_eq!((said.as_str(), found.as_str()), (key, "null"));
            }
            other => panic!("{other}"),
        }
    }
    let nulls = json!({"tie_word_embeddings": null, "attention_bias": null, "mlp_bias": null});
    assert_eq!(hyper("llama", nulls), hyper("llama", json!({})));
}

#[test]
fn attention_scale_is_derived_from_the_stated_square() {
    let scale = |keys| hyper("gemma2", keys).forward.attention_scale;
    assert_eq!(scale(json!({"query_pre_attn_scalar": 4})), None);
    assert_eq!(
        scale(json!({"query_pre_attn_scalar": 144})),
        Some(1.0 / 12.0)
    );
    assert_eq!(scale(json!({"query_pre_attn_scalar": 0.25})), Some(2.0));
    for scalar in [json!(0), json!(-1)] {
        let error = refused("gemma2", json!({"query_pre_attn_scalar": scalar}));
        assert!(matches!(error, BindError::Hyper(_)), "{error}");
    }
}

#[test]
fn sliding_windows_are_read_for_each_type() {
    let some = |positions, full_layers: &[usize]| {
        Some(SlidingWindow {
            positions,
            full_layers: full_layers.to_vec(),
            rope_theta: None,
        })
    };
    assert_eq!(
        window(
            "llama",
            json!({"sliding_window": 7, "use_sliding_window": true})
        ),
        None
    );
    for model_type in ["mistral", "phi3"] {
        assert_eq!(window(model_type, json!({"sliding_window": null})), None);
        assert_eq!(
            window(model_type, json!({"sliding_window": 7})),
            some(7, &[])
        );
        let types = ["sliding_attention"; 3];
        let keys = json!({"sliding_window": 7, "layer_types": types});
        assert_eq!(window(model_type, keys), some(7, &[]));
        let types = ["full_attention", "sliding_attention", "sliding_attention"];
        let keys = json!({"sliding_window": 7, "layer_types": types});
        assert_eq!(refused_value(model_type, keys).0, "layer_types");
    }
    for model_type in ["qwen2", "qwen3"] {
        let window = |keys| window(model_type, keys);
        assert_eq!(window(json!({"sliding_window": 7})), None);
        let on = json!({"use_sliding_window": true, "sliding_window": 7});
        assert_eq!(window(on.clone()), None);
        let mut keys = on.clone();
        keys["max_window_layers"] = 1.into();
        assert_eq!(window(keys), some(7, &[0]));
        let mut keys = on.clone();
        keys["max_window_layers"] = 0.into();
        assert_eq!(window(keys), some(7, &[]));
        let mut keys = on.clone();
        keys["layer_types"] = json!(["full_attention", "sliding_attention", "full_attention"]);
        assert_eq!(window(keys.clone()), some(7, &[0, 2]));
        keys["use_sliding_window"] = false.into();
        assert_eq!(refused_value(model_type, keys).0, "layer_types");
    }
    let types = json!({"layer_types": ["full_attention", "sliding_attention", "full_attention"]});
    assert_eq!(window("gemma2", types.clone()), some(4096, &[0, 2]));
    assert_eq!(
        window("gemma2", json!({"sliding_window": 5})),
        some(5, &[1])
    );
    let full = json!({"layer_types": (vec!["full_attention"; 3])});
    assert_eq!(window("gemma2", full.clone()), None);
    assert_eq!(window("gemma3_text", full), None);
    for (every, full) in [
        (1, None),
        (2, Some(vec![1])),
        (3, Some(vec![2])),
        (6, Some(vec![])),
    ] {
        let expected = full.map(|full_layers| SlidingWindow {
            positions: 4096,
            full_layers,
            rope_theta: Some(1e4),
        });
        for key in ["sliding_window_pattern", "_sliding_window_pattern"] {
            assert_eq!(
                window("gemma3_text", json!({key: every})),
                expected,
                "{key} {every}"
            );
        }
    }
    let pattern = json!({"sliding_window_pattern": 0});
    assert_eq!(
        refused_value("gemma3_text", pattern).0,
        "sliding_window_pattern"
    );
    for model_type in ["gemma2", "gemma3_text"] {
        let none = json!({"sliding_window": null});
        assert_eq!(refused_value(model_type, none).0, "sliding_window");
        let none = json!({"sliding_window": 0});
        assert!(matches!(refused(model_type, none), BindError::Hyper(_)));
    }
    let types = json!({"layer_types": (vec!["full_attention"; 2])});
    assert_eq!(
        refused("qwen2", types),
        BindError::Pattern {
            layers: 3,
            found: 2
        }
    );
    let types = json!({"layer_types": ["full_attention", "full_attention", "chunked\nattention"]});
    assert_eq!(refused_value("qwen2", types).0, "layer_types.2");
}

#[test]
fn output_is_tied_as_configured() {
    let output = "lm_head.weight";
    let mut model = small("llama");
    model.remove(output);
    assert!(matches!(model.refused(), BindError::MissingTensor { tensor, .. } if tensor == output));
    model.with(json!({"tie_word_embeddings": true}));
    let (_, tied) = model.bind().unwrap();
    assert!(tied.iter().all(|t| t.role != Role::Output));
    let embedding = model.tensors["model.embed_tokens.weight"].clone();
    model.tensors.insert(output.to_owned(), embedding);
    let (_, again) = model.bind().unwrap();
    assert_eq!(again.len(), tied.len());
    model.add(output, &[TOKENS, WIDTH]);
    let error = model.refused();
    assert!(matches!(error, BindError::Tied { .. }), "{error}");
    model.with(json!({"tie_word_embeddings": false}));
    assert_eq!(model.bind().unwrap().1.len(), tied.len() + 1);
    let mut model = small("gemma2");
    assert_eq!(model.add(output, &[TOKENS, WIDTH]).refused(), error);
}

#[test]
fn biases_follow_the_configuration() {
    let with = |model_type: &str, names: &[&str], keys: Value| {
        let mut model = small(model_type);
        for layer in 0..LAYERS {
            for name in names {
                let rows = match *name {
                    "self_attn.q_proj" => 16,
                    "self_attn.k_proj" | "self_attn.v_proj" => 8,
                    "mlp.gate_proj" | "mlp.up_proj" => FFN,
                    _ => WIDTH,
                };
                model.add(&format!("model.layers.{layer}.{name}.bias"), &[rows]);
            }
        }
        model.with(keys);
        model
    };
    let attention = [
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
    ];
    let ffn = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];
    for (model_type, names, key) in [
        ("llama", &attention[..], "attention_bias"),
        ("llama", &ffn, "mlp_bias"),
        ("qwen3", &attention, "attention_bias"),
    ] {
        let plain = small(model_type).bind().unwrap().1.len();
        let (_, tensors) = with(model_type, names, json!({key: true})).bind().unwrap();
        assert_eq!(tensors.len(), plain + names.len() * LAYERS as usize);
        for keys in [json!({}), json!({key: false})] {
            match with(model_type, names, keys).refused() {
                BindError::Bias { key: said, .. } => {
                    assert_eq!(said, Some(key))
                }
                other => panic!("{other}"),
            }
        }
        let error = with(model_type, &names[1..], json!({key: true})).refused();
        assert!(matches!(error, BindError::MissingTensor { .. }), "{error}");
    }
    for (model_type, names) in [
        ("mistral", &attention[..]),
        ("mistral", &ffn),
        ("qwen3", &ffn),
    ] {
        let keys = json!({"attention_bias": true, "mlp_bias": true});
        match with(
            model_type,
            names,
            if model_type == "qwen3" {
                json!({})
            } else {
                keys
            },
        )
        .refused()
        {
            BindError::Bias { key, .. } => assert_eq!(key, None),
            other => panic!("{other}"),
        }
    }
    for (model_type, names) in [
        ("qwen2", &attention[3..]),
        ("gemma2", &attention),
        ("phi3", &ffn[2..]),
    ] {
        let error = with(model_type, names, json!({})).refused();
        assert!(
            matches!(error, BindError::UnexpectedTensors { .. }),
            "{error}"
        );
    }
    for key in ["attention_bias", "use_bidirectional_attention"] {
        for model_type in ["gemma2", "gemma3_text"] {
            assert_eq!(refused_value(model_type, json!({key: true})).0, key);
            hyper(model_type, json!({key: null}));
        }
    }
}

#[test]
fn numbers_that_are_not_finite_prevent_nothing_unless_they_are_used() {
    let with = |keys: &str| {
        let model = small("llama");
        let config = model.config.to_string();
        let config = format!("{}, {keys}}}", config.strip_suffix('}').unwrap());
        let bytes = model.file(|_| true);
        let contents = Contents::parse(&bytes).unwrap();
        let file = WeightFile {
            index: 0,
            bytes: &bytes,
            contents: &contents,
        };
        bind_hugging_face(config.as_bytes(), &[file])
    };
    let unused = with(r#""time_step_limit": [0.0, Infinity], "a": NaN, "b": {"c": -Infinity}"#);
    assert_eq!(unused.unwrap().0, hyper("llama", json!({})));
    for (number, key) in [
        ("Infinity", "rope_theta"),
        ("NaN", "rms_norm_eps"),
        ("-Infinity", "hidden_size"),
    ] {
        let error = with(&format!("{key:?}: {number}")).unwrap_err();
        match &error {
            BindError::WrongKeyType {
                key: named, found, ..
            } => assert_eq!((named.as_str(), found.as_str()), (key, number)),
            other => panic!("{other}"),
        }
    }
}
