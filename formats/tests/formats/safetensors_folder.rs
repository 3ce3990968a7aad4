//! Model folders: their files and errors.

use std::fs;
use std::path::Path;

use crate::safetensors_common::{LAYERS, Model, Tensor, file, small, write_index};
use htc_formats::architecture::BindError;
use htc_formats::htz::Digest;
use htc_formats::limits;
use htc_formats::model::{Role, RopePairs};
use htc_formats::open::OpenError;
use htc_formats::safetensors::SafetensorsError;
use htc_formats::source::{Container, ModelFile, SourceError};
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

const SECOND: &str = "model-00002-of-00004.safetensors";
const THIRD: &str = "model-00003-of-00004.safetensors";

fn sharded() -> (TempDir, Model, Value) {
    let folder = tempdir().unwrap();
    let model = small("llama");
    let index = model.write_sharded(folder.path());
    (folder, model, index)
}

fn open_error(folder: &Path, file: &str) -> SourceError {
    let error = ModelFile::open(folder).unwrap_err();
    let text = error.to_string();
    assert!(!text.contains('\n') && text.len() < 2000, "{text}");
    let path = match file {
        "" => folder.to_owned(),
        file => folder.join(file),
    };
    assert!(text.starts_with(&format!("{}: ", path.display())), "{text}");
    error
}

fn refused(folder: &Path, file: &str) -> SafetensorsError {
    match open_error(folder, file) {
        SourceError::Safetensors { error, .. } => error,
        other => panic!("{other}"),
    }
}

fn not_bound(folder: &Path, file: &str) -> BindError {
    let error = ModelFile::open(folder).unwrap_err();
    let text = error.to_string();
    let path = match file {
        "" => folder.to_owned(),
        file => folder.join(file),
    };
    assert!(text.starts_with(&format!("{}: ", path.display())), "{text}");
    assert!(!text.contains('\n'), "{text}");
    match error {
        SourceError::Bind { error, .. } => error,
        other => panic!("{other}"),
    }
}

#[test]
fn shards_without_an_index_open_if_their_names_are_complete() {
    let (folder, model, _) = sharded();
    let indexed = ModelFile::open(folder.path()).unwrap();
    fs::remove_file(folder.path().join("model.safetensors.index.json")).unwrap();
    for path in [folder.path().to_owned(), folder.path().join(SECOND)] {
        let opened = ModelFile::open(&path).unwrap();
        assert_eq!(opened.container, indexed.container);
        assert_eq!(opened.tensors.len(), model.tensors.len());
        for tensor in &opened.tensors {
            assert_eq!(opened.bytes(tensor), model.tensors[&tensor.name].bytes);
        }
    }
    let third = fs::read(folder.path().join(THIRD)).unwrap();
    fs::write(
        folder.path().join(THIRD),
        fs::read(folder.path().join(SECOND)).unwrap(),
    )
    .unwrap();
    let error = refused(folder.path(), THIRD);
    let is_double = matches!(&error, SafetensorsError::TwoShards { other, .. } if other == SECOND);
    assert!(is_double, "{error}");
    fs::remove_file(folder.path().join(THIRD)).unwrap();
    assert_eq!(
        refused(folder.path(), THIRD),
        SafetensorsError::MissingNumberedShard
    );
    fs::write(folder.path().join(THIRD), third).unwrap();
    fs::write(folder.path().join("model-00001-of-00002.safetensors"), "").unwrap();
    let error = SafetensorsError::TwoSets {
        first: 2,
        second: 4,
    };
    assert_eq!(refused(folder.path(), ""), error);
}

#[test]
fn files_that_are_no_shards_are_not_read() {
    let folder = tempdir().unwrap();
    small("llama").write_config(folder.path());
    for name in [
        "model-1-of-1.safetensors",
        "model-00002-of-00001.safetensors",
        "model-00000-of-00001.safetensors",
        "model-00001-of-00001.bin",
        "other-00001-of-00001.safetensors",
    ] {
        fs::write(folder.path().join(name), "x").unwrap();
    }
    assert_eq!(refused(folder.path(), ""), SafetensorsError::NoWeights);
}

