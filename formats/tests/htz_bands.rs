//! Matrices in bands, which format 1.6 brought, in files whose digests are right and whose contents are
//! wrong.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod htz_common;

use htc_formats::htz::Htz;
use htc_formats::model::Role;
use htz_common::{banded, classed, forged, json};
use serde_json::{Value, json};

/// Refuses the artifact after a change, and returns the message, which is one line.
fn refused(change: impl FnOnce(&mut Value)) -> String {
    let file = forged(&banded().bytes(), change);
    let fault = Htz::parse(&file).expect_err("the fault is found");
    let message = fault.to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

fn index(role: &str) -> usize {
    let json = json(&banded().bytes());
    let table = json["tensors"].as_array().unwrap();
    table
        .iter()
        .position(|entry| entry["role"] == role)
        .unwrap()
}

#[test]
fn codes_are_read_back_and_a_reader_must_know_them() {
    let model = banded();
    let file = model.bytes();
    let htz = Htz::parse(&file).unwrap();
    assert_eq!(htz.format(), (1, 6));
    assert_eq!(htz.manifest().requires, ["bands"]);
    for role in [Role::TokenEmbedding, Role::Output] {
        let entry = htz.manifest().tensor(role).unwrap();
        let codes = entry.codes.as_ref().unwrap();
        let bands = codes.view(entry.rows as usize, htz.tensor_bytes(entry));
        let bands = bands.unwrap();
        bands.check().unwrap();
    }
    let message = refused(|json| json["requires"] = json!([]));
    assert!(message.contains("feature \"bands\""), "{message}");
}

#[test]
fn codes_that_fit_neither_the_columns_nor_the_bytes_are_refused_by_name() {
    let role = "layers.0.down.weight";
    let at = index(role);
    for (codes, said) in [
        (json!("1:t3x1"), "one for every 32 of 64 columns"),
        (json!("1:t3x1,l4x2"), "one for every 32 of 64 columns"),
        (json!("1:t3x1,l5x1"), "length"),
        (json!("2:t3x1,l4x1"), "tables of version \"2\""),
        (json!("1:t6x1,l4x1"), "trellis of 6 bits"),
        (json!("1:t3x1,l9x1"), "levels of 9 bits"),
        (json!("1:t3x99999999999"), "a run of 1 to 32768 bands"),
        (json!("1:t3x2,"), "a run of a code"),
        (Value::Null, "list of codes is none"),
        (json!(7), "manifest cannot be read"),
    ] {
        let message = refused(|json| json["tensors"][at]["codes"] = codes.clone());
        assert!(message.contains(said), "{codes}: {message}");
    }
    let message = refused(|json| json["tensors"][at]["dtype"] = json!("q8_0"));
    assert!(
        message.contains(role) && message.contains("codes"),
        "{message}"
    );
}

/// Only a dense matrix is in bands.
#[test]
fn bands_have_no_place_in_vectors_and_factors() {
    let q = index("layers.0.q.weight");
    for role in ["output_norm", "layers.0.attention_norm"] {
        let at = index(role);
        let message = refused(|json| {
            let entry = &mut json["tensors"][at];
            entry["dtype"] = json!("bands");
            entry["codes"] = json!("1:t3x1");
            entry["length"] = json!(128 + 192);
        });
        assert!(
            message.contains(role) && message.contains("type is bands"),
            "{message}"
        );
    }
    let message = refused(|json| {
        let entry = &mut json["tensors"][q];
        entry["role"] = json!("layers.0.q.a");
        entry["dtype"] = json!("bands");
        entry["codes"] = json!("1:t3x1");
        entry["length"] = json!(128 + 2 * 192);
    });
    assert!(
        message.contains("layers.0.q.a") && message.contains("type is bands"),
        "{message}"
    );
}

#[test]
fn classes_are_read_back_and_others_refused_by_name() {
    let model = classed();
    let file = model.bytes();
    let htz = Htz::parse(&file).unwrap();
    assert_eq!(htz.format(), (1, 8));
    assert_eq!(htz.manifest().requires, ["bands", "row_classes"]);
    let entry = htz.manifest().tensor(Role::TokenEmbedding).unwrap();
    let layout = entry.codes.as_ref().unwrap();
    assert_eq!(layout.to_string(), "3*1:l5x1;4*1:t3x1;5*1:t2x1");
    let bytes = htz.tensor_bytes(entry);
    layout.view(12, bytes).unwrap().check().unwrap();

    let refused = |change: &dyn Fn(&mut Value)| {
        let message = Htz::parse(&forged(&file, change)).unwrap_err().to_string();
        assert!(!message.contains('\n'), "{message}");
        message
    };
    let message = refused(&|json| json["requires"] = json!(["bands"]));
    assert!(message.contains("feature \"row_classes\""), "{message}");
    for (codes, said) in [
        ("3*1:l5x1;4*1:t3x1;6*1:t2x1", "classes of 12 rows together"),
        (
            "3*1:l5x2;4*1:t3x2;5*1:t2x2",
            "one for every 32 of 32 columns",
        ),
        ("3*1:l5x1;4*1:t3x2;5*1:t2x1", "classes of 32 and 64 columns"),
        ("12*1:l5x1", "1 classes"),
        (
            "3*1:l5x1;4*1:t3x1;5*1:t2x1;0*1:t2x1",
            "a class without rows",
        ),
        ("1*1:l5x1;1*1:l5x1;1*1:l5x1;1*1:l5x1;8*1:l5x1", "5 classes"),
        ("3*1:l5x1;4*1:t3x1;05*1:t2x1", "05*1:t2x1"),
        ("3*1:l5x1;4*1:t3x1;x*1:t2x1", "x*1:t2x1"),
        ("3*1:l5x1;4*1:t3x1;", "rows, a star and codes"),
        (
            "3*1:l5x1;18446744073709551615*1:t2x1",
            "a class of more than",
        ),
        ("3*1:l5x1;4*2:t3x1;5*1:t2x1", "tables of version \"2\""),
    ] {
        let at = index("token_embedding");
        let message = refused(&|json| json["tensors"][at]["codes"] = json!(codes));
        assert!(message.contains(said), "{codes}: {message}");
    }
}
