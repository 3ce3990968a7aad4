//! Column-group matrices (format 1.6): invalid contents under valid digests.

use crate::htz_common::{Model, banded, classed, forged, json, padded, refined, rotated, tabled};
use htc_formats::bands::rotate;
use htc_formats::htz::{Htz, Manifest};
use htc_formats::model::{MatrixId, Role};
use serde_json::{Value, json};

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
fn codes_are_read_back_and_required() {
    let model = banded();
    let file = model.bytes();
    let htz = Htz::parse(&file).unwrap();
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
fn mismatched_codes_are_refused_by_name() {
    let role = "blk.0.ffn_down.weight";
    let at = index(role);
    for (codes, said) in [
        (json!("1:t3x1"), "one for every 32 of 64 columns"),
        (json!("1:t3x1,l4x2"), "one for every 32 of 64 columns"),
        (json!("1:t3x1,l5x1"), "length"),
        (json!("3:t3x1,l4x1"), "tables of version \"3\""),
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

#[test]
fn column_groups_are_refused_in_vectors_and_factors() {
    let q = index("blk.0.attn_q.weight");
    for role in ["output_norm", "blk.0.attn_norm"] {
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
        entry["role"] = json!("blk.0.attn_q.a");
        entry["dtype"] = json!("bands");
        entry["codes"] = json!("1:t3x1");
        entry["length"] = json!(128 + 2 * 192);
    });
    assert!(
        message.contains("blk.0.attn_q.a") && message.contains("type is bands"),
        "{message}"
    );
}

#[test]
fn classes_are_read_back_and_invalid_ones_refused() {
    let model = classed();
    let file = model.bytes();
    let htz = Htz::parse(&file).unwrap();
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
        ("3*1:l5x1;4*3:t3x1;5*1:t2x1", "tables of version \"3\""),
    ] {
        let at = index("token_embd.weight");
        let message = refused(&|json| json["tensors"][at]["codes"] = json!(codes));
        assert!(message.contains(said), "{codes}: {message}");
    }
}

#[test]
fn tables_match_the_version_in_the_codes() {
    let file = tabled().bytes();
    let htz = Htz::parse(&file).unwrap();
    assert_eq!(htz.manifest().requires, ["bands", "row_classes", "tables"]);
    let silent = forged(&file, |json| {
        json["requires"] = json!(["bands", "row_classes"]);
    });
    let message = Htz::parse(&silent).unwrap_err().to_string();
    assert!(message.contains("feature \"tables\""), "{message}");

    let role = Role::Output;
    let rows = |file: &Vec<u8>| {
        let htz = Htz::parse(file).unwrap();
        let entry = htz.manifest().tensor(role).unwrap();
        let (count, cols) = (entry.rows as usize, entry.cols as usize);
        let matrix = entry.codes.as_ref().unwrap();
        let matrix = matrix.view(count, htz.tensor_bytes(entry)).unwrap();
        let mut row = vec![0.0; cols];
        let rows = (0..count).map(|r| {
            matrix.decode_row(r, &mut row).unwrap();
            row.clone()
        });
        rows.collect::<Vec<_>>()
    };
    let earlier = classed();
    assert_eq!(
        earlier.data.iter().find(|(of, _)| *of == role),
        tabled().data.iter().find(|(of, _)| *of == role)
    );
    assert_ne!(rows(&earlier.bytes()), rows(&file));
}

#[test]
fn later_tables_are_required_in_classes_and_refinements() {
    let required = |mut model: Model, role: Role, codes: &str| {
        let tensors = &mut model.manifest.tensors;
        let entry = tensors.iter_mut().find(|entry| entry.role == role);
        entry.unwrap().codes = Some(codes.parse().unwrap());
        let Manifest { hyper, tensors, .. } = &model.manifest;
        Manifest::required_features(hyper, tensors)
    };
    let classes = |codes| required(classed(), Role::TokenEmbedding, codes);
    let before = classes("3*1:l5x1;4*1:t3x1;5*1:t2x1");
    assert_eq!(before, ["bands", "row_classes"]);
    let after = classes("3*1:l5x1;4*1:t3x1;5*2:t2x1");
    assert_eq!(after, ["bands", "row_classes", "tables"]);
    let refinement = Role::Refinement {
        matrix: MatrixId::Head,
    };
    let after = required(refined(), refinement, "2:t2x1");
    assert_eq!(after, ["bands", "planes", "tables"]);
}

#[test]
fn rotation_is_required_and_inverted() {
    let file = rotated().bytes();
    let htz = Htz::parse(&file).unwrap();
    let all = ["bands", "row_classes", "tables", "rotated_bands"];
    assert_eq!(&htz.manifest().requires, &all);
    let plain = tabled().bytes();
    let plain = Htz::parse(&plain).unwrap();
    let mut changed = 0;
    for (entry, before) in htz.manifest().tensors.iter().zip(&plain.manifest().tensors) {
        let (Some(layout), Some(of_before)) = (&entry.codes, &before.codes) else {
            continue;
        };
        assert_eq!(htz.tensor_bytes(entry), plain.tensor_bytes(before));
        let (rows, cols) = (entry.rows as usize, entry.cols as usize);
        let bands = layout.view(rows, htz.tensor_bytes(entry)).unwrap();
        let stored = of_before.view(rows, plain.tensor_bytes(before)).unwrap();
        let (mut row, mut expected) = (vec![0.0; cols], vec![0.0; cols]);
        for i in 0..rows {
            bands.decode_row(i, &mut row).unwrap();
            stored.decode_row(i, &mut expected).unwrap();
            if row != expected {
                rotate(&mut expected);
                changed += 1;
            }
            assert_eq!(row, expected, "{} row {i}", entry.role);
        }
    }
    assert_eq!(changed, 4 + 32 + 12);

    let refused = |change: &dyn Fn(&mut Value)| {
        let message = Htz::parse(&forged(&file, change)).unwrap_err().to_string();
        assert!(!message.contains('\n'), "{message}");
        message
    };
    let message = refused(&|json| {
        json["requires"] = json!(["bands", "row_classes", "tables"]);
    });
    assert!(message.contains("feature \"rotated_bands\""), "{message}");
}

#[test]
fn padding_is_required_and_must_match_the_columns() {
    let file = padded().bytes();
    let htz = Htz::parse(&file).unwrap();
    let requires = &htz.manifest().requires;
    let all = ["bands", "planes", "row_classes", "tables", "padded_bands"];
    assert_eq!(requires, &all);
    for entry in htz.manifest().tensors.iter() {
        let Some(layout) = &entry.codes else { continue };
        let whole = entry.cols.next_multiple_of(32);
        assert_eq!(layout.padding() as u64, whole - entry.cols);
        let rows = entry.rows as usize;
        let bands = layout.view(rows, htz.tensor_bytes(entry)).unwrap();
        bands.check().unwrap();
        let mut row = vec![f32::NAN; entry.cols as usize];
        bands.decode_row(rows - 1, &mut row).unwrap();
        assert!(row.iter().all(|value| value.is_finite()), "{}", entry.role);
        assert!(bands.decode_row(0, &mut vec![0.0; whole as usize]).is_err());
    }

    let refused = |change: &dyn Fn(&mut Value)| {
        let message = Htz::parse(&forged(&file, change)).unwrap_err().to_string();
        assert!(!message.contains('\n'), "{message}");
        message
    };
    let message = refused(&|json| {
        json["requires"] = json!(["bands", "planes", "row_classes", "tables"]);
    });
    assert!(message.contains("feature \"padded_bands\""), "{message}");
    let table = json(&file)["tensors"].as_array().unwrap().clone();
    let of = |role: &str| {
        table
            .iter()
            .position(|entry| entry["role"] == role)
            .unwrap()
    };
    let every = "one for every 32 of 44 columns, the last padded by 20, which is -20 at the end";
    for (role, codes, said) in [
        ("blk.0.ffn_down.weight", "2:t3x1-20", every),
        ("blk.0.ffn_down.weight", "2:t3x2,l4x1-20", every),
        ("blk.0.ffn_down.weight", "2:t3x1,l4x1", every),
        ("blk.0.ffn_down.weight", "2:t3x1,l4x1-19", every),
        ("blk.0.ffn_down.weight", "2:t3x1,l5x1-20", "length"),
        (
            "blk.0.ffn_down.weight",
            "2:t3x1,l4x1-0",
            "1 to 31 columns of padding",
        ),
        (
            "blk.0.ffn_down.weight",
            "2:t3x1,l4x1-32",
            "1 to 31 columns of padding",
        ),
        (
            "blk.0.ffn_down.weight",
            "2:t3x1-20,l4x1",
            "1 to 31 columns of padding",
        ),
        ("blk.0.ffn_down.refinement", "1:l2x2", every),
        (
            "token_embd.weight",
            "3*1:l5x1-12;4*2:t3x1;5*2:t2x1-12",
            "classes of 20 and 32 columns",
        ),
        (
            "token_embd.weight",
            "3*1:l5x1-11;4*2:t3x1-11;5*2:t2x1-11",
            "the last padded by 12",
        ),
    ] {
        let at = of(role);
        let message = refused(&|json| json["tensors"][at]["codes"] = json!(codes));
        assert!(message.contains(said), "{codes}: {message}");
    }
}

#[test]
fn full_column_groups_do_not_require_padding() {
    for model in [banded(), refined(), classed(), tabled()] {
        let file = model.bytes();
        let htz = Htz::parse(&file).unwrap();
        let mut requires = htz.manifest().requires.iter();
        assert!(!requires.any(|name| name == "padded_bands"));
    }
}

#[test]
fn codes_of_more_column_groups_than_the_file_has_bytes_are_refused() {
    let message = refused(|json| {
        let entries = json["tensors"].as_array_mut().unwrap();
        for entry in entries.iter_mut() {
            entry["codes"] = json!("1:l4x32768");
        }
    });
    assert!(
        message.contains("column groups, expected at most"),
        "{message}"
    );
}