#[test]
fn missing_tensors_have_a_remedy() {
    let folder = tempdir().unwrap();
    let message = |name: &str, keys: Value| {
        let mut model = small("llama");
        if !name.is_empty() {
            model.remove(name);
        }
        model.with(keys).write(folder.path());
        not_bound(folder.path(), "").to_string()
    };
    assert_eq!(
        message("lm_head.weight", json!({})),
        "tensor \"lm_head.weight\" is missing; if the head shares the embedding, set tie_word_embeddings to \
         true in config.json"
    );
    let said = message("model.norm.weight", json!({}));
    let start = "tensor \"model.norm.weight\" is missing; ";
    assert!(said.starts_with(start), "{said}");
    assert!(said.ends_with("download or save the model again"), "{said}");
    let said = message("", json!({"attention_bias": true}));
    assert!(said.contains("_proj.bias\" is missing"), "{said}");
    assert!(
        said.contains("set attention_bias to false in config.json"),
        "{said}"
    );
}

#[test]
fn a_folder_opens_by_any_of_its_files() {
    let folder = tempdir().unwrap();
    let model = small("llama");
    model.write(folder.path());
    fs::write(
        folder.path().join("other.safetensors"),
        model.file(|_| true),
    )
    .unwrap();
    fs::write(folder.path().join("generation_config.json"), "{}").unwrap();
    let files = ["config.json", "model.safetensors"];
    let paths = files.map(|name| folder.path().join(name));
    for path in [folder.path(), &paths[0], &paths[1]] {
        let opened = ModelFile::open(path).unwrap();
        assert_eq!(opened.path, folder.path());
        assert_eq!(opened.container, Container::Safetensors { shards: 1 });
        let found: Vec<_> = opened
            .files
            .iter()
            .map(|file| file.path().to_owned())
            .collect();
        assert_eq!(found, paths);
        assert_eq!(opened.hyper.forward.rope_pairs, RopePairs::Halves);
        assert!(opened.vocabulary.is_err());
        assert_eq!(opened.tensors.len(), model.tensors.len());
        for tensor in &opened.tensors {
            assert_eq!(opened.bytes(tensor), model.tensors[&tensor.name].bytes);
        }
    }
    let opened = ModelFile::open(folder.path()).unwrap();
    let lines: String = files
        .iter()
        .zip(&paths)
        .map(|(name, path)| format!("{}  {name}\n", Digest::of_bytes(&fs::read(path).unwrap())))
        .collect();
    assert_eq!(opened.digest(), Digest::of_bytes(lines.as_bytes()));

    let error = ModelFile::open(folder.path().join("other.safetensors")).unwrap_err();
    assert!(error.to_string().contains("other.safetensors"), "{error}");
    assert!(matches!(
        error,
        SourceError::Safetensors {
            error: SafetensorsError::NotAWeight,
            ..
        }
    ));
    let error = ModelFile::open(folder.path().join("generation_config.json")).unwrap_err();
    assert!(matches!(error, SourceError::Container { .. }));
}

#[test]
fn a_file_in_the_current_folder_needs_no_path() {
    // Tests run in the folder of their package.
    let error = ModelFile::open_folder("Cargo.toml").unwrap_err();
    assert!(
        error.to_string().starts_with(".: there is no config.json"),
        "{error}"
    );
}

#[test]
fn sharded_model_equals_single_file_model() {
    let (folder, model, _) = sharded();
    let whole = tempdir().unwrap();
    model.write(whole.path());
    let (parts, whole) = (
        ModelFile::open(folder.path()).unwrap(),
        ModelFile::open(whole.path()).unwrap(),
    );
    let shards = LAYERS as usize + 1;
    assert_eq!(parts.container, Container::Safetensors { shards });
    let names: Vec<_> = parts
        .files
        .iter()
        .map(|f| f.path().file_name().unwrap())
        .collect();
    assert!(names.is_sorted(), "{names:?}");
    assert_eq!(names.len(), shards + 2);
    assert_eq!(parts.hyper, whole.hyper);
    assert_eq!(parts.tensors.len(), whole.tensors.len());
    for (a, b) in parts.tensors.iter().zip(&whole.tensors) {
        assert_eq!(
            (a.role, a.dtype, a.rows, a.cols),
            (b.role, b.dtype, b.rows, b.cols)
        );
        assert_eq!(parts.bytes(a), whole.bytes(b), "{}", a.name);
    }
    for name in ["model.safetensors.index.json", SECOND] {
        assert_eq!(
            ModelFile::open(folder.path().join(name)).unwrap().path,
            folder.path()
        );
    }
}

