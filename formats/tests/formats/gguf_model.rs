//! Binding of GGUF files to architectures.

use crate::gguf_common::{FFN, LAYERS, WIDTH, add_tensors, model_metadata, model_tensors};
use htc_formats::DType;
use htc_formats::architecture::{BindError, Remedy, bind};
use htc_formats::gguf::{Array, Contents, GgmlType, Gguf, GgufError, Value, Writer};
use htc_formats::model::{Forward, HyperParameters, Part, ProjectionKind, Role};
use htc_formats::source::{Container, ModelFile, SourceError};
use htc_formats::vocab::{TokenKind, VocabularyError};

fn parsed(writer: &Writer<'_>) -> Contents {
    Contents::parse(&writer.to_bytes().unwrap()).unwrap()
}

fn bound_with(key: &str, value: Value) -> Result<(), BindError> {
    let original = parsed(&model_metadata());
    let mut writer = Writer::new();
    for (k, v) in original.metadata().iter().filter(|(k, _)| k != key) {
        writer.metadata(k.as_str(), v.clone());
    }
    writer.metadata(key, value);
    add_tensors(&mut writer, &model_tensors());
    bind(&parsed(&writer)).map(|_| ())
}

#[test]
fn layer_count_is_checked_before_allocation() {
    let original = parsed(&model_metadata());
    let mut writer = Writer::new();
    for (k, v) in original
        .metadata()
        .iter()
        .filter(|(k, _)| k != "llama.block_count")
    {
        writer.metadata(k.as_str(), v.clone());
    }
    writer
        .metadata("llama.block_count", Value::U64(u64::MAX))
        .metadata("llama.attention.sliding_window", Value::U32(8))
        .metadata("llama.attention.sliding_window_pattern", Value::U32(2));
    add_tensors(&mut writer, &model_tensors());
    match bind(&parsed(&writer)).unwrap_err() {
        BindError::Hyper(error) => assert_eq!(error.name, "layers"),
        other => panic!("{other}"),
    }
}

fn refused_with(key: &str, value: Value) -> BindError {
    let error = bound_with(key, value).unwrap_err();
    assert!(!error.to_string().contains('\n'), "{error}");
    error
}

fn bound_after(change: impl FnOnce(&mut Vec<(String, Vec<u64>)>)) -> Result<(), BindError> {
    let mut tensors = model_tensors();
    change(&mut tensors);
    let mut writer = model_metadata();
    add_tensors(&mut writer, &tensors);
    bind(&parsed(&writer)).map(|_| ())
}

#[test]
fn tensors_are_in_the_order_of_execution() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, crate::gguf_common::tiny_model()).unwrap();
    let model = ModelFile::open_gguf(&path).unwrap();

    assert_eq!(model.container, Container::Gguf { version: 3 });
    let hyper = &model.hyper;
    assert_eq!(hyper.architecture, "llama");
    assert_eq!(hyper.name.as_deref(), Some("tiny"));
    assert_eq!((hyper.vocabulary, hyper.width, hyper.ffn), (5, 8, 12));
    assert_eq!((hyper.layers, hyper.context), (LAYERS, 64));
    assert_eq!((hyper.heads, hyper.kv_heads, hyper.head_size), (4, 2, 2));
    assert_eq!((hyper.norm_epsilon, hyper.rope_theta), (1e-5, 10_000.0));
    assert_eq!((hyper.rope_dimensions, hyper.rope_linear_scale), (2, 1.0));

    let mut expected = vec![Role::TokenEmbedding];
    for layer in 0..LAYERS {
        let linear = |projection| Role::Linear {
            layer,
            projection,
            part: Part::Weight,
        };
        expected.push(Role::AttentionNorm { layer });
        expected.extend(
            [
                ProjectionKind::Q,
                ProjectionKind::K,
                ProjectionKind::V,
                ProjectionKind::O,
            ]
            .map(linear),
        );
        expected.push(Role::FfnNorm { layer });
        expected.extend(
            [
                ProjectionKind::Gate,
                ProjectionKind::Up,
                ProjectionKind::Down,
            ]
            .map(linear),
        );
    }
    expected.push(Role::OutputNorm);
    let roles: Vec<Role> = model.tensors.iter().map(|tensor| tensor.role).collect();
    assert_eq!(roles, expected);

    for tensor in &model.tensors {
        if let Role::Linear { projection, .. } = tensor.role {
            assert_eq!(
                (tensor.rows, tensor.cols),
                hyper.projection_shape(projection),
                "{}",
                tensor.role
            );
        }
        assert_eq!(model.bytes(tensor).len(), 4 * tensor.rows * tensor.cols);
    }
    assert!(model.tensor(Role::Output).is_none());
    assert_eq!(model.tensor(Role::OutputNorm).unwrap().rows, 1);
    assert_eq!(model.vocabulary.as_ref().unwrap().tokens.len(), 5);
}

