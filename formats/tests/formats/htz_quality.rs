//! Quality record: read back, written into its reserved space, refused if invalid.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use crate::htz_common::{Model, data_offset, forged, json, measured, mixed, probed, quality};
use htc_formats::folder::Folder;
use htc_formats::htz::{Htz, HtzError, HtzWriter, Measurement, QualityRecord, Record};
use serde_json::{Value, json};

const NAME: &str = "model.htz";

fn put(folder: &Path, quality: Option<QualityRecord>) -> Result<(), HtzError> {
    HtzWriter::write_quality(&Folder::open(folder).unwrap(), OsStr::new(NAME), quality)
}

fn unmeasured() -> (tempfile::TempDir, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(NAME);
    measured().write(&path, &[]).unwrap();
    put(folder.path(), None).unwrap();
    let bytes = fs::read(path).unwrap();
    (folder, bytes)
}

fn longest(number: f64) -> QualityRecord {
    let estimate = Measurement {
        value: number,
        stderr: Some(number),
        interval: Some((-number, number)),
    };
    QualityRecord {
        context: 1 << 20,
        windows: u64::MAX,
        tokens: u64::MAX,
        choosing_windows: u64::MAX,
        kl: estimate,
        perplexity_ratio: estimate,
        ..quality()
    }
}

#[test]
fn quality_is_read_back() {
    let file = measured().bytes();
    let htz = Htz::parse(&file).unwrap();
    assert_eq!(htz.manifest().quality, Some(quality()));
    let treatment = htz.manifest().provenance.treatment.clone().unwrap();
    assert_eq!(treatment.shrinkage, Some(0.03));
    assert!(htz.manifest().requires.is_empty());
    assert_eq!(
        json(&file)["quality"]["kl"],
        json!({"value": 0.0625, "stderr": 0.03125, "interval": [-0.0078125, 0.1328125]})
    );
    let without = forged(&file, |json| {
        json.as_object_mut().unwrap().remove("quality").unwrap();
    });
    assert_eq!(Htz::parse(&without).unwrap().manifest().quality, None);
}

#[test]
fn quality_is_written_in_place_and_removed() {
    let (folder, before) = unmeasured();
    let htz = Htz::parse(&before).unwrap();
    assert_eq!(htz.manifest().quality, None);
    put(folder.path(), Some(quality())).unwrap();
    let after = fs::read(folder.path().join(NAME)).unwrap();
    assert!(after == measured().bytes());
    let end = data_offset(&before);
    assert_eq!((after.len(), data_offset(&after)), (before.len(), end));
    assert!(after[end..] == before[end..]);
    let mut manifest = json(&after);
    assert!(
        manifest
            .as_object_mut()
            .unwrap()
            .remove("quality")
            .is_some()
    );
    assert_eq!(manifest, json(&before));
    put(folder.path(), None).unwrap();
    assert!(fs::read(folder.path().join(NAME)).unwrap() == before);
    let mut names = fs::read_dir(folder.path()).unwrap();
    assert!(names.next().is_some() && names.next().is_none());
}

#[test]
fn without_a_draft_no_space_is_reserved() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(NAME);
    let model: Model = mixed();
    model.write(&path, &[]).unwrap();
    let before = fs::read(&path).unwrap();
    let mut record = longest(2.225_073_858_507_201_4e-308);
    record.protocol = "x".repeat(64);
    let fault = put(folder.path(), Some(record)).unwrap_err();
    assert!(matches!(fault, HtzError::ManifestSpace { .. }), "{fault}");
    assert!(fs::read(&path).unwrap() == before);
    put(folder.path(), None).unwrap();
    assert!(fs::read(&path).unwrap() == before);
    fs::remove_file(&path).unwrap();
    assert!(matches!(put(folder.path(), None), Err(HtzError::Open(_))));
    assert!(!path.exists());
}

#[test]
fn every_quality_fits_its_reserved_space() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(NAME);
    let mut model = probed();
    model.manifest.quality = Some(QualityRecord::draft());
    let fault = model.write(&path, &[]).unwrap_err();
    assert!(
        matches!(
            fault,
            HtzError::Property {
                record: Record::Quality,
                ..
            }
        ),
        "{fault}"
    );
    for number in [2.225_073_858_507_201_4e-308, f64::MAX, 5e-324, 0.1 + 0.2] {
        let record = longest(number);
        put(folder.path(), Some(record.clone())).unwrap();
        let htz = Htz::open(&path).unwrap();
        assert_eq!(htz.manifest().quality, Some(record));
        htz.verify_all(|_| {}).unwrap();
    }
}

#[test]
fn partially_written_head_is_detected() {
    let (_, before) = unmeasured();
    let after = measured().bytes();
    let differ = |at: &usize| before[*at] != after[*at];
    let first = (0..after.len()).find(differ).unwrap();
    let last = (0..after.len()).rfind(differ).unwrap();
    for at in [first + 1, 60, 100, 128, 500, (first + last) / 2, last] {
        let torn = [&after[..at], &before[at..]].concat();
        assert!(Htz::parse(&torn).is_err(), "{at} of {first} to {last}");
    }
}

