//! Tuning record: read back, reserved by a draft, refused if invalid.

use crate::htz_common::{Model, data_offset, forged, json, mixed};
use htc_formats::htz::{Htz, HtzError, Record, TuningRecord};
use serde_json::json;

fn model_with_tuning(tuning: Option<TuningRecord>) -> Model {
    let mut model = mixed();
    model.manifest.provenance.tuning = tuning;
    model
}

fn tuned() -> TuningRecord {
    TuningRecord {
        steps: 40,
        kl_before: 0.0214,
        kl_after: 0.0201,
    }
}

#[test]
fn tuning_is_read_back() {
    let file = model_with_tuning(Some(tuned())).bytes();
    let htz = Htz::parse(&file).unwrap();
    assert_eq!(htz.manifest().provenance.tuning, Some(tuned()));
    assert_eq!(htz.manifest().requires, mixed().manifest.requires);
}

#[test]
fn draft_only_reserves_space() {
    let draft = model_with_tuning(Some(TuningRecord::draft())).bytes();
    let (plain, full) = (
        model_with_tuning(None).bytes(),
        model_with_tuning(Some(tuned())).bytes(),
    );
    assert_eq!(json(&draft), {
        let mut manifest = json(&plain);
        for kind in ["tensors", "sections"] {
            let there = json(&draft)[kind].clone();
            manifest[kind] = there;
        }
        manifest
    });
    assert_eq!(
        (draft.len(), data_offset(&draft)),
        (full.len(), data_offset(&full))
    );
    assert!(draft[data_offset(&draft)..] == full[data_offset(&full)..]);
    assert!(plain.len() <= full.len());
}

#[test]
fn invalid_tuning_records_are_refused() {
    let file = model_with_tuning(Some(tuned())).bytes();
    for (property, value) in [
        ("steps", json!(0)),
        ("kl_before", json!(-1e-9)),
        ("kl_after", json!(-1)),
    ] {
        let forged = forged(&file, |json| {
            json["provenance"]["tuning"][property] = value.clone();
        });
        let fault = Htz::parse(&forged).unwrap_err();
        assert!(
            matches!(
                fault,
                HtzError::Property {
                    record: Record::Provenance,
                    ..
                }
            ),
            "{fault}"
        );
        assert!(fault.to_string().contains(property), "{fault}");
    }
}