/// The file was written by gguf-py (`scripts/make_block_fixtures.py`).
#[test]
fn model_written_by_gguf_py_binds() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/tiny_llama.gguf"
    );
    let model = ModelFile::open_gguf(path).unwrap();
    let hyper = HyperParameters {
        architecture: "llama".to_owned(),
        name: Some("tiny".to_owned()),
        vocabulary: 6,
        context: 16,
        width: 32,
        layers: 1,
        heads: 4,
        kv_heads: 2,
        head_size: 8,
        ffn: 64,
        norm_epsilon: 1e-6,
        rope_theta: 5e5,
        rope_dimensions: 8,
        rope_linear_scale: 1.0,
        forward: Forward::default(),
    };
    assert_eq!(model.hyper, hyper);
    assert_eq!(model.tensors.len(), 13);
    let key = model
        .tensor(Role::Linear {
            layer: 0,
            projection: ProjectionKind::K,
            part: Part::Weight,
        })
        .unwrap();
    assert_eq!((key.rows, key.cols, key.dtype), (16, 32, DType::Q8_0));
    assert_eq!(model.bytes(key).len(), 16 * 34);
    let vocabulary = model.vocabulary.unwrap();
    assert_eq!(vocabulary.kinds[3], TokenKind::Byte);
    assert!(!vocabulary.add_space_prefix);
}

#[test]
fn optional_tensors_are_bound_if_present() {
    bound_after(|tensors| {
        tensors.push(("output.weight".to_owned(), vec![WIDTH, 5]));
        tensors.push(("rope_freqs.weight".to_owned(), vec![1]));
    })
    .unwrap();
}

#[test]
fn every_missing_tensor_is_named() {
    for at in 0..model_tensors().len() {
        let name = model_tensors()[at].0.clone();
        let error = bound_after(|tensors| drop(tensors.remove(at))).unwrap_err();
        assert_eq!(
            error,
            BindError::MissingTensor {
                tensor: name,
                remedy: Remedy::Gguf
            }
        );
    }
}

#[test]
fn every_wrong_shape_is_named() {
    for at in 0..model_tensors().len() {
        for dim in 0..model_tensors()[at].1.len() {
            let (name, expected) = model_tensors()[at].clone();
            if name == "token_embd.weight" && dim == 1 {
                continue;
            }
            let error = bound_after(|tensors| tensors[at].1[dim] += 1).unwrap_err();
            let mut wrong = expected.clone();
            wrong[dim] += 1;
            wrong.reverse();
            match error {
                BindError::TensorShape {
                    tensor,
                    found,
                    expected: e,
                } => {
                    assert_eq!((tensor, found), (name, wrong));
                    assert!(e.iter().eq(expected.iter().rev()));
                }
                other => panic!("{other}"),
            }
        }
    }
}

#[test]
fn a_transposed_matrix_is_refused() {
    let at = model_tensors()
        .iter()
        .position(|(name, _)| name.contains("ffn_down"))
        .unwrap();
    let error = bound_after(|tensors| tensors[at].1.reverse()).unwrap_err();
    assert!(matches!(
        error,
        BindError::TensorShape { expected, found, .. }
            if expected == [WIDTH, FFN] && found == [FFN, WIDTH]
    ));
}

#[test]
fn dimensions_of_one_may_be_omitted() {
    bound_after(|tensors| tensors[0].1.extend([1, 1])).unwrap();
}

#[test]
fn unexpected_tensors_are_refused() {
    let error = bound_after(|tensors| {
        tensors.push(("blk.0.attn_norm.bias".to_owned(), vec![8]));
        tensors.push((format!("blk.{LAYERS}.attn_q.weight"), vec![8, 8]));
    })
    .unwrap_err();
    assert_eq!(
        error,
        BindError::UnexpectedTensors {
            architecture: "llama",
            count: 2,
            tensor: "blk.0.attn_norm.bias".to_owned(),
        }
    );
}