#[test]
fn invalid_measurement_is_refused() {
    let file = measured().bytes();
    for (place, value, texts) in [
        (
            "/quality/kl/value",
            json!(-1e-300),
            ["kl.value", "not negative"],
        ),
        ("/quality/kl/stderr", json!(-0.5), ["kl.stderr", "-0.5"]),
        (
            "/quality/kl/interval",
            json!([0.5, 0.01]),
            ["kl.interval", "the lower first"],
        ),
        (
            "/quality/kl/interval",
            json!([0.07, 0.09]),
            ["kl.interval", "around 0.0625"],
        ),
        (
            "/quality/kl/interval",
            Value::Null,
            ["kl is a standard error alone", "neither"],
        ),
        (
            "/quality/kl/stderr",
            Value::Null,
            ["kl is an interval alone", "neither"],
        ),
        ("/quality/windows", json!(1), ["tokens", "1 to 64"]),
        ("/quality/windows", json!(0), ["windows is 0", "1 to"]),
        ("/quality/context", json!(0), ["context is 0", "1 to"]),
        ("/quality/context", json!(1_u64 << 40), ["context", "1 to"]),
        ("/quality/tokens", json!(0), ["tokens is 0", "1 to 512"]),
        ("/quality/tokens", json!(513), ["tokens is 513", "1 to 512"]),
        (
            "/quality/protocol",
            json!(""),
            ["protocol", "1 to 64 bytes"],
        ),
        (
            "/quality/protocol",
            json!("x".repeat(65)),
            ["protocol", "1 to 64 bytes"],
        ),
        (
            "/quality/perplexity_ratio/value",
            json!(0.0),
            ["perplexity_ratio.value", "above zero"],
        ),
        (
            "/quality/perplexity_ratio/value",
            json!(-1),
            ["perplexity_ratio.value", "above zero"],
        ),
        (
            "/quality/perplexity_ratio/interval",
            json!([1.25, 1]),
            ["perplexity_ratio.interval", "1.25 to 1"],
        ),
        (
            "/quality/kl/value",
            Value::Null,
            ["quality.kl.value", "null"],
        ),
        (
            "/quality/kl/value",
            json!("0.1"),
            ["quality.kl.value", "string"],
        ),
        (
            "/quality/kl/interval",
            json!([0.0]),
            ["quality.kl.interval", "length"],
        ),
        (
            "/quality/kl/interval",
            json!(["NaN", "NaN"]),
            ["quality.kl.interval", "string"],
        ),
        ("/quality/kl", json!(0.1), ["quality.kl", "map"]),
        ("/quality/windows", json!(-8), ["quality.windows", "-8"]),
        ("/quality/windows", json!(8.5), ["quality.windows", "8.5"]),
        (
            "/quality/text_sha256",
            json!("00"),
            ["quality.text_sha256", ""],
        ),
        (
            "/quality/protocol",
            json!(7),
            ["quality.protocol", "string"],
        ),
        ("/quality", json!("good"), ["quality", "string"]),
        ("/quality", json!({}), ["quality.text_sha256", "null"]),
        (
            "/provenance/treatment/shrinkage",
            json!(1.5),
            ["treatment.shrinkage", "0 to 1"],
        ),
        (
            "/provenance/treatment/shrinkage",
            json!(-0.1),
            ["treatment.shrinkage", "0 to 1"],
        ),
    ] {
        let bad = forged(&file, |json| {
            *json.pointer_mut(place).unwrap() = value.clone()
        });
        let fault = Htz::parse(&bad).expect_err(place);
        let message = fault.to_string();
        for text in texts {
            assert!(
                message.contains(text),
                "{place} {value}: {text:?} in {message:?}"
            );
        }
        assert!(!message.contains('\n'), "{message}");
    }
    let bad = forged(&file, |json| {
        json["quality"]["windows"] = 1.into();
        json["quality"]["tokens"] = 31.into();
    });
    let message = Htz::parse(&bad).unwrap_err().to_string();
    assert!(message.contains("both, of 1 window"), "{message}");
    let text = String::from_utf8(file[128..data_offset(&file)].to_vec()).unwrap();
    for number in ["NaN", "1e999"] {
        let mut bad = file.clone();
        let text = text.replacen("0.0625", number, 2);
        let text = text.trim_end().as_bytes();
        assert!(crate::htz_common::put_manifest(&mut bad, text));
        let fault = Htz::parse(&bad).unwrap_err();
        assert!(matches!(fault, HtzError::ManifestSyntax { .. }), "{fault}");
    }
    let (folder, before) = unmeasured();
    for number in [f64::NAN, f64::INFINITY, -1e-300] {
        let mut record = quality();
        record.kl.value = number;
        let fault = put(folder.path(), Some(record)).unwrap_err();
        assert!(
            matches!(
                fault,
                HtzError::Property {
                    record: Record::Quality,
                    ..
                }
            ),
            "{fault}"
        );
        assert!(fs::read(folder.path().join(NAME)).unwrap() == before);
    }
}