#[test]
fn an_index_may_list_the_single_file() {
    let folder = tempdir().unwrap();
    let model = small("llama");
    model.write(folder.path());
    let map: serde_json::Map<String, Value> = model
        .tensors
        .keys()
        .map(|name| (name.clone(), "model.safetensors".into()))
        .collect();
    write_index(folder.path(), &json!({ "weight_map": map }));
    let opened = ModelFile::open(folder.path()).unwrap();
    assert_eq!(opened.container, Container::Safetensors { shards: 1 });
    assert_eq!(opened.files.len(), 3);
}

#[test]
fn folder_requires_configuration_and_weights() {
    let folder = tempdir().unwrap();
    let model = small("llama");
    assert!(matches!(
        refused(folder.path(), ""),
        SafetensorsError::NoConfig
    ));
    model.write_config(folder.path());
    assert!(matches!(
        refused(folder.path(), ""),
        SafetensorsError::NoWeights
    ));
    model.write_sharded(folder.path());
    fs::write(
        folder.path().join("model.safetensors"),
        model.file(|_| true),
    )
    .unwrap();
    assert!(matches!(
        refused(folder.path(), ""),
        SafetensorsError::Ambiguous
    ));
    let missing = folder.path().join("missing");
    assert!(matches!(
        ModelFile::open_folder(&missing).unwrap_err(),
        SourceError::Open(OpenError::Io { .. })
    ));
}

