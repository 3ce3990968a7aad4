//! Models of all container formats.

use std::fs;

use crate::htz_common::mixed;
use htc_formats::htz::{HtzError, MAGIC};
use htc_formats::source::{Container, ModelFile, SourceError};

#[test]
fn an_artifact_is_a_model_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.htz");
    let model = mixed();
    model.write(&path, &[]).unwrap();
    let file = ModelFile::open(&path).unwrap();
    assert_eq!(file.container, Container::Htz { major: 2, minor: 0 });
    assert_eq!(file.hyper, model.manifest.hyper);
    assert_eq!(file.vocabulary.as_ref().unwrap(), &model.vocabulary);
    assert_eq!(file.tensors.len(), model.data.len());
    for ((tensor, entry), (role, bytes)) in file
        .tensors
        .iter()
        .zip(&model.manifest.tensors)
        .zip(&model.data)
    {
        assert_eq!(tensor.role, *role);
        assert_eq!(tensor.name, entry.name);
        assert_eq!(tensor.dtype, entry.dtype);
        assert_eq!(
            (tensor.rows as u64, tensor.cols as u64),
            (entry.rows, entry.cols)
        );
        assert_eq!(file.bytes(tensor), bytes);
    }
}

#[test]
fn an_artifact_without_a_tokenizer_is_a_model_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.htz");
    let model = mixed();
    let mut writer =
        htc_formats::htz::HtzWriter::create(&path, model.manifest.clone(), Vec::new(), false)
            .unwrap();
    for (role, bytes) in &model.data {
        writer.write_tensor(*role, bytes).unwrap();
    }
    writer.finish(|_| {}).unwrap();
    assert!(ModelFile::open(&path).unwrap().vocabulary.is_err());
}

#[test]
fn damaged_tokenizer_is_not_treated_as_missing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.htz");
    let mut bytes = mixed().bytes();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    match ModelFile::open(&path).unwrap_err() {
        SourceError::Htz(error) => {
            let cause = error.without_path();
            assert!(matches!(cause, HtzError::Digest { item, .. } if item == "section tokenizer"));
            assert!(error.to_string().starts_with(path.to_str().unwrap()));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn first_bytes_determine_the_container() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    let open = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let error = ModelFile::open(&path).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(path.to_str().unwrap()), "{text}");
        assert!(!text.contains('\n'), "{text}");
        (error, text)
    };
    assert!(matches!(open(&MAGIC).0, SourceError::Htz(_)));
    assert!(matches!(
        open(b"GGUF\x03\0\0\0").0,
        SourceError::Gguf { .. }
    ));
    for bytes in [&b"PK\x03\x04 and so on"[..], b"GGU", b"\n", &MAGIC[..7]] {
        let (error, text) = open(bytes);
        assert!(matches!(error, SourceError::Container { .. }));
        let supported = "supported are GGUF, .htz and folders with a config.json";
        assert!(text.contains(supported), "{text}");
    }
    assert!(
        open(b"PK\x03\x04 and so on")
            .1
            .contains("\"PK\\x03\\x04 and\"")
    );
    open(b"");
    assert!(ModelFile::open(folder.path()).is_err());
    assert!(ModelFile::open(folder.path().join("missing")).is_err());
}
