//! Metadata of the source in artifacts: golden artifacts of format 2.1, round trips, and faults.

use std::collections::BTreeMap;
use std::path::Path;

use crate::htz_common::mixed;
use htc_formats::gguf::{Array, Value, Writer};
use htc_formats::htz::{FOLDER_METADATA, GGUF_METADATA, Htz, HtzError, Record, Section};
use htc_formats::limits::MAX_SOURCE_METADATA_BYTES;
use htc_formats::metadata::SourceMetadata;

fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

fn of_gguf() -> SourceMetadata {
    let tags = Array::String(vec!["one".to_owned(), "two".to_owned()]);
    let entries = [
        ("general.license", text("mit")),
        ("general.author", text("Åsa")),
        ("general.tags", Value::Array(tags)),
        ("general.base_model.0.name", text("base")),
        ("general.base_model.0.organization", text("group")),
        ("custom.nan", Value::F32(f32::NAN)),
        ("custom.bytes", Value::Array(Array::U8(vec![0, 255]))),
        ("custom.least", Value::I64(i64::MIN)),
    ];
    let entries = entries.map(|(key, value)| (key.to_owned(), value));
    SourceMetadata::Gguf(entries.into())
}

fn of_folder() -> SourceMetadata {
    let files = [
        (
            "README.md",
            "---\nlicense: mit\nbase_model: group/base\n---\n# Model\n",
        ),
        ("LICENSE", "Permission is hereby granted\n"),
        ("generation_config.json", "{\"temperature\":0.5}"),
    ];
    let files = files.map(|(name, text)| (name.to_owned(), text.to_owned()));
    SourceMetadata::Folder(BTreeMap::from(files))
}

/// Artifacts of released versions are never regenerated, see `htz_versions`.
#[test]
fn artifacts_of_version_2_1_are_reproduced() {
    let mut absent = Vec::new();
    for (name, metadata) in [("gguf", of_gguf()), ("folder", of_folder())] {
        let bytes = mixed().bytes_with(&[Section::source_metadata(&metadata).unwrap()]);
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        let path = golden.join(format!("v2_1_metadata_{name}.htz"));
        match std::fs::read(&path) {
            Ok(golden) => assert!(golden == bytes, "the writer gives other bytes"),
            Err(_) => {
                std::fs::write(&path, &bytes).unwrap();
                absent.push(name);
            }
        }
        let htz = Htz::open(&path).unwrap();
        assert_eq!(htz.format(), (2, 1));
        htz.verify_all(|_| {}).unwrap();
        let found = htz.source_metadata().unwrap().unwrap();
        // NaN differs from itself.
        assert_eq!(format!("{found:?}"), format!("{metadata:?}"));
        assert_eq!(
            Section::source_metadata(&found).unwrap().bytes(),
            Section::source_metadata(&metadata).unwrap().bytes()
        );
        let expected = [
            ("licence", "mit"),
            ("author", "Åsa"),
            ("base_model", "group/base"),
        ];
        let expected: Vec<_> = match name {
            "gguf" => expected.to_vec(),
            _ => vec![expected[0], expected[2]],
        };
        let summary = found.summary();
        let summary: Vec<_> = summary
            .iter()
            .map(|(name, text)| (*name, text.as_str()))
            .collect();
        assert_eq!(summary, expected);
    }
    assert!(absent.is_empty(), "written: {absent:?}");
}

#[test]
fn artifacts_without_metadata_are_of_version_2_0() {
    let file = mixed().bytes();
    let htz = Htz::parse(&file).unwrap();
    assert_eq!(htz.format(), (2, 0));
    assert_eq!(htz.source_metadata().unwrap(), None);
}

#[track_caller]
fn assert_refused(section: &Section, words: &[&str]) {
    assert!(!section.entry().required, "older readers ignore it");
    let file = mixed().bytes_with(std::slice::from_ref(section));
    let fault = Htz::parse(&file).unwrap().source_metadata().unwrap_err();
    let is_named = matches!(&fault, HtzError::Property { record: Record::Section(name), .. }
        if *name == section.entry().name);
    assert!(is_named, "{fault}");
    let message = fault.to_string();
    for word in words {
        assert!(message.contains(word), "{word:?} is missing from {message}");
    }
}

#[test]
fn invalid_metadata_is_refused() {
    let section = |name, data: &[u8]| Section::new(name, false, data).unwrap();
    let many: BTreeMap<String, &str> = (0..300).map(|i| (i.to_string(), "")).collect();
    let many = serde_json::to_vec(&many).unwrap();
    let values = format!("{{\"a\":[{}0]}}", "0,".repeat(1 << 16));
    let values = serde_json::json!({"config.json": values}).to_string();
    for (name, data, words) in [
        (GGUF_METADATA, &b"GGUF"[..], &["header"][..]),
        (GGUF_METADATA, b"nothing", &["metadata of the source"]),
        (FOLDER_METADATA, b"[]", &["metadata of the source"]),
        (FOLDER_METADATA, b"{\"a\": 1}", &["string"]),
        (FOLDER_METADATA, b"{} {}", &["trailing"]),
        (FOLDER_METADATA, b"{\"a\":\"\",\"a\":\"\"}", &["duplicate"]),
        (
            FOLDER_METADATA,
            b"{\"config.json\":\"[]\"}",
            &["config.json"],
        ),
        (FOLDER_METADATA, &many, &["at most 257"]),
        (FOLDER_METADATA, values.as_bytes(), &["at most 65536"]),
    ] {
        assert_refused(&section(name, data), words);
    }
    let mut stated = Writer::new();
    stated.metadata("tokenizer.ggml.merges", text("x"));
    let words = ["tokenizer.ggml.merges"];
    assert_refused(&section(GGUF_METADATA, &stated.to_bytes().unwrap()), &words);
    let long = vec![b' '; MAX_SOURCE_METADATA_BYTES as usize + 1];
    for name in [GGUF_METADATA, FOLDER_METADATA] {
        assert_refused(&section(name, &long), &["at most 4194304"]);
    }
}

#[test]
fn too_long_metadata_are_not_written() {
    let long = "x".repeat(MAX_SOURCE_METADATA_BYTES as usize);
    let entries = vec![("long".to_owned(), text(&long))];
    let files = BTreeMap::from([("README.md".to_owned(), long)]);
    for metadata in [SourceMetadata::Gguf(entries), SourceMetadata::Folder(files)] {
        let fault = Section::source_metadata(&metadata).unwrap_err();
        assert!(matches!(fault, HtzError::Property { .. }), "{fault}");
    }
}

#[test]
fn the_section_of_a_gguf_is_a_gguf_without_tensors() {
    let mut writer = Writer::new();
    writer.metadata("general.license", text("mit"));
    let entries = vec![("general.license".to_owned(), text("mit"))];
    let file =
        mixed().bytes_with(&[Section::source_metadata(&SourceMetadata::Gguf(entries)).unwrap()]);
    let htz = Htz::parse(&file).unwrap();
    let entry = htz.manifest().section(GGUF_METADATA).unwrap();
    assert_eq!(htz.section(entry).unwrap(), writer.to_bytes().unwrap());
}