#[test]
fn non_regular_and_oversized_files_are_refused() {
    for name in ["config.json", "model.safetensors"] {
        let folder = tempdir().unwrap();
        let path = folder.path().join(name);
        small("llama").write(folder.path());
        fs::write(&path, "").unwrap();
        assert!(matches!(
            open_error(folder.path(), name),
            SourceError::Open(OpenError::Empty { .. })
        ));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(matches!(
            open_error(folder.path(), name),
            SourceError::Open(OpenError::Folder { .. })
        ));
    }
    for (name, limit) in [
        ("config.json", limits::MAX_CONFIG_BYTES),
        ("model.safetensors.index.json", limits::MAX_INDEX_BYTES),
    ] {
        let (folder, ..) = sharded();
        let file = fs::File::options()
            .write(true)
            .open(folder.path().join(name))
            .unwrap();
        file.set_len(limit + 1).unwrap();
        match refused(folder.path(), name) {
            SafetensorsError::Size {
                found, limit: said, ..
            } => assert_eq!((found, said), (limit + 1, limit)),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn damaged_weight_file_is_named() {
    let (folder, ..) = sharded();
    let path = folder.path().join(SECOND);
    let bytes = fs::read(&path).unwrap();
    for cut in [4, 100, bytes.len() - 1] {
        fs::write(&path, &bytes[..cut]).unwrap();
        assert!(matches!(
            refused(folder.path(), SECOND),
            SafetensorsError::TooShort { .. }
                | SafetensorsError::HeaderLength { .. }
                | SafetensorsError::BeyondEnd { .. }
        ));
    }
}

#[test]
fn index_must_agree_with_its_files() {
    let name = "model.layers.0.mlp.up_proj.weight";
    let (first, index_file) = (
        "model-00001-of-00004.safetensors",
        "model.safetensors.index.json",
    );

    let (folder, ..) = sharded();
    fs::remove_file(folder.path().join(SECOND)).unwrap();
    assert!(matches!(
        refused(folder.path(), SECOND),
        SafetensorsError::MissingShard
    ));

    let (folder, mut model, _) = sharded();
    model.remove(name);
    let index = folder.path().join(index_file);
    let kept = fs::read(&index).unwrap();
    model.write_sharded(folder.path());
    fs::write(&index, kept).unwrap();
    assert!(matches!(
        refused(folder.path(), SECOND),
        SafetensorsError::MissingTensor { tensor, .. } if tensor == name
    ));

    let (folder, _, mut index) = sharded();
    index["weight_map"][name] = THIRD.into();
    write_index(folder.path(), &index);
    assert!(matches!(
        refused(folder.path(), SECOND),
        SafetensorsError::WrongShard { tensor, listed, .. } if tensor == name && listed == THIRD
    ));

    let (folder, model, _) = sharded();
    let two = model.file(|n| n == name || n.starts_with("model.layers.1."));
    fs::write(folder.path().join(THIRD), two).unwrap();
    assert!(matches!(
        refused(folder.path(), THIRD),
        SafetensorsError::TwoShards { tensor, other, .. } if tensor == name && other == SECOND
    ));

    let (folder, mut model, index) = sharded();
    model.add("lm_head.bias", &[5]);
    model.write_sharded(folder.path());
    write_index(folder.path(), &index);
    assert!(matches!(
        refused(folder.path(), first),
        SafetensorsError::Unlisted { tensor, .. } if tensor == "lm_head.bias"
    ));
}

#[test]
fn computed_buffers_may_be_missing_or_unlisted() {
    let buffer = "model.layers.0.self_attn.rotary_emb.inv_freq";
    let (folder, mut model, mut index) = sharded();
    index["weight_map"][buffer] = THIRD.into();
    write_index(folder.path(), &index);
    let without = ModelFile::open(folder.path()).unwrap();
    model.add(buffer, &[2]);
    model.add("model.rotary_emb.inv_freq", &[2]);
    index["weight_map"].as_object_mut().unwrap().remove(buffer);
    model.write_sharded(folder.path());
    write_index(folder.path(), &index);
    let with = ModelFile::open(folder.path()).unwrap();
    assert_eq!(with.tensors.len(), without.tensors.len());
    let index_file = folder.path().join("model.safetensors.index.json");
    for (file, layer) in [(SECOND, "layers.0."), (THIRD, "layers.1.")] {
        let tensors = without.tensors.iter().map(|tensor| tensor.name.as_str());
        let names: Vec<&str> = tensors.filter(|name| name.contains(layer)).collect();
        let bytes = model.file(|name| name == buffer || names.contains(&name));
        fs::write(folder.path().join(file), bytes).unwrap();
    }
    for has_index in [true, false] {
        if !has_index {
            fs::remove_file(&index_file).unwrap();
        }
        let in_two_shards = ModelFile::open(folder.path()).unwrap();
        assert_eq!(in_two_shards.tensors.len(), without.tensors.len());
    }
    model.add("model.layers.0.self_attn.rotary_emb.scale", &[2]);
    model.write_sharded(folder.path());
    assert!(matches!(
        not_bound(folder.path(), SECOND),
        BindError::UnexpectedTensors { count: 1, .. }
    ));
}

#[test]
fn index_must_not_refer_to_other_folders() {
    let (folder, _, index) = sharded();
    let outside = folder.path().join("inner");
    fs::create_dir(&outside).unwrap();
    for shard in [
        "../model.safetensors",
        "inner/../model.safetensors",
        "./model.safetensors",
        "inner/model.safetensors",
        "/etc/model.safetensors",
        "C:\\model.safetensors",
        "..\\model.safetensors",
        "..",
        "",
        ".safetensors/",
        "model.bin",
        "config.json",
        "model\u{0}.safetensors",
        "model\n.safetensors",
    ] {
        let mut index = index.clone();
        index["weight_map"]["model.norm.weight"] = shard.into();
        write_index(folder.path(), &index);
        let error = refused(folder.path(), "model.safetensors.index.json");
        match error {
            SafetensorsError::ShardName { tensor, .. } => {
                assert_eq!(tensor, "model.norm.weight", "{shard:?}");
            }
            other => panic!("{shard:?}: {other}"),
        }
    }
}

#[test]
fn malformed_index_is_refused() {
    let (folder, ..) = sharded();
    let path = folder.path().join("model.safetensors.index.json");
    let long = format!(
        "{{\"weight_map\":{{\"{}\":\"a.safetensors\"}}}}",
        "a".repeat(300)
    );
    for text in [
        "{",
        "[]",
        "{}",
        r#"{"weight_map":[]}"#,
        r#"{"weight_map":{"a":1}}"#,
        r#"{"weight_map":{"a":{"b":"c"}}}"#,
        r#"{"weight_map":{},"weight_map":{}}"#,
        &"[".repeat(1 << 20),
        &format!("{{\"metadata\":{}", "{\"a\":".repeat(1 << 20)),
        &long,
    ] {
        fs::write(&path, text).unwrap();
        let error = refused(folder.path(), "model.safetensors.index.json");
        assert!(
            matches!(error, SafetensorsError::IndexJson { .. }),
            "{error}"
        );
    }
    let twice = r#"{"weight_map":{"a":"a.safetensors","\u0061":"b.safetensors"}}"#;
    fs::write(&path, twice).unwrap();
    assert!(matches!(
        refused(folder.path(), "model.safetensors.index.json"),
        SafetensorsError::ListedTwice { .. }
    ));
    let map: serde_json::Map<String, Value> = (0..=limits::MAX_FILES)
        .map(|i| (format!("t{i}"), format!("{i}.safetensors").into()))
        .collect();
    write_index(folder.path(), &json!({ "weight_map": map }));
    assert!(matches!(
        refused(folder.path(), "model.safetensors.index.json"),
        SafetensorsError::TooManyFiles { found, .. } if found == limits::MAX_FILES + 1
    ));
}

#[test]
fn mismatched_tensor_is_named_with_its_file() {
    let name = "model.layers.1.mlp.down_proj.weight";
    let (folder, model, _) = sharded();

    let mut other = model.clone();
    other.with(json!({"intermediate_size": 13}));
    other.write_sharded(folder.path());
    match not_bound(folder.path(), SECOND) {
        BindError::TensorShape {
            expected, found, ..
        } => {
            assert_eq!((expected, found), (vec![13, 8], vec![12, 8]));
        }
        other => panic!("{other}"),
    }

    let mut other = model.clone();
    other.remove(name);
    other.write_sharded(folder.path());
    match not_bound(folder.path(), "") {
        BindError::MissingTensor { tensor, .. } => assert_eq!(tensor, name),
        other => panic!("{other}"),
    }

    let mut other = model.clone();
    other.tensors.insert(
        name.to_owned(),
        Tensor {
            dtype: "F8_E4M3",
            shape: vec![8, 12],
            bytes: vec![0; 96],
        },
    );
    other.write_sharded(folder.path());
    let error = not_bound(folder.path(), THIRD);
    assert!(
        matches!(&error, BindError::Safetensors(SafetensorsError::UnsupportedType { tensor, .. }) if tensor == name),
        "{error}"
    );
    assert!(error.to_string().contains("F8_E4M3"), "{error}");

    let mut other = model.clone();
    other.with(json!({"model_type": "gpt2"}));
    other.write_sharded(folder.path());
    assert!(matches!(
        not_bound(folder.path(), "config.json"),
        BindError::ModelType { .. }
    ));
}

#[test]
fn every_float_type_is_used_in_place() {
    let name = "model.layers.0.mlp.up_proj.weight";
    for (dtype, size) in [("F64", 8), ("F32", 4), ("F16", 2), ("BF16", 2)] {
        let folder = tempdir().unwrap();
        let mut model = small("qwen3");
        let bytes: Vec<u8> = (0..12 * 8 * size).map(|i| i as u8).collect();
        let tensor = Tensor {
            dtype,
            shape: vec![12, 8],
            bytes: bytes.clone(),
        };
        model.tensors.insert(name.to_owned(), tensor);
        model.write(folder.path());
        let opened = ModelFile::open(folder.path()).unwrap();
        let tensor = opened.tensors.iter().find(|t| t.name == name).unwrap();
        assert_eq!(tensor.dtype.name(), dtype.to_lowercase());
        assert_eq!(opened.bytes(tensor), bytes);
        assert!(opened.tensor(Role::Output).is_some());
    }
}

#[test]
fn unsupported_file_is_detected_by_its_first_bytes() {
    let folder = tempdir().unwrap();
    small("llama").write(folder.path());
    let path = folder.path().join("model.gguf");
    fs::write(&path, file("{}", &[])).unwrap();
    let error = ModelFile::open(&path).unwrap_err();
    assert!(matches!(error, SourceError::Container { .. }));
    assert!(error.to_string().contains("config.json"), "{error}");
    let path = folder.path().join("model.safetensors");
    fs::write(&path, b"GGUF\x03\0\0\0").unwrap();
    assert!(matches!(
        ModelFile::open(&path).unwrap_err(),
        SourceError::Gguf { .. }
    ));
}
