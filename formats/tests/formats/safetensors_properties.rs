//! Properties of headers, indexes and configurations: round trips and absence of panics.

use crate::safetensors_common::{Model, TYPES, file, small};
use htc_formats::architecture::{Place, WeightFile, bind_hugging_face};
use htc_formats::safetensors::{Contents, Element, Index};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn one_line(error: &dyn std::fmt::Display) {
    let text = error.to_string();
    assert!(!text.contains('\n') && text.len() < 4000, "{text}");
}

fn exercise(bytes: &[u8]) {
    match Contents::parse(bytes) {
        Ok(contents) => {
            let mut covered = 0;
            for tensor in contents.tensors() {
                covered += bytes[tensor.range.clone()].len();
                assert_eq!(contents.tensor(&tensor.name), Some(tensor));
            }
            let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            assert_eq!(8 + header + covered, bytes.len());
        }
        Err(error) => one_line(&error),
    }
    if let Err(error) = Index::parse(bytes) {
        one_line(&error);
    }
}

fn bind(config: &[u8], bytes: &[u8], contents: &Contents) {
    let weights = WeightFile {
        index: 0,
        bytes,
        contents,
    };
    match bind_hugging_face(config, &[weights]) {
        Ok((hyper, tensors)) => {
            hyper.check().unwrap();
            for tensor in tensors {
                let expected = tensor.dtype.matrix_bytes(tensor.rows, tensor.cols);
                assert_eq!(expected, Some(tensor.place.len()));
                if let Place::File { index, range } = tensor.place {
                    assert!(index == 0 && range.end <= bytes.len());
                }
            }
        }
        Err(error) => one_line(&error),
    }
}

fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        (0..20u64).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|x| json!(x)),
        prop::sample::select(vec![json!(0.5), json!(1e300), json!(4096), json!(131_072)]),
    ]
}

const WORDS: [&str; 52] = [
    "_sliding_window_pattern",
    "attention_bias",
    "attention_factor",
    "attn_logit_softcapping",
    "default",
    "factor",
    "final_logit_softcapping",
    "full_attention",
    "gelu_pytorch_tanh",
    "gemma2",
    "gemma3_text",
    "head_dim",
    "hidden_act",
    "hidden_activation",
    "hidden_size",
    "high_freq_factor",
    "intermediate_size",
    "layer_types",
    "linear",
    "llama",
    "llama3",
    "long_factor",
    "longrope",
    "low_freq_factor",
    "max_position_embeddings",
    "max_window_layers",
    "mistral",
    "mlp_bias",
    "model_type",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "phi3",
    "quantization_config",
    "query_pre_attn_scalar",
    "qwen2",
    "qwen3",
    "rms_norm_eps",
    "rope_local_base_freq",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "rope_type",
    "short_factor",
    "silu",
    "sliding_attention",
    "sliding_window",
    "tie_word_embeddings",
    "type",
    "use_sliding_window",
];

fn json_value(depth: u32) -> BoxedStrategy<Value> {
    let leaf = prop_oneof![
        4 => number(),
        3 => prop::sample::select(&WORDS[..]).prop_map(Value::from),
        1 => "\\PC{0,8}".prop_map(Value::from),
        1 => any::<bool>().prop_map(Value::from),
        1 => Just(Value::Null),
    ];
    if depth == 0 {
        return leaf.boxed();
    }
    let key = prop::sample::select(&WORDS[..]).prop_map(str::to_owned);
    prop_oneof![
        4 => leaf,
        1 => prop::collection::vec(json_value(depth - 1), 0..5).prop_map(Value::from),
        2 => prop::collection::btree_map(key, json_value(depth - 1), 0..8)
            .prop_map(|map| map.into_iter().collect::<Map<_, _>>().into()),
    ]
    .boxed()
}

