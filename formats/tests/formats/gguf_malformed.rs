//! Errors of malformed GGUF files.

use crate::gguf_common::{Raw, error, model_metadata};
use htc_formats::CodecError;
use htc_formats::gguf::{Array, Contents, Gguf, GgufError, ValueType};
use htc_formats::limits;
use htc_formats::open::OpenError;
use htc_formats::source::SourceError;

fn open_error(name: &str, contents: Option<&[u8]>) -> SourceError {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    if let Some(contents) = contents {
        std::fs::write(&path, contents).unwrap();
    }
    let error = Gguf::open(&path).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(name) && !text.contains('\n'), "{text}");
    error
}

#[test]
fn missing_file_is_refused() {
    let error = open_error("absent.gguf", None);
    assert!(
        matches!(error, SourceError::Open(OpenError::Io { .. })),
        "{error}"
    );
}

#[test]
fn empty_file_is_refused() {
    let error = open_error("empty.gguf", Some(b""));
    assert!(
        matches!(error, SourceError::Open(OpenError::Empty { .. })),
        "{error}"
    );
}

#[test]
fn folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = Gguf::open(folder.path()).unwrap_err();
    assert!(
        matches!(error, SourceError::Open(OpenError::Folder { .. })),
        "{error}"
    );
}

#[cfg(unix)]
#[test]
fn device_is_refused() {
    let error = Gguf::open("/dev/null").unwrap_err();
    assert!(
        matches!(error, SourceError::Open(OpenError::NotAFile { .. })),
        "{error}"
    );
}

