//! RoPE parameters of Hugging Face configurations, in old and new forms.

use crate::safetensors_common::{LAYERS, TYPES, computed, hyper, refused, refused_value, small};
use htc_formats::architecture::BindError;
use htc_formats::model::{LongRope, Role};
use serde_json::{Value, json};

#[test]
fn rotation_is_read_in_both_styles() {
    for model_type in TYPES {
        for keys in [
            json!({"rope_theta": 5000}),
            json!({"rope_theta": 5000.0, "rope_scaling": null}),
            json!({"rope_theta": 5000.0, "rope_scaling": {}}),
        ] {
            assert_eq!(hyper(model_type, keys).rope_theta, 5000.0, "{model_type}");
        }
        if model_type == "gemma3_text" {
            continue;
        }
        for keys in [
            json!({"rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"}}),
            json!({"rope_parameters": {"rope_theta": 5000.0}, "rope_theta": 7.0}),
            json!({"rope_parameters": {"rope_type": "default"}, "rope_theta": 5000.0}),
        ] {
            assert_eq!(hyper(model_type, keys).rope_theta, 5000.0, "{model_type}");
        }
    }
    for model_type in ["llama", "mistral", "qwen2", "qwen3", "gemma2"] {
        for keys in [
            json!({"rope_scaling": {"type": "linear", "factor": 4}}),
            json!({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
            json!({"rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
            json!({
                "rope_scaling": {"type": "linear", "factor": 4.0},
                "rope_parameters": {"rope_type": "linear", "factor": 2.0},
            }),
        ] {
            assert_eq!(
                hyper(model_type, keys).rope_linear_scale,
                4.0,
                "{model_type}"
            );
        }
    }
}

#[test]
fn layers_with_a_window_may_have_other_rope_parameters() {
    let read = |keys: Value| {
        let found = hyper("gemma3_text", keys);
        let sliding = found.forward.sliding_window.unwrap().rope_theta.unwrap();
        (found.rope_theta, found.rope_linear_scale, sliding)
    };
    assert_eq!(read(json!({})), (1e6, 1.0, 1e4));
    assert_eq!(
        read(json!({"rope_theta": 5e5, "rope_local_base_freq": 500})),
        (5e5, 1.0, 500.0)
    );
    let scaling = json!({"rope_scaling": {"factor": 8.0, "rope_type": "linear"}});
    assert_eq!(read(scaling), (1e6, 8.0, 1e4));
    let both = json!({"rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
    }});
    assert_eq!(read(both), (2e6, 8.0, 3e4));
    let one = json!({"rope_parameters": {"full_attention": {"rope_theta": 2e6}}});
    assert_eq!(read(one), (2e6, 1.0, 1e4));
    let none = json!({"rope_parameters": {"full_attention": null, "sliding_attention": null}});
    assert_eq!(read(none), (1e6, 1.0, 1e4));

    for (parameters, key) in [
        (json!({"rope_theta": 1e6}), "rope_parameters.rope_theta"),
        (
            json!({"sliding_attention": {"rope_type": "linear", "factor": 2.0}}),
            "rope_parameters.sliding_attention.rope_type",
        ),
        (
            json!({"full_attention": {"rope_type": "longrope"}}),
            "rope_parameters.full_attention.rope_type",
        ),
    ] {
        let keys = json!({ "rope_parameters": parameters });
        assert_eq!(refused_value("gemma3_text", keys).0, key);
    }
    let keys = json!({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}});
    for model_type in TYPES.into_iter().filter(|t| *t != "gemma3_text") {
        let (key, _) = refused_value(model_type, keys.clone());
        assert_eq!(key, "rope_parameters.full_attention", "{model_type}");
    }
}

#[test]
fn unsupported_rope_types_are_refused_by_name() {
    for model_type in TYPES {
        for kind in ["dynamic", "yarn", "su", "ntk", "proportional", "new\nkind"] {
            if model_type == "phi3" && ["yarn", "su"].contains(&kind) {
                continue;
            }
            for key in ["type", "rope_type"] {
                let scaling = json!({key: kind, "factor": 2.0});
                let (said, found) = refused_value(model_type, json!({ "rope_scaling": scaling }));
                assert_eq!(said, format!("rope_scaling.{key}"), "{model_type}");
                assert_eq!(found, format!("\"{}\"", kind.replace('\n', "\\\\n")));
            }
        }
    }
    for kind in ["linear", "llama3"] {
        let (_, found) = refused_value("phi3", json!({"rope_scaling": {"type": kind}}));
        assert_eq!(found, format!("{kind:?}"));
    }
    for factor in [json!(0), json!(-2.0), json!(1e300), json!(1e-300)] {
        let scaling = json!({"type": "linear", "factor": factor});
        let (key, _) = refused_value("llama", json!({ "rope_scaling": scaling }));
        assert_eq!(key, "rope_scaling.factor");
    }
    for (scaling, key) in [
        (json!({"type": "linear"}), "rope_scaling.factor"),
        (json!({"type": "longrope"}), "rope_scaling.short_factor"),
        (
            json!({"type": "llama3", "factor": 8.0}),
            "rope_scaling.low_freq_factor",
        ),
    ] {
        match refused("llama", json!({ "rope_scaling": scaling })) {
            BindError::MissingKey { key: said, .. } => assert_eq!(said, key),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn partial_rotation_is_read_for_supporting_types() {
    for keys in [
        json!({"partial_rotary_factor": 0.5}),
        json!({"rope_parameters": {"partial_rotary_factor": 0.5}}),
    ] {
        assert_eq!(hyper("phi3", keys.clone()).rope_dimensions, 2);
        assert!(
            refused_value("llama", keys)
                .0
                .ends_with("partial_rotary_factor")
        );
    }
    assert_eq!(
        hyper("llama", json!({"partial_rotary_factor": 1})).rope_dimensions,
        4
    );
    for part in [
        json!(0.0),
        json!(-1.0),
        json!(1.5),
        json!(0.3),
        json!(1e300),
    ] {
        let error = refused("phi3", json!({ "partial_rotary_factor": part }));
        assert!(matches!(error, BindError::Hyper(_)), "{error}");
    }
}

#[test]
fn llama_3_scaling_becomes_frequency_divisors() {
    let mut model = small("llama");
    model.with(json!({
        "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64,
        "max_position_embeddings": 131072,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        },
        "rope_theta": 500000.0,
    }));
    for layer in 0..LAYERS {
        for name in ["q", "k", "v"] {
            model.add(
                &format!("model.layers.{layer}.self_attn.{name}_proj.weight"),
                &[64, 8],
            );
        }
        model.add(
            &format!("model.layers.{layer}.self_attn.o_proj.weight"),
            &[8, 64],
        );
    }
    let found = computed(&model, Role::RopeFactors);
    assert_eq!(found.len(), 32);
    let mut kinds = [0; 3];
    for (i, found) in found.iter().enumerate() {
        let wave = 2.0 * std::f64::consts::PI * 500_000f64.powf(i as f64 / 32.0);
        let (kind, expected) = if wave < 8192.0 / 4.0 {
            (0, 1.0)
        } else if wave > 8192.0 / 1.0 {
            (1, 8.0)
        } else {
            let smooth = (8192.0 / wave - 1.0) / (4.0 - 1.0);
            (2, 1.0 / ((1.0 - smooth) / 8.0 + smooth))
        };
        kinds[kind] += 1;
        assert!(
            (f64::from(*found) / expected - 1.0).abs() < 1e-6,
            "{i}: {found} {expected}"
        );
    }
    assert!(kinds.iter().all(|&kind| kind > 0), "{kinds:?}");

    let mut short = model.clone();
    short.config["rope_scaling"]
        .as_object_mut()
        .unwrap()
        .remove("original_max_position_embeddings");
    short.with(json!({"max_position_embeddings": 1 << 30}));
    assert!(
        computed(&short, Role::RopeFactors)
            .iter()
            .all(|&x| x == 1.0)
    );

    for (key, value) in [
        ("factor", json!(0)),
        ("low_freq_factor", json!(-1)),
        ("high_freq_factor", json!(1.0)),
        ("high_freq_factor", json!(1e300)),
    ] {
        let mut wrong = model.clone();
        wrong.config["rope_scaling"][key] = value;
        match wrong.refused() {
            BindError::KeyValue { key: said, .. } => {
                assert_eq!(said, format!("rope_scaling.{key}"));
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn long_rope_has_divisors_for_short_and_long_contexts() {
    let scaling = json!({"type": "longrope", "short_factor": [1, 1.5], "long_factor": [2.0, 30]});
    for kind in ["longrope", "su", "yarn"] {
        let mut model = small("phi3");
        model.with(json!({
            "max_position_embeddings": 131072,
            "original_max_position_embeddings": 4096,
            "rope_scaling": scaling,
        }));
        model.config["rope_scaling"]["type"] = kind.into();
        assert_eq!(computed(&model, Role::RopeFactors), [1.0, 1.5]);
        assert_eq!(computed(&model, Role::LongRopeFactors), [2.0, 30.0]);
        let (hyper, tensors) = model.bind().unwrap();
        let long = hyper.forward.long_rope.unwrap();
        assert_eq!(long.original_context, 4096);
        // Values of Phi-3-mini-128k.
        assert!((f64::from(long.attention_factor) - 1.190_238_071_423_808_3).abs() < 1e-7);
        let name = &tensors
            .iter()
            .find(|t| t.role == Role::LongRopeFactors)
            .unwrap()
            .name;
        assert_eq!(name, "rope_scaling.long_factor");
    }
    let long = |keys: Value, more: Value| {
        let mut model = small("phi3");
        model.with(json!({"rope_parameters": scaling})).with(keys);
        let parameters = model.config["rope_parameters"].as_object_mut().unwrap();
        parameters.extend(more.as_object().unwrap().clone());
        model
            .bind()
            .map(|(hyper, _)| hyper.forward.long_rope.unwrap())
    };
    let is = |original_context, attention_factor| LongRope {
        original_context,
        attention_factor,
    };
    let plain = json!({});
    assert_eq!(long(plain.clone(), plain.clone()).unwrap(), is(4096, 1.0));
    let inner = json!({"original_max_position_embeddings": 32});
    assert_eq!(
        long(plain.clone(), inner.clone()).unwrap().original_context,
        32
    );
    assert_eq!(
        long(inner.clone(), inner.clone()).unwrap().original_context,
        32
    );
    // sqrt(1 + ln 2 / ln 32).
    let factor = (1.0f64 + 0.2).sqrt() as f32;
    assert!((long(inner.clone(), plain.clone()).unwrap().attention_factor - factor).abs() < 1e-7);
    let stated = json!({"factor": 1024.0});
    let factor = (1.0f64 + 2.0).sqrt() as f32;
    assert!(
        (long(inner.clone(), stated.clone())
            .unwrap()
            .attention_factor
            - factor)
            .abs()
            < 1e-7
    );
    let stated = json!({"factor": 1024.0, "attention_factor": 1.25});
    assert_eq!(long(inner, stated).unwrap(), is(32, 1.25));

    let outer = json!({"original_max_position_embeddings": 32});
    let inner = json!({"original_max_position_embeddings": 33});
    let error = long(outer, inner).unwrap_err();
    assert!(matches!(error, BindError::KeyValue { .. }), "{error}");
    for (key, value) in [
        ("long_factor", json!([1.0])),
        ("short_factor", json!([1.0, 1.0, 1.0])),
        ("short_factor", json!([1.0, 0.0])),
        ("short_factor", json!([1.0, "1"])),
        ("long_factor", json!([1.0, 1e300])),
        ("rope_type", json!("linear")),
    ] {
        let error = long(plain.clone(), json!({key: value})).unwrap_err();
        match error {
            BindError::KeyValue { key: said, .. } => {
                assert_eq!(said, format!("rope_parameters.{key}"));
            }
            other => panic!("{other}"),
        }
    }
    for (key, value) in [
        ("attention_factor", json!(0)),
        ("original_max_position_embeddings", json!(0)),
    ] {
        let error = long(plain.clone(), json!({key: value})).unwrap_err();
        assert!(matches!(error, BindError::Hyper(_)), "{error}");
    }
}