proptest! {
    #[test]
    fn written_file_is_read_back(
        tensors in prop::collection::btree_map(
            "\\PC{1,12}",
            (prop::sample::select(Element::ALL), prop::collection::vec(0..5u64, 0..3), 0..9u8),
            0..8,
        ),
    ) {
        let mut header = Map::new();
        let mut data = Vec::new();
        for (name, (element, shape, fill)) in &tensors {
            let shape: Vec<u64> = shape.iter().copied().chain([8]).collect();
            let bits = element.bits() * shape.iter().product::<u64>();
            let start = data.len();
            data.resize(start + bits as usize / 8, *fill);
            let entry = json!({
                "dtype": element.name(), "shape": shape, "data_offsets": [start, data.len()],
            });
            header.insert(name.clone(), entry);
        }
        let bytes = file(&Value::from(header).to_string(), &data);
        let contents = Contents::parse(&bytes).unwrap();
        prop_assert_eq!(contents.tensors().len(), tensors.len());
        for (name, (element, _, fill)) in &tensors {
            let found = contents.tensor(name).unwrap();
            prop_assert_eq!(found.element, *element);
            prop_assert!(bytes[found.range.clone()].iter().all(|byte| byte == fill));
        }
        exercise(&bytes);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        exercise(&bytes);
        exercise(&file(&String::from_utf8_lossy(&bytes), &[0; 9]));
        bind(&bytes, &[], &Contents::parse(&file("{}", &[])).unwrap());
    }

    #[test]
    fn any_json_is_read_or_refused(value in json_value(3), data in 0..40usize) {
        exercise(&file(&value.to_string(), &vec![0; data]));
        let index = json!({ "weight_map": value });
        exercise(index.to_string().as_bytes());
    }

    #[test]
    fn modified_bytes_never_panic(
        model_type in prop::sample::select(&TYPES[..]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let model = small(model_type);
        let mut bytes = model.file(|_| true);
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        for (at, byte) in changes {
            let at = at.index(header);
            bytes[at] = byte;
        }
        exercise(&bytes);
        if let Ok(contents) = Contents::parse(&bytes) {
            bind(model.config.to_string().as_bytes(), &bytes, &contents);
        }
        exercise(&bytes[..cut.index(bytes.len())]);
    }

    #[test]
    fn any_configuration_is_read_or_refused(
        model_type in prop::sample::select(&TYPES[..]),
        keys in prop::collection::btree_map(
            prop::sample::select(&WORDS[..]).prop_map(str::to_owned),
            json_value(2),
            0..4,
        ),
        kind in prop::sample::select(&["linear", "llama3", "longrope", "default"][..]),
        parameters in prop::collection::btree_map(
            prop::sample::select(&WORDS[..]).prop_map(str::to_owned),
            json_value(1),
            0..4,
        ),
    ) {
        let mut model: Model = small(model_type);
        let bytes = model.file(|_| true);
        let contents = Contents::parse(&bytes).unwrap();
        let stated: Map<String, Value> = keys.into_iter().collect();
        model.with(stated.into());
        bind(model.config.to_string().as_bytes(), &bytes, &contents);
        let mut rotation = json!({
            "rope_type": kind, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32, "short_factor": [1, 1], "long_factor": [2, 2],
        });
        rotation.as_object_mut().unwrap().extend(parameters);
        let mut model = small(model_type);
        model.with(json!({ "rope_scaling": rotation }));
        bind(model.config.to_string().as_bytes(), &bytes, &contents);
    }
}

#[test]
fn fixtures_are_read() {
    let fixture = |name: &str| {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
        std::fs::read(format!("{folder}/{name}")).unwrap()
    };
    let header = String::from_utf8(fixture("header.json")).unwrap();
    assert_eq!(
        Contents::parse(&file(&header, &[0; 8]))
            .unwrap()
            .tensors()
            .len(),
        2
    );
    assert_eq!(
        Index::parse(&fixture("shards.index.json"))
            .unwrap()
            .shards()
            .len(),
        2
    );
    for (name, model_type) in [
        ("config_llama.json", "llama"),
        ("config_gemma3.json", "gemma3_text"),
        ("config_phi3.json", "phi3"),
    ] {
        let config: Value = serde_json::from_slice(&fixture(name)).unwrap();
        assert_eq!(config["model_type"], model_type);
    }
}