#[test]
fn biases_follow_their_weights() {
    let mut described = model_tensors();
    described.insert(0, ("blk.1.ffn_down.bias".to_owned(), vec![WIDTH]));
    described.push(("blk.0.attn_q.bias".to_owned(), vec![WIDTH]));
    let mut writer = model_metadata();
    add_tensors(&mut writer, &described);
    let (_, tensors) = bind(&parsed(&writer)).unwrap();
    let roles: Vec<String> = tensors.iter().map(|t| t.role.to_string()).collect();
    for projection in ["blk.0.attn_q", "blk.1.ffn_down"] {
        let weight = roles
            .iter()
            .position(|r| *r == format!("{projection}.weight"));
        let bias = roles
            .iter()
            .position(|r| *r == format!("{projection}.bias"));
        assert_eq!(weight.unwrap() + 1, bias.unwrap());
    }
}

#[test]
fn other_architectures_are_refused_by_name() {
    let error = refused_with("general.architecture", Value::String("mamba".to_owned()));
    assert_eq!(
        error,
        BindError::Architecture {
            found: "mamba".to_owned()
        }
    );
    assert!(
        error.to_string().contains("supported: llama, qwen2"),
        "{error}"
    );
}

#[test]
fn experts_are_refused_where_the_architecture_has_none() {
    let expert_count = |name: &str| (format!("{name}.expert_count"), Value::U32(8));
    let (key, value) = expert_count("llama");
    // Mixtral, without the other keys.
    assert!(matches!(refused_with(&key, value), BindError::Gguf(_)));
    bound_with("llama.expert_count", Value::U32(0)).unwrap();
}

#[test]
fn heads_per_layer_are_refused() {
    for key in ["head_count", "head_count_kv"] {
        let key = format!("llama.attention.{key}");
        let error = refused_with(&key, Value::Array(Array::I32(vec![4, 4])));
        assert!(
            matches!(&error, BindError::Gguf(GgufError::WrongType { key: k, .. }) if *k == key),
            "{error}"
        );
    }
}

#[test]
fn rope_scalings_are_read() {
    let kind = |name: &str| ("llama.rope.scaling.type", Value::String(name.to_owned()));
    let factor = |value| ("llama.rope.scaling.factor", Value::F32(value));
    let legacy = |value| ("llama.rope.scale_linear", Value::F32(value));
    for (entries, expected) in [
        (vec![], 1.0),
        (vec![kind("none")], 1.0),
        (vec![kind("none"), factor(8.0)], 1.0),
        (vec![kind("linear"), factor(4.0)], 4.0),
        (vec![kind("linear")], 1.0),
        (vec![factor(2.0)], 2.0),
        (vec![factor(0.0)], 1.0),
        (vec![legacy(2.0)], 2.0),
        (vec![legacy(2.0), factor(4.0)], 4.0),
    ] {
        let mut writer = model_metadata();
        for (key, value) in entries {
            writer.metadata(key, value);
        }
        add_tensors(&mut writer, &model_tensors());
        let (hyper, _) = bind(&parsed(&writer)).unwrap();
        assert_eq!(hyper.rope_linear_scale, expected);
    }
    let (key, value) = kind("yarn");
    assert_eq!(
        refused_with(key, value),
        BindError::RopeScaling {
            found: "yarn".to_owned()
        }
    );
}

#[test]
fn long_rope_requires_both_tensors() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/fixtures/architectures/phi3/model.gguf"
    );
    let model = Gguf::open(path).unwrap();
    let tensors = ["rope_factors_short.weight", "rope_factors_long.weight"];
    let without = |left_out: &[&str], kind: Option<&str>| {
        let mut writer = Writer::new();
        for (key, value) in model.metadata() {
            writer.metadata(key.as_str(), value.clone());
        }
        if let Some(kind) = kind {
            writer.metadata("phi3.rope.scaling.type", Value::String(kind.to_owned()));
        }
        for tensor in model.tensors() {
            if !left_out.contains(&tensor.name.as_str()) {
                let bytes = model.bytes(tensor);
                writer.tensor(&tensor.name, tensor.ggml_type, &tensor.dims, bytes);
            }
        }
        bind(&parsed(&writer)).map(|(hyper, _)| hyper.forward.long_rope)
    };
    assert!(without(&[], None).unwrap().is_some());
    assert_eq!(without(&tensors, None).unwrap(), None);
    for (left_out, kind, missing) in [
        (&tensors[..1], None, tensors[0]),
        (&tensors[1..], None, tensors[1]),
        (&tensors[..], Some("longrope"), tensors[0]),
    ] {
        let expected = BindError::MissingTensor {
            tensor: missing.to_owned(),
            remedy: Remedy::LongRope,
        };
        assert_eq!(without(left_out, kind).unwrap_err(), expected);
    }
}

