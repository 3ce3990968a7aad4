//! Sections with invalid contents under valid digests, as in `htz_faults`.

use crate::htz_common::{forged, json, mixed};
use htc_formats::htz::{Htz, HtzError, Record, Section};
use htc_formats::vocab::VocabularyError;

#[test]
fn a_section_without_a_name_or_with_one_that_is_taken() {
    let extra = [
        Section::new("one", false, b"1").unwrap(),
        Section::new("two", false, b"2").unwrap(),
    ];
    let file = mixed().bytes_with(&extra);
    for name in ["", "one", &"x".repeat(256)] {
        let file = forged(&file, |json| json["sections"][2]["name"] = name.into());
        let fault = Htz::parse(&file).unwrap_err();
        assert!(
            matches!(
                fault,
                HtzError::Property {
                    record: Record::Section(_),
                    ..
                }
            ),
            "{fault}"
        );
    }
}

#[test]
fn an_excessive_decoded_length() {
    let refused = |change: &dyn Fn(&mut serde_json::Value)| {
        let file = forged(&mixed().bytes(), |json| change(&mut json["sections"][0]));
        let fault = Htz::parse(&file).unwrap_err();
        let message = fault.to_string();
        assert!(
            matches!(
                fault,
                HtzError::Property {
                    record: Record::Section(_),
                    ..
                }
            ),
            "{message}"
        );
        assert!(message.contains("decoded length"), "{message}");
        message
    };
    for value in [1_u64 << 29, u64::MAX] {
        let message = refused(&|section| section["decoded_length"] = value.into());
        assert!(message.contains("at most"), "{message}");
    }
    refused(&|section| section["encoding"] = "raw".into());
}

fn announced(change: impl Fn(u64) -> u64) -> HtzError {
    let file = forged(&mixed().bytes(), |json| {
        let length = &mut json["sections"][0]["decoded_length"];
        *length = change(length.as_u64().unwrap()).into();
    });
    Htz::parse(&file).unwrap().vocabulary().unwrap_err()
}

#[test]
fn a_wrong_decoded_length() {
    for wrong in [announced(|n| n - 1), announced(|n| n + 1), announced(|_| 0)] {
        assert!(
            matches!(
                wrong,
                HtzError::Property {
                    record: Record::Section(_),
                    property: "content",
                    ..
                }
            ),
            "{wrong}"
        );
    }
}

#[test]
fn a_tokenizer_that_is_no_zstd_frame_or_no_vocabulary() {
    let (file, manifest) = (mixed().bytes(), json(&mixed().bytes()));
    let entry = &manifest["sections"][0];
    let offset = entry["offset"].as_u64().unwrap() as usize;
    let length = entry["length"].as_u64().unwrap() as usize;
    let mut file = file;
    file[offset..].fill(b'{');
    let digest = htc_formats::htz::Digest::of_bytes(&file[offset..]).to_string();
    let file = forged(&file, |json| json["sections"][0]["sha256"] = digest.into());
    let fault = Htz::parse(&file).unwrap().vocabulary().unwrap_err();
    assert!(
        matches!(
            fault,
            HtzError::Property {
                record: Record::Section(_),
                property: "content",
                ..
            }
        ),
        "{fault}"
    );
    let file = forged(&file, |json| {
        json["sections"][0]["encoding"] = "raw".into();
        json["sections"][0]["decoded_length"] = length.into();
    });
    let fault = Htz::parse(&file).unwrap().vocabulary().unwrap_err();
    assert!(fault.to_string().contains("a vocabulary"), "{fault}");
}

#[test]
fn a_missing_tokenizer_or_one_of_another_size() {
    let mut model = mixed();
    model.vocabulary = crate::htz_common::vocabulary(13);
    let path = tempfile::tempdir().unwrap().path().join("x");
    assert!(matches!(
        model.write(&path, &[]),
        Err(HtzError::Vocabulary(VocabularyError::Rows {
            tokens: 13,
            rows: 12
        }))
    ));
    model.vocabulary.scores.pop();
    assert!(matches!(
        model.write(&path, &[]),
        Err(HtzError::Vocabulary(VocabularyError::Length { .. }))
    ));
    let extra = [Section::new("other", false, b"x").unwrap()];
    let file = forged(&mixed().bytes_with(&extra), |json| {
        json["sections"][0]["name"] = "else".into();
        json["sections"][0]["required"] = false.into();
    });
    let fault = Htz::parse(&file).unwrap().vocabulary().unwrap_err();
    assert!(matches!(
        fault,
        HtzError::Vocabulary(VocabularyError::Absent)
    ));
}