#[test]
fn file_of_another_format_is_refused() {
    let error = open_error("picture.gguf", Some(b"\x89PNG\r\n\x1a\n"));
    let SourceError::Gguf { error, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(
        error,
        GgufError::NotGguf {
            found: b"\x89PNG".to_vec()
        }
    );
    assert!(matches!(self::error(b""), GgufError::NotGguf { found } if found.is_empty()));
    assert!(matches!(self::error(b"GG"), GgufError::NotGguf { found } if found == b"GG"));
}

#[test]
fn unsupported_versions_are_refused() {
    for found in [0, 1, 4, 99, u32::MAX] {
        assert_eq!(
            error(&Raw::new(found, 0, 0).bytes),
            GgufError::Version { found }
        );
    }
    for version in [2, 3] {
        let contents = Contents::parse(&Raw::new(version, 0, 0).bytes).unwrap();
        assert_eq!(contents.version(), version);
    }
}

#[test]
fn big_endian_is_refused() {
    for version in [1u32, 2, 3] {
        let raw = Raw::new(version.swap_bytes(), 0, 0);
        assert_eq!(error(&raw.bytes), GgufError::BigEndian);
    }
    assert_eq!(error(b"FUGG\0\0\0\x03"), GgufError::BigEndian);
}

#[test]
fn every_truncation_is_refused() {
    let bytes = crate::gguf_common::tiny_model();
    let contents = Contents::parse(&bytes).unwrap();
    let end = contents
        .tensors()
        .iter()
        .map(|t| t.range.end)
        .max()
        .unwrap();
    for length in 0..end {
        match error(&bytes[..length]) {
            GgufError::NotGguf { .. } => assert!(length < 4),
            GgufError::Read {
                error: CodecError::Truncated { available, .. },
                ..
            } => {
                assert!(available < length.max(1), "{length}");
            }
            GgufError::Count { .. } => assert!(length < contents.data_offset() as usize),
            GgufError::BeyondEnd {
                end, length: found, ..
            } => {
                assert!(found == length as u64 && end > found, "{length}");
            }
            other => panic!("at {length}: {other}"),
        }
    }
    Contents::parse(&bytes[..end]).unwrap();
}

#[test]
fn excessive_tensor_count_is_refused() {
    let limit = limits::MAX_TENSORS;
    for found in [1 << 60, u64::MAX, limit + 1] {
        let expected = GgufError::Limit {
            place: "tensors".to_owned(),
            found,
            limit,
        };
        assert_eq!(error(&Raw::new(3, found, 0).bytes), expected);
    }
    let mut raw = Raw::new(3, 3, 0);
    raw.bytes.resize(raw.bytes.len() + 32 * 2 + 31, 0);
    let expected = GgufError::Count {
        place: "tensors".to_owned(),
        found: 3,
        possible: 2,
    };
    assert_eq!(error(&raw.bytes), expected);
}

#[test]
fn excessive_metadata_count_is_refused() {
    let limit = limits::MAX_METADATA_ENTRIES;
    let place = || "metadata entries".to_owned();
    for found in [1 << 60, u64::MAX, limit + 1] {
        let expected = GgufError::Limit {
            place: place(),
            found,
            limit,
        };
        assert_eq!(error(&Raw::new(3, 0, found).bytes), expected);
    }
    let expected = GgufError::Count {
        place: place(),
        found: 1,
        possible: 0,
    };
    assert_eq!(error(&Raw::new(3, 0, 1).bytes), expected);
}

#[test]
fn key_longer_than_the_file_is_refused() {
    let mut raw = Raw::new(3, 0, 1);
    raw.u64(u64::MAX).u64(0).u64(0);
    let found = error(&raw.bytes);
    let GgufError::Read {
        item: place,
        error:
            CodecError::Truncated {
                offset,
                needed,
                available,
            },
    } = found
    else {
        panic!("{found}")
    };
    assert_eq!((offset, needed, available), (32, u64::MAX, 16));
    assert_eq!(place, "key of metadata entry 0");
}

#[test]
fn key_and_name_beyond_the_limit_are_refused() {
    let mut raw = Raw::new(3, 0, 1);
    raw.text(&"k".repeat(1 << 16)).u32(0).u8(1);
    let limit = limits::MAX_KEY_BYTES;
    assert!(
        matches!(error(&raw.bytes), GgufError::Limit { found: 65536, limit: l, .. } if l == limit)
    );
    let mut raw = Raw::new(3, 1, 0);
    raw.tensor(&"t".repeat(256), &[1], 0, 0);
    assert!(matches!(
        error(&raw.bytes),
        GgufError::Limit {
            found: 256,
            limit: 255,
            ..
        }
    ));
}

#[test]
fn invalid_utf8_is_refused() {
    let mut raw = Raw::new(3, 0, 1);
    raw.u64(4).raw(b"k\xff\xfey").u32(0).u8(1);
    let found = error(&raw.bytes);
    assert!(
        matches!(
            found,
            GgufError::Read {
                error: CodecError::NotUtf8 { offset: 32 },
                ..
            }
        ),
        "{found}"
    );
}

#[test]
fn boolean_other_than_0_or_1_is_refused() {
    let mut raw = Raw::new(3, 0, 1);
    raw.text("flag").u32(7).u8(2);
    assert_eq!(
        error(&raw.bytes),
        GgufError::Read {
            item: "metadata \"flag\"".to_owned(),
            error: CodecError::NotBool {
                offset: 40,
                found: 2
            },
        }
    );
}

#[test]
fn unknown_value_type_is_refused() {
    for found in [13, u32::MAX] {
        let mut raw = Raw::new(3, 0, 1);
        raw.text("k").u32(found).u64(0);
        assert_eq!(
            error(&raw.bytes),
            GgufError::ValueType {
                key: "k".to_owned(),
                found
            }
        );
        let mut raw = Raw::new(3, 0, 1);
        raw.text("k").u32(9).u32(found).u64(0);
        assert_eq!(
            error(&raw.bytes),
            GgufError::ValueType {
                key: "k".to_owned(),
                found
            }
        );
    }
}

#[test]
fn array_longer_than_the_file_is_refused() {
    for (kind, possible) in [(0, 64), (2, 32), (6, 16), (8, 8), (9, 5), (12, 8)] {
        for found in [65, 1 << 60, u64::MAX] {
            let mut raw = Raw::new(3, 0, 1);
            raw.text("list").u32(9).u32(kind).u64(found).raw(&[0; 64]);
            let place = "elements of metadata \"list\"".to_owned();
            let expected = GgufError::Count {
                place,
                found,
                possible,
            };
            assert_eq!(error(&raw.bytes), expected);
        }
    }
}

#[test]
fn deeply_nested_arrays_are_refused() {
    let mut raw = Raw::new(3, 0, 1);
    raw.text("deep").u32(9);
    for _ in 0..50_000 {
        raw.u32(9).u64(1);
    }
    raw.u32(0).u64(1).u8(1);
    assert_eq!(
        error(&raw.bytes),
        GgufError::Nesting {
            key: "deep".to_owned()
        }
    );
}

#[test]
fn arrays_nested_to_the_limit_are_read() {
    for (levels, ok) in [
        (limits::MAX_ARRAY_DEPTH, true),
        (limits::MAX_ARRAY_DEPTH + 1, false),
    ] {
        let mut raw = Raw::new(3, 0, 1);
        raw.text("deep").u32(9);
        for _ in 1..levels {
            raw.u32(9).u64(1);
        }
        raw.u32(0).u64(1).u8(1);
        assert_eq!(Contents::parse(&raw.bytes).is_ok(), ok, "{levels}");
    }
}

#[test]
fn duplicate_key_is_refused() {
    let mut raw = Raw::new(3, 0, 3);
    raw.text("a")
        .u32(0)
        .u8(1)
        .text("b")
        .u32(0)
        .u8(2)
        .text("a")
        .u32(4)
        .u32(3);
    assert_eq!(
        error(&raw.bytes),
        GgufError::DuplicateKey {
            key: "a".to_owned()
        }
    );
}

#[test]
fn invalid_alignments_are_refused() {
    for found in [0u64, 3, 24, limits::MAX_ALIGNMENT * 2, u64::MAX] {
        let mut raw = Raw::new(3, 0, 1);
        raw.text("general.alignment").u32(10).u64(found);
        assert_eq!(error(&raw.bytes), GgufError::Alignment { found });
    }
    let mut raw = Raw::new(3, 0, 1);
    raw.text("general.alignment").u32(8).text("32");
    assert!(matches!(error(&raw.bytes), GgufError::WrongType { .. }));
}

#[test]
fn type_mismatch_names_key_expected_and_found() {
    let mut raw = Raw::new(3, 0, 2);
    raw.text("n").u32(5).u32(-3i32 as u32);
    raw.text("s").u32(8).text("seven");
    let contents = Contents::parse(&raw.bytes).unwrap();
    for (found, words) in [
        (
            contents.required::<u64>("n").unwrap_err(),
            ["\"n\"", "non-negative integer", "i32 -3"],
        ),
        (
            contents.required::<bool>("s").unwrap_err(),
            ["\"s\"", "boolean", "\"seven\""],
        ),
        (
            contents.required::<&str>("x").unwrap_err(),
            ["\"x\"", "missing", "string"],
        ),
    ] {
        let text = found.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    }
    assert_eq!(contents.optional::<f32>("x"), Ok(None));
}

#[test]
fn metadata_of_a_model_alone_is_a_valid_file() {
    let bytes = model_metadata().to_bytes().unwrap();
    let contents = Contents::parse(&bytes).unwrap();
    assert!(contents.tensors().is_empty());
    let mut raw = Raw::new(3, 0, 1);
    raw.text("k").u32(0).u8(1);
    let contents = Contents::parse(&raw.bytes).unwrap();
    assert!(contents.data_offset() > raw.bytes.len() as u64);
}

/// Empty texts take three times their file size in memory.
#[test]
fn memory_for_metadata_is_bounded() {
    let limit = limits::MAX_METADATA_MEMORY;
    let list = |kind: ValueType, count: u64, each: u64| {
        let mut raw = Raw::new(3, 0, 1);
        raw.text("list").u32(ValueType::Array as u32);
        raw.u32(kind as u32).u64(count);
        let mut bytes = vec![0; raw.bytes.len() + (count * each) as usize];
        bytes[..raw.bytes.len()].copy_from_slice(&raw.bytes);
        bytes
    };
    let (text, array) = (size_of::<String>() as u64, size_of::<Array>() as u64);
    for (kind, count, each) in [
        (ValueType::String, limit / text + 1, 8),
        (ValueType::Array, limit / array + 1, 12),
        (ValueType::U8, limit + 1, 1),
        (ValueType::F64, limit / 8 + 1, 8),
    ] {
        match error(&list(kind, count, each)) {
            GgufError::Limit {
                place,
                found,
                limit: most,
            } => {
                assert!(
                    place.contains("list") && place.contains("memory"),
                    "{place}"
                );
                assert!(found > limit && most == limit, "{kind}: {found}");
            }
            other => panic!("{kind}: {other}"),
        }
    }
    let mut raw = Raw::new(3, 0, 300);
    for index in 0..300 {
        raw.text(&format!("{index}")).u32(ValueType::String as u32);
        raw.text(&"x".repeat(1 << 20));
    }
    assert!(matches!(error(&raw.bytes), GgufError::Limit { .. }));
    let few = list(ValueType::String, 1000, 8);
    assert!(Contents::parse(&few).is_ok());
}