#[test]
fn non_causal_attention_is_refused() {
    let refused = refused_with("llama.attention.causal", Value::Bool(false));
    assert_eq!(refused, BindError::NotCausal);
    bound_with("llama.attention.causal", Value::Bool(true)).unwrap();
}

#[test]
fn invalid_hyper_parameters_are_refused() {
    for (key, value, name) in [
        ("block_count", Value::U32(0), "layers"),
        ("block_count", Value::U32(u32::MAX), "layers"),
        ("context_length", Value::U64(u64::MAX), "context"),
        ("embedding_length", Value::U32(0), "width"),
        ("attention.head_count", Value::U32(0), "heads"),
        ("attention.head_count", Value::U32(3), "head_size"),
        ("attention.head_count_kv", Value::U32(0), "kv_heads"),
        ("attention.head_count_kv", Value::U32(3), "kv_heads"),
        ("feed_forward_length", Value::U32(1 << 30), "ffn"),
        ("rope.dimension_count", Value::U32(1), "rope_dimensions"),
        ("rope.dimension_count", Value::U32(0), "rope_dimensions"),
        ("rope.dimension_count", Value::U32(4), "rope_dimensions"),
        ("rope.freq_base", Value::F32(f32::NAN), "rope_theta"),
        ("rope.freq_base", Value::F32(0.0), "rope_theta"),
        ("rope.scaling.factor", Value::F32(-2.0), "rope_linear_scale"),
        (
            "attention.layer_norm_rms_epsilon",
            Value::F32(f32::INFINITY),
            "norm_epsilon",
        ),
    ] {
        let error = refused_with(&format!("llama.{key}"), value);
        assert!(
            matches!(&error, BindError::Hyper(e) if e.name == name),
            "{key}: {error}"
        );
    }
    let error = refused_with("llama.attention.key_length", Value::U32(4));
    assert_eq!(error, BindError::HeadSizes { keys: 4, values: 2 });
}

#[test]
fn missing_hyper_parameters_are_named() {
    for key in [
        "embedding_length",
        "feed_forward_length",
        "block_count",
        "context_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ] {
        let key = format!("llama.{key}");
        let original = parsed(&model_metadata());
        let mut writer = Writer::new();
        for (k, v) in original.metadata().iter().filter(|(k, _)| *k != key) {
            writer.metadata(k.as_str(), v.clone());
        }
        add_tensors(&mut writer, &model_tensors());
        let error = bind(&parsed(&writer)).unwrap_err();
        assert!(
            matches!(&error, BindError::Gguf(GgufError::MissingKey { key: k, .. }) if *k == key),
            "{error}"
        );
    }
}

#[test]
fn tensor_of_unsupported_type_is_named() {
    let (kind, width) = (GgmlType::NVFP4, 64);
    let key = "llama.embedding_length";
    let original = parsed(&model_metadata());
    let mut writer = Writer::new();
    for (k, v) in original.metadata().iter().filter(|(k, _)| k != key) {
        writer.metadata(k.as_str(), v.clone());
    }
    writer.metadata(key, Value::U32(width as u32));
    let zeros = [0; 5 * 36];
    writer.tensor("token_embd.weight", kind, &[width, 5], &zeros);
    let error = bind(&parsed(&writer)).unwrap_err();
    let expected = GgufError::UnsupportedType {
        tensor: "token_embd.weight".to_owned(),
        found: kind,
    };
    assert_eq!(error, BindError::Gguf(expected));
}

#[test]
fn errors_of_a_model_name_the_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vocabulary-only.gguf");
    std::fs::write(&path, model_metadata().to_bytes().unwrap()).unwrap();
    let error = ModelFile::open_gguf(&path).unwrap_err();
    assert!(
        error.to_string().contains("vocabulary-only.gguf"),
        "{error}"
    );
    assert!(matches!(
        error,
        SourceError::Bind { error: BindError::MissingTensor { tensor, .. }, .. }
            if tensor == "token_embd.weight"
    ));
}

#[test]
fn vocabulary_size_must_match_the_embedding() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut tensors = model_tensors();
    tensors[1].1[1] = 6;
    let mut writer = model_metadata();
    add_tensors(&mut writer, &tensors);
    std::fs::write(&path, writer.to_bytes().unwrap()).unwrap();
    let model = ModelFile::open_gguf(&path).unwrap();
    assert_eq!(model.hyper.vocabulary, 6);
    assert_eq!(
        model.vocabulary,
        Err(VocabularyError::Rows { tokens: 5, rows: 6 })
    );
}
