//! Split GGUF models.

use std::fs;
use std::path::{Path, PathBuf};

use crate::gguf_common::{add_tensors, model_metadata, model_tensors, tiny_model};
use htc_formats::architecture::BindError;
use htc_formats::gguf::{GgufError, Value, Writer};
use htc_formats::limits;
use htc_formats::source::{Container, ModelFile, SourceError};
use tempfile::tempdir;

const PARTS: usize = 3;

struct Part {
    number: u16,
    count: u16,
    tensors: i32,
    names: Vec<(String, Vec<u64>)>,
    more: Vec<(&'static str, Value)>,
}

/// The first part holds metadata only.
fn parts() -> Vec<Part> {
    let all = model_tensors();
    let half = all.len() / 2;
    let names = [vec![], all[..half].to_vec(), all[half..].to_vec()];
    let parts = names.into_iter().enumerate().map(|(number, names)| Part {
        number: number as u16,
        count: PARTS as u16,
        tensors: all.len() as i32,
        names,
        more: Vec::new(),
    });
    parts.collect()
}

fn path(folder: &Path, part: usize) -> PathBuf {
    folder.join(format!("tiny-{:05}-of-{PARTS:05}.gguf", part + 1))
}

fn write(folder: &Path, parts: &[Part]) {
    for (place, part) in parts.iter().enumerate() {
        let mut writer = if place == 0 {
            model_metadata()
        } else {
            Writer::new()
        };
        writer
            .metadata("split.no", Value::U16(part.number))
            .metadata("split.count", Value::U16(part.count))
            .metadata("split.tensors.count", Value::I32(part.tensors));
        for (key, value) in &part.more {
            writer.metadata(*key, value.clone());
        }
        add_tensors(&mut writer, &part.names);
        fs::write(path(folder, place), writer.to_bytes().unwrap()).unwrap();
    }
}

fn refused(named: usize, change: impl Fn(&mut Vec<Part>)) -> GgufError {
    let folder = tempdir().unwrap();
    let mut parts = parts();
    change(&mut parts);
    write(folder.path(), &parts);
    let mut errors = (0..PARTS).filter_map(|part| {
        let error = ModelFile::open(path(folder.path(), part)).unwrap_err();
        let text = error.to_string();
        assert!(!text.contains('\n'), "{text}");
        let start = format!("{}: ", path(folder.path(), named).display());
        match error {
            SourceError::Gguf { error, .. } if text.starts_with(&start) => Some(error),
            other if part == 0 => panic!("{other}"),
            _ => None,
        }
    });
    errors.next().unwrap()
}

#[test]
fn split_model_opens_by_any_part() {
    let folder = tempdir().unwrap();
    write(folder.path(), &parts());
    let whole = folder.path().join("whole.gguf");
    fs::write(&whole, tiny_model()).unwrap();
    let whole = ModelFile::open(whole).unwrap();
    for part in 0..PARTS {
        let model = ModelFile::open(path(folder.path(), part)).unwrap();
        assert_eq!(model.path, path(folder.path(), 0));
        let files: Vec<_> = model
            .files
            .iter()
            .map(|file| file.path().to_owned())
            .collect();
        assert_eq!(files, [0, 1, 2].map(|part| path(folder.path(), part)));
        assert_eq!(model.container, Container::Gguf { version: 3 });
        assert_eq!(model.hyper, whole.hyper);
        assert_eq!(model.vocabulary, whole.vocabulary);
        assert_eq!(model.tensors.len(), whole.tensors.len());
        for (found, expected) in model.tensors.iter().zip(&whole.tensors) {
            assert_eq!((found.role, &found.name), (expected.role, &expected.name));
            assert_eq!(model.bytes(found), whole.bytes(expected));
        }
        let bytes: u64 = files
            .iter()
            .map(|file| fs::metadata(file).unwrap().len())
            .sum();
        assert_eq!(model.size(), bytes);
    }
}

#[test]
fn single_part_is_a_whole_model() {
    for (number, count) in [(0, 0), (0, 1)] {
        let folder = tempdir().unwrap();
        let path = folder.path().join("any name.gguf");
        let mut writer = model_metadata();
        writer
            .metadata("split.no", Value::U16(number))
            .metadata("split.count", Value::U16(count));
        add_tensors(&mut writer, &model_tensors());
        fs::write(&path, writer.to_bytes().unwrap()).unwrap();
        assert_eq!(ModelFile::open(&path).unwrap().files.len(), 1);
    }
}

#[test]
fn a_missing_part_is_named() {
    for missing in 0..PARTS {
        let folder = tempdir().unwrap();
        write(folder.path(), &parts());
        fs::remove_file(path(folder.path(), missing)).unwrap();
        for named in (0..PARTS).filter(|part| *part != missing) {
            match ModelFile::open(path(folder.path(), named)).unwrap_err() {
                SourceError::Gguf { path: found, error } => {
                    assert_eq!(found, path(folder.path(), missing));
                    assert_eq!(error, GgufError::MissingPart { count: PARTS });
                }
                other => panic!("{other}"),
            }
        }
    }
}

#[test]
fn renamed_part_is_refused() {
    let folder = tempdir().unwrap();
    write(folder.path(), &parts());
    let renamed = folder.path().join("model.gguf");
    fs::rename(path(folder.path(), 1), &renamed).unwrap();
    match ModelFile::open(&renamed).unwrap_err() {
        SourceError::Gguf { path: found, error } => {
            assert_eq!(found, renamed);
            let expected = "-00002-of-00003.gguf".to_owned();
            assert_eq!(error, GgufError::PartName { expected });
        }
        other => panic!("{other}"),
    }
}

#[test]
fn parts_of_different_models_are_refused() {
    let differs = |error: GgufError| match error {
        GgufError::PartDiffers {
            key,
            expected,
            found,
        } => (key, expected, found),
        other => panic!("{other}"),
    };
    let text = str::to_owned;
    let error = refused(2, |parts| parts[2].number = 1);
    assert_eq!(differs(error), (text("split.no"), text("2"), text("1")));
    let error = refused(0, |parts| parts[0].number = 3);
    assert_eq!(
        differs(error),
        (text("split.no"), text("0 to 2"), text("3"))
    );
    let error = refused(0, |parts| parts[0].number = u16::MAX);
    assert_eq!(differs(error).0, "split.no");
    let error = refused(1, |parts| parts[1].count = 4);
    assert_eq!(differs(error), (text("split.count"), text("3"), text("4")));
    let error = refused(1, |parts| parts[1].tensors = 7);
    assert_eq!(differs(error).0, "split.tensors.count");
    let name = ("general.name", Value::String("another".to_owned()));
    let error = refused(2, |parts| parts[2].more.push(name.clone()));
    assert_eq!(differs(error).0, "general.name");
    let folder = tempdir().unwrap();
    let mut same = parts();
    same[2]
        .more
        .push(("general.architecture", Value::String("llama".to_owned())));
    write(folder.path(), &same);
    ModelFile::open(path(folder.path(), 0)).unwrap();
}

#[test]
fn duplicate_or_missing_tensors_are_refused() {
    let error = refused(2, |parts| {
        let first = parts[1].names[0].clone();
        parts[2].names.push(first);
    });
    assert_eq!(
        error,
        GgufError::TensorInTwoParts {
            tensor: "output_norm.weight".to_owned(),
            other: "tiny-00002-of-00003.gguf".to_owned(),
        }
    );
    let all = model_tensors().len();
    let error = refused(0, |parts| {
        parts[1].names.remove(0);
    });
    assert_eq!(
        error,
        GgufError::TensorCount {
            expected: all,
            found: all - 1
        }
    );
}

#[test]
fn file_without_split_metadata_is_refused() {
    let folder = tempdir().unwrap();
    write(folder.path(), &parts());
    let second = path(folder.path(), 1);
    fs::write(&second, tiny_model()).unwrap();
    let open = |part| match ModelFile::open(path(folder.path(), part)).unwrap_err() {
        SourceError::Gguf { path, error } => (path, error),
        other => panic!("{other}"),
    };
    assert_eq!(
        open(0),
        (second.clone(), GgufError::NotAPart { key: "split.no" })
    );
    fs::write(&second, b"GGUF").unwrap();
    let error = ModelFile::open(path(folder.path(), 0)).unwrap_err();
    assert!(
        error.to_string().starts_with(second.to_str().unwrap()),
        "{error}"
    );
}

#[test]
fn the_number_of_parts_is_bounded() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("tiny-00001-of-65535.gguf");
    let mut writer = model_metadata();
    writer
        .metadata("split.no", Value::U16(0))
        .metadata("split.count", Value::U16(u16::MAX));
    add_tensors(&mut writer, &model_tensors());
    fs::write(&path, writer.to_bytes().unwrap()).unwrap();
    let found = usize::from(u16::MAX);
    assert!(found > limits::MAX_FILES);
    match ModelFile::open(&path).unwrap_err() {
        SourceError::Gguf { error, .. } => {
            assert_eq!(error, GgufError::PartCount { found });
        }
        other => panic!("{other}"),
    }
}

#[test]
fn mismatched_tensor_is_named_with_its_part() {
    let folder = tempdir().unwrap();
    let mut parts = parts();
    let last = parts[2].names.len() - 1;
    parts[2].names[last].1[0] += 1;
    write(folder.path(), &parts);
    match ModelFile::open(path(folder.path(), 0)).unwrap_err() {
        SourceError::Bind { path: found, error } => {
            assert_eq!(found, path(folder.path(), 2));
            assert!(matches!(error, BindError::TensorShape { .. }));
        }
        other => panic!("{other}"),
    }
}
